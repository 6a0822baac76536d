#include "server/http/output_buffer.h"

#include <array>
#include <span>
#include <utility>

namespace tramontane {
namespace {

constexpr size_t kJoinedBytes = 16 << 10;      // a text of fewer is copied behind the one before it
constexpr size_t kKeptBufferBytes = 64 << 10;  // a larger buffer is given back once it is written

}  // namespace

void OutputBuffer::Append(std::string bytes) {
  if (bytes.empty()) return;
  if (texts_.size() > first_ && bytes.size() < kJoinedBytes && texts_.back().size() < kKeptBufferBytes) {
    texts_.back() += bytes;
  } else {
    texts_.push_back(std::move(bytes));
  }
}

OutputBuffer::State OutputBuffer::WriteTo(ByteSocket& socket, int64_t now_ms) {
  while (first_ < texts_.size()) {
    std::array<std::string_view, ByteSocket::kMostTexts> parts;
    size_t count = 0;
    for (size_t at = first_; at < texts_.size() && count < parts.size(); ++at) parts[count++] = texts_[at];
    parts[0].remove_prefix(written_);
    const auto [bytes, state] = socket.Write(std::span(parts).first(count));
    taken_bytes_ += bytes;
    Free(bytes);
    if (state == ByteSocket::State::kLater) {
      if (!is_waiting_ || taken_bytes_ >= kLeastTakenBytes) {
        waiting_since_ms_ = now_ms;
        taken_bytes_ = 0;
      }
      is_waiting_ = true;
      return State::kWaiting;
    }
    if (state != ByteSocket::State::kOpen) return State::kBroken;
  }
  is_waiting_ = false;
  return State::kWritten;
}

void OutputBuffer::Free(size_t bytes) {
  written_ += bytes;
  while (first_ < texts_.size() && written_ >= texts_[first_].size()) {
    written_ -= texts_[first_].size();
    std::string().swap(texts_[first_++]);
  }
  if (first_ < texts_.size()) return;
  texts_.clear();
  first_ = 0;
}

void OutputBuffer::Clear() {
  std::vector<std::string>().swap(texts_);
  first_ = written_ = 0;
}

}  // namespace tramontane

#include "server/http/output_buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>

namespace tramontane {
namespace {

constexpr size_t kJoinedBytes = 16 << 10;  // a text of fewer is copied behind the one before it
constexpr size_t kMostJoinedBytes = 64 << 10;
constexpr size_t kTakenAtOnceBytes = 64 << 10;
constexpr size_t kGivenBackBytes = 1 << 20;

}  // namespace

bool OutputBuffer::TryHold(size_t bytes) {
  return kept_ + bytes <= kTakenAtOnceBytes || held_.TrySet(static_cast<int64_t>(kept_ + bytes));
}

void OutputBuffer::Append(std::string bytes) {
  if (bytes.empty()) return;
  kept_ += bytes.size();
  if (texts_.size() > first_ && bytes.size() < kJoinedBytes && texts_.back().size() < kMostJoinedBytes) {
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
    if (state == ByteSocket::State::kLater) return Wait(now_ms);
    if (state != ByteSocket::State::kOpen) return State::kBroken;
  }
  is_waiting_ = false;
  held_.Set(0);
  return State::kWritten;
}

OutputBuffer::State OutputBuffer::Wait(int64_t now_ms) {
  if (!held_.TrySet(static_cast<int64_t>(kept_))) return State::kBroken;
  if (!is_waiting_ || taken_bytes_ >= least_taken_) {
    if (!is_waiting_) least_taken_ = std::max(kLeastTakenBytes, kept_ / kLeastTakenPart);
    waiting_since_ms_ = now_ms;
    taken_bytes_ = 0;
  }
  is_waiting_ = true;
  return State::kWaiting;
}

void OutputBuffer::Free(size_t bytes) {
  written_ += bytes;
  while (first_ < texts_.size() && written_ >= texts_[first_].size()) {
    written_ -= texts_[first_].size();
    kept_ -= texts_[first_].size() - std::exchange(given_back_, 0);
    std::string().swap(texts_[first_++]);
  }
  if (first_ < texts_.size()) return GiveBackPages();
  texts_.clear();
  first_ = 0;
}

// A long text is one piece of memory, and it may take the client a long time: the system has back what is
// written of it, but for the ends of pages.
void OutputBuffer::GiveBackPages() {
  if (written_ - given_back_ < kGivenBackBytes) return;
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto text = reinterpret_cast<uintptr_t>(texts_[first_].data());
  const uintptr_t begin = (text + given_back_ + page - 1) / page * page,
                  end = (text + written_) / page * page;
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  kept_ -= written_ - given_back_;
  given_back_ = written_;
}

void OutputBuffer::Clear() {
  std::vector<std::string>().swap(texts_);
  first_ = written_ = given_back_ = kept_ = 0;
  held_.Set(0);
}

}  // namespace tramontane

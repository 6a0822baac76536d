#include "server/base/held_bytes.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace tramontane {
namespace {

constexpr size_t kGrowingBytes = 1 << 20;

}  // namespace

HeldBytes::HeldBytes(HeldBytes&& other) noexcept
    : budget_(other.budget_), bytes_(std::exchange(other.bytes_, 0)) {}

HeldBytes& HeldBytes::operator=(HeldBytes&& other) noexcept {
  budget_.bytes_ -= std::exchange(bytes_, std::exchange(other.bytes_, 0));
  return *this;
}

void HeldBytes::Set(int64_t bytes) { budget_.bytes_ += bytes - std::exchange(bytes_, bytes); }

bool HeldBytes::TrySet(int64_t bytes) {
  const int64_t more = bytes - bytes_;
  if (budget_.bytes_.fetch_add(more) + more > budget_.max_bytes_ && more > 0) {
    budget_.bytes_ -= more;
    return false;
  }
  bytes_ = bytes;
  return true;
}

HeldBytes HeldBytes::Split(int64_t bytes) {
  HeldBytes part(budget_);
  part.bytes_ = bytes;
  bytes_ -= bytes;
  return part;
}

void AppendArrived(std::string_view bytes, int64_t most, std::string* kept) {
  const size_t size = kept->size() + bytes.size();
  if (size > kept->capacity()) {
    kept->reserve(size < kGrowingBytes ? std::bit_ceil(size) : std::max(size, static_cast<size_t>(most)));
  }
  kept->append(bytes);
}

}  // namespace tramontane

#include "server/base/held_bytes.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace tramontane {
namespace {

constexpr size_t kGrowingBytes = 1 << 20;
constexpr int64_t kHeldOfFree = 7;  // of a client, at most, to what is left

}  // namespace

bool FitsShare(int64_t mine, int64_t all, int64_t most) {
  const int64_t free = most - all;
  const bool others_have_some = all > mine;
  return free >= 0 && mine <= kHeldOfFree * free && (!others_have_some || mine <= most / 2);
}

std::shared_ptr<ByteBudget::Part> ByteBudget::PartOf(const std::string& client) const {
  std::lock_guard lock(parts_->mutex);
  std::weak_ptr<Part>& known = parts_->of_client[client];
  if (auto part = known.lock()) return part;
  const auto forget = [parts = parts_, client](Part* part) {
    delete part;
    std::lock_guard relock(parts->mutex);
    const auto found = parts->of_client.find(client);
    if (found != parts->of_client.end() && found->second.expired()) parts->of_client.erase(found);
  };
  std::shared_ptr<Part> part(new Part(0), forget);
  known = part;
  return part;
}

HeldBytes::HeldBytes(HeldBytes&& other) noexcept
    : budget_(other.budget_), part_(std::move(other.part_)), bytes_(std::exchange(other.bytes_, 0)) {}

HeldBytes& HeldBytes::operator=(HeldBytes&& other) noexcept {
  Set(0);
  part_ = std::move(other.part_);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

void HeldBytes::Set(int64_t bytes) {
  const int64_t more = bytes - std::exchange(bytes_, bytes);
  if (more == 0) return;
  budget_.bytes_ += more;
  if (part_ != nullptr) *part_ += more;
}

bool HeldBytes::TrySet(int64_t bytes) {
  const int64_t before = bytes_;
  if (bytes > before) {
    Set(bytes);
    if (FitsShare(part_ != nullptr ? part_->load() : 0, budget_.bytes_, budget_.max_bytes_)) return true;
  }
  Set(std::min(bytes, before));
  return bytes <= before;
}

HeldBytes HeldBytes::Split(int64_t bytes) {
  HeldBytes part(budget_, part_);
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

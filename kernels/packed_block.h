// PackedBlock: arrays laid one after the other into a host block that is copied to a device block as it is;
// or into none, to be measured. One thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/core/check.h"

namespace tramontane {

template <typename T>
struct PackedArray {
  T* host = nullptr;
  T* device = nullptr;
};

class PackedBlock {
 public:
  PackedBlock() = default;  // measures: its arrays have no memory
  PackedBlock(std::byte* host, std::byte* device, int64_t capacity)
      : host_(host), device_(device), capacity_(capacity) {}

  template <typename T>
  PackedArray<T> Take(int64_t count) {
    const int64_t at = bytes_;
    bytes_ += Bytes<T>(count);
    TM_CHECK(bytes_ <= capacity_, "%lld bytes packed into %lld", static_cast<long long>(bytes_),
             static_cast<long long>(capacity_));
    if (host_ == nullptr) return {};
    return {reinterpret_cast<T*>(host_ + at), reinterpret_cast<T*>(device_ + at)};
  }
  int64_t bytes() const { return bytes_; }

  // What Take(count) uses: arrays start at multiples of 64 bytes.
  template <typename T>
  static constexpr int64_t Bytes(int64_t count) {
    return (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
  }

 private:
  std::byte* host_ = nullptr;
  std::byte* device_ = nullptr;
  int64_t capacity_ = INT64_MAX;
  int64_t bytes_ = 0;
};

}  // namespace tramontane

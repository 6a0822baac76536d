// The pages of one layer as attention's loops address them: what is the same for every key is settled once on
// the host, so that a loop multiplies and adds, and divides nowhere. Made by whoever launches; plain values.
// The lookup of a page's id stands in device_pages.cuh.
#pragma once

#include <bit>

#include "kernels/paged_kv.h"

namespace tramontane::cuda {

// n / size for 0 <= n < 2^31 as a multiplication and a shift (Granlund and Montgomery): with s the bits of
// size - 1 and m = ceil(2^(31 + s) / size) it is floor(n m / 2^(31 + s)). For a power of two m is 2^31, and
// that is a shift.
class PageDivisor {
 public:
  constexpr PageDivisor() = default;
  constexpr explicit PageDivisor(int32_t size)
      : size_(size),
        shift_(std::bit_width(static_cast<uint32_t>(size - 1))),
        multiplier_(static_cast<uint32_t>(((uint64_t{1} << (31 + shift_)) + static_cast<uint64_t>(size) - 1) /
                                          static_cast<uint64_t>(size))) {}

  constexpr int32_t Quotient(int32_t n) const {
    const uint32_t twice = 2 * static_cast<uint32_t>(n);  // so that the product's high word is wanted
    return static_cast<int32_t>(static_cast<uint32_t>(uint64_t{twice} * multiplier_ >> 32) >> shift_);
  }
  constexpr int32_t size() const { return size_; }

 private:
  int32_t size_ = 1;
  int32_t shift_ = 0;
  uint32_t multiplier_ = 1u << 31;
};

struct DevicePages {
  constexpr DevicePages() = default;
  constexpr explicit DevicePages(const KvLayerView& kv)
      : pool(kv.pool + kv.layer_offset),
        page_bytes(kv.page_bytes),
        value_offset(kv.value_offset),
        head_bytes(kv.head_bytes),
        token_bytes(kv.token_bytes),
        divisor(kv.format.page_size) {}

  const std::byte* pool = nullptr;  // the layer's first key of page 0
  int64_t page_bytes = 0;           // strides as in KvLayerView, never negative
  int64_t value_offset = 0;
  int64_t head_bytes = 0;
  int64_t token_bytes = 0;
  PageDivisor divisor;

  constexpr const std::byte* Head(int32_t kv_head) const { return pool + kv_head * head_bytes; }
  // From a head's first key in page 0 to its key number `offset` in page `page`.
  constexpr int64_t Offset(int32_t page, int32_t offset) const {
    return static_cast<int64_t>(uint64_t{static_cast<uint32_t>(page)} * static_cast<uint64_t>(page_bytes) +
                                uint64_t{static_cast<uint32_t>(offset)} * static_cast<uint64_t>(token_bytes));
  }
};

// The rows of quantised pages as attention copies them (coded_tile.cuh).
struct CodedRows {
  int32_t number_bytes = 0;  // of a key, or of a value
  int32_t scale_bytes = 0;   // of its scales; 0: it has none
  int32_t scale_stride = 0;  // from a row's scales to the next's, where they have been copied
  // Copied asynchronously: all rows begin and end at multiples of 16 bytes, or of 4; or there are none.
  bool numbers_in_pieces = false;
  bool scales_in_words = false;
};

inline CodedRows CodedRowsOf(const KvLayerView& kv) {
  const auto are_multiples = [](int64_t of, const std::byte* base, const auto&... strides) {
    return ((static_cast<int64_t>(reinterpret_cast<uintptr_t>(base)) % of == 0) && ... &&
            (strides % of == 0));
  };
  const Format& element = kv.format.element;
  const KvStrides& scale = kv.scale.strides;
  CodedRows rows;
  rows.number_bytes = static_cast<int32_t>(element.Bytes(kv.format.head_dim));
  rows.scale_bytes = static_cast<int32_t>(element.CompanionBytes(kv.format.head_dim));
  rows.numbers_in_pieces = are_multiples(16, kv.pool, kv.page_bytes, kv.layer_offset, kv.value_offset,
                                         kv.head_bytes, kv.token_bytes, rows.number_bytes);
  rows.scales_in_words = rows.scale_bytes == 0 || are_multiples(4, kv.scale.scales, scale.page, scale.kv,
                                                                scale.head, scale.token, rows.scale_bytes);
  // Threads that write a row each are in different banks where words are odd in number.
  const int32_t words = (rows.scale_bytes + 3) / 4;
  rows.scale_stride = 4 * (rows.scales_in_words || element.companion_bytes > 2 ? words : words | 1);
  return rows;
}

}  // namespace tramontane::cuda

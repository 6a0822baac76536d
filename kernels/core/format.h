// Format: how numbers are stored, of a weight or of keys and values. The only place that turns a count of
// numbers into bytes.
//
// Numbers lie in blocks of equal bytes, the last one filled up. A plain type is a block of one number. What
// belongs to a block and lies elsewhere, as the scales of integers may, is its companion:
//
//                                       numbers of a block   bytes of a block   bytes of its companion
//   f32                                                  1                  4                        0
//   bf16, f16                                            1                  2                        0
//   e.g. 4 bits, a 16-bit scale apart                   32                 16                        2
//   e.g. 8 bits, a 16-bit scale within                  32                 34                        0
//
// Any thread; a plain value, crosses the library border of a backend.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/core/dtype.h"

namespace tramontane {

struct Format {
  // A plain type stands for its format.
  constexpr Format(DType plain)  // NOLINT(google-explicit-constructor)
      : dtype(plain), block_bytes(plain == DType::kF32 ? 4 : 2) {}
  constexpr Format(DType stored, int32_t log2_of_block, int32_t bytes, int32_t bytes_apart)
      : dtype(stored), block_log2(log2_of_block), block_bytes(bytes), companion_bytes(bytes_apart) {}

  DType dtype;                  // of what is stored
  int32_t block_log2 = 0;       // numbers of a block are a power of two, so that no address needs a division
  int32_t block_bytes = 0;      // of one block, without its companion
  int32_t companion_bytes = 0;  // of what belongs to one block and lies elsewhere

  // Whether it is no more than a row of its dtype: what all arithmetic here can read.
  constexpr bool plain() const { return *this == Format(dtype); }
  constexpr int64_t Blocks(int64_t count) const {
    return (count + (int64_t{1} << block_log2) - 1) >> block_log2;
  }
  // Bytes of `count` numbers side by side. As an offset: of the number with that index, the first of a block.
  constexpr int64_t Bytes(int64_t count) const { return Blocks(count) * block_bytes; }
  constexpr int64_t CompanionBytes(int64_t count) const { return Blocks(count) * companion_bytes; }

  friend constexpr bool operator==(const Format&, const Format&) = default;
};

// "bf16"; "bf16 in blocks of 32" where it is not plain.
std::string FormatName(const Format& format);

}  // namespace tramontane

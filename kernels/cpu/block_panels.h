// How weights in blocks (kernels/core/block_types.h) stand in a panel: for each block of k, its 16-bit scales
// with the panel's outputs side by side, then its other 32-bit words likewise.
//
//   q4_0, panels of 16:   | d x 16 | word 0 x 16 | word 1 x 16 | word 2 x 16 | word 3 x 16 |
//
// A word holds four bytes of neighbouring k, so a vector of words is what products of bytes take: every lane
// an output, in each four k. A mask, or a shift and a mask, make a vector of it from nibbles. Nothing is
// added to a block, and a lane's block can be put together again as it was in the file.
//
// Two things are not as in the file. The high bits of q5_0 and q5_1, a word whose bit k belongs to number k
// there, have bit 8 i + g for number 4 g + i here, so that a shift by g brings the bits of four numbers to
// the bytes where the numbers are. And the words of q6_k stand as they are read, scales first, then each word
// of high bits before the two of low bits that it completes, so that a panel is read from one end to the
// other.
//
// A group, too, has its scales side by side (of two neighbouring outputs that share them, one), then its zero
// points; the words of every 32 numbers follow as those of q4_0 or q8_0 stand, with what these have for
// signs: the integers of int8 are signed.
//
//   int4 in groups of 64, f16 and zero points:   | s x 16 | z x 16 | word 0 x 16 | ... | word 7 x 16 |
//
// Of the codes of fp8 all bits but the sign are inverted, so that NaN is what has none of them.
//
// Any thread; pure.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/core/format.h"

namespace tramontane {

// What is inverted of a code of fp8.
constexpr uint8_t kFp8Inverted = 0x7f;

// What stands in a block of a GGUF file.
struct BlockWords {
  int32_t halves = 0;     // scales of 16 bits, side by side
  int32_t halves_at = 0;  // bytes from the block's beginning
  int32_t words = 0;      // of 32 bits
  int32_t words_at = 0;
};

constexpr BlockWords WordsOfBlock(DType type) {
  switch (type) {
    case DType::kQ8_0:
    case DType::kQ4_0:
    case DType::kQ5_0:
      return {.halves = 1, .halves_at = 0, .words = (Format(type).block_bytes - 2) / 4, .words_at = 2};
    case DType::kQ4_1:
    case DType::kQ5_1:
    case DType::kQ4K:
    case DType::kQ5K:
      return {.halves = 2, .halves_at = 0, .words = (Format(type).block_bytes - 4) / 4, .words_at = 4};
    case DType::kQ6K:
      return {.halves = 1, .halves_at = 208, .words = 52, .words_at = 0};
    case DType::kInt4:
    case DType::kInt8:
    case DType::kFp8E4M3:
    case DType::kF32:
    case DType::kBf16:
    case DType::kF16:
      break;
  }
  return {};
}

// One block of one output, into its lane of a panel's block and out of it.
void PutBlock(const Format& format, const std::byte* block, int32_t panel_width, int64_t lane,
              std::byte* panel_block);
void TakeBlock(const Format& format, const std::byte* panel_block, int32_t panel_width, int64_t lane,
               std::byte* block);

}  // namespace tramontane

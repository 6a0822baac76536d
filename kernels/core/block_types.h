// The types whose numbers stand in blocks: what a block is in f32. The definition, one number after the
// other; kernels that read such weights are held to it.
//
// Any thread; pure.
//
// Of GGUF files. The layouts are ggml's (block_q8_0 and its kin), as PyPI's `gguf` reads them, whose
// values these are bit for bit: a scale times a small integer fits in 24 bits, so a product is exact, and of
// what is added after it only the sum is rounded.
//
//            a block in memory                                                      a number
//   q8_0     d, 32 x i8                                                             d q
//   q4_0     d, 32 x 4 bits                                                         d (q - 8)
//   q4_1     d, m, 32 x 4 bits                                                      d q + m
//   q5_0     d, 32 x 1 high bit, 32 x 4 bits                                        d (q - 16)
//   q5_1     d, m, 32 x 1 high bit, 32 x 4 bits                                     d q + m
//   q4_k     d, n, 8 x (6-bit s, 6-bit t), 256 x 4 bits                             d s q - n t
//   q5_k     d, n, 8 x (6-bit s, 6-bit t), 256 x 1 high bit, 256 x 4 bits           d s q - n t
//   q6_k     256 x 4 bits, 256 x 2 high bits, 16 x i8 s, d                          d s (q - 32)
//
// d, m and n are f16.
//
// In groups: a block is a group of g numbers, 32, 64, 128 or 256, and this one form is what readers of other
// files make of theirs. A row is whole groups; what the last one holds beyond the row's end is of no account.
//
//   int4       s, z, g x 4 bits                                                       s (q - z)
//   int8       s, z, g x u8                                                           s (q - z)
//   fp8_e4m3   s, g x e4m3                                                            s q
//
// s is f16, bf16 or f32, as the Format says. Integers are unsigned. z is a u8, and only where the Format has
// zero points, of int4 from its least_zero on; elsewhere it is 8 of int4, 128 of int8. Numbers stand in their
// order, of int4 the even ones in the low halves of bytes. Nothing is aligned. The product is rounded once to
// f32, which changes nothing where s is f16 or bf16.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/core/format.h"

namespace tramontane {

// The scales of the eight groups of 32 in a block of q4_k or q5_k, from the twelve bytes that hold them.
struct GroupScales {
  uint8_t scale[8];    // s
  uint8_t minimum[8];  // t
};
GroupScales UnpackGroupScales(const std::byte* packed);

// `count` numbers from the blocks at `blocks`, which need no alignment. REQUIRES: a format in blocks; count
// is a multiple of its block.
void DecodeBlocks(const Format& format, const std::byte* blocks, int64_t count, float* out);

}  // namespace tramontane

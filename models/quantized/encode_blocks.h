// Numbers in f32 as the blocks of a type of GGUF's: what kernels/core/block_types.h reads back.
//
// Any thread; pure. The bytes are those of ggml's own rounding, which PyPI's `gguf` gives too
// (tests/golden/make_quantize_gguf_goldens.py): the scale is of the largest number, and kept as f16; numbers
// are divided by it as it was before that, and rounded half away from zero.
//
//   q8_0   d = largest / 127     q = round(x / d)
//   q4_0   d = largest / -8, with the sign of the first of the largest     q = floor(x / d + 8.5), at most 15
#pragma once

#include <cstddef>
#include <span>

#include "kernels/core/dtype.h"

namespace tramontane {

// False where a number or a scale is not finite; what `out` holds then is of no account. REQUIRES: kQ8_0 or
// kQ4_0; whole blocks; room for them at `out`.
bool EncodeBlocks(DType type, std::span<const float> values, std::byte* out);

}  // namespace tramontane

// How weights stand in device memory: row-major bf16, one form for the small-batch kernel and for cuBLASLt
// alike. Loading thread; pure but for what it writes.
//
//   kStacked:  the parts' rows one after the other.
//   kGateUp:   rows in sixteens: 8 of gate, then the 8 of up of the same outputs, so that a kernel's tile of
//   16
//              outputs holds both factors of 8 products.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/weight.h"

namespace tramontane::cuda {

int64_t PackedRows(const LinearSource& source);

// "" when a source can be packed, else what is wrong with it.
std::string WhyNotPackable(const LinearSource& source);

// Packed rows [begin, begin + count) as bf16 (f16 and f32 rounded to nearest even) into out [count,
// in_features].
void PackRows(const LinearSource& source, int64_t begin, int64_t count, uint16_t* out);

}  // namespace tramontane::cuda

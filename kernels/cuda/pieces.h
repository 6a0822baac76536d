// What the kernels read and write at once, and where a buffer may begin.
#pragma once

#include <cstdint>

#include "kernels/core/check.h"
#include "kernels/core/tensor.h"

namespace tramontane::cuda {

inline constexpr int64_t kAlignment = 256;  // of buffers in device memory

constexpr int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Kernels read and write rows in pieces of 16 bytes.
constexpr bool IsOfPieces(int64_t bytes) { return bytes % 16 == 0; }
inline bool BeginsAtAPiece(const Tensor& rows) {
  return IsOfPieces(static_cast<int64_t>(reinterpret_cast<uintptr_t>(rows.data)));
}
inline void CheckPieces(const Tensor& rows, const char* name) {
  TM_CHECK(BeginsAtAPiece(rows) && (rows.rows <= 1 || IsOfPieces(Format(rows.dtype).Bytes(rows.row_stride))),
           "%s at %p has rows %lld elements apart, which are no pieces of 16 bytes", name, rows.data,
           static_cast<long long>(rows.row_stride));
}

}  // namespace tramontane::cuda

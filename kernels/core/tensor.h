// A two-dimensional view of device memory. It owns nothing and never outlives the step it was made for.
// Any thread; plain value, crosses the library border of a backend.
#pragma once

#include <cstdint>

#include "kernels/core/dtype.h"

namespace tramontane {

struct Tensor {
  void* data = nullptr;  // [rows, columns], row-major, rows 16-byte aligned
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t row_stride = 0;  // elements from one row to the next
};

inline Tensor MakeTensor(void* data, DType dtype, int64_t rows, int64_t columns) {
  return {data, dtype, rows, columns, columns};
}

}  // namespace tramontane

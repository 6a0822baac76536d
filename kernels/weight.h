// How weights enter a backend: rows as they lie in a file, packed once, and never seen raw again.
// Loading thread. After Backend::PackLinear returns, the source memory may go.
#pragma once

#include <cstdint>

#include "kernels/core/format.h"

namespace tramontane {

// Part of a matrix in a file: [rows, in_features], row-major. A slice for tensor parallelism is another
// pointer, row count or stride.
struct WeightRows {
  const void* data = nullptr;
  Format format = DType::kBf16;
  int64_t rows = 0;
  int64_t row_stride = 0;  // elements from one row to the next
};

enum class LinearLayout : int32_t {
  kStacked = 0,  // parts follow each other along the output: [q; k; v]
  kGateUp = 1,   // exactly two parts of equal rows, gate then up; used with Epilogue::kSwiGlu
};

// Rows that are brought in while they are packed, so that a source need not be in memory whole. Loading
// thread.
class RowFeed {
 public:
  // Rows [begin, begin + count) of a part, as it describes them, until the next call for that part. Each row
  // is asked for once, in ascending order. Null: they cannot be had, and whoever made the feed knows why.
  virtual const void* Rows(int32_t part, int64_t begin, int64_t count) = 0;

 protected:
  ~RowFeed() = default;
};

// y = x W^T with W [sum of part rows, in_features]. Whether parts may differ in format is the backend's word.
struct LinearSource {
  const WeightRows* parts = nullptr;  // [part_count]
  int32_t part_count = 0;
  int64_t in_features = 0;
  LinearLayout layout = LinearLayout::kStacked;
  RowFeed* feed = nullptr;  // where there is one, the rows come from it and the parts' data is null
};

// A packed weight, owned by the backend until Backend::FreeWeight or its end. Opaque outside the backend.
struct WeightHandle {
  void* impl = nullptr;
};

}  // namespace tramontane

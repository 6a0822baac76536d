// What a WeightHandle of the CUDA backend points at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/dtype.h"
#include "kernels/cuda/decode_weight.h"
#include "kernels/cuda/product_plans.h"

namespace tramontane::cuda {

// Rows of a weight in one form: weight_packing.h.
struct Segment {
  Format format = DType::kBf16;  // or one in blocks
  int64_t first_out = 0;
  int64_t out_features = 0;  // gate and up together
  std::byte* data = nullptr;
  const ProductPlans::Table* plans = nullptr;  // of bf16, and of fp8 in rows
  const int32_t* column_order = nullptr;       // [in_features], device; null: in order
  const float* row_scales = nullptr;           // [out_features], device, of fp8 in rows alone
  // Of all that is not bf16: how it is decoded, and products of bf16 of each slice and of the last. Null: it
  // has none.
  WeightSlices slices = {};
  const ProductPlans::Table* slice_plans = nullptr;
  const ProductPlans::Table* last_slice_plans = nullptr;
};

struct PackedWeight {
  LinearLayout layout = LinearLayout::kStacked;
  int64_t out_features = 0;
  int64_t in_features = 0;
  void* data = nullptr;  // of all segments
  std::vector<Segment> segments;

  // The only one, where parts of several forms make no sense.
  const Segment* alone() const { return segments.size() == 1 ? segments.data() : nullptr; }
};

inline const PackedWeight& PackedWeightOf(const WeightHandle& handle) {
  return *static_cast<const PackedWeight*>(handle.impl);
}

}  // namespace tramontane::cuda

// CudaWeights: the weights as they stand on the device, and which of the library's kernels multiplies by
// which of them. Engine thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/packed_weight.h"
#include "kernels/cuda/product_plans.h"
#include "kernels/cuda/weight_packing.h"

namespace tramontane::cuda {

class CudaWeights {
 public:
  // `context` is borrowed. `fp8_asked`: for products of fp8 by fp8, whether the device has them or not.
  CudaWeights(CudaContext& context, bool fp8_asked)
      : context_(context), fp8_asked_(fp8_asked), products_(context.runtime()) {}
  ~CudaWeights();

  // ---- backend.h, before the first step
  int64_t PackedBytes(const LinearSource& source) const;
  OpCode Pack(const LinearSource& source, WeightHandle* out);
  void Free(WeightHandle weight);
  // All are packed: steps have as many rows as the context reserved.
  void Reserve();
  OpCode UseTuning(const char* text);
  OpCode Tune();
  std::string Tuning() const { return products_.Tuning(); }
  // What became of products of fp8, where they were asked for, and of the library's kernels; a line each.
  std::string Remarks() const;

 private:
  std::vector<PackedSegment> SegmentsFor(const LinearSource& source) const;
  OpCode CopySegment(const LinearSource& source, const PackedSegment& segment, SourceRows& rows,
                     std::byte* data);
  // Copies, and waits for it.
  OpCode CopyToDevice(void* device, const void* host, int64_t bytes);
  void PlanSlices(const LinearSource& source, Segment& segment);
  void CountFp8(const std::vector<PackedSegment>& segments);
  std::string Fp8Remarks() const;

  CudaContext& context_;
  const bool fp8_asked_;
  std::unordered_set<PackedWeight*> weights_;  // live handles
  ProductPlans products_;
  int64_t fp8_weights_ = 0;      // packed so far
  int64_t fp8_row_weights_ = 0;  // of these, in rows alone
  void* staging_ = nullptr;      // host [kStagingBytes]; while weights are loaded
};

}  // namespace tramontane::cuda

// CudaMoe: the mixtures of experts of a step: choose, multiply by the experts that were chosen, sum; which
// kernels, and why: moe.cu. Engine thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/backend.h"
#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/moe.h"

namespace tramontane::cuda {

class CudaMoe {
 public:
  explicit CudaMoe(CudaContext& context) : context_(context) {}  // borrowed

  // Whether rows of experts have kernels.
  OpCode CheckExperts(const StepMaxima& maxima);
  OpCode Run(const MoeParams& params);

 private:
  MoeGemmParams ExpertProducts(const MoeParams& params, int32_t intermediate) const;
  OpCode Route(const MoeParams& params, const MoeGemmParams& gemm);
  OpCode ReorderForExperts(const WeightHandle* weights, size_t index, void* reordered, MoeGemmParams* gemm);
  OpCode MultiplyExperts(const WeightHandle* weights, size_t index, void* reordered, MoeGemmParams gemm,
                         const char* what);

  CudaContext& context_;
};

}  // namespace tramontane::cuda

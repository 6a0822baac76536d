// The piece of Moe that is compiled once per instruction set (moe_impl.h). The experts' products are
// Linear's (linear_kernels.h); moe.cc chooses, gathers and combines.
#pragma once

#include <cstdint>

namespace tramontane {

// What a row is normalised by, and the router that scores it.
struct MoeRouter {
  const float* norm_weight = nullptr;  // [hidden]
  float norm_epsilon = 0.0f;
  const float* weight = nullptr;  // [experts, hidden]
  int64_t hidden = 0;
  int32_t experts = 0;
};

struct MoeKernels {
  // normalised [hidden] = RMSNorm(x); scores [experts] = its products with the router's rows, in f32.
  void (*score)(const MoeRouter& router, const float* x, float* normalised, float* scores);
};

}  // namespace tramontane

// A row's scores in a mixture of experts, for the variant that includes this after linear_impl.h.
//
// f32 throughout, in every variant: a router's choice is a jump, which a rounded input would move. The order
// of an expert's sum is fixed by k alone: lane by lane, then over the lanes.
#pragma once

#include "kernels/cpu/linear_impl.h"

namespace tramontane {
namespace {

void ScoreRow(const MoeRouter& router, const float* x, float* normalised, float* scores) {
  const int64_t n = router.hidden;
  const float scale = NormScale(x, n, router.norm_epsilon);
  for (int64_t k = 0; k < n; k += kWidth) {
    const Vf weight = LoadColumns(router.norm_weight + k, n - k);
    StoreColumns(normalised + k, LoadColumns(x + k, n - k) * scale * weight, n - k);
  }
  for (int32_t expert = 0; expert < router.experts; ++expert) {
    const float* weight = router.weight + expert * n;
    Vf sum = {};
    for (int64_t k = 0; k < n; k += kWidth) {
      sum = Fma(LoadColumns(normalised + k, n - k), LoadColumns(weight + k, n - k), sum);
    }
    scores[expert] = SumLanes(sum);
  }
}

constexpr MoeKernels kMoeKernels = {.score = ScoreRow};

}  // namespace
}  // namespace tramontane

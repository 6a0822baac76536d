#include "kernels/lse_merge.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tramontane {

void MergeByLse(const std::vector<PartialAttention>& parts, int64_t rows, int32_t value_dim, float* out,
                float* lse) {
  constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
  for (int64_t row = 0; row < rows; ++row) {
    float highest = kMinusInfinity;
    for (const PartialAttention& part : parts) highest = std::max(highest, part.lse[row]);
    float* const to = out + row * value_dim;
    std::fill_n(to, value_dim, 0.0f);
    lse[row] = kMinusInfinity;
    if (highest == kMinusInfinity) continue;
    float sum = 0.0f;
    for (const PartialAttention& part : parts) {
      const float weight = std::exp2(part.lse[row] - highest);
      sum += weight;
      for (int32_t d = 0; d < value_dim; ++d) to[d] += weight * part.out[row * value_dim + d];
    }
    for (int32_t d = 0; d < value_dim; ++d) to[d] /= sum;
    lse[row] = highest + std::log2(sum);
  }
}

}  // namespace tramontane

// Attention over parts of the keys becomes attention over all of them: outputs are weighted by what each part
// summed, which its log-sum-exp tells. Any thread; a pure function of host memory.
//
// The algebra is that of FlashInfer's cascade and FlashAttention's splits: with l = max lse, weights
// 2^(lse_i - l); the order of the parts is the order of the sums.
#pragma once

#include <cstdint>
#include <vector>

namespace tramontane {

// What attention gave for some of the keys of each row.
struct PartialAttention {
  const float* out = nullptr;  // [rows, value_dim]
  const float* lse = nullptr;  // [rows] base 2; -inf: the row sees no key of this part
};

// out [rows, value_dim], lse [rows]. A row that sees no key at all gives zeros and -inf.
void MergeByLse(const std::vector<PartialAttention>& parts, int64_t rows, int32_t value_dim, float* out,
                float* lse);

}  // namespace tramontane

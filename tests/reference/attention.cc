#include "tests/reference/attention.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "tests/reference/mask.h"

namespace tramontane::reference {
namespace {

// out: [head_dim], zero on entry.
void AttendOneHead(const AttentionProblem& p, int64_t position, const double* query, int32_t kv_head,
                   double* out) {
  const size_t row = static_cast<size_t>(p.kv_heads) * p.head_dim;
  const int64_t keys = static_cast<int64_t>(p.keys.size() / row);

  std::vector<double> scores;
  std::vector<int64_t> visible;
  for (int64_t i = 0; i < keys; ++i) {
    if (!Sees(position, p.key_begin + i, p.window)) continue;
    const double* key = p.keys.data() + i * row + static_cast<size_t>(kv_head) * p.head_dim;
    double dot = 0;
    for (int32_t d = 0; d < p.head_dim; ++d) dot += query[d] * key[d];
    scores.push_back(dot * p.scale);
    visible.push_back(i);
  }
  if (visible.empty()) return;

  const double highest = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (double& score : scores) {
    score = std::exp(score - highest);
    sum += score;
  }
  for (size_t s = 0; s < scores.size(); ++s) {
    const double* value = p.values.data() + visible[s] * row + static_cast<size_t>(kv_head) * p.head_dim;
    for (int32_t d = 0; d < p.head_dim; ++d) out[d] += scores[s] / sum * value[d];
  }
}

}  // namespace

std::vector<double> Attention(const AttentionProblem& p) {
  std::vector<double> out(p.query.size(), 0.0);
  const size_t head_dim = static_cast<size_t>(p.head_dim);
  const int64_t queries = static_cast<int64_t>(p.query.size() / (p.query_heads * head_dim));
  for (int64_t q = 0; q < queries; ++q) {
    for (int32_t head = 0; head < p.query_heads; ++head) {
      const size_t at = (static_cast<size_t>(q) * p.query_heads + head) * head_dim;
      AttendOneHead(p, p.query_begin + q, &p.query[at], head / (p.query_heads / p.kv_heads), &out[at]);
    }
  }
  return out;
}

}  // namespace tramontane::reference

#include "tests/reference/attention.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "tests/reference/mask.h"

namespace tramontane::reference {
namespace {

// The keys that a query sees, by index, and its scores of them.
struct Scores {
  std::vector<int64_t> visible;
  std::vector<double> score;
};

Scores ScoresOf(const AttentionProblem& p, int64_t position, const double* query, int32_t kv_head) {
  const size_t row = static_cast<size_t>(p.kv_heads) * p.head_dim;
  const int64_t keys = static_cast<int64_t>(p.keys.size() / row);
  Scores scores;
  for (int64_t i = 0; i < keys; ++i) {
    if (!Sees(position, p.key_begin + i, p.window)) continue;
    const double* key = p.keys.data() + i * row + static_cast<size_t>(kv_head) * p.head_dim;
    double dot = 0;
    for (int32_t d = 0; d < p.head_dim; ++d) dot += query[d] * key[d];
    scores.visible.push_back(i);
    scores.score.push_back(dot * p.scale);
  }
  return scores;
}

// visit(query, head, scores) for every query and head.
template <typename Visit>
void ForEachHead(const AttentionProblem& p, Visit visit) {
  const size_t head_dim = static_cast<size_t>(p.head_dim);
  const int64_t queries = static_cast<int64_t>(p.query.size() / (p.query_heads * head_dim));
  for (int64_t q = 0; q < queries; ++q) {
    for (int32_t head = 0; head < p.query_heads; ++head) {
      const double* query = &p.query[(static_cast<size_t>(q) * p.query_heads + head) * head_dim];
      visit(q, head, ScoresOf(p, p.query_begin + q, query, head / (p.query_heads / p.kv_heads)));
    }
  }
}

}  // namespace

std::vector<double> Attention(const AttentionProblem& p) {
  std::vector<double> out(p.query.size(), 0.0);
  const size_t head_dim = static_cast<size_t>(p.head_dim);
  ForEachHead(p, [&](int64_t q, int32_t head, const Scores& scores) {
    if (scores.score.empty()) return;
    const double highest = *std::max_element(scores.score.begin(), scores.score.end());
    double sum = 0;
    for (const double score : scores.score) sum += std::exp(score - highest);
    double* to = &out[(static_cast<size_t>(q) * p.query_heads + head) * head_dim];
    const size_t kv_head = static_cast<size_t>(head / (p.query_heads / p.kv_heads));
    for (size_t s = 0; s < scores.score.size(); ++s) {
      const size_t key = static_cast<size_t>(scores.visible[s]) * p.kv_heads + kv_head;
      const double weight = std::exp(scores.score[s] - highest) / sum;
      for (size_t d = 0; d < head_dim; ++d) to[d] += weight * p.values[key * head_dim + d];
    }
  });
  return out;
}

std::vector<double> AttentionLse(const AttentionProblem& p) {
  std::vector<double> lse;
  ForEachHead(p, [&](int64_t, int32_t, const Scores& scores) {
    if (scores.score.empty()) {
      lse.push_back(-std::numeric_limits<double>::infinity());
      return;
    }
    const double highest = *std::max_element(scores.score.begin(), scores.score.end());
    double sum = 0;
    for (const double score : scores.score) sum += std::exp(score - highest);
    lse.push_back((highest + std::log(sum)) / std::log(2.0));
  });
  return lse;
}

}  // namespace tramontane::reference

#include "tests/reference/mistral_reference.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "tests/reference/rope.h"

namespace tramontane::reference {
namespace {

void AddTo(Matrix& x, const Matrix& y) {
  for (size_t i = 0; i < x.data.size(); ++i) x.data[i] += y.data[i];
}

void AppendRotated(const Matrix& heads, int32_t head_dim, int64_t position,
                   const std::vector<double>& inverse_frequency, std::vector<double>* out) {
  for (size_t begin = 0; begin < heads.data.size(); begin += static_cast<size_t>(head_dim)) {
    const std::vector<double> head(heads.data.begin() + static_cast<int64_t>(begin),
                                   heads.data.begin() + static_cast<int64_t>(begin) + head_dim);
    const std::vector<double> turned = Rotate(head, position, inverse_frequency, RotaryPairs::kInterleaved);
    out->insert(out->end(), turned.begin(), turned.end());
  }
}

// One query head against keys [from, to) of one key head. `stride`: from a token's vector to the next one's.
void AttendHead(const double* query, const double* keys, const double* values, int64_t from, int64_t to,
                int64_t stride, int32_t head_dim, double* out) {
  std::vector<double> weights(static_cast<size_t>(to - from));
  double highest = -INFINITY;
  for (int64_t p = from; p < to; ++p) {
    double score = 0;
    for (int32_t d = 0; d < head_dim; ++d) score += query[d] * keys[p * stride + d];
    weights[static_cast<size_t>(p - from)] = score / std::sqrt(static_cast<double>(head_dim));
    highest = std::max(highest, weights[static_cast<size_t>(p - from)]);
  }
  double sum = 0;
  for (double& weight : weights) sum += weight = std::exp(weight - highest);
  for (int64_t p = from; p < to; ++p) {
    const double share = weights[static_cast<size_t>(p - from)] / sum;
    for (int32_t d = 0; d < head_dim; ++d) out[d] += share * values[p * stride + d];
  }
}

}  // namespace

Mistral::Mistral(MistralWeights weights)
    : weights_(std::move(weights)),
      inverse_frequency_(InverseFrequencies(weights_.rope_theta, weights_.head_dim)),
      caches_(weights_.layers.size()) {}

std::vector<double> Mistral::Next(int32_t token) {
  Matrix x(1, weights_.embedding.columns);
  for (int64_t i = 0; i < x.columns; ++i) x.At(0, i) = weights_.embedding.At(token, i);
  for (size_t l = 0; l < weights_.layers.size(); ++l) {
    AddTo(x, Attend(weights_.layers[l], x, caches_[l]));
    AddTo(x, FeedForward(weights_.layers[l], x));
  }
  ++tokens_;
  return MultiplyTransposed(RmsNorm(x, weights_.final_norm, weights_.norm_epsilon), weights_.lm_head).data;
}

Matrix Mistral::Attend(const MistralLayer& layer, const Matrix& x, Cache& cache) const {
  const Matrix normed = RmsNorm(x, layer.attention_norm, weights_.norm_epsilon);
  std::vector<double> query;
  AppendRotated(MultiplyTransposed(normed, layer.wq), weights_.head_dim, tokens_, inverse_frequency_, &query);
  AppendRotated(MultiplyTransposed(normed, layer.wk), weights_.head_dim, tokens_, inverse_frequency_,
                &cache.keys);
  const Matrix value = MultiplyTransposed(normed, layer.wv);
  cache.values.insert(cache.values.end(), value.data.begin(), value.data.end());

  const int64_t from = layer.window == 0 ? 0 : std::max<int64_t>(0, tokens_ - layer.window + 1);
  const int64_t stride = int64_t{weights_.kv_heads} * weights_.head_dim;
  Matrix attended(1, int64_t{weights_.heads} * weights_.head_dim);
  for (int32_t h = 0; h < weights_.heads; ++h) {
    const int64_t kv_offset = int64_t{h / (weights_.heads / weights_.kv_heads)} * weights_.head_dim;
    const int64_t offset = int64_t{h} * weights_.head_dim;
    AttendHead(query.data() + offset, cache.keys.data() + kv_offset, cache.values.data() + kv_offset, from,
               tokens_ + 1, stride, weights_.head_dim, attended.data.data() + offset);
  }
  return MultiplyTransposed(attended, layer.wo);
}

Matrix Mistral::FeedForward(const MistralLayer& layer, const Matrix& x) const {
  const Matrix normed = RmsNorm(x, layer.mlp_norm, weights_.norm_epsilon);
  Matrix inner = MultiplyTransposed(normed, layer.gate);
  const Matrix up = MultiplyTransposed(normed, layer.up);
  for (size_t i = 0; i < inner.data.size(); ++i) inner.data[i] = Silu(inner.data[i]) * up.data[i];
  return MultiplyTransposed(inner, layer.down);
}

}  // namespace tramontane::reference

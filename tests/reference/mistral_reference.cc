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

// One query head against those keys of one key head that it sees. `stride`: from a token's vector to the next
// one's.
void AttendHead(const double* query, const double* keys, const double* values,
                const std::vector<int64_t>& seen, int64_t stride, int32_t head_dim, double* out) {
  std::vector<double> weights;
  double highest = -INFINITY;
  for (const int64_t key : seen) {
    double score = 0;
    for (int32_t d = 0; d < head_dim; ++d) score += query[d] * keys[key * stride + d];
    weights.push_back(score / std::sqrt(static_cast<double>(head_dim)));
    highest = std::max(highest, weights.back());
  }
  double sum = 0;
  for (double& weight : weights) sum += weight = std::exp(weight - highest);
  for (size_t i = 0; i < seen.size(); ++i) {
    const double share = weights[i] / sum;
    for (int32_t d = 0; d < head_dim; ++d) out[d] += share * values[seen[i] * stride + d];
  }
}

}  // namespace

Mistral::Mistral(MistralWeights weights, const ContextRule& rule, RowRounding rounding)
    : weights_(std::move(weights)),
      rule_(rule),
      rounding_(std::move(rounding)),
      inverse_frequency_(InverseFrequencies(weights_.rope_theta, weights_.head_dim)),
      caches_(weights_.layers.size()) {}

std::vector<double> Mistral::Next(int32_t token) {
  MakeRoom();
  const int64_t in_text = tokens_++;
  switch (rule_.when_full) {
    case WhenFull::kGrow:
    case WhenFull::kSinks:
      return Compute(token, in_text, in_text);
    case WhenFull::kShift:
      return Compute(token, held(), in_text);
    case WhenFull::kReevaluate:
      return Compute(token, held(), held());
  }
  return {};
}

void Mistral::MakeRoom() {
  if (rule_.when_full == WhenFull::kGrow || held() < rule_.n_ctx) return;
  if (rule_.when_full == WhenFull::kSinks) {
    Drop(1);
    return;
  }
  Drop(rule_.n_discard);
  if (rule_.when_full == WhenFull::kShift) {
    TurnBack(rule_.n_discard);
    return;
  }
  const std::vector<Held> left = std::exchange(held_, {});
  caches_.assign(caches_.size(), {});
  for (const Held& each : left) Compute(each.token, held(), held());
}

// The oldest ones behind the first n_keep.
void Mistral::Drop(int64_t count) {
  const auto drop = [&](auto& list, int64_t of_each) {
    const auto first = list.begin() + rule_.n_keep * of_each;
    list.erase(first, first + count * of_each);
  };
  drop(held_, 1);
  for (Cache& cache : caches_) {
    drop(cache.keys, int64_t{weights_.kv_heads} * weights_.head_dim);
    drop(cache.values, int64_t{weights_.kv_heads} * weights_.head_dim);
  }
}

// All keys behind the first n_keep.
void Mistral::TurnBack(int64_t by) {
  for (size_t i = static_cast<size_t>(rule_.n_keep); i < held_.size(); ++i) held_[i].position -= by;
  for (Cache& cache : caches_) {
    const auto first = cache.keys.begin() + rule_.n_keep * weights_.kv_heads * weights_.head_dim;
    const std::vector<double> turned = Turned({first, cache.keys.end()}, -by);
    std::copy(turned.begin(), turned.end(), first);
  }
}

std::vector<double> Mistral::Compute(int32_t token, int64_t position, int64_t written_at) {
  held_.push_back({.token = token, .position = position});
  Matrix x(1, weights_.embedding.columns);
  for (int64_t i = 0; i < x.columns; ++i) x.At(0, i) = weights_.embedding.At(token, i);
  for (size_t l = 0; l < weights_.layers.size(); ++l) {
    AddTo(x, Attend(weights_.layers[l], x, written_at, caches_[l]));
    AddTo(x, FeedForward(weights_.layers[l], x));
  }
  return MultiplyTransposed(RmsNorm(x, weights_.final_norm, weights_.norm_epsilon), weights_.lm_head).data;
}

// Of the newest token, whose key and value are appended. A row that is rounded is rounded where it is written
// at, and turned from there.
Matrix Mistral::Attend(const MistralLayer& layer, const Matrix& x, int64_t written_at, Cache& cache) const {
  const Matrix normed = RmsNorm(x, layer.attention_norm, weights_.norm_epsilon);
  const int64_t position = held_.back().position;
  const std::vector<double> query = Turned(MultiplyTransposed(normed, layer.wq).data, position);
  const std::vector<double> plain_key = MultiplyTransposed(normed, layer.wk).data;
  const std::vector<double> key = rounding_ == nullptr
                                      ? Turned(plain_key, position)
                                      : Turned(Rounded(Turned(plain_key, written_at)), position - written_at);
  const std::vector<double> value = Rounded(MultiplyTransposed(normed, layer.wv).data);
  cache.keys.insert(cache.keys.end(), key.begin(), key.end());
  cache.values.insert(cache.values.end(), value.begin(), value.end());

  const std::vector<int64_t> seen = SeenBy(layer);
  const int64_t stride = int64_t{weights_.kv_heads} * weights_.head_dim;
  Matrix attended(1, int64_t{weights_.heads} * weights_.head_dim);
  for (int32_t h = 0; h < weights_.heads; ++h) {
    const int64_t kv_offset = int64_t{h / (weights_.heads / weights_.kv_heads)} * weights_.head_dim;
    const int64_t offset = int64_t{h} * weights_.head_dim;
    AttendHead(query.data() + offset, cache.keys.data() + kv_offset, cache.values.data() + kv_offset, seen,
               stride, weights_.head_dim, attended.data.data() + offset);
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

// Each head turned by so many positions.
std::vector<double> Mistral::Turned(const std::vector<double>& heads, int64_t by) const {
  std::vector<double> turned;
  for (auto head = heads.begin(); head != heads.end(); head += weights_.head_dim) {
    const std::vector<double> one =
        Rotate({head, head + weights_.head_dim}, by, inverse_frequency_, RotaryPairs::kInterleaved);
    turned.insert(turned.end(), one.begin(), one.end());
  }
  return turned;
}

std::vector<double> Mistral::Rounded(const std::vector<double>& heads) const {
  if (rounding_ == nullptr) return heads;
  std::vector<double> rounded;
  for (auto head = heads.begin(); head != heads.end(); head += weights_.head_dim) {
    const std::vector<double> one = rounding_({head, head + weights_.head_dim});
    rounded.insert(rounded.end(), one.begin(), one.end());
  }
  return rounded;
}

// Which of those held the newest one sees.
std::vector<int64_t> Mistral::SeenBy(const MistralLayer& layer) const {
  std::vector<int64_t> seen;
  for (int64_t i = 0; i < held(); ++i) {
    const int64_t distance = held_.back().position - held_[static_cast<size_t>(i)].position;
    const bool is_sink = rule_.when_full == WhenFull::kSinks && i < rule_.n_keep;
    if (layer.window == 0 || distance < layer.window || is_sink) seen.push_back(i);
  }
  return seen;
}

}  // namespace tramontane::reference

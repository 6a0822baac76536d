#include "tests/reference/moe.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace tramontane::reference {

MoeChoice ChooseExperts(const std::vector<double>& scores, int32_t count) {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  const auto score = [&scores](int32_t expert) { return scores[static_cast<size_t>(expert)]; };
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return score(a) > score(b); });
  MoeChoice choice;
  choice.lead = std::numeric_limits<double>::infinity();
  if (order.size() > static_cast<size_t>(count)) {
    choice.lead = score(order[static_cast<size_t>(count) - 1]) - score(order[static_cast<size_t>(count)]);
  }
  const double highest = score(order[0]);
  choice.experts.assign(order.begin(), order.begin() + count);
  std::sort(choice.experts.begin(), choice.experts.end());
  double sum = 0;
  for (const int32_t expert : choice.experts) {
    choice.shares.push_back(std::exp(score(expert) - highest));
    sum += choice.shares.back();
  }
  for (double& share : choice.shares) share /= sum;
  return choice;
}

Matrix MoeScores(const MoeLayer& layer, const Matrix& normalised) {
  return MultiplyTransposed(normalised, layer.router);
}

namespace {

Matrix Inner(const MoeExpert& expert, const Matrix& normalised) {
  Matrix inner = MultiplyTransposed(normalised, expert.gate);
  const Matrix up = MultiplyTransposed(normalised, expert.up);
  for (size_t i = 0; i < inner.data.size(); ++i) inner.data[i] = Silu(inner.data[i]) * up.data[i];
  return inner;
}

// |silu'| <= 1.1.
Matrix InnerMagnitude(const MoeExpert& expert, const Matrix& normalised) {
  const Matrix gate = MultiplyTransposed(normalised, expert.gate);
  const Matrix up = MultiplyTransposed(normalised, expert.up);
  const Matrix gate_size = Magnitude(normalised, expert.gate), up_size = Magnitude(normalised, expert.up);
  Matrix inner = gate;
  for (size_t i = 0; i < inner.data.size(); ++i) {
    inner.data[i] =
        1.1 * gate_size.data[i] * std::abs(up.data[i]) + std::abs(Silu(gate.data[i])) * up_size.data[i];
  }
  return inner;
}

// The sum over a row's experts of share * term(expert, the row normalised).
template <typename Term>
Matrix Combine(const MoeLayer& layer, const Matrix& x, const Term& term) {
  Matrix out(x.rows, x.columns);
  const Matrix normalised = RmsNorm(x, layer.norm, layer.norm_epsilon);
  const Matrix scores = MoeScores(layer, normalised);
  for (int64_t row = 0; row < x.rows; ++row) {
    const auto begin = scores.data.begin() + row * scores.columns;
    const MoeChoice choice = ChooseExperts({begin, begin + scores.columns}, layer.experts_per_token);
    Matrix one(1, x.columns);
    for (int64_t k = 0; k < x.columns; ++k) one.At(0, k) = normalised.At(row, k);
    for (size_t i = 0; i < choice.experts.size(); ++i) {
      const Matrix y = term(layer.experts[static_cast<size_t>(choice.experts[i])], one);
      for (int64_t k = 0; k < x.columns; ++k) out.At(row, k) += choice.shares[i] * y.At(0, k);
    }
  }
  return out;
}

}  // namespace

Matrix Moe(const MoeLayer& layer, const Matrix& x) {
  return Combine(layer, x, [](const MoeExpert& expert, const Matrix& normalised) {
    return MultiplyTransposed(Inner(expert, normalised), expert.down);
  });
}

Matrix MoeMagnitude(const MoeLayer& layer, const Matrix& x) {
  return Combine(layer, x, [](const MoeExpert& expert, const Matrix& normalised) {
    return Magnitude(InnerMagnitude(expert, normalised), expert.down);
  });
}

}  // namespace tramontane::reference

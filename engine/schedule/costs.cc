#include "engine/schedule/costs.h"

#include <algorithm>
#include <cmath>

#include "kernels/core/check.h"

namespace tramontane {
namespace {

constexpr double kForgotten = 0.02;  // of the weight of what was known, at each step
// Where the usual error is above the first, the machine is another one: then so much more is forgotten.
constexpr double kSurprise = 0.3;
constexpr double kForgottenInSurprise = 0.25;
constexpr double kErrorForgetting = 0.9;  // the same of the usual error
constexpr double kLeastError = 0.05;      // a steady machine's steps differ by so much anyway
constexpr double kFarOut = 3.0;           // so many usual errors off, and a step's weight shrinks
// What was known counts as much as this share of the weight that a term has by its steps.
constexpr double kInertia = 0.01;

// Sum of (position + 1) over [begin, end).
int64_t SumOfLengths(int64_t begin, int64_t end) { return (end * (end + 1) - begin * (begin + 1)) / 2; }

// Sum of min(position + 1, window) over [begin, end).
int64_t KeysWithin(int64_t begin, int64_t end, int64_t window) {
  const int64_t full = std::clamp<int64_t>(window, begin, end);  // from here on the window is full
  return SumOfLengths(begin, full) + (end - full) * window;
}

}  // namespace

PrefillCost::PrefillCost(const KvLayout& layout, int64_t attended_keys_per_token) {
  int64_t layers = 0;
  for (const KvGroupSpec& group : layout.groups) {
    auto same = std::find_if(classes_.begin(), classes_.end(),
                             [&](const WindowClass& c) { return c.window == group.window; });
    if (same == classes_.end()) same = classes_.insert(classes_.end(), {group.window, 0});
    same->layers += static_cast<int64_t>(group.layers.size());
    layers += static_cast<int64_t>(group.layers.size());
  }
  TM_CHECK(layers > 0 && attended_keys_per_token > 0, "a layout of %lld layers",
           static_cast<long long>(layers));
  parts_per_token_ = attended_keys_per_token * layers;
}

int64_t PrefillCost::AttendedKeys(int64_t begin, int64_t end, int64_t most_keys) const {
  int64_t keys = 0;
  for (const WindowClass& c : classes_) {
    const int64_t window = c.window == 0 ? most_keys : std::min<int64_t>(c.window, most_keys);
    keys += c.layers * KeysWithin(begin, end, window);
  }
  return keys;
}

double StepCostModel::Dot(const Terms& features) const {
  double sum = 0;
  for (size_t i = 0; i < kTerms; ++i) sum += terms_[i] * features[i];
  return sum;
}

void StepCostModel::Learn(const StepWork& work, int64_t ns) {
  if (ns <= 0) return;
  const auto time = static_cast<double>(ns);
  const Terms features = FeaturesOf(work);
  // Errors are relative to what was predicted: a step that was disturbed then weighs no more than others.
  const double predicted = Dot(features);
  const double scale = predicted > 0 ? predicted : time;
  const double error = std::abs(time - scale) / scale;
  const double tolerated = kFarOut * std::max(usual_error_, kLeastError);
  const double weight = error > tolerated ? tolerated / error : 1.0;
  if (steps_ > 0) {
    usual_error_ = kErrorForgetting * usual_error_ + (1 - kErrorForgetting) * std::min(error, 1.0);
  }
  const double kept = 1 - kForgotten - kForgottenInSurprise * std::max(0.0, usual_error_ - kSurprise);
  for (size_t i = 0; i < kTerms; ++i) {
    for (size_t j = 0; j < kTerms; ++j) {
      products_[i][j] = kept * products_[i][j] + weight * features[i] * features[j] / (scale * scale);
    }
    targets_[i] = kept * targets_[i] + weight * features[i] * time / (scale * scale);
  }
  ++steps_;
  Solve();
}

// The least squares over terms that are not below 0. With the inertia the problem is strictly convex, so
// there is one minimum: that of the terms which are above 0 in it, where no other would lower the sum by
// leaving 0. Of three terms there are eight choices. Each is in units of its own weight, so that all are
// alike in size.
void StepCostModel::Solve() {
  Terms units = {}, targets = {};
  Matrix products = {};
  unsigned known = 0;  // a bit for each term that some step had
  for (size_t i = 0; i < kTerms; ++i) {
    if (products_[i][i] <= 0) continue;
    known |= 1u << i;
    units[i] = std::sqrt(products_[i][i]);
    targets[i] = targets_[i] / units[i] + kInertia * terms_[i] * units[i];
    for (size_t j = 0; j <= i; ++j) {
      if ((known >> j & 1) != 0) products[i][j] = products[j][i] = products_[i][j] / (units[i] * units[j]);
    }
    products[i][i] += kInertia;
  }
  for (unsigned above = known + 1; above-- > 0;) {
    if ((above & known) != above) continue;
    const Terms solved = SolveAmong(products, targets, above);
    if (!IsMinimum(products, targets, solved, above, known)) continue;
    for (size_t i = 0; i < kTerms; ++i) {
      if ((known >> i & 1) != 0) terms_[i] = solved[i] / units[i];
    }
    return;
  }
}

// The terms in `above` without a bound, by elimination; the others are 0.
StepCostModel::Terms StepCostModel::SolveAmong(Matrix products, Terms targets, unsigned above) {
  const auto in = [above](size_t i) { return (above >> i & 1) != 0; };
  for (size_t i = 0; i < kTerms; ++i) {
    for (size_t row = i + 1; in(i) && row < kTerms; ++row) {
      const double factor = products[row][i] / products[i][i];
      for (size_t j = i; j < kTerms; ++j) products[row][j] -= factor * products[i][j];
      targets[row] -= factor * targets[i];
    }
  }
  Terms solved = {};
  for (size_t i = kTerms; i-- > 0;) {
    if (!in(i)) continue;
    double rest = targets[i];
    for (size_t j = i + 1; j < kTerms; ++j) rest -= products[i][j] * solved[j];
    solved[i] = rest / products[i][i];
  }
  return solved;
}

bool StepCostModel::IsMinimum(const Matrix& products, const Terms& targets, const Terms& solved,
                              unsigned above, unsigned known) {
  constexpr double kRounding = 1e-9;
  for (size_t i = 0; i < kTerms; ++i) {
    if ((known >> i & 1) == 0) continue;
    double slope = -targets[i];
    for (size_t j = 0; j < kTerms; ++j) slope += products[i][j] * solved[j];
    const bool is_above = (above >> i & 1) != 0;
    if (is_above ? solved[i] < 0 : slope < -kRounding) return false;
  }
  return true;
}

}  // namespace tramontane

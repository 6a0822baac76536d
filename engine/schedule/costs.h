// Costs: what a chunk of a prompt costs, and how long a step takes. Pure values, with no clock; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "models/kv_layout.h"

namespace tramontane {

// PrefillCost: what a chunk of a prompt costs, so that steps of long contexts take no longer than others.
//
//   cost of [begin, end) = tokens + attended keys / kappa        in token equivalents
//
// Attended keys: for each token the keys that its query sees, min(position + 1, window), as the mean over the
// model's layers. To make costs of chunks add up exactly they are counted in parts of a token equivalent.
class PrefillCost {
 public:
  PrefillCost(const KvLayout& layout, int64_t attended_keys_per_token);

  // `most_keys`: a row sees no more, whatever its layers' windows.
  int64_t Parts(int64_t begin, int64_t end, int64_t most_keys = kMaxContext) const {
    return (end - begin) * parts_per_token_ + AttendedKeys(begin, end, most_keys);
  }
  // Added up over the layers.
  int64_t AttendedKeys(int64_t begin, int64_t end, int64_t most_keys = kMaxContext) const;
  int64_t parts_per_token() const { return parts_per_token_; }
  int64_t TokenEquivalents(int64_t parts) const { return (parts + parts_per_token_ - 1) / parts_per_token_; }

 private:
  struct WindowClass {
    int32_t window = 0;  // 0: none
    int64_t layers = 0;
  };
  std::vector<WindowClass> classes_;
  int64_t parts_per_token_ = 0;  // kappa * layers
};

// What one step of a lane computes.
struct StepWork {
  int64_t tokens = 0;
  int64_t attended_keys = 0;  // of all tokens, added up over the layers
};

// StepCostModel: how long a step takes, learned from the steps themselves.
//
//   time of a step = fixed + per token * tokens + per key * attended keys        none of them below 0
//
// An online least-squares fit of relative errors that forgets (half of its weight lies on the last 35 steps),
// gives a step that took far longer or shorter than predicted little weight, and keeps what it knew of a
// quantity that lately never varied. On a machine whose speed has changed for good it follows within some
// fifty steps.
class StepCostModel {
 public:
  // A step of such work took `ns`; a time that is not above 0 teaches nothing.
  void Learn(const StepWork& work, int64_t ns);

  bool known() const { return steps_ > 0; }  // has learned from a step

  // Predictions, in nanoseconds; 0 as long as nothing is known.
  double Ns(const StepWork& work) const { return Dot(FeaturesOf(work)); }
  double fixed_ns() const { return terms_[0]; }
  double token_ns() const { return terms_[1]; }
  double key_ns() const { return terms_[2]; }

 private:
  static constexpr int kTerms = 3;
  using Terms = std::array<double, kTerms>;
  using Matrix = std::array<Terms, kTerms>;

  static Terms FeaturesOf(const StepWork& work) {
    return {1.0, static_cast<double>(work.tokens), static_cast<double>(work.attended_keys)};
  }
  double Dot(const Terms& features) const;
  void Solve();
  static Terms SolveAmong(Matrix products, Terms targets, unsigned above);
  static bool IsMinimum(const Matrix& products, const Terms& targets, const Terms& solved, unsigned above,
                        unsigned known);

  Terms terms_ = {};
  Matrix products_ = {};      // weighted sums of feature * feature / time^2
  Terms targets_ = {};        // and of feature / time
  double usual_error_ = 0.1;  // of late: the mean relative error of a prediction, each counted as 1 at most
  int64_t steps_ = 0;
};

// Of both lanes.
struct StepCosts {
  StepCostModel prefill;
  StepCostModel decode;
};

}  // namespace tramontane

// How long prompts and answers are: `N`, `uniform:A:B`, `lognormal:MEDIAN:SIGMA`. Values; any thread.
#pragma once

#include <cstdint>
#include <string_view>

#include "bench/load/random.h"
#include "kernels/core/status.h"

namespace tramontane::load {

inline constexpr int32_t kMaxTokens = 16 << 20;  // of a prompt or an answer; longer draws are cut to it

class LengthDistribution {
 public:
  explicit LengthDistribution(int32_t tokens) : kind_(Kind::kFixed), first_(tokens) {}

  // `flag` is what an error calls it.
  static StatusOr<LengthDistribution> Parse(std::string_view flag, std::string_view text);

  int32_t Draw(Random& random) const;  // 1 to kMaxTokens

 private:
  enum class Kind { kFixed, kUniform, kLogNormal };
  LengthDistribution(Kind kind, double first, double second) : kind_(kind), first_(first), second_(second) {}

  Kind kind_;
  double first_;       // N, A or the median
  double second_ = 0;  // B or sigma
};

}  // namespace tramontane::load

#include "bench/load/distribution.h"

#include <algorithm>
#include <cmath>

#include "bench/load/parse.h"

namespace tramontane::load {

StatusOr<LengthDistribution> LengthDistribution::Parse(std::string_view flag, std::string_view text) {
  constexpr NumberRange kTokens = {1, kMaxTokens};
  constexpr NumberRange kSigma = {0, 10};
  const auto parts = SplitAt(text, ':');
  if (parts.size() == 1) {
    TM_ASSIGN_OR_RETURN(const int64_t tokens, ParseWhole(flag, text, kTokens));
    return LengthDistribution(static_cast<int32_t>(tokens));
  }
  if (parts.size() == 3 && parts[0] == "uniform") {
    TM_ASSIGN_OR_RETURN(const int64_t least, ParseWhole(flag, parts[1], kTokens));
    TM_ASSIGN_OR_RETURN(const int64_t most, ParseWhole(flag, parts[2], kTokens));
    if (least > most) return BadValue(flag, text, "uniform:A:B with A at most B");
    return LengthDistribution(Kind::kUniform, static_cast<double>(least), static_cast<double>(most));
  }
  if (parts.size() == 3 && parts[0] == "lognormal") {
    TM_ASSIGN_OR_RETURN(const double median, ParseNumber(flag, parts[1], kTokens));
    TM_ASSIGN_OR_RETURN(const double sigma, ParseNumber(flag, parts[2], kSigma));
    return LengthDistribution(Kind::kLogNormal, median, sigma);
  }
  return BadValue(flag, text, "N, uniform:A:B or lognormal:MEDIAN:SIGMA");
}

int32_t LengthDistribution::Draw(Random& random) const {
  switch (kind_) {
    case Kind::kFixed:
      return static_cast<int32_t>(first_);
    case Kind::kUniform:
      return static_cast<int32_t>(random.Whole(static_cast<int64_t>(first_), static_cast<int64_t>(second_)));
    case Kind::kLogNormal:
      break;
  }
  const double tokens = std::round(first_ * std::exp(second_ * random.Normal()));
  return static_cast<int32_t>(std::clamp(tokens, 1.0, static_cast<double>(kMaxTokens)));
}

}  // namespace tramontane::load

// Numbers within bounds, as grammars.
//
// Any thread. Bounds are JSON numbers as text; one that is outside of what can be written exactly is refused.
#pragma once

#include <optional>
#include <string>

#include "kernels/core/status.h"
#include "models/grammar/pattern.h"

namespace tramontane {

struct NumberBound {
  std::string text;  // a JSON number: "0.5", "-3", "1e-05"
  bool exclusive = false;
};

// Whole numbers of at most kMaxIntegerDigits digits; without bounds, all of those.
inline constexpr int kMaxIntegerDigits = 18;
StatusOr<Pattern> IntegerGrammar(const std::optional<NumberBound>& least,
                                 const std::optional<NumberBound>& most);

// Numbers in decimal notation, of at most 9 digits before the point and 6 behind it: so few that reading them
// as doubles keeps their order, and what is within the bounds stays there. Without bounds, longer ones and
// exponents too.
StatusOr<Pattern> NumberGrammar(const std::optional<NumberBound>& least,
                                const std::optional<NumberBound>& most);

}  // namespace tramontane

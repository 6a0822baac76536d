// Regular expressions to patterns: the part of their language that Python's `re` and ECMAScript read alike.
//
// Any thread. What a pattern cannot be translated exactly for is refused by name and place, never ignored.
// Where the two disagree about a character (is "é" a \w?), the pattern has neither reading's extra
// characters: what it matches, both match.
#pragma once

#include <string_view>

#include "kernels/core/status.h"
#include "models/grammar/code_points.h"
#include "models/grammar/constraint.h"
#include "models/grammar/pattern.h"

namespace tramontane {

struct RegexReading {
  enum class Match {
    kWhole,
    kAnywhere
  };  // anywhere: unless ^ or $ says otherwise, more text may stand around
  enum class Spelling { kPlain, kInJsonString };  // in a JSON string: quotes and the like come escaped
  Match match = Match::kWhole;
  Spelling spelling = Spelling::kPlain;
};

// INVALID_ARGUMENT: "at byte 7: lookahead, (?=, is not supported".
// REQUIRES: UTF-8.
StatusOr<Pattern> RegexToPattern(std::string_view pattern, const RegexReading& reading,
                                 const ConstraintLimits& limits);

// One of these characters inside a JSON string. Those that must be escaped come in their shortest escape; of
// the control characters without one, only sets of at most 32 characters have them. REQUIRES: not empty.
Pattern JsonCharacterPattern(const CodePoints& characters);

}  // namespace tramontane

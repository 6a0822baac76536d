// Strings as a JSON Schema says: patterns, formats and lengths, any of them beside each other.
//
// Any thread; milliseconds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/core/status.h"
#include "models/grammar/constraint.h"
#include "models/grammar/pattern.h"
#include "models/grammar/regex_automaton.h"

namespace tramontane {

struct StringKeywords {
  std::vector<std::string> patterns;  // UTF-8
  std::vector<std::string> formats;   // those that are not known say nothing
  int64_t least = 0;
  int64_t most = kUnbounded;
};

// What stands between the quotes. INVALID_ARGUMENT, of the field ".pattern", ".format" or ".maxLength":
// cannot be written, or leaves no text.
// `overlaps`: a pattern whose repetitions overlap too much to be compiled in milliseconds is refused as well,
// by what finding that out takes; null: it is not looked at.
StatusOr<Pattern> StringGrammar(const StringKeywords& keywords, const ConstraintLimits& limits,
                                RegexWork* work, RegexWork* overlaps = nullptr);

// Whether a text that the caller wrote is so. INVALID_ARGUMENT, of the field ".pattern": cannot be known.
StatusOr<bool> StringHolds(const StringKeywords& keywords, const std::string& text,
                           const ConstraintLimits& limits, RegexWork* work);

}  // namespace tramontane

// Regular expressions to patterns: the part of their language that Python's `re` and ECMAScript read alike.
//
// Any thread. What a pattern cannot be translated exactly for is refused by name and place, never ignored.
// Where the two disagree about a character (is "é" a \w?), the pattern has neither reading's extra
// characters: what it matches, both match.
#pragma once

#include <string_view>

#include "kernels/core/status.h"
#include "models/grammar/constraint.h"
#include "models/grammar/pattern.h"
#include "models/grammar/regex_tree.h"

namespace tramontane {

// INVALID_ARGUMENT: "at byte 7: a word boundary, \\b, is not supported".
// REQUIRES: UTF-8.
StatusOr<RegexNode> ParseRegex(std::string_view pattern, RegexReading::Match match,
                               const ConstraintLimits& limits);

// The same as a pattern: without its lookaheads, which are worked into the rest.
StatusOr<Pattern> RegexToPattern(std::string_view pattern, const RegexReading& reading,
                                 const ConstraintLimits& limits);

}  // namespace tramontane

// Repetitions of a caller's grammar that are regular, as patterns: [^"]{0,100}, or (word " "){3,20} with a
// word ::= [a-z]+.
//
// A pure function; any thread. A repetition in rules costs a thousand times as much at each token as the same
// one in a pattern (pattern.h), and over a large vocabulary seconds to compile.
#pragma once

#include <string>
#include <string_view>

#include "models/grammar/constraint.h"

namespace tramontane {

// The same grammar, with Regex("...") for each repetition of at least two and a number at most of what refers
// to no rule that leads back to itself. What would be too large, or is not understood, stays as it is.
// REQUIRES: CheckEbnf is OK with `grammar`.
std::string WithRegularRepetitions(std::string_view grammar, const ConstraintLimits& limits);

}  // namespace tramontane

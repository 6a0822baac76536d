// The texts that several expressions have in common, as one expression.
//
// Any thread; milliseconds.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/core/status.h"
#include "models/grammar/regex_automaton.h"
#include "models/grammar/regex_tree.h"

namespace tramontane {

inline constexpr int64_t kMostMeetingSymbols = 2048;

// One of them where all its texts are in the others too; else one without the alternatives that are in none
// of the others; else their automaton written out, in at most `most_symbols`. Looks nowhere ahead.
// INVALID_ARGUMENT: there is no such text; it would be too large. REQUIRES: at least one.
StatusOr<RegexNode> MeetingOf(const std::vector<RegexNode>& all, RegexWork* work,
                              int64_t most_symbols = kMostMeetingSymbols);

}  // namespace tramontane

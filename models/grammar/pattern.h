// Pattern: a regular part of a grammar: characters, classes, alternatives and repetitions, no rules. The
// library behind grammar_backend.h makes one automaton of each, so that stepping through it costs next to
// nothing; repetitions in the rules of a grammar cost a thousand times as much.
//
// Any thread. Plain values, put together by the functions below.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/grammar/code_points.h"

namespace tramontane {

// What a part of a grammar takes to compile: symbols with every repetition written out, a class of many
// characters as several. Sums and products stay at kMostGrammarSize once they have reached it.
inline constexpr int64_t kMostGrammarSize = int64_t{1} << 40;
inline constexpr int64_t kUnbounded = -1;

// What a pattern becomes is states of one automaton, and its masks are made as they are needed: so many of
// its symbols cost as much as one of a rule.
inline constexpr int64_t kPatternSymbols = 16;

// Any of the elements side by side that may be empty may take the next character: what that costs, to compile
// and at each token, grows with the square of their number. More are refused.
inline constexpr int64_t kMostEmptySideBySide = 256;

struct Pattern {
  std::string text;  // in the library's notation of regular expressions
  int64_t size = 0;
  bool is_element = false;  // may take a repetition as it is
  bool may_be_empty = false;
  int64_t empty_side_by_side =
      0;  // elements that may be empty, at most; stays at kMostGrammarSize as size does
};

Pattern PatternLiteral(std::string_view utf8);       // REQUIRES: UTF-8
Pattern PatternClass(const CodePoints& characters);  // one of them. REQUIRES: not empty
Pattern PatternSequence(const std::vector<Pattern>& parts);
Pattern PatternChoice(const std::vector<Pattern>& alternatives);          // REQUIRES: at least one
Pattern PatternRepeat(const Pattern& part, int64_t least, int64_t most);  // most: kUnbounded, or from `least`
Pattern PatternOptional(const Pattern& part);

}  // namespace tramontane

// RegexNode: a regular expression as a tree, before it is known how its characters are spelled.
//
// Any thread. Plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

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

struct RegexNode {
  enum class Kind {
    kClass,
    kSequence,  // of no parts: the empty text
    kChoice,
    kRepeat,
    kAhead,     // what follows begins as parts[0] says, and no character is taken
    kNotAhead,  // what follows does not
  };
  Kind kind = Kind::kSequence;
  // kClass: the characters that every reader of expressions has in it, and those that any has. Without the
  // second a complement would not be known. `surely` is what texts are written from.
  CodePoints surely;
  CodePoints maybe;
  std::vector<RegexNode> parts;
  int64_t least = 1;  // kRepeat
  int64_t most = 1;   // kRepeat: or kUnbounded
  size_t at = 0;      // byte of the expression where it begins
};

RegexNode RegexClass(const CodePoints& characters);
RegexNode RegexSequence(std::vector<RegexNode> parts);
RegexNode RegexChoice(std::vector<RegexNode> alternatives);  // REQUIRES: at least one
RegexNode RegexRepeat(RegexNode part, int64_t least, int64_t most);
RegexNode AnyText();  // any characters, any number of them

bool LooksAhead(const RegexNode& node);  // holds a kAhead or kNotAhead

// Characters of its texts: the fewest, and the most or kUnbounded. REQUIRES: looks nowhere ahead.
struct RegexLengths {
  int64_t least = 0;
  int64_t most = 0;
};
RegexLengths LengthsOf(const RegexNode& node);

// One of these characters inside a JSON string. Those that must be escaped come in their shortest escape; of
// the control characters without one, only sets of at most 32 characters have them. REQUIRES: not empty.
Pattern JsonCharacterPattern(const CodePoints& characters);

// INVALID_ARGUMENT: its repetitions written out are more than limits.max_size.
// REQUIRES: looks nowhere ahead.
StatusOr<Pattern> ToPattern(const RegexNode& node, RegexReading::Spelling spelling,
                            const ConstraintLimits& limits);

// The texts of `node` from `least` to `most` characters (or kUnbounded); `is_all`: these are all of them,
// else some, none too long or too short. None: there is no such text, or it was not found. REQUIRES: looks
// nowhere ahead.
struct BoundedRegex {
  RegexNode node;
  bool is_all = true;
};
std::optional<BoundedRegex> WithinLengths(const RegexNode& node, int64_t least, int64_t most);

}  // namespace tramontane

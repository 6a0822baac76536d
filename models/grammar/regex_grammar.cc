#include "models/grammar/regex_grammar.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/utf8.h"
#include "models/grammar/regex_meeting.h"

namespace tramontane {
namespace {

// The characters of an escape like \d: those that every reading has, and those that any has. A complement has
// what no reading of its set has.
struct Readings {
  CodePoints surely;
  CodePoints maybe;
};

Readings Negated(const Readings& readings) {
  return {readings.maybe.Complement(), readings.surely.Complement()};
}

const CodePoints& NotAscii() {
  static const CodePoints set = {{0x80, CodePoints::kMost}};
  return set;
}

Readings Digits() {
  Readings readings{{{'0', '9'}}, {{'0', '9'}}};
  readings.maybe.Add(NotAscii());
  return readings;
}

Readings WordCharacters() {
  Readings readings{{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}, {}};
  readings.maybe = readings.surely;
  readings.maybe.Add(NotAscii());
  return readings;
}

Readings Spaces() {
  return {{{'\t', '\r'}, {' ', ' '}},
          {{'\t', '\r'},
           {0x1C, 0x20},
           {0x85, 0x85},
           {0xA0, 0xA0},
           {0x1680, 0x1680},
           {0x180E, 0x180E},
           {0x2000, 0x200B},
           {0x2028, 0x2029},
           {0x202F, 0x202F},
           {0x205F, 0x205F},
           {0x3000, 0x3000},
           {0xFEFF, 0xFEFF}}};
}

CodePoints AnyButLineEnds() { return CodePoints{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}.Complement(); }

// The set that \d, \W and so on stand for; none if the letter is none of theirs.
std::optional<Readings> SetOfEscape(char letter) {
  switch (letter) {
    case 'd':
      return Digits();
    case 'D':
      return Negated(Digits());
    case 'w':
      return WordCharacters();
    case 'W':
      return Negated(WordCharacters());
    case 's':
      return Spaces();
    case 'S':
      return Negated(Spaces());
    default:
      return std::nullopt;
  }
}

std::optional<uint32_t> HexDigit(char c) {
  if (IsDigit(c)) return static_cast<uint32_t>(c - '0');
  if (c >= 'a' && c <= 'f') return static_cast<uint32_t>(c - 'a' + 10);
  if (c >= 'A' && c <= 'F') return static_cast<uint32_t>(c - 'A' + 10);
  return std::nullopt;
}

class RegexParser {
 public:
  RegexParser(std::string_view pattern, RegexReading::Match match, const ConstraintLimits& limits)
      : pattern_(pattern), match_(match), limits_(limits) {}

  StatusOr<RegexNode> Parse();

 private:
  struct Count {
    int64_t least = 1;
    int64_t most = 1;
  };

  // What an expression stands in: what it may begin and end with.
  struct Place {
    int32_t depth = 0;
    bool edges = false;     // ^ and $ may stand at its edges
    bool at_start = false;  // nothing of the text stands in front of it
    bool searched = false;  // any text may come in front of it, unless ^ says otherwise
    bool open = false;      // any text may come behind it, unless $ says otherwise
    bool denied = false;    // in an odd number of (?!
  };

  StatusOr<RegexNode> Alternatives(const Place& place);
  StatusOr<RegexNode> Sequence(const Place& place);
  StatusOr<RegexNode> Element(const Place& place);
  StatusOr<RegexNode> Group(const Place& place);
  StatusOr<RegexNode> Lookahead(const Place& place);
  StatusOr<RegexNode> Class();
  StatusOr<Readings> ClassItem();
  StatusOr<uint32_t> EscapedCharacter();
  StatusOr<uint32_t> HexCharacter(size_t digits);
  StatusOr<Count> Quantifier();
  std::optional<Count> CountInBraces();  // and steps over it

  static StatusOr<RegexNode> OneOf(const Readings& characters, size_t at);
  uint32_t NextCharacter();

  bool AtEnd() const { return at_ == pattern_.size(); }
  char Peek() const { return AtEnd() ? '\0' : pattern_[at_]; }
  bool LooksAt(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }
  bool AtEndOfAlternative() const { return AtEnd() || Peek() == '|' || Peek() == ')'; }
  bool AtQuantifier();
  Status Unsupported(const std::string& what) const { return Fault(what + " is not supported"); }
  Status Fault(const std::string& what) const { return FaultAt(at_, what); }
  static Status FaultAt(size_t at, const std::string& what) {
    return InvalidArgument("at byte " + std::to_string(at) + ": " + what);
  }

  const std::string_view pattern_;
  const RegexReading::Match match_;
  const ConstraintLimits& limits_;
  size_t at_ = 0;
};

StatusOr<RegexNode> RegexParser::Parse() {
  const bool anywhere = match_ == RegexReading::Match::kAnywhere;
  TM_ASSIGN_OR_RETURN(
      RegexNode whole,
      Alternatives({.edges = true, .at_start = true, .searched = anywhere, .open = anywhere}));
  if (!AtEnd()) return Fault("a ) without its (");
  return whole;
}

StatusOr<RegexNode> RegexParser::Alternatives(const Place& place) {
  if (place.depth > limits_.max_depth) {
    return Fault("more than " + std::to_string(limits_.max_depth) + " brackets inside each other");
  }
  const size_t start = at_;
  std::vector<RegexNode> alternatives;
  while (true) {
    TM_ASSIGN_OR_RETURN(RegexNode alternative, Sequence(place));
    alternatives.push_back(std::move(alternative));
    if (Peek() != '|') break;
    ++at_;
  }
  RegexNode choice = RegexChoice(std::move(alternatives));
  choice.at = start;
  return choice;
}

// One alternative.
StatusOr<RegexNode> RegexParser::Sequence(const Place& place) {
  std::vector<RegexNode> parts;
  bool starts = false;
  bool ends = false;
  if (place.edges && place.at_start && Peek() == '^') {
    starts = true;
    ++at_;
  }
  if (place.searched && !starts) parts.push_back(AnyText());
  bool at_start = place.at_start && parts.empty();
  while (!AtEndOfAlternative()) {
    if (place.edges && Peek() == '$') {
      ends = true;
      ++at_;
      if (!AtEndOfAlternative()) return Fault("$ in front of more text is not supported");
      break;
    }
    Place inside = place;
    inside.at_start = at_start;
    TM_ASSIGN_OR_RETURN(RegexNode element, Element(inside));
    const bool looks = element.kind == RegexNode::Kind::kAhead || element.kind == RegexNode::Kind::kNotAhead;
    at_start = at_start && looks;
    if (looks && AtQuantifier()) return Fault("nothing to repeat in front of the count");
    if (looks && AtEndOfAlternative()) {
      at_ = element.at + 1;
      return Unsupported("lookahead, (" + std::string(pattern_.substr(at_, 2)) + ",");
    }
    if (AtQuantifier()) {
      const size_t start = at_;
      TM_ASSIGN_OR_RETURN(const Count count, Quantifier());
      constexpr int64_t kMostLookaheads = 16;
      if (LooksAhead(element) && (count.most == kUnbounded || count.most > kMostLookaheads)) {
        return FaultAt(start, "a repetition of a lookahead, more than " + std::to_string(kMostLookaheads) +
                                  " times, is not supported");
      }
      element = RegexRepeat(std::move(element), count.least, count.most);
      element.at = start;
    }
    parts.push_back(std::move(element));
  }
  // Python's $ may have one more line end behind it. What is denied must be denied in its reading too.
  if (ends && place.denied) {
    RegexNode line_end;
    line_end.kind = RegexNode::Kind::kClass;
    line_end.maybe = {{'\n', '\n'}};
    parts.push_back(RegexRepeat(std::move(line_end), 0, 1));
  }
  if (place.open && !ends) parts.push_back(AnyText());
  return RegexSequence(std::move(parts));
}

StatusOr<RegexNode> RegexParser::Element(const Place& place) {
  const size_t start = at_;
  switch (Peek()) {
    case '(':
      return LooksAt("(?=") || LooksAt("(?!") ? Lookahead(place) : Group(place);
    case '[':
      return Class();
    case '.':
      ++at_;
      return OneOf({AnyButLineEnds(), CodePoints{{'\n', '\n'}}.Complement()}, start);
    case '^':
    case '$':
      return Unsupported(std::string("an anchor (") + Peek() + ") anywhere but at the edge of the pattern");
    case '*':
    case '+':
    case '?':
      return Fault(std::string("nothing to repeat in front of ") + Peek());
    case '\\': {
      if (at_ + 1 < pattern_.size()) {
        if (const auto set = SetOfEscape(pattern_[at_ + 1])) {
          at_ += 2;
          return OneOf(*set, start);
        }
      }
      TM_ASSIGN_OR_RETURN(const uint32_t character, EscapedCharacter());
      return OneOf({{{character, character}}, {{character, character}}}, start);
    }
    default: {
      if (AtQuantifier()) return Fault("nothing to repeat in front of {");
      const uint32_t character = NextCharacter();
      return OneOf({{{character, character}}, {{character, character}}}, start);
    }
  }
}

StatusOr<RegexNode> RegexParser::Group(const Place& place) {
  const size_t start = at_;
  ++at_;
  if (Peek() == '?') {
    if (LooksAt("?<=") || LooksAt("?<!")) {
      return Unsupported("lookbehind, (" + std::string(pattern_.substr(at_, 3)) + ",");
    }
    if (LooksAt("?:")) {
      at_ += 2;
    } else if (LooksAt("?P<") || LooksAt("?<")) {
      const size_t close = pattern_.find('>', at_);
      if (close == std::string_view::npos) return Fault("a group's name without its >");
      at_ = close + 1;
    } else {
      return Unsupported("a group of the kind (" + Excerpt(pattern_.substr(at_, 3)));
    }
  }
  TM_ASSIGN_OR_RETURN(RegexNode inner, Alternatives({.depth = place.depth + 1, .denied = place.denied}));
  if (Peek() != ')') return FaultAt(start, "a ( without its )");
  ++at_;
  return inner;
}

// (?=...) or (?!...): an expression of its own about all the text that follows.
StatusOr<RegexNode> RegexParser::Lookahead(const Place& place) {
  RegexNode look;
  look.at = at_;
  const bool denies = LooksAt("(?!");
  look.kind = denies ? RegexNode::Kind::kNotAhead : RegexNode::Kind::kAhead;
  at_ += 3;
  TM_ASSIGN_OR_RETURN(RegexNode inner, Alternatives({.depth = place.depth + 1,
                                                     .edges = true,
                                                     .at_start = place.at_start,
                                                     .open = true,
                                                     .denied = place.denied != denies}));
  if (Peek() != ')') return FaultAt(look.at, "a ( without its )");
  ++at_;
  look.parts.push_back(std::move(inner));
  return look;
}

// ---- classes ------------------------------------------------------------------------------------

StatusOr<RegexNode> RegexParser::Class() {
  const size_t start = at_;
  ++at_;
  const bool negated = Peek() == '^';
  if (negated) ++at_;
  if (Peek() == ']') return Unsupported("a class that begins with ]");
  Readings all;
  while (Peek() != ']') {
    if (AtEnd()) return FaultAt(start, "a [ without its ]");
    if (LooksAt("[:")) return Unsupported("a named class, [:,");
    TM_ASSIGN_OR_RETURN(const Readings item, ClassItem());
    all.surely.Add(item.surely);
    all.maybe.Add(item.maybe);
  }
  ++at_;
  return OneOf(negated ? Negated(all) : all, start);
}

// A character, an escaped set, or a range.
StatusOr<Readings> RegexParser::ClassItem() {
  if (Peek() == '\\' && at_ + 1 < pattern_.size()) {
    if (const auto set = SetOfEscape(pattern_[at_ + 1])) {
      at_ += 2;
      if (Peek() == '-' && !LooksAt("-]")) return Fault("a range cannot begin with a set");
      return *set;
    }
  }
  const auto character = [this]() -> StatusOr<uint32_t> {
    if (Peek() != '\\') return NextCharacter();
    if (LooksAt("\\b")) {  // inside a class it is the backspace
      at_ += 2;
      return uint32_t{'\b'};
    }
    return EscapedCharacter();
  };
  TM_ASSIGN_OR_RETURN(const uint32_t first, character());
  uint32_t last = first;
  if (Peek() == '-' && !LooksAt("-]") && at_ + 1 < pattern_.size()) {
    ++at_;
    const bool is_set = Peek() == '\\' && at_ + 1 < pattern_.size() && SetOfEscape(pattern_[at_ + 1]);
    if (is_set) return Fault("a range cannot end with a set");
    TM_ASSIGN_OR_RETURN(last, character());
    if (last < first) return Fault("a range whose end comes before its start");
  }
  return Readings{{{first, last}}, {{first, last}}};
}

// ---- escapes ------------------------------------------------------------------------------------

StatusOr<uint32_t> RegexParser::EscapedCharacter() {
  if (at_ + 1 == pattern_.size()) return Fault("a \\ with nothing behind it");
  const char letter = pattern_[at_ + 1];
  const auto named = [this](char character) {
    at_ += 2;
    return static_cast<uint32_t>(character);
  };
  switch (letter) {
    case 'n':
      return named('\n');
    case 'r':
      return named('\r');
    case 't':
      return named('\t');
    case 'f':
      return named('\f');
    case 'v':
      return named('\v');
    case 'x':
      return HexCharacter(2);
    case 'u':
      return HexCharacter(4);
    case 'b':
    case 'B':
      return Unsupported(std::string("a word boundary, \\") + letter + ",");
    case 'p':
    case 'P':
      return Unsupported(std::string("a Unicode property, \\") + letter + ",");
    case 'k':
      return Unsupported("a backreference, \\k,");
    default:
      break;
  }
  if (letter >= '1' && letter <= '9') return Unsupported(std::string("a backreference, \\") + letter + ",");
  const bool is_letter =
      IsDigit(letter) || (letter >= 'A' && letter <= 'Z') || (letter >= 'a' && letter <= 'z');
  if (is_letter) return Unsupported(std::string("the escape \\") + letter);
  ++at_;
  return NextCharacter();
}

StatusOr<uint32_t> RegexParser::HexCharacter(size_t digits) {
  uint32_t value = 0;
  for (size_t i = 0; i < digits; ++i) {
    const size_t at = at_ + 2 + i;
    const std::optional<uint32_t> digit = at < pattern_.size() ? HexDigit(pattern_[at]) : std::nullopt;
    if (!digit) {
      return Fault(std::string("\\") + pattern_[at_ + 1] + " without " + std::to_string(digits) +
                   " hexadecimal digits");
    }
    value = value * 16 + *digit;
  }
  if (value >= 0xD800 && value <= 0xDFFF) return Unsupported("half of a surrogate pair");
  at_ += 2 + digits;
  return value;
}

// ---- repetition ---------------------------------------------------------------------------------

bool RegexParser::AtQuantifier() {
  if (Peek() == '*' || Peek() == '+' || Peek() == '?') return true;
  const size_t start = at_;
  const bool counts = CountInBraces().has_value();
  at_ = start;
  return counts;
}

StatusOr<RegexParser::Count> RegexParser::Quantifier() {
  const size_t start = at_;
  Count count;
  switch (Peek()) {
    case '*':
      count = {0, kUnbounded};
      ++at_;
      break;
    case '+':
      count = {1, kUnbounded};
      ++at_;
      break;
    case '?':
      count = {0, 1};
      ++at_;
      break;
    default:
      count = *CountInBraces();
  }
  if (count.least > limits_.max_repeats || count.most > limits_.max_repeats) {
    return FaultAt(start, "a repetition of more than " + std::to_string(limits_.max_repeats));
  }
  if (count.most != kUnbounded && count.most < count.least) {
    return FaultAt(start, "a repetition whose most is less than its least");
  }
  if (Peek() == '?') {
    ++at_;  // not greedy: the same texts
  } else if (Peek() == '+') {
    return Unsupported("a possessive repetition");
  }
  if (AtQuantifier()) return Fault("a repetition of a repetition");
  return count;
}

// {m}, {m,}, {m,n}, and as Python reads them {,n} and {,}; anything else in braces is text.
std::optional<RegexParser::Count> RegexParser::CountInBraces() {
  if (Peek() != '{') return std::nullopt;
  size_t at = at_ + 1;
  const auto number = [&]() -> std::optional<int64_t> {
    if (at == pattern_.size() || !IsDigit(pattern_[at])) return std::nullopt;
    int64_t value = 0;
    for (; at < pattern_.size() && IsDigit(pattern_[at]); ++at) {
      value = std::min<int64_t>(INT32_MAX, value * 10 + (pattern_[at] - '0'));
    }
    return value;
  };
  const std::optional<int64_t> least = number();
  Count count{least.value_or(0), least.value_or(0)};
  if (at < pattern_.size() && pattern_[at] == ',') {
    ++at;
    count.most = number().value_or(kUnbounded);
  } else if (!least) {
    return std::nullopt;
  }
  if (at == pattern_.size() || pattern_[at] != '}') return std::nullopt;
  at_ = at + 1;
  return count;
}

// ---- characters ---------------------------------------------------------------------------------

StatusOr<RegexNode> RegexParser::OneOf(const Readings& characters, size_t at) {
  if (characters.surely.empty()) return FaultAt(at, "a class that no character is in");
  RegexNode node;
  node.kind = RegexNode::Kind::kClass;
  node.surely = characters.surely;
  node.maybe = characters.maybe;
  node.at = at;
  return node;
}

uint32_t RegexParser::NextCharacter() {
  const Utf8Unit unit = NextUtf8(pattern_.substr(at_));
  const uint32_t character = CodePointsOf(pattern_.substr(at_, unit.bytes))[0];
  at_ += unit.bytes;
  return character;
}

}  // namespace

StatusOr<RegexNode> ParseRegex(std::string_view pattern, RegexReading::Match match,
                               const ConstraintLimits& limits) {
  return RegexParser(pattern, match, limits).Parse();
}

StatusOr<Pattern> RegexToPattern(std::string_view pattern, const RegexReading& reading,
                                 const ConstraintLimits& limits) {
  TM_ASSIGN_OR_RETURN(RegexNode tree, ParseRegex(pattern, reading.match, limits));
  if (LooksAhead(tree)) {
    RegexWork work;
    TM_ASSIGN_OR_RETURN(tree, MeetingOf({std::move(tree)}, &work));
  }
  return ToPattern(tree, reading.spelling, limits);
}

}  // namespace tramontane

#include "models/grammar/regex_tree.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>

#include "kernels/core/check.h"

namespace tramontane {
namespace {

// What must be escaped inside a JSON string.
const CodePoints& Unsafe() {
  static const CodePoints set = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
  return set;
}

struct ShortEscape {
  uint32_t character;
  uint32_t letter;
};
constexpr ShortEscape kShortEscapes[] = {{'"', '"'},  {'\\', '\\'}, {'\b', 'b'}, {'\f', 'f'},
                                         {'\n', 'n'}, {'\r', 'r'},  {'\t', 't'}};

// Sums and products of lengths; kUnbounded stays so.
int64_t SumOfLengths(int64_t a, int64_t b) {
  return a == kUnbounded || b == kUnbounded ? kUnbounded : std::min(kMostGrammarSize, a + b);
}
int64_t ProductOfLengths(int64_t length, int64_t times) {
  if (length == 0 || times == 0) return 0;
  if (length == kUnbounded || times == kUnbounded) return kUnbounded;
  return times > kMostGrammarSize / length ? kMostGrammarSize : length * times;
}

// (A count never stands at byte 0: such a one is not the caller's.)
Status CheckSize(size_t at, int64_t size, const ConstraintLimits& limits) {
  const int64_t most = kPatternSymbols * limits.max_size;
  if (size <= most) return {};
  return InvalidArgument((at > 0 ? "at byte " + std::to_string(at) + ": " : "") + "comes to " +
                         std::to_string(size) + " symbols with its repetitions written out; at most " +
                         std::to_string(most) + " are supported");
}

StatusOr<Pattern> PartToPattern(const RegexNode& node, RegexReading::Spelling spelling,
                                const ConstraintLimits& limits) {
  if (node.kind == RegexNode::Kind::kClass) {
    return spelling == RegexReading::Spelling::kInJsonString ? JsonCharacterPattern(node.surely)
                                                             : PatternClass(node.surely);
  }
  std::vector<Pattern> parts;
  for (const RegexNode& part : node.parts) {
    TM_ASSIGN_OR_RETURN(Pattern pattern, PartToPattern(part, spelling, limits));
    parts.push_back(std::move(pattern));
  }
  if (node.kind == RegexNode::Kind::kSequence) return PatternSequence(parts);
  if (node.kind == RegexNode::Kind::kChoice) return PatternChoice(parts);
  TM_CHECK(node.kind == RegexNode::Kind::kRepeat, "a lookahead in a pattern");
  // Before it is written out.
  TM_RETURN_IF_ERROR(
      CheckSize(node.at, parts[0].size * std::max<int64_t>({1, node.least, node.most}), limits));
  return PatternRepeat(parts[0], node.least, node.most);
}

}  // namespace

RegexNode RegexClass(const CodePoints& characters) {
  RegexNode node;
  node.kind = RegexNode::Kind::kClass;
  node.surely = characters;
  node.maybe = characters;
  return node;
}

RegexNode RegexSequence(std::vector<RegexNode> parts) {
  if (parts.size() == 1) return std::move(parts[0]);
  RegexNode node;
  node.parts = std::move(parts);
  return node;
}

RegexNode RegexChoice(std::vector<RegexNode> alternatives) {
  TM_CHECK(!alternatives.empty(), "a choice of nothing");
  if (alternatives.size() == 1) return std::move(alternatives[0]);
  RegexNode node;
  node.kind = RegexNode::Kind::kChoice;
  node.parts = std::move(alternatives);
  return node;
}

RegexNode RegexRepeat(RegexNode part, int64_t least, int64_t most) {
  RegexNode node;
  node.kind = RegexNode::Kind::kRepeat;
  node.parts.push_back(std::move(part));
  node.least = least;
  node.most = most;
  return node;
}

RegexNode AnyText() { return RegexRepeat(RegexClass(CodePoints::All()), 0, kUnbounded); }

bool LooksAhead(const RegexNode& node) {
  return node.kind == RegexNode::Kind::kAhead || node.kind == RegexNode::Kind::kNotAhead ||
         std::any_of(node.parts.begin(), node.parts.end(), LooksAhead);
}

RegexLengths LengthsOf(const RegexNode& node) {
  if (node.kind == RegexNode::Kind::kClass) return {1, 1};
  RegexLengths lengths;
  bool first = true;
  for (const RegexNode& part : node.parts) {
    const RegexLengths of_part = LengthsOf(part);
    if (node.kind == RegexNode::Kind::kSequence) {
      lengths = {SumOfLengths(lengths.least, of_part.least), SumOfLengths(lengths.most, of_part.most)};
    } else if (node.kind == RegexNode::Kind::kRepeat) {
      lengths = {ProductOfLengths(of_part.least, node.least), ProductOfLengths(of_part.most, node.most)};
    } else if (first) {
      lengths = of_part;
    } else {
      const bool unbounded = lengths.most == kUnbounded || of_part.most == kUnbounded;
      lengths = {std::min(lengths.least, of_part.least),
                 unbounded ? kUnbounded : std::max(lengths.most, of_part.most)};
    }
    first = false;
  }
  return lengths;
}

Pattern JsonCharacterPattern(const CodePoints& characters) {
  constexpr int64_t kFewCharacters = 32;
  std::vector<Pattern> alternatives;
  const CodePoints plain = characters.Without(Unsafe());
  if (!plain.empty()) alternatives.push_back(PatternClass(plain));
  CodePoints letters;
  CodePoints rest = characters.Within(Unsafe());
  for (const ShortEscape& escape : kShortEscapes) {
    if (!characters.Contains(escape.character)) continue;
    letters.Add({{escape.letter, escape.letter}});
    rest = rest.Without({{escape.character, escape.character}});
  }
  if (!letters.empty())
    alternatives.push_back(PatternSequence({PatternLiteral("\\"), PatternClass(letters)}));
  if (characters.count() <= kFewCharacters) {
    for (const CodePointRange& range : rest.ranges()) {
      for (uint32_t c = range.first; c <= range.last; ++c) {
        char text[8];
        std::snprintf(text, sizeof text, "\\u%04x", c);
        alternatives.push_back(PatternLiteral(text));
      }
    }
  }
  return PatternChoice(alternatives);
}

StatusOr<Pattern> ToPattern(const RegexNode& node, RegexReading::Spelling spelling,
                            const ConstraintLimits& limits) {
  TM_ASSIGN_OR_RETURN(Pattern whole, PartToPattern(node, spelling, limits));
  TM_RETURN_IF_ERROR(CheckSize(node.at, whole.size, limits));
  if (whole.empty_side_by_side > kMostEmptySideBySide) {
    return InvalidArgument("has more than " + std::to_string(kMostEmptySideBySide) +
                           " elements side by side that may be empty");
  }
  return whole;
}

}  // namespace tramontane

#include "models/grammar/pattern.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "kernels/core/check.h"

namespace tramontane {
namespace {

constexpr int64_t kManyCharacters = 256;
constexpr int64_t kSizeOfMany =
    12;  // of a class of many characters, in symbols: UTF-8 makes so many states of it

// Letters and digits stand for themselves, the rest is spelled by number.
std::string Escaped(uint32_t code_point) {
  const bool plain = (code_point >= '0' && code_point <= '9') || (code_point >= 'A' && code_point <= 'Z') ||
                     (code_point >= 'a' && code_point <= 'z');
  if (plain) return std::string(1, static_cast<char>(code_point));
  char text[16];
  std::snprintf(text, sizeof text, "\\u{%X}", code_point);
  return text;
}

int64_t Sum(int64_t a, int64_t b) { return std::min(kMostGrammarSize, a + b); }

int64_t Product(int64_t size, int64_t times) {
  return size > 0 && times > kMostGrammarSize / size ? kMostGrammarSize : size * times;
}

// `part` repeated, written as `text`.
Pattern Counted(const Pattern& part, std::string text, int64_t least, int64_t most) {
  Pattern result{std::move(text), Product(part.size, most == kUnbounded ? 1 : most)};
  result.may_be_empty = part.may_be_empty || least == 0;
  const int64_t runs = part.may_be_empty && most != kUnbounded ? most : 1;  // that may all be empty
  result.empty_side_by_side = Product(part.empty_side_by_side, runs);
  if (result.may_be_empty) result.empty_side_by_side = std::max<int64_t>(1, result.empty_side_by_side);
  return result;
}

std::string AsElement(const Pattern& part) { return part.is_element ? part.text : '(' + part.text + ')'; }

Pattern WithCount(const Pattern& part, int64_t least, int64_t most) {
  if (most == 0) return {};
  if (least == 1 && most == 1) return part;
  const std::string count =
      least == most ? std::to_string(least) : std::to_string(least) + ',' + std::to_string(most);
  return Counted(part, AsElement(part) + '{' + count + '}', least, most);
}

}  // namespace

Pattern PatternLiteral(std::string_view utf8) {
  Pattern result;
  for (const uint32_t code_point : CodePointsOf(utf8)) {
    result.text += Escaped(code_point);
    ++result.size;
  }
  result.is_element = result.size == 1;
  return result;
}

// One class for each length that UTF-8 writes its characters in: of a range across, the library would take
// overlong forms too.
Pattern PatternClass(const CodePoints& characters) {
  TM_CHECK(!characters.empty(), "a class of no characters");
  std::vector<std::string> classes;
  constexpr CodePointRange kLengths[] = {
      {0, 0x7F}, {0x80, 0x7FF}, {0x800, 0xFFFF}, {0x10000, CodePoints::kMost}};
  for (const CodePointRange& length : kLengths) {
    const CodePoints part = characters.Within({length});
    if (part.empty()) continue;
    std::string& text = classes.emplace_back("[");
    for (const CodePointRange& range : part.ranges()) {
      text += Escaped(range.first);
      if (range.last > range.first) text += '-' + Escaped(range.last);
    }
    text += ']';
  }
  Pattern result;
  result.text = classes[0];
  result.size = characters.count() < kManyCharacters ? 1 : kSizeOfMany;
  result.is_element = true;
  for (size_t i = 1; i < classes.size(); ++i) result.text += '|' + classes[i];
  if (classes.size() > 1) result.text = '(' + result.text + ')';
  return result;
}

Pattern PatternSequence(const std::vector<Pattern>& parts) {
  if (parts.size() == 1) return parts[0];
  Pattern result;
  result.may_be_empty = true;
  int64_t side_by_side = 0;
  for (const Pattern& part : parts) {
    result.text += part.text;
    result.size = Sum(result.size, part.size);
    if (part.text.empty()) continue;
    result.may_be_empty = result.may_be_empty && part.may_be_empty;
    side_by_side = part.may_be_empty ? Sum(side_by_side, part.empty_side_by_side) : 0;
    result.empty_side_by_side = std::max({result.empty_side_by_side, part.empty_side_by_side, side_by_side});
  }
  return result;
}

Pattern PatternChoice(const std::vector<Pattern>& alternatives) {
  TM_CHECK(!alternatives.empty(), "a choice of nothing");
  if (alternatives.size() == 1) return alternatives[0];
  Pattern result;
  result.text = "(";
  result.is_element = true;
  bool may_be_empty = false;
  for (const Pattern& alternative : alternatives) {
    if (alternative.text.empty()) {
      may_be_empty = true;
      continue;
    }
    if (result.size > 0) result.text += '|';
    result.text += alternative.text;
    result.size = Sum(result.size, alternative.size);
    result.may_be_empty = result.may_be_empty || alternative.may_be_empty;
    result.empty_side_by_side = std::max(result.empty_side_by_side, alternative.empty_side_by_side);
  }
  result.text += ')';
  if (result.size == 0) return {};
  return may_be_empty ? PatternOptional(result) : result;
}

Pattern PatternRepeat(const Pattern& part, int64_t least, int64_t most) {
  TM_CHECK(least >= 0 && (most == kUnbounded || most >= least), "{%lld,%lld}", static_cast<long long>(least),
           static_cast<long long>(most));
  if (part.text.empty() || most == 0) return {};
  std::vector<Pattern> parts;
  if (least > 0) parts.push_back(WithCount(part, least, least));
  if (most == kUnbounded) {
    parts.push_back(Counted(part, AsElement(part) + '*', 0, kUnbounded));
  } else if (most == least + 1) {
    parts.push_back(PatternOptional(part));
  } else if (most > least) {
    parts.push_back(WithCount(part, 0, most - least));
  }
  return PatternSequence(parts);
}

Pattern PatternOptional(const Pattern& part) {
  if (part.text.empty()) return part;
  // Not "?": the library makes of (xy*)? an automaton that also takes y. Counts are right.
  return Counted(part, AsElement(part) + "{0,1}", 0, 1);
}

}  // namespace tramontane

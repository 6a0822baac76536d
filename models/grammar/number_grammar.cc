#include "models/grammar/number_grammar.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <vector>

namespace tramontane {
namespace {

constexpr int kBoundedWholeDigits = 9;
constexpr int kBoundedFractionDigits = 6;
constexpr int64_t kMostInteger = 999'999'999'999'999'999;
constexpr int64_t kMostBoundedWhole = 999'999'999;

// ---- digits -------------------------------------------------------------------------------------

Pattern DigitsBetween(char first, char last) {
  return PatternClass({{static_cast<uint32_t>(first), static_cast<uint32_t>(last)}});
}

Pattern AnyDigits(int64_t least, int64_t most) { return PatternRepeat(DigitsBetween('0', '9'), least, most); }

// Strings of as many digits as `least`, from it on; to `most`.
Pattern SameLengthAtLeast(const std::string& least);
Pattern SameLengthAtMost(const std::string& most);

Pattern SameLengthAtLeast(const std::string& least) {
  if (least.empty()) return Pattern{};
  std::vector<Pattern> choices = {
      PatternSequence({PatternLiteral(least.substr(0, 1)), SameLengthAtLeast(least.substr(1))})};
  if (least[0] < '9') {
    const auto rest = static_cast<int64_t>(least.size()) - 1;
    choices.push_back(
        PatternSequence({DigitsBetween(static_cast<char>(least[0] + 1), '9'), AnyDigits(rest, rest)}));
  }
  return PatternChoice(choices);
}

Pattern SameLengthAtMost(const std::string& most) {
  if (most.empty()) return Pattern{};
  std::vector<Pattern> choices = {
      PatternSequence({PatternLiteral(most.substr(0, 1)), SameLengthAtMost(most.substr(1))})};
  if (most[0] > '0') {
    const auto rest = static_cast<int64_t>(most.size()) - 1;
    choices.push_back(
        PatternSequence({DigitsBetween('0', static_cast<char>(most[0] - 1)), AnyDigits(rest, rest)}));
  }
  return PatternChoice(choices);
}

Pattern SameLengthBetween(const std::string& least, const std::string& most) {
  const size_t same =
      static_cast<size_t>(std::mismatch(least.begin(), least.end(), most.begin()).first - least.begin());
  if (same == least.size()) return PatternLiteral(least);
  const std::string low = least.substr(same + 1);
  const std::string high = most.substr(same + 1);
  std::vector<Pattern> choices = {
      PatternSequence({PatternLiteral(least.substr(same, 1)), SameLengthAtLeast(low)}),
      PatternSequence({PatternLiteral(most.substr(same, 1)), SameLengthAtMost(high)})};
  if (least[same] + 1 < most[same]) {
    const auto rest = static_cast<int64_t>(low.size());
    choices.push_back(
        PatternSequence({DigitsBetween(static_cast<char>(least[same] + 1), static_cast<char>(most[same] - 1)),
                         AnyDigits(rest, rest)}));
  }
  return PatternSequence({PatternLiteral(least.substr(0, same)), PatternChoice(choices)});
}

// Whole numbers from `least` to `most`, without leading zeros. REQUIRES: 0 <= least <= most.
Pattern WholeBetween(int64_t least, int64_t most) {
  std::vector<Pattern> choices;
  const std::string low = std::to_string(least);
  const std::string high = std::to_string(most);
  for (size_t length = low.size(); length <= high.size(); ++length) {
    const std::string first = length == low.size() ? low : '1' + std::string(length - 1, '0');
    const std::string last = length == high.size() ? high : std::string(length, '9');
    choices.push_back(SameLengthBetween(first, last));
  }
  return PatternChoice(choices);
}

// ---- decimals -----------------------------------------------------------------------------------

// |x| = whole + 0.fraction; the fraction has no zeros at its end.
struct Decimal {
  bool negative = false;
  int64_t whole = 0;
  std::string fraction;
};

// -1, 0 or 1 as |a| is less than, equal to or more than |b|.
int CompareSizes(const Decimal& a, const Decimal& b) {
  if (a.whole != b.whole) return a.whole < b.whole ? -1 : 1;
  const int order = a.fraction.compare(b.fraction);
  return (order > 0) - (order < 0);
}

Status BoundFault(const std::string& text, const std::string& what) {
  return InvalidArgument("is " + text + "; " + what);
}

// A JSON number, exponent and all, digit by digit.
StatusOr<Decimal> ParseDecimal(const std::string& text) {
  Decimal decimal;
  std::string digits;
  int64_t point = -1;
  int64_t exponent = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '-') {
      decimal.negative = true;
    } else if (c == '.') {
      point = static_cast<int64_t>(digits.size());
    } else if (c == 'e' || c == 'E') {
      exponent = std::strtoll(text.c_str() + i + 1, nullptr, 10);
      break;
    } else if (c >= '0' && c <= '9') {
      digits += c;
    } else {
      return BoundFault(text, "it must be a number");  // NaN, Infinity
    }
  }
  if (point < 0) point = static_cast<int64_t>(digits.size());
  digits.erase(digits.find_last_not_of('0') + 1);
  if (digits.empty()) return Decimal{};
  point += std::clamp<int64_t>(exponent, -1000, 1000);
  if (point < 0) digits.insert(0, static_cast<size_t>(-point), '0');
  point = std::max<int64_t>(point, 0);
  if (static_cast<int64_t>(digits.size()) < point) digits.resize(static_cast<size_t>(point), '0');
  std::string whole = digits.substr(0, static_cast<size_t>(point));
  whole.erase(0, whole.find_first_not_of('0'));
  if (whole.size() > kMaxIntegerDigits) {
    return BoundFault(text, "bounds have at most " + std::to_string(kMaxIntegerDigits) + " digits");
  }
  decimal.whole = whole.empty() ? 0 : std::stoll(whole);
  decimal.fraction = digits.substr(static_cast<size_t>(point));
  return decimal;
}

// A bound on the size of a number, its sign apart.
struct SizeBound {
  Decimal size;
  bool exclusive = false;
};

// Digits behind the point, from where the bound's own digits `rest` go on; `room` digits are left.
Pattern FractionAtLeast(const std::string& rest, bool exclusive, int64_t room) {
  if (rest.empty()) {
    if (!exclusive) return AnyDigits(0, room);
    // More than that: some digit is not 0.
    return PatternSequence({AnyDigits(0, room - 1), DigitsBetween('1', '9')});
  }
  std::vector<Pattern> choices = {PatternSequence(
      {PatternLiteral(rest.substr(0, 1)), FractionAtLeast(rest.substr(1), exclusive, room - 1)})};
  if (rest[0] < '9') {
    choices.push_back(
        PatternSequence({DigitsBetween(static_cast<char>(rest[0] + 1), '9'), AnyDigits(0, room - 1)}));
  }
  return PatternChoice(choices);
}

// The same up to the bound. `rest` has no zeros at its end, so what breaks off earlier is less.
Pattern FractionAtMost(const std::string& rest, bool exclusive, int64_t room) {
  if (rest.empty()) return PatternRepeat(PatternLiteral("0"), 0, room);
  std::vector<Pattern> choices = {Pattern{}};
  const bool is_last = rest.size() == 1;
  if (!(is_last && exclusive)) {
    choices.push_back(PatternSequence(
        {PatternLiteral(rest.substr(0, 1)), FractionAtMost(rest.substr(1), exclusive, room - 1)}));
  }
  if (rest[0] > '0') {
    choices.push_back(
        PatternSequence({DigitsBetween('0', static_cast<char>(rest[0] - 1)), AnyDigits(0, room - 1)}));
  }
  return PatternChoice(choices);
}

Pattern Point(const Pattern& digits) { return PatternSequence({PatternLiteral("."), digits}); }

Pattern AnyFraction() { return PatternOptional(Point(AnyDigits(1, kBoundedFractionDigits))); }

// What may follow the bound's own whole part: ".5", "". Nothing at all when there is nothing.
std::vector<Pattern> FractionsAtLeast(const SizeBound& bound) {
  const std::string& fraction = bound.size.fraction;
  if (fraction.empty() && !bound.exclusive) return {AnyFraction()};
  if (fraction.size() == kBoundedFractionDigits && bound.exclusive &&
      fraction == std::string(kBoundedFractionDigits, '9')) {
    return {};
  }
  // A bound of all six digits has nothing behind it that is more than it: its last digit must rise.
  const bool closed_at_end = bound.exclusive && fraction.size() == kBoundedFractionDigits;
  if (closed_at_end) {
    std::string next = fraction;
    size_t i = next.size();
    while (next[--i] == '9') next[i] = '0';
    ++next[i];
    next.erase(next.find_last_not_of('0') + 1);
    return {Point(FractionAtLeast(next, false, kBoundedFractionDigits))};
  }
  return {Point(FractionAtLeast(fraction, bound.exclusive, kBoundedFractionDigits))};
}

std::vector<Pattern> FractionsAtMost(const SizeBound& bound) {
  const std::string& fraction = bound.size.fraction;
  if (fraction.empty()) {
    if (bound.exclusive) return {};
    return {PatternOptional(Point(PatternRepeat(PatternLiteral("0"), 1, kBoundedFractionDigits)))};
  }
  // "1." is no JSON number, so the first digit is there.
  std::vector<Pattern> choices = {Pattern{}};
  const bool is_last = fraction.size() == 1;
  if (!(is_last && bound.exclusive)) {
    choices.push_back(Point(
        PatternSequence({PatternLiteral(fraction.substr(0, 1)),
                         FractionAtMost(fraction.substr(1), bound.exclusive, kBoundedFractionDigits - 1)})));
  }
  if (fraction[0] > '0') {
    choices.push_back(Point(PatternSequence(
        {DigitsBetween('0', static_cast<char>(fraction[0] - 1)), AnyDigits(0, kBoundedFractionDigits - 1)})));
  }
  return choices;
}

// The whole parts are equal: for each number of digits, one whole number between two.
std::vector<Pattern> FractionsBetween(const SizeBound& least, const SizeBound& most) {
  const auto millionths = [](std::string digits) {
    digits.resize(kBoundedFractionDigits, '0');
    return std::stoll(digits);
  };
  const int64_t low = millionths(least.size.fraction) + (least.exclusive ? 1 : 0);
  const int64_t high = millionths(most.size.fraction) - (most.exclusive ? 1 : 0);
  std::vector<Pattern> choices;
  if (low == 0 && high >= 0) choices.push_back(Pattern{});
  int64_t unit = 1;  // of the last digit, in millionths
  for (size_t digits = kBoundedFractionDigits; digits > 0; --digits, unit *= 10) {
    const int64_t first = (low + unit - 1) / unit;
    const int64_t last = high / unit;
    if (high < 0 || first > last) continue;
    const auto padded = [digits](int64_t value) {
      const std::string text = std::to_string(value);
      return std::string(digits - text.size(), '0') + text;
    };
    choices.push_back(Point(SameLengthBetween(padded(first), padded(last))));
  }
  return choices;
}

// Numbers without a sign whose size is within the bounds; empty when none is.
std::vector<Pattern> SizesBetween(const SizeBound& least, const SizeBound& most) {
  if (CompareSizes(least.size, most.size) > 0) return {};
  std::vector<Pattern> choices;
  const auto add = [&choices](const Pattern& whole, const std::vector<Pattern>& fractions) {
    if (!fractions.empty()) choices.push_back(PatternSequence({whole, PatternChoice(fractions)}));
  };
  const Pattern low = PatternLiteral(std::to_string(least.size.whole));
  const Pattern high = PatternLiteral(std::to_string(most.size.whole));
  if (least.size.whole == most.size.whole) {
    add(low, FractionsBetween(least, most));
    return choices;
  }
  add(low, FractionsAtLeast(least));
  add(high, FractionsAtMost(most));
  if (least.size.whole + 1 <= most.size.whole - 1) {
    add(WholeBetween(least.size.whole + 1, most.size.whole - 1), {AnyFraction()});
  }
  return choices;
}

StatusOr<std::optional<SizeBound>> ParseBound(const std::optional<NumberBound>& bound) {
  if (!bound) return std::optional<SizeBound>();
  TM_ASSIGN_OR_RETURN(const Decimal decimal, ParseDecimal(bound->text));
  if (decimal.whole > kMostBoundedWhole || decimal.fraction.size() > kBoundedFractionDigits) {
    return BoundFault(bound->text, "bounds of numbers have at most " + std::to_string(kBoundedWholeDigits) +
                                       " digits before the point and " +
                                       std::to_string(kBoundedFractionDigits) + " behind it");
  }
  return std::optional<SizeBound>({decimal, bound->exclusive});
}

Status NothingBetween() { return InvalidArgument("leaves no number between the bounds"); }

Pattern Minus(const Pattern& size) { return PatternSequence({PatternLiteral("-"), size}); }

// The least whole number that the bound allows.
int64_t Ceiling(const SizeBound& bound) {
  const Decimal& size = bound.size;
  const bool is_whole = size.fraction.empty();
  if (size.negative) return -size.whole + (is_whole && bound.exclusive ? 1 : 0);
  return size.whole + (!is_whole || bound.exclusive ? 1 : 0);
}

int64_t Floor(const SizeBound& bound) {
  SizeBound mirrored = bound;
  mirrored.size.negative = !mirrored.size.negative;
  return -Ceiling(mirrored);
}

}  // namespace

StatusOr<Pattern> IntegerGrammar(const std::optional<NumberBound>& least,
                                 const std::optional<NumberBound>& most) {
  if (!least && !most) {
    return PatternSequence(
        {PatternOptional(PatternLiteral("-")),
         PatternChoice({PatternLiteral("0"),
                        PatternSequence({DigitsBetween('1', '9'), AnyDigits(0, kMaxIntegerDigits - 1)})})});
  }
  int64_t low = -kMostInteger;
  int64_t high = kMostInteger;
  if (least) {
    TM_ASSIGN_OR_RETURN(const Decimal decimal, ParseDecimal(least->text));
    low = Ceiling({decimal, least->exclusive});
  }
  if (most) {
    TM_ASSIGN_OR_RETURN(const Decimal decimal, ParseDecimal(most->text));
    high = Floor({decimal, most->exclusive});
  }
  if (low > high) return NothingBetween();
  std::vector<Pattern> choices;
  if (high >= 0) choices.push_back(WholeBetween(std::max<int64_t>(low, 0), high));
  if (low < 0) choices.push_back(Minus(WholeBetween(std::max<int64_t>(1, -high), -low)));
  return PatternChoice(choices);
}

StatusOr<Pattern> NumberGrammar(const std::optional<NumberBound>& least,
                                const std::optional<NumberBound>& most) {
  if (!least && !most) {
    TM_ASSIGN_OR_RETURN(const Pattern integer, IntegerGrammar(std::nullopt, std::nullopt));
    const Pattern fraction = Point(AnyDigits(1, 17));
    const Pattern exponent =
        PatternSequence({PatternClass({{'E', 'E'}, {'e', 'e'}}),
                         PatternOptional(PatternClass({{'+', '+'}, {'-', '-'}})), AnyDigits(1, 2)});
    return PatternSequence({integer, PatternOptional(fraction), PatternOptional(exponent)});
  }
  TM_ASSIGN_OR_RETURN(const std::optional<SizeBound> low, ParseBound(least));
  TM_ASSIGN_OR_RETURN(const std::optional<SizeBound> high, ParseBound(most));
  const SizeBound zero;
  const SizeBound above_zero{{}, true};
  const SizeBound largest{{false, kMostBoundedWhole, ""}, false};

  std::vector<Pattern> choices;
  const bool high_is_negative = high && high->size.negative;
  if (!high_is_negative) {
    const bool from_low = low && !low->size.negative;
    choices = SizesBetween(from_low ? *low : zero, high.value_or(largest));
  }
  const bool low_is_negative = !low || low->size.negative;
  if (low_is_negative) {
    for (const Pattern& size : SizesBetween(high_is_negative ? *high : above_zero, low.value_or(largest))) {
      choices.push_back(Minus(size));
    }
  }
  if (choices.empty()) return NothingBetween();
  return PatternChoice(choices);
}

}  // namespace tramontane

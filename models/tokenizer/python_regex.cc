#include "models/tokenizer/python_regex.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/core/utf8.h"

namespace tramontane {
namespace {

constexpr int kMaxNesting = 200;  // groups in groups; Python gives up a little later
constexpr uint64_t kMaxRepeat = 0xFFFFFFFF;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsOctal(char c) { return c >= '0' && c <= '7'; }
bool IsHex(char c) { return IsDigit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }
bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool IsOneOf(char c, std::string_view set) { return set.find(c) != std::string_view::npos; }

bool IsIdentifier(std::string_view name) {
  const auto fits = [](char c) {
    return IsLetter(c) || IsDigit(c) || c == '_' || static_cast<uint8_t>(c) >= 0x80;
  };
  return !name.empty() && !IsDigit(name[0]) && std::all_of(name.begin(), name.end(), fits);
}

// How many characters an expression can match. A lookbehind wants one number.
struct Width {
  uint64_t min = 0;
  uint64_t max = 0;
};

Width Plus(Width a, Width b) {
  return {std::min(a.min + b.min, kMaxRepeat), std::min(a.max + b.max, kMaxRepeat)};
}
Width Times(Width a, uint64_t min, uint64_t max) {
  return {std::min(a.min * min, kMaxRepeat), std::min(a.max * max, kMaxRepeat)};
}
Width Either(Width a, Width b) { return {std::min(a.min, b.min), std::max(a.max, b.max)}; }

// What a sequence is made of.
struct Item {
  enum class Kind {
    kNothing,  // a comment or a flag; also: no item yet
    kAnchor,   // cannot be repeated
    kAtom,
    kRepeated,  // cannot be repeated again
  };
  Kind kind = Kind::kNothing;
  Width width = {};
};

// Recursive descent. Each function takes what it names, and returns nothing if Python would refuse it.
class Checker {
 public:
  explicit Checker(std::string_view pattern) : pattern_(pattern) {}

  bool Whole();

 private:
  struct Group {
    bool open = true;
    Width width = {};
  };
  struct Counts {
    uint64_t min = 0;
    uint64_t max = kMaxRepeat;
  };

  std::optional<Width> Alternatives(int depth);
  std::optional<Width> Sequence(int depth, bool may_start_with_flags);
  std::optional<Item> NextItem(int depth, bool may_set_flags);
  std::optional<Item> Escape();
  std::optional<Item> Digits();
  std::optional<Item> Reference(size_t group) const;
  std::optional<Item> Set();
  // A member of a set: its code point, or kClass for one such as \d.
  std::optional<int64_t> SetMember();
  // A character that is escaped in the same way inside and outside of sets.
  std::optional<int64_t> EscapedCharacter(char letter);
  std::optional<Item> Parenthesis(int depth, bool may_set_flags);
  std::optional<Item> Capture(int depth, const std::string& name);
  std::optional<Item> Closed(std::optional<Width> width);
  std::optional<Item> Lookaround(int depth, bool behind);
  std::optional<Item> Conditional(int depth);
  std::optional<Item> Flags(int depth, bool may_set_flags);
  // The {m,n} after a brace that was taken; nothing if the brace is a literal. Sets `sound` if the numbers
  // are not.
  std::optional<Counts> Braces(bool* sound);
  std::optional<std::string> Until(char end);
  std::optional<int64_t> HexDigits(int count);
  int64_t CodePoint();

  bool AtEnd() const { return at_ == pattern_.size(); }
  char Peek() const { return AtEnd() ? '\0' : pattern_[at_]; }
  bool Take(char c) {
    if (AtEnd() || pattern_[at_] != c) return false;
    ++at_;
    return true;
  }

  static constexpr int64_t kClass = -1;

  std::string_view pattern_;
  size_t at_ = 0;
  std::vector<Group> groups_;  // group n is groups_[n - 1]
  std::unordered_map<std::string, size_t> group_names_;
  std::vector<uint64_t> conditions_;  // groups that conditionals ask for, to be there in the end
  bool on_trust_ = false;             // an inline flag x was met
};

bool Checker::Whole() {
  const bool is_sound = Alternatives(0).has_value() && AtEnd();
  const auto exists = [this](uint64_t group) { return group <= groups_.size(); };
  return on_trust_ || (is_sound && std::all_of(conditions_.begin(), conditions_.end(), exists));
}

std::optional<Width> Checker::Alternatives(int depth) {
  if (depth > kMaxNesting) return std::nullopt;
  std::optional<Width> width = Sequence(depth, depth == 0);
  while (width && Take('|')) {
    const std::optional<Width> other = Sequence(depth, false);
    if (!other) return std::nullopt;
    width = Either(*width, *other);
  }
  return width;
}

std::optional<Width> Checker::Sequence(int depth, bool may_start_with_flags) {
  Width before;  // of everything before `last`
  Item last;     // what a quantifier would apply to
  while (!AtEnd() && !IsOneOf(Peek(), "|)")) {
    std::optional<Counts> counts;
    const size_t start = at_;
    if (Take('*')) {
      counts = Counts{0, kMaxRepeat};
    } else if (Take('+')) {
      counts = Counts{1, kMaxRepeat};
    } else if (Take('?')) {
      counts = Counts{0, 1};
    } else if (Take('{')) {
      bool sound = true;
      counts = Braces(&sound);
      if (!sound) return std::nullopt;
    }
    if (counts) {
      if (last.kind != Item::Kind::kAtom) return std::nullopt;
      if (!Take('?')) Take('+');
      last = {Item::Kind::kRepeated, Times(last.width, counts->min, counts->max)};
      continue;
    }
    at_ = start;
    const bool is_first = last.kind == Item::Kind::kNothing;
    const std::optional<Item> item = NextItem(depth, may_start_with_flags && is_first);
    if (!item) return std::nullopt;
    if (item->kind == Item::Kind::kNothing) continue;
    before = Plus(before, last.width);
    last = *item;
  }
  return Plus(before, last.width);
}

std::optional<Item> Checker::NextItem(int depth, bool may_set_flags) {
  if (Take('(')) return Parenthesis(depth, may_set_flags);
  if (Take('[')) return Set();
  if (Take('\\')) return Escape();
  if (Take('^') || Take('$')) return Item{Item::Kind::kAnchor};
  CodePoint();
  return Item{Item::Kind::kAtom, {1, 1}};
}

std::optional<Item> Checker::Escape() {
  if (AtEnd()) return std::nullopt;
  const char letter = Peek();
  if (IsDigit(letter)) return Digits();
  if (IsOneOf(letter, "AbBZ")) {
    ++at_;
    return Item{Item::Kind::kAnchor};
  }
  if (IsOneOf(letter, "dDsSwW")) {
    ++at_;
  } else if (!EscapedCharacter(letter)) {
    return std::nullopt;
  }
  return Item{Item::Kind::kAtom, {1, 1}};
}

// An octal escape if it starts with 0 or has three octal digits, else the number of a group.
std::optional<Item> Checker::Digits() {
  const std::string_view rest = pattern_.substr(at_);
  const auto is_octal_at = [&](size_t i) { return i < rest.size() && IsOctal(rest[i]); };
  const Item character = {Item::Kind::kAtom, {1, 1}};
  if (rest[0] == '0') {
    at_ += 1 + (is_octal_at(1) ? 1 : 0) + (is_octal_at(1) && is_octal_at(2) ? 1 : 0);
    return character;
  }
  if (is_octal_at(0) && is_octal_at(1) && is_octal_at(2)) {
    at_ += 3;
    return rest[0] <= '3' ? std::optional(character) : std::nullopt;
  }
  size_t group = static_cast<size_t>(rest[0] - '0');
  ++at_;
  if (!AtEnd() && IsDigit(Peek())) {
    group = group * 10 + static_cast<size_t>(Peek() - '0');
    ++at_;
  }
  return Reference(group);
}

std::optional<Item> Checker::Reference(size_t group) const {
  if (group == 0 || group > groups_.size() || groups_[group - 1].open) return std::nullopt;
  return Item{Item::Kind::kAtom, groups_[group - 1].width};
}

std::optional<Item> Checker::Set() {
  Take('^');
  for (bool is_first = true; is_first || !Take(']'); is_first = false) {
    const std::optional<int64_t> low = SetMember();
    if (!low) return std::nullopt;
    if (!Take('-')) continue;
    if (Take(']')) break;
    const std::optional<int64_t> high = SetMember();
    if (!high || *low == kClass || *high == kClass || *high < *low) return std::nullopt;
  }
  return Item{Item::Kind::kAtom, {1, 1}};
}

std::optional<int64_t> Checker::SetMember() {
  if (AtEnd()) return std::nullopt;
  if (!Take('\\')) return CodePoint();
  if (AtEnd()) return std::nullopt;
  const char letter = Peek();
  if (IsOneOf(letter, "dDsSwW")) {
    ++at_;
    return kClass;
  }
  if (Take('b')) return '\b';
  if (!IsDigit(letter)) return EscapedCharacter(letter);
  int64_t value = 0;
  int digits = 0;
  while (digits < 3 && IsOctal(Peek())) {
    value = value * 8 + (Peek() - '0');
    ++at_;
    ++digits;
  }
  return digits > 0 && value <= 0377 ? std::optional(value) : std::nullopt;
}

std::optional<int64_t> Checker::EscapedCharacter(char letter) {
  if (!IsLetter(letter)) return CodePoint();
  ++at_;
  switch (letter) {
    case 'x':
      return HexDigits(2);
    case 'u':
      return HexDigits(4);
    case 'U': {
      const std::optional<int64_t> value = HexDigits(8);
      return value && *value < 0x110000 ? value : std::nullopt;
    }
    case 'N':
      return Take('{') && Until('}') ? std::optional<int64_t>(0) : std::nullopt;
    default: {
      static constexpr std::string_view kLetters = "afnrtv";
      static constexpr std::string_view kMeanings = "\a\f\n\r\t\v";
      const size_t index = kLetters.find(letter);
      return index < kLetters.size() ? std::optional<int64_t>(kMeanings[index]) : std::nullopt;
    }
  }
}

// After "(".
std::optional<Item> Checker::Parenthesis(int depth, bool may_set_flags) {
  if (!Take('?')) return Capture(depth, "");
  if (Take(':') || Take('>')) return Closed(Alternatives(depth + 1));
  if (Take('=') || Take('!')) return Lookaround(depth, false);
  if (Take('<')) return Take('=') || Take('!') ? Lookaround(depth, true) : std::nullopt;
  if (Take('(')) return Conditional(depth);
  if (Take('#')) {
    const size_t end = pattern_.find(')', at_);
    if (end == std::string_view::npos) return std::nullopt;
    at_ = end + 1;
    return Item{};
  }
  if (!Take('P')) return Flags(depth, may_set_flags);
  const bool defines = Take('<');
  if (!defines && !Take('=')) return std::nullopt;
  const std::optional<std::string> name = Until(defines ? '>' : ')');
  if (!name || !IsIdentifier(*name)) return std::nullopt;
  if (defines) return Capture(depth, *name);
  const auto known = group_names_.find(*name);
  return known != group_names_.end() ? Reference(known->second) : std::nullopt;
}

std::optional<Item> Checker::Capture(int depth, const std::string& name) {
  groups_.emplace_back();
  const size_t group = groups_.size();
  if (!name.empty() && !group_names_.emplace(name, group).second) return std::nullopt;
  const std::optional<Item> item = Closed(Alternatives(depth + 1));
  if (item) groups_[group - 1] = {false, item->width};
  return item;
}

std::optional<Item> Checker::Closed(std::optional<Width> width) {
  if (!width || !Take(')')) return std::nullopt;
  return Item{Item::Kind::kAtom, *width};
}

std::optional<Item> Checker::Lookaround(int depth, bool behind) {
  const std::optional<Item> inside = Closed(Alternatives(depth + 1));
  if (!inside || (behind && inside->width.min != inside->width.max)) return std::nullopt;
  return Item{Item::Kind::kAtom};
}

// (?(group)yes|no)
std::optional<Item> Checker::Conditional(int depth) {
  const std::optional<std::string> group = Until(')');
  if (!group || depth == kMaxNesting) return std::nullopt;
  if (IsIdentifier(*group)) {
    if (!group_names_.contains(*group)) return std::nullopt;
  } else {
    const bool is_number = group->size() <= 9 && std::all_of(group->begin(), group->end(), IsDigit);
    const uint64_t number = is_number ? std::stoul(*group) : 0;
    if (number == 0) return std::nullopt;
    conditions_.push_back(number);
  }
  std::optional<Width> width = Sequence(depth + 1, false);
  if (!width) return std::nullopt;
  Width otherwise;
  if (Take('|')) {
    const std::optional<Width> no = Sequence(depth + 1, false);
    if (!no) return std::nullopt;
    otherwise = *no;
  }
  return Closed(Either(*width, otherwise));
}

// (?i) for the whole expression, at its start; (?i-s:...) for a group.
std::optional<Item> Checker::Flags(int depth, bool may_set_flags) {
  std::string_view on = pattern_.substr(at_);
  on = on.substr(0, std::min(on.find_first_not_of("aimsux"), on.size()));
  at_ += on.size();
  const auto has = [&](char flag) { return on.find(flag) != std::string_view::npos; };
  if (has('a') && has('u')) return std::nullopt;
  if (Take(')')) {
    if (!may_set_flags || on.empty()) return std::nullopt;
    on_trust_ = on_trust_ || has('x');
    return Item{};
  }
  if (Take('-')) {
    std::string_view off = pattern_.substr(at_);
    off = off.substr(0, std::min(off.find_first_not_of("imsx"), off.size()));
    at_ += off.size();
    if (off.empty() || off.find_first_of(on) != std::string_view::npos) return std::nullopt;
  } else if (on.empty()) {
    return std::nullopt;
  }
  if (!Take(':')) return std::nullopt;
  on_trust_ = on_trust_ || has('x');
  return Closed(Alternatives(depth + 1));
}

std::optional<Checker::Counts> Checker::Braces(bool* sound) {
  const auto take_digits = [this] {
    const size_t start = at_;
    while (IsDigit(Peek())) ++at_;
    return pattern_.substr(start, at_ - start);
  };
  if (Peek() == '}') return std::nullopt;
  const std::string_view low = take_digits();
  const std::string_view high = Take(',') ? take_digits() : low;
  if (!Take('}')) return std::nullopt;
  const auto number = [](std::string_view digits, uint64_t if_empty) {
    uint64_t value = digits.empty() ? if_empty : 0;
    for (const char digit : digits)
      value = std::min(value * 10 + static_cast<uint64_t>(digit - '0'), kMaxRepeat);
    return value;
  };
  const Counts counts = {number(low, 0), number(high, kMaxRepeat)};
  const bool too_large =
      (!low.empty() && counts.min == kMaxRepeat) || (!high.empty() && counts.max == kMaxRepeat);
  *sound = !too_large && counts.min <= counts.max;
  return counts;
}

// The text up to `end`, which is taken too. Nothing if it is empty or does not end.
std::optional<std::string> Checker::Until(char end) {
  const size_t found = pattern_.find(end, at_);
  if (found == std::string_view::npos || found == at_) return std::nullopt;
  std::string text(pattern_.substr(at_, found - at_));
  at_ = found + 1;
  return text;
}

std::optional<int64_t> Checker::HexDigits(int count) {
  int64_t value = 0;
  for (; count > 0; --count) {
    const char c = Peek();
    if (!IsHex(c)) return std::nullopt;
    value = value * 16 + (IsDigit(c) ? c - '0' : (c | 0x20) - 'a' + 10);
    ++at_;
  }
  return value;
}

// REQUIRES: not at the end.
int64_t Checker::CodePoint() {
  const std::string_view rest = pattern_.substr(at_);
  const size_t bytes = NextUtf8(rest).bytes;
  at_ += bytes;
  int64_t value =
      bytes == 1 ? static_cast<uint8_t>(rest[0]) : static_cast<uint8_t>(rest[0]) & (0x7F >> bytes);
  for (size_t i = 1; i < bytes; ++i) value = value << 6 | (rest[i] & 0x3F);
  return value;
}

}  // namespace

bool IsPythonRegex(std::string_view pattern) { return Checker(pattern).Whole(); }

}  // namespace tramontane

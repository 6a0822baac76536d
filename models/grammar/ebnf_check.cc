#include "models/grammar/ebnf_check.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/core/utf8.h"
#include "models/grammar/pattern.h"

namespace tramontane {
namespace {

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool IsNameStart(char c) {
  return c == '_' || c == '-' || c == '.' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// Reads a grammar element by element and counts symbols: a bracket's are those inside, a repetition's those
// of what it repeats, times its count.
class EbnfScanner {
 public:
  EbnfScanner(std::string_view grammar, const ConstraintLimits& limits)
      : grammar_(grammar), limits_(limits), open_(1) {}

  Status Scan() {
    while (true) {
      SkipSpace();
      if (at_ == grammar_.size()) break;
      TM_RETURN_IF_ERROR(ScanElement());
      if (Total() > limits_.max_size) {
        return InvalidArgument("comes to more than " + std::to_string(limits_.max_size) +
                               " symbols, repetitions written out");
      }
    }
    return {};
  }

 private:
  // A bracket that is open: what is in it so far, and the element that a repetition would repeat.
  struct Level {
    int64_t size = 0;
    int64_t last = 0;
  };

  Status ScanElement();
  Status ScanQuoted();
  Status ScanClass();
  Status ScanRepetition();
  Status ScanName();

  void Add(int64_t size) {
    Level& level = open_.back();
    level.size = std::min(kMostGrammarSize, level.size + size);
    level.last = size;
  }
  void RepeatLast(int64_t times) {
    Level& level = open_.back();
    const int64_t more = level.last * std::max<int64_t>(0, times - 1);
    level.size = std::min(kMostGrammarSize, level.size + more);
    level.last = std::min(kMostGrammarSize, level.last + more);
  }
  int64_t Total() const {
    int64_t total = 0;
    for (const Level& level : open_) total = std::min(kMostGrammarSize, total + level.size);
    return total;
  }

  void SkipSpace() {
    while (at_ < grammar_.size()) {
      if (grammar_[at_] == '#') {
        while (at_ < grammar_.size() && grammar_[at_] != '\n' && grammar_[at_] != '\r') ++at_;
      } else if (IsSpace(grammar_[at_])) {
        ++at_;
      } else {
        return;
      }
    }
  }
  char Peek(size_t ahead = 0) const { return at_ + ahead < grammar_.size() ? grammar_[at_ + ahead] : '\0'; }
  Status Fault(const std::string& what) const {
    return InvalidArgument("at byte " + std::to_string(at_) + ": " + what);
  }

  const std::string_view grammar_;
  const ConstraintLimits& limits_;
  std::vector<Level> open_;
  size_t at_ = 0;
};

Status EbnfScanner::ScanElement() {
  switch (Peek()) {
    case '"':
      return ScanQuoted();
    case '[':
      return ScanClass();
    case '{':
      return ScanRepetition();
    case '(':
      if (Peek(1) == '=') return Fault("a lookahead, (=, is not supported");
      if (open_.size() > static_cast<size_t>(limits_.max_depth)) {
        return Fault("more than " + std::to_string(limits_.max_depth) + " brackets inside each other");
      }
      open_.emplace_back();
      ++at_;
      return {};
    case ')': {
      if (open_.size() == 1) return Fault("a ) without its (");
      const int64_t inside = open_.back().size;
      open_.pop_back();
      Add(inside);
      ++at_;
      return {};
    }
    case '+':
    case '*':
    case '?':
    case '|':
    case ':':
    case '=':
      ++at_;
      return {};
    default:
      if (IsNameStart(Peek())) return ScanName();
      return Fault("\"" + Excerpt(grammar_.substr(at_, NextUtf8(grammar_.substr(at_)).bytes)) +
                   "\" begins no element");
  }
}

Status EbnfScanner::ScanQuoted() {
  size_t end = at_ + 1;
  while (end < grammar_.size() && grammar_[end] != '"' && grammar_[end] != '\n') {
    end += grammar_[end] == '\\' ? 2 : 1;
  }
  if (end >= grammar_.size() || grammar_[end] != '"') return Fault("a quote that is not closed on its line");
  Add(static_cast<int64_t>(end - at_ - 1));
  at_ = end + 1;
  return {};
}

Status EbnfScanner::ScanClass() {
  size_t end = at_ + 1;
  while (end < grammar_.size() && grammar_[end] != ']' && grammar_[end] != '\n') {
    end += grammar_[end] == '\\' ? 2 : 1;
  }
  if (end >= grammar_.size() || grammar_[end] != ']') return Fault("a [ that is not closed on its line");
  Add(1);
  at_ = end + 1;
  return {};
}

Status EbnfScanner::ScanRepetition() {
  const size_t close = grammar_.find('}', at_);
  if (close == std::string_view::npos) return Fault("a { without its }");
  std::string counts;
  for (const char c : grammar_.substr(at_ + 1, close - at_ - 1)) {
    if (!IsSpace(c)) counts += c;
  }
  const size_t comma = counts.find(',');
  const std::string least = counts.substr(0, comma);
  const std::string most_digits = comma == std::string::npos ? "" : counts.substr(comma + 1);
  if ((least + most_digits).find_first_not_of("0123456789") != std::string::npos) {
    return Fault("braces hold {m}, {m,} or {m,n}");
  }
  if (least.empty()) return Fault("braces hold {m}, {m,} or {m,n}; up to n is {0,n}");
  int64_t most = 0;
  for (const std::string& digits : {least, most_digits}) {
    int64_t count = 0;
    for (const char c : digits) count = std::min<int64_t>(INT32_MAX, count * 10 + (c - '0'));
    most = std::max(most, count);
  }
  if (most > limits_.max_repeats) {
    return Fault("a repetition of more than " + std::to_string(limits_.max_repeats));
  }
  RepeatLast(most);
  at_ = close + 1;
  return {};
}

// A rule's name, in its definition or used. A name with brackets behind it is more than EBNF has: Token(...)
// and its like, or attributes of a rule, name[...] ::=.
Status EbnfScanner::ScanName() {
  const size_t start = at_;
  while (IsNameStart(Peek()) || IsDigit(Peek())) ++at_;
  const std::string_view name = grammar_.substr(start, at_ - start);
  constexpr std::string_view kMacros[] = {"TagDispatch",      "Token", "ExcludeToken",
                                          "TokenTagDispatch", "Regex", "Substring"};
  if (std::find(std::begin(kMacros), std::end(kMacros), name) != std::end(kMacros)) {
    at_ = start;
    return Fault("the macro " + std::string(name) + " is not supported; a rule cannot have its name");
  }
  if (Peek() == '[') {
    const size_t close = grammar_.find(']', at_);
    size_t after = close == std::string_view::npos ? grammar_.size() : close + 1;
    while (after < grammar_.size() && (grammar_[after] == ' ' || grammar_[after] == '\t')) ++after;
    if (grammar_.substr(after).starts_with("::=")) return Fault("attributes of a rule are not supported");
  }
  Add(1);
  return {};
}

}  // namespace

Status CheckEbnf(std::string_view grammar, const ConstraintLimits& limits) {
  if (grammar.find('\0') != std::string_view::npos) return InvalidArgument("holds a null character");
  return EbnfScanner(grammar, limits).Scan();
}

}  // namespace tramontane

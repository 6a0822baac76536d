#include "models/grammar/ebnf.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "kernels/core/check.h"

namespace tramontane {
namespace {

// A quantifier takes one element: what has one already, takes brackets.
std::string Element(const std::string& text) {
  const bool quantified = text.find_last_of("*+?}") == text.size() - 1;
  return quantified ? '(' + text + ')' : text;
}

Ebnf Joined(const std::vector<Ebnf>& parts, const char* between) {
  Ebnf result{"(", 0};
  for (const Ebnf& part : parts) {
    if (result.text.size() > 1) result.text += between;
    result.text += part.text;
    result.size = std::min(kMostGrammarSize, result.size + part.size);
    result.pattern_size = std::min(kMostGrammarSize, result.pattern_size + part.pattern_size);
  }
  result.text += ')';
  return result;
}

}  // namespace

Ebnf EbnfEmpty() { return {"\"\"", 1}; }

Ebnf EbnfLiteral(std::string_view utf8) {
  Ebnf result{"\"", 0};
  for (const uint32_t code_point : CodePointsOf(utf8)) {
    char text[16];  // eight digits, so that nothing behind them is taken for one
    std::snprintf(text, sizeof text, "\\U%08X", code_point);
    result.text += text;
    ++result.size;
  }
  result.text += '"';
  return result;
}

Ebnf EbnfPattern(const Pattern& pattern) {
  if (pattern.text.empty()) return EbnfEmpty();
  Ebnf result{"Regex(\"", (pattern.size + kPatternSymbols - 1) / kPatternSymbols};
  if (result.size > 1) result.pattern_size = result.size;
  for (const char c : pattern.text) {
    if (c == '\\') result.text += '\\';
    result.text += c;
  }
  // The empty group gives the automaton one state to end in. With several, the library merges the wrong ones:
  // of a{0,4}|a|b it would take any number of a.
  result.text += "()\")";
  return result;
}

Ebnf EbnfName(std::string name) { return {std::move(name), 1}; }

Ebnf EbnfSequence(const std::vector<Ebnf>& parts) {
  if (parts.empty()) return EbnfEmpty();
  return parts.size() == 1 ? parts[0] : Joined(parts, " ");
}

Ebnf EbnfChoice(const std::vector<Ebnf>& alternatives) {
  TM_CHECK(!alternatives.empty(), "a choice of nothing");
  return alternatives.size() == 1 ? alternatives[0] : Joined(alternatives, " | ");
}

Ebnf EbnfOptional(const Ebnf& part) { return {Element(part.text) + '?', part.size, part.pattern_size}; }

Ebnf EbnfAnyNumber(const Ebnf& part) { return {Element(part.text) + '*', part.size, part.pattern_size}; }

std::string EbnfRule(std::string_view name, const Ebnf& body) {
  return std::string(name) + " ::= " + body.text + "\n";
}

}  // namespace tramontane

// Ebnf: a piece of a grammar in the notation of the library behind grammar_backend.h: patterns, names of
// rules, and what is made of those.
//
// Any thread. Plain values. Always: `text` is one element: a pattern, a literal, a name, or brackets.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/grammar/pattern.h"

namespace tramontane {

struct Ebnf {
  std::string text;
  int64_t size = 0;          // as Pattern::size
  int64_t pattern_size = 0;  // of it, that of patterns; those of one symbol do not count
};

Ebnf EbnfEmpty();
Ebnf EbnfLiteral(std::string_view utf8);  // REQUIRES: UTF-8
Ebnf EbnfPattern(const Pattern& pattern);
Ebnf EbnfName(std::string name);
Ebnf EbnfSequence(const std::vector<Ebnf>& parts);
Ebnf EbnfChoice(const std::vector<Ebnf>& alternatives);  // REQUIRES: at least one
Ebnf EbnfOptional(const Ebnf& part);
Ebnf EbnfAnyNumber(const Ebnf& part);  // none, one or more. (Other counts: a rule for each that is left.)

// "name ::= body" and a line end.
std::string EbnfRule(std::string_view name, const Ebnf& body);

}  // namespace tramontane

// The whole of xgrammar that a grammar in EBNF needs, as one source: a third of what its files cost one by
// one. Compiled by get.sh, with the folder of its sources first among the includes.
#include "compiled_grammar.cc"
#include "config.cc"
#include "earley_parser.cc"
#include "fsm.cc"
#include "fsm_builder.cc"
#include "grammar.cc"
#include "grammar_builder.cc"
#include "grammar_compiler.cc"
#include "grammar_functor.cc"
#include "grammar_matcher.cc"
#include "grammar_parser.cc"
#include "grammar_printer.cc"
#include "suffix_automata.cc"
#include "support/logging.cc"
#include "support/recursion_guard.cc"
#include "tokenizer_info.cc"

// What else its grammar.cc can turn into a grammar, and a printer of tokens for its debug output. We write
// EBNF ourselves and call none of them.
namespace xgrammar {
namespace {
[[noreturn]] void LeftOut() { throw std::logic_error("left out of this build of xgrammar"); }
}  // namespace

Grammar JSONSchemaToGrammar(const std::string&, bool, std::optional<int>,
                            std::optional<std::pair<std::string, std::string>>, bool, std::optional<int>,
                            bool, JSONFormat, std::vector<std::string>) {
  LeftOut();
}
Grammar LarkToGrammar(const std::string&, const std::optional<TokenizerInfo>&,
                      const std::vector<NamedGrammar>&) {
  LeftOut();
}
std::string RegexToEBNF(const std::string&, bool) { LeftOut(); }
Result<Grammar, StructuralTagError> StructuralTagToGrammar(const std::string&,
                                                           const std::optional<TokenizerInfo>&) {
  LeftOut();
}
std::string PrintTokenByIds(const std::vector<int32_t>&, const TokenizerInfo&, int) { LeftOut(); }

}  // namespace xgrammar

// Writes what random constraints gave, for grammar_oracle.py to judge: one JSON object a line, with the
// schema or the expression, and the text of a walk through its grammar that ended. A quarter are formats
// alone, walked over few characters, where readers of formats differ most: "0.0-0". Usage:
// write_grammar_samples COUNT SEED
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "models/grammar/constraint_compiler.h"
#include "models/tokenizer/load.h"
#include "tests/support/random_constraints.h"

namespace tramontane {
namespace {

constexpr size_t kMostTokens = 200;

// Tokens of one character, four of those that formats are made of.
std::vector<int32_t> FewTokens(const Tokenizer& tokenizer, std::mt19937& random) {
  constexpr std::string_view kCharacters = "aexnZ0129-._/@:#";
  std::vector<int32_t> few;
  for (int n = 0; n < 4; ++n) {
    const std::vector<int32_t> ids =
        tokenizer.Encode(std::string(1, kCharacters[random() % kCharacters.size()])).value();
    few.push_back(ids.back());
  }
  return few;
}

// The ids of an output that ended; empty when it did not in time. Mostly of `few` where those may come.
std::vector<int32_t> Walk(const Grammar& grammar, const Tokenizer& tokenizer, const std::vector<int32_t>& few,
                          std::mt19937& random, bool* ended) {
  const auto matcher = grammar.NewMatcher(TextStart::kOfMessage);
  std::vector<uint32_t> mask(MaskWords(tokenizer.vocab_size()));
  std::vector<int32_t> ids;
  for (*ended = false; ids.size() < kMostTokens;) {
    matcher->FillMask(mask);
    std::vector<int32_t> allowed;
    for (int32_t t = 0; t < tokenizer.vocab_size(); ++t) {
      if (MaskAllows(mask, t)) allowed.push_back(t);
    }
    *ended = MaskAllows(mask, tokenizer.eos_id()) && (allowed.size() == 1 || random() % 4 == 0);
    if (*ended || allowed.empty()) return ids;
    std::vector<int32_t> preferred;
    for (const int32_t t : few) {
      if (MaskAllows(mask, t)) preferred.push_back(t);
    }
    const std::vector<int32_t>& from = preferred.empty() || random() % 10 == 0 ? allowed : preferred;
    const int32_t token = from[random() % from.size()];
    if (token == tokenizer.eos_id()) continue;
    if (!matcher->Accept(token)) return ids;
    ids.push_back(token);
  }
  return ids;
}

int Main(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  const auto tokenizer = LoadTokenizer(std::string(TRAMONTANE_SOURCE_DIR) + "/models/breeze/weights").value();
  const auto compiler =
      ConstraintCompiler::Create(*tokenizer, tokenizer->vocab_size(), {tokenizer->eos_id()}, {});
  if (compiler == nullptr) {
    std::fprintf(stderr, "this build has no structured output\n");
    return 1;
  }
  for (int64_t written = 0; written < count;) {
    ConstraintSpec spec;
    const bool format = random() % 4 == 0;
    const bool schema = format || random() % 2 == 0;
    spec.kind = schema ? ConstraintSpec::Kind::kJsonSchema : ConstraintSpec::Kind::kRegex;
    spec.text = format ? RandomFormatSchema(random) : schema ? RandomSchema(random) : RandomRegex(random);
    const auto grammar = compiler->Compile(spec);
    // (A few ranges of integers are as much as a grammar may have.)
    if (grammar.status().message().find("symbols of grammar") != std::string::npos) continue;
    if (!grammar.ok()) {
      std::fprintf(stderr, "%s: %s\n", spec.text.c_str(), grammar.status().ToString().c_str());
      return 1;
    }
    bool ended = false;
    const std::vector<int32_t> ids =
        Walk(**grammar, *tokenizer, format ? FewTokens(*tokenizer, random) : std::vector<int32_t>{}, random,
             &ended);
    if (!ended) continue;
    const nlohmann::json line = {{schema ? "schema" : "regex", spec.text},
                                 {"text", tokenizer->Decode(ids).value()}};
    std::printf("%s\n", line.dump().c_str());
    ++written;
  }
  return 0;
}

}  // namespace
}  // namespace tramontane

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  return tramontane::Main(std::strtoll(argv[1], nullptr, 10),
                          static_cast<uint32_t>(std::strtoul(argv[2], nullptr, 10)));
}

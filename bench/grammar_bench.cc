// What a tool's schema costs over a real vocabulary: compiling it, what the grammar keeps, and its masks
// along a long text. Times are one processor's.
//
//   grammar_bench TOKENIZER_FOLDER              the schema of a tool that writes files, masks of 4,000 tokens
//   grammar_bench TOKENIZER_FOLDER SCHEMAS      a file with a schema a line: what translating and compiling
//   each takes
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "models/grammar/grammar_backend.h"
#include "models/grammar/json_schema_grammar.h"
#include "models/tokenizer/load.h"

namespace tramontane {
namespace {

constexpr char kFileTool[] =
    R"({"type": "object", "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
        "required": ["path", "content"], "additionalProperties": false})";

int64_t ThreadNs() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// A file of some 4,000 tokens, as a model writes it into the tool's arguments.
std::string FileArguments() {
  std::string text = R"({"path": "src/lines.py", "content": ")";
  for (int i = 0; i < 130; ++i) {
    const std::string n = std::to_string(i);
    text +=
        "def line_" + n + "(items, width=" + n + "):\\n    \\\"\\\"\\\"Returns line " + n +
        " of the page.\\\"\\\"\\\"\\n    return [item.strip() for item in items if len(item) > width]\\n\\n";
  }
  return text + "\"}";
}

void PrintTimes(const char* what, std::vector<int64_t> ns) {
  int64_t sum = 0;
  for (const int64_t one : ns) sum += one;
  std::sort(ns.begin(), ns.end());
  const auto us = [](int64_t value) { return static_cast<double>(value) / 1e3; };
  std::printf("%s: mean %.1f us, median %.1f, 99 %% %.1f, longest %.1f (%zu of them)\n", what,
              us(sum) / static_cast<double>(ns.size()), us(ns[ns.size() / 2]), us(ns[ns.size() * 99 / 100]),
              us(ns.back()), ns.size());
}

// Twice: a grammar makes masks where a text first comes by.
void MeasureMasks(const Grammar& grammar, const Tokenizer& tokenizer) {
  const std::vector<int32_t> ids = *tokenizer.Encode(FileArguments());
  std::vector<uint32_t> mask(MaskWords(tokenizer.vocab_size()));
  for (const char* turn : {"the first text", "the second"}) {
    const auto matcher = grammar.NewMatcher(TextStart::kWithinMessage);
    std::vector<int64_t> masks, steps;
    for (const int32_t id : ids) {
      const int64_t begin = ThreadNs();
      matcher->FillMask(mask);
      const int64_t filled = ThreadNs();
      if (!matcher->Accept(id)) return static_cast<void>(std::printf("a token was refused\n"));
      masks.push_back(filled - begin);
      steps.push_back(ThreadNs() - filled);
    }
    std::printf("%s: ", turn);
    PrintTimes("masks", masks);
    std::printf("%s: ", turn);
    PrintTimes("tokens taken", steps);
  }
}

int Run(int argc, char** argv) {
  if (argc < 2) return std::fprintf(stderr, "usage: grammar_bench TOKENIZER_FOLDER [SCHEMAS]\n"), 2;
  const auto tokenizer = LoadTokenizer(argv[1]);
  if (!tokenizer.ok()) return std::fprintf(stderr, "%s\n", tokenizer.status().message().c_str()), 1;
  const int32_t vocab_size = (*tokenizer)->vocab_size();
  const auto backend =
      MakeGrammarBackend(MakeGrammarVocabulary(**tokenizer, vocab_size, {(*tokenizer)->eos_id()}));
  if (backend == nullptr) return std::fprintf(stderr, "this build has no structured output\n"), 1;
  std::vector<std::string> schemas = {kFileTool};
  if (argc > 2) {
    schemas.clear();
    std::ifstream file(argv[2]);
    for (std::string line; std::getline(file, line);) schemas.push_back(line);
  }
  for (const std::string& schema : schemas) {
    const int64_t begin = ThreadNs();
    const auto made = ToolArgumentsGrammar(schema, {});
    const double translated_ms = static_cast<double>(ThreadNs() - begin) / 1e6;
    if (!made.ok()) {
      std::printf("refused: %s\n", made.status().message().c_str());
      continue;
    }
    GrammarWork work{.most_ns = 3'000'000'000};
    const auto grammar = backend->Compile(made->ebnf, work);
    if (!grammar.ok()) {
      std::printf("stopped after %.0f ms  %.80s\n", static_cast<double>(work.spent_ns) / 1e6, schema.c_str());
      continue;
    }
    std::printf("%8.2f + %8.2f ms %8.1f KiB  %s %.80s\n", translated_ms,
                static_cast<double>(work.spent_ns) / 1e6,
                static_cast<double>((*grammar)->memory_bytes()) / 1024,
                made->unenforced.empty() ? "" : made->unenforced[0].c_str(), schema.c_str());
    if (argc == 2) MeasureMasks(**grammar, **tokenizer);
  }
  return 0;
}

}  // namespace
}  // namespace tramontane

int main(int argc, char** argv) { return tramontane::Run(argc, argv); }

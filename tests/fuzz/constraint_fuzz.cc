// Any text as a schema, an expression or a grammar: an error that says why, or a grammar of bounded size. The
// first byte says which.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/core/check.h"
#include "kernels/core/utf8.h"
#include "models/grammar/ebnf_ambiguity.h"
#include "models/grammar/ebnf_check.h"
#include "models/grammar/json_schema_grammar.h"
#include "models/grammar/regex_grammar.h"

namespace {

// No text of a grammar is more than this times its size in symbols: names, counts, escapes and brackets.
constexpr size_t kMostBytesPerSymbol = 200;

void CheckRefusal(const tramontane::Status& status) {
  TM_CHECK(status.code() == tramontane::StatusCode::kInvalidArgument && !status.message().empty(), "%s",
           status.message().c_str());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const tramontane::ConstraintLimits limits;
  if (size == 0 || size > static_cast<size_t>(limits.max_bytes)) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (tramontane::FirstInvalidUtf8(text)) return 0;
  const size_t most_bytes = static_cast<size_t>(limits.max_size) * kMostBytesPerSymbol;
  switch (data[0] % 4) {
    case 0: {
      const auto grammar = tramontane::JsonSchemaGrammar(text, limits);
      if (!grammar.ok()) CheckRefusal(grammar.status());
      TM_CHECK(!grammar.ok() || grammar->size() < most_bytes, "%zu bytes of grammar", grammar->size());
      break;
    }
    case 1:
    case 2: {
      tramontane::RegexReading reading;
      if (data[0] % 4 == 2) {
        reading = {tramontane::RegexReading::Match::kAnywhere,
                   tramontane::RegexReading::Spelling::kInJsonString};
      }
      const auto pattern = tramontane::RegexToPattern(text, reading, limits);
      if (!pattern.ok()) CheckRefusal(pattern.status());
      TM_CHECK(!pattern.ok() || pattern->text.size() < most_bytes, "%zu bytes of pattern",
               pattern->text.size());
      break;
    }
    default: {
      const tramontane::Status status = tramontane::CheckEbnf(text, limits);
      if (!status.ok()) {
        CheckRefusal(status);
      } else if (const tramontane::Status ambiguous = tramontane::CheckUnambiguous(text); !ambiguous.ok()) {
        CheckRefusal(ambiguous);
      }
    }
  }
  return 0;
}

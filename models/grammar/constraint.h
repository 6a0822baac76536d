// What a caller may ask of an output's text, and the bounds of that. Plain values; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tramontane {

struct ConstraintSpec {
  enum class Kind {
    kJsonSchema,  // `text` is the schema
    kJsonObject,  // any JSON object
    kRegex,       // `text` is the regular expression; it matches the output as a whole
    kGrammar,     // `text` is the grammar, in EBNF; its first rule is called root
    kChoice,      // the output is one of `choices`
    // What cannot be enforced is let go, and told (json_schema_grammar.h); of `text` max_bytes is not asked.
    kToolArguments,  // of a tool with the schema `text`
    kToolCalls,      // a list of calls of such tools, whose schema is `text`
  };
  Kind kind = Kind::kJsonObject;
  std::string text;                  // UTF-8
  std::vector<std::string> choices;  // UTF-8
};

// A breach of one of the first five is refused, INVALID_ARGUMENT, before anything slow begins; of the sixth,
// when it is reached.
struct ConstraintLimits {
  int32_t max_bytes = 64 << 10;  // of `text`, or of all choices together
  int32_t max_depth = 64;        // brackets, or schemas, inside each other
  int32_t max_repeats = 4096;    // {m,n}, minLength, maxItems and their like
  int32_t max_size = 16384;  // symbols, every repetition written out; kPatternSymbols of a pattern are one
  // Of a tool's arguments, which are compiled while a choice waits: over a vocabulary of 131,072, a symbol
  // takes some 10 us, one of patterns 80. Symbols; of them in patterns; steps to make its patterns' automata,
  // and to see that they are small.
  int32_t max_tool_size = 8192;
  int32_t max_tool_pattern_size = 2048;
  int64_t max_tool_pattern_steps = 300'000;
  int32_t max_choices = 1024;
  int64_t max_compile_ns = 1'500'000'000;        // of a processor, for what the bounds above let through
  int64_t max_cache_bytes = int64_t{512} << 20;  // of compiled grammars; the least recently used go first
};

}  // namespace tramontane

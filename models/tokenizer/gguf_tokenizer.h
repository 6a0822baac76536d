// The tokenizer that a GGUF file's keys describe: another source of what a tokenizer.model or a
// tokenizer.json says, for the tokenizers that read these.
//
//   tokenizer.ggml.model "llama"   SentencePieceTokenizer: tokens, scores, token_type, add_space_prefix
//   tokenizer.ggml.model "gpt2"    HuggingFaceTokenizer over bytes: tokens, merges, token_type, and `pre`,
//                                  which says how text is cut and whether a cut that is a piece needs no
//                                  merges
//
// Any thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/core/status.h"
#include "models/gguf/gguf_metadata.h"
#include "models/tokenizer/sentencepiece_model.h"
#include "models/tokenizer/tokenizer.h"
#include "models/tokenizer/tokenizer_json_file.h"

namespace tramontane {

// NOT_FOUND: the file has no tokenizer. UNIMPLEMENTED names a model or a `pre` that is not known. Else errors
// name the file, the key, the value and the limit. The tokenizer needs the file no longer.
StatusOr<std::unique_ptr<const Tokenizer>> MakeGgufTokenizer(const GgufMetadata& metadata);

// The same as the values that the tokenizer is made of; errors as above.
struct GgufVocabulary {
  std::optional<SentencePieceModel> sentencepiece;  // "llama"
  TokenizerJsonFile json;                           // "gpt2": this and its config
  TokenizerConfigFile config;
};
StatusOr<GgufVocabulary> ReadGgufVocabulary(const GgufMetadata& metadata);

// The pre-tokenizer that cuts text so and takes a cut that is a piece for that piece, or merges it all the
// same; "" where none does. known: all of them, for people.
std::string FindPreTokenizerName(const std::vector<TokenizerJsonFile::Split>& splits, bool ignore_merges,
                                 std::string* known);

// A regular file that begins as GGUF files do, whatever its name. Reads four bytes.
bool IsGgufFile(const std::string& path);

}  // namespace tramontane

// A GGUF file's tokenizer as the files of a model's folder: what sentencepiece_model.h and
// tokenizer_json_file.h read, the other way round.
//
//   tokenizer.ggml.model "llama"   tokenizer.model
//   tokenizer.ggml.model "gpt2"    tokenizer.json and tokenizer_config.json
//
// Any thread.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "kernels/core/status.h"
#include "models/gguf/gguf_metadata.h"

namespace tramontane {

// Names and bytes, which were read back and say the same. Errors are those of MakeGgufTokenizer; what the
// files cannot say is UNIMPLEMENTED and named.
StatusOr<std::vector<std::pair<std::string, std::string>>> MakeTokenizerFiles(const GgufMetadata& metadata);

}  // namespace tramontane

// The tokenizer and the chat template of a model as keys of a GGUF file, for `quantize`.
// Any thread.
#pragma once

#include <string>
#include <vector>

#include "kernels/core/status.h"
#include "models/gguf/gguf_output.h"
#include "models/opened_model.h"

namespace tramontane {

struct TokenizerKeys {
  GgufKeys keys;                   // none where the model has no tokenizer
  std::vector<std::string> notes;  // what a reader of the file will not find in it, a line each
};

// INVALID_ARGUMENT, UNIMPLEMENTED where the tokenizer cannot be read or no keys say it.
StatusOr<TokenizerKeys> TokenizerKeysOf(const OpenedModel& model);

}  // namespace tramontane

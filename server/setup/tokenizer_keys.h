// The tokenizer and the chat template of a model as keys of a GGUF file, and those of a GGUF file as files of
// a folder: for `quantize`.
// Any thread.
#pragma once

#include <string>
#include <vector>

#include "kernels/core/status.h"
#include "models/gguf/gguf_output.h"
#include "models/opened_model.h"
#include "models/quantized/quantize_model.h"

namespace tramontane {

struct TokenizerKeys {
  GgufKeys keys;                   // none where the model has no tokenizer
  std::vector<std::string> notes;  // what a reader of the file will not find in it, a line each
};

// INVALID_ARGUMENT, UNIMPLEMENTED where the tokenizer cannot be read or no keys say it.
StatusOr<TokenizerKeys> TokenizerKeysOf(const OpenedModel& model);

struct TokenizerFiles {
  std::vector<NamedBytes> files;
  std::vector<std::string> notes;  // why there are none, and what to do
};

// REQUIRES: the model is a GGUF file. A tokenizer that files cannot say is a note, since the GGUF file itself
// can be named beside the folder.
StatusOr<TokenizerFiles> TokenizerFilesOf(const OpenedModel& model);

}  // namespace tramontane

// A model's config as the keys of a GGUF file: what models/gguf_config.cc reads, the other way round.
//
// Any thread.
#pragma once

#include <string>
#include <vector>

#include "kernels/core/status.h"
#include "models/gguf/gguf_output.h"
#include "models/model_config.h"

namespace tramontane {

struct GgufModelKeys {
  GgufKeys keys;  // general.architecture, those of the architecture, and with `tokenizer` the tokenizer's
  std::vector<float>
      rotary_divisors;  // [head_dim / 2], of the tensor rope_freqs.weight; empty: there is none
};

// tokenizer: the tokenizer.* keys, or none. Numbers are rounded to float, as the format has them. What the
// keys cannot say, so that a reader would compute something else, is UNIMPLEMENTED and named; `where` names
// the model in messages.
StatusOr<GgufModelKeys> MakeGgufModelKeys(const ModelConfig& config, const GgufKeys& tokenizer,
                                          const std::string& where);

}  // namespace tramontane

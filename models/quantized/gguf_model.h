// A model written a second time as one GGUF file, its matrices in blocks of Q8_0 or Q4_0: config, tokenizer
// and weights under llama.cpp's names.
//
// One thread. Memory does not grow with the model: a tensor is read, rounded and written a few rows at a
// time. The same files and options give the same bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "kernels/core/status.h"
#include "models/gguf/gguf_output.h"
#include "models/opened_model.h"
#include "models/quantized/quantize_model.h"

namespace tramontane {

struct GgufModelOptions {
  DType type = DType::kQ8_0;  // or kQ4_0
  std::string name;           // general.name; "": none
  GgufKeys tokenizer;         // tokenizer.*, or none
  // Names of the model's tensors that stay as they are, as in QuantizeOptions. So do matrices whose rows are
  // not whole blocks. Norms and routers become F32.
  std::vector<std::string> keep = QuantizeOptions().keep;
};

// Into the file `out`; one that is there is an error. On an error what was written is taken away. The model
// may be a GGUF file itself. progress: bytes read and bytes in all.
StatusOr<QuantizeResult> WriteGgufModel(const OpenedModel& model, const std::string& out,
                                        const GgufModelOptions& options,
                                        const std::function<void(int64_t, int64_t)>& progress = nullptr);

}  // namespace tramontane

// A model written a second time with its matrices in groups of small integers: a folder of safetensors in
// compressed-tensors' form pack-quantized. That of a GGUF file is in Hugging Face's layout: its config is
// written anew, rows of queries and keys and the experts of a stack stand as that has them, and a kept matrix
// in blocks becomes f16.
//
// One thread. Memory does not grow with the model: a tensor is read, rounded and written a piece at a time,
// and only its scales wait. The same files and options give the same bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/status.h"
#include "models/opened_model.h"

namespace tramontane {

struct NamedBytes {
  std::string name;
  std::string bytes;
};

struct QuantizeOptions {
  int32_t bits = 8;    // 4 or 8
  int64_t group = 64;  // numbers that share a scale: 32, 64, 128 or 256; divides every row that is quantised
  // Names of tensors that stay as they are; * stands for anything. Norms and routers always stay.
  std::vector<std::string> keep = {"*embed*", "token_embd.*", "*lm_head*", "output.*"};
  // Written beside a model that is a GGUF file: its tokenizer's.
  std::vector<NamedBytes> files = {};
};

struct QuantizeResult {
  int64_t quantised = 0;  // matrices
  int64_t kept = 0;       // tensors
  int64_t bytes_before = 0;
  int64_t bytes_after = 0;
};

// Whether all of `text` is as the pattern says.
bool FitsPattern(std::string_view pattern, std::string_view text);
bool FitsAny(const std::vector<std::string>& patterns, std::string_view text);

// That there are weights, and that they are those that were trained.
Status CheckNotQuantised(const OpenedModel& model);

// `integers` = round(values / scale) from -2^(bits-1) on, with the best of a few scales for the group, as a
// number of the type `scale_type` holds it. REQUIRES: finite values.
struct QuantizedGroup {
  float scale = 0.0f;
  std::vector<int8_t> integers;
};
QuantizedGroup QuantizeGroup(std::span<const float> values, int32_t bits, DType scale_type);

// Into `out`, a folder that is made; one that is there and not empty is an error. On an error what was
// written is taken away. progress: bytes read and bytes in all.
StatusOr<QuantizeResult> QuantizeModel(const OpenedModel& model, const std::string& out,
                                       const QuantizeOptions& options,
                                       const std::function<void(int64_t, int64_t)>& progress = nullptr);

}  // namespace tramontane

// Any bytes as config.json (with the part behind the first NUL as generation_config.json) and as params.json:
// an error, or a config that keeps what model_config.h promises.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/core/check.h"
#include "models/kv_layout.h"
#include "models/model_config.h"

namespace {

using namespace tramontane;

void CheckPromises(const StatusOr<ModelConfig>& parsed) {
  if (!parsed.ok()) {
    TM_CHECK(!parsed.status().message().empty(), "an error without a message");
    return;
  }
  const ModelConfig& config = *parsed;
  TM_CHECK(static_cast<int32_t>(config.window.size()) == config.layers, "a window per layer");
  TM_CHECK(config.heads % config.kv_heads == 0 && config.head_dim % 2 == 0, "heads");
  TM_CHECK(config.rms_epsilon > 0 && config.rope_theta > 0, "positive numbers");
  TM_CHECK(config.bos_id >= 0, "bos");
  for (const int32_t id : config.eos_ids) TM_CHECK(id >= 0 && id < config.vocab_size, "eos");
  const KvLayout layout = MakeKvLayout(config.window, {DType::kBf16, config.kv_heads, config.head_dim, 16});
  TM_CHECK(layout.PagesForSequence(config.context, 512) > 0, "pages");
}

StatusOr<ModelConfig> WithGeneration(StatusOr<ModelConfig> config, std::string_view generation) {
  if (!config.ok()) return config;
  TM_RETURN_IF_ERROR(ReadGenerationConfig(generation, "generation_config.json", *config));
  return config;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t split = text.find('\0');
  const std::string_view generation = split == text.npos ? "{}" : text.substr(split + 1);
  CheckPromises(WithGeneration(ParseHuggingFaceConfig(text.substr(0, split), "config.json"), generation));
  CheckPromises(WithGeneration(ParseMistralParams(text.substr(0, split), "params.json"), generation));
  return 0;
}

#include "server/setup/embedded_model.h"

#include <string_view>

#include "models/files/built_in_files.h"

extern "C" {
extern const char tramontane_config[], tramontane_config_end[];
extern const char tramontane_generation_config[], tramontane_generation_config_end[];
extern const char tramontane_weights[], tramontane_weights_end[];
extern const char tramontane_tokenizer[], tramontane_tokenizer_end[];
}

namespace tramontane {
namespace {

std::string_view Between(const char* begin, const char* end) {
  return {begin, static_cast<size_t>(end - begin)};
}

}  // namespace

void AddEmbeddedModel() {
  AddBuiltInFolder(
      kEmbeddedModelFolder,
      {{"config.json", Between(tramontane_config, tramontane_config_end)},
       {"generation_config.json", Between(tramontane_generation_config, tramontane_generation_config_end)},
       {"model.safetensors", Between(tramontane_weights, tramontane_weights_end)},
       {"tokenizer.model.v3", Between(tramontane_tokenizer, tramontane_tokenizer_end)}});
}

}  // namespace tramontane

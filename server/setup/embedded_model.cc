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

std::string_view Bytes(const char* begin, const char* end) {
  return {begin, static_cast<size_t>(end - begin)};
}

}  // namespace

void AddEmbeddedModel() {
  AddBuiltInFolder(
      kEmbeddedModelFolder,
      {{"config.json", Bytes(tramontane_config, tramontane_config_end)},
       {"generation_config.json", Bytes(tramontane_generation_config, tramontane_generation_config_end)},
       {"model.safetensors", Bytes(tramontane_weights, tramontane_weights_end)},
       {"tokenizer.model.v3", Bytes(tramontane_tokenizer, tramontane_tokenizer_end)}});
}

}  // namespace tramontane

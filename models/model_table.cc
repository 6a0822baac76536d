#include "models/model_table.h"

namespace tramontane {
namespace {

constexpr ModelMaker kModelMakers[] = {
    {"MistralForCausalLM", MakeMistral, MistralActivationBytes},
    {"MinistralForCausalLM", MakeMistral, MistralActivationBytes},
    {"LlamaForCausalLM", MakeMistral, MistralActivationBytes},
};

}  // namespace

const ModelMaker* FindModelMaker(const std::string& architecture) {
  for (const ModelMaker& maker : kModelMakers) {
    if (architecture == maker.architecture) return &maker;
  }
  return nullptr;
}

StatusOr<std::unique_ptr<Model>> LoadModel(const std::string& folder, Backend& backend,
                                           const LoadOptions& options) {
  TM_ASSIGN_OR_RETURN(const ModelFolder files, FindModelFiles(folder));
  TM_ASSIGN_OR_RETURN(ModelConfig config, LoadModelConfig(folder));
  const ModelMaker* maker = FindModelMaker(config.architecture);
  TM_CHECK(maker != nullptr, "%s has no maker", config.architecture.c_str());
  return maker->make(files, std::move(config), backend, options);
}

}  // namespace tramontane

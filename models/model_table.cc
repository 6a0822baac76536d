#include "models/model_table.h"

#include <utility>

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

StatusOr<std::unique_ptr<Model>> LoadModel(OpenedModel opened, Backend& backend,
                                           const LoadProgress& progress) {
  const ModelMaker* maker = FindModelMaker(opened.config.architecture);
  TM_CHECK(maker != nullptr, "%s has no maker", opened.config.architecture.c_str());
  return maker->make(std::move(opened), backend, progress);
}

}  // namespace tramontane

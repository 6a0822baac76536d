#include "models/architecture.h"

#include <string>

#include "kernels/core/check.h"
#include "models/block.h"

namespace tramontane {
namespace {

constexpr const BlockKind* kDense[] = {&kAttentionBlock, &kFeedForwardBlock};

constexpr Architecture kArchitectures[] = {
    {"MistralForCausalLM", "mistral", true, kDense},
    {"MinistralForCausalLM", "ministral", true, kDense},
    {"LlamaForCausalLM", "llama", false, kDense},
};

}  // namespace

std::span<const Architecture> Architectures() { return kArchitectures; }

const Architecture& FindArchitecture(std::string_view name) {
  for (const Architecture& known : kArchitectures) {
    if (name == known.name) return known;
  }
  TM_CHECK(false, "%s has no row in the table of architectures", std::string(name).c_str());
}

}  // namespace tramontane

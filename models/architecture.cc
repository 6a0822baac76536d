#include "models/architecture.h"

#include <string>
#include <vector>

#include "kernels/core/check.h"
#include "models/block.h"

namespace tramontane {
namespace {

constexpr const BlockKind* kDense[] = {&kAttentionBlock, &kFeedForwardBlock};
constexpr const BlockKind* kMixture[] = {&kAttentionBlock, &kMoeBlock};

constexpr Architecture kArchitectures[] = {
    {"MistralForCausalLM", "mistral", true, 4096, 10000, false, false, false, kDense},
    {"MinistralForCausalLM", "ministral", true, 4096, 10000, true, false, false, kDense},
    {"Ministral3ForCausalLM", "ministral3", true, 0, 10000, false, true, false, kDense},
    {"MixtralForCausalLM", "mixtral", true, 0, 1000000, false, false, true, kMixture},
    {"LlamaForCausalLM", "llama", false, 0, 10000, false, false, false, kDense},
};

std::vector<Architecture>& Rows() {
  static std::vector<Architecture> rows(std::begin(kArchitectures), std::end(kArchitectures));
  return rows;
}

}  // namespace

std::span<const Architecture> Architectures() { return Rows(); }

void AddArchitecture(const Architecture& row) {
  for (const Architecture& known : Rows()) {
    TM_CHECK(std::string_view(known.name) != row.name && std::string_view(known.model_type) != row.model_type,
             "%s or %s stands in the table of architectures", row.name, row.model_type);
  }
  Rows().push_back(row);
}

const Architecture& FindArchitecture(std::string_view name) {
  for (const Architecture& known : Rows()) {
    if (name == known.name) return known;
  }
  TM_CHECK(false, "%s has no row in the table of architectures", std::string(name).c_str());
}

}  // namespace tramontane

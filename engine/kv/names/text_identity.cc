#include "engine/kv/names/text_identity.h"

#include <cstring>

namespace tramontane {
namespace {

void FillBlock(Paging paging, std::vector<int32_t>* mark) {
  mark->resize(static_cast<size_t>(paging.RoundUp(std::ssize(*mark))));
}

}  // namespace

// The first id says how long the salt is.
void SaltMark(std::string_view salt, Paging paging, std::vector<int32_t>* mark) {
  mark->clear();
  if (salt.empty()) return;
  mark->push_back(-static_cast<int32_t>(salt.size()));
  for (size_t begin = 0; begin < salt.size(); begin += sizeof(int32_t)) {
    const std::string_view bytes = salt.substr(begin, sizeof(int32_t));
    std::memcpy(&mark->emplace_back(0), bytes.data(), bytes.size());
  }
  FillBlock(paging, mark);
}

// No salt is as long as the first id would say.
void PolicyMark(const ContextPolicy& policy, Paging paging, std::vector<int32_t>* mark) {
  mark->clear();
  if (policy.type == ContextPolicyType::kNone) return;
  *mark = {INT32_MIN + static_cast<int32_t>(policy.type), static_cast<int32_t>(policy.n_ctx),
           static_cast<int32_t>(policy.n_keep), static_cast<int32_t>(policy.n_discard)};
  FillBlock(paging, mark);
}

}  // namespace tramontane

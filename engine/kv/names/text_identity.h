// TextIdentity: all that a text's keys and values depend on besides its tokens. Texts of other identities
// share no page. A value; any thread.
//
// The model is not in it: an engine has one, and files that outlive the engine name it (SessionIdentity). An
// adapter would be a member here, and so would spans of ids that stand for other things, as for an image's
// digest. The names of blocks say an identity by *marks*: whole blocks of ids that no tokens are, for the
// first id is negative. No block: there is nothing to say.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "engine/kv/names/paging.h"
#include "kernels/context_policy.h"

namespace tramontane {

struct TextIdentity {
  std::string salt = {};      // any bytes; in front of the first block
  ContextPolicy policy = {};  // of masks (MaskPolicyOf); in front of the first block whose rows it changes

  bool operator==(const TextIdentity&) const = default;
};

// The first id says how long the salt is.
inline void SaltMark(std::string_view salt, Paging paging, std::vector<int32_t>* mark) {
  mark->clear();
  if (salt.empty()) return;
  mark->push_back(-static_cast<int32_t>(salt.size()));
  for (size_t begin = 0; begin < salt.size(); begin += sizeof(int32_t)) {
    const std::string_view bytes = salt.substr(begin, sizeof(int32_t));
    std::memcpy(&mark->emplace_back(0), bytes.data(), bytes.size());
  }
  mark->resize(static_cast<size_t>(paging.RoundUp(std::ssize(*mark))));
}

// No salt is as long as the first id would say.
inline void PolicyMark(const ContextPolicy& policy, Paging paging, std::vector<int32_t>* mark) {
  mark->clear();
  if (policy.type == ContextPolicyType::kNone) return;
  *mark = {INT32_MIN + static_cast<int32_t>(policy.type), static_cast<int32_t>(policy.n_ctx),
           static_cast<int32_t>(policy.n_keep), static_cast<int32_t>(policy.n_discard)};
  mark->resize(static_cast<size_t>(paging.RoundUp(std::ssize(*mark))));
}

}  // namespace tramontane

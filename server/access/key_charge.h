// KeyCharge: what one request takes of its key: a place among those in progress, one of a minute's requests,
// and its tokens as they come. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "server/access/api_key.h"
#include "server/call/rpc_error.h"

namespace tramontane {

class KeyCharge {
 public:
  // `key`: null: none bounds it. `continues`: a later call of a request that was taken: it takes tokens
  // alone.
  KeyCharge(std::shared_ptr<const ApiKey> key, bool continues)
      : key_(key != nullptr && key->use != nullptr ? std::move(key) : nullptr), continues_(continues) {}
  ~KeyCharge() { End(); }
  KeyCharge(const KeyCharge&) = delete;
  KeyCharge& operator=(const KeyCharge&) = delete;

  RpcError Begin();  // as KeyUse's
  // It is admitted, with so many tokens of prompt; from the second time on nothing.
  void NotePrompt(int64_t tokens);
  // Of this choice there are so many tokens now.
  void NoteCompletion(int32_t choice, int64_t tokens);
  // It is no longer in progress; what was never admitted costs no request.
  void End();

 private:
  const std::shared_ptr<const ApiKey> key_;  // null: nothing is counted
  const bool continues_;
  bool has_begun_ = false;
  bool is_admitted_ = false;
  std::vector<int64_t> completion_tokens_;  // [choices] that had some
};

}  // namespace tramontane

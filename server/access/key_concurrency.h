// KeyConcurrency: how many requests each key has in progress, against its max_concurrent. Any thread.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>

#include "server/access/api_key.h"
#include "server/call/rpc_error.h"

namespace tramontane {

class KeyConcurrency {
 public:
  // RESOURCE_EXHAUSTED, KEY_CONCURRENCY: the key has as many as it may. OK: End follows. `key`: null: none
  // bounds it.
  RpcError Begin(const ApiKey* key);
  void End(const ApiKey* key);

 private:
  std::mutex mutex_;
  std::unordered_map<std::string, int64_t> requests_;  // by name, of keys that have some and a bound
};

}  // namespace tramontane

#include "server/access/key_concurrency.h"

namespace tramontane {
namespace {

bool IsBounded(const ApiKey* key) { return key != nullptr && key->max_concurrent > 0; }

}  // namespace

RpcError KeyConcurrency::Begin(const ApiKey* key) {
  if (!IsBounded(key)) return {};
  const std::lock_guard lock(mutex_);
  int64_t& requests = requests_[key->name];
  if (requests >= key->max_concurrent) {
    return BusyError("KEY_CONCURRENCY", "the key \"" + key->name + "\" has " + std::to_string(requests) +
                                            " requests in progress, its own limit, max_concurrent");
  }
  ++requests;
  return {};
}

void KeyConcurrency::End(const ApiKey* key) {
  if (!IsBounded(key)) return;
  const std::lock_guard lock(mutex_);
  const auto found = requests_.find(key->name);
  if (found != requests_.end() && --found->second <= 0) requests_.erase(found);
}

}  // namespace tramontane

#include "server/core/request_ids.h"

#include "server/core/served_call.h"

namespace tramontane {

bool RequestIds::Add(const std::string& caller, const std::string& id, ServedCall* call) {
  std::lock_guard lock(mutex_);
  return calls_.emplace(std::pair(caller, id), call).second;
}

void RequestIds::Remove(const std::string& caller, const std::string& id) {
  std::lock_guard lock(mutex_);
  calls_.erase(std::pair(caller, id));
}

bool RequestIds::Cancel(const std::string& caller, const std::string& id) {
  std::lock_guard lock(mutex_);  // keeps the call from ending meanwhile
  const auto found = calls_.find(std::pair(caller, id));
  if (found == calls_.end()) return false;
  found->second->Cancel();
  return true;
}

}  // namespace tramontane

#include "server/http/connection_shares.h"

namespace tramontane {

void ConnectionShares::Add(const std::string& client) {
  std::lock_guard lock(mutex_);
  ++all_;
  if (++of_client_[client] > half_) greedy_ = client;
}

void ConnectionShares::Remove(const std::string& client) {
  std::lock_guard lock(mutex_);
  --all_;
  const auto share = of_client_.find(client);
  if (--share->second <= half_ && client == greedy_) greedy_.clear();
  if (share->second == 0) of_client_.erase(share);
}

int64_t ConnectionShares::all() const {
  std::lock_guard lock(mutex_);
  return all_;
}

std::string ConnectionShares::greedy() const {
  std::lock_guard lock(mutex_);
  return greedy_;
}

}  // namespace tramontane

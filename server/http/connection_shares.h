// ConnectionShares: how many connections each client has. Any thread.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>

namespace tramontane {

class ConnectionShares {
 public:
  // `most`: that there may be, of all clients.
  explicit ConnectionShares(int64_t most) : half_(most / 2) {}

  void Add(const std::string& client);
  void Remove(const std::string& client);
  int64_t all() const;
  // The client that has more than half of the most; "": nobody has.
  std::string greedy() const;

 private:
  const int64_t half_;
  mutable std::mutex mutex_;  // guards what follows
  std::unordered_map<std::string, int64_t> of_client_;
  int64_t all_ = 0;
  std::string greedy_;
};

}  // namespace tramontane

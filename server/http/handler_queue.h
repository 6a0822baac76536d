// HandlerQueue: the work that waits for a handler thread, and which of it is next. One thread at a time.
//
// Next is work of the client that has the least of it running; of those, of the one that has used the threads
// for the shortest time; a client's own is done in its order. Who has waited for nothing begins where the
// others are. So nobody waits for what another one brings in masses.
// Long work stands in a line of its own: where only short work may run, it lets that pass.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>

namespace tramontane {

struct HandlerWork {
  std::string client;  // whose share of the threads it takes (AddressShare)
  int64_t bytes = 0;   // what it is about
  std::function<void()> run;

  static constexpr int64_t kLongBytes = 64 << 10;
  bool is_long() const { return bytes >= kLongBytes; }
};

class HandlerQueue {
 public:
  explicit HandlerQueue(int64_t max_waiting) : max_waiting_(max_waiting) {}

  // False, and nothing taken: too much waits, of all or of this client (FitsShare).
  bool Push(HandlerWork work);
  // What is to run now, until Done; nothing: none waits that may.
  std::optional<HandlerWork> Pop(bool may_be_long);
  void Done(const HandlerWork& work, int64_t took_ns);

  bool empty() const { return waiting_ == 0; }

 private:
  static constexpr size_t kShort = 0, kLong = 1, kLines = 2;

  struct Waiting {
    uint64_t number = 0;  // in the order of coming
    HandlerWork work;
  };
  struct Client {
    std::array<std::deque<Waiting>, kLines> lines;
    int64_t waiting = 0;  // in both
    int64_t running = 0;
    int64_t used_ns = 0;
    uint64_t number = 0;  // of the work that it came with
  };
  struct ComesBefore {
    bool operator()(const Client* a, const Client* b) const;
  };

  template <typename Change>
  void Update(Client& client, const Change& change);

  const int64_t max_waiting_;
  int64_t waiting_ = 0;
  uint64_t came_ = 0;
  int64_t least_used_ns_ = 0;                                 // of the client that was next last
  std::unordered_map<std::string, Client> clients_;           // that have something waiting or running
  std::array<std::set<Client*, ComesBefore>, kLines> turns_;  // those with work in a line
};

}  // namespace tramontane

// SessionStore: what the server keeps of conversations between their requests, by the names that clients gave
// them. Host data only: the KV pages of a session lie idle in the engine's store, as those of its KvOwner, as
// long as nobody needs the room; else what the prefix cache lacks is computed again from its ids.
//
//   Take -> SessionLease -> Keep (the session advances), or let go of it (it stays as it was)
//
// Any thread; one mutex, held for lookups only. Always: at most one lease of a name at a time; at most
// max_sessions are kept, those in use included. Leases end before the store does.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/clock.h"
#include "engine/kv_owner.h"
#include "kernels/context_policy.h"
#include "server/call/rpc_error.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {

inline constexpr size_t kMaxSessionNameBytes = 64;

// "" when `name` can name a session: 1 to 64 of A-Z a-z 0-9 _ . -, not beginning with a dot. Else what is
// wrong.
std::string SessionNameFault(std::string_view name);

struct SessionStoreOptions {
  int32_t max_sessions = 256;  // one more: the idle one that was used longest ago goes; all in use: refused
  int64_t ttl_ns = 3600 * int64_t{1'000'000'000};  // without use, after which a session goes; 0: never
  int64_t max_bytes = int64_t{256} << 20;          // of ids and messages together, beyond which idle ones go
};

// Does not change once it is kept.
struct SessionState {
  std::vector<int32_t> ids;  // of the prompt, and those that were sampled after it
  bool is_chat = false;
  v1::Chat chat;  // of chats: as received, and the answer
  std::string cache_salt;
  ContextPolicy context_policy = {};             // with nothing left open
  std::shared_ptr<const KvOwner> kv_owner = {};  // of all its turns; null: none has left pages

  int64_t Bytes() const;
};

class SessionStore;

// A name in use by one request. Empty once moved from, kept or let go.
class SessionLease {
 public:
  SessionLease() = default;
  SessionLease(SessionLease&& other) noexcept { *this = std::move(other); }
  SessionLease& operator=(SessionLease&& other) noexcept;
  SessionLease(const SessionLease&) = delete;
  SessionLease& operator=(const SessionLease&) = delete;
  ~SessionLease() { LetGo(); }

  bool held() const { return store_ != nullptr; }
  const std::string& name() const { return name_; }
  const SessionState* state() const { return state_.get(); }  // null: nothing is kept under the name yet

  // The session is this from now on, and free for its next request.
  void Keep(SessionState state);
  // It stays as it was, and is free for its next request; one that never was is none.
  void LetGo();

 private:
  friend class SessionStore;
  SessionLease(SessionStore* store, std::string name, std::shared_ptr<const SessionState> state)
      : store_(store), name_(std::move(name)), state_(std::move(state)) {}

  SessionStore* store_ = nullptr;
  std::string name_;
  std::shared_ptr<const SessionState> state_;
};

class SessionStore {
 public:
  explicit SessionStore(const SessionStoreOptions& options) : options_(options) {}
  ~SessionStore();
  SessionStore(const SessionStore&) = delete;
  SessionStore& operator=(const SessionStore&) = delete;

  // Times are of this clock from now on; before, nothing can be taken. Once.
  void Start(const Clock& clock);

  // FAILED_PRECONDITION: in use. RESOURCE_EXHAUSTED: all are. REQUIRES: Start; the name has no fault.
  RpcError Take(const std::string& name, SessionLease* lease);

  // What is kept under the name, now. NOT_FOUND, or FAILED_PRECONDITION where it is in use.
  RpcError Find(const std::string& name, std::shared_ptr<const SessionState>* state);

  // By name; ages are told as moments of `unix_s`, which is now.
  v1::ListSessionsResponse List(int64_t unix_s);
  // INVALID_ARGUMENT, NOT_FOUND, or FAILED_PRECONDITION where it is in use.
  RpcError Delete(const std::string& name);

 private:
  friend class SessionLease;
  struct Entry {
    std::shared_ptr<const SessionState> state = {};  // null: its first request is in progress
    int64_t bytes = 0;
    bool in_use = false;
    int64_t created_ns = 0;
    int64_t used_ns = 0;
    std::list<std::string>::iterator place = {};  // in idle_, where it is not in use
  };
  using Entries = std::map<std::string, Entry, std::less<>>;

  void Return(const std::string& name, std::shared_ptr<const SessionState> state);  // null: as it was
  // Of the below each under mutex_.
  RpcError FindIdle(const std::string& name, Entries::iterator* found);
  void DropExpired();
  bool DropOldest();  // false: none is idle
  void Drop(Entries::iterator entry);

  const SessionStoreOptions options_;
  std::mutex mutex_;  // guards the rest
  const Clock* clock_ = nullptr;
  Entries entries_;
  std::list<std::string> idle_;  // the one that was used longest ago first
  int64_t bytes_ = 0;            // of all states
};

}  // namespace tramontane

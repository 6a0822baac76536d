// SessionStore: what the server keeps of conversations between their requests, by their callers and the names
// that these gave them. To everybody else a caller's session is not there. Host data only: the KV pages of a
// session lie idle in the engine's store, as those of its KvOwner, as long as nobody needs the room; else
// what the prefix cache lacks is computed again from its ids.
//
//   Take -> SessionLease -> Keep (the session advances), or let go of it (it stays as it was)
//
// Any thread; one mutex, held for lookups only. Always: at most one lease of a key at a time; at most
// max_sessions are kept, those in use included. Leases end before the store does.
//
// What goes for want of room is the oldest idle one of whoever has most of it; and a caller who has half of
// max_sessions makes room among its own. So one caller's cannot push out those of all others.
#pragma once

#include <compare>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/kv/kv_owner.h"
#include "engine/threads/clock.h"
#include "kernels/context_policy.h"
#include "server/call/rpc_error.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {

inline constexpr size_t kMaxSessionNameBytes = 64;

// "" when `name` can name a session: 1 to 64 of A-Z a-z 0-9 _ . -, not beginning with a dot. Else what is
// wrong.
std::string SessionNameFault(std::string_view name);

// Whose session, and what he calls it.
struct SessionKey {
  std::string caller;
  std::string name;
  auto operator<=>(const SessionKey&) const = default;
};

struct SessionStoreOptions {
  int32_t max_sessions = 256;                      // one more: an idle one goes; none may: refused
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

  int64_t Bytes() const;  // that it takes in memory
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
  const SessionState* state() const { return state_.get(); }  // null: nothing is kept under the name yet

  // The session is this from now on, and free for its next request.
  void Keep(SessionState state);
  // It stays as it was, and is free for its next request; one that never was is none.
  void LetGo();

 private:
  friend class SessionStore;
  SessionLease(SessionStore* store, SessionKey key, std::shared_ptr<const SessionState> state)
      : store_(store), key_(std::move(key)), state_(std::move(state)) {}

  SessionStore* store_ = nullptr;
  SessionKey key_;
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

  // FAILED_PRECONDITION: in use. RESOURCE_EXHAUSTED: none may go for it. REQUIRES: Start; the name has no
  // fault.
  RpcError Take(const SessionKey& key, SessionLease* lease);

  // What is kept under the key, now. NOT_FOUND, also where it was begun with another cache_salt; or
  // FAILED_PRECONDITION where it is in use.
  RpcError Find(const SessionKey& key, const std::string& cache_salt,
                std::shared_ptr<const SessionState>* state);

  // The caller's, by name; ages are told as moments of `unix_s`, which is now.
  v1::ListSessionsResponse List(const std::string& caller, int64_t unix_s);
  // INVALID_ARGUMENT, or as Find.
  RpcError Delete(const SessionKey& key, const std::string& cache_salt);

  int64_t bytes() const {  // of all that is kept
    const std::lock_guard lock(mutex_);
    return bytes_;
  }

  static RpcError NotFoundError(const std::string& name);

 private:
  friend class SessionLease;
  // What a caller has here.
  struct Share {
    int64_t sessions = 0;
    int64_t bytes = 0;
  };
  using Shares = std::map<std::string, Share, std::less<>>;
  struct Entry;
  using Kept = std::pair<const SessionKey, Entry>;
  struct Entry {
    std::shared_ptr<const SessionState> state = {};  // null: its first request is in progress
    int64_t bytes = 0;
    bool in_use = false;
    int64_t created_ns = 0;
    int64_t used_ns = 0;
    Shares::iterator owner = {};
    std::list<Kept*>::iterator place = {};  // in idle_, where it is not in use
  };
  using Entries = std::map<SessionKey, Entry>;

  void Return(const SessionKey& key, std::shared_ptr<const SessionState> state);  // null: as it was
  // Of the below each under mutex_.
  RpcError FindIdle(const SessionKey& key, const std::string& cache_salt, Kept** found);
  void DropExpired();
  // False: no session may go for another one of the caller's.
  bool MakeRoom(const std::string& caller);
  RpcError TooManyError() const;
  // Of `caller`, or of whoever has most; null: there is none.
  Kept* OldestIdle(const std::string& caller) const;
  Kept* OldestIdleOfMost(int64_t Share::* amount) const;
  void Drop(Kept& kept);   // that is idle
  void Erase(Kept& kept);  // that is not in idle_

  const SessionStoreOptions options_;
  mutable std::mutex mutex_;  // guards the rest
  const Clock* clock_ = nullptr;
  Entries entries_;
  Shares shares_;          // of whoever has any
  std::list<Kept*> idle_;  // the one that was used longest ago first
  int64_t bytes_ = 0;      // of all states
};

}  // namespace tramontane

#include "server/sessions/session_store.h"

#include <algorithm>
#include <utility>

#include "kernels/core/check.h"

namespace tramontane {
namespace {

constexpr int64_t kNsPerSecond = 1'000'000'000;
constexpr char kField[] = "session";

bool IsNameByte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
         c == '-';
}

RpcError InUseError(const std::string& name) {
  RpcError error = ToRpcError(
      Status(StatusCode::kFailedPrecondition, "\"" + name + "\" is in use by a request in progress")
          .WithField(kField));
  error.reason = "SESSION_IN_USE";
  return error;
}

}  // namespace

std::string SessionNameFault(std::string_view name) {
  if (name.empty() || name.size() > kMaxSessionNameBytes) {
    return "has " + std::to_string(name.size()) + " bytes, the range is [1, " +
           std::to_string(kMaxSessionNameBytes) + "]";
  }
  if (name[0] == '.') return "begins with a dot";
  const auto bad = std::find_if_not(name.begin(), name.end(), IsNameByte);
  if (bad == name.end()) return "";
  return "has at byte " + std::to_string(bad - name.begin()) +
         " what is none of A-Z a-z 0-9 _ . -, of which a name is made";
}

int64_t SessionState::Bytes() const {
  return static_cast<int64_t>(ids.capacity() * sizeof(int32_t) + chat.SpaceUsedLong() + cache_salt.size());
}

// ---- SessionLease -------------------------------------------------------------------------------

SessionLease& SessionLease::operator=(SessionLease&& other) noexcept {
  if (this == &other) return *this;
  LetGo();
  store_ = std::exchange(other.store_, nullptr);
  key_ = std::move(other.key_);
  state_ = std::move(other.state_);
  return *this;
}

void SessionLease::Keep(SessionState state) {
  TM_CHECK(held(), "a session is kept that is not held");
  std::exchange(store_, nullptr)->Return(key_, std::make_shared<const SessionState>(std::move(state)));
  state_ = nullptr;
}

void SessionLease::LetGo() {
  if (held()) std::exchange(store_, nullptr)->Return(key_, nullptr);
  state_ = nullptr;
}

// ---- SessionStore -------------------------------------------------------------------------------

SessionStore::~SessionStore() {
  TM_CHECK(idle_.size() == entries_.size(), "a session is in use as its store goes");
}

void SessionStore::Start(const Clock& clock) {
  std::lock_guard lock(mutex_);
  clock_ = &clock;
}

RpcError SessionStore::Take(const SessionKey& key, SessionLease* lease) {
  lease->LetGo();
  std::lock_guard lock(mutex_);
  TM_CHECK(clock_ != nullptr, "a session is taken before the store was started");
  DropExpired();
  auto found = entries_.find(key);
  if (found != entries_.end() && found->second.in_use) return InUseError(key.name);
  if (found == entries_.end()) {
    if (entries_.size() >= static_cast<size_t>(options_.max_sessions) && !MakeRoom(key.caller)) {
      return TooManyError();
    }
    const Shares::iterator owner = shares_.try_emplace(key.caller).first;
    ++owner->second.sessions;
    found = entries_.emplace(key, Entry{.created_ns = clock_->NowNs(), .owner = owner}).first;
  } else {
    idle_.erase(found->second.place);
  }
  Entry& entry = found->second;
  entry.in_use = true;
  entry.used_ns = clock_->NowNs();
  *lease = SessionLease(this, key, entry.state);
  return {};
}

void SessionStore::Return(const SessionKey& key, std::shared_ptr<const SessionState> state) {
  const int64_t bytes = state == nullptr ? 0 : state->Bytes();
  std::lock_guard lock(mutex_);
  const auto found = entries_.find(key);
  Entry& entry = found->second;
  if (state != nullptr) {
    bytes_ += bytes - entry.bytes;
    entry.owner->second.bytes += bytes - entry.bytes;
    entry.bytes = bytes;
    entry.state = std::move(state);
  }
  if (entry.state == nullptr) return Erase(*found);
  entry.in_use = false;
  entry.used_ns = clock_->NowNs();
  entry.place = idle_.insert(idle_.end(), &*found);
  while (bytes_ > options_.max_bytes && !idle_.empty()) Drop(*OldestIdleOfMost(&Share::bytes));
}

v1::ListSessionsResponse SessionStore::List(const std::string& caller, int64_t unix_s) {
  v1::ListSessionsResponse list;
  std::lock_guard lock(mutex_);
  if (clock_ == nullptr) return list;
  DropExpired();
  const int64_t now_ns = clock_->NowNs();
  const auto moment = [&](int64_t at_ns) { return unix_s - (now_ns - at_ns) / kNsPerSecond; };
  for (auto at = entries_.lower_bound({caller, ""}); at != entries_.end() && at->first.caller == caller;
       ++at) {
    const Entry& entry = at->second;
    v1::Session* session = list.add_sessions();
    session->set_name(at->first.name);
    if (entry.state != nullptr) {
      session->set_tokens(static_cast<int64_t>(entry.state->ids.size()));
      session->set_messages(entry.state->chat.messages_size());
    }
    session->set_in_use(entry.in_use);
    session->set_created_s(moment(entry.created_ns));
    session->set_last_used_s(moment(entry.used_ns));
  }
  return list;
}

RpcError SessionStore::Delete(const SessionKey& key, const std::string& cache_salt) {
  if (const std::string fault = SessionNameFault(key.name); !fault.empty()) return FieldError("name", fault);
  std::lock_guard lock(mutex_);
  Kept* found = nullptr;
  if (RpcError error = FindIdle(key, cache_salt, &found); !error.ok()) return error;
  Drop(*found);
  return {};
}

RpcError SessionStore::Find(const SessionKey& key, const std::string& cache_salt,
                            std::shared_ptr<const SessionState>* state) {
  std::lock_guard lock(mutex_);
  Kept* found = nullptr;
  if (RpcError error = FindIdle(key, cache_salt, &found); !error.ok()) return error;
  *state = found->second.state;
  return {};
}

RpcError SessionStore::NotFoundError(const std::string& name) {
  RpcError error = ToRpcError(Status(StatusCode::kNotFound, "there is no session \"" + name + "\""));
  error.reason = "SESSION_NOT_FOUND";
  return error;
}

// Who does not know the salt is not told either that a request uses the session.
RpcError SessionStore::FindIdle(const SessionKey& key, const std::string& cache_salt, Kept** found) {
  if (clock_ != nullptr) DropExpired();
  const auto at = entries_.find(key);
  if (at == entries_.end()) return NotFoundError(key.name);
  const Entry& entry = at->second;
  if (entry.state != nullptr && entry.state->cache_salt != cache_salt) return NotFoundError(key.name);
  if (entry.in_use) return InUseError(key.name);
  *found = &*at;
  return {};
}

void SessionStore::DropExpired() {
  if (options_.ttl_ns == 0) return;
  const int64_t now_ns = clock_->NowNs();
  while (!idle_.empty() && now_ns - idle_.front()->second.used_ns >= options_.ttl_ns) Drop(*idle_.front());
}

RpcError SessionStore::TooManyError() const {
  const std::string limit = std::to_string(options_.max_sessions);
  return BusyError("TOO_MANY_SESSIONS",
                   idle_.empty()
                       ? "all of the server's " + limit + " sessions are in use, its limit (max_sessions)"
                       : "the caller has half or more of the server's " + limit +
                             " sessions (max_sessions), and all of its own are in use");
}

bool SessionStore::MakeRoom(const std::string& caller) {
  const auto own = shares_.find(caller);
  const bool has_half = own != shares_.end() && 2 * own->second.sessions >= options_.max_sessions;
  Kept* const oldest = has_half ? OldestIdle(caller) : OldestIdleOfMost(&Share::sessions);
  if (oldest != nullptr) Drop(*oldest);
  return oldest != nullptr;
}

SessionStore::Kept* SessionStore::OldestIdle(const std::string& caller) const {
  const auto found = std::find_if(idle_.begin(), idle_.end(),
                                  [&](const Kept* kept) { return kept->first.caller == caller; });
  return found == idle_.end() ? nullptr : *found;
}

SessionStore::Kept* SessionStore::OldestIdleOfMost(int64_t Share::* amount) const {
  const auto amount_of = [&](const Kept* kept) { return kept->second.owner->second.*amount; };
  const auto found = std::max_element(
      idle_.begin(), idle_.end(), [&](const Kept* a, const Kept* b) { return amount_of(a) < amount_of(b); });
  return found == idle_.end() ? nullptr : *found;
}

void SessionStore::Drop(Kept& kept) {
  idle_.erase(kept.second.place);
  Erase(kept);
}

void SessionStore::Erase(Kept& kept) {
  const Entry& entry = kept.second;
  bytes_ -= entry.bytes;
  Share& share = entry.owner->second;
  share.bytes -= entry.bytes;
  if (--share.sessions == 0) shares_.erase(entry.owner);
  entries_.erase(entries_.find(kept.first));
}

}  // namespace tramontane

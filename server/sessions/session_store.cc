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
  return static_cast<int64_t>(ids.size() * sizeof(int32_t) + chat.ByteSizeLong() + cache_salt.size());
}

// ---- SessionLease -------------------------------------------------------------------------------

SessionLease& SessionLease::operator=(SessionLease&& other) noexcept {
  if (this == &other) return *this;
  LetGo();
  store_ = std::exchange(other.store_, nullptr);
  name_ = std::move(other.name_);
  state_ = std::move(other.state_);
  return *this;
}

void SessionLease::Keep(SessionState state) {
  TM_CHECK(held(), "a session is kept that is not held");
  std::exchange(store_, nullptr)->Return(name_, std::make_shared<const SessionState>(std::move(state)));
  state_ = nullptr;
}

void SessionLease::LetGo() {
  if (held()) std::exchange(store_, nullptr)->Return(name_, nullptr);
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

RpcError SessionStore::Take(const std::string& name, SessionLease* lease) {
  lease->LetGo();
  std::lock_guard lock(mutex_);
  TM_CHECK(clock_ != nullptr, "a session is taken before the store was started");
  DropExpired();
  auto found = entries_.find(name);
  if (found != entries_.end() && found->second.in_use) return InUseError(name);
  if (found == entries_.end()) {
    const bool has_room = entries_.size() < static_cast<size_t>(options_.max_sessions) || DropOldest();
    if (!has_room) {
      return BusyError("TOO_MANY_SESSIONS", "all of the server's " + std::to_string(options_.max_sessions) +
                                                " sessions are in use, its limit (max_sessions)");
    }
    found = entries_.emplace(name, Entry{.created_ns = clock_->NowNs()}).first;
  } else {
    idle_.erase(found->second.place);
  }
  Entry& entry = found->second;
  entry.in_use = true;
  entry.used_ns = clock_->NowNs();
  *lease = SessionLease(this, name, entry.state);
  return {};
}

void SessionStore::Return(const std::string& name, std::shared_ptr<const SessionState> state) {
  const int64_t bytes = state == nullptr ? 0 : state->Bytes();
  std::lock_guard lock(mutex_);
  const auto found = entries_.find(name);
  Entry& entry = found->second;
  if (state != nullptr) {
    bytes_ -= std::exchange(entry.bytes, bytes);
    bytes_ += entry.bytes;
    entry.state = std::move(state);
  }
  if (entry.state == nullptr) {
    entries_.erase(found);
    return;
  }
  entry.in_use = false;
  entry.used_ns = clock_->NowNs();
  entry.place = idle_.insert(idle_.end(), name);
  while (bytes_ > options_.max_bytes && DropOldest()) {
  }
}

v1::ListSessionsResponse SessionStore::List(int64_t unix_s) {
  v1::ListSessionsResponse list;
  std::lock_guard lock(mutex_);
  if (clock_ == nullptr) return list;
  DropExpired();
  const int64_t now_ns = clock_->NowNs();
  const auto moment = [&](int64_t at_ns) { return unix_s - (now_ns - at_ns) / kNsPerSecond; };
  for (const auto& [name, entry] : entries_) {
    v1::Session* session = list.add_sessions();
    session->set_name(name);
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

RpcError SessionStore::Delete(const std::string& name) {
  if (const std::string fault = SessionNameFault(name); !fault.empty()) return FieldError("name", fault);
  std::lock_guard lock(mutex_);
  Entries::iterator found;
  if (RpcError error = FindIdle(name, &found); !error.ok()) return error;
  Drop(found);
  return {};
}

RpcError SessionStore::Find(const std::string& name, std::shared_ptr<const SessionState>* state) {
  std::lock_guard lock(mutex_);
  Entries::iterator found;
  if (RpcError error = FindIdle(name, &found); !error.ok()) return error;
  *state = found->second.state;
  return {};
}

RpcError SessionStore::FindIdle(const std::string& name, Entries::iterator* found) {
  if (clock_ != nullptr) DropExpired();
  *found = entries_.find(name);
  if (*found == entries_.end()) {
    RpcError error = ToRpcError(Status(StatusCode::kNotFound, "there is no session \"" + name + "\""));
    error.reason = "SESSION_NOT_FOUND";
    return error;
  }
  return (*found)->second.in_use ? InUseError(name) : RpcError();
}

void SessionStore::DropExpired() {
  if (options_.ttl_ns == 0) return;
  const int64_t now_ns = clock_->NowNs();
  while (!idle_.empty()) {
    const auto oldest = entries_.find(idle_.front());
    if (now_ns - oldest->second.used_ns < options_.ttl_ns) return;
    Drop(oldest);
  }
}

bool SessionStore::DropOldest() {
  if (idle_.empty()) return false;
  Drop(entries_.find(idle_.front()));
  return true;
}

void SessionStore::Drop(Entries::iterator entry) {
  idle_.erase(entry->second.place);
  bytes_ -= entry->second.bytes;
  entries_.erase(entry);
}

}  // namespace tramontane

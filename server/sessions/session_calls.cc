#include "server/sessions/session_calls.h"

#include <chrono>
#include <utility>

#include "engine/kv/kv_owner.h"
#include "engine/request/request.h"

namespace tramontane {
namespace {

RpcError NoSessionDirError() {
  RpcError error = ToRpcError(Status(StatusCode::kFailedPrecondition,
                                     "sessions are saved and restored only where --session-dir is given"));
  error.reason = "NO_SESSION_DIR";
  return error;
}

CachedText SessionText(const Caller& caller, const SessionState& state) {
  return CachedTextOf(state.ids, PageSalt(caller, state.cache_salt), state.context_policy, state.kv_owner);
}

void Describe(const std::string& name, const SessionState& state, v1::Session* session) {
  session->set_name(name);
  session->set_tokens(static_cast<int64_t>(state.ids.size()));
  session->set_messages(state.chat.messages_size());
}

}  // namespace

void SessionCalls::Serve(const ServedModel& model) {
  model_ = &model;
  fingerprint_ = ModelFingerprint(model);
  weights_fingerprint_ = WeightsFingerprint(model);
  store_.Start(*model.clock);
}

SavedSessionModel SessionCalls::SavedModel() const {
  return {.name = model_->names[0],
          .fingerprint = fingerprint_,
          .vocab_size = model_->config.vocab_size,
          .layout = model_->engine->keeps_pages() ? &model_->engine->kv_layout() : nullptr,
          .weights = weights_fingerprint_};
}

std::shared_ptr<KvTransfer> SessionCalls::Copied(std::shared_ptr<KvTransfer> transfer) const {
  Engine& engine = *model_->engine;
  if (!engine.keeps_pages() || !engine.StartTransfer(transfer).ok()) return nullptr;
  transfer->Wait();
  return transfer->status().ok() ? transfer : nullptr;
}

RpcError SessionCalls::List(const Caller& caller, v1::ListSessionsResponse* response) {
  const auto since_1970 = std::chrono::system_clock::now().time_since_epoch();
  *response =
      store_.List(caller.identity, std::chrono::duration_cast<std::chrono::seconds>(since_1970).count());
  return {};
}

RpcError SessionCalls::Delete(const Caller& caller, const v1::DeleteSessionRequest& request) {
  return store_.Delete({caller.identity, request.name()}, request.cache_salt());
}

RpcError SessionCalls::Save(const Caller& caller, const v1::SaveSessionRequest& request,
                            v1::SaveSessionResponse* response) {
  if (files_ == nullptr) return NoSessionDirError();
  const SessionKey key{caller.identity, request.name()};
  if (const std::string fault = SessionNameFault(key.name); !fault.empty()) return FieldError("name", fault);
  std::shared_ptr<const SessionState> state;
  if (RpcError error = store_.Find(key, request.cache_salt(), &state); !error.ok()) return error;
  const auto read = Copied(std::make_shared<KvTransfer>(SessionText(caller, *state)));
  const KvPages* pages = read == nullptr ? nullptr : &read->pages();
  int64_t bytes = 0;
  if (RpcError error = files_->Save(caller, key.name, *state, SavedModel(), pages, &bytes); !error.ok())
    return error;
  Describe(key.name, *state, response->mutable_session());
  response->set_bytes(bytes);
  response->set_kv_tokens(read == nullptr ? 0 : read->tokens());
  return {};
}

RpcError SessionCalls::Restore(const Caller& caller, const v1::RestoreSessionRequest& request,
                               v1::RestoreSessionResponse* response) {
  if (files_ == nullptr) return NoSessionDirError();
  const SessionKey key{caller.identity, request.name()};
  if (const std::string fault = SessionNameFault(key.name); !fault.empty()) return FieldError("name", fault);
  SessionState state;
  KvPages pages;
  RpcError error = files_->Restore(caller, key.name, request.cache_salt(), SavedModel(), &state, &pages);
  if (!error.ok()) return error;
  state.kv_owner = std::make_shared<const KvOwner>();
  SessionLease lease;
  if (error = store_.Take(key, &lease); !error.ok()) return error;
  // In its place only for who could have deleted it.
  const SessionState* before = lease.state();
  if (before != nullptr && before->cache_salt != request.cache_salt()) {
    return SessionStore::NotFoundError(key.name);
  }
  Describe(key.name, state, response->mutable_session());
  if (pages.tokens > 0) {
    const auto written = Copied(std::make_shared<KvTransfer>(SessionText(caller, state), std::move(pages)));
    response->set_kv_tokens(written == nullptr ? 0 : written->tokens());
  }
  lease.Keep(std::move(state));
  return {};
}

}  // namespace tramontane

#include "server/core/inference_core.h"

#include <algorithm>
#include <utility>

#include "server/access/api_key.h"
#include "server/answers/tool_choice.h"
#include "server/core/model_info.h"
#include "server/core/served_call.h"
#include "server/watch/engine_trace.h"
#include "server/watch/kv_tables_text.h"

namespace tramontane {
namespace {

constexpr int kMaxAbortIds = 1024;

}  // namespace

InferenceCore::InferenceCore(const InferenceCoreOptions& options)
    : max_streams_(options.max_streams),
      step_timeout_(options.step_timeout),
      unread_answers_(options.max_unread_answer_bytes),
      sessions_(options.sessions),
      session_files_(options.session_files),
      workers_(options.workers),
      compilers_({.threads = options.compiler_threads,
                  .max_queued = options.workers.max_queued,
                  .max_queued_bytes = options.workers.max_queued_bytes,
                  .long_bytes = options.workers.long_bytes,
                  .max_running_of_client = std::max(1, options.compiler_threads / 2)}) {}

// The last hold on a call may be the engine's own, for as long as it tells the call that there is something
// to take: the call then goes on that thread, after its reader.
InferenceCore::~InferenceCore() {
  std::unique_lock lock(streams_mutex_);
  streams_changed_.wait(lock, [this] { return open_streams_.empty(); });
}

void InferenceCore::Serve(const ServedModel& model) {
  serving_owner_ = std::make_unique<Serving>(model);
  sessions_.Start(*model.clock);
  serving_.store(serving_owner_.get(), std::memory_order_release);
}

bool InferenceCore::WaitForStreams(int64_t timeout_ns) {
  std::unique_lock lock(streams_mutex_);
  return streams_changed_.wait_for(lock, std::chrono::nanoseconds(timeout_ns),
                                   [this] { return open_streams_.empty(); });
}

void InferenceCore::StopCalls() {
  StartDraining();
  std::lock_guard lock(streams_mutex_);  // keeps the calls from going meanwhile
  stopping_ = true;
  for (ServedCall* call : open_streams_) call->Cancel();
}

RpcError InferenceCore::Health() const {
  const Serving* model = serving();
  if (model == nullptr) return LoadingError();
  const Engine& engine = *model->model.engine;
  if (const Status fatal = engine.fatal(); !fatal.ok()) return ToRpcError(fatal);
  const double stalled_s = static_cast<double>(engine.stalled_ns()) * 1e-9;
  if (step_timeout_ <= 0 || stalled_s <= step_timeout_) return {};
  return UnavailableError("STALLED", "the engine has work and has made no step for " +
                                         std::to_string(static_cast<int64_t>(stalled_s)) +
                                         " s, over step_timeout");
}

std::unique_ptr<TraceText> InferenceCore::StartTrace() const {
  const Serving* model = serving();
  if (model == nullptr) return nullptr;
  return std::make_unique<EngineTrace>(model->model.engine->step_trace(), request_trace_);
}

std::unique_ptr<PendingText> InferenceCore::AskKvTables(RpcError* refusal) const {
  const Serving* model = serving();
  if (model == nullptr) {
    *refusal = LoadingError();
    return nullptr;
  }
  StatusOr<std::shared_ptr<KvQuestion>> question = model->model.engine->AskKv();
  if (question.ok()) return std::make_unique<KvTablesText>(*std::move(question));
  *refusal = ToRpcError(question.status());
  return nullptr;
}

RpcError InferenceCore::RunUnary(UnaryThread thread, int64_t input_bytes, const Caller& caller,
                                 std::function<void(const Serving&)> work) {
  const Serving* model = serving();
  if (model == nullptr) return LoadingError();
  if (thread == UnaryThread::kCallers) {
    work(*model);
    return {};
  }
  const bool taken =
      workers_.TrySubmit(input_bytes, caller.identity, [model, work = std::move(work)] { work(*model); });
  return taken ? RpcError() : WorkersBusyError();
}

RpcError InferenceCore::WorkersBusyError() const {
  const WorkerPoolOptions& options = workers_.options();
  return BusyError("INPUT_QUEUE_FULL", "too much input waits to be tokenised: at most " +
                                           std::to_string(options.max_queued) +
                                           " requests (max_queued_work) and " +
                                           std::to_string(options.max_queued_bytes) + " bytes");
}

bool InferenceCore::MayCompile(const v1::GenerateRequest& request) {
  return request.has_constraint() || MustCallTools(request.chat());
}

bool InferenceCore::SubmitCall(const v1::GenerateRequest& request, const Caller& caller,
                               std::function<void()> work) {
  WorkerPool& pool = MayCompile(request) ? compilers_ : workers_;
  return pool.TrySubmit(static_cast<int64_t>(request.ByteSizeLong()), caller.identity, std::move(work));
}

RpcError InferenceCore::LoadingError() { return UnavailableError("LOADING", "the model is still loading"); }

RpcError InferenceCore::DrainingError() {
  return UnavailableError("DRAINING", "the server is stopping and takes no new requests");
}

RpcError InferenceCore::StoppedError() {
  return UnavailableError("STOPPED", "the server stopped before the request was finished");
}

RpcError InferenceCore::Abort(const v1::AbortRequest& request, v1::AbortResponse* response) {
  if (request.request_ids_size() > kMaxAbortIds) {
    return FieldError("request_ids", "has " + std::to_string(request.request_ids_size()) +
                                         " entries, the most is " + std::to_string(kMaxAbortIds));
  }
  for (const std::string& id : request.request_ids()) {
    std::lock_guard lock(ids_mutex_);  // keeps the call from ending meanwhile
    const auto found = by_id_.find(id);
    if (found == by_id_.end()) continue;
    found->second->Cancel();
    response->add_found(id);
  }
  return {};
}

RpcError InferenceCore::GetServerInfo(const Serving& serving, v1::GetServerInfoResponse* response) const {
  const auto uptime = std::chrono::steady_clock::now() - start_;
  response->set_version(TRAMONTANE_VERSION);
  response->set_uptime_ms(std::chrono::duration_cast<std::chrono::milliseconds>(uptime).count());
  response->set_device(serving.model.device);
  response->set_draining(draining_);
  v1::Limits* limits = response->mutable_limits();
  EngineLimitsToProto(serving.model, limits);
  limits->set_max_message_bytes(kMaxMessageBytes);
  limits->set_max_queued_work(workers_.options().max_queued);
  limits->set_max_queued_work_bytes(workers_.options().max_queued_bytes);
  limits->set_max_streams(max_streams_);
  return {};
}

RpcError InferenceCore::GetLoad(const Serving& serving, v1::GetLoadResponse* response) const {
  LoadToProto(serving.model.engine->Load(), response);
  if (ConstraintCompiler* constraints = serving.model.constraints) {
    const ConstraintStats stats = constraints->stats();
    response->set_compiled_constraints(stats.compiled);
    response->set_cached_constraints(stats.cached);
    response->set_cached_constraint_bytes(stats.cached_bytes);
  }
  response->set_waiting_requests(response->waiting_requests() + unsent_);
  response->set_queued_work(workers_.pending() + compilers_.pending());
  response->set_max_waiting_requests(serving.model.engine->limits().max_queued_requests);
  response->set_max_open_streams(max_streams_);
  std::lock_guard lock(streams_mutex_);
  response->set_open_streams(static_cast<int32_t>(open_streams_.size()));
  return {};
}

RpcError InferenceCore::ListSessions(v1::ListSessionsResponse* response) {
  const auto since_1970 = std::chrono::system_clock::now().time_since_epoch();
  *response = sessions_.List(std::chrono::duration_cast<std::chrono::seconds>(since_1970).count());
  return {};
}

RpcError InferenceCore::DeleteSession(const v1::DeleteSessionRequest& request) {
  return sessions_.Delete(request.name());
}

namespace {

RpcError NoSessionDirError() {
  RpcError error = ToRpcError(Status(StatusCode::kFailedPrecondition,
                                     "sessions are saved and restored only where --session-dir is given"));
  error.reason = "NO_SESSION_DIR";
  return error;
}

SavedSessionModel SavedModelOf(const Serving& serving) {
  return {.name = serving.model.names[0],
          .fingerprint = serving.fingerprint,
          .vocab_size = serving.model.config.vocab_size,
          .layout = serving.model.engine->keeps_pages() ? &serving.model.engine->kv_layout() : nullptr,
          .weights = serving.weights};
}

// Held while a session is saved or restored: of all its pages the host has a copy meanwhile, and a worker is
// busy with it.
class CopySlot {
 public:
  explicit CopySlot(std::atomic<bool>& taken) : taken_(taken), held_(!taken.exchange(true)) {}
  ~CopySlot() {
    if (held_) taken_ = false;
  }
  CopySlot(const CopySlot&) = delete;
  CopySlot& operator=(const CopySlot&) = delete;
  bool held() const { return held_; }

 private:
  std::atomic<bool>& taken_;
  const bool held_;
};

RpcError FilesBusyError() {
  return BusyError("SESSION_FILES_BUSY", "another session is being saved or restored, one at a time is");
}

// Null: no pages are kept, or there is no copying them now; a session is saved and restored all the same.
std::shared_ptr<KvTransfer> Copied(const Serving& serving, std::shared_ptr<KvTransfer> transfer) {
  Engine& engine = *serving.model.engine;
  if (!engine.keeps_pages() || !engine.StartTransfer(transfer).ok()) return nullptr;
  transfer->Wait();
  return transfer->status().ok() ? transfer : nullptr;
}

CachedText SessionText(const SessionState& state) {
  return CachedTextOf(state.ids, state.cache_salt, state.context_policy, state.kv_owner);
}

void Describe(const std::string& name, const SessionState& state, v1::Session* session) {
  session->set_name(name);
  session->set_tokens(static_cast<int64_t>(state.ids.size()));
  session->set_messages(state.chat.messages_size());
}

}  // namespace

RpcError InferenceCore::SaveSession(const Serving& serving, const v1::SaveSessionRequest& request,
                                    v1::SaveSessionResponse* response) {
  if (session_files_ == nullptr) return NoSessionDirError();
  const std::string& name = request.name();
  if (const std::string fault = SessionNameFault(name); !fault.empty()) return FieldError("name", fault);
  std::shared_ptr<const SessionState> state;
  if (RpcError error = sessions_.Find(name, &state); !error.ok()) return error;
  const CopySlot slot(copies_session_);
  if (!slot.held()) return FilesBusyError();
  const auto read = Copied(serving, std::make_shared<KvTransfer>(SessionText(*state)));
  const KvPages* pages = read == nullptr ? nullptr : &read->pages();
  int64_t bytes = 0;
  RpcError error = session_files_->Save(name, *state, SavedModelOf(serving), pages, &bytes);
  if (!error.ok()) return error;
  Describe(name, *state, response->mutable_session());
  response->set_bytes(bytes);
  response->set_kv_tokens(read == nullptr ? 0 : read->tokens());
  return {};
}

RpcError InferenceCore::RestoreSession(const Serving& serving, const v1::RestoreSessionRequest& request,
                                       v1::RestoreSessionResponse* response) {
  if (session_files_ == nullptr) return NoSessionDirError();
  const std::string& name = request.name();
  if (const std::string fault = SessionNameFault(name); !fault.empty()) return FieldError("name", fault);
  const CopySlot slot(copies_session_);
  if (!slot.held()) return FilesBusyError();
  SessionState state;
  KvPages pages;
  if (RpcError error = session_files_->Restore(name, SavedModelOf(serving), &state, &pages); !error.ok()) {
    return error;
  }
  state.kv_owner = std::make_shared<const KvOwner>();
  SessionLease lease;
  if (RpcError error = sessions_.Take(name, &lease); !error.ok()) return error;
  Describe(name, state, response->mutable_session());
  if (pages.tokens > 0) {
    const auto written = Copied(serving, std::make_shared<KvTransfer>(SessionText(state), std::move(pages)));
    response->set_kv_tokens(written == nullptr ? 0 : written->tokens());
  }
  lease.Keep(std::move(state));
  return {};
}

RpcError InferenceCore::CheckMayUse(const Caller& caller, const ServedModel& model) {
  const auto may_use = [&caller](const std::string& name) { return caller.key->MayUse(name); };
  if (caller.key == nullptr || std::any_of(model.names.begin(), model.names.end(), may_use)) return {};
  RpcError error =
      ToRpcError(Status(StatusCode::kPermissionDenied,
                        "the key \"" + caller.key->name + "\" is not for the model that is served"));
  error.reason = "MODEL_NOT_ALLOWED";
  return error;
}

namespace {

// A later call of a request that was taken is part of it.
const ApiKey* CountedKey(const ServedCall& call) {
  return call.continues() ? nullptr : call.caller().key.get();
}

}  // namespace

RpcError InferenceCore::AddStream(ServedCall* call) {
  std::lock_guard lock(streams_mutex_);
  if (stopping_ || (draining_ && !call->continues())) return DrainingError();
  if (open_streams_.size() >= static_cast<size_t>(max_streams_)) {
    return BusyError("TOO_MANY_STREAMS", "the server has " + std::to_string(max_streams_) +
                                             " open streams, its limit (max_streams)");
  }
  if (RpcError error = key_requests_.Begin(CountedKey(*call)); !error.ok()) return error;
  open_streams_.insert(call);
  return {};
}

void InferenceCore::RemoveStream(ServedCall* call) {
  std::lock_guard lock(streams_mutex_);
  open_streams_.erase(call);
  key_requests_.End(CountedKey(*call));
  if (open_streams_.empty()) streams_changed_.notify_all();
}

bool InferenceCore::RegisterId(const std::string& id, ServedCall* call) {
  std::lock_guard lock(ids_mutex_);
  return by_id_.emplace(id, call).second;
}

void InferenceCore::UnregisterId(const std::string& id) {
  std::lock_guard lock(ids_mutex_);
  by_id_.erase(id);
}

}  // namespace tramontane

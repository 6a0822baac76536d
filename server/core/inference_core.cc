#include "server/core/inference_core.h"

#include <algorithm>
#include <utility>

#include "server/access/api_key.h"
#include "server/core/live_requests.h"
#include "server/core/model_info.h"
#include "server/core/served_call.h"
#include "server/watch/engine_trace.h"
#include "server/watch/kv_tables_text.h"

namespace tramontane {
namespace {

constexpr int kMaxAbortIds = 1024;
constexpr int32_t kMaxWaitingSessions = 16;  // to be saved or restored

int64_t NowNs() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

// There is no room, and will be in this time.
RpcError WithRetryIn(int64_t ns, RpcError error) {
  error.retry_after_ms = (ns + 999'999) / 1'000'000;
  return error;
}

RpcError SessionFilesBusyError(int64_t retry_ns) {
  return WithRetryIn(retry_ns,
                     BusyError("SESSION_FILES_BUSY", "sessions are saved and restored one at a time, and " +
                                                         std::to_string(kMaxWaitingSessions) +
                                                         " wait for it, the most that may"));
}

}  // namespace

InferenceCore::InferenceCore(const InferenceCoreOptions& options)
    : max_streams_(options.max_streams),
      step_timeout_(options.step_timeout),
      unread_answers_(options.max_unread_answer_bytes),
      sessions_(options.sessions, options.session_files),
      workers_(options.workers),
      compilers_({.threads = options.compiler_threads,
                  .max_queued = options.workers.max_queued,
                  .max_queued_bytes = options.workers.max_queued_bytes,
                  .long_bytes = options.workers.long_bytes,
                  .max_running_of_caller = std::max(1, options.compiler_threads / 2)}),
      session_copiers_({.threads = 1, .max_queued = kMaxWaitingSessions}) {}

// The last hold on a call may be the engine's own, for as long as it tells the call that there is something
// to take: the call then goes on that thread, after its reader.
InferenceCore::~InferenceCore() {
  std::unique_lock lock(streams_mutex_);
  streams_changed_.wait(lock, [this] { return open_streams_.empty(); });
}

void InferenceCore::Serve(const ServedModel& model) {
  serving_owner_ = std::make_unique<Serving>(model);
  sessions_.Serve(serving_owner_->model);
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

std::unique_ptr<PendingText> InferenceCore::AskLiveRequests(RpcError* refusal) const {
  const Serving* model = serving();
  if (model == nullptr) {
    *refusal = LoadingError();
    return nullptr;
  }
  std::vector<LiveCall> calls;
  {
    std::lock_guard lock(streams_mutex_);  // keeps the calls from going meanwhile
    calls.reserve(open_streams_.size());
    for (const ServedCall* call : open_streams_) calls.push_back(call->Live());
  }
  StatusOr<std::shared_ptr<LiveQuestion>> question = model->model.engine->AskLive();
  if (question.ok()) {
    return std::make_unique<LiveRequestsText>(std::move(calls), model->model.names[0],
                                              model->model.clock->NowNs(), *std::move(question));
  }
  *refusal = ToRpcError(question.status());
  return nullptr;
}

void InferenceCore::RunUnary(UnaryThread thread, int64_t input_bytes, const Caller& caller,
                             std::function<void(const Serving&)> work,
                             std::function<void(const RpcError&)> refuse) {
  const Serving* model = serving();
  if (model == nullptr) return refuse(LoadingError());
  if (thread == UnaryThread::kCallers) return work(*model);
  const bool waits_for_disk = thread == UnaryThread::kSessionFiles;
  const auto do_work = [this, model, waits_for_disk, work = std::move(work), refuse] {
    waits_for_disk&& stopping_ ? refuse(StoppedError()) : work(*model);
  };
  const auto refuse_busy = [this, waits_for_disk, refuse] {
    refuse(waits_for_disk ? SessionFilesBusyError(session_copiers_.TellNextRoomNs()) : WorkersBusyError());
  };
  WorkerPool& pool = waits_for_disk ? session_copiers_ : workers_;
  const bool taken = pool.TrySubmit(
      {.caller = caller.identity, .bytes = input_bytes, .run = do_work, .give_way = refuse_busy});
  if (!taken) refuse_busy();
}

RpcError InferenceCore::WorkersBusyError() {
  const WorkerPoolOptions& options = workers_.options();
  return WithRetryIn(
      workers_.TellNextRoomNs(),
      BusyError("INPUT_QUEUE_FULL",
                "too much input waits to be tokenised: at most " + std::to_string(options.max_queued) +
                    " requests (max_queued_work) and " + std::to_string(options.max_queued_bytes) +
                    " bytes, of one caller half of it while others wait"));
}

bool InferenceCore::MayCompile(const v1::GenerateRequest& request) { return request.has_constraint(); }

bool InferenceCore::SubmitCall(const v1::GenerateRequest& request, const Caller& caller,
                               std::function<void()> work, std::function<void()> give_way) {
  WorkerPool& pool = MayCompile(request) ? compilers_ : workers_;
  return pool.TrySubmit({.caller = caller.identity,
                         .bytes = static_cast<int64_t>(request.ByteSizeLong()),
                         .run = std::move(work),
                         .give_way = std::move(give_way)});
}

RpcError InferenceCore::LoadingError() { return UnavailableError("LOADING", "the model is still loading"); }

RpcError InferenceCore::DrainingError() {
  return UnavailableError("DRAINING", "the server is stopping and takes no new requests");
}

RpcError InferenceCore::StoppedError() {
  return UnavailableError("STOPPED", "the server stopped before the request was finished");
}

RpcError InferenceCore::Abort(const Caller& caller, const v1::AbortRequest& request,
                              v1::AbortResponse* response) {
  if (request.request_ids_size() > kMaxAbortIds) {
    return FieldError("request_ids", "has " + std::to_string(request.request_ids_size()) +
                                         " entries, the most is " + std::to_string(kMaxAbortIds));
  }
  for (const std::string& id : request.request_ids()) {
    if (request_ids_.Cancel(caller.identity, id)) response->add_found(id);
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

RpcError InferenceCore::CheckMayUse(const Caller& caller, const ServedModel& model) {
  const auto may_use = [&caller](const std::string& name) { return caller.key->MayUse(name); };
  if (caller.key == nullptr || std::any_of(model.names.begin(), model.names.end(), may_use)) return {};
  RpcError error =
      ToRpcError(Status(StatusCode::kPermissionDenied,
                        "the key \"" + caller.key->name + "\" is not for the model that is served"));
  error.reason = "MODEL_NOT_ALLOWED";
  return error;
}

RpcError InferenceCore::AddStream(ServedCall* call) {
  std::lock_guard lock(streams_mutex_);
  if (stopping_ || (draining_ && !call->continues())) return DrainingError();
  if (open_streams_.size() >= static_cast<size_t>(max_streams_)) {
    return WithRetryIn(stream_drain_.TellNextNs(NowNs()),
                       BusyError("TOO_MANY_STREAMS", "the server has " + std::to_string(max_streams_) +
                                                         " open streams, its limit (max_streams)"));
  }
  open_streams_.insert(call);
  stream_drain_.Came(NowNs());
  return {};
}

void InferenceCore::RemoveStream(ServedCall* call) {
  std::lock_guard lock(streams_mutex_);
  open_streams_.erase(call);
  stream_drain_.Left(NowNs());
  if (open_streams_.empty()) streams_changed_.notify_all();
}

RpcError InferenceCore::CheckQueue(const Serving& serving) {
  return SubmitError(serving.model.engine->CheckQueue());
}

RpcError InferenceCore::SubmitError(const Status& status) {
  if (status.code() != StatusCode::kResourceExhausted) return ToRpcError(status);
  return WithRetryIn(queue_drain_.TellNextNs(NowNs()), ToRpcError(status));
}

void InferenceCore::NoteQueued() { queue_drain_.Came(NowNs()); }
void InferenceCore::NoteLeftQueue() { queue_drain_.Left(NowNs()); }

}  // namespace tramontane

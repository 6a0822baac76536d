// InferenceCore: what gRPC and HTTP share, so that a limit, a request id and a drain mean the same behind
// either door: the served model, the worker pool, the count of open streams, the ids in use.
//
// Any thread. Outlives every ServedCall and every piece of work that it was given: its end waits for them.
// It has 20 members because it is the one owner of what calls share: each is a noun with a file of its own.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>

#include "server/base/held_bytes.h"
#include "server/base/queue_drain.h"
#include "server/base/worker_pool.h"
#include "server/call/caller.h"
#include "server/call/rpc_error.h"
#include "server/call/served_model.h"
#include "server/core/proto_convert.h"
#include "server/core/request_ids.h"
#include "server/sessions/session_calls.h"
#include "server/watch/pending_text.h"
#include "server/watch/request_counts.h"
#include "server/watch/request_trace.h"
#include "server/watch/trace_text.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {

// Calls of an address beyond max_streams: what is refused is told so, and health and Abort need not wait for
// a stream's end.
inline constexpr int32_t kSpareCalls = 256;
inline constexpr int64_t kMaxMessageBytes = int64_t{8} << 20;  // of a request, as over HTTP

class ServedCall;

// Where the work of a unary call is done.
enum class UnaryThread {
  kCallers,       // at once: it takes no time
  kWorker,        // it takes time in proportion to its input
  kSessionFiles,  // one at a time: it waits for the disk
};

// What calls need once there is a model.
struct Serving {
  explicit Serving(const ServedModel& served) : model(served), converter(model) {}
  const ServedModel model;
  const ProtoConverter converter;
};

struct InferenceCoreOptions {
  WorkerPoolOptions workers;     // tokenising, chat rendering, detokenising
  int32_t compiler_threads = 4;  // for requests with constraints; one caller holds at most half of them
  int64_t max_unread_answer_bytes = int64_t{256} << 20;  // of all answers that clients have not taken yet
  int32_t max_streams = 2048;  // Generate calls open at once; one more: RESOURCE_EXHAUSTED
  SessionStoreOptions sessions = {};
  std::shared_ptr<SessionFiles> session_files = {};  // null: none are saved
  double step_timeout = 300;  // seconds with work and without a step, from which on Health fails; 0: never
};

class InferenceCore {
 public:
  explicit InferenceCore(const InferenceCoreOptions& options);
  // Waits for the calls that are still open, which must be on their way out, and does what the worker pools
  // still hold.
  ~InferenceCore();

  // ---- the server's life ----

  // Every call is refused with LoadingError until this. Once.
  void Serve(const ServedModel& model);
  // Generate calls that arrive from now on are refused with UNAVAILABLE, but for those that continue a
  // request.
  void StartDraining() { draining_ = true; }
  // And those that are open end with StoppedError: what the engine runs within a step, what waits for a
  // worker when its turn comes.
  void StopCalls();
  // True once no Generate call is open; false when that took longer than the timeout.
  bool WaitForStreams(int64_t timeout_ns);

  // UNAVAILABLE until Serve, and while the engine has work and has made no step for `step_timeout`; INTERNAL
  // once its device is lost.
  RpcError Health() const;

  // Steps and requests as they end from now on. Null: still loading.
  std::unique_ptr<TraceText> StartTrace() const;
  // The KV cache's tables, when the engine has told them. Null: still loading, or asked too often; then
  // `refusal` says which.
  std::unique_ptr<PendingText> AskKvTables(RpcError* refusal) const;
  // The requests that are open, when the engine has told of those that run. Null: as above.
  std::unique_ptr<PendingText> AskLiveRequests(RpcError* refusal) const;
  RequestTrace& request_trace() { return *request_trace_; }
  const std::shared_ptr<RequestCounts>& request_counts() const { return request_counts_; }
  SessionCalls& sessions() { return sessions_; }
  RequestIds& request_ids() { return request_ids_; }
  // What clients of both doors have not taken yet of their answers.
  ByteBudget& unread_answers() { return unread_answers_; }

  const Serving* serving() const { return serving_.load(std::memory_order_acquire); }  // null: still loading
  bool draining() const { return draining_; }
  bool stopping() const { return stopping_; }

  // Where everything that takes time in proportion to its input runs.
  WorkerPool& workers() { return workers_; }
  // Does the work of a unary call, where its row says; or else calls `refuse`: loading, or there is no room
  // for it, or no more.
  void RunUnary(UnaryThread thread, int64_t input_bytes, const Caller& caller,
                std::function<void(const Serving&)> work, std::function<void(const RpcError&)> refuse);
  // And where calls are admitted whose constraint may have to be compiled, which takes long however short it
  // is. Schemas of tools are compiled later, where they are called.
  WorkerPool& compilers() { return compilers_; }
  static bool MayCompile(const v1::GenerateRequest& request);
  // The work of admitting a call, where it belongs. False: the queue is full. `give_way`: see WorkerPool.
  [[nodiscard]] bool SubmitCall(const v1::GenerateRequest& request, const Caller& caller,
                                std::function<void()> work, std::function<void()> give_way);
  // Its queue is full.
  RpcError WorkersBusyError();
  static RpcError LoadingError();
  static RpcError DrainingError();
  static RpcError StoppedError();

  // ---- short calls, answered on the caller's thread ----

  // The caller's own calls alone.
  RpcError Abort(const Caller& caller, const v1::AbortRequest& request, v1::AbortResponse* response);
  RpcError GetServerInfo(const Serving& serving, v1::GetServerInfoResponse* response) const;
  RpcError GetLoad(const Serving& serving, v1::GetLoadResponse* response) const;

  // PERMISSION_DENIED: the caller's key is not for the model that is served here.
  static RpcError CheckMayUse(const Caller& caller, const ServedModel& model);

  // Requests that were taken, and that no engine has been given yet: those that doors keep until there is
  // room for them, and those that wait for a worker, or are with one.
  void NoteUnsent(int64_t change) { unsent_ += change; }
  int64_t waiting_at_doors() const { return unsent_ + workers_.pending() + compilers_.pending(); }
  int64_t queued_input_bytes() const { return workers_.pending_bytes() + compilers_.pending_bytes(); }

  // A call that generates was refused before there was a ServedCall for it to end.
  void NoteRefused(const Caller& caller, const RpcError& refusal) {
    request_counts_->NoteEnd(caller, EndOfCall(refusal, /*has_begun=*/false));
  }

  // ---- for ServedCall ----

  RpcError AddStream(ServedCall* call);  // not OK: as many are open as may be, or no more are taken
  void RemoveStream(ServedCall* call);
  // Not OK: the engine's queue is full, and a request need not be read to be refused.
  RpcError CheckQueue(const Serving& serving);
  // What a Submit of the engine says, whose queue may be full.
  RpcError SubmitError(const Status& status);
  void NoteQueued();
  void NoteLeftQueue();

 private:
  const int32_t max_streams_;
  const double step_timeout_;  // seconds
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();

  const std::shared_ptr<RequestTrace> request_trace_ = std::make_shared<RequestTrace>();
  const std::shared_ptr<RequestCounts> request_counts_ = std::make_shared<RequestCounts>();
  ByteBudget unread_answers_;
  SessionCalls sessions_;
  RequestIds request_ids_;
  std::unique_ptr<Serving> serving_owner_;
  std::atomic<const Serving*> serving_{nullptr};
  std::atomic<int64_t> unsent_{0};
  std::atomic<bool> draining_{false};
  std::atomic<bool> stopping_{false};

  QueueDrain queue_drain_;   // of the engine's queue
  QueueDrain stream_drain_;  // of open_streams_

  mutable std::mutex streams_mutex_;  // guards the next two
  std::condition_variable streams_changed_;
  std::unordered_set<ServedCall*> open_streams_;  // at most max_streams_

  WorkerPool workers_;  // these last: their work uses all of the above
  WorkerPool compilers_;
  WorkerPool session_copiers_;  // one thread
};

}  // namespace tramontane

#include "server/remote/remote_generation.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "server/remote/backend_outcome.h"
#include "server/remote/event_check.h"
#include "server/remote/joined_events.h"
#include "server/remote/server_choice.h"

namespace tramontane {
namespace {

constexpr char kCorrelationIdKey[] = "x-correlation-id";
constexpr char kMethod[] = "/tramontane.v1.Inference/Generate";

// Held by its reader's handle and by the attempt in progress.
class RemoteGeneration : public std::enable_shared_from_this<RemoteGeneration> {
 public:
  RemoteGeneration(RemoteServers& servers, const Caller& caller, v1::GenerateRequest request,
                   const InferenceCallOptions& options, std::function<void()> on_ready)
      : servers_(servers),
        caller_(caller),
        request_(std::move(request)),
        correlation_id_(options.correlation_id.value_or("")),
        deadline_(options.deadline),
        on_ready_(std::move(on_ready)),
        choice_(servers, request_.session()) {}

  bool Start(RpcError* refusal);  // false: nobody can take it
  InferenceEvents Take();
  void Cancel();

 private:
  class Attempt;

  bool StartAttempt(RemoteServer* server);    // false: null, or no call may start any more
  bool AddEvent(v1::GenerateResponse event);  // true: read on
  void EndAttempt(const RpcError& outcome);

  RemoteServers& servers_;
  const Caller caller_;
  const v1::GenerateRequest request_;
  const std::string correlation_id_;
  const std::optional<std::chrono::steady_clock::time_point> deadline_;
  const std::function<void()> on_ready_;

  std::mutex mutex_;  // guards the rest; gRPC and on_ready_ are called without it
  ServerChoice choice_;
  std::shared_ptr<Attempt> attempt_;  // in progress
  JoinedEvents held_;
  bool said_something_ = false;  // an event came: no other server is tried
  bool paused_ = false;          // the attempt waits for Take before it reads on
  bool cancelled_ = false;
  std::optional<RpcError> outcome_;  // until it is taken
};

// One call to one server. Owns itself until gRPC is done with it. It reads bytes, not events: of a message
// that is none gRPC would only say that there is no further one, and wait for the end.
class RemoteGeneration::Attempt final
    : public grpc::ClientBidiReactor<google::protobuf::Message, grpc::ByteBuffer>,
      public std::enable_shared_from_this<Attempt> {
 public:
  Attempt(std::shared_ptr<RemoteGeneration> generation, RemoteServer& server)
      : generation_(std::move(generation)),
        server_(server),
        check_(generation_->request_, generation_->servers_.max_answer_bytes()) {
    if (generation_->deadline_) {
      const auto left = *generation_->deadline_ - std::chrono::steady_clock::now();
      context_.set_deadline(std::chrono::system_clock::now() +
                            std::chrono::duration_cast<std::chrono::system_clock::duration>(left));
    }
    if (!generation_->correlation_id_.empty()) {
      context_.AddMetadata(kCorrelationIdKey, generation_->correlation_id_);
    }
    server.Sign(generation_->caller_, &context_);
    context_.set_initial_metadata_corked(true);  // goes with the request
  }

  grpc::ClientContext& context() { return context_; }

  // Among the open calls; false: no call may start.
  bool Open() {
    OpenCalls& calls = generation_->servers_.open_calls();
    if (!calls.Add(&context_)) return false;
    open_count_.calls = &calls;
    return true;
  }

  // REQUIRES: Open was true.
  void Start() {
    self_ = shared_from_this();
    server_.CallStarted();
    server_.raw_stub().PrepareBidiStreamingCall(&context_, kMethod, grpc::StubOptions(), this);
    AddHold();  // reads may start outside of gRPC's callbacks until one fails
    StartWriteLast(&generation_->request_, grpc::WriteOptions());
    StartRead(&message_);
    StartCall();
  }

  void Read() { StartRead(&message_); }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return RemoveHold();
    if (!fault_.empty()) return Read();  // to the end
    v1::GenerateResponse event;
    const bool is_event =
        grpc::SerializationTraits<v1::GenerateResponse>::Deserialize(&message_, &event).ok();
    fault_ = is_event ? check_.FaultOf(event) : "bytes that are no event";
    if (!fault_.empty()) {
      context_.TryCancel();
      return Read();
    }
    is_served_ = true;
    if (generation_->AddEvent(std::move(event))) Read();
  }

  void OnDone(const grpc::Status& status) override {
    server_.CallEnded(status.error_code() == grpc::StatusCode::UNAVAILABLE, is_served_);
    generation_->EndAttempt(OutcomeOf(status));
    OpenCalls& open_calls = generation_->servers_.open_calls();
    const std::shared_ptr<Attempt> self = std::move(self_);
    generation_ = nullptr;
    open_calls.Remove(&context_);
  }

  RpcError OutcomeOf(const grpc::Status& status) const {
    const std::string fault = fault_.empty() && status.ok() ? check_.FaultOfEnd() : fault_;
    if (!fault.empty()) return BadGatewayError(fault, server_.address());
    return status.ok() ? RpcError() : BackendError(status, server_.address());
  }

  OpenCallCount open_count_;  // in front of the context
  std::shared_ptr<RemoteGeneration> generation_;
  RemoteServer& server_;
  EventCheck check_;
  std::string fault_;  // of what the server has said; "": none so far
  bool is_served_ = false;
  grpc::ClientContext context_;
  grpc::ByteBuffer message_;
  std::shared_ptr<Attempt> self_;
};

bool RemoteGeneration::Start(RpcError* refusal) {
  RemoteServer* server = choice_.First();
  if (StartAttempt(server)) return true;
  *refusal = choice_.NoneError();
  return false;
}

bool RemoteGeneration::StartAttempt(RemoteServer* server) {
  if (server == nullptr) return false;
  const auto attempt = std::make_shared<Attempt>(shared_from_this(), *server);
  {
    std::lock_guard lock(mutex_);
    if (cancelled_ || !attempt->Open()) return false;
    attempt_ = attempt;
  }
  attempt->Start();  // a Cancel since then is not lost: it is in the context
  return true;
}

bool RemoteGeneration::AddEvent(v1::GenerateResponse event) {
  bool was_empty = false;
  bool read_on = true;
  {
    std::lock_guard lock(mutex_);
    if (cancelled_) return true;  // only the end is of interest
    said_something_ = true;
    was_empty = held_.empty();
    held_.Add(std::move(event));
    was_empty = was_empty && !held_.empty();  // there is something now
    read_on = held_.bytes() < kHeldCallBytes;
    paused_ = !read_on;
  }
  if (was_empty) on_ready_();
  return read_on;
}

void RemoteGeneration::EndAttempt(const RpcError& outcome) {
  RemoteServer* next = nullptr;
  {
    std::lock_guard lock(mutex_);
    attempt_ = nullptr;
    if (!said_something_) next = choice_.NextAfter(outcome);
  }
  if (StartAttempt(next)) return;
  bool was_empty = false;
  {
    std::lock_guard lock(mutex_);
    was_empty = held_.empty();
    outcome_ = outcome;
  }
  if (was_empty) on_ready_();
}

InferenceEvents RemoteGeneration::Take() {
  InferenceEvents taken;
  std::shared_ptr<Attempt> paused;
  {
    std::lock_guard lock(mutex_);
    taken.events = held_.Take();
    taken.done = outcome_.has_value();
    if (outcome_) taken.outcome = *std::exchange(outcome_, std::nullopt);
    if (std::exchange(paused_, false)) paused = attempt_;
  }
  if (paused != nullptr) paused->Read();
  return taken;
}

void RemoteGeneration::Cancel() {
  std::shared_ptr<Attempt> attempt;
  bool was_paused = false;
  {
    std::lock_guard lock(mutex_);
    cancelled_ = true;
    attempt = attempt_;
    was_paused = std::exchange(paused_, false);
  }
  if (attempt == nullptr) return;
  attempt->context().TryCancel();
  if (was_paused) attempt->Read();  // so that gRPC sees the end
}

// What the reader holds.
class RemoteCall final : public InferenceCall {
 public:
  explicit RemoteCall(std::shared_ptr<RemoteGeneration> generation) : generation_(std::move(generation)) {}
  ~RemoteCall() override { generation_->Cancel(); }
  InferenceEvents Take() override { return generation_->Take(); }
  void Cancel() override { generation_->Cancel(); }

 private:
  const std::shared_ptr<RemoteGeneration> generation_;
};

}  // namespace

std::shared_ptr<InferenceCall> GenerateRemotely(RemoteServers& servers, const Caller& caller,
                                                v1::GenerateRequest request,
                                                const InferenceCallOptions& options,
                                                std::function<void()> on_ready, RpcError* refusal) {
  auto generation =
      std::make_shared<RemoteGeneration>(servers, caller, std::move(request), options, std::move(on_ready));
  if (!generation->Start(refusal)) return nullptr;
  return std::make_shared<RemoteCall>(std::move(generation));
}

}  // namespace tramontane

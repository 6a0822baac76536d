#include "server/remote/remote_client.h"

#include <google/protobuf/descriptor.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "kernels/core/check.h"
#include "server/remote/from_grpc_status.h"
#include "server/remote/joined_events.h"
#include "server/remote/remote_server.h"
#include "tramontane/v1/inference.grpc.pb.h"

namespace tramontane {
namespace {

using AsyncStub = v1::Inference::StubInterface::async_interface;
using Clock = std::chrono::system_clock;  // gRPC's deadlines are of this one

constexpr size_t kMaxHeldBytes = 256 << 10;
constexpr std::chrono::seconds kUnaryTimeout(60);
constexpr char kCorrelationIdKey[] = "x-correlation-id";
constexpr char kMaxMessageBytes[] = "2147483647";  // the channels have no limit of their own

RpcError NoBackendError(const RemoteServers& backends) {
  return UnavailableError("NO_BACKEND", "no server can take the request: " + backends.Describe());
}

// Another server may well do what this one did not.
bool AnotherMayHelp(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::UNAVAILABLE ||
         status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED;
}

bool IsLost(const grpc::Status& status) { return status.error_code() == grpc::StatusCode::UNAVAILABLE; }

// What the server said, or what gRPC says in its place when the connection is gone.
RpcError OutcomeOf(const grpc::Status& status, const RemoteServer& backend) {
  RpcError error = FromGrpcStatus(status);
  if (IsLost(status) && error.reason.empty()) {
    return UnavailableError("BACKEND_LOST",
                            "the server " + backend.address() + " is gone: " + error.message());
  }
  return error;
}

// ---- Generate -----------------------------------------------------------------------------------

// One Generate, on one server after the other until one says something. Held by its reader's handle and by
// the attempt in progress.
class RemoteGeneration : public std::enable_shared_from_this<RemoteGeneration> {
 public:
  RemoteGeneration(RemoteServers& backends, v1::GenerateRequest request, const InferenceCallOptions& options,
                   std::function<void()> on_ready)
      : backends_(backends),
        request_(std::move(request)),
        correlation_id_(options.correlation_id.value_or("")),
        deadline_(options.deadline),
        on_ready_(std::move(on_ready)) {}

  // Starts an attempt at a server that was not tried yet. False: there is none that is up.
  bool TryNextBackend();
  InferenceEvents Take();
  void Cancel();

 private:
  class Attempt;

  bool AddEvent(v1::GenerateResponse event);  // true: read on
  void EndAttempt(const grpc::Status& status, const RemoteServer& backend);

  RemoteServers& backends_;
  const v1::GenerateRequest request_;
  const std::string correlation_id_;
  const std::optional<std::chrono::steady_clock::time_point> deadline_;
  const std::function<void()> on_ready_;

  std::mutex mutex_;                  // guards the rest; gRPC and on_ready_ are called without it
  std::shared_ptr<Attempt> attempt_;  // in progress
  std::vector<RemoteServer*> tried_;
  JoinedEvents held_;
  bool said_something_ = false;  // an event came: no other server is tried
  bool paused_ = false;          // the attempt waits for Take before it reads on
  bool cancelled_ = false;
  std::optional<RpcError> outcome_;  // until it is taken
};

// One call to one server. Owns itself until gRPC is done with it.
class RemoteGeneration::Attempt final : public grpc::ClientReadReactor<v1::GenerateResponse>,
                                        public std::enable_shared_from_this<Attempt> {
 public:
  Attempt(std::shared_ptr<RemoteGeneration> generation, RemoteServer& backend)
      : generation_(std::move(generation)), backend_(backend) {
    if (generation_->deadline_) {
      const auto left = *generation_->deadline_ - std::chrono::steady_clock::now();
      context_.set_deadline(Clock::now() + std::chrono::duration_cast<Clock::duration>(left));
    }
    if (!generation_->correlation_id_.empty()) {
      context_.AddMetadata(kCorrelationIdKey, generation_->correlation_id_);
    }
  }

  grpc::ClientContext& context() { return context_; }

  // Among the open calls; false: no call may start.
  bool Open() {
    OpenCalls& calls = generation_->backends_.open_calls();
    if (!calls.Add(&context_)) return false;
    open_count_.calls = &calls;
    return true;
  }

  // REQUIRES: Open was true.
  void Start() {
    self_ = shared_from_this();
    backend_.CallStarted();
    backend_.stub().async()->Generate(&context_, &generation_->request_, this);
    AddHold();  // reads may start outside of gRPC's callbacks until one fails
    StartRead(&event_);
    StartCall();
  }

  void Read() {
    event_.Clear();
    StartRead(&event_);
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return RemoveHold();
    if (generation_->AddEvent(std::move(event_))) Read();
  }

  void OnDone(const grpc::Status& status) override {
    backend_.CallEnded(IsLost(status));
    generation_->EndAttempt(status, backend_);
    OpenCalls& open_calls = generation_->backends_.open_calls();
    const std::shared_ptr<Attempt> self = std::move(self_);
    generation_ = nullptr;
    open_calls.Remove(&context_);
  }

  OpenCallCount open_count_;  // in front of the context
  std::shared_ptr<RemoteGeneration> generation_;
  RemoteServer& backend_;
  grpc::ClientContext context_;
  v1::GenerateResponse event_;
  std::shared_ptr<Attempt> self_;
};

bool RemoteGeneration::TryNextBackend() {
  std::shared_ptr<Attempt> attempt;
  {
    std::lock_guard lock(mutex_);
    if (cancelled_) return false;
    const std::string& session = request_.session();
    RemoteServer* backend = session.empty() ? backends_.Choose(tried_) : backends_.HomeOf(session, tried_);
    if (backend == nullptr) return false;
    tried_.push_back(backend);
    attempt = std::make_shared<Attempt>(shared_from_this(), *backend);
    if (!attempt->Open()) return false;
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
    read_on = held_.bytes() < kMaxHeldBytes;
    paused_ = !read_on;
  }
  if (was_empty) on_ready_();
  return read_on;
}

void RemoteGeneration::EndAttempt(const grpc::Status& status, const RemoteServer& backend) {
  bool may_retry = false;
  {
    std::lock_guard lock(mutex_);
    attempt_ = nullptr;
    may_retry = AnotherMayHelp(status) && !said_something_;
  }
  if (may_retry && TryNextBackend()) return;
  bool was_empty = false;
  {
    std::lock_guard lock(mutex_);
    was_empty = held_.empty();
    outcome_ = OutcomeOf(status, backend);
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

// ---- unary calls --------------------------------------------------------------------------------

using Message = google::protobuf::Message;

// The path of the unary call that has this request.
std::string MethodOf(const google::protobuf::Descriptor& request) {
  const auto* service = request.file()->FindServiceByName("Inference");
  for (int i = 0; i < service->method_count(); ++i) {
    if (service->method(i)->input_type() != &request) continue;
    return "/" + service->full_name() + "/" + service->method(i)->name();
  }
  TM_CHECK(false, "no call has a %s", request.full_name().c_str());
}

// Only the server that keeps it is asked; "": any.
std::string SessionOf(const Message& request) {
  if (const auto* save = dynamic_cast<const v1::SaveSessionRequest*>(&request)) return save->name();
  if (const auto* restore = dynamic_cast<const v1::RestoreSessionRequest*>(&request)) return restore->name();
  const auto* erase = dynamic_cast<const v1::DeleteSessionRequest*>(&request);
  return erase == nullptr ? "" : erase->name();
}

// One unary call, on one server after the other until one answers.
class RemoteQuestion : public std::enable_shared_from_this<RemoteQuestion> {
 public:
  RemoteQuestion(RemoteServers& backends, std::shared_ptr<const Message> request,
                 std::unique_ptr<Message> response, InferenceClient::Done<Message> done)
      : backends_(backends),
        method_(MethodOf(*request->GetDescriptor())),
        request_(std::move(request)),
        response_(std::move(response)),
        done_(std::move(done)),
        session_(SessionOf(*request_)) {}

  void Ask() {
    if (!TryNextBackend()) done_(NoBackendError(backends_), *response_);
  }

 private:
  bool TryNextBackend() {
    RemoteServer* backend = session_.empty() ? backends_.Choose(tried_) : backends_.HomeOf(session_, tried_);
    if (backend == nullptr) return false;
    tried_.push_back(backend);
    struct OpenCall {
      OpenCallCount count;  // in front of the context
      grpc::ClientContext context;
    };
    auto call = std::make_shared<OpenCall>();
    call->context.set_deadline(Clock::now() + kUnaryTimeout);
    call->context.AddMetadata(kMaxMessageBytesKey, kMaxMessageBytes);
    if (!backends_.open_calls().Add(&call->context)) return false;
    call->count.calls = &backends_.open_calls();
    const auto on_status = [self = shared_from_this(), backend, call](const grpc::Status& status) {
      OpenCalls& open_calls = self->backends_.open_calls();
      self->OnStatus(status, *backend);
      open_calls.Remove(&call->context);
    };
    backend->unary_stub().UnaryCall(&call->context, method_, grpc::StubOptions(), request_.get(),
                                    response_.get(), on_status);
    return true;
  }

  void OnStatus(const grpc::Status& status, const RemoteServer& backend) {
    if (AnotherMayHelp(status) && TryNextBackend()) return;
    done_(OutcomeOf(status, backend), *response_);
  }

  RemoteServers& backends_;
  const std::string method_;
  const std::shared_ptr<const Message> request_;
  const std::unique_ptr<Message> response_;
  const InferenceClient::Done<Message> done_;
  const std::string session_;
  std::vector<RemoteServer*> tried_;
};

// Adds every number of `load` to that of `sum`.
void AddLoad(const v1::GetLoadResponse& load, v1::GetLoadResponse* sum) {
  const google::protobuf::Reflection& reflection = *load.GetReflection();
  for (int i = 0; i < load.GetDescriptor()->field_count(); ++i) {
    const google::protobuf::FieldDescriptor* field = load.GetDescriptor()->field(i);
    if (field->is_repeated() || field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_INT64)
      continue;
    reflection.SetInt64(sum, field, reflection.GetInt64(*sum, field) + reflection.GetInt64(load, field));
  }
}

}  // namespace

// ---- RemoteClient -------------------------------------------------------------------------------

class RemoteClient::Impl {
 public:
  explicit Impl(const RemoteClientOptions& options) : backends(options) {}

  RemoteServers backends;
};

RemoteClient::RemoteClient(const RemoteClientOptions& options) : impl_(std::make_unique<Impl>(options)) {}

RemoteClient::~RemoteClient() = default;

std::shared_ptr<InferenceCall> RemoteClient::Generate(const Caller& /*caller*/, v1::GenerateRequest request,
                                                      const InferenceCallOptions& options,
                                                      std::function<void()> on_ready, RpcError* refusal) {
  auto generation =
      std::make_shared<RemoteGeneration>(impl_->backends, std::move(request), options, std::move(on_ready));
  if (generation->TryNextBackend()) return std::make_shared<RemoteCall>(std::move(generation));
  *refusal = NoBackendError(impl_->backends);
  return nullptr;
}

void RemoteClient::AskUnary(const Caller& /*caller*/, std::shared_ptr<const Message> request,
                            std::unique_ptr<Message> response, Done<Message> done) {
  const google::protobuf::Descriptor* asked = request->GetDescriptor();
  const size_t servers = impl_->backends.all().size();
  if (asked == v1::GetLoadRequest::descriptor()) {
    auto* sum = static_cast<v1::GetLoadResponse*>(response.get());
    for (const auto& backend : impl_->backends.all()) {
      if (backend->up()) AddLoad(backend->last_load(), sum);
    }
    return done({}, *response);
  }
  if (asked == v1::ListSessionsRequest::descriptor() && servers > 1) {
    return done(ToRpcError(Unimplemented("behind this gateway are " + std::to_string(servers) +
                                         " servers, each of which lists its own sessions")),
                *response);
  }
  std::make_shared<RemoteQuestion>(impl_->backends, std::move(request), std::move(response), std::move(done))
      ->Ask();
}

bool RemoteClient::ready() const {
  const auto& all = impl_->backends.all();
  return std::any_of(all.begin(), all.end(), [](const auto& backend) { return backend->up(); });
}

RpcError RemoteClient::health() const { return ready() ? RpcError{} : NoBackendError(impl_->backends); }

bool RemoteClient::WaitUntilReady(int64_t timeout_ms) const {
  constexpr std::chrono::milliseconds kLook(10);
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  while (!ready()) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(kLook);
  }
  return true;
}

std::vector<BackendState> RemoteClient::backends() const {
  std::vector<BackendState> states;
  for (const auto& backend : impl_->backends.all()) states.push_back(backend->state());
  return states;
}

}  // namespace tramontane

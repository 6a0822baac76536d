#include "server/inference_service.h"

#include <grpcpp/grpcpp.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/core/check.h"
#include "server/grpc_status.h"
#include "server/proto_convert.h"
#include "server/worker_pool.h"
#include "tramontane/v1/inference.grpc.pb.h"

namespace tramontane {
namespace {

constexpr size_t kMaxControlBytes = 1 << 20;    // of a request that is answered on gRPC's own thread
constexpr size_t kLargeMessageBytes = 1 << 20;  // above: looked over before it is parsed
constexpr int kMaxAbortIds = 1024;
constexpr char kRequestIdKey[] = "x-request-id";
constexpr char kCorrelationIdKey[] = "x-correlation-id";

// What the calls need once there is a model.
struct Serving {
  explicit Serving(const ServedModel& served) : model(served), converter(model) {}
  const ServedModel model;
  const ProtoConverter converter;
};

std::string Flat(const grpc::ByteBuffer& bytes) {
  std::vector<grpc::Slice> slices;
  std::string flat;
  if (!bytes.Dump(&slices).ok()) return flat;
  for (const grpc::Slice& slice : slices) {
    flat.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return flat;
}

RpcError Parse(const grpc::ByteBuffer& bytes, google::protobuf::Message* message) {
  if (bytes.Length() > kLargeMessageBytes) {
    if (RpcError error = CheckWireFields(*message->GetDescriptor(), Flat(bytes)); !error.ok()) return error;
  }
  grpc::ByteBuffer consumed(bytes);  // shares the slices
  grpc::ProtoBufferReader reader(&consumed);
  if (message->ParseFromZeroCopyStream(&reader)) return {};
  return ExplainParseFailure(*message->GetDescriptor(), Flat(bytes));
}

grpc::ByteBuffer Serialize(const google::protobuf::Message& message) {
  grpc::ByteBuffer bytes;
  bool own_buffer = false;
  const grpc::Status status = grpc::GenericSerialize<grpc::ProtoBufferWriter, google::protobuf::Message>(
      message, &bytes, &own_buffer);
  TM_CHECK(status.ok(), "serialising a %s: %s", message.GetTypeName().c_str(),
           status.error_message().c_str());
  return bytes;
}

// Metadata values are printable ASCII; gRPC ends the process over anything else.
std::string MetadataText(std::string text) {
  for (char& c : text) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text;
}

// One line, without what would end a quoted value.
std::string LogText(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
    if (c == '"') c = '\'';
  }
  return text;
}

std::optional<std::string> ClientMetadata(const grpc::CallbackServerContext& context, const char* key) {
  const auto found = context.client_metadata().find(key);
  if (found == context.client_metadata().end()) return std::nullopt;
  return std::string(found->second.data(), found->second.size());
}

// Unlike those of other processes, and unlike each other: "req-9d41c7e2-17".
std::string DrawRequestId() {
  static const uint32_t process = std::random_device{}();
  static std::atomic<uint64_t> count{0};
  char text[40];
  std::snprintf(text, sizeof text, "req-%08x-%llu", process, static_cast<unsigned long long>(++count));
  return text;
}

double Milliseconds(int64_t from_ns, int64_t to_ns) {
  return from_ns == 0 || to_ns == 0 ? 0.0 : static_cast<double>(to_ns - from_ns) / 1e6;
}

std::string MillisecondsText(int64_t from_ns, int64_t to_ns) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f", Milliseconds(from_ns, to_ns));
  return text;
}

// What the trailers and the log say of a request when it ends.
struct Summary {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;  // of all choices
  int32_t finished_choices = 0;
  std::string reasons;  // by choice, as they ended: "stop,length"
  Timings timings;      // of the choice that ended last

  void Add(const StreamFinished& finished) {
    prompt_tokens = finished.usage.prompt_tokens;
    cached_tokens = finished.usage.cached_tokens;
    completion_tokens += finished.usage.completion_tokens;
    timings = finished.timings;
    if (finished_choices++ > 0) reasons += ',';
    reasons += FinishReasonName(finished.reason);
  }
};

using RawService = v1::Inference::WithRawCallbackMethod_Generate<
    v1::Inference::WithRawCallbackMethod_Tokenize<v1::Inference::WithRawCallbackMethod_Detokenize<
        v1::Inference::WithRawCallbackMethod_RenderChat<v1::Inference::WithRawCallbackMethod_Abort<
            v1::Inference::WithRawCallbackMethod_GetModel<v1::Inference::WithRawCallbackMethod_GetServerInfo<
                v1::Inference::WithRawCallbackMethod_GetLoad<v1::Inference::Service>>>>>>>>;

class GenerateCall;

}  // namespace

// The methods are raw: they get bytes, not messages. gRPC would parse on its own thread and answer what does
// not parse with an empty UNIMPLEMENTED.
class InferenceService::Impl final : public RawService {
 public:
  explicit Impl(const ServerOptions& options)
      : options_(options),
        workers_({.threads = options.worker_threads, .max_queued = options.max_queued_work}),
        writers_({.threads = options.writer_threads, .max_queued = options.max_streams}),
        start_(std::chrono::steady_clock::now()) {}

  void Serve(const ServedModel& model) {
    serving_owner_ = std::make_unique<Serving>(model);
    serving_.store(serving_owner_.get(), std::memory_order_release);
  }
  void StartDraining() { draining_ = true; }
  bool WaitForStreams(int64_t timeout_ns);

  // ---- the service ----
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Generate(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override {
    return OnWorker<v1::TokenizeRequest, v1::TokenizeResponse>(context, request, response,
                                                               &ProtoConverter::Tokenize);
  }
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override {
    return OnWorker<v1::DetokenizeRequest, v1::DetokenizeResponse>(context, request, response,
                                                                   &ProtoConverter::Detokenize);
  }
  grpc::ServerUnaryReactor* RenderChat(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override {
    return OnWorker<v1::RenderChatRequest, v1::RenderChatResponse>(context, request, response,
                                                                   &ProtoConverter::RenderChat);
  }
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response) override {
    return AtOnce<v1::AbortRequest, v1::AbortResponse>(context, request, response, &Impl::AnswerAbort);
  }
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override {
    return AtOnce<v1::GetModelRequest, v1::GetModelResponse>(context, request, response,
                                                             &Impl::AnswerGetModel);
  }
  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override {
    return AtOnce<v1::GetServerInfoRequest, v1::GetServerInfoResponse>(context, request, response,
                                                                       &Impl::AnswerGetServerInfo);
  }
  grpc::ServerUnaryReactor* GetLoad(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                    grpc::ByteBuffer* response) override {
    return AtOnce<v1::GetLoadRequest, v1::GetLoadResponse>(context, request, response, &Impl::AnswerGetLoad);
  }

  // ---- for GenerateCall ----
  const Serving* serving() const { return serving_.load(std::memory_order_acquire); }
  bool draining() const { return draining_; }
  WorkerPool& workers() { return workers_; }
  WorkerPool& writers() { return writers_; }
  const ServerOptions& options() const { return options_; }
  bool AddStream();  // false: too many are open
  void RemoveStream();
  bool RegisterId(const std::string& id, GenerateCall* call);  // false: taken
  void UnregisterId(const std::string& id);

 private:
  template <typename RequestProto, typename ResponseProto>
  using Converter = RpcError (ProtoConverter::*)(const RequestProto&, ResponseProto*) const;
  template <typename RequestProto, typename ResponseProto>
  using Answerer = RpcError (Impl::*)(const Serving&, const RequestProto&, ResponseProto*);

  template <typename RequestProto, typename ResponseProto>
  grpc::ServerUnaryReactor* OnWorker(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response,
                                     Converter<RequestProto, ResponseProto> convert);
  template <typename RequestProto, typename ResponseProto>
  grpc::ServerUnaryReactor* AtOnce(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                   grpc::ByteBuffer* response, Answerer<RequestProto, ResponseProto> answer);

  RpcError AnswerAbort(const Serving& serving, const v1::AbortRequest& request, v1::AbortResponse* response);
  RpcError AnswerGetModel(const Serving& serving, const v1::GetModelRequest& request,
                          v1::GetModelResponse* response) {
    return serving.converter.GetModel(request, response);
  }
  RpcError AnswerGetServerInfo(const Serving& serving, const v1::GetServerInfoRequest& request,
                               v1::GetServerInfoResponse* response);
  RpcError AnswerGetLoad(const Serving& serving, const v1::GetLoadRequest& request,
                         v1::GetLoadResponse* response);

  const ServerOptions options_;
  std::unique_ptr<Serving> serving_owner_;
  std::atomic<const Serving*> serving_{nullptr};
  std::atomic<bool> draining_{false};

  std::mutex streams_mutex_;  // guards the next two
  std::condition_variable streams_changed_;
  int32_t open_streams_ = 0;

  std::mutex ids_mutex_;  // guards calls_by_id_; a call removes itself before it ends
  std::unordered_map<std::string, GenerateCall*> calls_by_id_;

  WorkerPool workers_;
  WorkerPool writers_;
  const std::chrono::steady_clock::time_point start_;
};

namespace {

RpcError LoadingError() { return UnavailableError("LOADING", "the model is still loading"); }

RpcError WorkersBusyError(const WorkerPoolOptions& options) {
  return BusyError("INPUT_QUEUE_FULL", "too much input waits to be tokenised: at most " +
                                           std::to_string(options.max_queued) +
                                           " requests (max_queued_work) and " +
                                           std::to_string(options.max_queued_bytes) + " bytes");
}

// One Generate call, from its bytes to its status. Owns itself until gRPC is done with it; whoever may use it
// later (a worker, a writer) holds a reference.
//
//   waiting for a worker -> submitted -> admitted (initial metadata sent) -> ended (status given to gRPC)
class GenerateCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                           public std::enable_shared_from_this<GenerateCall> {
 public:
  GenerateCall(InferenceService::Impl& service, grpc::CallbackServerContext* context)
      : service_(service), context_(context) {}
  ~GenerateCall() override {
    if (counted_) service_.RemoveStream();
  }

  void Start(const grpc::ByteBuffer& request);  // gRPC's thread
  void Abort() { CancelStream(); }              // any thread

 private:
  void OnCancel() override { CancelStream(); }
  void OnWriteDone(bool ok) override;
  void OnDone() override { self_.reset(); }

  RpcError Admit(const grpc::ByteBuffer& bytes);  // worker
  RpcError TakeRequestId(const std::string& id_field);
  RpcError CheckCallerIsThere() const;
  void SendInitialMetadata();
  void CancelStream();

  void ScheduleWrite();  // output thread
  void WriteNext();      // writer, or gRPC's thread
  void TakeUpdate();     // holds mutex_
  void EndRefused(const RpcError& error);
  grpc::Status PrepareEnd(const RpcError& error);  // once, before the status goes to gRPC

  InferenceService::Impl& service_;
  grpc::CallbackServerContext* const context_;  // until the status was given to gRPC
  std::shared_ptr<GenerateCall> self_;
  const Serving* serving_ = nullptr;
  bool counted_ = false;

  std::string request_id_;
  bool registered_ = false;
  std::optional<std::string> correlation_id_;
  ProtoConverter::DeltaParts parts_;
  int32_t choices_ = 1;
  int64_t received_ns_ = 0;
  int64_t deadline_ns_ = 0;  // on the engine's clock; 0: none

  std::atomic<bool> write_scheduled_{false};
  std::mutex mutex_;  // guards everything below
  std::shared_ptr<TokenStream> stream_;
  bool admitted_ = false;
  bool cancelled_ = false;
  bool reader_gone_ = false;
  bool write_in_flight_ = false;
  bool ended_ = false;
  grpc::ByteBuffer writing_;             // owned by gRPC while write_in_flight_
  std::deque<grpc::ByteBuffer> outbox_;  // what one update of the stream became
  std::optional<Status> outcome_;        // set by the stream's last update
  Summary summary_;
};

void GenerateCall::Start(const grpc::ByteBuffer& request) {
  self_ = shared_from_this();
  serving_ = service_.serving();
  if (serving_ == nullptr) return EndRefused(LoadingError());
  if (service_.draining()) {
    return EndRefused(UnavailableError("DRAINING", "the server is stopping and takes no new requests"));
  }
  counted_ = service_.AddStream();
  if (!counted_) {
    return EndRefused(BusyError("TOO_MANY_STREAMS", "the server has " +
                                                        std::to_string(service_.options().max_streams) +
                                                        " open streams, its limit (max_streams)"));
  }

  received_ns_ = serving_->model.clock->NowNs();
  const auto deadline = context_->deadline();
  if (deadline != std::chrono::system_clock::time_point::max()) {
    const auto left =
        std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - std::chrono::system_clock::now());
    deadline_ns_ = std::max<int64_t>(1, received_ns_ + left.count());
  }

  const bool taken = service_.workers().TrySubmit(
      static_cast<int64_t>(request.Length()), [self = shared_from_this(), bytes = request] {
        if (const RpcError error = self->Admit(bytes); !error.ok()) self->EndRefused(error);
      });
  if (!taken) EndRefused(WorkersBusyError(service_.workers().options()));
}

RpcError GenerateCall::Admit(const grpc::ByteBuffer& bytes) {
  if (RpcError error = CheckCallerIsThere(); !error.ok()) return error;

  v1::GenerateRequest proto;
  if (RpcError error = Parse(bytes, &proto); !error.ok()) return error;
  if (RpcError error = TakeRequestId(proto.request_id()); !error.ok()) return error;
  Request request;
  if (RpcError error = serving_->converter.Generate(proto, &request); !error.ok()) return error;
  request.id = request_id_;
  request.received_ns = received_ns_;
  request.tokenized_ns = serving_->model.clock->NowNs();
  request.deadline_ns = deadline_ns_;
  parts_.text = !proto.output().has_text() || proto.output().text();
  parts_.token_ids = !proto.output().has_token_ids() || proto.output().token_ids();
  choices_ = request.choices;
  if (RpcError error = CheckCallerIsThere(); !error.ok()) return error;

  StatusOr<std::shared_ptr<TokenStream>> stream =
      serving_->model.engine->Submit(std::move(request), [weak = weak_from_this()] {
        if (const std::shared_ptr<GenerateCall> call = weak.lock()) call->ScheduleWrite();
      });
  if (!stream.ok()) return ToRpcError(stream.status());

  SendInitialMetadata();
  {
    std::lock_guard lock(mutex_);
    stream_ = std::move(stream).value();
    admitted_ = true;
    if (cancelled_) stream_->Cancel();
  }
  WriteNext();
  return {};
}

// The request's name: its own field, else the metadata's, else drawn. It is taken until the request ends.
RpcError GenerateCall::TakeRequestId(const std::string& id_field) {
  correlation_id_ = ClientMetadata(*context_, kCorrelationIdKey);
  if (correlation_id_) {
    const std::string fault = RequestIdFault(*correlation_id_);
    if (!fault.empty()) {
      correlation_id_.reset();
      return FieldError(kCorrelationIdKey, fault);
    }
  }
  const std::optional<std::string> from_metadata = ClientMetadata(*context_, kRequestIdKey);
  const bool from_field = !id_field.empty();
  if (from_field || from_metadata) {
    std::string id = from_field ? id_field : *from_metadata;
    if (const std::string fault = RequestIdFault(id); !fault.empty()) {
      return FieldError(from_field ? "request_id" : kRequestIdKey, fault);
    }
    request_id_ = std::move(id);
  } else {
    request_id_ = DrawRequestId();
  }
  registered_ = service_.RegisterId(request_id_, this);
  if (registered_) return {};
  RpcError error = ToRpcError(
      Status(StatusCode::kAlreadyExists, "request_id: a request named \"" + request_id_ + "\" is in progress")
          .WithField("request_id"));
  error.reason = "DUPLICATE_REQUEST_ID";
  return error;
}

RpcError GenerateCall::CheckCallerIsThere() const {
  if (context_->IsCancelled())
    return ToRpcError(Status(StatusCode::kCancelled, "the caller cancelled the request"));
  if (deadline_ns_ != 0 && serving_->model.clock->NowNs() >= deadline_ns_) {
    return ToRpcError(Status(StatusCode::kDeadlineExceeded, "the deadline passed while the input was read"));
  }
  return {};
}

// At once on admission, so that a client can tell being accepted from the first token.
void GenerateCall::SendInitialMetadata() {
  context_->AddInitialMetadata(kRequestIdKey, request_id_);
  if (correlation_id_) context_->AddInitialMetadata(kCorrelationIdKey, *correlation_id_);
  context_->AddInitialMetadata("x-served-model", MetadataText(serving_->model.names[0]));
  context_->AddInitialMetadata("x-server-version", TRAMONTANE_VERSION);
  StartSendInitialMetadata();
}

void GenerateCall::CancelStream() {
  std::lock_guard lock(mutex_);
  cancelled_ = true;
  if (stream_ != nullptr) stream_->Cancel();
}

// At most one entry per call waits for a writer, so the writers' queue of max_streams entries cannot
// overflow.
void GenerateCall::ScheduleWrite() {
  if (write_scheduled_.exchange(true)) return;
  const bool taken = service_.writers().TrySubmit(0, [self = shared_from_this()] {
    self->write_scheduled_ = false;
    self->WriteNext();
  });
  TM_CHECK(taken, "the writers' queue is full");
}

void GenerateCall::OnWriteDone(bool ok) {
  {
    std::lock_guard lock(mutex_);
    write_in_flight_ = false;
    if (!ok) {
      reader_gone_ = true;
      outbox_.clear();
      stream_->Cancel();
    }
  }
  WriteNext();
}

// Starts one write, or ends the call, if either is due. gRPC is called without the lock: the flags already
// keep others out.
void GenerateCall::WriteNext() {
  std::unique_lock lock(mutex_);
  if (!admitted_ || write_in_flight_ || ended_) return;
  if (outbox_.empty() && !outcome_) TakeUpdate();

  const bool has_message = !outbox_.empty();
  if (has_message) {
    writing_.Swap(&outbox_.front());
    outbox_.pop_front();
    write_in_flight_ = true;
  }
  ended_ = outbox_.empty() && outcome_.has_value();
  const bool ends = ended_;
  lock.unlock();

  if (has_message && ends) {
    StartWriteAndFinish(&writing_, grpc::WriteOptions(), PrepareEnd(ToRpcError(*outcome_)));
  } else if (has_message) {
    StartWrite(&writing_);
  } else if (ends) {
    Finish(PrepareEnd(ToRpcError(*outcome_)));
  }
}

void GenerateCall::TakeUpdate() {
  StreamUpdate update = stream_->Take();
  const ProtoConverter& converter = serving_->converter;
  if (!reader_gone_) {
    if (update.started) outbox_.push_back(Serialize(converter.StartedToProto(*update.started, request_id_)));
    for (StreamDelta& delta : update.deltas) {
      for (const auto& response : converter.DeltaToProto(std::move(delta), parts_)) {
        outbox_.push_back(Serialize(response));
      }
    }
  }
  for (const StreamFinished& finished : update.finished) {
    summary_.Add(finished);
    if (!reader_gone_) outbox_.push_back(Serialize(ProtoConverter::FinishedToProto(finished)));
  }
  if (update.done) outcome_ = update.status;
}

void GenerateCall::EndRefused(const RpcError& error) {
  {
    std::lock_guard lock(mutex_);
    ended_ = true;
  }
  if (!request_id_.empty()) context_->AddInitialMetadata(kRequestIdKey, request_id_);
  if (correlation_id_) context_->AddInitialMetadata(kCorrelationIdKey, *correlation_id_);
  Finish(PrepareEnd(error));
}

grpc::Status GenerateCall::PrepareEnd(const RpcError& error) {
  if (registered_) service_.UnregisterId(request_id_);
  if (summary_.finished_choices > 0) {
    const Timings& times = summary_.timings;
    context_->AddTrailingMetadata("x-prompt-tokens", std::to_string(summary_.prompt_tokens));
    context_->AddTrailingMetadata("x-cached-tokens", std::to_string(summary_.cached_tokens));
    context_->AddTrailingMetadata("x-completion-tokens", std::to_string(summary_.completion_tokens));
    context_->AddTrailingMetadata("x-queue-ms", MillisecondsText(times.received_ns, times.admitted_ns));
    context_->AddTrailingMetadata("x-prefill-ms", MillisecondsText(times.admitted_ns, times.first_token_ns));
    context_->AddTrailingMetadata("x-decode-ms", MillisecondsText(times.first_token_ns, times.finished_ns));
  }
  if (error.retry_after_ms > 0) {
    context_->AddTrailingMetadata("grpc-retry-pushback-ms", std::to_string(error.retry_after_ms));
  }
  const Timings& times = summary_.timings;
  spdlog::info(
      "request id={} correlation_id={} status={} reason={} choices={} prompt_tokens={} cached_tokens={} "
      "completion_tokens={} tokenize_ms={:.3f} queue_ms={:.3f} first_token_ms={:.3f} total_ms={:.3f} "
      "message=\"{}\"",
      request_id_.empty() ? "-" : request_id_, correlation_id_.value_or("-"), StatusCodeName(error.code),
      summary_.reasons.empty() ? "-" : summary_.reasons, choices_, summary_.prompt_tokens,
      summary_.cached_tokens, summary_.completion_tokens, Milliseconds(received_ns_, times.tokenized_ns),
      Milliseconds(received_ns_, times.admitted_ns), Milliseconds(received_ns_, times.first_token_ns),
      serving_ == nullptr ? 0.0 : Milliseconds(received_ns_, serving_->model.clock->NowNs()),
      LogText(error.message));
  return ToGrpcStatus(error);
}

}  // namespace

// ---- InferenceService::Impl ---------------------------------------------------------------------

grpc::ServerWriteReactor<grpc::ByteBuffer>* InferenceService::Impl::Generate(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  const auto call = std::make_shared<GenerateCall>(*this, context);
  call->Start(*request);
  return call.get();
}

bool InferenceService::Impl::AddStream() {
  std::lock_guard lock(streams_mutex_);
  if (open_streams_ >= options_.max_streams) return false;
  ++open_streams_;
  return true;
}

void InferenceService::Impl::RemoveStream() {
  std::lock_guard lock(streams_mutex_);
  if (--open_streams_ == 0) streams_changed_.notify_all();
}

bool InferenceService::Impl::WaitForStreams(int64_t timeout_ns) {
  std::unique_lock lock(streams_mutex_);
  return streams_changed_.wait_for(lock, std::chrono::nanoseconds(timeout_ns),
                                   [this] { return open_streams_ == 0; });
}

bool InferenceService::Impl::RegisterId(const std::string& id, GenerateCall* call) {
  std::lock_guard lock(ids_mutex_);
  return calls_by_id_.emplace(id, call).second;
}

void InferenceService::Impl::UnregisterId(const std::string& id) {
  std::lock_guard lock(ids_mutex_);
  calls_by_id_.erase(id);
}

template <typename RequestProto, typename ResponseProto>
grpc::ServerUnaryReactor* InferenceService::Impl::OnWorker(grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer* request,
                                                           grpc::ByteBuffer* response,
                                                           Converter<RequestProto, ResponseProto> convert) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const Serving* serving = this->serving();
  if (serving == nullptr) {
    reactor->Finish(ToGrpcStatus(LoadingError()));
    return reactor;
  }
  const bool taken = workers_.TrySubmit(static_cast<int64_t>(request->Length()), [=] {
    if (context->IsCancelled()) return reactor->Finish(grpc::Status::CANCELLED);
    RequestProto proto;
    RpcError error = Parse(*request, &proto);
    if (error.ok()) {
      ResponseProto answer;
      error = (serving->converter.*convert)(proto, &answer);
      if (error.ok()) *response = Serialize(answer);
    }
    reactor->Finish(ToGrpcStatus(error));
  });
  if (!taken) reactor->Finish(ToGrpcStatus(WorkersBusyError(workers_.options())));
  return reactor;
}

template <typename RequestProto, typename ResponseProto>
grpc::ServerUnaryReactor* InferenceService::Impl::AtOnce(grpc::CallbackServerContext* context,
                                                         const grpc::ByteBuffer* request,
                                                         grpc::ByteBuffer* response,
                                                         Answerer<RequestProto, ResponseProto> answerer) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const Serving* serving = this->serving();
  RequestProto proto;
  RpcError error;
  if (serving == nullptr) {
    error = LoadingError();
  } else if (request->Length() > kMaxControlBytes) {
    error = ToRpcError(InvalidArgument("the request has " + std::to_string(request->Length()) +
                                       " bytes, the most is " + std::to_string(kMaxControlBytes)));
  } else {
    error = Parse(*request, &proto);
  }
  if (error.ok()) {
    ResponseProto answer;
    error = (this->*answerer)(*serving, proto, &answer);
    if (error.ok()) *response = Serialize(answer);
  }
  reactor->Finish(ToGrpcStatus(error));
  return reactor;
}

RpcError InferenceService::Impl::AnswerAbort(const Serving& serving, const v1::AbortRequest& request,
                                             v1::AbortResponse* response) {
  if (request.request_ids_size() > kMaxAbortIds) {
    return FieldError("request_ids", "has " + std::to_string(request.request_ids_size()) +
                                         " entries, the most is " + std::to_string(kMaxAbortIds));
  }
  for (const std::string& id : request.request_ids()) {
    bool found = false;
    {
      std::lock_guard lock(ids_mutex_);  // keeps the call from ending meanwhile
      const auto call = calls_by_id_.find(id);
      found = call != calls_by_id_.end();
      if (found) call->second->Abort();
    }
    if (found || serving.model.engine->Abort(id)) response->add_found(id);
  }
  return {};
}

RpcError InferenceService::Impl::AnswerGetServerInfo(const Serving& serving, const v1::GetServerInfoRequest&,
                                                     v1::GetServerInfoResponse* response) {
  const auto uptime = std::chrono::steady_clock::now() - start_;
  response->set_version(TRAMONTANE_VERSION);
  response->set_uptime_ms(std::chrono::duration_cast<std::chrono::milliseconds>(uptime).count());
  response->set_device(serving.model.device);
  response->set_draining(draining_);
  v1::Limits* limits = response->mutable_limits();
  serving.converter.EngineLimitsToProto(limits);
  limits->set_max_message_bytes(kMaxMessageBytes);
  limits->set_max_queued_work(workers_.options().max_queued);
  limits->set_max_queued_work_bytes(workers_.options().max_queued_bytes);
  limits->set_max_streams(options_.max_streams);
  return {};
}

RpcError InferenceService::Impl::AnswerGetLoad(const Serving& serving, const v1::GetLoadRequest&,
                                               v1::GetLoadResponse* response) {
  ProtoConverter::LoadToProto(serving.model.engine->Load(), response);
  response->set_queued_work(workers_.pending());
  std::lock_guard lock(streams_mutex_);
  response->set_open_streams(open_streams_);
  return {};
}

// ---- InferenceService ---------------------------------------------------------------------------

InferenceService::InferenceService(const ServerOptions& options) : impl_(std::make_unique<Impl>(options)) {}
InferenceService::~InferenceService() = default;
grpc::Service* InferenceService::grpc_service() { return impl_.get(); }
void InferenceService::Serve(const ServedModel& model) { impl_->Serve(model); }
void InferenceService::StartDraining() { impl_->StartDraining(); }
bool InferenceService::WaitForStreams(int64_t timeout_ns) { return impl_->WaitForStreams(timeout_ns); }

}  // namespace tramontane

#include "server/grpc/inference_service.h"

#include <grpcpp/grpcpp.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <deque>
#include <iterator>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/check.h"
#include "server/base/peer_address.h"
#include "server/core/served_call.h"
#include "server/core/unary_calls.h"
#include "server/core/wire_check.h"
#include "server/core/worker_pool.h"
#include "server/grpc/grpc_status.h"
#include "server/grpc/message_parts.h"
#include "tramontane/v1/inference.grpc.pb.h"

namespace tramontane {
namespace {

constexpr size_t kMaxControlBytes = 1 << 20;    // of a request that is answered on gRPC's own thread
constexpr size_t kLargeMessageBytes = 1 << 20;  // above: looked over before it is parsed
constexpr char kRequestIdKey[] = "x-request-id";
constexpr char kCorrelationIdKey[] = "x-correlation-id";

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

std::optional<std::string> ClientMetadata(const grpc::CallbackServerContext& context, const char* key) {
  const auto found = context.client_metadata().find(key);
  if (found == context.client_metadata().end()) return std::nullopt;
  return std::string(found->second.data(), found->second.size());
}

// What a caller takes in one message: what gRPC's clients take by default, or what it says of itself.
size_t MostAnswerBytes(const grpc::CallbackServerContext& context) {
  size_t bytes = kDefaultMessageBytes;
  if (const auto said = ClientMetadata(context, kMaxMessageBytesKey)) {
    std::from_chars(said->data(), said->data() + said->size(), bytes);
  }
  return bytes;
}

// The answer of a unary call, or why its caller could not take it.
RpcError AnswerWith(const google::protobuf::Message& answer, const grpc::CallbackServerContext& context,
                    grpc::ByteBuffer* response) {
  const size_t most = MostAnswerBytes(context);
  if (answer.ByteSizeLong() > most) {
    RpcError error = ToRpcError(InvalidArgument("the answer has " + std::to_string(answer.ByteSizeLong()) +
                                                " bytes, and a message holds " + std::to_string(most) +
                                                ": ask for less at once, or say in the metadata " +
                                                kMaxMessageBytesKey + " that you take more"));
    error.reason = "ANSWER_TOO_LARGE";
    return error;
  }
  *response = Serialize(answer);
  return {};
}

Caller CallerOf(const grpc::CallbackServerContext& context) {
  const std::string address = AddressOfGrpcPeer(context.peer());
  return {.identity = AddressShare(address), .address = address, .door = Caller::Door::kGrpc};
}

InferenceCallOptions OptionsOf(const grpc::CallbackServerContext& context) {
  InferenceCallOptions options = {.request_id = ClientMetadata(context, kRequestIdKey),
                                  .correlation_id = ClientMetadata(context, kCorrelationIdKey)};
  if (context.deadline() != std::chrono::system_clock::time_point::max()) {
    options.deadline =
        std::chrono::steady_clock::now() + (context.deadline() - std::chrono::system_clock::now());
  }
  return options;
}

using RawService = v1::Inference::WithRawCallbackMethod_Generate<
    v1::Inference::WithRawCallbackMethod_ScoreCandidates<v1::Inference::WithRawCallbackMethod_Tokenize<
        v1::Inference::WithRawCallbackMethod_Detokenize<v1::Inference::WithRawCallbackMethod_RenderChat<
            v1::Inference::WithRawCallbackMethod_Abort<v1::Inference::WithRawCallbackMethod_GetModel<
                v1::Inference::WithRawCallbackMethod_GetServerInfo<
                    v1::Inference::WithRawCallbackMethod_GetLoad<
                        v1::Inference::WithRawCallbackMethod_ListSessions<
                            v1::Inference::WithRawCallbackMethod_DeleteSession<
                                v1::Inference::WithRawCallbackMethod_SaveSession<
                                    v1::Inference::WithRawCallbackMethod_RestoreSession<
                                        v1::Inference::Service>>>>>>>>>>>>>;

}  // namespace

// The methods are raw: they get bytes, not messages. gRPC would parse on its own thread and answer what does
// not parse with an empty UNIMPLEMENTED.
class InferenceService::Impl final : public RawService {
 public:
  Impl(const InferenceServiceOptions& options, InferenceCore& core)
      : core_(core), writers_({.threads = options.writer_threads, .max_queued = options.max_streams}) {}

  // ---- the service ----
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Generate(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* ScoreCandidates(grpc::CallbackServerContext* context,
                                            const grpc::ByteBuffer* request,
                                            grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override {
    return Answer<v1::TokenizeRequest>(context, request, response);
  }
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override {
    return Answer<v1::DetokenizeRequest>(context, request, response);
  }
  grpc::ServerUnaryReactor* RenderChat(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override {
    return Answer<v1::RenderChatRequest>(context, request, response);
  }
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response) override {
    return Answer<v1::AbortRequest>(context, request, response);
  }
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override {
    return Answer<v1::GetModelRequest>(context, request, response);
  }
  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override {
    return Answer<v1::GetServerInfoRequest>(context, request, response);
  }
  grpc::ServerUnaryReactor* GetLoad(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                    grpc::ByteBuffer* response) override {
    return Answer<v1::GetLoadRequest>(context, request, response);
  }
  grpc::ServerUnaryReactor* ListSessions(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) override {
    return Answer<v1::ListSessionsRequest>(context, request, response);
  }
  grpc::ServerUnaryReactor* DeleteSession(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override {
    return Answer<v1::DeleteSessionRequest>(context, request, response);
  }
  grpc::ServerUnaryReactor* SaveSession(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                        grpc::ByteBuffer* response) override {
    return Answer<v1::SaveSessionRequest>(context, request, response);
  }
  grpc::ServerUnaryReactor* RestoreSession(grpc::CallbackServerContext* context,
                                           const grpc::ByteBuffer* request,
                                           grpc::ByteBuffer* response) override {
    return Answer<v1::RestoreSessionRequest>(context, request, response);
  }

  // ---- for GenerateCall and ScoreCall ----
  InferenceCore& core() { return core_; }
  WorkerPool& writers() { return writers_; }

 private:
  // A unary call, as its row says (unary_calls.h).
  template <typename RequestProto>
  grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                   grpc::ByteBuffer* response);

  InferenceCore& core_;
  WorkerPool writers_;
};

namespace {

void AddIdsToInitialMetadata(const ServedCall& served, grpc::CallbackServerContext& context) {
  const std::string& id = served.request_id();
  const std::string& correlation_id = served.correlation_id();
  if (!id.empty()) context.AddInitialMetadata(kRequestIdKey, id);
  if (!correlation_id.empty()) context.AddInitialMetadata(kCorrelationIdKey, correlation_id);
}

// Once, before the status goes to gRPC.
grpc::Status PrepareEnd(const RpcError& error, ServedCall& served, grpc::CallbackServerContext& context) {
  served.End(error);
  const ServedCall::Summary& summary = served.summary();
  if (summary.finished_choices > 0) {
    const Timings& times = summary.timings;
    context.AddTrailingMetadata("x-prompt-tokens", std::to_string(summary.prompt_tokens));
    context.AddTrailingMetadata("x-cached-tokens", std::to_string(summary.cached_tokens));
    context.AddTrailingMetadata("x-completion-tokens", std::to_string(summary.completion_tokens));
    context.AddTrailingMetadata("x-queue-ms", MillisecondsText(times.received_ns, times.admitted_ns));
    context.AddTrailingMetadata("x-prefill-ms", MillisecondsText(times.admitted_ns, times.first_token_ns));
    context.AddTrailingMetadata("x-decode-ms", MillisecondsText(times.first_token_ns, times.finished_ns));
  }
  if (error.retry_after_ms > 0) {
    context.AddTrailingMetadata("grpc-retry-pushback-ms", std::to_string(error.retry_after_ms));
  }
  return ToGrpcStatus(error);
}

// One Generate call, from its bytes to its status. Owns itself until gRPC is done with it; whoever may use it
// later (a worker, a writer) holds a reference.
//
//   waiting for a worker -> submitted -> admitted (initial metadata sent) -> ended (status given to gRPC)
class GenerateCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                           public std::enable_shared_from_this<GenerateCall> {
 public:
  GenerateCall(InferenceService::Impl& service, grpc::CallbackServerContext* context)
      : service_(service),
        context_(context),
        served_(service.core(), CallerOf(*context), OptionsOf(*context)) {}

  void Start(const grpc::ByteBuffer& request);  // gRPC's thread

 private:
  void OnCancel() override { served_.Cancel(); }
  void OnWriteDone(bool ok) override;
  void OnDone() override { self_.reset(); }

  RpcError Read(const grpc::ByteBuffer& bytes);      // worker
  RpcError Admit(const v1::GenerateRequest& proto);  // worker

  void ScheduleWrite();  // output thread
  void WriteNext();      // writer, or gRPC's thread
  void TakeEvents();     // holds mutex_
  void EndRefused(const RpcError& error);

  InferenceService::Impl& service_;
  grpc::CallbackServerContext* const context_;  // until the status was given to gRPC
  ServedCall served_;
  std::shared_ptr<GenerateCall> self_;

  std::atomic<bool> write_scheduled_{false};
  std::mutex mutex_;  // guards everything below
  bool admitted_ = false;
  bool reader_gone_ = false;
  bool write_in_flight_ = false;
  bool ended_ = false;
  grpc::ByteBuffer writing_;                 // owned by gRPC while write_in_flight_
  bool writing_content_ = false;             // in it
  std::deque<v1::GenerateResponse> outbox_;  // what was last taken, and is not written
  std::optional<RpcError> outcome_;          // known with the last events
};

void GenerateCall::Start(const grpc::ByteBuffer& request) {
  self_ = shared_from_this();
  if (const RpcError error = served_.Open(); !error.ok()) return EndRefused(error);
  InferenceCore& core = service_.core();
  const bool taken =
      core.workers().TrySubmit(static_cast<int64_t>(request.Length()), served_.caller().identity,
                               [self = shared_from_this(), bytes = request] {
                                 if (const RpcError error = self->Read(bytes); !error.ok())
                                   self->EndRefused(error);
                               });
  if (!taken) EndRefused(core.WorkersBusyError());
}

// Only now it is known what kind of work this is: where a constraint may have to be compiled, it queues once
// more, for that.
RpcError GenerateCall::Read(const grpc::ByteBuffer& bytes) {
  if (RpcError error = served_.CheckIsWanted(); !error.ok()) return error;
  v1::GenerateRequest proto;
  const Clock& clock = *served_.serving()->model.clock;
  const int64_t begin_ns = clock.NowNs();
  if (RpcError error = Parse(bytes, &proto); !error.ok()) return error;
  served_.NoteParse(clock.NowNs() - begin_ns);
  if (!InferenceCore::MayCompile(proto)) return Admit(proto);
  const auto shared = std::make_shared<const v1::GenerateRequest>(std::move(proto));
  const bool taken =
      service_.core().SubmitCall(*shared, served_.caller(), [self = shared_from_this(), shared] {
        if (const RpcError error = self->Admit(*shared); !error.ok()) self->EndRefused(error);
      });
  return taken ? RpcError() : service_.core().WorkersBusyError();
}

RpcError GenerateCall::Admit(const v1::GenerateRequest& proto) {
  if (RpcError error = served_.CheckIsWanted(); !error.ok()) return error;
  RpcError error = served_.Admit(proto, [weak = weak_from_this()] {
    if (const std::shared_ptr<GenerateCall> call = weak.lock()) call->ScheduleWrite();
  });
  if (!error.ok()) return error;

  // At once on admission, so that a client can tell being accepted from the first token.
  AddIdsToInitialMetadata(served_, *context_);
  context_->AddInitialMetadata("x-served-model", MetadataText(served_.serving()->model.names[0]));
  context_->AddInitialMetadata("x-server-version", TRAMONTANE_VERSION);
  StartSendInitialMetadata();
  {
    std::lock_guard lock(mutex_);
    admitted_ = true;
  }
  WriteNext();
  return {};
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
    if (ok && writing_content_) served_.NoteDelivered();
    if (!ok) {
      reader_gone_ = true;
      outbox_.clear();
      served_.Cancel();
    }
  }
  WriteNext();
}

// Starts one write, or ends the call, if either is due. gRPC is called without the lock: the flags already
// keep others out.
void GenerateCall::WriteNext() {
  std::unique_lock lock(mutex_);
  if (!admitted_ || write_in_flight_ || ended_) return;
  if (outbox_.empty() && !outcome_) TakeEvents();

  const bool has_message = !outbox_.empty();
  if (has_message) {
    v1::GenerateResponse& event = outbox_.front();
    if (event.has_finished()) served_.SetStages(event.mutable_finished());  // the content before it is out
    writing_content_ = IsContent(event);
    writing_ = Serialize(event);
    outbox_.pop_front();
    write_in_flight_ = true;
  }
  ended_ = outbox_.empty() && outcome_.has_value();
  const bool ends = ended_;
  lock.unlock();

  if (has_message && ends) {
    StartWriteAndFinish(&writing_, grpc::WriteOptions(), PrepareEnd(*outcome_, served_, *context_));
  } else if (has_message) {
    StartWrite(&writing_);
  } else if (ends) {
    Finish(PrepareEnd(*outcome_, served_, *context_));
  }
}

void GenerateCall::TakeEvents() {
  InferenceEvents taken = served_.Take();
  for (v1::GenerateResponse& event : taken.events) {
    if (reader_gone_) break;
    std::vector<v1::GenerateResponse> parts = PartsOf(std::move(event));
    std::move(parts.begin(), parts.end(), std::back_inserter(outbox_));
  }
  if (taken.done) outcome_ = taken.outcome;
}

void GenerateCall::EndRefused(const RpcError& error) {
  {
    std::lock_guard lock(mutex_);
    ended_ = true;
  }
  AddIdsToInitialMetadata(served_, *context_);
  Finish(PrepareEnd(error, served_, *context_));
}

// One ScoreCandidates call, likewise: its one answer is there when its request has ended.
class ScoreCall final : public grpc::ServerUnaryReactor, public std::enable_shared_from_this<ScoreCall> {
 public:
  ScoreCall(InferenceService::Impl& service, grpc::CallbackServerContext* context, grpc::ByteBuffer* response)
      : service_(service),
        context_(context),
        response_(response),
        served_(service.core(), CallerOf(*context), OptionsOf(*context)) {}

  void Start(const grpc::ByteBuffer& request);  // gRPC's thread

 private:
  void OnCancel() override { served_.Cancel(); }
  void OnDone() override { self_.reset(); }

  RpcError Admit(const grpc::ByteBuffer& bytes);  // worker
  void ScheduleTake();                            // output thread
  void TakeWhatIsThere();                         // writer, or worker
  void NoteEvent(const v1::GenerateResponse& event);
  void End(const RpcError& outcome);

  InferenceService::Impl& service_;
  grpc::CallbackServerContext* const context_;
  grpc::ByteBuffer* const response_;
  ServedCall served_;
  std::shared_ptr<ScoreCall> self_;

  std::atomic<bool> take_scheduled_{false};
  std::mutex mutex_;  // guards everything below
  bool admitted_ = false;
  bool ended_ = false;
  v1::ScoreCandidatesResponse answer_;
  std::vector<int64_t> lengths_;  // of the candidates, once they are known
};

void ScoreCall::Start(const grpc::ByteBuffer& request) {
  self_ = shared_from_this();
  if (const RpcError error = served_.Open(); !error.ok()) return End(error);
  InferenceCore& core = service_.core();
  const bool taken =
      core.workers().TrySubmit(static_cast<int64_t>(request.Length()), served_.caller().identity,
                               [self = shared_from_this(), bytes = request] {
                                 if (const RpcError error = self->Admit(bytes); !error.ok()) self->End(error);
                               });
  if (!taken) End(core.WorkersBusyError());
}

RpcError ScoreCall::Admit(const grpc::ByteBuffer& bytes) {
  if (RpcError error = served_.CheckIsWanted(); !error.ok()) return error;
  v1::ScoreCandidatesRequest proto;
  if (RpcError error = Parse(bytes, &proto); !error.ok()) return error;
  RpcError error = served_.Admit(
      proto,
      [weak = weak_from_this()] {
        if (const std::shared_ptr<ScoreCall> call = weak.lock()) call->ScheduleTake();
      },
      &lengths_);
  if (!error.ok()) return error;
  {
    std::lock_guard lock(mutex_);
    admitted_ = true;
  }
  TakeWhatIsThere();
  return {};
}

// As GenerateCall::ScheduleWrite: one entry of a call at a time.
void ScoreCall::ScheduleTake() {
  if (take_scheduled_.exchange(true)) return;
  const bool taken = service_.writers().TrySubmit(0, [self = shared_from_this()] {
    self->take_scheduled_ = false;
    self->TakeWhatIsThere();
  });
  TM_CHECK(taken, "the writers' queue is full");
}

void ScoreCall::TakeWhatIsThere() {
  RpcError outcome;
  {
    std::lock_guard lock(mutex_);
    if (!admitted_ || ended_) return;
    const InferenceEvents taken = served_.Take();
    for (const v1::GenerateResponse& event : taken.events) NoteEvent(event);
    if (!taken.done) return;
    ended_ = true;
    outcome = taken.outcome;
  }
  if (outcome.ok()) outcome = AnswerWith(answer_, *context_, response_);
  End(outcome);
}

void ScoreCall::NoteEvent(const v1::GenerateResponse& event) {
  if (event.has_finished()) *answer_.mutable_usage() = event.finished().usage();
  if (!event.has_started()) return;
  const v1::Started& started = event.started();
  const int64_t tokens = std::accumulate(lengths_.begin(), lengths_.end(), int64_t{0});
  if (started.prompt_logprobs_size() != tokens) return;  // it has failed: the outcome says how
  answer_.set_request_id(started.request_id());
  answer_.set_model(started.model());
  answer_.set_candidate_tokens(tokens);
  auto token = started.prompt_logprobs().begin();
  for (const int64_t length : lengths_) {
    v1::CandidateScore* candidate = answer_.add_candidates();
    double sum = 0;
    for (const auto end = token + length; token != end; ++token) {
      candidate->add_token_ids(token->token_id());
      candidate->add_logprobs(token->logprob());
      candidate->add_ranks(token->rank());
      sum += token->logprob();
    }
    candidate->set_logprob_sum(sum);
  }
}

void ScoreCall::End(const RpcError& outcome) {
  AddIdsToInitialMetadata(served_, *context_);
  Finish(PrepareEnd(outcome, served_, *context_));
}

}  // namespace

// ---- InferenceService::Impl ---------------------------------------------------------------------

grpc::ServerWriteReactor<grpc::ByteBuffer>* InferenceService::Impl::Generate(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  const auto call = std::make_shared<GenerateCall>(*this, context);
  call->Start(*request);
  return call.get();
}

grpc::ServerUnaryReactor* InferenceService::Impl::ScoreCandidates(grpc::CallbackServerContext* context,
                                                                  const grpc::ByteBuffer* request,
                                                                  grpc::ByteBuffer* response) {
  const auto call = std::make_shared<ScoreCall>(*this, context, response);
  call->Start(*request);
  return call.get();
}

template <typename RequestProto>
grpc::ServerUnaryReactor* InferenceService::Impl::Answer(grpc::CallbackServerContext* context,
                                                         const grpc::ByteBuffer* request,
                                                         grpc::ByteBuffer* response) {
  static const UnaryCall& call = FindUnaryCall(*RequestProto::descriptor());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const bool is_too_large = call.thread == UnaryThread::kCallers && request->Length() > kMaxControlBytes;
  if (is_too_large) {
    reactor->Finish(
        ToGrpcStatus(ToRpcError(InvalidArgument("the request has " + std::to_string(request->Length()) +
                                                " bytes, the most is " + std::to_string(kMaxControlBytes)))));
    return reactor;
  }
  const Caller caller = CallerOf(*context);
  const auto work = [this, context, request, response, reactor, caller](const Serving& serving) {
    if (context->IsCancelled()) return reactor->Finish(grpc::Status::CANCELLED);
    RequestProto proto;
    RpcError error = Parse(*request, &proto);
    if (error.ok()) {
      ResponseTo<RequestProto> message;
      error = call.answer({core_, serving, caller}, proto, &message);
      if (error.ok()) error = AnswerWith(message, *context, response);
    }
    reactor->Finish(ToGrpcStatus(error));
  };
  const RpcError refusal = core_.RunUnary(call.thread, static_cast<int64_t>(request->Length()), caller, work);
  if (!refusal.ok()) reactor->Finish(ToGrpcStatus(refusal));
  return reactor;
}

// ---- InferenceService ---------------------------------------------------------------------------

InferenceService::InferenceService(const InferenceServiceOptions& options, InferenceCore& core)
    : impl_(std::make_unique<Impl>(options, core)) {}
InferenceService::~InferenceService() = default;
grpc::Service* InferenceService::grpc_service() { return impl_.get(); }

}  // namespace tramontane

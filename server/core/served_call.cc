#include "server/core/served_call.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "server/access/api_key.h"
#include "server/base/request_id.h"
#include "server/base/text.h"
#include "server/core/answer_bound.h"
#include "server/core/chat_from_proto.h"

namespace tramontane {
namespace {

constexpr char kCorrelationIdKey[] = "x-correlation-id";

double Milliseconds(int64_t from_ns, int64_t to_ns) {
  return from_ns == 0 || to_ns == 0 ? 0.0 : static_cast<double>(to_ns - from_ns) / 1e6;
}

// "": there is none, or it cannot be shown.
std::string ShownId(const std::optional<std::string>& id) {
  return id && RequestIdFault(*id).empty() ? *id : "";
}

RpcError DuplicateIdError(const std::string& id) {
  RpcError error =
      ToRpcError(Status(StatusCode::kAlreadyExists, "a request named \"" + id + "\" is in progress")
                     .WithField("request_id"));
  error.field_description = error.message();
  error.reason = "DUPLICATE_REQUEST_ID";
  return error;
}

}  // namespace

ServedCall::~ServedCall() {
  if (!ended_ && stream_ != nullptr) {
    stream_->Cancel();
    End(ToRpcError(Status(StatusCode::kCancelled, "the call was dropped")));
  }
  session_.LetGo();
  NoteLeftQueue();
  if (counted_) core_.RemoveStream(this);
}

RpcError ServedCall::Open() {
  request_id_ = ShownId(options_.request_id);  // of a refusal that comes before the message is read
  correlation_id_ = ShownId(options_.correlation_id);
  serving_ = core_.serving();
  if (serving_ == nullptr) return InferenceCore::LoadingError();
  received_ns_ = serving_->model.clock->NowNs();
  stages_ = TtftStages(received_ns_ - options_.parse_ns - options_.receive_ns);
  stages_.Take(TtftStage::kReceive, options_.receive_ns);
  if (options_.deadline) {
    const std::chrono::nanoseconds left = *options_.deadline - std::chrono::steady_clock::now();
    deadline_ns_ = std::max<int64_t>(1, received_ns_ + left.count());
  }
  if (RpcError error = InferenceCore::CheckMayUse(caller_, serving_->model); !error.ok()) return error;
  RpcError error = core_.AddStream(this);
  counted_ = error.ok();
  if (error.ok()) error = core_.CheckQueue(*serving_);
  return error.ok() ? charge_.Begin() : error;
}

RpcError ServedCall::Admit(const v1::GenerateRequest& proto, std::function<void()> on_ready) {
  if (RpcError error = core_.CheckQueue(*serving_); !error.ok()) return error;  // it may have become full
  if (RpcError error = TakeRequestId(proto.request_id()); !error.ok()) return error;
  if (RpcError error = session_.Begin(core_.sessions().store(), caller_, proto); !error.ok()) return error;
  Request request;
  const auto wanted = [this] { return CheckIsWanted().ok(); };
  RpcError error =
      serving_->converter.requests.Generate(proto, &request, wanted, session_.found(), &unenforced_);
  if (!error.ok()) return error;
  if (proto.has_chat()) ignored_ = LeftOutFields(*serving_->model.chat_format, proto.chat());
  HoldPriority(proto.has_priority(), &request.share.priority);
  session_.NotePrompt(proto, request.prompt, *request.context_policy);
  request.kv_owner = session_.kv_owner();
  parts_.text = !proto.output().has_text() || proto.output().text();
  parts_.token_ids = !proto.output().has_token_ids() || proto.output().token_ids();
  if (options_.answer_bytes == nullptr) {
    return Submit(std::move(request), proto.has_chat(), std::move(on_ready));
  }
  const int64_t bytes = AnswerBytes(request, serving_->model.engine->limits());
  const int64_t others = options_.answer_bytes->fetch_add(bytes);
  error =
      CheckAnswerBytes(request, serving_->model.engine->limits(), others, serving_->model.max_answer_bytes);
  if (error.ok()) error = Submit(std::move(request), proto.has_chat(), std::move(on_ready));
  if (!error.ok()) *options_.answer_bytes -= bytes;
  return error;
}

RpcError ServedCall::Admit(const v1::ScoreCandidatesRequest& proto, std::function<void()> on_ready,
                           std::vector<int64_t>* lengths) {
  if (RpcError error = core_.CheckQueue(*serving_); !error.ok()) return error;
  if (RpcError error = TakeRequestId(proto.request_id()); !error.ok()) return error;
  Request request;
  if (RpcError error = serving_->converter.requests.ScoreCandidates(proto, &request); !error.ok())
    return error;
  HoldPriority(proto.has_priority(), &request.share.priority);
  for (const std::vector<int32_t>& candidate : request.candidates)
    lengths->push_back(static_cast<int64_t>(candidate.size()));
  return Submit(std::move(request), proto.has_chat(), std::move(on_ready));
}

void ServedCall::HoldPriority(bool is_asked, int32_t* priority) {
  if (caller_.key == nullptr || *priority >= caller_.key->priority) return;
  *priority = caller_.key->priority;
  if (is_asked) ignored_.emplace_back("priority");
}

RpcError ServedCall::Submit(Request request, bool is_chat, std::function<void()> on_ready) {
  request.id = request_id_;
  request.cache_salt = PageSalt(caller_, request.cache_salt);
  const bool takes_no_part = caller_.is_exempt || caller_.door == Caller::Door::kProgram;
  request.share.caller = takes_no_part ? "" : caller_.identity;
  request.share.weight = caller_.weight;
  request.received_ns = received_ns_;
  request.tokenized_ns = serving_->model.clock->NowNs();
  request.deadline_ns = deadline_ns_;
  request.arrival = {.begun_ns = stages_.begin_ns(),
                     .receive_ns = options_.receive_ns,
                     .parse_ns = options_.parse_ns + parse_ns_};
  request.counted = core_.request_counts()->TokensOf(caller_);
  stages_.Take(TtftStage::kParse, options_.parse_ns + parse_ns_);
  stages_.End(TtftStage::kTokenize, request.tokenized_ns);
  choices_ = request.choices;
  if (RpcError error = CheckIsWanted(); !error.ok()) return error;

  splitters_.assign(static_cast<size_t>(choices_), serving_->converter.events.NewSplitter(request, is_chat));
  const int64_t prompt_tokens = std::ssize(request.prompt);
  int64_t tokens = prompt_tokens;
  for (const std::vector<int32_t>& candidate : request.candidates) tokens += std::ssize(candidate);
  StatusOr<std::shared_ptr<TokenStream>> stream =
      serving_->model.engine->Submit(std::move(request), std::move(on_ready));
  if (!stream.ok()) return core_.SubmitError(stream.status());
  queued_ = true;
  core_.NoteQueued();
  charge_.NotePrompt(tokens);
  std::lock_guard lock(mutex_);
  stream_ = std::move(stream).value();
  prompt_tokens_ = prompt_tokens;
  if (cancelled_) stream_->Cancel();
  return {};
}

// The request's name: its own field, else the transport's, else drawn.
RpcError ServedCall::TakeRequestId(const std::string& id_field) {
  if (options_.correlation_id) {
    if (const std::string fault = RequestIdFault(*options_.correlation_id); !fault.empty()) {
      return FieldError(kCorrelationIdKey, fault);
    }
    correlation_id_ = *options_.correlation_id;
  }
  const bool from_field = !id_field.empty();
  if (from_field || options_.request_id) {
    const std::string& id = from_field ? id_field : *options_.request_id;
    if (const std::string fault = RequestIdFault(id); !fault.empty()) {
      return FieldError(from_field ? "request_id" : kRequestIdKey, fault);
    }
    request_id_ = id;
  } else {
    request_id_ = DrawRequestId();
  }
  registered_ = core_.request_ids().Add(caller_.identity, request_id_, this);
  return registered_ ? RpcError() : DuplicateIdError(request_id_);
}

RpcError ServedCall::CheckIsWanted() {
  {
    std::lock_guard lock(mutex_);
    if (cancelled_) return ToldOutcome(Status(StatusCode::kCancelled, "the request was cancelled"));
  }
  if (deadline_ns_ != 0 && serving_->model.clock->NowNs() >= deadline_ns_) {
    return ToRpcError(Status(StatusCode::kDeadlineExceeded, "the deadline passed while the input was read"));
  }
  return {};
}

void ServedCall::Cancel() {
  std::lock_guard lock(mutex_);
  cancelled_ = true;
  if (stream_ != nullptr) stream_->Cancel();
}

InferenceEvents ServedCall::Take() {
  StreamUpdate update = stream_->Take();
  const EventConverter& converter = serving_->converter.events;
  InferenceEvents taken;
  if (update.started || update.done) NoteLeftQueue();
  if (update.started) {
    begun_ = true;
    summary_.prompt_tokens = update.started->prompt_tokens;
    summary_.cached_tokens = update.started->cached_tokens;
    taken.events.push_back(converter.StartedToProto(*update.started, request_id_));
    taken.events.back().mutable_started()->mutable_ignored()->Assign(ignored_.begin(), ignored_.end());
    for (std::string& part : unenforced_.Parts())
      taken.events.back().mutable_started()->add_unenforced(std::move(part));
  }
  for (StreamDelta& delta : update.deltas) {
    charge_.NoteCompletion(delta.choice, delta.completion_tokens);
    AnswerSplitter& splitter = splitters_[static_cast<size_t>(delta.choice)];
    session_.NoteTokens(delta.token_ids);
    taken.events.push_back(converter.DeltaToProto(std::move(delta), parts_, &splitter));
    session_.NoteDelta(taken.events.back().delta());
  }
  NoteContent(update, taken.events);
  for (const StreamFinished& finished : update.finished) {
    summary_.Add(finished);
    charge_.NoteCompletion(finished.choice, finished.usage.completion_tokens);
    AnswerSplitter& splitter = splitters_[static_cast<size_t>(finished.choice)];
    v1::GenerateResponse rest;
    if (parts_.text && splitter.End(rest.mutable_delta())) {
      rest.mutable_delta()->set_choice(finished.choice);
      rest.mutable_delta()->set_completion_tokens(finished.usage.completion_tokens);
      session_.NoteDelta(rest.delta());
      taken.events.push_back(std::move(rest));
      NoteContent(update, taken.events);
    }
    session_.NoteFinished(finished);
    taken.events.push_back(EventConverter::FinishedToProto(finished, splitter));
    SetStages(taken.events.back().mutable_finished());
  }
  taken.done = update.done;
  if (update.done) taken.outcome = ToldOutcome(update.status);
  return taken;
}

// What a splitter keeps back longer than the engine did is let go now.
void ServedCall::NoteContent(const StreamUpdate& update, const std::vector<v1::GenerateResponse>& events) {
  if (stages_.ended(TtftStage::kHold)) return;
  const std::optional<FirstOutput>& first = parts_.token_ids ? update.first_ids : update.first_text;
  if (first) first_ = first;
  if (!first_ || std::none_of(events.begin(), events.end(), IsContent)) return;
  const Timings& timings = first_->timings;
  stages_.End(TtftStage::kQueue, timings.first_chunk_ns);
  stages_.End(TtftStage::kPrefillRun, timings.first_chunk_ns + timings.prefill_run_ns);
  stages_.End(TtftStage::kPrefillWait, timings.prefilled_ns);
  stages_.End(TtftStage::kSample, timings.first_token_ns);
  stages_.End(TtftStage::kHold, first ? timings.finished_ns : serving_->model.clock->NowNs());
  Count(TtftStage::kHold);
}

void ServedCall::NoteDelivered() {
  const bool is_first = stages_.ended(TtftStage::kHold) && !stages_.ended(TtftStage::kDeliver);
  if (!is_first) return;
  stages_.End(TtftStage::kDeliver, serving_->model.clock->NowNs());
  Count(TtftStage::kDeliver);
}

// Of those that begin with the first token; the others are counted where that is delivered (OutputMetrics).
void ServedCall::Count(TtftStage stage) const {
  core_.request_counts()->ObserveStage(stage, first_->usage.prompt_tokens, stages_.ns(stage));
}

void ServedCall::SetStages(v1::Finished* finished) const {
  v1::Timings* timings = finished->mutable_timings();
  const bool has_content = stages_.ended(TtftStage::kHold);
  if (has_content) stages_.ToProto(timings);
  timings->set_cached_tokens(finished->usage().cached_tokens());
  timings->set_chunks(has_content ? first_->usage.prefill_chunks : finished->usage().prefill_chunks());
  timings->set_preemptions(has_content ? first_->usage.preemptions : finished->usage().preemptions());
}

RpcError ServedCall::ToldOutcome(const Status& status) const {
  const bool by_stop = status.code() == StatusCode::kCancelled && core_.stopping();
  return by_stop ? InferenceCore::StoppedError() : ToOutcome(status);
}

void ServedCall::NoteLeftQueue() {
  if (std::exchange(queued_, false)) core_.NoteLeftQueue();
}

void ServedCall::End(const RpcError& outcome) {
  ended_ = true;
  charge_.End();
  outcome_ = outcome;
  session_.LetGo();
  if (registered_) core_.request_ids().Remove(caller_.identity, request_id_);
  if (counted_ && core_.request_trace().on()) Trace();
  if (caller_.door != Caller::Door::kHttp) {  // whose are counted by what their clients are told
    std::lock_guard lock(mutex_);
    core_.request_counts()->NoteEnd(caller_, EndOfCall(outcome, stream_ != nullptr));
  }
}

void ServedCall::Trace() const {
  const Usage usage = first_ ? first_->usage : Usage();
  core_.request_trace().Add({.id = request_id_,
                             .stages = stages_,
                             .end_ns = serving_->model.clock->NowNs(),
                             .prompt_tokens = summary_.prompt_tokens,
                             .completion_tokens = summary_.completion_tokens,
                             .chunks = usage.prefill_chunks,
                             .preemptions = usage.preemptions,
                             .reasons = summary_.reasons});
}

LiveCall ServedCall::Live() const {
  LiveCall live;
  live.key = caller_.key_name;
  live.received_ns = received_ns_;
  const bool is_http = caller_.door == Caller::Door::kHttp;
  live.id = (is_http ? options_.correlation_id : options_.request_id).value_or("");
  std::lock_guard lock(mutex_);
  if (stream_ != nullptr && !is_http) live.id = request_id_;
  live.prompt_tokens = prompt_tokens_;
  live.stream = stream_;
  return live;
}

void ServedCall::Describe(RequestLine* line) const {
  if (!request_id_.empty()) line->id = request_id_;
  line->correlation_id = correlation_id_;
  line->outcome = EndOfCall(outcome_, begun_).outcome;
  line->error = LowerCase(outcome_.reason);
  if (!begun_) return;
  line->model = serving_->model.names[0];
  line->prompt_tokens = summary_.prompt_tokens;
  line->cached_tokens = summary_.cached_tokens;
  line->output_tokens = summary_.completion_tokens;
  line->reason = summary_.reasons;
  const Timings& times = summary_.timings;
  if (times.admitted_ns != 0) line->queue_ms = Milliseconds(received_ns_, times.admitted_ns);
  if (stages_.ended(TtftStage::kHold)) line->ttft_ms = static_cast<double>(stages_.total_ns()) / 1e6;
}

void ServedCall::Summary::Add(const StreamFinished& finished) {
  prompt_tokens = finished.usage.prompt_tokens;
  cached_tokens = finished.usage.cached_tokens;
  completion_tokens += finished.usage.completion_tokens;
  timings = finished.timings;
  if (finished_choices++ > 0) reasons += ',';
  reasons += FinishReasonName(finished.reason);
}

std::string MillisecondsText(int64_t from_ns, int64_t to_ns) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f", Milliseconds(from_ns, to_ns));
  return text;
}

}  // namespace tramontane

#include "tests/support/fake_inference_client.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <unordered_map>
#include <utility>

namespace tramontane {
namespace {

constexpr std::chrono::seconds kPatience{60};
constexpr int32_t kBos = 1;
constexpr int32_t kFirstByte = 3;

RpcError NoSessions() { return ToRpcError(Unimplemented("no sessions are kept here")); }

// Adds `more` to a Delta of the same choice that waits already. False: there is none.
bool Join(std::vector<v1::GenerateResponse>* events, const v1::GenerateResponse& more) {
  if (!more.has_delta()) return false;
  for (auto event = events->rbegin(); event != events->rend(); ++event) {
    if (!event->has_delta() || event->delta().choice() != more.delta().choice()) continue;
    v1::Delta* delta = event->mutable_delta();
    if (more.delta().has_tool_calls_at()) {
      delta->set_tool_calls_at(static_cast<int32_t>(delta->text().size()) + more.delta().tool_calls_at());
    }
    for (v1::Mark mark : more.delta().marks()) {
      mark.set_at(static_cast<int32_t>(delta->text().size()) + mark.at());
      *delta->add_marks() = mark;
    }
    delta->mutable_text()->append(more.delta().text());
    delta->mutable_reasoning()->append(more.delta().reasoning());
    delta->mutable_token_ids()->MergeFrom(more.delta().token_ids());
    delta->mutable_logprobs()->MergeFrom(more.delta().logprobs());
    delta->set_completion_tokens(more.delta().completion_tokens());
    return true;
  }
  return false;
}

void AddBytes(const std::string& text, google::protobuf::RepeatedField<int32_t>* ids) {
  for (const char c : text) ids->Add(static_cast<unsigned char>(c) + kFirstByte);
}

std::string ContentsOf(const v1::Chat& chat) {
  std::string text;
  for (const auto& message : chat.messages()) {
    text += message.content();
    for (const auto& part : message.parts()) text += part.text();
    text += "\n";
  }
  return text;
}

int64_t ThreadCpuNs() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec;
}

std::string TokenText(int64_t token) { return "t" + std::to_string(token) + " "; }

}  // namespace

v1::GenerateResponse StartedEvent(int64_t prompt_tokens) {
  v1::GenerateResponse event;
  event.mutable_started()->set_request_id("fake-request");
  event.mutable_started()->set_model("fake");
  event.mutable_started()->set_prompt_tokens(prompt_tokens);
  return event;
}

v1::GenerateResponse DeltaEvent(int32_t choice, const std::string& text, int64_t completion_tokens) {
  v1::GenerateResponse event;
  v1::Delta* delta = event.mutable_delta();
  delta->set_choice(choice);
  delta->set_text(text);
  delta->add_token_ids(static_cast<int32_t>(kFirstByte + completion_tokens % 256));
  delta->set_completion_tokens(completion_tokens);
  return event;
}

v1::GenerateResponse FinishedEvent(int32_t choice, v1::FinishReason reason, int64_t prompt_tokens,
                                   int64_t completion_tokens) {
  v1::GenerateResponse event;
  v1::Finished* finished = event.mutable_finished();
  finished->set_choice(choice);
  finished->set_reason(reason);
  finished->mutable_usage()->set_prompt_tokens(prompt_tokens);
  finished->mutable_usage()->set_completion_tokens(completion_tokens);
  return event;
}

// ---- FakeInferenceCall --------------------------------------------------------------------------

FakeInferenceCall::FakeInferenceCall(Caller caller, v1::GenerateRequest request, InferenceCallOptions options,
                                     std::function<void()> on_ready)
    : caller_(std::move(caller)),
      request_(std::move(request)),
      options_(std::move(options)),
      on_ready_(std::move(on_ready)) {}

InferenceEvents FakeInferenceCall::Take() {
  std::lock_guard lock(mutex_);
  InferenceEvents taken = std::exchange(pending_, {});
  pending_.done = taken.done;  // the end is said to everybody who asks
  pending_.outcome = taken.outcome;
  return taken;
}

void FakeInferenceCall::Cancel() {
  {
    std::lock_guard lock(mutex_);
    if (ended_ || cancelled_) return;
    cancelled_ = true;
    changed_.notify_all();
  }
  RpcError outcome;
  outcome.code = StatusCode::kCancelled;
  outcome.sentence = "cancelled";
  End(std::move(outcome));
}

void FakeInferenceCall::Put(v1::GenerateResponse event) {
  bool was_empty = false;
  {
    std::lock_guard lock(mutex_);
    if (ended_ || cancelled_) return;
    was_empty = pending_.events.empty();
    if (!Join(&pending_.events, event)) pending_.events.push_back(std::move(event));
  }
  if (was_empty && on_ready_) on_ready_();
}

void FakeInferenceCall::End(RpcError outcome) {
  bool was_empty = false;
  {
    std::lock_guard lock(mutex_);
    if (ended_) return;
    ended_ = true;
    was_empty = pending_.events.empty();
    pending_.done = true;
    pending_.outcome = std::move(outcome);
  }
  if (was_empty && on_ready_) on_ready_();
}

bool FakeInferenceCall::cancelled() const {
  std::lock_guard lock(mutex_);
  return cancelled_;
}

bool FakeInferenceCall::open() const {
  std::lock_guard lock(mutex_);
  return !ended_ && !cancelled_;
}

int64_t FakeInferenceCall::pending_events() const {
  std::lock_guard lock(mutex_);
  return static_cast<int64_t>(pending_.events.size());
}

bool FakeInferenceCall::WaitUntilCancelled() {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kPatience, [this] { return cancelled_; });
}

// ---- FakeInferenceClient ------------------------------------------------------------------------

FakeInferenceClient::FakeInferenceClient() {
  model.set_name("fake");
  model.add_names("fake");
  model.set_architecture("MistralForCausalLM");
  model.set_context(4096);
  model.set_model_context(4096);
  model.set_vocab_size(kFirstByte + 256 + 41);
  model.set_bos_token_id(kBos);
  model.add_eos_token_ids(2);
  model.set_tokenizer_version("v3");
  model.set_chat_format("v3");
  model.set_tokenizer("sentencepiece");
  model.set_weight_format("bf16");
  model.set_default_temperature(1.0f);
  model.set_default_top_p(1.0f);
}

std::shared_ptr<FakeInferenceCall> FakeInferenceClient::WaitForCall(size_t n) {
  std::unique_lock lock(mutex_);
  const bool there = changed_.wait_for(lock, kPatience, [&] { return forgotten_ + calls_.size() > n; });
  return there && n >= forgotten_ ? calls_[n - forgotten_] : nullptr;
}

size_t FakeInferenceClient::calls_made() const {
  std::lock_guard lock(mutex_);
  return forgotten_ + calls_.size();
}

std::vector<std::shared_ptr<FakeInferenceCall>> FakeInferenceClient::calls() const {
  std::lock_guard lock(mutex_);
  return calls_;
}

int64_t FakeInferenceClient::open_calls() const {
  int64_t open = 0;
  for (const auto& call : calls()) open += call->open() ? 1 : 0;
  return open;
}

void FakeInferenceClient::ForgetEndedCalls() {
  std::lock_guard lock(mutex_);
  forgotten_ += std::erase_if(calls_, [](const auto& call) { return !call->open(); });
}

std::shared_ptr<InferenceCall> FakeInferenceClient::Generate(const Caller& caller,
                                                             v1::GenerateRequest request,
                                                             const InferenceCallOptions& options,
                                                             std::function<void()> on_ready,
                                                             RpcError* refusal) {
  if (refuse) *refusal = refuse(request);
  if (!refusal->ok()) return nullptr;
  auto call = std::make_shared<FakeInferenceCall>(caller, std::move(request), options, std::move(on_ready));
  {
    std::lock_guard lock(mutex_);
    calls_.push_back(call);
    changed_.notify_all();
  }
  if (on_generate) on_generate(*call);
  return call;
}

namespace {

void Answer(const v1::TokenizeRequest& request, v1::TokenizeResponse* response) {
  if (request.has_chat()) {
    response->add_token_ids(kBos);
    AddBytes(ContentsOf(request.chat()), response->mutable_token_ids());
  } else {
    if (!request.has_add_bos() || request.add_bos()) response->add_token_ids(kBos);
    AddBytes(request.text(), response->mutable_token_ids());
  }
}

void Answer(const v1::DetokenizeRequest& request, v1::DetokenizeResponse* response) {
  for (const int32_t id : request.token_ids()) {
    if (id >= kFirstByte) response->mutable_text()->push_back(static_cast<char>(id - kFirstByte));
  }
}

void Answer(const v1::RenderChatRequest& request, v1::RenderChatResponse* response) {
  response->set_text(ContentsOf(request.chat()));
  response->add_token_ids(kBos);
  AddBytes(response->text(), response->mutable_token_ids());
}

// A token a byte, each half as likely as the one before.
void Answer(const v1::ScoreCandidatesRequest& request, v1::ScoreCandidatesResponse* response) {
  response->set_request_id(request.request_id());
  response->set_model("breeze");
  response->mutable_usage()->set_prompt_tokens(static_cast<int64_t>(request.text().size()));
  for (const v1::Candidate& candidate : request.candidates()) {
    v1::CandidateScore* score = response->add_candidates();
    *score->mutable_token_ids() = candidate.token_ids().ids();
    AddBytes(candidate.text(), score->mutable_token_ids());
    for (int i = 0; i < score->token_ids_size(); ++i) {
      score->add_logprobs(-0.5F * static_cast<float>(i + 1));
      score->add_ranks(i + 1);
      score->set_logprob_sum(score->logprob_sum() - 0.5 * (i + 1));
    }
    response->set_candidate_tokens(response->candidate_tokens() + score->token_ids_size());
  }
}

// False: `request` is another one.
template <typename Request>
bool AnswerIf(const google::protobuf::Message& request, google::protobuf::Message* response) {
  const auto* asked = dynamic_cast<const Request*>(&request);
  if (asked != nullptr) Answer(*asked, static_cast<ResponseTo<Request>*>(response));
  return asked != nullptr;
}

}  // namespace

void FakeInferenceClient::AskUnary(const Caller& /*caller*/,
                                   std::shared_ptr<const google::protobuf::Message> request,
                                   std::unique_ptr<google::protobuf::Message> response,
                                   Done<google::protobuf::Message> done) {
  RpcError error = unary_error;
  if (const auto* get = dynamic_cast<const v1::GetModelRequest*>(request.get())) {
    response->CopyFrom(model);
    if (error.ok() && !get->model().empty() && get->model() != model.name()) {
      error.code = StatusCode::kNotFound;
      error.field = "model";
      error.sentence = "\"" + get->model() + "\" is not served, but " + model.name();
      error.missing_model = get->model();
    }
  } else if (dynamic_cast<const v1::GetLoadRequest*>(request.get()) != nullptr) {
    response->CopyFrom(load);
  } else if (!AnswerIf<v1::TokenizeRequest>(*request, response.get()) &&
             !AnswerIf<v1::DetokenizeRequest>(*request, response.get()) &&
             !AnswerIf<v1::RenderChatRequest>(*request, response.get()) &&
             !AnswerIf<v1::ScoreCandidatesRequest>(*request, response.get())) {
    error = NoSessions();
  }
  done(error, *response);
}

// ---- scripts ------------------------------------------------------------------------------------

void SayTokens(FakeInferenceCall& call, int64_t tokens) {
  call.Put(StartedEvent(1));
  for (int64_t i = 0; i < tokens; ++i) call.Put(DeltaEvent(0, TokenText(i), i + 1));
  call.Put(FinishedEvent(0, v1::FINISH_REASON_LENGTH, 1, tokens));
  call.End();
}

std::string TokensText(int64_t tokens) {
  std::string text;
  for (int64_t i = 0; i < tokens; ++i) text += TokenText(i);
  return text;
}

FakeStepLoop::FakeStepLoop(FakeInferenceClient& client, int64_t step_us)
    : client_(client), step_us_(step_us), thread_([this] { Run(); }) {}
FakeStepLoop::~FakeStepLoop() { Stop(); }

void FakeStepLoop::Stop() {
  stopping_ = true;
  if (thread_.joinable()) thread_.join();
}

void FakeStepLoop::Run() {
  auto next = std::chrono::steady_clock::now();
  std::unordered_map<FakeInferenceCall*, int64_t> said;  // tokens of each open call
  while (!stopping_) {
    for (const auto& call : client_.calls()) {
      int64_t& tokens = said[call.get()];
      if (tokens == 0) call->Put(StartedEvent(1));
      call->Put(DeltaEvent(0, TokenText(tokens), tokens + 1));
      ++tokens;
      ++events_;
      if (tokens < call->request().stopping().max_tokens() && call->open()) continue;
      call->Put(FinishedEvent(0, v1::FINISH_REASON_LENGTH, 1, tokens));
      call->End();
      said.erase(call.get());
    }
    client_.ForgetEndedCalls();
    cpu_ns_ = ThreadCpuNs();
    next = std::max(next + std::chrono::microseconds(step_us_), std::chrono::steady_clock::now());
    std::this_thread::sleep_until(next);
  }
}

}  // namespace tramontane

#include "server/api/openai/completions.h"

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <string>
#include <utility>

#include "kernels/core/status.h"
#include "server/api/openai/choices_fields.h"
#include "server/api/openai/request_shapes.h"
#include "server/api/shared/field_rows.h"
#include "server/api/shared/foreign_fields.h"
#include "server/api/shared/gateway_context.h"
#include "server/base/text.h"
#include "server/call/inference_client.h"

namespace tramontane {

// ---- fields -------------------------------------------------------------------------------------

namespace {

std::vector<Field> CompletionFields() {
  const Shape ids = ArrayOf(Integer(0, kMaxInt32), 1);
  return {
      {.name = "prompt",
       .shape = AnyOf({String(), ArrayOf(String(), 1, kMaxPrompts), ids, ArrayOf(ids, 1, kMaxPrompts)}),
       .doc =
           "A text or token ids, or several of either: each gets `n` answers, in the order of the prompts.",
       .required = true},
      {.name = "suffix",
       .shape = String(),
       .doc = "What stands behind the answer, of a model that can fill in the middle. Default: nothing.",
       .path = "suffix"},
      {.name = "max_tokens",
       .shape = Integer(0),
       .doc =
           "Tokens to generate at most; 0 scores the prompt only. Default 16; of /v1/fim/completions: until "
           "the model ends.",
       .path = "stopping.max_tokens"},
      {.name = "max_completion_tokens",
       .shape = Integer(0),
       .doc = "The same; wins where both are given.",
       .path = "stopping.max_tokens"},
      {.name = "logprobs",
       .shape = Integer(0, 20),
       .doc = "Log probabilities of the tokens, and of the N likeliest at each place. Default: none.",
       .path = "output.logprobs",
       .apply = Into<&v1::GenerateRequest::mutable_output, &v1::Output::set_logprobs>},
      {.name = "echo", .shape = Boolean(), .doc = "Put the prompt in front of the answer. Default false."},
      {.name = "add_special_tokens",
       .shape = Boolean(),
       .doc = "Begin a text with the beginning-of-sequence token. Default true.",
       .path = "add_bos"},
      ParseSpecialTokens(),
      {.name = "best_of",
       .shape = Integer(0, 20),
       .doc = "Only as `n`: answers that are thrown away are not made."},
  };
}

}  // namespace

Shape CompletionShape(const FieldLimits& limits) {
  return ClosedObject(std::vector<Field>{ModelRow()} + CompletionFields() + GenerationFields(limits) +
                      ForeignFields() + ForeignCompletionFields());
}

namespace {

Shape CompletionChoiceShape() {
  const Shape nullable_logprob = AnyOf({Only({nullptr}, ""), Logprob()});
  const Shape nullable_top = AnyOf({Only({nullptr}, ""), MapOf(Logprob())});
  return Object({Always("index", Integer(0)), Always("text", String()),
                 Maybe("logprobs", Object({Always("tokens", ArrayOf(String())),
                                           Always("token_logprobs", ArrayOf(nullable_logprob)),
                                           Always("top_logprobs", ArrayOf(nullable_top)),
                                           Always("text_offset", ArrayOf(Integer(0)))})),
                 Always("finish_reason", OneOfStrings({"stop", "length"})), StopReason(),
                 Maybe("prompt_logprobs", PromptLogprobsShape()), Maybe("prompt_token_ids", TokenIds()),
                 Maybe("token_ids", TokenIds())});
}

}  // namespace

const Shape& CompletionAnswerShape() {
  static const Shape shape = Object(ChoicesAnswerFields("text_completion", CompletionChoiceShape()));
  return shape;
}

const Shape& FillInMiddleAnswerShape() {
  static const Shape shape = [] {
    Shape choice = CompletionChoiceShape();
    choice.fields.push_back(Always(
        "message", Object({Always("role", OneOfStrings({"assistant"})), Always("content", String())})));
    return Object(ChoicesAnswerFields("chat.completion", std::move(choice)));
  }();
  return shape;
}

const Shape& RenderedListShape() {
  static const Shape shape = ArrayOf(RenderedShape(), 1);
  return shape;
}

// ---- requests -----------------------------------------------------------------------------------

namespace {

constexpr int64_t kDefaultCompletionTokens = 16;  // OpenAI's

constexpr size_t kMaxSuffixBytes = size_t{8} << 20;  // of all prompts together: each gets a copy

bool IsListOfPrompts(const Json& prompt) { return prompt.is_array() && !prompt[0].is_number(); }

void SetPrompt(const Json& json, const Json& prompt, const std::string& path, v1::GenerateRequest* call,
               FieldNames* names) {
  names->Rename("text", path);
  names->Rename("token_ids.ids", path);
  names->Rename("prompt", path);
  if (prompt.is_string()) {
    call->set_text(prompt.get<std::string>());
    if (const Json* add = Find(json, "add_special_tokens")) call->set_add_bos(add->get<bool>());
    if (IsTrue(json, "parse_special_tokens")) call->set_parse_special_tokens(true);
    return;
  }
  auto* ids = call->mutable_token_ids()->mutable_ids();
  ids->Reserve(static_cast<int>(prompt.size()));
  for (const Json& id : prompt) ids->Add(id.get<int32_t>());
}

// One call for each prompt. Of several, each has its own fields only.
std::optional<ApiError> ConvertPrompts(const Json& json, GenerationRequest* request) {
  const Json& prompt = json["prompt"];
  if (!IsListOfPrompts(prompt)) {
    SetPrompt(json, prompt, "prompt", &request->calls[0], &request->names[0]);
    return std::nullopt;
  }
  if (prompt.size() == 1) {
    SetPrompt(json, prompt[0], FieldElement("prompt", 0), &request->calls[0], &request->names[0]);
    return std::nullopt;
  }
  if (!request->calls[0].session().empty()) {
    return FieldFault("session", "goes with one prompt; here are " + std::to_string(prompt.size()));
  }
  const size_t suffix_bytes = request->calls[0].suffix().size();
  if (suffix_bytes * prompt.size() > kMaxSuffixBytes) {
    return FieldFault("suffix", "is " + std::to_string(suffix_bytes) + " bytes long, for each of " +
                                    std::to_string(prompt.size()) + " prompts; together at most " +
                                    std::to_string(kMaxSuffixBytes));
  }
  request->shared = std::exchange(request->calls[0], {});
  request->calls.resize(prompt.size());
  request->names.resize(prompt.size(), request->names[0]);
  for (size_t i = 0; i < prompt.size(); ++i) {
    v1::GenerateRequest& call = request->calls[i];
    call.set_request_id(request->shared.request_id() + "-" + std::to_string(i));
    call.set_model(request->shared.model());
    SetPrompt(json, prompt[i], FieldElement("prompt", i), &call, &request->names[i]);
  }
  request->shared.clear_request_id();
  return std::nullopt;
}

// What completions have in common, whatever the model is to do with the prompt.
std::optional<ApiError> ParsePrompts(std::string_view body, const RequestContext& context, Json* parsed,
                                     GenerationRequest* request) {
  Json& json = *parsed;
  if (auto fault = ParseChoicesGeneration(body, ShapesOf(context).completion, context, &json, request))
    return fault;
  v1::GenerateRequest& call = request->calls[0];
  AnswerOptions& answer = request->answer;
  const Json* best_of = Find(json, "best_of");
  if (best_of != nullptr && *best_of != 0 && *best_of != answer.choices) {
    return FieldFault("best_of", "is " + PrintJson(*best_of) + " where n is " +
                                     std::to_string(answer.choices) +
                                     "; only as many answers as are returned are made");
  }
  if (call.output().has_logprobs()) answer.logprobs = call.output().logprobs();
  answer.echo = IsTrue(json, "echo");
  if (answer.echo) {
    call.mutable_output()->set_prompt_tokens(true);
    const int32_t scores = std::max(answer.logprobs, answer.prompt_logprobs);
    if (scores >= 0) call.mutable_output()->set_prompt_logprobs(scores);
    if (answer.prompt_logprobs < 0) request->names[0].Rename("output.prompt_logprobs", "logprobs");
  }
  return std::nullopt;
}

}  // namespace

std::optional<ApiError> ParseCompletion(std::string_view body, const RequestContext& context,
                                        GenerationRequest* request) {
  Json json;
  if (auto fault = ParsePrompts(body, context, &json, request)) return fault;
  v1::GenerateRequest& call = request->calls[0];
  if (!call.stopping().has_max_tokens()) call.mutable_stopping()->set_max_tokens(kDefaultCompletionTokens);
  if (const std::string suffix = TextOf(json, "suffix"); !suffix.empty()) call.set_suffix(suffix);
  return ConvertPrompts(json, request);
}

std::optional<ApiError> ParseFillInMiddle(std::string_view body, const RequestContext& context,
                                          GenerationRequest* request) {
  Json json;
  if (auto fault = ParsePrompts(body, context, &json, request)) return fault;
  request->calls[0].set_suffix(TextOf(json, "suffix"));
  request->answer.as_message = true;
  return ConvertPrompts(json, request);
}

// ---- endpoints ----------------------------------------------------------------------------------

void AnswerCompletions(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange) {
  AnswerGeneration(context, exchange, ParseCompletion, MakeCompletionWriter);
}

void AnswerFillInMiddle(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange) {
  AnswerGeneration(context, exchange, ParseFillInMiddle, MakeCompletionWriter);
}

namespace {

// Several prompts, each tokenized by a call of its own, in any order; the last one to come answers.
struct RenderedPrompts {
  std::shared_ptr<GatewayExchange> exchange;
  std::mutex mutex;  // guards what follows
  std::vector<std::string> ignored;
  std::vector<std::string> prompts;  // as JSON; "": missing
  size_t missing = 0;
  bool answered = false;

  void Put(size_t index, std::string prompt);
  void Fail(const ApiError& error);
};

void RenderedPrompts::Put(size_t index, std::string prompt) {
  const std::lock_guard lock(mutex);
  prompts[index] = std::move(prompt);
  if (--missing != 0 || std::exchange(answered, true)) return;
  std::string list;
  for (std::string& text : prompts) {
    (list += list.empty() ? '[' : ',') += text;
    std::string().swap(text);
  }
  list += ']';
  RespondWithText(*exchange, std::move(list), ignored);
}

void RenderedPrompts::Fail(const ApiError& error) {
  const std::lock_guard lock(mutex);
  if (!std::exchange(answered, true)) exchange->Fail(error);
}

}  // namespace

void AnswerRenderCompletions(const GatewayContext& context,
                             const std::shared_ptr<GatewayExchange>& exchange) {
  GenerationRequest parsed;
  if (auto fault = ParseCompletion(exchange->request().body, RequestContextOf(context, *exchange), &parsed)) {
    return exchange->Fail(*fault);
  }
  const auto rendered = std::make_shared<RenderedPrompts>();
  rendered->exchange = exchange;
  rendered->ignored = std::move(parsed.ignored);
  rendered->missing = parsed.calls.size();
  rendered->prompts.resize(parsed.calls.size());
  for (size_t i = 0; i < parsed.calls.size(); ++i) {
    v1::GenerateRequest& call = parsed.calls[i];
    if (call.has_token_ids()) {
      rendered->Put(i, RenderedJson(call, call.token_ids().ids(), nullptr));
      continue;
    }
    v1::TokenizeRequest request;
    request.set_model(call.model());
    request.set_text(call.text());
    if (call.has_add_bos()) request.set_add_bos(call.add_bos());
    if (call.parse_special_tokens()) request.set_parse_special_tokens(true);
    const v1::GenerateRequest& of_all = parsed.calls.size() > 1 ? parsed.shared : call;
    if (of_all.has_suffix()) request.set_suffix(of_all.suffix());
    call.clear_text();
    context.client.Ask(CallerOf(*exchange), std::move(request),
                       [rendered, i, call = std::move(call), names = std::move(parsed.names[i])](
                           const RpcError& error, const v1::TokenizeResponse& tokens) {
                         if (!error.ok()) return rendered->Fail(names.Explain(error));
                         rendered->Put(i, RenderedJson(call, tokens.token_ids(), nullptr));
                       });
  }
}

}  // namespace tramontane

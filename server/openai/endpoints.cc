#include "server/openai/endpoints.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "server/openai/answer_writer.h"
#include "server/openai/api_error.h"
#include "server/openai/generation.h"
#include "server/openai/json.h"
#include "server/openai/responses.h"
#include "server/openai/routes.h"
#include "server/openai/spec.h"

namespace tramontane {
namespace {

int64_t SecondsSince1970() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

constexpr char kIgnoredHeader[] = "x-tramontane-ignored";

// A key is whatever a client sent; a header is not.
std::string HeaderText(const std::string& key) {
  std::string text = key;
  for (char& c : text) {
    if (c <= ' ' || c > '~' || c == ',') c = '?';
  }
  return text;
}

// What a body has that changes nothing: "user, metadata".
HttpHeaders IgnoredHeaders(const std::vector<std::string>& keys) {
  std::string names;
  for (const std::string& key : keys) names += (names.empty() ? "" : ", ") + HeaderText(key);
  if (names.empty()) return {};
  return {{kIgnoredHeader, std::move(names)}};
}

void RespondWith(HttpExchange& exchange, const Json& body, const std::vector<std::string>& ignored = {}) {
  HttpResponse response;
  response.headers = IgnoredHeaders(ignored);
  response.body = PrintJson(body);
  exchange.Respond(std::move(response));
}

}  // namespace

RequestContext RequestContextOf(const GatewayContext& context, const HttpExchange& exchange) {
  return {.id = exchange.request().id,
          .created_s = SecondsSince1970(),
          .any_model = context.options.any_model,
          .system_fingerprint = "tramontane-" + context.options.version,
          .strict_fields = context.options.strict_fields,
          .shapes = context.shapes};
}

// ---- generating ---------------------------------------------------------------------------------

namespace {

using ParseGeneration = std::optional<ApiError> (*)(std::string_view, const RequestContext&,
                                                    GenerationRequest*);
using MakeWriter = std::unique_ptr<ResponseWriter> (*)(AnswerOptions, std::vector<FieldNames>);

void Generate(const GatewayContext& context, const std::shared_ptr<HttpExchange>& exchange,
              ParseGeneration parse, MakeWriter make_writer) {
  GenerationRequest request;
  if (auto fault = parse(exchange->request().body, RequestContextOf(context, *exchange), &request)) {
    return exchange->Respond(ErrorResponse(*fault));
  }
  GenerationPlan plan;
  plan.requests = std::move(request.calls);
  plan.shared = std::move(request.shared);
  plan.headers = IgnoredHeaders(request.ignored);
  plan.stream = request.answer.stream;
  plan.writer = make_writer(std::move(request.answer), std::move(request.names));
  RunGeneration(context.client, std::move(plan), exchange);
}

}  // namespace

void AnswerChatCompletions(const GatewayContext& context, const std::shared_ptr<HttpExchange>& exchange) {
  Generate(context, exchange, ParseChatCompletion, MakeChatWriter);
}

void AnswerCompletions(const GatewayContext& context, const std::shared_ptr<HttpExchange>& exchange) {
  Generate(context, exchange, ParseCompletion, MakeCompletionWriter);
}

void AnswerResponses(const GatewayContext& context, const std::shared_ptr<HttpExchange>& exchange) {
  ResponsesRequest request;
  if (auto fault = ParseResponses(exchange->request().body, RequestContextOf(context, *exchange), &request)) {
    return exchange->Respond(ErrorResponse(*fault));
  }
  GenerationPlan plan;
  plan.stream = request.answer.stream;
  plan.headers = IgnoredHeaders(request.ignored);
  plan.writer = MakeResponsesWriter(request);
  plan.requests.push_back(std::move(request.call));
  RunGeneration(context.client, std::move(plan), exchange);
}

// ---- rendering ----------------------------------------------------------------------------------

namespace {

template <typename Ids>
Json RenderedJson(const v1::GenerateRequest& call, const Ids& ids) {
  Json json = {{"request_id", call.request_id()}, {"token_ids", ids}};
  if (!call.model().empty()) json["model"] = call.model();
  return json;
}

// Several prompts, each tokenized by a call of its own, in any order; the last one to come answers.
struct RenderedPrompts {
  std::shared_ptr<HttpExchange> exchange;
  std::mutex mutex;  // guards what follows
  std::vector<std::string> ignored;
  Json prompts = Json::array();
  size_t missing = 0;
  bool answered = false;

  void Put(size_t index, Json prompt);
  void Fail(const ApiError& error);
};

void RenderedPrompts::Put(size_t index, Json prompt) {
  const std::lock_guard lock(mutex);
  prompts[index] = std::move(prompt);
  if (--missing == 0 && !std::exchange(answered, true)) RespondWith(*exchange, prompts, ignored);
}

void RenderedPrompts::Fail(const ApiError& error) {
  const std::lock_guard lock(mutex);
  if (!std::exchange(answered, true)) exchange->Respond(ErrorResponse(error));
}

}  // namespace

void AnswerRenderChat(const GatewayContext& context, const std::shared_ptr<HttpExchange>& exchange) {
  GenerationRequest parsed;
  if (auto fault =
          ParseChatCompletion(exchange->request().body, RequestContextOf(context, *exchange), &parsed)) {
    return exchange->Respond(ErrorResponse(*fault));
  }
  v1::RenderChatRequest request;
  request.set_model(parsed.calls[0].model());
  *request.mutable_chat() = parsed.calls[0].chat();
  context.client.RenderChat(
      std::move(request),
      [exchange, parsed = std::move(parsed)](const RpcError& error, const v1::RenderChatResponse& rendered) {
        if (!error.ok()) return exchange->Respond(ErrorResponse(parsed.names[0].Explain(error)));
        Json body = RenderedJson(parsed.calls[0], rendered.token_ids());
        body["text"] = rendered.text();
        RespondWith(*exchange, body, parsed.ignored);
      });
}

void AnswerRenderCompletions(const GatewayContext& context, const std::shared_ptr<HttpExchange>& exchange) {
  GenerationRequest parsed;
  if (auto fault = ParseCompletion(exchange->request().body, RequestContextOf(context, *exchange), &parsed)) {
    return exchange->Respond(ErrorResponse(*fault));
  }
  const auto rendered = std::make_shared<RenderedPrompts>();
  rendered->exchange = exchange;
  rendered->ignored = std::move(parsed.ignored);
  rendered->missing = parsed.calls.size();
  for (size_t i = 0; i < parsed.calls.size(); ++i) rendered->prompts.push_back(nullptr);
  for (size_t i = 0; i < parsed.calls.size(); ++i) {
    v1::GenerateRequest& call = parsed.calls[i];
    if (call.has_token_ids()) {
      rendered->Put(i, RenderedJson(call, call.token_ids().ids()));
      continue;
    }
    v1::TokenizeRequest request;
    request.set_model(call.model());
    request.set_text(call.text());
    if (call.has_add_bos()) request.set_add_bos(call.add_bos());
    call.clear_text();
    context.client.Tokenize(std::move(request),
                            [rendered, i, call = std::move(call), names = std::move(parsed.names[i])](
                                const RpcError& error, const v1::TokenizeResponse& tokens) {
                              if (!error.ok()) return rendered->Fail(names.Explain(error));
                              rendered->Put(i, RenderedJson(call, tokens.token_ids()));
                            });
  }
}

// ---- models -------------------------------------------------------------------------------------

namespace {

// OpenAI's four keys; vLLM's root, parent and max_model_len; Mistral's type, capabilities and
// max_context_length, without which its client refuses the list.
Json ModelJson(const std::string& name, const v1::GetModelResponse& model) {
  static const int64_t start_s = SecondsSince1970();
  const bool chats = !model.chat_format().empty();
  return {{"id", name},
          {"object", "model"},
          {"created", start_s},
          {"owned_by", "tramontane"},
          {"root", model.name()},
          {"parent", nullptr},
          {"max_model_len", model.context()},
          {"max_context_length", model.context()},
          {"type", "base"},
          {"capabilities",
           {{"completion_chat", chats},
            {"completion_fim", false},
            {"function_calling", chats && model.chat_format() != "v1"},
            {"fine_tuning", false},
            {"vision", false}}}};
}

}  // namespace

void AnswerModels(const GatewayContext& context, const std::shared_ptr<HttpExchange>& exchange) {
  context.client.GetModel({}, [exchange](const RpcError& error, const v1::GetModelResponse& model) {
    if (!error.ok()) return exchange->Respond(ErrorResponse(ToApiError(error)));
    Json data = Json::array();
    for (const std::string& name : model.names()) data.push_back(ModelJson(name, model));
    RespondWith(*exchange, {{"object", "list"}, {"data", std::move(data)}});
  });
}

void AnswerModel(const GatewayContext& context, const std::shared_ptr<HttpExchange>& exchange) {
  const std::string name = WildcardOf("/models/*", exchange->request().path);
  v1::GetModelRequest request;
  request.set_model(name);
  context.client.GetModel(request,
                          [exchange, name](const RpcError& error, const v1::GetModelResponse& model) {
                            if (!error.ok()) return exchange->Respond(ErrorResponse(ToApiError(error)));
                            RespondWith(*exchange, ModelJson(name, model));
                          });
}

// ---- text and ids -------------------------------------------------------------------------------

void AnswerTokenize(const GatewayContext& context, const std::shared_ptr<HttpExchange>& exchange) {
  TokenizeBody body;
  if (auto fault = ParseTokenize(exchange->request().body, RequestContextOf(context, *exchange), &body)) {
    return exchange->Respond(ErrorResponse(*fault));
  }
  InferenceClient& client = context.client;
  v1::TokenizeRequest request = std::move(body.request);
  client.Tokenize(std::move(request), [exchange, context, body = std::move(body)](
                                          const RpcError& error, const v1::TokenizeResponse& tokens) {
    if (!error.ok()) {
      return exchange->Respond(ErrorResponse(FieldNames(context.shapes->tokenize).Explain(error)));
    }
    context.client.GetModel(
        {}, [exchange, tokens, body](const RpcError& model_error, const v1::GetModelResponse& model) {
          if (!model_error.ok()) return exchange->Respond(ErrorResponse(ToApiError(model_error)));
          Json answer = {{"count", tokens.token_ids_size()},
                         {"max_model_len", model.context()},
                         {"tokens", tokens.token_ids()}};
          if (body.token_strings) answer["token_strs"] = tokens.pieces();
          RespondWith(*exchange, answer, body.ignored);
        });
  });
}

void AnswerDetokenize(const GatewayContext& context, const std::shared_ptr<HttpExchange>& exchange) {
  DetokenizeBody body;
  if (auto fault = ParseDetokenize(exchange->request().body, RequestContextOf(context, *exchange), &body)) {
    return exchange->Respond(ErrorResponse(*fault));
  }
  context.client.Detokenize(
      std::move(body.request), [exchange, shapes = context.shapes, ignored = std::move(body.ignored)](
                                   const RpcError& error, const v1::DetokenizeResponse& text) {
        if (!error.ok()) {
          return exchange->Respond(ErrorResponse(FieldNames(shapes->detokenize).Explain(error)));
        }
        RespondWith(*exchange, {{"prompt", text.text()}}, ignored);
      });
}

void AnswerOpenApi(const GatewayContext& context, const std::shared_ptr<HttpExchange>& exchange) {
  HttpResponse response;
  response.body = OpenApiJson(context.options.version, *context.shapes);
  exchange->Respond(std::move(response));
}

void AnswerTokenizerInfo(const GatewayContext& context, const std::shared_ptr<HttpExchange>& exchange) {
  context.client.GetModel({}, [exchange](const RpcError& error, const v1::GetModelResponse& model) {
    if (!error.ok()) return exchange->Respond(ErrorResponse(ToApiError(error)));
    const auto piece = [](const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); };
    RespondWith(*exchange, {{"tokenizer_class", "sentencepiece " + model.tokenizer_version()},
                            {"bos_token", piece(model.bos_piece())},
                            {"eos_token", piece(model.eos_piece())},
                            {"pad_token", nullptr},
                            {"chat_template", nullptr},
                            {"model_max_length", model.context()},
                            {"vocab_size", model.vocab_size()}});
  });
}

}  // namespace tramontane

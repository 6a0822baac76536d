#include "server/api/spec.h"

#include <utility>

#include "server/api/admin/sessions.h"
#include "server/api/openai/chat.h"
#include "server/api/openai/choices_fields.h"
#include "server/api/openai/completions.h"
#include "server/api/openai/models.h"
#include "server/api/openai/responses.h"
#include "server/api/openai/score.h"
#include "server/api/openai/tokenize.h"
#include "server/api/shared/gateway_context.h"
#include "server/api/shared/json.h"
#include "server/api/shared/timing.h"

namespace tramontane {
namespace {

const Shape& VersionShape() {
  static const Shape shape = Object({Always("version", String())});
  return shape;
}
const Shape& LoadShape() {
  static const Shape shape = Object({Always("server_load", Integer(0))});
  return shape;
}
const Shape& AnyObjectShape() {
  static const Shape shape = Object({});
  return shape;
}

Shape ErrorShape() {
  return Object({Always("error", Object({Always("message", String()), Always("type", String()),
                                         Maybe("param", String()), Maybe("code", String())}))});
}

}  // namespace

// ---- the document -------------------------------------------------------------------------------

const std::vector<Operation>& Operations() {
  static const std::vector<Operation> operations = {
      {.method = "post",
       .path = "/v1/chat/completions",
       .summary = "The model's answer to a conversation.",
       .request = &RequestShapes::chat,
       .response = ChatCompletionAnswerShape,
       .streams = true},
      {.method = "post",
       .path = "/v1/chat/completions/render",
       .summary = "The token ids that such a conversation becomes. Nothing is generated.",
       .request = &RequestShapes::chat,
       .response = RenderedShape},
      {.method = "post",
       .path = "/v1/completions",
       .summary = "What follows a text.",
       .request = &RequestShapes::completion,
       .response = CompletionAnswerShape,
       .streams = true},
      {.method = "post",
       .path = "/v1/completions/render",
       .summary = "The token ids of each prompt. Nothing is generated.",
       .request = &RequestShapes::completion,
       .response = RenderedListShape},
      {.method = "post",
       .path = "/v1/fim/completions",
       .summary = "What stands between a text and a suffix.",
       .request = &RequestShapes::completion,
       .response = FillInMiddleAnswerShape,
       .streams = true},
      {.method = "post",
       .path = "/v1/responses",
       .summary = "The model's answer, in the form of OpenAI's newer interface. Nothing is kept.",
       .request = &RequestShapes::responses,
       .response = ResponsesAnswerShape,
       .streams = true},
      {.method = "get", .path = "/v1/models", .summary = "The served names.", .response = ModelListShape},
      {.method = "get", .path = "/v1/models/{model}", .summary = "One of them.", .response = ModelShape},
      {.method = "get",
       .path = "/v1/sessions",
       .summary = "The caller's conversations that are kept, by name.",
       .response = SessionListShape},
      {.method = "delete",
       .path = "/v1/sessions/{name}",
       .summary = "Forgets one of them; 409 where a request uses it.",
       .response = SessionDeletedShape},
      {.method = "post",
       .path = "/v1/sessions/{name}/save",
       .summary = "Writes it to the server's --session-dir.",
       .response = SessionSavedShape},
      {.method = "post",
       .path = "/v1/sessions/{name}/restore",
       .summary = "Reads it from there, in place of what is kept under the name.",
       .response = SessionRestoredShape},
      {.method = "post",
       .path = "/v1/score",
       .summary = "How likely texts are behind a prompt or a chat.",
       .request = &RequestShapes::score,
       .response = ScoredShape},
      {.method = "post",
       .path = "/tokenize",
       .summary = "Text or a chat to token ids.",
       .request = &RequestShapes::tokenize,
       .response = TokenizedShape},
      {.method = "post",
       .path = "/detokenize",
       .summary = "Token ids to text.",
       .request = &RequestShapes::detokenize,
       .response = DetokenizedShape},
      {.method = "get",
       .path = "/tokenizer_info",
       .summary = "What a client's tokenizer should know.",
       .response = TokenizerInfoShape},
      {.method = "get",
       .path = "/health",
       .summary = "200 while the server can answer: a model stands and steps.",
       .content_type = ""},
      {.method = "get", .path = "/ready", .summary = "200 while requests are taken.", .content_type = ""},
      {.method = "get", .path = "/ping", .summary = "200 while the process lives.", .content_type = ""},
      {.method = "post", .path = "/ping", .summary = "200 while the process lives.", .content_type = ""},
      {.method = "get", .path = "/version", .summary = "The server's version.", .response = VersionShape},
      {.method = "get", .path = "/load", .summary = "Requests in progress.", .response = LoadShape},
      {.method = "get",
       .path = "/metrics",
       .summary = "Prometheus's text.",
       .content_type = "text/plain; version=0.0.4; charset=utf-8"},
      {.method = "get", .path = "/openapi.json", .summary = "This document.", .response = AnyObjectShape},
  };
  return operations;
}

namespace {

Json ErrorResponseJson(const std::string& description) {
  return {{"description", description},
          {"content", {{"application/json", {{"schema", {{"$ref", "#/components/schemas/Error"}}}}}}}};
}

Json OkJson(const Operation& operation) {
  Json ok = {{"description", operation.summary}};
  if (operation.content_type.empty()) return ok;
  Json schema = operation.response == nullptr ? Json{{"type", "string"}} : JsonSchema(operation.response());
  ok["content"][operation.content_type]["schema"] = std::move(schema);
  if (operation.streams) {
    ok["content"]["text/event-stream"]["schema"] = {
        {"type", "string"},
        {"description", "With `stream`: lines \"data: {...}\", each followed by an empty one."}};
  }
  return ok;
}

Json TimingParameter() {
  return {{"name", kTimingHeader},
          {"in", "header"},
          {"required", false},
          {"description",
           "1: the answer has `timing`, the stages of the time to its first content; in the last JSON of a "
           "stream. Default 0."},
          {"schema", {{"type", "string"}, {"enum", {"0", "1"}}}}};
}

Json CacheSaltParameter() {
  return {{"name", "cache_salt"},
          {"in", "query"},
          {"required", false},
          {"description", "That of the session, where it has one. A JSON body may say it instead."},
          {"schema", {{"type", "string"}}}};
}

Json OperationJson(const Operation& operation, const RequestShapes& shapes) {
  Json json = {{"summary", operation.summary}};
  if (operation.streams) json["parameters"] = Json::array({TimingParameter()});
  for (const char* const name : {"model", "name"}) {
    if (operation.path.find("{" + std::string(name) + "}") == std::string::npos) continue;
    json["parameters"] = Json::array({{{"name", name},
                                       {"in", "path"},
                                       {"required", true},
                                       {"schema", {{"type", "string"}, {"minLength", 1}}}}});
  }
  if (operation.path.find("{name}") != std::string::npos) json["parameters"].push_back(CacheSaltParameter());
  if (operation.request != nullptr) {
    json["requestBody"] = {
        {"required", true},
        {"content", {{"application/json", {{"schema", JsonSchema(shapes.*operation.request)}}}}}};
  }
  Json& responses = json["responses"];
  responses["200"] = OkJson(operation);
  if (operation.request != nullptr) {
    responses["400"] = ErrorResponseJson("The request is at fault; `param` names the field.");
    responses["413"] = ErrorResponseJson("The body is too large.");
    responses["415"] = ErrorResponseJson("The body is not application/json.");
    responses["429"] = ErrorResponseJson("A queue is full; Retry-After says when to come again.");
  }
  if (operation.request != nullptr || operation.path.ends_with("{model}")) {
    responses["404"] = ErrorResponseJson("No such model.");
  }
  if (operation.path.find("{name}") != std::string::npos)
    responses["404"] = ErrorResponseJson("No such session.");
  responses["503"] = ErrorResponseJson("The server is loading or shutting down.");
  responses["default"] = ErrorResponseJson("Any other error.");
  return json;
}

}  // namespace

std::string OpenApiJson(const std::string& version, const RequestShapes& shapes) {
  Json document = {{"openapi", "3.1.0"},
                   {"info",
                    {{"title", "Tramontane"},
                     {"version", version},
                     {"description",
                      "OpenAI's interface. Fields that are not listed are refused (with --strict-fields off "
                      "they are ignored); "
                      "null is as absent."}}}};
  for (const Operation& operation : Operations()) {
    document["paths"][operation.path][operation.method] = OperationJson(operation, shapes);
  }
  document["components"]["schemas"]["Error"] = JsonSchema(ErrorShape());
  return PrintJson(document);
}

void AnswerOpenApi(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange) {
  HttpResponse response;
  response.body = OpenApiJson(context.options.version, *context.shapes);
  exchange->Respond(std::move(response));
}

}  // namespace tramontane

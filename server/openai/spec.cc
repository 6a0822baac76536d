#include "server/openai/spec.h"

#include <utility>

#include "server/openai/json.h"
#include "server/openai/responses.h"

namespace tramontane {

// ---- answers ------------------------------------------------------------------------------------

namespace {

constexpr double kLeastLogprob = -9999.0;  // in the place of minus infinity
constexpr double kMostLogprob = 0.001;     // 0, and what rounding may add

// A key that is always there, and never null.
Field Always(std::string name, Shape shape, std::string doc = "") {
  return {.name = std::move(name), .shape = std::move(shape), .doc = std::move(doc), .required = true};
}
// A key that may be null or absent.
Field Maybe(std::string name, Shape shape, std::string doc = "") {
  return {.name = std::move(name), .shape = std::move(shape), .doc = std::move(doc)};
}

Shape Count() { return Integer(0); }
Shape TokenIds() { return ArrayOf(Integer(0)); }
Shape Logprob() { return Number(kLeastLogprob, kMostLogprob); }

Shape UsageShape() {
  return Object({Always("prompt_tokens", Count()), Always("completion_tokens", Count()),
                 Always("total_tokens", Count()),
                 Always("prompt_tokens_details", Object({Always("cached_tokens", Count())})),
                 Always("completion_tokens_details", Object({Always("reasoning_tokens", Count())}))});
}

Field StopReason() {
  return Maybe("stop_reason", AnyOf({String(), Integer(0)}), "The stop text or stop token id that ended it.");
}

std::vector<Field> AnswerFields(const char* object, Shape choice) {
  return {Always("id", String()),
          Always("object", OneOfStrings({object})),
          Always("created", Count()),
          Always("model", String()),
          Maybe("system_fingerprint", String()),
          Always("choices", ArrayOf(std::move(choice))),
          Always("usage", UsageShape())};
}

Shape ToolCallShape() {
  return Object({Always("id", String(9, 9)), Always("type", OneOfStrings({"function"})),
                 Always("function", Object({Always("name", String(1)), Always("arguments", String(2))}))});
}

std::vector<Field> ScoredToken() {
  return {Always("token", String()), Always("logprob", Logprob()), Maybe("bytes", ArrayOf(Integer(0, 255)))};
}

Shape PromptLogprobsShape() {
  const Shape entry =
      Object({Always("logprob", Logprob()), Always("rank", Integer(1)), Always("decoded_token", String())});
  return ArrayOf(AnyOf({Only({nullptr}, ""), MapOf(entry)}));
}

Shape ChatChoiceShape() {
  std::vector<Field> scored = ScoredToken();
  scored.push_back(Always("top_logprobs", ArrayOf(Object(ScoredToken()))));
  return Object(
      {Always("index", Count()),
       Always("message",
              Object({Always("role", OneOfStrings({"assistant"})), Maybe("content", String()),
                      Maybe("refusal", String()), Maybe("tool_calls", ArrayOf(ToolCallShape(), 1))})),
       Maybe("logprobs", Object({Maybe("content", ArrayOf(Object(scored))), Maybe("refusal", Anything())})),
       Always("finish_reason", OneOfStrings({"stop", "length", "tool_calls"})), StopReason(),
       Maybe("token_ids", TokenIds())});
}

Shape CompletionChoiceShape() {
  const Shape nullable_logprob = AnyOf({Only({nullptr}, ""), Logprob()});
  const Shape nullable_top = AnyOf({Only({nullptr}, ""), MapOf(Logprob())});
  return Object({Always("index", Count()), Always("text", String()),
                 Maybe("logprobs", Object({Always("tokens", ArrayOf(String())),
                                           Always("token_logprobs", ArrayOf(nullable_logprob)),
                                           Always("top_logprobs", ArrayOf(nullable_top)),
                                           Always("text_offset", ArrayOf(Count()))})),
                 Always("finish_reason", OneOfStrings({"stop", "length"})), StopReason(),
                 Maybe("prompt_logprobs", PromptLogprobsShape()), Maybe("prompt_token_ids", TokenIds()),
                 Maybe("token_ids", TokenIds())});
}

const Shape& RenderedShape() {
  static const Shape shape = Object({Always("request_id", String()), Maybe("model", String()),
                                     Always("token_ids", TokenIds()), Maybe("text", String())});
  return shape;
}
const Shape& RenderedListShape() {
  static const Shape shape = ArrayOf(RenderedShape(), 1);
  return shape;
}

const Shape& ModelShape() {
  static const Shape shape =
      Object({Always("id", String(1)), Always("object", OneOfStrings({"model"})), Always("created", Count()),
              Always("owned_by", String()), Always("root", String()), Maybe("parent", String()),
              Always("max_model_len", Count()), Always("max_context_length", Count()),
              Always("type", OneOfStrings({"base"})), Always("capabilities", MapOf(Boolean()))});
  return shape;
}
const Shape& ModelListShape() {
  static const Shape shape =
      Object({Always("object", OneOfStrings({"list"})), Always("data", ArrayOf(ModelShape(), 1))});
  return shape;
}

const Shape& TokenizedShape() {
  static const Shape shape = Object({Always("count", Count()), Always("max_model_len", Count()),
                                     Always("tokens", TokenIds()), Maybe("token_strs", ArrayOf(String()))});
  return shape;
}
const Shape& DetokenizedShape() {
  static const Shape shape = Object({Always("prompt", String())});
  return shape;
}
const Shape& TokenizerInfoShape() {
  static const Shape shape = Object({Always("tokenizer_class", String()), Maybe("bos_token", String()),
                                     Maybe("eos_token", String()), Always("model_max_length", Count())});
  return shape;
}
const Shape& VersionShape() {
  static const Shape shape = Object({Always("version", String())});
  return shape;
}
const Shape& LoadShape() {
  static const Shape shape = Object({Always("server_load", Count())});
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

const Shape& ChatCompletionAnswerShape() {
  static const Shape shape = [] {
    std::vector<Field> fields = AnswerFields("chat.completion", ChatChoiceShape());
    fields.push_back(Maybe("prompt_token_ids", TokenIds()));
    fields.push_back(Maybe("prompt_logprobs", PromptLogprobsShape()));
    return Object(std::move(fields));
  }();
  return shape;
}

const Shape& CompletionAnswerShape() {
  static const Shape shape = Object(AnswerFields("text_completion", CompletionChoiceShape()));
  return shape;
}

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
       .path = "/v1/responses",
       .summary = "The model's answer, in the form of OpenAI's newer interface. Nothing is kept.",
       .request = &RequestShapes::responses,
       .response = ResponsesAnswerShape,
       .streams = true},
      {.method = "get", .path = "/v1/models", .summary = "The served names.", .response = ModelListShape},
      {.method = "get", .path = "/v1/models/{model}", .summary = "One of them.", .response = ModelShape},
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

Json OperationJson(const Operation& operation, const RequestShapes& shapes) {
  Json json = {{"summary", operation.summary}};
  if (operation.path.ends_with("{model}")) {
    json["parameters"] = Json::array({{{"name", "model"},
                                       {"in", "path"},
                                       {"required", true},
                                       {"schema", {{"type", "string"}, {"minLength", 1}}}}});
  }
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

}  // namespace tramontane

#include "server/api/openai/tokenize.h"

#include <utility>

#include "server/api/openai/chat.h"
#include "server/api/openai/request_shapes.h"
#include "server/api/shared/api_error.h"
#include "server/api/shared/field_rows.h"
#include "server/api/shared/foreign_fields.h"
#include "server/api/shared/gateway_context.h"
#include "server/call/inference_client.h"

namespace tramontane {

// ---- fields -------------------------------------------------------------------------------------

Shape TokenizeShape() {
  return ClosedObject(
      std::vector<Field>{
          ModelRow(),
          {.name = "prompt", .shape = String(), .doc = "Exactly one of this and `messages`.", .path = "text"},
          {.name = "content", .shape = String(), .doc = "Another name of `prompt`."},
          {.name = "add_special_tokens",
           .shape = Boolean(),
           .doc = "Begin a prompt with the beginning-of-sequence token. Default true, but for an empty "
                  "one. A chat always begins with it.",
           .path = "add_bos"},
          ParseSpecialTokens(),
          {.name = "return_token_strs",
           .shape = Boolean(),
           .doc = "Also each token as text. Default false.",
           .path = "pieces"},
      } +
      ChatPromptFields() + ForeignTokenizeFields());
}

Shape DetokenizeShape() {
  return ClosedObject({
      ModelRow(),
      {.name = "tokens",
       .shape = ArrayOf(Integer(0, kMaxInt32)),
       .doc = "Token ids.",
       .required = true,
       .path = "token_ids"},
  });
}

const Shape& TokenizedShape() {
  static const Shape shape =
      Object({Always("count", Integer(0)), Always("max_model_len", Integer(0)),
              Always("tokens", ArrayOf(Integer(0))), Maybe("token_strs", ArrayOf(String()))});
  return shape;
}
const Shape& DetokenizedShape() {
  static const Shape shape = Object({Always("prompt", String())});
  return shape;
}

// ---- requests -----------------------------------------------------------------------------------

// What both requests begin with: their fields, by their shape, and the model.
template <typename Body>
static std::optional<ApiError> ParseFront(std::string_view body, const Shape& shape,
                                          const RequestContext& context, Json* json, Body* parsed) {
  parsed->names = FieldNames(shape);
  if (auto fault = ParseBody(body, shape, context, json, &parsed->ignored)) return fault;
  if (!context.any_model) parsed->request.set_model(TextOf(*json, "model"));
  return std::nullopt;
}

std::optional<ApiError> ParseTokenize(std::string_view body, const RequestContext& context,
                                      TokenizeBody* parsed) {
  Json json;
  if (auto fault = ParseFront(body, ShapesOf(context).tokenize, context, &json, parsed)) return fault;
  const Json* text = Find(json, "prompt") != nullptr ? Find(json, "prompt") : Find(json, "content");
  const bool is_chat = Find(json, "messages") != nullptr;
  if (is_chat == (text != nullptr)) {
    return FieldFault("prompt", is_chat ? "is given beside messages" : "is missing, and so is messages");
  }
  parsed->token_strings = IsTrue(json, "return_token_strs");
  parsed->request.set_pieces(parsed->token_strings);
  const bool parses = IsTrue(json, "parse_special_tokens");
  if (is_chat && parses) return FieldFault("parse_special_tokens", "does not go with messages");
  if (is_chat) return ConvertChat(json, parsed->request.mutable_chat(), &parsed->names);
  parsed->request.set_text(text->get<std::string>());
  if (parses) parsed->request.set_parse_special_tokens(true);
  const Json* add_special = Find(json, "add_special_tokens");
  if (add_special != nullptr) {
    parsed->request.set_add_bos(add_special->get<bool>());
  } else if (parsed->request.text().empty()) {
    parsed->request.set_add_bos(false);  // nothing is no tokens
  }
  return std::nullopt;
}

std::optional<ApiError> ParseDetokenize(std::string_view body, const RequestContext& context,
                                        DetokenizeBody* parsed) {
  Json json;
  if (auto fault = ParseFront(body, ShapesOf(context).detokenize, context, &json, parsed)) return fault;
  for (const Json& id : json["tokens"]) parsed->request.add_token_ids(id.get<int32_t>());
  return std::nullopt;
}

// ---- endpoints ----------------------------------------------------------------------------------

void AnswerTokenize(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange) {
  TokenizeBody body;
  if (auto fault = ParseTokenize(exchange->request().body, RequestContextOf(context, *exchange), &body)) {
    return exchange->Fail(*fault);
  }
  InferenceClient& client = context.client;
  v1::TokenizeRequest request = std::move(body.request);
  client.Ask(
      CallerOf(*exchange), std::move(request),
      [exchange, context, body = std::move(body)](const RpcError& error, const v1::TokenizeResponse& tokens) {
        if (!error.ok()) return exchange->Fail(body.names.Explain(error));
        const std::string count = std::to_string(tokens.token_ids_size());
        std::string lists = ",\"tokens\":" + IdsJson(tokens.token_ids());
        if (body.token_strings) lists += ",\"token_strs\":" + TextsJson(tokens.pieces());
        context.client.Ask(CallerOf(*exchange), v1::GetModelRequest(),
                           [exchange, count, lists = std::move(lists), ignored = body.ignored](
                               const RpcError& model_error, const v1::GetModelResponse& model) {
                             if (!model_error.ok()) return exchange->Fail(ToApiError(model_error));
                             const std::string length = std::to_string(model.context());
                             std::string answer = "{\"count\":" + count + ",\"max_model_len\":" + length;
                             answer.reserve(answer.size() + lists.size() + 1);
                             (answer += lists) += '}';
                             RespondWithText(*exchange, std::move(answer), ignored);
                           });
      });
}

void AnswerDetokenize(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange) {
  DetokenizeBody body;
  if (auto fault = ParseDetokenize(exchange->request().body, RequestContextOf(context, *exchange), &body)) {
    return exchange->Fail(*fault);
  }
  context.client.Ask(CallerOf(*exchange), std::move(body.request),
                     [exchange, names = std::move(body.names), ignored = std::move(body.ignored)](
                         const RpcError& error, const v1::DetokenizeResponse& text) {
                       if (!error.ok()) return exchange->Fail(names.Explain(error));
                       RespondWith(*exchange, {{"prompt", text.text()}}, ignored);
                     });
}

}  // namespace tramontane

#include "server/api/openai/models.h"

#include <cstdint>
#include <string>
#include <utility>

#include "server/api/shared/api_error.h"
#include "server/api/shared/gateway_context.h"
#include "server/api/shared/route_path.h"
#include "server/call/inference_client.h"

namespace tramontane {

const Shape& ModelShape() {
  static const Shape shape = Object(
      {Always("id", String(1)), Always("object", OneOfStrings({"model"})), Always("created", Integer(0)),
       Always("owned_by", String()), Always("root", String()), Maybe("parent", String()),
       Always("max_model_len", Integer(0)), Always("max_context_length", Integer(0)),
       Always("type", OneOfStrings({"base"})), Always("capabilities", MapOf(Boolean())),
       Always("architecture", String(), "Of the model's config."),
       Always("weight_format", String(), "How its numbers are stored."),
       Maybe("chat_format", String(), "Null: this model has none."),
       Always("tokenizer", String(), "The kind of its file, and its version.")});
  return shape;
}
const Shape& ModelListShape() {
  static const Shape shape =
      Object({Always("object", OneOfStrings({"list"})), Always("data", ArrayOf(ModelShape(), 1))});
  return shape;
}

const Shape& TokenizerInfoShape() {
  static const Shape shape = Object({Always("tokenizer_class", String()), Maybe("bos_token", String()),
                                     Maybe("eos_token", String()), Always("model_max_length", Integer(0))});
  return shape;
}

namespace {

// "tekken v13". Older servers, behind gRPC, have read one kind only and do not say it.
std::string TokenizerName(const v1::GetModelResponse& model) {
  const std::string kind = model.tokenizer().empty() ? "sentencepiece" : model.tokenizer();
  return model.tokenizer_version().empty() ? kind : kind + " " + model.tokenizer_version();
}

// Mistral's formats from v2 on; of others the calls in an answer are text.
bool HasCalls(const std::string& chat_format) { return chat_format.starts_with('v') && chat_format != "v1"; }

// OpenAI's four keys; vLLM's root, parent and max_model_len; Mistral's type, capabilities and
// max_context_length, without which its client refuses the list; and what the model is.
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
            {"completion_fim", model.fill_in_middle()},
            {"function_calling", HasCalls(model.chat_format())},
            {"fine_tuning", false},
            {"vision", false}}},
          {"architecture", model.architecture()},
          {"weight_format", model.weight_format()},
          {"chat_format", chats ? Json(model.chat_format()) : Json(nullptr)},
          {"tokenizer", TokenizerName(model)}};
}

}  // namespace

void AnswerModels(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange) {
  context.client.Ask(CallerOf(*exchange), v1::GetModelRequest(),
                     [exchange](const RpcError& error, const v1::GetModelResponse& model) {
                       const bool is_hidden = error.code == StatusCode::kPermissionDenied;
                       if (!error.ok() && !is_hidden) return exchange->Fail(ToApiError(error));
                       Json data = Json::array();
                       for (const std::string& name : model.names()) data.push_back(ModelJson(name, model));
                       RespondWith(*exchange, {{"object", "list"}, {"data", std::move(data)}});
                     });
}

void AnswerModel(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange) {
  const std::string name = WildcardOf("/models/*", exchange->request().path);
  v1::GetModelRequest request;
  request.set_model(name);
  context.client.Ask(CallerOf(*exchange), request,
                     [exchange, name](const RpcError& error, const v1::GetModelResponse& model) {
                       if (!error.ok()) return exchange->Fail(ToApiError(error));
                       RespondWith(*exchange, ModelJson(name, model));
                     });
}

void AnswerTokenizerInfo(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange) {
  context.client.Ask(CallerOf(*exchange), v1::GetModelRequest(),
                     [exchange](const RpcError& error, const v1::GetModelResponse& model) {
                       if (!error.ok()) return exchange->Fail(ToApiError(error));
                       const auto piece = [](const std::string& text) {
                         return text.empty() ? Json(nullptr) : Json(text);
                       };
                       RespondWith(*exchange, {{"tokenizer_class", TokenizerName(model)},
                                               {"bos_token", piece(model.bos_piece())},
                                               {"eos_token", piece(model.eos_piece())},
                                               {"pad_token", nullptr},
                                               {"chat_template", nullptr},
                                               {"model_max_length", model.context()},
                                               {"vocab_size", model.vocab_size()}});
                     });
}

}  // namespace tramontane

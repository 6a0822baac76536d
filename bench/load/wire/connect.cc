#include "bench/load/connect.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "bench/load/json_text.h"
#include "bench/load/wire/ask_http.h"
#include "bench/load/wire/grpc_transport.h"
#include "bench/load/wire/http_transport.h"
#include "bench/load/wire/wire_target.h"

namespace tramontane::load {

StatusOr<std::unique_ptr<Transport>> Connect(const TargetOptions& options) {
  TM_ASSIGN_OR_RETURN(const std::shared_ptr<const WireTarget> target, WireTarget::Parse(options));
  if (target->is_grpc()) return ConnectGrpc(target);
  return std::unique_ptr<Transport>(std::make_unique<HttpTransport>(target));
}

StatusOr<std::string> FirstServedModel(const TargetOptions& options) {
  TM_ASSIGN_OR_RETURN(const std::shared_ptr<const WireTarget> target, WireTarget::Parse(options));
  if (target->is_grpc()) return FirstGrpcModel(target);
  const auto unnamed = [](const std::string& why) {
    return InvalidArgument(why + ": name the model with --model");
  };
  const StatusOr<PlainAnswer> asked = AskHttp(*target, {"GET", "/v1/models", ""});
  if (!asked.ok() && asked.status().code() == StatusCode::kUnavailable) return asked.status();
  if (!asked.ok()) return unnamed("GET /v1/models failed: " + asked.status().message());
  const PlainAnswer& answer = *asked;
  const auto body = JsonOf(answer.body);
  const bool has_models = answer.status == 200 && body.is_object() && body.contains("data") &&
                          body["data"].is_array() && !body["data"].empty() && body["data"][0].is_object() &&
                          body["data"][0].contains("id") && body["data"][0]["id"].is_string();
  if (!has_models) {
    return unnamed(options.url + " answers GET /v1/models with " + std::to_string(answer.status) + " and \"" +
                   ServerText(answer.body, options.api_key) + "\"");
  }
  std::string name = body["data"][0]["id"].get<std::string>();
  if (name.empty() || VisibleText(name) != name) {
    return unnamed(options.url + " serves a model called \"" + ServerText(name, options.api_key) +
                   "\", which cannot be shown");
  }
  return name;
}

StatusOr<PlainAnswer> Ask(const TargetOptions& options, const PlainQuestion& question) {
  TM_ASSIGN_OR_RETURN(const std::shared_ptr<const WireTarget> target, WireTarget::Parse(options));
  if (target->is_grpc()) {
    return Unimplemented(question.path + " is asked over HTTP, and the target is " + options.url);
  }
  return AskHttp(*target, question);
}

}  // namespace tramontane::load

#include "bench/load/connect.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "bench/load/wire/ask_http.h"
#include "bench/load/wire/grpc_transport.h"
#include "bench/load/wire/http_transport.h"
#include "bench/load/wire/wire_target.h"
#include "kernels/core/utf8.h"

namespace tramontane::load {

StatusOr<std::unique_ptr<Transport>> Connect(const TargetOptions& options) {
  TM_ASSIGN_OR_RETURN(const std::shared_ptr<const WireTarget> target, WireTarget::Parse(options));
  if (target->is_grpc()) return ConnectGrpc(target);
  return std::unique_ptr<Transport>(std::make_unique<HttpTransport>(target));
}

StatusOr<std::string> FirstServedModel(const TargetOptions& options) {
  TM_ASSIGN_OR_RETURN(const std::shared_ptr<const WireTarget> target, WireTarget::Parse(options));
  if (target->is_grpc()) return FirstGrpcModel(target);
  TM_ASSIGN_OR_RETURN(const PlainAnswer answer, AskHttp(*target, {"GET", "/v1/models", ""}));
  const auto body = nlohmann::json::parse(answer.body, nullptr, false);
  const bool has_models = answer.status == 200 && body.is_object() && body.contains("data") &&
                          body["data"].is_array() && !body["data"].empty() && body["data"][0].is_object() &&
                          body["data"][0].contains("id") && body["data"][0]["id"].is_string();
  if (has_models) return body["data"][0]["id"].get<std::string>();
  return Unavailable(options.url + " answers GET /v1/models with " + std::to_string(answer.status) +
                     " and \"" + Excerpt(ReplaceInvalidUtf8(WithoutSecret(answer.body, options.api_key))) +
                     "\": name the model with --model");
}

StatusOr<PlainAnswer> Ask(const TargetOptions& options, const PlainQuestion& question) {
  TM_ASSIGN_OR_RETURN(const std::shared_ptr<const WireTarget> target, WireTarget::Parse(options));
  if (target->is_grpc()) {
    return Unimplemented(question.path + " is asked over HTTP, and the target is " + options.url);
  }
  return AskHttp(*target, question);
}

}  // namespace tramontane::load

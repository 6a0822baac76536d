#include "server/api/openai/dialect.h"

#include <nlohmann/json.hpp>

namespace tramontane {
namespace {

nlohmann::ordered_json TextOrNull(const std::string& text) {
  return text.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(text);
}

}  // namespace

std::string ErrorJson(const ApiError& error) {
  const nlohmann::ordered_json body = {{"message", error.message},
                                       {"type", error.type},
                                       {"param", TextOrNull(error.param)},
                                       {"code", TextOrNull(error.code)}};
  // Messages quote what was sent, which need not be UTF-8.
  return nlohmann::ordered_json{{"error", body}}.dump(-1, ' ', false,
                                                      nlohmann::json::error_handler_t::replace);
}

}  // namespace tramontane

#include "server/openai/routes.h"

#include "server/openai/chat.h"
#include "server/openai/completions.h"
#include "server/openai/debug_endpoints.h"
#include "server/openai/models.h"
#include "server/openai/responses.h"
#include "server/openai/sessions.h"
#include "server/openai/spec.h"
#include "server/openai/status_endpoints.h"
#include "server/openai/tokenize.h"

namespace tramontane {
namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// The byte that "%XX" at `at` stands for; -1: no escape begins there.
int EscapedByte(std::string_view text, size_t at) {
  if (text[at] != '%' || at + 2 >= text.size()) return -1;
  const int high = HexDigit(text[at + 1]), low = HexDigit(text[at + 2]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

// What is not "%" and two hexadecimal digits stays as it is.
std::string PercentDecoded(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    const int byte = EscapedByte(text, i);
    decoded.push_back(byte < 0 ? text[i] : static_cast<char>(byte));
    if (byte >= 0) i += 2;
  }
  return decoded;
}

// A letter or digit needs no escape: who sends one means that somebody shall not recognise it.
bool EscapesALetter(std::string_view path) {
  for (size_t i = 0; i < path.size(); ++i) {
    const int byte = EscapedByte(path, i);
    if ((byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || (byte >= '0' && byte <= '9')) {
      return true;
    }
  }
  return false;
}

// "/v1//chat/completions/" -> "/chat/completions"
std::string ApiPath(std::string_view path) {
  std::string plain;
  for (const char c : path) {
    if (c != '/' || !plain.ends_with('/')) plain.push_back(c);
  }
  if (plain.size() > 1 && plain.ends_with('/')) plain.pop_back();
  if (plain.starts_with("/v1/")) plain.erase(0, 3);
  return plain;
}

bool Matches(const Route& route, std::string_view exact, std::string_view api) {
  const std::string_view path = route.spelling == Spelling::kApi ? api : exact;
  const size_t star = route.path.find('*');
  if (star == std::string_view::npos) return route.path == path;
  return path.size() >= route.path.size() && path.starts_with(route.path.substr(0, star)) &&
         path.ends_with(route.path.substr(star + 1));
}

}  // namespace

const std::vector<Route>& Routes() {
  using enum Spelling;
  using enum AnsweredOn;
  static const std::vector<Route> routes = {
      {"POST", "/chat/completions", AnswerChatCompletions},
      {"POST", "/chat/completions/render", AnswerRenderChat},
      {"POST", "/completions", AnswerCompletions},
      {"POST", "/completions/render", AnswerRenderCompletions},
      {"POST", "/fim/completions", AnswerFillInMiddle},
      {"POST", "/responses", AnswerResponses},
      {"POST", "/tokenize", AnswerTokenize},
      {"POST", "/detokenize", AnswerDetokenize},
      {"GET", "/models", AnswerModels},
      {"GET", "/models/*", AnswerModel},
      {"GET", "/sessions", AnswerSessions},
      {"DELETE", "/sessions/*", AnswerDeleteSession},
      {"POST", "/v1/sessions/*/save", AnswerSaveSession, kExact},
      {"POST", "/v1/sessions/*/restore", AnswerRestoreSession, kExact},
      {"GET", "/tokenizer_info", AnswerTokenizerInfo, kExact},
      {"GET", "/openapi.json", AnswerOpenApi, kExact},
      {"GET", "/health", AnswerHealth, kExact, kIoThread},
      {"GET", "/ready", AnswerReady, kExact, kIoThread},
      {"GET", "/ping", AnswerPing, kExact, kIoThread},
      {"POST", "/ping", AnswerPing, kExact, kIoThread},
      {"GET", "/version", AnswerVersion, kExact, kIoThread},
      {"GET", "/load", AnswerLoad, kExact, kIoThread},
      {"GET", "/metrics", AnswerMetrics, kExact, kIoThread},
      {"GET", "/debug/trace", AnswerTrace, kExact, kIoThread, true},
      {"GET", "/debug/kv", AnswerKvTables, kExact, kIoThread, true},
  };
  return routes;
}

RouteMatch FindRoute(std::string_view method, std::string_view path, bool with_debug) {
  RouteMatch match;
  if (EscapesALetter(path)) return match;
  const std::string api = ApiPath(path);
  for (const Route& route : Routes()) {
    if (!Matches(route, path, api) || (route.is_debug && !with_debug)) continue;
    if (match.path.empty()) match.path = route.path;
    match.methods.append(match.methods.empty() ? "" : ", ").append(route.method);
    if (route.method == method) match.route = &route;
  }
  return match;
}

std::string WildcardOf(std::string_view route_path, std::string_view path) {
  const size_t star = route_path.find('*');
  const std::string api = ApiPath(path);
  if (api.size() < route_path.size()) return "";  // its slashes were one too many
  return PercentDecoded(std::string_view(api).substr(star, api.size() - (route_path.size() - 1)));
}

}  // namespace tramontane

// load_scripted_server: a scripted server alone, for load tools of others too. Prints `ready {"http": ...}`,
// streams to every completion and chat as many tokens as it asks for, and on SIGINT or SIGTERM writes what it
// really did, a line a request: {"request_id", "received_ns", "content_ns": [...]}, CLOCK_MONOTONIC.
#include <pthread.h>
#include <signal.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/load/scripted/scripted_target.h"
#include "tests/load/scripted/scripts.h"

namespace tramontane::load {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMostTokens = 10'000;
constexpr int64_t kDefaultTokens = 16;  // where a request names none, as OpenAI's completions

struct Settings {
  double ttft_ms = 200;
  double gap_ms = 20;
  std::string log_path;
};

Script Models() {
  const std::string body =
      R"({"object":"list","data":[{"id":"scripted","object":"model","created":0,"owned_by":"tramontane"}]})";
  Script script;
  script.writes.push_back({0,
                           "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: " +
                               std::to_string(body.size()) + "\r\n\r\n" + body,
                           0});
  return script;
}

Script Answer(const ScriptedRequest& request, const Settings& settings) {
  if (request.path == "/v1/models") return Models();
  const bool is_chat = request.path == "/v1/chat/completions";
  if (!is_chat && request.path != "/v1/completions") {
    return StatusAnswer(404, "", "the path is none of /v1/models, /v1/completions, /v1/chat/completions");
  }
  const Json body = Json::parse(request.body, nullptr, false);
  if (!body.is_object()) return StatusAnswer(400, "", "the body is no JSON object");
  if (body.value("stream", Json()) != Json(true)) return StatusAnswer(400, "", "stream must be true");
  Json tokens = kDefaultTokens;
  for (const char* key : {"max_tokens", "max_completion_tokens"}) {
    if (body.contains(key) && !body[key].is_null()) tokens = body[key];
  }
  if (!tokens.is_number_integer() || tokens < 1 || tokens > kMostTokens) {
    return StatusAnswer(400, "",
                        "max_tokens is " + (tokens.is_number() ? tokens.dump() : "no number") +
                            "; it must be between 1 and " + std::to_string(kMostTokens));
  }
  StreamScript stream;
  stream.ttft_ns = static_cast<int64_t>(settings.ttft_ms * 1e6);
  stream.gap_ns = static_cast<int64_t>(settings.gap_ms * 1e6);
  stream.events = tokens.get<int32_t>();
  stream.chat = is_chat;
  return Stream(stream);
}

bool WriteLog(const ScriptedTarget& target, const std::string& path) {
  std::ofstream file(path);
  for (const auto& [id, log] : target.Logs()) {
    Json line = {{"request_id", id}, {"received_ns", log.received_ns}, {"content_ns", Json::array()}};
    for (const ScriptLog::Write& write : log.writes) {
      if (write.content_events > 0) line["content_ns"].push_back(write.wrote_ns);
    }
    if (!line["content_ns"].empty())
      file << line.dump(-1, ' ', false, Json::error_handler_t::replace) << '\n';
  }
  file.flush();
  return file.good();
}

int Serve(const Settings& settings) {
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGINT);
  sigaddset(&ends, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);  // of the server's thread too
  const auto target = ScriptedTarget::Start(
      [&settings](const ScriptedRequest& request) { return Answer(request, settings); });
  if (!target.ok()) {
    std::fprintf(stderr, "load_scripted_server: %s\n", target.status().message().c_str());
    return 1;
  }
  const Json ready = {{"http", (*target)->url().substr(std::string("http://").size())}};
  std::printf("ready %s\n", ready.dump().c_str());
  std::fflush(stdout);
  int signal = 0;
  sigwait(&ends, &signal);
  if (settings.log_path.empty() || WriteLog(**target, settings.log_path)) return 0;
  std::fprintf(stderr, "load_scripted_server: %s cannot be written\n", settings.log_path.c_str());
  return 1;
}

}  // namespace
}  // namespace tramontane::load

int main(int argc, char** argv) {
  tramontane::load::Settings settings;
  CLI::App app("Serves scripted streams on a free port of the loopback");
  app.add_option("--ttft-ms", settings.ttft_ms, "from a request to its first content event")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  app.add_option("--gap-ms", settings.gap_ms, "between content events")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  app.add_option("--log", settings.log_path, "where it writes at the end what it did");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return tramontane::load::Serve(settings);
}

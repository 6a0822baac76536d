// generate PROMPT: one request, its text streamed to standard output. From a running server over gRPC, or in
// process.
#include <unistd.h>

#include <cstdio>
#include <optional>
#include <utility>
#include <vector>

#include "server/commands/client_key.h"
#include "server/commands/client_tls_flags.h"
#include "server/commands/commands.h"
#include "server/commands/local_generate.h"
#include "server/commands/setting_flags.h"
#include "server/remote/grpc_client.h"

namespace tramontane {

namespace {

struct GenerateOptions {
  std::string prompt;
  std::string address = "127.0.0.1:50051";
  std::string api_key_file = {};
  ClientTlsFlags tls = {};
  std::string local;       // folder; used when has_local
  GivenSettings settings;  // of the local model
  bool has_local = false;
  std::string system;
  bool raw = false;
  std::optional<float> temperature, top_p;
  std::optional<int64_t> max_tokens;
  std::optional<uint64_t> seed;
  bool ignore_eos = false;
  bool stats = false;
};

v1::GenerateRequest MakeRequest(const GenerateOptions& options) {
  v1::GenerateRequest request;
  if (options.raw) {
    request.set_text(options.prompt);
  } else {
    if (!options.system.empty()) {
      v1::ChatMessage* system = request.mutable_chat()->add_messages();
      system->set_role(v1::ROLE_SYSTEM);
      system->set_content(options.system);
    }
    v1::ChatMessage* user = request.mutable_chat()->add_messages();
    user->set_role(v1::ROLE_USER);
    user->set_content(options.prompt);
  }
  if (options.temperature) request.mutable_sampling()->set_temperature(*options.temperature);
  if (options.top_p) request.mutable_sampling()->set_top_p(*options.top_p);
  if (options.seed) request.mutable_sampling()->set_seed(*options.seed);
  if (options.max_tokens) request.mutable_stopping()->set_max_tokens(*options.max_tokens);
  if (options.ignore_eos) request.mutable_stopping()->set_ignore_eos(true);
  return request;
}

void PrintStats(const v1::Finished& finished) {
  const double first = static_cast<double>(finished.timings().first_token_us()) / 1e3;
  const double total = static_cast<double>(finished.timings().finished_us()) / 1e3;
  const int64_t tokens = finished.usage().completion_tokens();
  std::fprintf(stderr, "%lld prompt tokens, %lld tokens, first after %.1f ms, %.1f tokens/s after that\n",
               static_cast<long long>(finished.usage().prompt_tokens()), static_cast<long long>(tokens),
               first,
               tokens > 1 && total > first ? static_cast<double>(tokens - 1) * 1e3 / (total - first) : 0.0);
}

// The model's folder and what is said of its files. Every problem, one line each.
std::vector<std::string> LocalConfig(const GenerateOptions& options, ServeConfig* config) {
  std::vector<std::string> problems = ApplyFlags(options.settings, config);
  if (!options.settings.empty() && !options.has_local) {
    problems.push_back(FlagOf(*options.settings.front().first) + " goes with --local");
  }
  config->model = options.local;
  return problems;
}

Status GenerateElsewhere(const GenerateOptions& options, const v1::GenerateRequest& request,
                         const GrpcClient::OnEvent& on_event) {
  TM_ASSIGN_OR_RETURN(const std::string key, ClientKey(options.api_key_file));
  TM_ASSIGN_OR_RETURN(const ClientTls tls, ReadClientTls(options.tls));
  return GrpcClient(options.address, key, tls).Generate(request, on_event);
}

int Run(const GenerateOptions& options) {
  ServeConfig config;
  const std::vector<std::string> problems = LocalConfig(options, &config);
  for (const std::string& problem : problems) {
    std::fprintf(stderr, "tramontane generate: %s\n", problem.c_str());
  }
  if (!problems.empty()) return 2;
  bool ends_with_newline = true;
  std::string choice_error;
  bool is_stdout_lost = false;
  const auto on_event = [&](const v1::GenerateResponse& event) {
    if (event.has_delta() && !event.delta().text().empty()) {
      const std::string& text = event.delta().text();
      ends_with_newline = text.back() == '\n';
      const bool is_written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
      is_stdout_lost = !is_written || std::fflush(stdout) != 0;
      return !is_stdout_lost;  // a reader that has gone ends the call
    }
    if (event.has_finished()) {
      if (event.finished().has_error_message()) choice_error = event.finished().error_message();
      if (options.stats) {
        if (!ends_with_newline) std::fputc('\n', stdout);
        ends_with_newline = true;
        std::fflush(stdout);
        PrintStats(event.finished());
      }
    }
    return true;
  };

  const v1::GenerateRequest request = MakeRequest(options);
  Status status;
  if (options.has_local) {
    status = GenerateLocally(std::move(config), request, on_event);
  } else {
    status = GenerateElsewhere(options, request, on_event);
  }
  if (!ends_with_newline) std::fputc('\n', stdout);
  if (status.ok() && !choice_error.empty()) status = Internal(choice_error);
  if (is_stdout_lost) status = Internal("standard output cannot be written");
  if (status.ok()) return 0;
  std::fprintf(stderr, "tramontane generate: %s\n", status.ToString().c_str());
  if (status.code() == StatusCode::kUnavailable && !options.has_local) {
    std::fprintf(stderr, "Is a server running at %s? Start one with ./run\n", options.address.c_str());
  }
  return 1;
}

}  // namespace

void AddGenerateCommand(CLI::App& app, RunCommand* run) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* command =
      app.add_subcommand("generate", "Stream one answer from a running server, or in process with --local");
  command->add_option("PROMPT", options->prompt, "what to say to the model (or to continue, with --raw)")
      ->required();
  CLI::Option* address =
      command->add_option("--address", options->address, "HOST:PORT of the server")->capture_default_str();
  CLI::Option* local = command->add_option(
      "--local", options->local, "folder of a model to load in this process; \"\": the embedded one");
  local->excludes(address);
  const auto says_what_the_model_is = [](std::string_view key) {
    return key == "model_format" || key == "tokenizer" || key == "chat_format" || key == "linear";
  };
  AddApiKeyFlag(&options->api_key_file, command);
  AddTlsFlags(&options->tls, command);
  AddSettingFlags(says_what_the_model_is, &options->settings, command);
  command->add_option("--system", options->system, "system prompt");
  command->add_flag("--raw", options->raw, "continue PROMPT as text instead of answering it as a chat");
  command->add_option("--max-tokens", options->max_tokens, "tokens to generate at most")->group("sampling");
  command->add_option("--temperature", options->temperature, "0 takes the likeliest token")
      ->group("sampling");
  command->add_option("--top-p", options->top_p, "likeliest tokens that together reach this share")
      ->group("sampling");
  command->add_option("--seed", options->seed, "the same seed gives the same answer")->group("sampling");
  command->add_flag("--ignore-eos", options->ignore_eos, "go on past the end of the answer")
      ->group("sampling");
  command->add_flag("--stats", options->stats, "print tokens and speed to standard error");
  command->callback([options, local, run] {
    options->has_local = local->count() > 0;
    *run = [options] { return Run(*options); };
  });
}

}  // namespace tramontane

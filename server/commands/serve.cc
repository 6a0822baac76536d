// serve [MODEL_DIR]: loads a model and answers over gRPC and HTTP until told to stop.
#include <spdlog/spdlog.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "server/commands/commands.h"
#include "server/commands/stop_signals.h"
#include "server/config.h"
#include "server/host_options.h"
#include "server/logging.h"
#include "server/model_source.h"
#include "server/server.h"

namespace tramontane {

namespace {

// ---- settings -----------------------------------------------------------------------------------

struct ServeArguments {
  std::string model;        // positional
  std::string config_file;  // --config
  bool print_config = false;
  // Flags as given, by key, in the order of ServeSettings().
  std::vector<std::pair<const Setting*, std::string>> flags;
};

// File first, flags over it. Every problem of both, one line each.
std::vector<std::string> EffectiveConfig(const ServeArguments& arguments, ServeConfig* config) {
  std::vector<std::string> problems;
  if (!arguments.config_file.empty()) {
    std::ifstream file(arguments.config_file);
    std::stringstream text;
    text << file.rdbuf();
    if (!file) {
      problems.push_back("--config is \"" + arguments.config_file + "\": the file cannot be read");
    } else {
      for (const std::string& problem : ApplyConfigJson(text.str(), config)) {
        problems.push_back(arguments.config_file + ": " + problem);
      }
    }
  }
  for (const auto& [setting, text] : arguments.flags) {
    const std::string problem = setting->set(*config, text);
    if (!problem.empty()) problems.push_back(FlagOf(*setting) + " " + problem);
  }
  if (!arguments.model.empty()) config->model = arguments.model;
  return problems;
}

// ---- serving ------------------------------------------------------------------------------------

// Returns when a signal came (OK) or the engine has lost its device.
Status WaitForStop(const Engine& engine) {
  constexpr int kLookAtEngineMs = 200;
  while (true) {
    if (StopRequested(kLookAtEngineMs)) return Status::Ok();
    TM_RETURN_IF_ERROR(engine.fatal());
  }
}

// At most one line a second, and the last one.
LoadProgress LogProgress(const Clock& clock) {
  return [&clock, last_ns = int64_t{0}](int64_t done, int64_t total) mutable {
    const int64_t now_ns = clock.NowNs();
    if (done < total && now_ns - last_ns < 1'000'000'000) return;
    last_ns = now_ns;
    spdlog::info("loading weights: {} of {}", FormatBytes(done), FormatBytes(total));
  };
}

void LogPlan(const EngineHostPlan& plan) {
  spdlog::info("memory: weights {}, workspace {}, {} pages of {} = {}", FormatBytes(plan.memory.weight_bytes),
               FormatBytes(plan.memory.workspace_bytes), plan.limits.pool_pages,
               FormatBytes(plan.memory.page_bytes),
               FormatBytes(plan.limits.pool_pages * plan.memory.page_bytes));
  std::istringstream lines(plan.limits.ToString());
  for (std::string line; std::getline(lines, line);) spdlog::info("limit: {}", line);
}

Status Serve(const ServeConfig& config) {
  ServerOptions server_options;
  server_options.grpc_address = config.grpc_address;
  if (config.http_address != "off") server_options.http_address = config.http_address;
  server_options.http_cors_origin = config.http_cors_origin;
  server_options.any_model = config.any_model;
  server_options.worker_threads = static_cast<int32_t>(config.worker_threads);
  server_options.max_queued_work = static_cast<int32_t>(config.max_queued_work);

  // What can fail quickly comes before the weights.
  TM_ASSIGN_OR_RETURN(const ModelSource source, FindModel(config.model));
  TM_ASSIGN_OR_RETURN(const ModelConfig model_config, LoadModelConfig(source.folder));
  for (const std::string& warning : model_config.warnings) spdlog::warn("{}: {}", source.folder, warning);
  TM_ASSIGN_OR_RETURN(const Device device, MakeDevice(config));
  const BackendPtr& backend = device.backend;
  if (!device.why_not_cuda.empty()) spdlog::info("running on the CPU: {}", device.why_not_cuda);
  TM_ASSIGN_OR_RETURN(EngineHostOptions options,
                      MakeHostOptions(config, source.folder, model_config, *backend));
  TM_ASSIGN_OR_RETURN(const std::unique_ptr<Server> server, Server::Start(server_options));

  const SteadyClock clock;
  options.progress = LogProgress(clock);
  spdlog::info("model {} from {} on {}", source.name, source.folder, DescribeDevice(backend->info()));
  TM_ASSIGN_OR_RETURN(const std::unique_ptr<EngineHost> host,
                      EngineHost::Start(source.folder, *backend, options, clock));
  LogPlan(host->plan());

  ServedModel model;
  model.names =
      config.served_model_names.empty() ? std::vector<std::string>{source.name} : config.served_model_names;
  model.config = host->model().config();
  model.device = DescribeDevice(backend->info());
  model.engine = &host->engine();
  model.tokenizer = &host->tokenizer();
  model.clock = &clock;
  const std::unique_ptr<ConstraintCompiler> constraints =
      ConstraintCompiler::Create(host->tokenizer(), model.config.vocab_size, model.config.eos_ids, {});
  model.constraints = constraints.get();
  spdlog::info("structured output: {}", constraints != nullptr ? "yes" : "not in this build");
  server->Serve(model);
  nlohmann::json ready = {{"grpc", server->grpc_address()}};
  if (!server->http_address().empty()) ready["http"] = server->http_address();
  std::printf("ready %s\n", ready.dump().c_str());
  std::fflush(stdout);

  const Status outcome = WaitForStop(host->engine());
  if (outcome.ok()) {
    spdlog::info("stopping: new requests are refused, what runs may finish within {} s",
                 config.drain_timeout);
    if (!server->Drain(static_cast<int64_t>(config.drain_timeout * 1e9))) {
      spdlog::warn("stopping: the drain timeout is over, what still runs is cancelled");
    }
  }
  server->Stop();
  return outcome;
}

int RunServe(const ServeArguments& arguments) {
  ServeConfig config;
  const std::vector<std::string> problems = EffectiveConfig(arguments, &config);
  for (const std::string& problem : problems) std::fprintf(stderr, "tramontane serve: %s\n", problem.c_str());
  if (!problems.empty()) return 2;
  if (arguments.print_config) {
    std::fputs(PrintConfig(config).c_str(), stdout);
    return std::fflush(stdout) == 0 ? 0 : 1;
  }
  SetUpLogging(config.log_level, config.log_format);
  if (!InstallStopSignals()) {
    spdlog::error("the signal handlers could not be installed");
    return 1;
  }
  const Status status = Serve(config);
  if (status.ok()) return 0;
  spdlog::error("{}", status.ToString());
  return 1;
}

// By its metavar a setting is one value, a list that may also be given name by name, or a flag alone.
void AddFlag(const Setting& setting, const std::shared_ptr<ServeArguments>& arguments, CLI::App* command) {
  const std::string flag = FlagOf(setting);
  const std::string metavar = setting.metavar;
  const auto set = [arguments, &setting](const std::string& text) {
    arguments->flags.emplace_back(&setting, text);
  };
  if (metavar == "true|false") {
    command->add_flag_callback(flag, [set] { set("true"); }, setting.help);
  } else if (metavar == "NAME[,NAME]") {
    const std::string singular = flag.substr(0, flag.size() - 1);
    const auto set_joined = [set](const std::vector<std::string>& names) {
      set(CLI::detail::join(names, ","));
    };
    command->add_option_function<std::vector<std::string>>(flag + "," + singular, set_joined, setting.help)
        ->allow_extra_args(false)  // what follows a name is another argument
        ->type_name(metavar);
  } else {
    command->add_option_function<std::string>(flag, set, setting.help)->type_name(metavar)->take_last();
  }
}

}  // namespace

void AddServeCommand(CLI::App& app, RunCommand* run) {
  auto arguments = std::make_shared<ServeArguments>();
  CLI::App* command = app.add_subcommand("serve", "Load a model and answer over gRPC and HTTP");
  command->add_option("MODEL_DIR", arguments->model, "folder of the model; none: the embedded model, breeze");
  command->add_option("--config", arguments->config_file, "JSON file of settings; flags override it");
  command->add_flag("--print-config", arguments->print_config,
                    "print the effective settings as JSON and end");
  for (const Setting& setting : ServeSettings()) {
    if (std::string(setting.key) != "model") AddFlag(setting, arguments, command);  // that is MODEL_DIR
  }
  command->callback([arguments, run] { *run = [arguments] { return RunServe(*arguments); }; });
}

}  // namespace tramontane

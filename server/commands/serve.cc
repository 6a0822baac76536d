// serve [MODEL_DIR]: loads a model and answers over gRPC and HTTP until told to stop.
#include <spdlog/spdlog.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>
#include <utility>

#include "engine/request/step_bounds.h"
#include "models/opened_model.h"
#include "server/base/heap_trim.h"
#include "server/base/worker_pool.h"
#include "server/commands/commands.h"
#include "server/commands/key_settings.h"
#include "server/commands/memory_bounds.h"
#include "server/commands/setting_flags.h"
#include "server/commands/start_guard.h"
#include "server/commands/stop_signals.h"
#include "server/server.h"
#include "server/setup/config.h"
#include "server/setup/describe_tokenizer.h"
#include "server/setup/host_options.h"
#include "server/setup/logging.h"
#include "server/setup/model_source.h"
#include "server/setup/tuning_cache.h"
#include "server/watch/trace_file.h"

namespace tramontane {

namespace {

// ---- settings -----------------------------------------------------------------------------------

struct ServeArguments {
  std::string model;        // positional
  std::string config_file;  // --config
  bool print_config = false;
  GivenSettings flags;
};

// File first, flags over it. Every problem of both, one line each.
std::vector<std::string> EffectiveServeConfig(const ServeArguments& arguments, ServeConfig* config) {
  std::vector<std::string> problems;
  if (!arguments.config_file.empty()) {
    std::ifstream file(arguments.config_file);
    std::stringstream text;
    text << file.rdbuf();
    if (std::filesystem::is_directory(arguments.config_file)) {
      problems.push_back("--config is \"" + arguments.config_file + "\": a folder, not a file of settings");
    } else if (!file) {
      problems.push_back("--config is \"" + arguments.config_file + "\": the file cannot be read");
    } else {
      for (const std::string& problem : ApplyConfigJson(text.str(), config)) {
        problems.push_back(arguments.config_file + ": " + problem);
      }
    }
  }
  for (const std::string& problem : ApplyFlags(arguments.flags, config)) problems.push_back(problem);
  if (!arguments.model.empty()) config->model = arguments.model;
  return problems;
}

// ---- loading ------------------------------------------------------------------------------------

// What is served, in the order in which it is made. Outlives the server.
struct LoadedModel {
  KeptDoors doors;
  ModelSource source;
  SteadyClock clock;
  Device device;
  std::unique_ptr<ConstraintCompiler> constraints;  // null: not in this build. The engine compiles with it
  std::unique_ptr<EngineHost> host;
};

// At most one line a second, and the last one.
LoadProgress LogProgress(const Clock& clock) {
  return [&clock, last_ns = int64_t{0}](int64_t done, int64_t total) mutable {
    const int64_t now_ns = clock.NowNs();
    if (done < total && now_ns - last_ns < 1'000'000'000) return;
    last_ns = now_ns;
    spdlog::info("loading weights: {} of {}", FormatBytes(done), FormatBytes(total));
  };
}

void LogChats(const EngineHost& host) {
  const ChatFormat& format = host.chat_format();
  spdlog::info("chat format: {} ({})", format.name(), format.why());
  spdlog::info("answers end at {}", EndsText(host.model().config(), &host.tokenizer()));
}

void LogLines(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) spdlog::info("{}", line);
}

void LogPlan(const EngineHostPlan& plan) {
  const std::string recorded = plan.memory.recording_bytes > 0
                                   ? "recorded steps some " + FormatBytes(plan.memory.recording_bytes) + ", "
                                   : "";
  spdlog::info("memory: weights {}, workspace {}, {}{} pages of {} = {}",
               FormatBytes(plan.memory.weight_bytes), FormatBytes(plan.memory.workspace_bytes), recorded,
               plan.limits.pool_pages, FormatBytes(plan.memory.page_bytes),
               FormatBytes(plan.limits.pool_pages * plan.memory.page_bytes));
  if (plan.page_copy_ns > 0) {
    spdlog::info("evicted pages: {} on the host, {} on the disk; a page is copied in {:.1f} us",
                 FormatBytes(plan.limits.host_kv_bytes), FormatBytes(plan.limits.disk_kv_bytes),
                 plan.page_copy_ns / 1e3);
  }
  std::istringstream limits(plan.limits.ToString());
  for (std::string line; std::getline(limits, line);) spdlog::info("limit: {}", line);
}

void LogRowSpeeds(const EngineHostPlan& plan) {
  if (plan.row_speeds.empty()) return;
  std::string speeds;
  for (const RowSpeed& speed : plan.row_speeds) {
    speeds += fmt::format("{}{}: {:.0f}", speeds.empty() ? "" : ", ", speed.rows, speed.rows_per_second());
  }
  spdlog::info("prefill by tokens of a step, in tokens/s: {}; timed in {} ms", speeds,
               plan.measuring_ns / 1'000'000);
}

// A cache that cannot be written costs the next start its seconds, and this one nothing.
void LogTuning(const StatusOr<int64_t>& choices) {
  if (choices.ok()) {
    spdlog::info("tuning_cache: {} kernels chosen by time", *choices);
  } else {
    spdlog::warn("{}", choices.status().message());
  }
}

// Those of the doors.
void LogServerLimits(const ServerOptions& options) {
  const auto log = [](const char* name, int64_t value, const char* one_more) {
    spdlog::info("limit: {} = {}: {}, RESOURCE_EXHAUSTED", name, value, one_more);
  };
  log("max_queued_work", options.max_queued_work, "one more is refused");
  log("max_queued_work_bytes", WorkerPoolOptions().max_queued_bytes, "input beyond it is refused");
  log("max_streams", options.max_streams, "one more is refused");
  spdlog::info(
      "limit: max_answer_bytes = {}: an answer for which more is asked is refused, INVALID_ARGUMENT (0: "
      "none)",
      options.field_limits.max_answer_bytes);
  log("max_sessions", options.sessions.max_sessions,
      "of more the oldest idle one of whoever has most goes; where none may go one more is refused");
  if (!options.session_dir.empty()) {
    const SessionDirLimits& files = options.session_dir_limits;
    spdlog::info(
        "limit: session_dir_size = {}: the oldest files of whoever has most go for another one; one "
        "that is larger by itself is refused, FAILED_PRECONDITION; of a step {} us, while one is saved or "
        "restored",
        files.max_bytes, kPagesCopied.us());
    spdlog::info("limit: session_dir_files = {}: the oldest of whoever has most go for another one",
                 files.max_files);
  }
  const auto log_http = [](const char* name, int64_t value, const char* one_more) {
    spdlog::info("limit: {} = {}: {}", name, value, one_more);
  };
  log_http("max_unread_answer_bytes", options.max_unread_answer_bytes,
           "an answer that finds no room for what its client does not take is refused, or its stream ended");
  if (options.http_address.empty()) return;
  const HttpLimits& limits = options.http_limits;
  log_http("http_max_connections", limits.max_connections,
           "for one more the one that waits longest is closed, or the new one gets 503");
  log_http("http_max_header_bytes", limits.max_header_bytes, "a longer header is refused, 431");
  log_http("http_max_header_fields", limits.max_header_fields, "a header with more fields is refused, 431");
  log_http("http_max_body_bytes", limits.max_body_bytes, "a longer body is refused, 413");
  log_http("http_max_held_body_bytes", limits.max_held_body_bytes, "a request beyond it is refused, 503");
}

// What clients can make the process hold, beside the plan.
void LogMemoryBounds(const ServerOptions& options, const LoadedModel& loaded) {
  const bool has_constraints = loaded.constraints != nullptr;
  const int64_t grammar_cache = has_constraints ? loaded.constraints->limits().max_cache_bytes : 0;
  spdlog::info("memory beside the plan: {}",
               SumOf(ServeMemoryBounds(options, loaded.host->plan().limits, grammar_cache)));
  spdlog::info("memory of gRPC beyond that: {} at most were measured, where clients do all they can to it",
               FormatBytes(kGrpcOvershootBytes));
}

ServerOptions ServerOptionsOf(const ServeConfig& config, const EngineLimits& limits, const KeptDoors& doors) {
  ServerOptions options;
  options.grpc_address = config.grpc_address;
  if (config.http_address != "off") options.http_address = config.http_address;
  options.http_cors_origins = config.http_cors_origin;
  options.http_hosts = config.http_host;
  options.http_io_threads = static_cast<int32_t>(config.http_io_threads);
  options.http_handler_threads = static_cast<int32_t>(config.http_handler_threads);
  options.http_limits = HttpLimitsOf(config);
  options.step_timeout = config.step_timeout;
  if (config.admin_address != "off") options.admin_address = config.admin_address;
  options.doorkeeper = doors.doorkeeper;
  options.tls = doors.tls;
  options.request_log = RequestLogOf(config.log_requests, config.log_prompts);
  const bool is_auto = config.grpc_reflection == "auto";
  options.grpc_reflection = is_auto ? config.api_keys.empty() : config.grpc_reflection == "on";
  options.protect_metrics = config.protect_metrics;
  options.legacy_metrics = config.legacy_metrics;
  options.any_model = config.any_model;
  options.per_request_metrics = config.per_request_metrics;
  options.strict_fields = config.strict_fields == "on";
  options.field_limits = FieldLimitsOf(limits, ConstraintLimitsOf(config));
  options.field_limits.max_answer_bytes = config.max_answer_bytes;
  options.worker_threads = static_cast<int32_t>(config.worker_threads);
  options.compiler_threads = static_cast<int32_t>(config.compiler_threads);
  options.max_queued_work = static_cast<int32_t>(config.max_queued_work);
  options.max_streams = static_cast<int32_t>(config.max_streams);
  options.max_unread_answer_bytes = config.max_unread_answer_bytes;
  options.sessions.max_sessions = static_cast<int32_t>(config.max_sessions);
  options.session_dir = config.session_dir;
  options.session_dir_limits = {.max_bytes = config.session_dir_size, .max_files = config.session_dir_files};
  options.sessions.ttl_ns = static_cast<int64_t>(config.session_ttl * 1e9);
  options.writer_threads = static_cast<int32_t>(config.writer_threads);
  options.grpc_memory_bytes = config.grpc_memory;
  options.grpc_max_connections = static_cast<int32_t>(config.grpc_max_connections);
  options.grpc_read_timeout = config.grpc_read_timeout;
  options.grpc_write_timeout = config.grpc_write_timeout;
  return options;
}

// What can fail quickly comes before the weights.
StatusOr<std::unique_ptr<Server>> Load(const ServeConfig& config, LoadedModel* loaded) {
  TM_ASSIGN_OR_RETURN(loaded->source, FindModel(config.model));
  const std::string& folder = loaded->source.folder;
  TM_ASSIGN_OR_RETURN(OpenedModel opened, OpenModel(folder, KvOptionsOf(config), FileChoiceOf(config)));
  spdlog::info("model files: {} ({})", opened.folder.config_file, opened.folder.why);
  for (const std::string& warning : opened.config.warnings) spdlog::warn("{}: {}", folder, warning);
  TM_ASSIGN_OR_RETURN(loaded->device, MakeDevice(config));
  Backend& backend = *loaded->device.backend;
  if (!loaded->device.why_not_cuda.empty()) {
    spdlog::info("running on the CPU: {}", loaded->device.why_not_cuda);
  }
  TM_ASSIGN_OR_RETURN(EngineHostOptions options, MakeHostOptions(config, opened, backend));
  const ServerOptions server_options = ServerOptionsOf(config, options.limits, loaded->doors);
  TM_ASSIGN_OR_RETURN(std::unique_ptr<Server> server, Server::Start(server_options));

  if (!config.tuning_cache.empty()) {
    TM_ASSIGN_OR_RETURN(options.tune, UseTuningCache(config.tuning_cache, backend));
    if (!options.tune)
      spdlog::info("tuning_cache: {} has nothing to choose by time", DescribeDevice(backend.info()));
  }
  options.progress = LogProgress(loaded->clock);
  options.tier.warn = [](const std::string& warning) { spdlog::warn("{}", warning); };
  spdlog::info("model {} from {} on {}", loaded->source.name, folder, DescribeDevice(backend.info()));
  TM_ASSIGN_OR_RETURN(loaded->host, EngineHost::Start(std::move(opened), backend, options, loaded->clock));
  if (options.tune) LogTuning(WriteTuningCache(config.tuning_cache, backend));
  for (const std::string& warning :
       TokenizerWarnings(loaded->host->tokenizer(), loaded->host->model().config().vocab_size)) {
    spdlog::warn("{}", warning);
  }
  LogChats(*loaded->host);
  LogPlan(loaded->host->plan());
  LogLines(backend.remarks());
  LogRowSpeeds(loaded->host->plan());
  LogServerLimits(server_options);
  const ModelConfig& model = loaded->host->model().config();
  loaded->constraints = ConstraintCompiler::Create(loaded->host->tokenizer(), model.vocab_size, model.eos_ids,
                                                   ConstraintLimitsOf(config));
  spdlog::info("structured output: {}", loaded->constraints != nullptr ? "yes" : "not in this build");
  if (loaded->constraints != nullptr) {
    spdlog::info("limit: max_compile_ms = {}: a constraint that takes longer is refused, INVALID_ARGUMENT",
                 config.max_compile_ms);
  }
  LogMemoryBounds(server_options, *loaded);
  return server;
}

[[noreturn]] void LeaveWhileLoading() {
  spdlog::info("stopping: the model was still loading");
  FlushLogs();
  std::_Exit(0);
}

// Loads on a thread of its own: a signal ends the process there and then. Some steps of a load take many
// seconds, and of one that is half done nothing is worth waiting for.
StatusOr<std::unique_ptr<Server>> LoadUnlessStopped(const ServeConfig& config, LoadedModel* loaded) {
  constexpr int kLookAtLoadMs = 20;
  StatusOr<std::unique_ptr<Server>> server = Internal("not loaded");
  std::atomic<bool> done{false};
  std::thread loader([&] {
    server = Load(config, loaded);
    done = true;
  });
  while (!done) {
    if (StopRequested(kLookAtLoadMs)) LeaveWhileLoading();
  }
  loader.join();
  return server;
}

// ---- serving ------------------------------------------------------------------------------------

ServedModel ServedModelOf(const ServeConfig& config, const LoadedModel& loaded) {
  ServedModel model;
  model.names = config.served_model_names;
  if (model.names.empty()) model.names = {loaded.source.name};
  model.config = loaded.host->model().config();
  model.device = DescribeDevice(loaded.device.backend->info());
  model.engine = &loaded.host->engine();
  model.tokenizer = &loaded.host->tokenizer();
  model.chat_format = &loaded.host->chat_format();
  model.clock = &loaded.clock;
  model.weight_sample = loaded.host->weight_sample();
  model.max_answer_bytes = config.max_answer_bytes;
  model.constraints = loaded.constraints.get();
  return model;
}

void PrintReady(const Server& server) {
  nlohmann::json ready = {{"grpc", server.grpc_address()}};
  if (!server.http_address().empty()) ready["http"] = server.http_address();
  if (!server.admin_address().empty()) ready["admin"] = server.admin_address();
  std::printf("ready %s\n", ready.dump().c_str());
  std::fflush(stdout);
}

// Returns when a signal came (OK) or the engine has lost its device.
Status WaitForStop(const Engine& engine) {
  constexpr int kLookAtEngineMs = 200;
  HeapTrim heap;
  while (true) {
    if (StopRequested(kLookAtEngineMs)) return Status::Ok();
    heap.Look(std::chrono::steady_clock::now());
    TM_RETURN_IF_ERROR(engine.fatal());
  }
}

Status Serve(const ServeConfig& config, StartGuard& starting) {
  std::unique_ptr<TraceFile> trace_file;  // ends after all that it tells of
  if (!config.trace_file.empty()) {
    TM_ASSIGN_OR_RETURN(trace_file, TraceFile::Open(config.trace_file));
  }
  LoadedModel loaded;
  TM_ASSIGN_OR_RETURN(loaded.doors, OpenDoors(config));
  TM_ASSIGN_OR_RETURN(const std::unique_ptr<Server> server, LoadUnlessStopped(config, &loaded));
  server->Serve(ServedModelOf(config, loaded));
  if (trace_file != nullptr) trace_file->Record(server->StartTrace());
  starting.Release();
  PrintReady(*server);

  const Status outcome = WaitForStop(loaded.host->engine());
  if (outcome.ok()) {
    const Engine& engine = loaded.host->engine();
    WaitForBalancers(config.drain_delay, [&] { server->Leave(); }, [&] { return !engine.fatal().ok(); });
    spdlog::info("stopping: new requests are refused, what runs may finish within {} s",
                 config.drain_timeout);
    if (!server->Drain(static_cast<int64_t>(config.drain_timeout * 1e9))) {
      spdlog::warn("stopping: the drain timeout is over, what still runs ends with UNAVAILABLE");
    }
  }
  server->Stop();
  return outcome;
}

int RunServe(const ServeArguments& arguments) {
  ServeConfig config;
  const std::vector<std::string> problems = EffectiveServeConfig(arguments, &config);
  for (const std::string& problem : problems) std::fprintf(stderr, "tramontane serve: %s\n", problem.c_str());
  if (!problems.empty()) return 2;
  if (arguments.print_config) {
    std::fputs(PrintConfig(config).c_str(), stdout);
    return std::fflush(stdout) == 0 ? 0 : 1;
  }
  StartGuard starting;
  if (const Status status = PrepareToServe(config.log_level, config.log_format); !status.ok()) {
    std::fprintf(stderr, "tramontane serve: %s\n", status.ToString().c_str());
    return 1;
  }
  const Status status = Serve(config, starting);
  if (status.ok()) return 0;
  spdlog::error("{}", status.ToString());
  return 1;
}

}  // namespace

void AddServeCommand(CLI::App& app, RunCommand* run) {
  auto arguments = std::make_shared<ServeArguments>();
  CLI::App* command = app.add_subcommand("serve", "Load a model and answer over gRPC and HTTP");
  command->add_option("MODEL_DIR", arguments->model,
                      "folder of the model, or its GGUF file; none: the embedded model, breeze");
  command->add_option("--config", arguments->config_file, "JSON file of settings; flags override it");
  command->add_flag("--print-config", arguments->print_config,
                    "print the effective settings as JSON and end");
  const auto has_flag = [](std::string_view key) { return key != "model"; };  // that is MODEL_DIR
  AddSettingFlags(has_flag, &arguments->flags, command);
  command->callback([arguments, run] { *run = [arguments] { return RunServe(*arguments); }; });
}

}  // namespace tramontane

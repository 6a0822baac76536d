// tune [MODEL_DIR] --tuning-cache FILE: times the kernels that a GPU has for a model's products, and keeps
// the fastest in FILE for serve to take.
#include <cstdio>
#include <memory>

#include "server/commands/commands.h"
#include "server/commands/local_engine.h"
#include "server/commands/setting_flags.h"
#include "server/setup/host_options.h"
#include "server/setup/tuning_cache.h"

namespace tramontane {

namespace {

struct TuneOptions {
  std::string model;
  GivenSettings settings;
};

Status Tune(const ServeConfig& config) {
  TM_ASSIGN_OR_RETURN(const std::unique_ptr<LocalEngine> local, StartLocalEngine(config));
  const BackendInfo& info = local->backend->info();
  if (!local->tuned) {
    return FailedPrecondition("the model would run on " + DescribeDevice(info) +
                              ", which has no kernels to choose by time; a GPU has");
  }
  TM_ASSIGN_OR_RETURN(const int64_t choices, WriteTuningCache(config.tuning_cache, *local->backend));
  std::printf("%lld kernels chosen by time in %s, those of %s on %s among them\n",
              static_cast<long long>(choices), config.tuning_cache.c_str(), local->name.c_str(),
              DescribeDevice(info).c_str());
  return {};
}

int RunTune(const TuneOptions& options) {
  ServeConfig config;
  std::vector<std::string> problems = ApplyFlags(options.settings, &config);
  if (problems.empty() && config.tuning_cache.empty()) {
    problems.push_back("--tuning-cache is missing: the file that the choices are kept in");
  }
  for (const std::string& problem : problems) std::fprintf(stderr, "tramontane tune: %s\n", problem.c_str());
  if (!problems.empty()) return 2;
  config.model = options.model;
  const Status status = Tune(config);
  if (status.ok()) return 0;
  std::fprintf(stderr, "tramontane tune: %s\n", status.ToString().c_str());
  return 1;
}

// Of serve's settings, those by which products have their shapes and row counts, or which device has them.
bool DecidesTheProducts(std::string_view key) {
  for (const std::string_view setting :
       {"model_format", "tokenizer", "device", "memory", "kv_dtype", "kv_group", "page_size", "kv_layout",
        "context", "max_sequences", "max_step_tokens", "linear", "tuning_cache"}) {
    if (key == setting) return true;
  }
  return false;
}

}  // namespace

void AddTuneCommand(CLI::App& app, RunCommand* run) {
  auto options = std::make_shared<TuneOptions>();
  CLI::App* command = app.add_subcommand(
      "tune", "Time the kernels that a GPU has for a model's products, and keep the fastest");
  command->add_option("MODEL_DIR", options->model, "what serve takes; without it the embedded model, breeze");
  AddSettingFlags(DecidesTheProducts, &options->settings, command);
  command->callback([options, run] { *run = [options] { return RunTune(*options); }; });
}

}  // namespace tramontane

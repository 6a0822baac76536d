// inspect MODEL_DIR: what a model is and what would fit in memory, from its config and file headers alone;
// or, with --tensors, what its files hold. inspect --kv needs no model.
#include <algorithm>
#include <array>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "models/inspect.h"
#include "server/commands/commands.h"
#include "server/commands/inspect_kv.h"
#include "server/commands/inspect_tensors.h"
#include "server/commands/setting_flags.h"
#include "server/setup/describe_tokenizer.h"
#include "server/setup/host_options.h"
#include "server/setup/model_source.h"

namespace tramontane {

namespace {

struct InspectArguments {
  std::string model;
  ServeConfig config;
  bool tensors = false;
  KvViewArguments kv;
  GivenSettings flags;
  std::vector<std::string> problems;
};

bool DecidesThePlan(std::string_view key) {
  constexpr std::array<std::string_view, 19> kDeciding = {
      "model_format", "tokenizer",    "chat_format", "memory",        "kv_dtype",
      "kv_group",     "page_size",    "kv_layout",   "prefix_cache",  "host_kv",
      "disk_kv",      "disk_kv_size", "context",     "max_sequences", "max_step_tokens",
      "device",       "cpu_variant",  "threads",     "linear"};
  return std::find(kDeciding.begin(), kDeciding.end(), key) != kDeciding.end();
}

// Where pages go that the pool evicts; "" where they go nowhere.
std::string DescribeTier(const EngineHostPlan& plan) {
  std::string text;
  const auto add = [&](const char* what, int64_t bytes) {
    if (bytes == 0) return;
    text += std::string(what) + std::to_string(bytes) +
            " bytes: " + std::to_string(bytes / plan.memory.page_bytes) + " evicted pages\n";
  };
  add("host_kv: ", plan.limits.host_kv_bytes);
  add("disk_kv: ", plan.limits.disk_kv_bytes);
  return text;
}

Status Inspect(const InspectArguments& arguments) {
  if (arguments.kv.wanted) return PrintKvView(arguments.kv, arguments.config);
  TM_ASSIGN_OR_RETURN(const ModelSource source, FindModel(arguments.model));
  if (arguments.tensors) return PrintTensors(source.folder, FileChoiceOf(arguments.config));
  TM_ASSIGN_OR_RETURN(const OpenedModel model, OpenModel(source.folder, KvOptionsOf(arguments.config),
                                                         FileChoiceOf(arguments.config)));
  TM_ASSIGN_OR_RETURN(const std::string tokenizer, DescribeTokenizer(model, arguments.config.chat_format));
  std::fputs((DescribeModel(model) + tokenizer).c_str(), stdout);
  std::fflush(stdout);  // what is known of the model stands even where the plan fails
  TM_ASSIGN_OR_RETURN(const Device device, MakeDevice(arguments.config));
  const Backend& backend = *device.backend;
  TM_ASSIGN_OR_RETURN(const EngineHostOptions options, MakeHostOptions(arguments.config, model, backend));
  TM_ASSIGN_OR_RETURN(const EngineHostPlan plan, PlanEngineHost(model, backend, options));
  std::fputs(DescribePlan(plan.layout, plan.memory, options.memory_bytes).c_str(), stdout);
  std::fputs(DescribeTier(plan).c_str(), stdout);
  return std::fflush(stdout) == 0 ? Status::Ok() : Internal("standard output cannot be written");
}

int RunInspect(const InspectArguments& arguments) {
  for (const std::string& problem : arguments.problems) {
    std::fprintf(stderr, "tramontane inspect: %s\n", problem.c_str());
  }
  if (!arguments.problems.empty()) return 2;
  const Status status = Inspect(arguments);
  if (status.ok()) return 0;
  std::fprintf(stderr, "tramontane inspect: %s\n", status.ToString().c_str());
  return 1;
}

}  // namespace

void AddInspectCommand(CLI::App& app, RunCommand* run) {
  auto arguments = std::make_shared<InspectArguments>();
  CLI::App* command =
      app.add_subcommand("inspect", "Print what a model is and what fits in memory, without loading it");
  CLI::Option* model =
      command->add_option("MODEL_DIR", arguments->model,
                          "folder of the model, or its GGUF file; none: the embedded model, breeze");
  CLI::Option* tensors = command->add_flag(
      "--tensors", arguments->tensors,
      "print instead one JSON line for each tensor of the files, whatever the architecture");
  AddKvViewFlags(*command, &arguments->kv)->excludes(model)->excludes(tensors);
  AddSettingFlags(DecidesThePlan, &arguments->flags, command);
  command->callback([arguments, command, run] {
    arguments->problems = ApplyFlags(arguments->flags, &arguments->config);
    // Pages of one token show a ring best.
    if (arguments->kv.wanted && command->count("--page-size") == 0) arguments->config.page_size = 1;
    arguments->kv.page_wanted = command->count("--kv-dtype") > 0;
    *run = [arguments] { return RunInspect(*arguments); };
  });
}

}  // namespace tramontane

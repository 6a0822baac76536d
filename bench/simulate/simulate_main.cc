#include "bench/simulate/simulate_main.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/load/bench_main.h"
#include "bench/simulate/device_presets.h"
#include "bench/simulate/fit.h"
#include "bench/simulate/simulated_model.h"
#include "bench/simulate/simulated_server.h"
#include "models/files/read_file.h"
#include "server/setup/config.h"

namespace tramontane::simulate {
namespace {

constexpr int64_t kMaxDeviceBytes = 1 << 20;
constexpr int64_t kMaxTablesBytes = 16 << 20;

// The settings of `serve` that decide what is simulated, under the same names.
constexpr const char* kSettings[] = {
    "kv_dtype",      "kv_group",          "page_size",           "prefix_cache",    "context",
    "max_sequences", "priority_ageing",   "max_queued_requests", "max_step_tokens", "max_partial_prefills",
    "lane_policy",   "max_prefill_steps", "decode_gap_ms"};

const Setting& SettingOf(std::string_view key) {
  const std::vector<Setting>& settings = ServeSettings();
  return *std::find_if(settings.begin(), settings.end(), [&](const Setting& s) { return key == s.key; });
}

std::string DeviceNames() {
  std::string names;
  for (const auto& [name, text] : DevicePresets()) names += (names.empty() ? "" : ", ") + std::string(name);
  return names;
}

StatusOr<DeviceRoofline> DeviceOf(const std::string& name_or_file) {
  for (const auto& [name, text] : DevicePresets()) {
    if (name == name_or_file) return ParseDeviceRoofline(text, name_or_file);
  }
  const auto text = ReadFile(name_or_file, kMaxDeviceBytes);
  if (!text.ok()) {
    return InvalidArgument("--device is " + name_or_file + "; it must be " + DeviceNames() +
                           " or a file: " + text.status().message());
  }
  return ParseDeviceRoofline(*text, name_or_file);
}

// As `serve` makes them of the same settings on a GPU.
EngineLimits LimitsOf(const ServeConfig& config) {
  EngineLimits limits;
  limits.context = config.context;
  limits.prefix_cache = config.prefix_cache == "on";
  limits.max_sequences = static_cast<int32_t>(config.max_sequences);
  limits.max_choices = 1;
  limits.priority_ageing_ns = std::llround(config.priority_ageing * 1e9);
  limits.max_queued_requests = static_cast<int32_t>(config.max_queued_requests);
  limits.max_step_tokens =
      static_cast<int32_t>(config.max_step_tokens > 0 ? config.max_step_tokens : kGpuStepTokens);
  limits.max_partial_prefills = static_cast<int32_t>(config.max_partial_prefills);
  limits.lane_policy = ParseLanePolicy(config.lane_policy).value();  // the settings take no other name
  limits.max_prefill_steps = static_cast<int32_t>(config.max_prefill_steps);
  limits.decode_gap_ns = (config.decode_gap_ms > 0 ? config.decode_gap_ms : kGpuDecodeGapMs) * 1'000'000;
  return limits;
}

// Nothing given: as much of the device's as `serve` takes.
StatusOr<int64_t> MemoryOf(const load::GivenFlags& given, const DeviceRoofline& device) {
  if (given.Has("--memory")) {
    auto bytes = ParseBytes(given.Text("--memory"));
    if (!bytes.ok()) return InvalidArgument("--memory " + bytes.status().message());
    return bytes;
  }
  if (device.memory_bytes > 0) return std::llround(0.9 * device.memory_bytes);
  return InvalidArgument("--memory is missing, and " + device.name + " has no memory_bytes");
}

class Simulator {
 public:
  explicit Simulator(const SimulateWorld& world) : world_(world) {
    target_.program = "tramontane simulate";
    target_.about =
        "What the server would do on a device that is not there: the engine's own scheduler and KV "
        "accounting on a clock of its own, under the loads of tramontane bench and by the definitions of "
        "docs/ttft.md.";
    target_.flags = {
        {"--model", "DIR", "Target", "a folder with config.json or params.json; no other file is read"},
        {"--device", "NAME|FILE", "Target", "the device: h200, or a JSON file of roofline terms"},
        {"--memory", "B", "Target",
         "weights, workspace and KV pages together, as 80GiB or bytes (90 % of the device's)"}};
    target_.flags.push_back(
        {"--fit", "FILE", "Fit",
         "no load: print the terms of the device that bench/gpu_check measured; FILE is its "
         "gpu_check.json"});
    target_.alone = "--fit";
    for (const char* key : kSettings) {
      const Setting& setting = SettingOf(key);
      flag_names_.push_back(FlagOf(setting));
      target_.flags.push_back({flag_names_.back().c_str(), setting.metavar, "Target", setting.help});
    }
    target_.read = [this](const load::GivenFlags& given) { return Read(given); };
  }

  int Run(int argc, const char* const* argv);

 private:
  StatusOr<load::TargetOptions> Read(const load::GivenFlags& given);
  StatusOr<ServeConfig> ReadSettings(const load::GivenFlags& given) const;
  std::vector<std::pair<std::string, int64_t>> Counts() const;

  const SimulateWorld& world_;
  load::OtherTarget target_;
  std::deque<std::string> flag_names_;  // which the rows point to
  FittedDevice fitted_;                 // of --fit
  Simulation simulation_;
  SimulatedClock clock_;
  const SimulatedServer* server_ = nullptr;  // of the run
};

int Simulator::Run(int argc, const char* const* argv) {
  const load::BenchWorld world = {
      .connect = [this](const load::TargetOptions&) -> StatusOr<std::unique_ptr<load::Transport>> {
        auto server = std::make_unique<SimulatedServer>(simulation_, clock_);
        server_ = server.get();
        return std::unique_ptr<load::Transport>(std::move(server));
      },
      .first_served_model = [](const load::TargetOptions&) { return StatusOr<std::string>(std::string()); },
      .ask =
          [](const load::TargetOptions&, const load::PlainQuestion&) {
            return StatusOr<load::PlainAnswer>(Unimplemented("nobody to ask"));
          },
      .check =
          [this](std::ostream& out, std::ostream&) {
            out << DeviceJson(fitted_) << std::flush;
            return int{load::kMade};
          },
      .options = {.environment = [](const char*) -> const char* { return nullptr; },
                  .draw_nonce = [] { return uint64_t{0}; },
                  .other_target = &target_},
      .clock = clock_,
      .out = world_.out,
      .err = world_.err,
      .err_is_terminal = world_.err_is_terminal,
      .date = [] { return std::string(); },
      .stop = world_.stop,
      .target_counts = [this] { return Counts(); },
  };
  return load::RunBench(argc, argv, world);
}

StatusOr<load::TargetOptions> Simulator::Read(const load::GivenFlags& given) {
  if (given.Has("--fit")) {
    const std::string file = given.Text("--fit");
    TM_ASSIGN_OR_RETURN(const std::string text, ReadFile(file, kMaxTablesBytes));
    TM_ASSIGN_OR_RETURN(fitted_, FitDevice(text, file));
    return load::TargetOptions();
  }
  for (const char* flag : {"--model", "--device"}) {
    if (!given.Has(flag)) return InvalidArgument(std::string(flag) + " is missing");
  }
  TM_ASSIGN_OR_RETURN(const ServeConfig config, ReadSettings(given));
  const KvOptions kv = {.dtype = KvDTypeOf(config),
                        .group = static_cast<int32_t>(config.kv_group),
                        .page_size = static_cast<int32_t>(config.page_size)};
  TM_ASSIGN_OR_RETURN(simulation_.device, DeviceOf(given.Text("--device")));
  TM_ASSIGN_OR_RETURN(const SimulatedModel model, ReadSimulatedModel(given.Text("--model"), kv));
  TM_ASSIGN_OR_RETURN(const int64_t memory_bytes, MemoryOf(given, simulation_.device));
  EngineLimits limits = LimitsOf(config);
  TM_ASSIGN_OR_RETURN(const SimulatedMemory memory, FitIntoMemory(model, memory_bytes, &limits));
  simulation_.costs = KnownCosts(model, simulation_.device, &limits);
  simulation_.limits = limits;
  simulation_.work = model.work;
  simulation_.kv_layout = model.kv_layout;

  load::TargetOptions target;
  target.simulated = true;
  target.url = "simulated:" + simulation_.device.name;
  target.model = model.name;
  const auto tell = [&](const char* name, int64_t value) {
    target.about.emplace_back(name, std::to_string(value));
  };
  target.about = {{"device", simulation_.device.name}, {"model", model.name}};
  tell("parameters", model.weight_count);
  tell("memory bytes", memory_bytes);
  tell("weight bytes", memory.weight_bytes);
  tell("workspace bytes", memory.workspace_bytes);
  tell("pages", limits.pool_pages);
  tell("page bytes", memory.page_bytes);
  tell("context", limits.context);
  target.about.emplace_back("prefix cache", limits.prefix_cache ? "on" : "off");
  target.about.emplace_back("lane policy", LanePolicyName(limits.lane_policy));
  tell("least step tokens", limits.least_step_tokens);
  return target;
}

StatusOr<ServeConfig> Simulator::ReadSettings(const load::GivenFlags& given) const {
  ServeConfig config;
  for (const char* key : kSettings) {
    const Setting& setting = SettingOf(key);
    const std::string flag = FlagOf(setting);
    if (!given.Has(flag.c_str())) continue;
    const std::string problem = setting.set(config, given.Text(flag.c_str()));
    if (!problem.empty()) return InvalidArgument(flag + " " + problem);
  }
  return config;
}

std::vector<std::pair<std::string, int64_t>> Simulator::Counts() const {
  const EngineLoad load = server_->engine_load();
  return {{"steps", load.steps},
          {"prefill steps", load.prefill_steps},
          {"decode steps", load.decode_steps},
          {"preemptions", load.preemptions}};
}

}  // namespace

int RunSimulate(int argc, const char* const* argv, const SimulateWorld& world) {
  return Simulator(world).Run(argc, argv);
}

}  // namespace tramontane::simulate

#include "server/setup/host_options.h"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <sstream>
#include <string_view>
#include <utility>

#include "server/setup/cuda_loader.h"

namespace tramontane {

namespace {

// The first number in a file, or `otherwise` where there is no such file or number ("max").
int64_t NumberIn(const char* path, int64_t otherwise) {
  std::ifstream file(path);
  int64_t value = 0;
  return file >> value ? value : otherwise;
}

int64_t MemAvailable() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    int64_t kib = 0;
    if (std::sscanf(line.c_str(), "MemAvailable: %" SCNd64 " kB", &kib) == 1) return kib * 1024;
  }
  return int64_t{1} << 30;
}

StatusOr<BackendPtr> MakeCpu(const ServeConfig& config) {
  std::string variant = config.cpu_variant;
  if (variant.empty() && config.kv_dtype == "f32") {
    // Whoever asks for exact keys and values gets the best variant that rounds no inputs either.
    for (const std::string& name : CpuVariants()) {
      if (variant.empty() && !RoundsInputs(name)) variant = name;
    }
  }
  return MakeCpuBackend({.threads = static_cast<int32_t>(config.threads),
                         .variant = variant,
                         .linear = config.linear == "exact" ? LinearMode::kExact : LinearMode::kInt8});
}

// Settings that only the CPU has are asked about before the library is opened.
StatusOr<BackendPtr> MakeCuda(const ServeConfig& config) {
  if (!config.cpu_variant.empty())
    return InvalidArgument("cpu_variant is " + config.cpu_variant + ", which only the CPU has");
  if (config.kv_dtype == "f32") {
    return InvalidArgument("kv_dtype is f32, CUDA keeps keys and values in bf16, fp8, int8 and int4");
  }
  return OpenCudaBackend(CudaLibraryPath(), {.fp8_products = config.linear == "fp8" ? 1 : 0});
}

bool IsCuda(const BackendInfo& info) { return std::string_view(info.name) == "cuda"; }

// As much as a server may take by itself, beside the host's memory that it is told to take.
int64_t DefaultMemory(const BackendInfo& info, int64_t host_kv) {
  if (IsCuda(info)) return info.memory_bytes / 10 * 9;
  return std::max<int64_t>(0, FreeMemoryBytes() - host_kv) / 10 * 7;
}

// Of the name that the settings take; its numbers are the defaults.
ContextPolicy DefaultPolicy(const std::string& name) {
  ContextPolicy policy;
  for (size_t type = 0; type < kContextPolicyTypes; ++type) {
    if (name == ContextPolicyName(static_cast<ContextPolicyType>(type)))
      policy.type = static_cast<ContextPolicyType>(type);
  }
  return policy;
}

}  // namespace

StatusOr<Device> MakeDevice(const ServeConfig& config) {
  Device device;
  if (config.device != "cpu") {
    StatusOr<BackendPtr> cuda = MakeCuda(config);
    if (cuda.ok()) {
      device.backend = *std::move(cuda);
      return device;
    }
    if (config.device == "cuda") return cuda.status();
    device.why_not_cuda = cuda.status().message();
  }
  if (config.linear == "fp8") {
    return InvalidArgument("linear is fp8, which only CUDA has" +
                           (device.why_not_cuda.empty() ? "" : "; " + device.why_not_cuda));
  }
  TM_ASSIGN_OR_RETURN(device.backend, MakeCpu(config));
  return device;
}

std::string DescribeDevice(const BackendInfo& info) {
  const std::string kind = std::string(info.name) + " (" + info.variant;
  if (IsCuda(info)) return kind + ")";
  return kind + ", " + std::to_string(info.threads) + (info.threads == 1 ? " thread)" : " threads)");
}

int64_t FreeMemoryBytes() {
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  const int64_t limit = NumberIn("/sys/fs/cgroup/memory.max", kNone);
  const int64_t used = NumberIn("/sys/fs/cgroup/memory.current", 0);
  const int64_t left = limit == kNone ? kNone : std::max<int64_t>(0, limit - used);
  return std::min(MemAvailable(), left);
}

KvOptions KvOptionsOf(const ServeConfig& config) {
  return {.dtype = KvDTypeOf(config),
          .group = static_cast<int32_t>(config.kv_group),
          .page_size = static_cast<int32_t>(config.page_size),
          .order = config.kv_layout == "nhd" ? KvOrder::kNhd : KvOrder::kHnd};
}

FileChoice FileChoiceOf(const ServeConfig& config) {
  return {.format = config.model_format == "native" ? ModelFormat::kNative
                    : config.model_format == "hf"   ? ModelFormat::kHuggingFace
                    : config.model_format == "gguf" ? ModelFormat::kGguf
                                                    : ModelFormat::kAuto,
          .tokenizer = config.tokenizer};
}

StatusOr<EngineHostOptions> MakeHostOptions(const ServeConfig& config, const OpenedModel& model,
                                            const Backend& backend) {
  EngineHostOptions options;
  EngineLimits& limits = options.limits;
  limits.context = config.context;
  limits.prefix_cache = config.prefix_cache == "on";
  limits.context_policy = DefaultPolicy(config.context_policy);
  limits.max_sequences = static_cast<int32_t>(config.max_sequences);
  limits.priority_ageing_ns = std::llround(config.priority_ageing * 1e9);
  limits.max_queued_requests = static_cast<int32_t>(config.max_queued_requests);
  limits.max_unread_tokens = config.max_unread_tokens;
  limits.max_choices = static_cast<int32_t>(std::min(config.max_choices, config.max_sequences));
  const int64_t device_step_tokens = IsCuda(backend.info()) ? kGpuStepTokens : kCpuStepTokens;
  limits.max_step_tokens =
      static_cast<int32_t>(config.max_step_tokens > 0 ? config.max_step_tokens : device_step_tokens);
  limits.max_partial_prefills = static_cast<int32_t>(config.max_partial_prefills);
  limits.lane_policy = ParseLanePolicy(config.lane_policy).value();  // the settings take no other name
  limits.max_prefill_steps = static_cast<int32_t>(config.max_prefill_steps);
  const int64_t device_gap_ms = IsCuda(backend.info()) ? kGpuDecodeGapMs : kCpuDecodeGapMs;
  limits.decode_gap_ns = (config.decode_gap_ms > 0 ? config.decode_gap_ms : device_gap_ms) * 1'000'000;
  limits.max_constraint_step_ns = config.max_constraint_step_us * 1000;
  options.memory_bytes = config.memory;
  options.tier.host_bytes = config.host_kv;
  options.tier.disk_folder = config.disk_kv;
  options.tier.disk_bytes = config.disk_kv_size;
  options.chat_format = config.chat_format;
  if (config.memory == 0) {
    const int64_t most = DefaultMemory(backend.info(), config.host_kv);
    if (most == 0 && config.host_kv > 0) {
      return InvalidArgument("is " + std::to_string(config.host_kv) + " bytes; " +
                             std::to_string(FreeMemoryBytes()) + " are free, and `memory` needs some of them")
          .WithField("host_kv", FieldForm::kSubject);
    }
    options.memory_bytes = most;
    TM_ASSIGN_OR_RETURN(const EngineHostPlan plan, PlanEngineHost(model, backend, options));
    const int64_t context =
        limits.context == 0 ? model.config.context : std::min(limits.context, model.config.context);
    const int64_t pages =
        plan.layout.PagesForSequence(context, int64_t{limits.max_step_tokens} * plan.limits.steps_in_flight);
    const int64_t wanted = plan.memory.weight_bytes + plan.memory.workspace_bytes +
                           plan.memory.recording_bytes +
                           pages * limits.max_sequences * plan.memory.page_bytes;
    options.memory_bytes = std::min(most, wanted);
    // A share of all memory, though few pages are wanted of it.
    options.limits.max_recording_bytes = plan.memory.recording_bytes;
  }
  return options;
}

ConstraintLimits ConstraintLimitsOf(const ServeConfig& config) {
  ConstraintLimits limits;
  limits.max_compile_ns = config.max_compile_ms * 1'000'000;
  limits.max_cache_bytes = config.grammar_cache_bytes;
  return limits;
}

FieldLimits FieldLimitsOf(const EngineLimits& engine, const ConstraintLimits& constraints) {
  return {.max_choices = engine.max_choices,
          .max_stop_strings = engine.max_stop_strings,
          .max_stop_bytes = engine.max_stop_bytes,
          .max_stop_token_ids = engine.max_stop_token_ids,
          .max_logit_bias = engine.max_logit_bias,
          .max_constraint_bytes = constraints.max_bytes,
          .max_constraint_choices = constraints.max_choices};
}

std::string FormatBytes(int64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(),
                unit == 0    ? "%.0f %s"
                : value < 10 ? "%.2f %s"
                             : "%.1f %s",
                value, kUnits[unit]);
  return text.data();
}

}  // namespace tramontane

#include "bench/simulate/simulated_model.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "engine/run/backend_model_runner.h"
#include "engine/run/row_speeds.h"
#include "models/decoder.h"
#include "models/files/read_file.h"
#include "models/json_file.h"
#include "models/memory_plan.h"
#include "models/weights.h"

namespace tramontane::simulate {
namespace {

int64_t BytesOf(const WeightSpec& spec, DType dtype) {
  int64_t bytes = 0;
  const Format stored = spec.packed ? Format(dtype) : Format(DType::kF32);  // norms and routers
  for (const TensorSpec& part : spec.parts) bytes += stored.Bytes(part.elements());
  return bytes;
}

StatusOr<ModelConfig> ReadConfig(const std::string& folder) {
  std::error_code error;
  const std::string hugging_face = folder + "/config.json";
  const std::string native = folder + "/params.json";
  const bool has_hugging_face = std::filesystem::exists(hugging_face, error);
  if (!has_hugging_face && !std::filesystem::exists(native, error)) {
    return NotFound(folder + " holds neither config.json nor params.json");
  }
  const std::string& file = has_hugging_face ? hugging_face : native;
  TM_ASSIGN_OR_RETURN(const std::string text, ReadFile(file, kMaxConfigBytes));
  return has_hugging_face ? ParseHuggingFaceConfig(text, file) : ParseMistralParams(text, file);
}

}  // namespace

StatusOr<SimulatedModel> ReadSimulatedModel(const std::string& folder, const KvOptions& kv) {
  TM_ASSIGN_OR_RETURN(const ModelConfig config, ReadConfig(folder));
  if (!config.quantization.schemes.empty()) {
    return Unimplemented(folder + ": its weights are quantised, and what they take stands in their files; " +
                         "only plain weights can be simulated");
  }
  TM_RETURN_IF_ERROR(KvElementOf(kv, config.head_dim).status());
  std::filesystem::path path = std::filesystem::path(folder).lexically_normal();
  if (path.filename().empty()) path = path.parent_path();
  return SimulatedModelOf(path.filename().string(), config, kv);
}

SimulatedModel SimulatedModelOf(const std::string& name, const ModelConfig& config, const KvOptions& kv) {
  SimulatedModel model;
  model.name = name;
  model.config = config;
  const KvFormat format = {.element = KvElementOf(kv, config.head_dim).value(),
                           .kv_heads = config.kv_heads,
                           .head_dim = config.head_dim,
                           .page_size = kv.page_size};
  model.kv_layout = MakeKvLayout(config.window, format);
  model.work = WorkOf(config, format);
  for (const WeightSpec& spec : ListWeights(config)) {
    for (const TensorSpec& part : spec.parts) model.weight_count += part.elements();
    model.weight_bytes += BytesOf(spec, config.weight_dtype);
  }
  return model;
}

StatusOr<SimulatedMemory> FitIntoMemory(const SimulatedModel& model, int64_t memory_bytes,
                                        EngineLimits* limits) {
  const KvLayout& layout = model.kv_layout;
  limits->page_size = layout.format.page_size;
  limits->steps_in_flight = kMaxStepsInFlight;
  SimulatedMemory memory;
  memory.weight_bytes = model.weight_bytes;
  memory.workspace_bytes =
      ActivationBytes(model.config, DType::kBf16, limits->max_tokens()) +
      int64_t{limits->logit_rows()} * model.config.vocab_size * static_cast<int64_t>(sizeof(float)) +
      BackendModelRunner::CountBuffers(layout, *limits, model.config).device;
  limits->BoundRecordings(RecordedStepsThatFit(model.config, limits->recorded_steps(),
                                               limits->max_recording_bytes,
                                               memory_bytes - memory.weight_bytes - memory.workspace_bytes));
  memory.workspace_bytes += RecordingBytes(model.config, limits->recorded_steps());
  memory.page_bytes = layout.page_bytes();
  const int64_t least = memory.weight_bytes + memory.workspace_bytes +
                        static_cast<int64_t>(layout.groups.size()) * memory.page_bytes;
  if (memory_bytes < least) {
    return ResourceExhausted("memory of " + std::to_string(memory_bytes) + " bytes is too little for " +
                             model.name + ": weights take " + std::to_string(memory.weight_bytes) +
                             ", the workspace " + std::to_string(memory.workspace_bytes) + ": at least " +
                             std::to_string(least) + " are needed");
  }
  limits->pool_pages = std::min<int64_t>(
      (memory_bytes - memory.weight_bytes - memory.workspace_bytes) / memory.page_bytes, INT32_MAX);
  const int64_t fits =
      std::min(model.config.context, ContextThatFits(layout, limits->pool_pages, limits->max_step_tokens));
  limits->context = limits->context > 0 ? std::min(limits->context, fits) : fits;
  TM_RETURN_IF_ERROR(limits->Validate());
  return memory;
}

StepCosts KnownCosts(const SimulatedModel& model, const DeviceRoofline& device, EngineLimits* limits) {
  const bool is_cut = limits->decode_gap_ns > 0 && limits->lane_policy == LanePolicy::kFair;
  if (!is_cut || limits->least_step_tokens > 0) return {};
  const PrefillCost keys(model.kv_layout, limits->attended_keys_per_token);
  const auto most_rows = static_cast<int32_t>(std::min<int64_t>(limits->max_step_tokens, limits->context));
  const std::vector<RowSpeed> speeds = RowSpeedsOf(model.work, keys, device, most_rows);
  StepCosts costs;
  for (const RowSpeed& speed : speeds) {
    costs.prefill.Learn({.tokens = speed.rows, .attended_keys = keys.AttendedKeys(0, speed.rows)}, speed.ns);
  }
  limits->least_step_tokens = LeastFastRows(speeds);
  return costs;
}

}  // namespace tramontane::simulate

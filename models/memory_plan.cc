#include "models/memory_plan.h"

#include <algorithm>
#include <vector>

#include "models/decoder.h"

namespace tramontane {
namespace {

// And the most quantised numbers that one of them has.
Status AddWeights(const OpenedModel& model, const Backend& backend, MemoryPlan& plan,
                  int64_t& quantised_numbers) {
  plan.weights_present = !model.folder.weight_files.empty();
  if (plan.weights_present || !model.folder.unreadable_weights.empty()) {
    TM_RETURN_IF_ERROR(model.weight_files.status());
  }
  for (const WeightSpec& spec : model.weights) {
    std::vector<StoredWeight> stored;
    std::vector<WeightRows> parts;  // as the config has them
    for (const TensorSpec& part : spec.parts) {
      plan.weight_count += part.elements();
      parts.push_back(TakeSlice(nullptr, model.config.weight_dtype, part));
      if (!plan.weights_present) continue;
      TM_ASSIGN_OR_RETURN(stored.emplace_back(), model.weight_files->Find(part));
    }
    if (plan.weights_present) parts = PackedParts(spec, stored);
    plan.weight_bytes += WeightBytes(spec, parts, backend);
    quantised_numbers = std::max(quantised_numbers, QuantisedNumbers(spec, parts));
  }
  return Status::Ok();
}

// A sequence of the whole context, and beside it tokens of others that begin.
int64_t QuantisedPages(const ModelConfig& config, const KvFormat& format, const PlanLimits& limits) {
  const bool quantised = format.element.in_groups() || format.element == Format::BareFp8();
  return quantised ? PagesFor(config.context + limits.max_tokens, format.page_size) : 0;
}

}  // namespace

StepMaxima MaximaOf(const ModelConfig& config, const KvFormat& format, const PlanLimits& limits,
                    int64_t quantised_numbers) {
  return {.tokens = limits.max_tokens,
          .sequences = limits.max_sequences,
          .logit_rows = limits.max_logit_rows,
          .hidden = std::max({config.hidden_size, config.experts == 0 ? config.intermediate_size : 0,
                              config.heads * config.head_dim}),
          .query_heads = config.heads,
          .kv_heads = config.kv_heads,
          .head_dim = config.head_dim,
          .vocab = config.vocab_size,
          .context = config.context,
          .quantised_numbers = quantised_numbers,
          .quantised_pages = QuantisedPages(config, format, limits),
          .page_size = format.page_size,
          .experts = config.experts,
          .experts_per_token = config.experts_per_token,
          .expert_intermediate = config.experts == 0 ? 0 : config.intermediate_size};
}

int64_t RecordingBytes(const ModelConfig& config, int32_t recorded_steps) {
  return recorded_steps * (config.layers * kLaunchesOfLayer + kLaunchesOfStep) * kBytesOfRecordedLaunch;
}

int32_t RecordedStepsThatFit(const ModelConfig& config, int32_t steps, int64_t max_bytes,
                             int64_t left_bytes) {
  const int64_t bytes = max_bytes > 0 ? max_bytes : std::max<int64_t>(left_bytes, 0) / kRecordingShare;
  return static_cast<int32_t>(std::min<int64_t>(steps, bytes / RecordingBytes(config, 1)));
}

StatusOr<MemoryPlan> PlanMemory(const OpenedModel& model, const Backend& backend, const PlanLimits& limits,
                                int64_t memory_bytes) {
  const ModelConfig& config = model.config;
  const KvLayout& layout = model.kv_layout;
  MemoryPlan plan;
  int64_t quantised_numbers = 0;
  TM_RETURN_IF_ERROR(AddWeights(model, backend, plan, quantised_numbers));
  plan.workspace_bytes =
      ActivationBytes(config, backend.info().activation_dtype, limits.max_tokens) +
      int64_t{limits.max_logit_rows} * config.vocab_size * static_cast<int64_t>(sizeof(float)) +
      limits.step_buffer_bytes +
      backend.WorkspaceBytes(MaximaOf(config, layout.format, limits, quantised_numbers));
  plan.recorded_steps = RecordedStepsThatFit(config, limits.recorded_steps, limits.max_recording_bytes,
                                             memory_bytes - plan.weight_bytes - plan.workspace_bytes);
  plan.unrecorded_steps = limits.recorded_steps - plan.recorded_steps;
  plan.recording_bytes = RecordingBytes(config, plan.recorded_steps);
  plan.page_bytes = layout.page_bytes();

  const auto groups = static_cast<int64_t>(layout.groups.size());
  const int64_t fixed = plan.weight_bytes + plan.workspace_bytes + plan.recording_bytes;
  const int64_t least = fixed + groups * plan.page_bytes;
  if (memory_bytes < least) {
    return ResourceExhausted(
        "memory of " + std::to_string(memory_bytes) + " bytes is too little: weights take " +
        std::to_string(plan.weight_bytes) + ", the workspace " + std::to_string(plan.workspace_bytes) +
        (plan.recording_bytes > 0 ? ", recorded steps " + std::to_string(plan.recording_bytes) : "") +
        " and one page for each of " + std::to_string(groups) + " layer groups " +
        std::to_string(groups * plan.page_bytes) + ": at least " + std::to_string(least) + " are needed");
  }
  plan.kv_budget_bytes = memory_bytes - fixed;
  plan.pool_pages = std::min<int64_t>(plan.kv_budget_bytes / plan.page_bytes, INT32_MAX);
  plan.pool_tokens =
      std::min(config.context, ContextThatFits(layout, plan.pool_pages, limits.max_step_tokens));
  plan.sequences_at_context =
      plan.pool_pages / layout.PagesForSequence(config.context, LeastChunk(layout, limits.max_step_tokens));
  return plan;
}

}  // namespace tramontane

#include "server/watch/metrics.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

#include "server/watch/metrics_page.h"

namespace tramontane {
namespace {

// What vLLM calls it.
const char* FinishedReason(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
    case FinishReason::kStopSequence:
      return "stop";
    case FinishReason::kLength:
    case FinishReason::kTimeLimit:
      return "length";
    case FinishReason::kCancelled:
      return "abort";
    case FinishReason::kError:
      return "error";
  }
  return "error";
}

void AddRequests(const EngineLoad& load, const OutputMetrics& output, MetricsPage* page) {
  page->Set("vllm:num_requests_running", load.running);
  page->Set("vllm:num_preemptions_total", load.preemptions);
  page->Set("vllm:prompt_tokens_total", load.prefix_queries);
  page->Set("vllm:prompt_tokens_by_source_total", load.prefix_queries - load.prefix_hits, {"local_compute"});
  page->Set("vllm:prompt_tokens_by_source_total", load.prefix_hits, {"local_cache_hit"});
  page->Set("vllm:prompt_tokens_by_source_total", int64_t{0}, {"external_kv_transfer"});
  page->Set("vllm:prompt_tokens_cached_total", load.prefix_hits);
  page->Set("vllm:prompt_tokens_recomputed_total", load.recomputed_tokens);
  page->Set("vllm:prefix_cache_queries_total", load.prefix_queries);
  page->Set("vllm:prefix_cache_hits_total", load.prefix_hits);
  page->Set("vllm:generation_tokens_total", output.tokens());
  for (const std::string_view name : {"stop", "length", "abort", "error"}) {
    int64_t count = 0;
    for (size_t i = 0; i < kFinishReasons; ++i) {
      const auto reason = static_cast<FinishReason>(i);
      if (FinishedReason(reason) == name) count += output.finished_choices(reason);
    }
    page->Set("vllm:request_success_total", count, {name});
  }
  constexpr std::array<std::string_view, 3> kStates = {"waiting", "prefill", "decode"};
  for (size_t i = 0; i < kStates.size(); ++i)
    page->Set("tramontane_cancelled_total", load.cancelled_in_state[i], {kStates[i]});
  for (const ContextPolicyType type :
       {ContextPolicyType::kSinks, ContextPolicyType::kShift, ContextPolicyType::kReevaluate}) {
    page->Set("tramontane_discarded_tokens_total", load.discarded_tokens[static_cast<size_t>(type)],
              {ContextPolicyName(type)});
  }
}

void AddLatencies(const OutputMetrics& output, MetricsPage* page) {
  page->Set("vllm:time_to_first_token_seconds", output.time_to_first_token());
  page->Set("vllm:inter_token_latency_seconds", output.inter_token_latency());
  const OutputMetrics::ChoiceTimes& times = output.times();
  page->Set("vllm:request_time_per_output_token_seconds", times.per_output_token);
  page->Set("vllm:e2e_request_latency_seconds", times.e2e);
  page->Set("vllm:request_queue_time_seconds", times.queue);
  page->Set("vllm:request_prefill_time_seconds", times.prefill);
  page->Set("vllm:request_decode_time_seconds", times.decode);
  page->Set("vllm:request_inference_time_seconds", times.inference);
  const OutputMetrics::Lengths& lengths = output.lengths();
  page->Set("vllm:request_prompt_tokens", lengths.prompt);
  page->Set("vllm:request_prefill_kv_computed_tokens", lengths.prompt_computed);
  page->Set("vllm:request_params_n", lengths.n);
  page->Set("vllm:request_params_max_tokens", lengths.max_tokens);
  page->Set("vllm:request_max_num_generation_tokens", lengths.max_generation);
  page->Set("vllm:request_generation_tokens", lengths.generation);
  for (size_t length = 0; length < kPromptLengths.size(); ++length) {
    for (size_t stage = 0; stage < OutputMetrics::kStages; ++stage) {
      page->Set("tramontane_ttft_stage_seconds", output.stage(stage, length),
                {TtftStages::Names()[stage], kPromptLengths[length]});
    }
  }
}

// "full", "window-4096"; with a number where several groups have the same window: "window-4096-1".
std::vector<std::string> GroupNames(const KvLayout& layout) {
  std::vector<std::string> names;
  for (size_t group = 0; group < layout.groups.size(); ++group) {
    const int32_t window = layout.groups[group].window;
    const auto same = [window](const KvGroupSpec& spec) { return spec.window == window; };
    std::string name = window == 0 ? "full" : "window-" + std::to_string(window);
    if (std::count_if(layout.groups.begin(), layout.groups.end(), same) > 1) {
      const auto end = layout.groups.begin() + static_cast<std::ptrdiff_t>(group);
      name += "-" + std::to_string(std::count_if(layout.groups.begin(), end, same));
    }
    names.push_back(std::move(name));
  }
  return names;
}

void AddPages(const Engine& engine, const EngineLoad& load, MetricsPage* page) {
  page->Set("vllm:kv_cache_usage_perc", static_cast<double>(load.held_pages) /
                                            static_cast<double>(std::max<int64_t>(1, load.total_pages)));
  page->Set("vllm:cache_config_info", int64_t{1},
            {std::to_string(engine.limits().page_size), std::to_string(load.total_pages),
             engine.limits().prefix_cache ? "True" : "False"});
  page->Set("tramontane_kv_pages", load.free_pages, {"any", "free"});
  const std::vector<std::string> names = GroupNames(engine.kv_layout());
  for (size_t group = 0; group < names.size(); ++group) {
    page->Set("tramontane_kv_pages", load.held_pages_of_group[group], {names[group], "held"});
    page->Set("tramontane_kv_pages", load.cached_pages_of_group[group], {names[group], "cached"});
  }
  page->Set("tramontane_kv_tier_bytes", load.host_kv_bytes, {"host"});
  page->Set("tramontane_kv_tier_bytes", load.disk_kv_bytes, {"disk"});
}

void AddSteps(const EngineLoad& load, const StepMetrics& steps, MetricsPage* page) {
  const std::array<int64_t, StepMetrics::kLanes.size()> counts = {load.prefill_steps, load.decode_steps};
  for (size_t lane = 0; lane < counts.size(); ++lane) {
    page->Set("tramontane_steps_total", counts[lane], {StepMetrics::kLanes[lane]});
    page->Set("tramontane_step_seconds", steps.seconds(lane), {StepMetrics::kLanes[lane]});
    page->Set("tramontane_step_tokens", steps.tokens(lane), {StepMetrics::kLanes[lane]});
  }
  page->Set("vllm:iteration_tokens_total", steps.all_tokens());
  page->Set("tramontane_failed_rows_total", load.failed_rows);
  page->Set("vllm:engine_sleep_state", int64_t{1}, {"awake"});
  page->Set("vllm:engine_sleep_state", int64_t{0}, {"weights_offloaded"});
  page->Set("vllm:engine_sleep_state", int64_t{0}, {"discard_all"});
}

void AddLegacyNames(const EngineLoad& load, MetricsPage* page) {
  page->Set("vllm:gpu_cache_usage_perc", static_cast<double>(load.held_pages) /
                                             static_cast<double>(std::max<int64_t>(1, load.total_pages)));
  page->Set("vllm:gpu_prefix_cache_queries_total", load.prefix_queries);
  page->Set("vllm:gpu_prefix_cache_hits_total", load.prefix_hits);
}

}  // namespace

std::string ServerMetricsText(ServerMetrics metrics) {
  const ServedModel* model = metrics.model;
  MetricsPage page(model == nullptr ? "" : model->names[0], model == nullptr ? "" : "0");
  if (model != nullptr) {
    const Engine& engine = *model->engine;
    const EngineLoad load = engine.Load();
    page.Set("vllm:num_requests_waiting", load.waiting + metrics.waiting_at_doors);
    AddRequests(load, engine.output_metrics(), &page);
    AddLatencies(engine.output_metrics(), &page);
    AddPages(engine, load, &page);
    AddSteps(load, engine.step_metrics(), &page);
    if (metrics.legacy_names) AddLegacyNames(load, &page);
    metrics.process.held.queued_requests = load.waiting_bytes;
    metrics.process.held.unread_output = load.unread_bytes;
  }
  if (metrics.requests != nullptr) {
    metrics.requests->AddTo(&page);
    if (model != nullptr) metrics.requests->AddStagesTo(TtftStage::kHold, &page);
  }
  AddProcess(metrics.process, &page);
  return page.Text();
}

}  // namespace tramontane

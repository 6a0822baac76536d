#include "server/watch/metrics.h"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>

#include "server/watch/metrics_page.h"

namespace tramontane {
namespace {

using MetricType = MetricsPage::Type;

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

void AddRequests(const Engine& engine, const EngineLoad& load, int64_t waiting_at_doors, MetricsPage* page) {
  page->Family(MetricType::Gauge, "vllm:num_requests_running", "Choices in prefill or decode.");
  page->Value(load.running);
  page->Family(MetricType::Gauge, "vllm:num_requests_waiting", "Requests accepted and not yet running.");
  page->Value(load.waiting + waiting_at_doors);
  page->Family(MetricType::Counter, "vllm:num_preemptions_total", "Choices set aside to be computed again.");
  page->Value(load.preemptions);
  page->Family(MetricType::Counter, "vllm:prompt_tokens_total",
               "Prompt tokens computed; after a preemption again.");
  page->Value(load.prompt_tokens);
  page->Family(MetricType::Counter, "vllm:prefix_cache_queries_total",
               "Prompt tokens of choices that have started: what the prefix cache was asked for.");
  page->Value(load.prefix_queries);
  page->Family(MetricType::Counter, "vllm:prefix_cache_hits_total",
               "Of those, tokens that were found and not computed.");
  page->Value(load.prefix_hits);
  page->Family(MetricType::Counter, "tramontane_discarded_tokens_total",
               "Tokens out of sight at the end of choices under a context policy, by its type.");
  for (const ContextPolicyType type :
       {ContextPolicyType::kSinks, ContextPolicyType::kShift, ContextPolicyType::kReevaluate}) {
    page->Value(load.discarded_tokens[static_cast<size_t>(type)], {{"type", ContextPolicyName(type)}});
  }
  page->Family(MetricType::Counter, "vllm:generation_tokens_total", "Tokens generated.");
  page->Value(load.output_tokens);

  page->Family(MetricType::Counter, "vllm:request_success_total", "Choices that ended, by how.");
  const OutputMetrics& metrics = engine.output_metrics();
  for (const char* name : {"stop", "length", "abort", "error"}) {
    int64_t count = 0;
    for (size_t i = 0; i < kFinishReasons; ++i) {
      const auto reason = static_cast<FinishReason>(i);
      if (std::string_view(FinishedReason(reason)) == name) count += metrics.finished_choices(reason);
    }
    page->Value(count, {{"finished_reason", name}});
  }
  page->Family(MetricType::Histogram, "vllm:time_to_first_token_seconds",
               "From a request's receipt to the first token of each of its choices.");
  page->Histogram(metrics.time_to_first_token());
  page->Family(MetricType::Histogram, "vllm:inter_token_latency_seconds",
               "From one token of a choice to its next.");
  page->Histogram(metrics.inter_token_latency());
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
  page->Family(MetricType::Gauge, "vllm:kv_cache_usage_perc", "Share of the KV pages that are held, 0 to 1.");
  page->Value(static_cast<double>(load.held_pages) /
              static_cast<double>(std::max<int64_t>(1, load.total_pages)));

  page->Family(MetricType::Gauge, "tramontane_kv_pages",
               "KV pages by the group of layers that share them; free ones belong to none: group any.");
  page->Value(load.free_pages, {{"group", "any"}, {"state", "free"}});
  const std::vector<std::string> names = GroupNames(engine.kv_layout());
  for (size_t group = 0; group < names.size(); ++group) {
    page->Value(load.held_pages_of_group[group], {{"group", names[group]}, {"state", "held"}});
    page->Value(load.cached_pages_of_group[group], {{"group", names[group]}, {"state", "cached"}});
  }

  page->Family(MetricType::Gauge, "tramontane_kv_tier_bytes",
               "Images of KV pages that the pool has evicted, by where they are.");
  page->Value(load.host_kv_bytes, {{"tier", "host"}});
  page->Value(load.disk_kv_bytes, {{"tier", "disk"}});
}

void AddSteps(const EngineLoad& load, MetricsPage* page) {
  page->Family(MetricType::Counter, "tramontane_steps_total", "Steps of the engine.");
  page->Value(load.prefill_steps, {{"lane", "prefill"}});
  page->Value(load.decode_steps, {{"lane", "decode"}});
  page->Family(MetricType::Counter, "tramontane_failed_rows_total", "Rows whose logits were not finite.");
  page->Value(load.failed_rows);
}

}  // namespace

std::string ServerMetricsText(const ServedModel& model, const ProcessCounts& process,
                              int64_t waiting_at_doors) {
  MetricsPage page({{"model_name", model.names[0]}});
  const EngineLoad load = model.engine->Load();
  AddRequests(*model.engine, load, waiting_at_doors, &page);
  AddPages(*model.engine, load, &page);
  AddSteps(load, &page);
  AddProcess(process, &page);
  return page.Text();
}

}  // namespace tramontane

#include "server/watch/metric_families.h"

#include <unordered_map>

#include "engine/output/output_metrics.h"
#include "engine/step_metrics.h"
#include "kernels/core/check.h"
#include "server/call/request_end.h"
#include "server/watch/ttft_stages.h"

namespace tramontane {
namespace {

using Values = std::vector<std::string_view>;

template <typename Names>
Values ValuesOf(const Names& names) {
  return Values(names.begin(), names.end());
}

std::vector<MetricFamily> MakeFamilies() {
  using enum MetricKind;
  using F = MetricFamily;
  const Values lanes = ValuesOf(StepMetrics::kLanes);
  return {
      // ---- the engine, under the names that dashboards and routers made for vLLM read
      {"vllm:num_requests_running", kGauge, F::kServer, true, "Choices in prefill or decode."},
      {"vllm:num_requests_waiting", kGauge, F::kServer, true,
       "Requests accepted and not yet running: in the engine's queue, waiting for a worker or with one, "
       "and prompts of completions that wait for room."},
      {"vllm:kv_cache_usage_perc", kGauge, F::kServer, true, "Share of the KV pages that are held, 0 to 1."},
      {"vllm:gpu_cache_usage_perc", kGauge, F::kLegacy, true, "The old name of vllm:kv_cache_usage_perc."},
      {"vllm:cache_config_info",
       kGauge,
       F::kServer,
       true,
       "1. The labels say how many tokens a KV page has and how many pages there are.",
       {{"block_size"}, {"num_gpu_blocks"}, {"enable_prefix_caching", {"True", "False"}}}},
      {"vllm:engine_sleep_state",
       kGauge,
       F::kServer,
       true,
       "1 of awake: this engine never sleeps.",
       {{"sleep_state", {"awake", "weights_offloaded", "discard_all"}}}},
      {"vllm:num_preemptions_total", kCounter, F::kServer, true,
       "Choices set aside until there are pages for them again."},
      {"vllm:prompt_tokens_total", kCounter, F::kServer, true,
       "Tokens of prompts that have started, each prompt once, cached or not."},
      {"vllm:prompt_tokens_by_source_total",
       kCounter,
       F::kServer,
       true,
       "The same, by where their keys and values came from; none come from elsewhere.",
       {{"source", {"local_compute", "local_cache_hit", "external_kv_transfer"}}}},
      {"vllm:prompt_tokens_cached_total", kCounter, F::kServer, true,
       "Of them, tokens that were found in the prefix cache and not computed."},
      {"vllm:prompt_tokens_recomputed_total", kCounter, F::kServer, true,
       "Tokens that prefill steps computed once more: after a preemption, or a context policy's discard."},
      {"vllm:prefix_cache_queries_total", kCounter, F::kServer, true,
       "Prompt tokens that the prefix cache was asked for."},
      {"vllm:gpu_prefix_cache_queries_total", kCounter, F::kLegacy, true,
       "The old name of vllm:prefix_cache_queries_total."},
      {"vllm:prefix_cache_hits_total", kCounter, F::kServer, true,
       "Of those, tokens that were found and not computed."},
      {"vllm:gpu_prefix_cache_hits_total", kCounter, F::kLegacy, true,
       "The old name of vllm:prefix_cache_hits_total."},
      {"vllm:generation_tokens_total", kCounter, F::kServer, true, "Tokens generated and delivered."},
      {"vllm:request_success_total",
       kCounter,
       F::kServer,
       true,
       "Choices that ended: by the model or a stop sequence, by their length or time, cancelled, by an "
       "error.",
       {{"finished_reason", {"stop", "length", "abort", "error"}}}},
      {"vllm:iteration_tokens_total", kHistogram, F::kServer, true, "Tokens of a step."},
      {"vllm:time_to_first_token_seconds", kHistogram, F::kServer, true,
       "From a request's first byte to the first token of each of its choices."},
      {"vllm:inter_token_latency_seconds", kHistogram, F::kServer, true,
       "From one token of a choice to its next."},
      {"vllm:request_time_per_output_token_seconds", kHistogram, F::kServer, true,
       "Of choices that ended with stop or length and have two tokens: the mean of that."},
      {"vllm:e2e_request_latency_seconds", kHistogram, F::kServer, true,
       "Of choices that ended with stop or length: from the request's first byte to their end."},
      {"vllm:request_queue_time_seconds", kHistogram, F::kServer, true,
       "Of the same: from token ids to the first prefill step."},
      {"vllm:request_prefill_time_seconds", kHistogram, F::kServer, true,
       "Of the same: from the first prefill step to the first token."},
      {"vllm:request_decode_time_seconds", kHistogram, F::kServer, true,
       "Of the same: from the first token to the last."},
      {"vllm:request_inference_time_seconds", kHistogram, F::kServer, true,
       "Of the same: from the first prefill step to the last token."},
      {"vllm:request_prompt_tokens", kHistogram, F::kServer, true,
       "Of requests whose last choice ended with stop or length: tokens of the prompt."},
      {"vllm:request_prefill_kv_computed_tokens", kHistogram, F::kServer, true,
       "Of the same: those that were not found in the prefix cache."},
      {"vllm:request_params_n", kHistogram, F::kServer, true, "Of the same: n."},
      {"vllm:request_params_max_tokens", kHistogram, F::kServer, true,
       "Of the same: max_tokens, where it is given."},
      {"vllm:request_max_num_generation_tokens", kHistogram, F::kServer, true,
       "Of the same: tokens of the longest choice."},
      {"vllm:request_generation_tokens", kHistogram, F::kServer, true,
       "Tokens of choices that ended with stop or length."},
      // ---- the engine, beyond that
      {"tramontane_ttft_stage_seconds",
       kHistogram,
       F::kBoth,
       true,
       "Where the time to the first token of a request's first choice went (docs/ttft.md), by the tokens "
       "of its prompt. The stages up to sample sum to its vllm:time_to_first_token_seconds; hold and "
       "deliver come after.",
       {{"stage", ValuesOf(TtftStages::Names())}, {"prompt", ValuesOf(kPromptLengths)}}},
      {"tramontane_steps_total", kCounter, F::kServer, true, "Steps of the engine.", {{"lane", lanes}}},
      {"tramontane_step_seconds",
       kHistogram,
       F::kServer,
       true,
       "How long a step took, from its plan, or the end of the step before it, to its results.",
       {{"lane", lanes}}},
      {"tramontane_step_tokens", kHistogram, F::kServer, true, "Tokens of a step.", {{"lane", lanes}}},
      {"tramontane_cancelled_total",
       kCounter,
       F::kServer,
       true,
       "Requests that the engine ended because they were cancelled, by what their first choice did.",
       {{"state", {"waiting", "prefill", "decode"}}}},
      {"tramontane_discarded_tokens_total",
       kCounter,
       F::kServer,
       true,
       "Tokens out of sight at the end of choices under a context policy.",
       {{"type", {"sinks", "shift", "reevaluate"}}}},
      {"tramontane_failed_rows_total", kCounter, F::kServer, true, "Rows whose logits were not finite."},
      {"tramontane_kv_pages",
       kGauge,
       F::kServer,
       true,
       "KV pages by the group of layers that share them: full, or window-N, with a number where there are "
       "several. Held by a live request, or cached for later prompts and free to be taken; free ones "
       "belong to none: group any.",
       {{"group"}, {"state"}}},
      {"tramontane_kv_tier_bytes",
       kGauge,
       F::kServer,
       true,
       "Images of KV pages that the pool has evicted, by where they are; one may be in both.",
       {{"tier", {"host", "disk"}}}},
      // ---- requests, as their clients see them
      {"tramontane_requests_total",
       kCounter,
       F::kBoth,
       false,
       "Requests that generate or score, by the name of their key and how they ended.",
       {{"key"}, {"outcome", ValuesOf(kRequestOutcomes)}}},
      {"tramontane_key_tokens_total",
       kCounter,
       F::kBoth,
       false,
       "Tokens of prompts that have started, and tokens delivered, by the name of the key.",
       {{"key"}, {"kind", {"prompt", "generation"}}}},
      {"tramontane_refused_total",
       kCounter,
       F::kBoth,
       false,
       "Requests that were refused, by why: the code of a 429, or a word for the others.",
       {{"reason", ValuesOf(kRefusalReasons)}}},
      {"http_requests_total",
       kCounter,
       F::kBoth,
       false,
       "Answers over HTTP that have begun, by the pattern of their path; none: the path is nobody's.",
       {{"handler"}, {"method"}, {"status"}}},
      {"http_request_duration_seconds",
       kHistogram,
       F::kBoth,
       false,
       "From the first byte of a request to the last of its answer, where its path is somebody's.",
       {{"handler"}}},
      // ---- the process
      {"tramontane_connections",
       kGauge,
       F::kBoth,
       false,
       "Connections that are open.",
       {{"door", {"grpc", "http", "admin"}}}},
      {"tramontane_held_bytes",
       kGauge,
       F::kBoth,
       false,
       "Memory that clients make it hold: bodies not yet parsed, input that waits for a worker, requests "
       "that wait in the engine's queue, output that no door has taken, answers that no client has taken, "
       "sessions.",
       {{"what",
         {"request_bodies", "queued_input", "queued_requests", "unread_output", "unread_answers",
          "sessions"}}}},
      {"tramontane_draining", kGauge, F::kBoth, false,
       "1 from the moment at which new requests are refused."},
      {"tramontane_reload_total",
       kCounter,
       F::kBoth,
       false,
       "Files that had changed, by whether their new content is in force.",
       {{"what", {"tls", "keys"}}, {"outcome", {"ok", "failed"}}}},
      {"tramontane_dropped_log_lines_total", kCounter, F::kBoth, false,
       "Log lines that standard error did not take in time."},
      {"tramontane_build_info", kGauge, F::kBoth, false, "1. The label says which build.", {{"version"}}},
      {"process_cpu_seconds_total", kCounter, F::kBoth, false, "Time on CPUs, of user and system."},
      {"process_resident_memory_bytes", kGauge, F::kBoth, false, "Resident memory."},
      {"process_virtual_memory_bytes", kGauge, F::kBoth, false, "Virtual memory."},
      {"process_open_fds", kGauge, F::kBoth, false, "Open files and sockets."},
      {"process_max_fds", kGauge, F::kBoth, false, "Most of them that there may be."},
      {"process_threads", kGauge, F::kBoth, false, "Threads."},
      {"process_start_time_seconds", kGauge, F::kBoth, false, "When it began, since 1970."},
      // ---- the gateway's servers
      {"tramontane_backend_up", kGauge, F::kGateway, false, "1: connected and serving.", {{"backend"}}},
      {"tramontane_backend_open_calls",
       kGauge,
       F::kGateway,
       false,
       "Generate calls of this gateway.",
       {{"backend"}}},
      {"tramontane_backend_others_calls",
       kGauge,
       F::kGateway,
       false,
       "Generate calls of others, when last asked.",
       {{"backend"}}},
      {"tramontane_backend_started_calls_total",
       kCounter,
       F::kGateway,
       false,
       "Generate calls of this gateway so far.",
       {{"backend"}}},
      {"tramontane_backend_lost_calls_total",
       kCounter,
       F::kGateway,
       false,
       "Generate calls that ended because the server went away or took none.",
       {{"backend"}}},
      {"tramontane_gateway_unsent_prompts", kGauge, F::kGateway, false,
       "Prompts of completions that wait for room at a server: the servers do not know of them."},
  };
}

}  // namespace

std::string_view MetricKindName(MetricKind kind) {
  switch (kind) {
    case MetricKind::kCounter:
      return "counter";
    case MetricKind::kGauge:
      return "gauge";
    case MetricKind::kHistogram:
      break;
  }
  return "histogram";
}

const std::vector<MetricFamily>& MetricFamilies() {
  static const auto* families = new std::vector<MetricFamily>(MakeFamilies());
  return *families;
}

size_t MetricFamilyIndex(std::string_view name) {
  static const auto* indices = [] {
    auto* map = new std::unordered_map<std::string_view, size_t>;
    for (const MetricFamily& family : MetricFamilies()) map->emplace(family.name, map->size());
    return map;
  }();
  const auto found = indices->find(name);
  TM_CHECK(found != indices->end(), "no family is called %s", std::string(name).c_str());
  return found->second;
}

std::string MetricDocRow(const MetricFamily& family) {
  std::string labels;
  std::string values;
  for (const MetricLabel& label : family.labels) {
    labels.append(labels.empty() ? "" : ",").append(label.name);
    if (label.values.empty()) continue;
    values.append(" `").append(label.name).append("`:");
    for (const std::string_view value : label.values) {
      values.append(value == label.values.front() ? " `" : ", `").append(value).append("`");
    }
    values.append(".");
  }
  return "| `" + std::string(family.name) + (labels.empty() ? "" : "{" + labels + "}") + "` | " +
         std::string(MetricKindName(family.kind)) + " | " + std::string(family.help) + values + " |";
}

}  // namespace tramontane

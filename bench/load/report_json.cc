#include <cmath>
#include <nlohmann/json.hpp>

#include "bench/load/report.h"
#include "bench/load/statistics.h"

namespace tramontane::load {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Of a number that may not be there; JSON has no infinity.
OrderedJson NumberOrNull(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? OrderedJson(*value) : OrderedJson(nullptr);
}

void PutMetric(const MetricSummary& summary, const std::string& name, OrderedJson* json,
               OrderedJson* intervals, OrderedJson* few) {
  const auto key = [&](const std::string& statistic) { return statistic + "_" + name + "_ms"; };
  (*json)[key("mean")] = NumberOrNull(summary.mean);
  (*json)[key("median")] = NumberOrNull(summary.median);
  (*json)[key("std")] = NumberOrNull(summary.deviation);
  for (const auto& [p, censored] : summary.censored_percentiles) {
    const auto at = summary.percentiles.find(p);
    (*json)[key(PercentileName(p))] =
        at == summary.percentiles.end() ? OrderedJson(nullptr) : OrderedJson(at->second);
    (*json)["censored_" + key(PercentileName(p))] = NumberOrNull(censored);
  }
  for (const auto& [statistic, interval] : summary.intervals) {
    (*intervals)[key(statistic)] = {interval.low, interval.high};
  }
  for (const double p : summary.few_samples) few->push_back(key(PercentileName(p)));
}

// Counts, rates and latencies: the keys that a run and a class of it both have.
void PutSummary(const Summary& summary, OrderedJson* json) {
  (*json)["duration"] = summary.duration_s;
  (*json)["completed"] = summary.completed;
  (*json)["completed_without_content"] = summary.without_content;
  (*json)["failed"] = summary.failed;
  (*json)["total_input_tokens"] = summary.input_tokens;
  (*json)["total_output_tokens"] = summary.output_tokens;
  (*json)["request_throughput"] = summary.request_rate;
  (*json)["request_goodput"] = NumberOrNull(summary.goodput);
  (*json)["output_throughput"] = summary.output_token_rate;
  (*json)["total_token_throughput"] = summary.total_token_rate;
  (*json)["max_output_tokens_per_s"] = summary.most_output_tokens_in_a_second;
  (*json)["max_concurrent_requests"] = summary.most_in_flight;
  OrderedJson intervals = OrderedJson::object(), few = OrderedJson::array();
  for (const Metric metric : kMetrics) {
    PutMetric(summary.Of(metric), std::string(MetricName(metric)), json, &intervals, &few);
  }
  (*json)["ci95"] = std::move(intervals);
  (*json)["few_samples"] = std::move(few);
  (*json)["failures"] = summary.failures;
  if (summary.completed > 0) (*json)["failures"]["ok"] = summary.completed;
  (*json)["output_tokens_from"] = summary.output_tokens_from;
  (*json)["client_lag_p99_ms"] = NumberOrNull(summary.client_lag_p99_ms);
  (*json)["reconnects"] = summary.reconnects;
  (*json)["steady"] = summary.steady;
}

// vLLM's lists with --save-detailed, in seconds. Texts are not kept.
void PutDetails(const RunResult& result, OrderedJson* json) {
  OrderedJson inputs = OrderedJson::array(), outputs = OrderedJson::array(), ttfts = OrderedJson::array(),
              itls = OrderedJson::array(), starts = OrderedJson::array(), texts = OrderedJson::array(),
              errors = OrderedJson::array();
  for (const RequestRecord& record : result.records) {
    const Latencies latencies = LatenciesOf(record);
    inputs.push_back(record.input_tokens);
    outputs.push_back(record.output_tokens);
    ttfts.push_back(latencies.ttft ? OrderedJson(*latencies.ttft / 1000) : OrderedJson(nullptr));
    OrderedJson gaps = OrderedJson::array();
    for (const double gap : latencies.itl) gaps.push_back(gap / 1000);
    itls.push_back(std::move(gaps));
    starts.push_back(static_cast<double>(record.sent_ns) * 1e-9);
    texts.push_back("");
    errors.push_back(record.error);
  }
  (*json)["input_lens"] = std::move(inputs);
  (*json)["output_lens"] = std::move(outputs);
  (*json)["ttfts"] = std::move(ttfts);
  (*json)["itls"] = std::move(itls);
  (*json)["start_times"] = std::move(starts);
  (*json)["generated_texts"] = std::move(texts);
  (*json)["errors"] = std::move(errors);
}

OrderedJson VerdictsJson(const std::vector<SloVerdict>& verdicts) {
  OrderedJson list = OrderedJson::array();
  for (const SloVerdict& verdict : verdicts) {
    list.push_back(
        {{"clause", verdict.text}, {"measured", NumberOrNull(verdict.measured)}, {"holds", verdict.holds}});
  }
  return list;
}

void PutRun(const ReportedRun& reported, const BenchOptions& options, OrderedJson* json) {
  const MeasuredRun& run = reported.run;
  const double rate = reported.rate.value_or(run.offered_rate);
  (*json)["num_prompts"] = run.planned;
  (*json)["request_rate"] = std::isfinite(rate) ? OrderedJson(rate) : OrderedJson("inf");
  (*json)["burstiness"] = options.arrivals ? OrderedJson(options.arrivals->burstiness) : OrderedJson(nullptr);
  (*json)["max_concurrency"] =
      options.concurrency > 0 ? OrderedJson(options.concurrency) : OrderedJson(nullptr);
  PutSummary(run.summary, json);
  const double seconds = static_cast<double>(run.result.end_ns - run.result.start_ns) * 1e-9;
  const bool has_client = !options.target.simulated;
  const double client_cpu = seconds > 0 ? static_cast<double>(run.result.cpu_ns) * 1e-9 / seconds : 0.0;
  (*json)["client_cpu"] = has_client ? OrderedJson(client_cpu) : OrderedJson(nullptr);
  (*json)["client_busiest_thread"] =
      has_client ? OrderedJson(run.result.busiest_thread_share) : OrderedJson(nullptr);
  (*json)["client_bound"] = run.client_bound;
  (*json)["left_out"] = run.left_out;
  (*json)["prompt_mismatches"] = run.prompt_mismatches;
  (*json)["stopped"] = run.result.stopped;
  for (const auto& [name, count] : run.target_counts) (*json)["target_counts"][name] = count;
  if (!options.slo.empty()) {
    (*json)["slo"] = VerdictsJson(reported.verdicts);
    (*json)["slo_met"] = Holds(reported.verdicts);
  }
  if (!run.classes.empty()) {
    OrderedJson classes = OrderedJson::object();
    for (const auto& [name, summary] : run.classes) PutSummary(summary, &classes[name]);
    (*json)["classes"] = std::move(classes);
  }
  PutDetails(run.result, json);
}

OrderedJson FoundJson(const FoundRate& found) {
  OrderedJson probes = OrderedJson::array();
  for (const Probe& probe : found.probes) {
    probes.push_back({{"rate", probe.rate},
                      {"confirmation", probe.is_confirmation},
                      {"holds", probe.holds},
                      {"steady", probe.steady},
                      {"slo", VerdictsJson(probe.verdicts)}});
  }
  OrderedJson json = {{"rate", NumberOrNull(found.rate)}, {"probes", std::move(probes)}};
  if (!found.why.empty()) json["why"] = found.why;
  return json;
}

OrderedJson ComparisonJson(const Comparison& comparison, const BenchOptions& options) {
  OrderedJson ratios = OrderedJson::object();
  for (const ComparedStatistic& row : comparison.statistics) {
    ratios[row.name] = {{"a", row.first},
                        {"b", row.second},
                        {"ratio", row.ratio},
                        {"ci95", {row.interval.low, row.interval.high}}};
  }
  return {{"a", options.target.url},
          {"b", options.ab_url},
          {"order", comparison.order},
          {"stopped", comparison.stopped},
          {"completed", {comparison.completed[0], comparison.completed[1]}},
          {"failed", {comparison.failed[0], comparison.failed[1]}},
          {"ratios", std::move(ratios)}};
}

std::string Backend(const BenchOptions& options) {
  if (options.target.simulated) return "simulated";
  const bool grpc = options.target.url.starts_with("grpc");
  if (grpc) return "tramontane-grpc";
  return options.target.endpoint == Endpoint::kChat ? "openai-chat" : "openai";
}

}  // namespace

std::string JsonReport(const BenchReport& report) {
  const BenchOptions& options = report.options;
  OrderedJson json;
  json["date"] = report.date.empty() ? OrderedJson(nullptr) : OrderedJson(report.date);
  json["endpoint_type"] = Backend(options);
  json["backend"] = Backend(options);
  json["label"] = nullptr;
  json["model_id"] = options.target.model;
  json["tokenizer_id"] = options.tokenizer_path.empty() ? options.target.model : options.tokenizer_path;
  json["target"] = options.target.url;
  for (const auto& [name, value] : options.target.about) json["about"][name] = value;
  json["seed"] = options.seed;
  json["nonce"] = options.nonce;
  json["command_line"] = options.command_line;
  if (!report.runs.empty()) PutRun(report.runs.back(), options, &json);
  if (report.runs.size() > 1) {
    for (const ReportedRun& run : report.runs) {
      OrderedJson one;
      PutRun(run, options, &one);
      json["runs"].push_back(std::move(one));
    }
  }
  if (report.found) json["find_rate"] = FoundJson(*report.found);
  if (report.comparison) json["ab"] = ComparisonJson(*report.comparison, options);
  return json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

}  // namespace tramontane::load

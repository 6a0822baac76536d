#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ostream>

#include "bench/load/explain.h"
#include "bench/load/parse.h"
#include "bench/load/report.h"
#include "bench/load/statistics.h"

namespace tramontane::load {
namespace {

constexpr int kNameWidth = 34;

std::string Fixed(double value) {
  char text[40];
  std::snprintf(text, sizeof(text), "%.2f", value);
  return text;
}

std::string Padded(const std::string& text, size_t width) {
  return text.size() >= width ? text : text + std::string(width - text.size(), ' ');
}

std::string RightAligned(const std::string& text, size_t width) {
  return text.size() >= width ? text : std::string(width - text.size(), ' ') + text;
}

void Row(std::ostream& out, const std::string& name, const std::string& value) {
  out << Padded(name + ":", kNameWidth) << value << '\n';
}

void Row(std::ostream& out, const std::string& name, int64_t value) { Row(out, name, std::to_string(value)); }

// What makes the numbers doubtful.
void WriteDoubts(const MeasuredRun& run, std::ostream& out) {
  if (run.client_bound) {
    out << "CLIENT BOUND: this client may be what was measured: client_lag p99 "
        << Fixed(run.summary.client_lag_p99_ms.value_or(0)) << " ms (1 at most), busiest thread "
        << Fixed(100 * run.result.busiest_thread_share) << " % of a core (80 at most)\n";
  }
  if (!run.summary.steady) {
    out << "NOT STEADY: what is in flight keeps growing: the target does not keep up, and every latency "
           "depends on how long the run was\n";
  }
  if (run.result.stopped) out << "STOPPED before its end\n";
  if (run.prompt_mismatches > 0) {
    out << run.prompt_mismatches << " prompts were of another length by the server's usage than planned\n";
  }
}

void WriteMetric(const MetricSummary& summary, Metric metric, std::ostream& out) {
  const std::string name(MetricName(metric));
  out << "--- " << name << ", ms (" << summary.samples << " samples)\n";
  if (!summary.mean) {
    out << "none\n";
    return;
  }
  const auto line = [&](const std::string& statistic, double value, const std::string& note) {
    std::string text = RightAligned(Fixed(value), 12);
    if (const auto at = summary.intervals.find(statistic); at != summary.intervals.end()) {
      text += "  [" + Fixed(at->second.low) + ", " + Fixed(at->second.high) + "]";
    }
    out << Padded(statistic, 10) << text << note << '\n';
  };
  line("mean", *summary.mean, "");
  line("median", *summary.median, "");
  out << Padded("std", 10) << RightAligned(Fixed(*summary.deviation), 12) << '\n';
  for (const auto& [p, value] : summary.percentiles) {
    if (p == 50) continue;
    const bool few = std::count(summary.few_samples.begin(), summary.few_samples.end(), p) > 0;
    line(PercentileName(p), value, few ? "  few samples" : "");
  }
}

void WriteVerdicts(const std::vector<SloVerdict>& verdicts, std::ostream& out) {
  for (const SloVerdict& verdict : verdicts) {
    const std::string measured = verdict.measured           ? NumberText(*verdict.measured)
                                 : verdict.falls_on_failure ? "none: falls on a failure"
                                                            : "none: no sample";
    Row(out, (verdict.holds ? "met     " : "MISSED  ") + verdict.text, measured);
  }
}

void WriteCounts(const Summary& summary, std::ostream& out) {
  Row(out, "Successful requests", summary.completed);
  if (summary.without_content > 0) Row(out, "  without content", summary.without_content);
  Row(out, "Failed requests", summary.failed);
  for (const auto& [name, count] : summary.failures) Row(out, "  " + name, count);
  Row(out, "Duration (s)", Fixed(summary.duration_s));
  Row(out, "Input tokens", summary.input_tokens);
  Row(out, "Output tokens", summary.output_tokens);
  for (const auto& [from, count] : summary.output_tokens_from) Row(out, "  counted by " + from, count);
  Row(out, "Requests a second", Fixed(summary.request_rate));
  if (summary.goodput) Row(out, "Good requests a second", Fixed(*summary.goodput));
  Row(out, "Output tokens a second", Fixed(summary.output_token_rate));
  Row(out, "Most in flight", summary.most_in_flight);
}

void WriteRun(const ReportedRun& reported, std::ostream& out) {
  const MeasuredRun& run = reported.run;
  if (reported.rate) Row(out, "Rate asked for (requests/s)", NumberText(*reported.rate));
  WriteCounts(run.summary, out);
  if (run.left_out > 0) Row(out, "Left out by --max-context", run.left_out);
  if (run.summary.client_lag_p99_ms) Row(out, "client_lag p99 (ms)", Fixed(*run.summary.client_lag_p99_ms));
  if (run.summary.reconnects > 0) Row(out, "Reconnects", run.summary.reconnects);
  for (const Metric metric : kMetrics) WriteMetric(run.summary.Of(metric), metric, out);
  const auto& censored = run.summary.Of(Metric::kTtft).censored_percentiles;
  if (run.summary.failed > 0 && censored.contains(99)) {
    Row(out, "censored p99 of ttft (ms)", censored.at(99) ? Fixed(*censored.at(99)) : "falls on a failure");
  }
  for (const auto& [name, count] : run.target_counts) Row(out, "Target's " + name, count);
  WriteVerdicts(reported.verdicts, out);
  for (const auto& [name, summary] : run.classes) {
    out << "=== class " << name << '\n';
    WriteCounts(summary, out);
    for (const Metric metric : {Metric::kTtft, Metric::kTpot, Metric::kE2el}) {
      WriteMetric(summary.Of(metric), metric, out);
    }
  }
}

std::string Percent(double p, const MetricSummary& summary) {
  const auto at = summary.percentiles.find(p);
  return at == summary.percentiles.end() ? "-" : Fixed(at->second);
}

void WriteSweep(const BenchReport& report, std::ostream& out) {
  static constexpr const char* kColumns[] = {"rate",     "completed", "failed",   "ttft p50", "ttft p99",
                                             "tpot p99", "itl p99",   "e2el p99", "steady"};
  for (const char* column : kColumns) out << RightAligned(column, 11);
  out << '\n';
  for (const ReportedRun& reported : report.runs) {
    const Summary& summary = reported.run.summary;
    const auto median = summary.Of(Metric::kTtft).median;
    for (const std::string& cell :
         {NumberText(reported.rate.value_or(0)), std::to_string(summary.completed),
          std::to_string(summary.failed), median ? Fixed(*median) : std::string("-"),
          Percent(99, summary.Of(Metric::kTtft)), Percent(99, summary.Of(Metric::kTpot)),
          Percent(99, summary.Of(Metric::kItl)), Percent(99, summary.Of(Metric::kE2el)),
          std::string(summary.steady ? "yes" : "NO")}) {
      out << RightAligned(cell, 11);
    }
    out << (reported.run.client_bound ? "  CLIENT BOUND" : "") << '\n';
  }
}

void WriteFound(const FoundRate& found, std::ostream& out) {
  for (const Probe& probe : found.probes) {
    out << (probe.is_confirmation ? "confirm " : "probe   ") << RightAligned(Fixed(probe.rate), 12)
        << (probe.holds ? "  holds" : "  misses") << (probe.steady ? "" : ", not steady");
    for (const SloVerdict& verdict : probe.verdicts) {
      out << "  " << verdict.text << ": "
          << (verdict.measured           ? Fixed(*verdict.measured)
              : verdict.falls_on_failure ? "failure"
                                         : "no sample");
    }
    out << '\n';
  }
  Row(out, "Highest rate that holds", found.rate ? Fixed(*found.rate) : "none: " + found.why);
}

void WriteComparison(const Comparison& comparison, const BenchOptions& options, std::ostream& out) {
  if (comparison.stopped) out << "STOPPED before its end\n";
  Row(out, "A", options.target.url);
  Row(out, "B", options.ab_url);
  Row(out, "Order of slices", comparison.order);
  Row(out, "Successful of A, of B",
      std::to_string(comparison.completed[0]) + ", " + std::to_string(comparison.completed[1]));
  Row(out, "Failed of A, of B",
      std::to_string(comparison.failed[0]) + ", " + std::to_string(comparison.failed[1]));
  out << Padded("", 24) << RightAligned("A", 12) << RightAligned("B", 12) << RightAligned("B/A", 9) << '\n';
  for (const ComparedStatistic& row : comparison.statistics) {
    out << Padded(row.name, 24) << RightAligned(Fixed(row.first), 12) << RightAligned(Fixed(row.second), 12)
        << RightAligned(Fixed(row.ratio), 9) << "  [" << Fixed(row.interval.low) << ", "
        << Fixed(row.interval.high) << "]\n";
  }
}

}  // namespace

void WriteTable(const BenchReport& report, std::ostream& out) {
  if (report.runs.size() == 1) WriteDoubts(report.runs.back().run, out);
  out << "============ Serving Benchmark Result ============\n";
  for (const auto& [name, value] : report.options.target.about) Row(out, name, value);
  if (report.found) WriteFound(*report.found, out);
  if (report.comparison) WriteComparison(*report.comparison, report.options, out);
  if (report.runs.size() > 1) {
    WriteSweep(report, out);
  } else if (!report.runs.empty()) {
    WriteRun(report.runs.back(), out);
    if (report.options.explain) WriteExplained(Explain(report.runs.back().run.result.records), out);
  }
  Row(out, "Seed, nonce", std::to_string(report.options.seed) + ", " + std::to_string(report.options.nonce));
  out << "==================================================\n";
}

}  // namespace tramontane::load

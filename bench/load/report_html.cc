#include <algorithm>
#include <map>
#include <sstream>

#include "bench/load/report.h"
#include "bench/load/statistics.h"
#include "bench/load/svg_chart.h"

namespace tramontane::load {
namespace {

constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --ground: #fff; --ink: #1b1f24; --faint: #d9dde2; --a: #0b63b5; --b: #b5460b;
  --c: #2b7a3d; }
@media (prefers-color-scheme: dark) { :root { --ground: #14171b; --ink: #e4e8ec; --faint: #343a41; --a: #6cb2f5;
  --b: #f5a26c; --c: #7fd08f; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 60rem; background: var(--ground); color: var(--ink);
  font: 16px/1.45 system-ui, sans-serif; }
pre { overflow-x: auto; font-size: 0.85rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1rem; }
figure { margin: 0; }
figcaption { font-weight: 600; }
svg { width: 100%; height: auto; }
svg text { fill: var(--ink); font-size: 12px; }
svg text.x { text-anchor: middle; }
svg text.y { text-anchor: end; }
svg path { fill: none; }
svg .grid { stroke: var(--faint); }
svg .line { stroke-width: 2; }
svg .dots { stroke-width: 4; stroke-linecap: round; }
.key { font-weight: 400; padding-left: 0.5rem; }
.series0 { stroke: var(--a); } .series1 { stroke: var(--b); } .series2 { stroke: var(--c); }
.key.series0 { color: var(--a); } .key.series1 { color: var(--b); } .key.series2 { color: var(--c); }
)";

// The share of samples at or below each.
ChartPoints Cdf(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  ChartPoints points;
  for (size_t i = 0; i < samples.size(); ++i) {
    points.emplace_back(samples[i], static_cast<double>(i + 1) / static_cast<double>(samples.size()));
  }
  return points;
}

std::vector<double> SamplesOf(const RunResult& result, Metric metric) {
  std::vector<double> all;
  for (const RequestRecord& record : result.records) {
    if (record.outcome != Outcome::kOk) continue;
    const auto samples = Samples(LatenciesOf(record), metric);
    all.insert(all.end(), samples.begin(), samples.end());
  }
  return all;
}

double SecondsOf(const RunResult& result, int64_t ns) {
  return static_cast<double>(ns - result.start_ns) * 1e-9;
}

Chart OverTime(const RunResult& result) {
  Chart chart{"Latency by the time a request was intended", "s of the run", "ms", false, {}};
  ChartSeries ttft{"TTFT", {}, false}, e2el{"E2EL", {}, false};
  for (const RequestRecord& record : result.records) {
    const Latencies latencies = LatenciesOf(record);
    const double at = SecondsOf(result, record.intended_ns);
    if (record.outcome != Outcome::kOk) continue;
    if (latencies.ttft) ttft.points.emplace_back(at, *latencies.ttft);
    if (latencies.e2el) e2el.points.emplace_back(at, *latencies.e2el);
  }
  chart.series = {std::move(ttft), std::move(e2el)};
  return chart;
}

// Requests intended and ended, by second of the run.
Chart Rates(const RunResult& result) {
  std::map<int64_t, double> intended, ended, failed;
  for (const RequestRecord& record : result.records) {
    intended[static_cast<int64_t>(SecondsOf(result, record.intended_ns))] += 1;
    if (record.outcome != Outcome::kOk) {
      failed[static_cast<int64_t>(SecondsOf(result, record.intended_ns))] += 1;
    } else {
      const int64_t end_ns =
          record.content_ns.empty() ? record.done_ns.value_or(record.intended_ns) : record.content_ns.back();
      ended[static_cast<int64_t>(SecondsOf(result, end_ns))] += 1;
    }
  }
  Chart chart{"Rate", "s of the run", "requests a second", false, {}};
  for (const auto& [name, counts] :
       {std::pair{"intended", &intended}, {"ended well", &ended}, {"failed", &failed}}) {
    ChartSeries series{name, {}, true};
    if (!counts->empty()) {
      for (int64_t second = 0; second <= counts->rbegin()->first; ++second) {
        const auto at = counts->find(second);
        series.points.emplace_back(static_cast<double>(second), at == counts->end() ? 0 : at->second);
      }
    }
    chart.series.push_back(std::move(series));
  }
  return chart;
}

void WriteCharts(const RunResult& result, std::ostream& out) {
  out << "<div class=\"charts\">\n" << ChartSvg(OverTime(result));
  out << ChartSvg({"How many are at most this long",
                   "ms",
                   "share",
                   true,
                   {{"TTFT", Cdf(SamplesOf(result, Metric::kTtft)), true},
                    {"E2EL", Cdf(SamplesOf(result, Metric::kE2el)), true}}});
  out << ChartSvg({"Gaps between events",
                   "ms",
                   "share",
                   true,
                   {{"ITL", Cdf(SamplesOf(result, Metric::kItl)), true},
                    {"TPOT", Cdf(SamplesOf(result, Metric::kTpot)), true}}});
  out << ChartSvg(Rates(result)) << "</div>\n";
}

// TTFT and ITL by rate, of a sweep.
void WriteSweepChart(const std::vector<ReportedRun>& runs, std::ostream& out) {
  for (const Metric metric : {Metric::kTtft, Metric::kItl}) {
    Chart chart{std::string(metric == Metric::kTtft ? "TTFT" : "ITL") + " by rate",
                "requests a second",
                "ms",
                false,
                {}};
    for (const double p : {50.0, 90.0, 99.0}) {
      ChartSeries series{PercentileName(p), {}, true};
      for (const ReportedRun& run : runs) {
        const auto& percentiles = run.run.summary.Of(metric).percentiles;
        if (percentiles.contains(p)) series.points.emplace_back(run.rate.value_or(0), percentiles.at(p));
      }
      chart.series.push_back(std::move(series));
    }
    out << ChartSvg(chart);
  }
}

}  // namespace

std::string HtmlReport(const BenchReport& report) {
  std::ostringstream out;
  out << "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      << "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      << "<title>tramontane bench " << HtmlText(report.options.target.model) << "</title>\n"
      << "<style>" << kStyle << "</style>\n</head>\n<body>\n<h1>tramontane bench</h1>\n<p>"
      << HtmlText(report.options.target.model) << " at " << HtmlText(report.options.target.url) << ", "
      << HtmlText(report.date) << "</p>\n<pre>" << HtmlText(report.options.command_line) << "</pre>\n";
  std::ostringstream table;
  WriteTable(report, table);
  out << "<pre>" << HtmlText(table.str()) << "</pre>\n";
  if (report.runs.size() > 1) {
    WriteSweepChart(report.runs, out);
  } else if (!report.runs.empty()) {
    WriteCharts(report.runs.back().run.result, out);
  }
  out << "</body>\n</html>\n";
  return out.str();
}

}  // namespace tramontane::load

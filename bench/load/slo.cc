#include "bench/load/slo.h"

#include <algorithm>
#include <charconv>

#include "bench/load/parse.h"

namespace tramontane::load {
namespace {

constexpr NumberRange kMs = {0, 1e12};
constexpr std::string_view kMetricNames = "ttft, ttft_sent, tpot, itl, e2el or e2el_sent";

StatusOr<Statistic> ParseStatistic(std::string_view flag, std::string_view text) {
  if (text == "mean") return Statistic::OfMean();
  if (text == "median") return Statistic::OfPercentile(50);
  if (!text.starts_with('p')) return BadValue(flag, text, "a statistic: mean, median or pNN, as p99");
  TM_ASSIGN_OR_RETURN(const double p, ParseNumber(flag, text.substr(1), {0, 100}));
  return Statistic::OfPercentile(p);
}

StatusOr<SloClause> ParseClause(std::string_view flag, std::string_view text) {
  SloClause clause;
  clause.text = std::string(text);
  if (text.starts_with("success>")) {
    clause.is_success = true;
    TM_ASSIGN_OR_RETURN(clause.limit, ParseNumber(flag, text.substr(8), {0, 1}));
    return clause;
  }
  const size_t less = text.find('<');
  const size_t bar = text.rfind('_', less);
  if (less == std::string_view::npos || bar == std::string_view::npos) {
    return BadValue(flag, text, "METRIC_STATISTIC<MS or success>SHARE, as ttft_p99<2000,success>0.99");
  }
  const auto metric = MetricByName(text.substr(0, bar));
  if (!metric) return BadValue(flag, text.substr(0, bar), "a metric: " + std::string(kMetricNames));
  clause.metric = *metric;
  TM_ASSIGN_OR_RETURN(clause.statistic, ParseStatistic(flag, text.substr(bar + 1, less - bar - 1)));
  TM_ASSIGN_OR_RETURN(clause.limit, ParseNumber(flag, text.substr(less + 1), kMs));
  return clause;
}

std::optional<double> Measured(const SloClause& clause, const Summary& summary) {
  if (clause.is_success) return summary.success_share();
  const MetricSummary& metric = summary.Of(clause.metric);
  if (clause.statistic.is_mean) return summary.failed > 0 ? std::nullopt : metric.mean;
  const auto at = metric.censored_percentiles.find(clause.statistic.percentile);
  return at == metric.censored_percentiles.end() ? std::nullopt : at->second;
}

}  // namespace

StatusOr<std::vector<GoodputLimit>> ParseGoodput(std::string_view flag, std::string_view text) {
  std::vector<GoodputLimit> limits;
  for (const std::string_view part : SplitAt(text, ' ')) {
    if (part.empty()) continue;
    const auto pair = SplitAt(part, ':');
    if (pair.size() != 2) return BadValue(flag, part, "METRIC:MS, as ttft:2000");
    const auto metric = MetricByName(pair[0]);
    if (!metric) return BadValue(flag, pair[0], "a metric: " + std::string(kMetricNames));
    TM_ASSIGN_OR_RETURN(const double most_ms, ParseNumber(flag, pair[1], kMs));
    limits.push_back({*metric, most_ms});
  }
  if (limits.empty()) return BadValue(flag, text, "limits, as \"ttft:2000 tpot:100\"");
  return limits;
}

// MLPerf inference: Llama 3.1 8B, server and interactive. `chat`: what guidellm's docs propose.
const std::vector<SloPreset>& SloPresets() {
  static const std::vector<SloPreset> presets = {
      {"mlperf-8b-server", "ttft_p99<2000,tpot_p99<100"},
      {"mlperf-8b-interactive", "ttft_p99<500,tpot_p99<30"},
      {"chat", "ttft_p99<200,itl_p99<50,success>0.99"},
  };
  return presets;
}

StatusOr<Slo> ParseSlo(std::string_view flag, std::string_view text) {
  for (const SloPreset& preset : SloPresets()) {
    if (text == preset.name) text = preset.clauses;
  }
  Slo slo;
  for (const std::string_view part : SplitAt(text, ',')) {
    TM_ASSIGN_OR_RETURN(SloClause clause, ParseClause(flag, part));
    slo.push_back(std::move(clause));
  }
  return slo;
}

std::vector<double> PercentilesOf(const Slo& slo) {
  std::vector<double> percentiles;
  for (const SloClause& clause : slo) {
    if (!clause.is_success && !clause.statistic.is_mean) percentiles.push_back(clause.statistic.percentile);
  }
  return percentiles;
}

std::vector<SloVerdict> Judge(const Slo& slo, const Summary& summary) {
  std::vector<SloVerdict> verdicts;
  for (const SloClause& clause : slo) {
    SloVerdict verdict{.text = clause.text, .measured = Measured(clause, summary)};
    if (verdict.measured) {
      verdict.holds = clause.is_success ? *verdict.measured > clause.limit : *verdict.measured < clause.limit;
    } else {
      verdict.falls_on_failure = summary.failed > 0;
    }
    verdicts.push_back(std::move(verdict));
  }
  return verdicts;
}

bool Holds(const std::vector<SloVerdict>& verdicts) {
  return std::all_of(verdicts.begin(), verdicts.end(),
                     [](const SloVerdict& verdict) { return verdict.holds; });
}

}  // namespace tramontane::load

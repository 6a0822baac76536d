#include "bench/load/explain.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>

#include "bench/load/latencies.h"
#include "bench/load/statistics.h"

namespace tramontane::load {
namespace {

using Json = nlohmann::json;

// As a Tramontane server names them, each with "_ms".
constexpr const char* kStages[] = {"receive",      "parse",  "tokenize", "queue",  "prefill_run",
                                   "prefill_wait", "sample", "hold",     "deliver"};

struct TimedRequest {
  const RequestRecord* record = nullptr;
  Latencies latencies;
  Json timing;
};

// Nothing where the server told no time to the first content.
std::optional<TimedRequest> Timed(const RequestRecord& record) {
  if (record.outcome != Outcome::kOk || record.timing_json.empty()) return std::nullopt;
  TimedRequest timed{&record, LatenciesOf(record), Json::parse(record.timing_json, nullptr, false)};
  const bool told = timed.timing.is_object() && timed.timing.contains("ttft_ms") &&
                    timed.timing["ttft_ms"].is_number() && timed.latencies.ttft;
  return told ? std::optional(std::move(timed)) : std::nullopt;
}

ExplainedRequest ExplainedOf(double percentile, const TimedRequest& timed) {
  ExplainedRequest explained{percentile, timed.record->request_id, *timed.latencies.ttft, {}};
  double rest = explained.ttft_ms;
  const auto add = [&](const char* name, double ms) {
    explained.parts.emplace_back(name, ms);
    rest -= ms;
  };
  add("client", timed.latencies.client_lag.value_or(0));
  for (const char* stage : kStages) {
    const auto at = timed.timing.find(std::string(stage) + "_ms");
    if (at != timed.timing.end() && at->is_number()) add(stage, at->get<double>());
  }
  explained.parts.emplace_back("network+client", rest);
  return explained;
}

}  // namespace

std::vector<ExplainedRequest> Explain(const std::vector<RequestRecord>& records) {
  std::vector<TimedRequest> timed;
  std::vector<double> sorted;
  for (const RequestRecord& record : records) {
    if (auto one = Timed(record)) {
      sorted.push_back(*one->latencies.ttft);
      timed.push_back(*std::move(one));
    }
  }
  std::sort(sorted.begin(), sorted.end());
  std::vector<ExplainedRequest> explained;
  for (const double percentile : {50.0, 95.0, 99.0}) {
    if (timed.empty()) break;
    const double value = Percentile(sorted, percentile);
    const auto nearest =
        std::min_element(timed.begin(), timed.end(), [&](const TimedRequest& a, const TimedRequest& b) {
          return std::fabs(*a.latencies.ttft - value) < std::fabs(*b.latencies.ttft - value);
        });
    explained.push_back(ExplainedOf(percentile, *nearest));
  }
  return explained;
}

void WriteExplained(const std::vector<ExplainedRequest>& explained, std::ostream& out) {
  constexpr int kBarWidth = 40;
  if (explained.empty()) {
    out << "--- explained: the target told no stages (a Tramontane server does, in at most 4096 bytes)\n";
    return;
  }
  for (const ExplainedRequest& request : explained) {
    char line[160];
    std::snprintf(line, sizeof(line), "--- explained: ttft nearest to %s, %.2f ms, request ",
                  PercentileName(request.percentile).c_str(), request.ttft_ms);
    out << line << request.request_id << '\n';
    double begin = 0;
    for (const auto& [name, ms] : request.parts) {
      const auto column = [&](double at) {
        const double share = request.ttft_ms > 0 ? at / request.ttft_ms : 0;
        return std::clamp(static_cast<int>(std::lround(share * kBarWidth)), 0, kBarWidth);
      };
      const int from = column(begin), to = std::max(column(begin + ms), from);
      const std::string bar =
          std::string(static_cast<size_t>(from), ' ') + std::string(static_cast<size_t>(to - from), '#');
      std::snprintf(line, sizeof(line), "%-16s%10.2f  |%-*s|\n", name.c_str(), ms, kBarWidth, bar.c_str());
      out << line;
      begin += ms;
    }
  }
}

}  // namespace tramontane::load

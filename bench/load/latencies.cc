#include "bench/load/latencies.h"

namespace tramontane::load {
namespace {

double Ms(int64_t from_ns, int64_t to_ns) { return static_cast<double>(to_ns - from_ns) * 1e-6; }

std::optional<double> MsTo(int64_t from_ns, const std::optional<int64_t>& to_ns) {
  if (!to_ns) return std::nullopt;
  return Ms(from_ns, *to_ns);
}

}  // namespace

Latencies LatenciesOf(const RequestRecord& record) {
  Latencies latencies;
  if (record.sent_ns == 0) return latencies;  // no place fell free for it
  latencies.client_lag = Ms(record.intended_ns, record.sent_ns);
  latencies.connect = MsTo(record.sent_ns, record.connected_ns);
  latencies.headers = MsTo(record.sent_ns, record.headers_ns);
  latencies.ttft_any = MsTo(record.sent_ns, record.first_any_ns);
  latencies.done = MsTo(record.sent_ns, record.done_ns);
  if (record.content_ns.empty()) return latencies;
  const int64_t first = record.content_ns.front(), last = record.content_ns.back();
  latencies.ttft = Ms(record.intended_ns, first);
  latencies.ttft_sent = Ms(record.sent_ns, first);
  latencies.e2el = Ms(record.intended_ns, last);
  latencies.e2el_sent = Ms(record.sent_ns, last);
  if (record.output_tokens > 1) latencies.tpot = Ms(first, last) / (record.output_tokens - 1);
  for (size_t i = 1; i < record.content_ns.size(); ++i) {
    latencies.itl.push_back(Ms(record.content_ns[i - 1], record.content_ns[i]));
  }
  return latencies;
}

std::string_view MetricName(Metric metric) {
  switch (metric) {
    case Metric::kTtft:
      return "ttft";
    case Metric::kTtftSent:
      return "ttft_sent";
    case Metric::kTpot:
      return "tpot";
    case Metric::kItl:
      return "itl";
    case Metric::kE2el:
      return "e2el";
    case Metric::kE2elSent:
      return "e2el_sent";
  }
  return "";
}

std::optional<Metric> MetricByName(std::string_view name) {
  for (const Metric metric : kMetrics) {
    if (MetricName(metric) == name) return metric;
  }
  return std::nullopt;
}

std::vector<double> Samples(const Latencies& latencies, Metric metric) {
  const auto one = [](const std::optional<double>& value) {
    return value ? std::vector<double>{*value} : std::vector<double>{};
  };
  switch (metric) {
    case Metric::kTtft:
      return one(latencies.ttft);
    case Metric::kTtftSent:
      return one(latencies.ttft_sent);
    case Metric::kTpot:
      return one(latencies.tpot);
    case Metric::kItl:
      return latencies.itl;
    case Metric::kE2el:
      return one(latencies.e2el);
    case Metric::kE2elSent:
      return one(latencies.e2el_sent);
  }
  return {};
}

}  // namespace tramontane::load

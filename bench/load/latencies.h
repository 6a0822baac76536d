// What one request's stamps say, by the definitions of docs/ttft.md. Plain values; any thread; pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "bench/load/record.h"

namespace tramontane::load {

// All in ms; nothing where there is none.
struct Latencies {
  std::optional<double> ttft;       // from the intended time to the first content event
  std::optional<double> ttft_sent;  // from the first send or connect to there
  std::optional<double> ttft_any;   // to the first event with choices
  std::optional<double> connect;
  std::optional<double> headers;
  std::optional<double> tpot;
  std::optional<double> e2el;  // from the intended time to the last content event
  std::optional<double> e2el_sent;
  std::optional<double> done;
  std::optional<double> client_lag;  // from the intended time to the send
  std::vector<double> itl;           // gaps between content events
};

Latencies LatenciesOf(const RequestRecord& record);

// A latency that statistics are made of.
enum class Metric { kTtft, kTtftSent, kTpot, kItl, kE2el, kE2elSent };
inline constexpr Metric kMetrics[] = {Metric::kTtft, Metric::kTtftSent, Metric::kTpot,
                                      Metric::kItl,  Metric::kE2el,     Metric::kE2elSent};

std::string_view MetricName(Metric metric);  // "ttft"
std::optional<Metric> MetricByName(std::string_view name);
// The samples that a request gives of a metric: none, one, or of ITL one for each gap.
std::vector<double> Samples(const Latencies& latencies, Metric metric);

}  // namespace tramontane::load

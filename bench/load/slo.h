// Limits of a service: `--goodput` for each request, `--slo` for a run. Plain values; pure, any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "bench/load/summary.h"
#include "kernels/core/status.h"

namespace tramontane::load {

// "ttft:2000 tpot:100", in ms.
StatusOr<std::vector<GoodputLimit>> ParseGoodput(std::string_view flag, std::string_view text);

// One clause: "ttft_p99<2000", "tpot_mean<100", "success>0.99".
struct SloClause {
  std::string text;
  bool is_success =
      false;  // share of measured requests, at least `limit` and more; else a latency below `limit`
  Metric metric = Metric::kTtft;
  Statistic statistic;
  double limit = 0;
};
using Slo = std::vector<SloClause>;

// Clauses with commas between, or a name of `SloPresets`.
StatusOr<Slo> ParseSlo(std::string_view flag, std::string_view text);

struct SloPreset {
  std::string_view name;
  std::string_view clauses;
};
const std::vector<SloPreset>& SloPresets();

// The percentiles that a summary must have for it.
std::vector<double> PercentilesOf(const Slo& slo);

// How one clause came out. Latencies are judged with failures as longer than everything, so a percentile that
// falls on a failure, and a mean or median beside any failure that moves it, misses.
struct SloVerdict {
  std::string text;
  std::optional<double> measured;  // nothing where it falls on a failure, or nothing gave a sample: it misses
  bool falls_on_failure = false;
  bool holds = false;
};
std::vector<SloVerdict> Judge(const Slo& slo, const Summary& summary);
bool Holds(const std::vector<SloVerdict>& verdicts);

}  // namespace tramontane::load

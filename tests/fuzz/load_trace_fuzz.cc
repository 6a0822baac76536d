// Traces of requests: Azure's CSV, Mooncake's JSONL and our own. What is taken is in order and within its
// bounds, and can be replayed at the ends of every scale.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/load/schedule.h"
#include "bench/load/trace.h"

namespace {

using tramontane::load::kMaxTokens;
using tramontane::load::ScheduleOptions;
using tramontane::load::TraceRow;

void Require(bool holds) {
  if (!holds) std::abort();
}

void CheckRows(const std::vector<TraceRow>& rows) {
  int64_t before_ns = 0;
  for (const TraceRow& row : rows) {
    Require(row.at_ns >= before_ns);
    Require(row.input_tokens >= 1 && row.input_tokens <= kMaxTokens);
    Require(row.output_tokens >= 1 && row.output_tokens <= kMaxTokens);
    const int64_t tokens = static_cast<int64_t>(row.blocks.size()) * tramontane::load::kTraceBlockTokens;
    Require(tokens < int64_t{row.input_tokens} + tramontane::load::kTraceBlockTokens);
    before_ns = row.at_ns;
  }
  Require(before_ns <= tramontane::load::kMaxTraceSeconds * 1'000'000'000);
}

void Replay(const ScheduleOptions& options) {
  constexpr int64_t kNoEnd = std::numeric_limits<int64_t>::max();
  (void)CheckSize(options, kNoEnd, kNoEnd);
  int64_t before_ns = 0;
  for (const auto& request : DrawSchedule(options, kNoEnd, kNoEnd).requests) {
    Require(request.plan.intended_ns >= before_ns);
    before_ns = request.plan.intended_ns;
    Require(request.plan.input_tokens >= 1 && request.plan.input_tokens <= kMaxTokens);
  }
  Require(static_cast<double>(before_ns) <= tramontane::load::kMaxArrivalNs);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  auto rows = tramontane::load::ParseTrace("trace", text);
  if (!rows.ok()) {
    Require(!rows.status().message().empty());
    return 0;
  }
  CheckRows(*rows);
  ScheduleOptions options;
  options.trace = std::make_shared<const std::vector<TraceRow>>(*std::move(rows));
  Replay(options);
  for (const double scale : {1e-6, 1e6}) {
    options.rate_scale = options.length_scale = scale;
    options.spread_seconds = 1e7;
    Replay(options);
  }
  return 0;
}

#include "engine/run/row_speeds.h"

#include <algorithm>

#include "engine/schedule/scheduler.h"
#include "kernels/core/check.h"

namespace tramontane {
namespace {

constexpr double kShareOfBest = 0.9;
constexpr int32_t kRowCounts[] = {32, 64, 128, 256, 512};
constexpr int64_t kMostNs = 1'000'000'000;  // in all
constexpr int kLeastRuns = 2;
constexpr int kMostRuns = 8;
constexpr int64_t kEnoughNs = 10'000'000;  // of one count: more runs than the least only where they are short
constexpr int64_t kEnoughCost = 1 << 20;   // of a step, for so many tokens, whatever their keys count
constexpr int64_t kWeightBytes = int64_t{64} << 20;

// A prompt of so many tokens, in one chunk.
StatusOr<int64_t> TimeRows(int32_t rows, int32_t layers, const EngineLimits& limits, const KvLayout& layout,
                           BackendModelRunner& runner, const Clock& clock) {
  Request request;
  request.prompt.assign(static_cast<size_t>(rows), 0);
  Sequence sequence;
  sequence.request = &request;
  sequence.tokens = SequenceTokens(request.prompt);
  sequence.max_len = rows;
  EngineLimits in_one_step = limits;
  in_one_step.max_step_cost = kEnoughCost;
  in_one_step.prefix_cache = false;
  Scheduler scheduler(in_one_step, layout);
  scheduler.Admit(&sequence, 0);
  const StepPlan plan = scheduler.Plan(0);
  TM_CHECK(plan.tokens == rows, "a step of %lld tokens in place of %d", static_cast<long long>(plan.tokens),
           rows);
  const int64_t begin_ns = clock.NowNs();
  const Status status = runner.RunLayers(plan, layers);
  const int64_t ns = clock.NowNs() - begin_ns;
  TM_RETURN_IF_ERROR(status);
  return std::max<int64_t>(ns, 1);
}

}  // namespace

int32_t LeastFastRows(std::span<const RowSpeed> speeds) {
  TM_CHECK(!speeds.empty(), "no speeds");
  double best = 0;
  for (const RowSpeed& speed : speeds) best = std::max(best, speed.rows_per_second());
  int32_t least = INT32_MAX;
  for (const RowSpeed& speed : speeds) {
    if (speed.rows_per_second() >= kShareOfBest * best) least = std::min(least, speed.rows);
  }
  return least;
}

StatusOr<std::vector<RowSpeed>> MeasureRowSpeeds(const Model& model, int64_t weight_bytes,
                                                 const EngineLimits& limits, BackendModelRunner& runner,
                                                 const Clock& clock) {
  const int32_t all_layers = model.config().layers;
  const int64_t layer_bytes = std::max<int64_t>(weight_bytes / all_layers, 1);
  const auto layers = static_cast<int32_t>(
      std::clamp<int64_t>((kWeightBytes + layer_bytes - 1) / layer_bytes, 1, all_layers));
  const auto most_rows = static_cast<int32_t>(std::min<int64_t>(limits.max_step_tokens, limits.context));
  std::vector<RowSpeed> speeds;
  int64_t spent_ns = 0;
  for (const int32_t count : kRowCounts) {
    const int32_t rows = std::min(count, most_rows);
    const bool is_repeated = !speeds.empty() && rows <= speeds.back().rows;
    // Twice as many rows take twice as long, and go twice.
    const int64_t soon_ns = speeds.empty() ? 0 : 4 * speeds.back().ns * layers / all_layers;
    const bool fits = model.kv_layout().PagesForSequence(rows, rows) <= limits.pool_pages;
    if (is_repeated || !fits || spent_ns + soon_ns > kMostNs) break;
    int64_t least_ns = INT64_MAX;
    const int64_t enough_ns = spent_ns + kEnoughNs;
    for (int i = 0; spent_ns <= kMostNs && (i < kLeastRuns || (i < kMostRuns && spent_ns < enough_ns)); ++i) {
      TM_ASSIGN_OR_RETURN(const int64_t ns, TimeRows(rows, layers, limits, model.kv_layout(), runner, clock));
      spent_ns += ns;
      least_ns = std::min(least_ns, ns);
    }
    speeds.push_back({rows, least_ns * all_layers / layers});
  }
  return speeds;
}

}  // namespace tramontane

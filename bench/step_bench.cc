// step_bench: what the engine itself costs in a decode step, with a model that takes no time: Drain, Reap,
// Plan, building sampling inputs, Apply, Publish. The output thread runs beside it, as in a server.
//
//   build/release/bin/step_bench [STEPS]
//   build/release/bin/step_bench --adversary [burst|callers|prompts|hang-ups|ends|candidates|transfers|disk]
//       the longest step under the worst that requests do (step_adversary.h)
//
// The aim: a median below 50 us with 64 sequences. `traced us` is the median while somebody reads a trace of
// the steps; while nobody does, a step pays for that with a look at a flag.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bench/instant_runner.h"
#include "bench/step_adversary.h"
#include "engine/engine.h"

namespace tramontane {
namespace {

constexpr int32_t kVocab = 32'000;
constexpr int64_t kPromptTokens = 64;

enum class Sampling { kGreedy, kPenalties };

struct Percentiles {
  double median_us = 0;
  double p99_us = 0;
};

Request MakeRequest(int32_t number, int64_t max_tokens, Sampling sampling) {
  Request request;
  request.id = std::to_string(number);
  for (int64_t i = 0; i < kPromptTokens; ++i) request.prompt.push_back(static_cast<int32_t>(i * 31 % kVocab));
  request.sampling.temperature = 0.0f;
  if (sampling == Sampling::kPenalties) request.sampling.repetition_penalty = 1.1f;
  request.stopping.max_tokens = max_tokens;
  return request;
}

enum class Tracing { kOff, kOn };

Percentiles Measure(int32_t sequences, int64_t steps, Sampling sampling, Tracing tracing) {
  KvFormat format;
  format.kv_heads = format.head_dim = 1;
  const KvLayout layout = MakeKvLayout({0, 4096}, format);  // two groups: a full one and a windowed one
  EngineLimits limits;
  limits.max_sequences = sequences;
  limits.max_choices = 1;
  limits.max_queued_requests = sequences;
  limits.context = kPromptTokens + steps + 1;
  limits.pool_pages = sequences * layout.PagesForSequence(limits.context, limits.max_step_tokens);
  InstantRunner runner;
  const SteadyClock clock;
  Engine engine(limits, {kVocab, {}, layout}, runner, nullptr, clock);
  if (tracing == Tracing::kOn) engine.step_trace()->Start();
  for (int32_t i = 0; i < sequences; ++i) {
    if (!engine.Submit(MakeRequest(i, steps, sampling), nullptr).ok()) std::abort();
  }
  // Until every sequence decodes.
  while (engine.Load().output_tokens < sequences) engine.Step();

  std::vector<double> step_us;
  while (static_cast<int64_t>(step_us.size()) < steps / 2) {
    const int64_t begin_ns = clock.NowNs();
    const bool stepped = engine.Step() == StepOutcome::kWorked;
    const int64_t end_ns = clock.NowNs();
    if (stepped) {
      step_us.push_back(static_cast<double>(end_ns - begin_ns) * 1e-3);
    } else {
      engine.WaitForWork(1'000'000);  // the output thread is behind; its room is not the engine's cost
    }
  }
  std::sort(step_us.begin(), step_us.end());
  return {step_us[step_us.size() / 2], step_us[step_us.size() * 99 / 100]};
}

void PrintRow(int32_t sequences, int64_t steps, Sampling sampling) {
  const Percentiles result = Measure(sequences, steps, sampling, Tracing::kOff);
  const Percentiles traced = Measure(sequences, steps, sampling, Tracing::kOn);
  std::printf("%9d  %-9s  %9.2f  %9.1f  %15.3f  %9.2f\n", sequences,
              sampling == Sampling::kGreedy ? "greedy" : "penalties", result.median_us, result.p99_us,
              result.median_us / sequences, traced.median_us);
}

}  // namespace
}  // namespace tramontane

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "--adversary") == 0) {
    return tramontane::RunAdversary(argc > 2 ? argv[2] : nullptr);
  }
  const int64_t steps = argc > 1 ? std::max(10L, std::atol(argv[1])) : 4000;
  std::printf("sequences  sampling   median us     p99 us  us per sequence  traced us\n");
  for (const int32_t sequences : {1, 64, 512}) {
    tramontane::PrintRow(sequences, steps, tramontane::Sampling::kGreedy);
    tramontane::PrintRow(sequences, steps, tramontane::Sampling::kPenalties);
  }
  return 0;
}

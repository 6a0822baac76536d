// Whole steps of Mistral 7B: the engine, the model and the CUDA backend as a server runs them, over random
// weights that no disk and, in bf16, no host has: the model folder's matrices are holes, and the device draws
// what they would hold.
#include <algorithm>
#include <chrono>
#include <span>
#include <sstream>
#include <string>

#include "bench/gpu/random_weights.h"
#include "bench/gpu/tables.h"
#include "bench/gpu/whole_steps.h"
#include "models/memory_plan.h"
#include "models/model_config.h"
#include "server/setup/cuda_loader.h"
#include "tests/support/temp_folder.h"

namespace tramontane::gpu {
namespace {

constexpr int64_t kContext = 33 * 1024;  // 32k and what a row of the table adds
constexpr int32_t kSequences = 256;
constexpr float kWeightScale = 0.02f;
// Of the memory that is free when the library is there: for activations, recorded steps and what else the
// driver takes.
constexpr int64_t kSpareBytes = int64_t{3} << 30;

EngineLimits LimitsFor(const BackendInfo& info, const Format& matrices) {
  EngineLimits limits;
  limits.context = kContext;
  limits.max_step_tokens = 2048;
  limits.max_sequences = kSequences;
  limits.steps_in_flight = info.asynchronous != 0 ? 2 : 1;
  limits.lane_policy = LanePolicy::kPrefillFirst;
  limits.prefix_cache = false;  // rows begin with the same prompts
  const StepShape& shape = kMistral7B;
  // The embedding stands beside the matrices.
  const int64_t weights = matrices.Bytes(shape.Weights()) + 2 * shape.vocab * shape.hidden;
  limits.pool_pages =
      (info.memory_bytes - weights - kSpareBytes) / (shape.KvBytesOfToken() * limits.page_size);
  return limits;
}

// What the plan of memory counts for recorded steps, beside what they took here.
std::string RecordingsText(const std::string& remarks, const EngineLimits& limits) {
  ModelConfig config;
  config.layers = static_cast<int32_t>(kMistral7B.layers);
  const int64_t planned = RecordingBytes(config, limits.recorded_steps());
  std::string taken = "no word of recordings";
  std::istringstream lines(remarks);
  for (std::string line; std::getline(lines, line);) {
    if (line.find(" recordings of ") != std::string::npos) taken = line;
  }
  return " Recorded steps: " + taken + "; planned are " + std::to_string(planned) + ".";
}

Table NotMeasured(Table table, const std::string& why) {
  table.note = "Not measured: " + why;
  return table;
}

}  // namespace

Table EndToEndTable(Device& device, const EndToEnd& asked, const Progress& progress) {
  const auto begin = std::chrono::steady_clock::now();
  Table table;
  table.name = asked.name;
  table.note =
      "The whole engine, greedy, random weights of the exact shape in " + FormatName(asked.matrices) + ", " +
      (asked.window > 0 ? "a window of " + TokensText(asked.window) : std::string("no window")) +
      ". Decode (sequences x context): time of a step; the bound is the weights, read once at the rate of "
      "memory, or their products at the peak of dense bf16, whichever takes longer, then the keys and values "
      "that are seen, read once. Prefill: from a prompt to its first token; the bound is "
      "its FLOPs at the peak of dense bf16, or the weights.";
  auto backend = OpenCudaBackend(asked.library);
  if (!backend.ok()) return NotMeasured(std::move(table), backend.status().ToString());
  const TempFolder folder;
  if (!WriteStepModel(folder.path(), kMistral7B, asked.window, 2 * kContext)) {
    return NotMeasured(std::move(table), "the model's folder could not be written in " + folder.path());
  }
  BackendEngine::Options options;
  options.limits = LimitsFor((*backend)->info(), asked.matrices);
  options.recorded = true;
  const int64_t pool_pages = options.limits.pool_pages;
  if (pool_pages < 2 * kContext / options.limits.page_size) {
    return NotMeasured(std::move(table), "the weights leave no room for keys and values on this device");
  }
  auto* const weights =
      new RandomWeights(*std::move(backend), kWeightScale, asked.matrices,
                        [&device](const FillNormalParams& params) { device.FillNormal(params); });
  BackendEngine engine(BackendPtr(weights), folder.path(), options);
  table.note += RecordingsText(weights->remarks(), options.limits);

  const StepCounts counts;
  const StepBounds bounds = {.shape = kMistral7B,
                             .window = asked.window,
                             .weight_bytes = static_cast<double>(asked.matrices.Bytes(kMistral7B.Weights())),
                             .bytes_per_second = device.memory_bytes_per_second(),
                             .flops_per_second = device.peak_flops()};
  WorkPlan plan(bounds, counts);
  std::string left_out;
  for (const Work& work : asked.short_list ? ShortWork() : AllWork()) {
    const double left = asked.seconds > 0 ? asked.seconds - SecondsSince(begin) : 1e9;
    const std::string why_not =
        plan.WhyNot(work, PagesOf(work, engine.layout(), options.limits, counts), pool_pages, left);
    if (!why_not.empty()) {
      left_out += (left_out.empty() ? " Left out: " : "; ") + why_not;
      continue;
    }
    const double seconds = SecondsOf(engine, kMistral7B, work, counts);
    plan.Measured(work, seconds);
    AddRow(table, {NameOf(work), seconds, bounds.Of(work)}, progress);
  }
  if (!left_out.empty()) table.note += left_out + ".";
  return table;
}

}  // namespace tramontane::gpu

// Attention over pages of 16 tokens, 32 query and 8 kv heads of 128, bf16: the shapes of Mistral 7B.
#include "bench/gpu/attention_problem.h"
#include "bench/gpu/tables.h"

namespace tramontane::gpu {
namespace {

double SecondsOfRun(Device& device, const AttentionProblem& problem) {
  return device.MedianSeconds(problem.copies(),
                              [&](int i, cudaStream_t stream) { return problem.Run(i, stream); });
}

}  // namespace

Table DecodeAttentionTable(Device& device) {
  Table table;
  table.name = "Decode attention";
  table.note =
      "One layer, one new token a sequence (sequences x context). The bound is its keys and values, read "
      "once, at the rate of a copy; with a window the time must not grow with the context.";
  constexpr int32_t k = 1024;
  for (const AttentionShape& shape : {AttentionShape{1, k, 1, 0},
                                      {1, 4 * k, 1, 0},
                                      {1, 32 * k, 1, 0},
                                      {8, k, 1, 0},
                                      {8, 4 * k, 1, 0},
                                      {8, 32 * k, 1, 0},
                                      {16, 4 * k, 1, 0},
                                      {32, 4 * k, 1, 0},
                                      {128, k, 1, 0},
                                      {8, 4 * k, 1, 4 * k},
                                      {8, 32 * k, 1, 4 * k},
                                      {8, 128 * k, 1, 4 * k}}) {
    const AttentionProblem problem(device, shape);
    const Bound bound = MemoryBound(problem.Bytes(), device.copy_bytes_per_second());
    table.rows.push_back({NameOf(shape), SecondsOfRun(device, problem), bound});
    device.FreeAll();
  }
  for (const AttentionShape& shape : {AttentionShape{1, k, 1, 0}, {128, k, 1, 0}}) {
    const AttentionProblem problem(device, shape);
    // Its lists for one sequence more or less: latency, not bytes; the share says how far from them it is.
    const Bound bound = MemoryBound(shape.batch * (24.0 + 20.0), device.copy_bytes_per_second());
    table.rows.push_back(
        {"work list of " + NameOf(shape),
         device.MedianSeconds(8, [&](int, cudaStream_t stream) { return problem.Plan(stream); }), bound});
    device.FreeAll();
  }
  return table;
}

Table PrefillAttentionTable(Device& device) {
  Table table;
  table.name = "Prefill attention";
  table.note =
      "One layer, causal. FLOPs are those of the (query, key) pairs that see each other; the bound is the "
      "peak of dense bf16 by the device's attributes.";
  constexpr int32_t k = 1024;
  for (const AttentionShape& shape : {AttentionShape{1, 512, 512, 0},
                                      {1, 2 * k, 2 * k, 0},
                                      {1, 8 * k, 8 * k, 0},
                                      {1, 16 * k, 16 * k, 0},
                                      {4, 2 * k, 2 * k, 0},
                                      {1, 8 * k, 8 * k, 4 * k},
                                      {1, 32 * k, 2 * k, 0},
                                      {1, 32 * k, 2 * k, 4 * k}}) {
    const AttentionProblem problem(device, shape);
    table.rows.push_back({NameOf(shape), SecondsOfRun(device, problem),
                          ArithmeticBound(problem.Flops(), device.peak_flops())});
    device.FreeAll();
  }
  return table;
}

}  // namespace tramontane::gpu

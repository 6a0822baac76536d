// Attention over pages of 16 tokens, 32 query and 8 kv heads of 128: the shapes of Mistral 7B. By the kernels
// that the backend goes by on this device, and where these are Hopper's, the same by mma.sync. Keys and
// values in bf16, and in fewer bits, too: prompts over such pages decode them first, and beside that stands
// what they take in tiles of 16 rows that decode them again and again.
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bench/gpu/attention_problem.h"
#include "bench/gpu/tables.h"

namespace tramontane::gpu {
namespace {

using BoundOf = std::function<Bound(const AttentionProblem& problem)>;

Row Measured(Device& device, const AttentionShape& shape, const AttentionProblem& problem,
             const BoundOf& bound_of) {
  const double seconds = device.MedianSeconds(
      problem.copies(), [&](int i, cudaStream_t stream) { return problem.Run(i, stream); });
  return {NameOf(shape), seconds, bound_of(problem), problem.KernelName()};
}

// The table of the kernels that the backend goes by; where some are not mma.sync's a second one of these
// shapes by mma.sync; and where pages are decoded first one of these without that, by row. One shape by all,
// one after the other.
std::vector<Table> MeasureAll(Device& device, const std::string& name, const std::string& note,
                              std::span<const AttentionShape> shapes, const BoundOf& bound_of,
                              const Progress& progress) {
  using cuda::AttentionKernels;
  Table chosen = {name, note, {}};
  Table mma_sync = {
      name + " by mma.sync", "The same calls by the kernels of devices before capability 9.0. " + note, {}};
  Table by_row = {
      name + " by row", "The same calls in tiles of 16 rows, each of which decodes its keys. " + note, {}};
  for (const AttentionShape& shape : shapes) {
    const AttentionProblem problem(device, shape);
    AddRow(chosen, Measured(device, shape, problem, bound_of), progress);
    device.FreeAll();
    const auto measure = [&](Table& table, AttentionKernels kernels) {
      const AttentionProblem other(device, shape, kernels);
      AddRow(table, Measured(device, shape, other, bound_of), progress);
      device.FreeAll();
    };
    if (problem.decodes_pages()) measure(by_row, AttentionKernels::kByRow);
    if (problem.kernels() == AttentionKernels::kMmaSync || shape.pages != DType::kBf16) continue;
    measure(mma_sync, AttentionKernels::kMmaSync);
  }
  std::vector<Table> tables = {std::move(chosen)};
  for (Table* table : {&mma_sync, &by_row}) {
    if (!table->rows.empty()) tables.push_back(std::move(*table));
  }
  return tables;
}

constexpr int32_t k = 1024;
// As a server keeps them: groups of 32 with scales of f16; fp8 without scales of its own.
constexpr Format kInt8 = Format::WithScalesApart(DType::kInt8, 5),
                 kInt4 = Format::WithScalesApart(DType::kInt4, 5);
constexpr AttentionShape kDecodeShapes[] = {{1, k, 1, 0},
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
                                            {8, 128 * k, 1, 4 * k},
                                            {1, 4 * k, 1, 0, kInt8},
                                            {8, 4 * k, 1, 0, kInt8},
                                            {32, 4 * k, 1, 0, kInt8},
                                            {8, 32 * k, 1, 0, kInt8},
                                            {32, 4 * k, 1, 0, kInt4},
                                            {8, 32 * k, 1, 0, kInt4},
                                            {32, 4 * k, 1, 0, Format::BareFp8()}};
constexpr AttentionShape kPrefillShapes[] = {
    {1, 512, 512, 0},     {1, 2 * k, 2 * k, 0},     {1, 8 * k, 8 * k, 0},  {1, 16 * k, 16 * k, 0},
    {4, 2 * k, 2 * k, 0}, {1, 8 * k, 8 * k, 4 * k}, {1, 32 * k, 2 * k, 0}, {1, 32 * k, 2 * k, 4 * k}};
constexpr Format kFp8 = Format::BareFp8();
constexpr AttentionShape kQuantisedPrefillShapes[] = {{1, 512, 512, 0},
                                                      {1, 512, 512, 0, kInt8},
                                                      {1, 512, 512, 0, kInt4},
                                                      {1, 512, 512, 0, kFp8},
                                                      {1, 2 * k, 2 * k, 0},
                                                      {1, 2 * k, 2 * k, 0, kInt8},
                                                      {1, 2 * k, 2 * k, 0, kInt4},
                                                      {1, 2 * k, 2 * k, 0, kFp8},
                                                      {4, 2 * k, 2 * k, 0},
                                                      {4, 2 * k, 2 * k, 0, kInt8},
                                                      {4, 2 * k, 2 * k, 0, kInt4},
                                                      {4, 2 * k, 2 * k, 0, kFp8},
                                                      {1, 8 * k, 8 * k, 0},
                                                      {1, 8 * k, 8 * k, 0, kInt8},
                                                      {1, 8 * k, 8 * k, 0, kInt4},
                                                      {1, 8 * k, 8 * k, 0, kFp8},
                                                      {1, 8 * k, 512, 0},
                                                      {1, 8 * k, 512, 0, kInt8},
                                                      {1, 8 * k, 512, 0, kInt4},
                                                      {1, 8 * k, 512, 0, kFp8}};

}  // namespace

std::vector<Table> DecodeAttentionTables(Device& device, const Progress& progress) {
  std::vector<Table> tables = MeasureAll(
      device, "Decode attention",
      "One layer, one new token a sequence (sequences x context). The bound is its keys and values, read "
      "once, at the rate of memory; with a window the time must not grow with the context.",
      kDecodeShapes,
      [&](const AttentionProblem& problem) {
        return MemoryBound(problem.Bytes(), device.memory_bytes_per_second());
      },
      progress);
  for (const AttentionShape& shape : {AttentionShape{1, k, 1, 0}, {128, k, 1, 0}}) {
    const AttentionProblem problem(device, shape);
    // Its lists for one sequence more or less: latency, not bytes; the share says how far from them it is.
    const Bound bound = MemoryBound(shape.batch * (24.0 + 20.0), device.memory_bytes_per_second());
    AddRow(tables.front(),
           {"work list of " + NameOf(shape),
            device.MedianSeconds(8, [&](int, cudaStream_t stream) { return problem.Plan(stream); }), bound},
           progress);
    device.FreeAll();
  }
  return tables;
}

namespace {

// FLOPs are those of the (query, key) pairs that see each other.
std::vector<Table> PrefillTables(Device& device, const std::string& name, const std::string& note,
                                 std::span<const AttentionShape> shapes, const Progress& progress) {
  return MeasureAll(
      device, name, note, shapes,
      [&](const AttentionProblem& problem) { return ArithmeticBound(problem.Flops(), device.peak_flops()); },
      progress);
}

}  // namespace

std::vector<Table> PrefillAttentionTables(Device& device, const Progress& progress) {
  return PrefillTables(
      device, "Prefill attention",
      "One layer, causal. FLOPs are those of the (query, key) pairs that see each other; the bound is the "
      "peak of dense bf16 by the device's attributes.",
      kPrefillShapes, progress);
}

std::vector<Table> QuantisedPrefillAttentionTables(Device& device, const Progress& progress) {
  return PrefillTables(
      device, "Prefill attention over quantised pages",
      "As Prefill attention, over pages of bf16 and of fewer bits; these are decoded within the time.",
      kQuantisedPrefillShapes, progress);
}

}  // namespace tramontane::gpu

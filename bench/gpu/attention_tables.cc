// Attention over pages of 16 tokens, 32 query and 8 kv heads of 128, bf16: the shapes of Mistral 7B.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "bench/gpu/tables.h"
#include "kernels/cuda/attention.h"
#include "kernels/paged_kv.h"

namespace tramontane::gpu {
namespace {

constexpr int32_t kKvHeads = 8, kGroup = 4, kHeadDim = 128, kPageSize = 16;
constexpr int32_t kWidth = kKvHeads * kGroup * kHeadDim;

struct Shape {
  int32_t batch;
  int32_t context;
  int32_t queries;  // of each sequence: its last tokens
  int32_t window;   // 0: none
};

int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Everything that calls over one shape need, with enough pools that the L2 cache holds none of them.
class Problem {
 public:
  Problem(Device& device, const Shape& shape) : device_(device), shape_(shape) {
    // As a server would hold it: pages that left the window of the first query are gone.
    const int64_t first_query = shape.context - shape.queries;
    kv_base_ = FirstVisible(first_query, shape.window) / kPageSize * kPageSize;
    const auto pages_each = static_cast<int32_t>(CeilDivide(shape.context - kv_base_, kPageSize));
    const int32_t pages = shape.batch * pages_each;
    run_.kv = KvLayerView(
        {.element = DType::kBf16, .kv_heads = kKvHeads, .head_dim = kHeadDim, .page_size = kPageSize});
    run_.kv.page_bytes = run_.kv.format.PageBytes(1);
    const int64_t pool_bytes = pages * run_.kv.page_bytes;
    copies_ = device.CopiesBeyondCache(pool_bytes);
    pool_ = static_cast<std::byte*>(device.AllocateRandom(copies_ * pool_bytes));
    pool_bytes_ = pool_bytes;

    std::vector<int32_t> page_ids(static_cast<size_t>(pages));
    std::iota(page_ids.begin(), page_ids.end(), 0);
    std::shuffle(page_ids.begin(), page_ids.end(), std::mt19937_64(1));
    std::vector<int32_t> kv_indptr, qo_indptr;
    for (int32_t b = 0; b <= shape.batch; ++b) {
      kv_indptr.push_back(b * pages_each);
      qo_indptr.push_back(b * shape.queries);
    }
    const auto last = static_cast<int32_t>(shape.context - kv_base_ - int64_t{pages_each - 1} * kPageSize);
    const auto sequences = static_cast<size_t>(shape.batch);
    run_.kv_indptr = device.Upload(kv_indptr);
    run_.qo_indptr = device.Upload(qo_indptr);
    run_.page_indices = device.Upload(page_ids);
    run_.last_page_len = device.Upload(std::vector<int32_t>(sequences, last));
    run_.kv_base = device.Upload(std::vector<int32_t>(sequences, static_cast<int32_t>(kv_base_)));

    const int32_t tokens = shape.batch * shape.queries;
    const int32_t target_blocks = 2 * device.multiprocessors();
    run_.window = shape.window;
    run_.group = kGroup;
    run_.tile_rows = shape.queries * kGroup > 16 ? 64 : 16;
    run_.max_items =
        cuda::AttentionItemBound(tokens, shape.batch, kGroup, run_.tile_rows, kKvHeads, target_blocks);
    run_.query = device.AllocateRandom(int64_t{tokens} * kWidth * 2);
    run_.out = device.Allocate(int64_t{tokens} * kWidth * 2);
    run_.query_stride = run_.out_stride = kWidth;
    run_.scale = 1.0f / std::sqrt(static_cast<float>(kHeadDim));
    auto* items = static_cast<cuda::AttentionItem*>(
        device.Allocate(int64_t{run_.max_items} * static_cast<int64_t>(sizeof(cuda::AttentionItem))));
    auto* merges = static_cast<cuda::AttentionMerge*>(
        device.Allocate(int64_t{run_.max_items} * static_cast<int64_t>(sizeof(cuda::AttentionMerge))));
    auto* work = static_cast<cuda::AttentionWork*>(device.Allocate(sizeof(cuda::AttentionWork)));
    const int64_t slots = int64_t{run_.max_items} * kKvHeads * run_.tile_rows;
    run_.partial_out = static_cast<float*>(device.Allocate(slots * kHeadDim * 4));
    run_.partial_lse = static_cast<float*>(device.Allocate(slots * 4));
    run_.items = items;
    run_.merges = merges;
    run_.work = work;
    plan_ = {run_.kv_indptr, run_.last_page_len, run_.kv_base, run_.qo_indptr, shape.batch,
             kPageSize,      shape.window,       kGroup,       run_.tile_rows, kKvHeads,
             target_blocks,  run_.max_items,     items,        merges,         work};
    Check(cuda::PlanAttention(plan_, device.stream()), "PlanAttention");
  }

  double SecondsOfRun() {
    return device_.MedianSeconds(copies_, [this](int i, cudaStream_t stream) {
      cuda::AttentionRunParams run = run_;
      run.kv.pool = pool_ + i * pool_bytes_;
      return cuda::RunAttention(run, stream);
    });
  }
  double SecondsOfPlan() {
    return device_.MedianSeconds(
        8, [this](int, cudaStream_t stream) { return cuda::PlanAttention(plan_, stream); });
  }

  // (query, key) pairs that see each other.
  double Pairs() const {
    double pairs = 0;
    for (int64_t q = shape_.context - shape_.queries; q < shape_.context; ++q) {
      pairs += static_cast<double>(q + 1 - FirstVisible(q, shape_.window));
    }
    return pairs * shape_.batch;
  }
  // Keys, values, queries and outputs, each once.
  double Bytes() const {
    const int64_t first = FirstVisible(shape_.context - shape_.queries, shape_.window);
    const double keys = static_cast<double>(shape_.context - first);
    return shape_.batch * (keys * 2 * kKvHeads * kHeadDim * 2 + 2.0 * shape_.queries * kWidth * 2);
  }
  double Flops() const { return Pairs() * kGroup * kKvHeads * kHeadDim * 4; }

 private:
  Device& device_;
  const Shape shape_;
  int64_t kv_base_ = 0;
  std::byte* pool_ = nullptr;
  int64_t pool_bytes_ = 0;
  int copies_ = 1;
  cuda::AttentionPlanParams plan_{};
  cuda::AttentionRunParams run_{};
};

std::string Tokens(int32_t count) {
  return count % 1024 == 0 ? std::to_string(count / 1024) + "k" : std::to_string(count);
}

// "8 x 32k", "8 x 32k, window 4k".
std::string NameOf(const Shape& shape) {
  std::string name =
      std::to_string(shape.batch) + " x " + Tokens(shape.queries > 1 ? shape.queries : shape.context);
  if (shape.queries > 1 && shape.queries < shape.context)
    name += " behind " + Tokens(shape.context - shape.queries);
  if (shape.window > 0) name += ", window " + Tokens(shape.window);
  return name;
}

}  // namespace

Table DecodeAttentionTable(Device& device) {
  Table table;
  table.name = "Decode attention";
  table.note =
      "One layer, one new token a sequence (sequences x context). The bound is its keys and values, read "
      "once, at the rate of a copy; with a window the time must not grow with the context.";
  constexpr int32_t k = 1024;
  for (const Shape& shape : {Shape{1, k, 1, 0},
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
    Problem problem(device, shape);
    const Bound bound = MemoryBound(problem.Bytes(), device.copy_bytes_per_second());
    table.rows.push_back({NameOf(shape), problem.SecondsOfRun(), bound});
    device.FreeAll();
  }
  for (const Shape& shape : {Shape{1, k, 1, 0}, {128, k, 1, 0}}) {
    Problem problem(device, shape);
    // Its lists for one sequence more or less: latency, not bytes; the share says how far from them it is.
    const Bound bound = MemoryBound(shape.batch * (24.0 + 20.0), device.copy_bytes_per_second());
    table.rows.push_back({"work list of " + NameOf(shape), problem.SecondsOfPlan(), bound});
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
  for (const Shape& shape : {Shape{1, 512, 512, 0},
                             {1, 2 * k, 2 * k, 0},
                             {1, 8 * k, 8 * k, 0},
                             {1, 16 * k, 16 * k, 0},
                             {4, 2 * k, 2 * k, 0},
                             {1, 8 * k, 8 * k, 4 * k},
                             {1, 32 * k, 2 * k, 0},
                             {1, 32 * k, 2 * k, 4 * k}}) {
    Problem problem(device, shape);
    table.rows.push_back(
        {NameOf(shape), problem.SecondsOfRun(), ArithmeticBound(problem.Flops(), device.peak_flops())});
    device.FreeAll();
  }
  return table;
}

}  // namespace tramontane::gpu

#include "bench/gpu/attention_problem.h"

#include <cmath>
#include <numeric>
#include <random>

#include "kernels/paged_kv.h"

namespace tramontane::gpu {
namespace {

constexpr int32_t kKvHeads = 8, kGroup = 4, kHeadDim = 128, kPageSize = 16;
constexpr int32_t kWidth = kKvHeads * kGroup * kHeadDim;

int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

std::string Tokens(int32_t count) {
  return count % 1024 == 0 ? std::to_string(count / 1024) + "k" : std::to_string(count);
}

}  // namespace

std::string NameOf(const AttentionShape& shape) {
  std::string name =
      std::to_string(shape.batch) + " x " + Tokens(shape.queries > 1 ? shape.queries : shape.context);
  if (shape.queries > 1 && shape.queries < shape.context)
    name += " behind " + Tokens(shape.context - shape.queries);
  if (shape.window > 0) name += ", window " + Tokens(shape.window);
  return name;
}

AttentionProblem::AttentionProblem(Device& device, const AttentionShape& shape) : shape_(shape) {
  // As a server would hold it: pages that left the window of the first query are gone.
  const int64_t first_query = shape.context - shape.queries;
  const int64_t kv_base = FirstVisible(first_query, shape.window) / kPageSize * kPageSize;
  const auto pages_each = static_cast<int32_t>(CeilDivide(shape.context - kv_base, kPageSize));
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
  std::vector<int32_t> first_entry, qo_indptr;
  for (int32_t b = 0; b <= shape.batch; ++b) {
    first_entry.push_back(b * pages_each - static_cast<int32_t>(kv_base / kPageSize));
    qo_indptr.push_back(b * shape.queries);
  }
  const auto sequences = static_cast<size_t>(shape.batch);
  run_.qo_indptr = device.Upload(qo_indptr);
  run_.table = {
      .page_indices = device.Upload(page_ids),
      .first_entry = device.Upload(first_entry),
      .kv_base = device.Upload(std::vector<int32_t>(sequences, static_cast<int32_t>(kv_base))),
      .kv_end = device.Upload(std::vector<int32_t>(sequences, static_cast<int32_t>(shape.context)))};

  const int32_t tokens = shape.batch * shape.queries;
  run_.window = shape.window;
  run_.group = kGroup;
  run_.tile_rows = shape.queries * kGroup > 16 ? 64 : 16;
  const int32_t target_blocks =
      cuda::AttentionBlocksPerMultiprocessor(run_.tile_rows) * device.multiprocessors();
  run_.max_merges = cuda::AttentionMergeBound(kKvHeads, target_blocks,
                                              cuda::AttentionKeyBound(shape.window, kGroup, run_.tile_rows));
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
  plan_ = {.kv_base = run_.table.kv_base,
           .kv_end = run_.table.kv_end,
           .qo_indptr = run_.qo_indptr,
           .batch = shape.batch,
           .window = shape.window,
           .group = kGroup,
           .tile_rows = run_.tile_rows,
           .kv_heads = kKvHeads,
           .target_blocks = target_blocks,
           .max_items = run_.max_items,
           .items = items,
           .merges = merges,
           .work = work};
  Check(cuda::PlanAttention(plan_, device.stream()), "PlanAttention");
}

int AttentionProblem::Run(int i, cudaStream_t stream) const {
  cuda::AttentionRunParams run = run_;
  run.kv.pool = pool_ + i * pool_bytes_;
  return cuda::RunAttention(run, stream);
}

double AttentionProblem::Pairs() const {
  double pairs = 0;
  for (int64_t q = shape_.context - shape_.queries; q < shape_.context; ++q) {
    pairs += static_cast<double>(q + 1 - FirstVisible(q, shape_.window));
  }
  return pairs * shape_.batch;
}

double AttentionProblem::Bytes() const {
  const int64_t first = FirstVisible(shape_.context - shape_.queries, shape_.window);
  const double keys = static_cast<double>(shape_.context - first);
  return shape_.batch * (keys * 2 * kKvHeads * kHeadDim * 2 + 2.0 * shape_.queries * kWidth * 2);
}

double AttentionProblem::Flops() const { return Pairs() * kGroup * kKvHeads * kHeadDim * 4; }

}  // namespace tramontane::gpu

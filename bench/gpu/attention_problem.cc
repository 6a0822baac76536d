#include "bench/gpu/attention_problem.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "kernels/core/check.h"
#include "kernels/core/tensor.h"
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
  if (shape.pages != DType::kBf16) name += std::string(", ") + DTypeName(shape.pages.dtype) + " pages";
  return name;
}

AttentionProblem::AttentionProblem(ProblemDevice& device, const AttentionShape& shape)
    : AttentionProblem(device, shape, std::nullopt) {}

AttentionProblem::AttentionProblem(ProblemDevice& device, const AttentionShape& shape,
                                   cuda::AttentionKernels kernels)
    : AttentionProblem(device, shape, std::optional(kernels)) {}

AttentionProblem::AttentionProblem(ProblemDevice& device, const AttentionShape& shape,
                                   std::optional<cuda::AttentionKernels> kernels)
    : shape_(shape) {
  call_ = MakeCall(device);
  const int64_t pages = call_.table.listed_pages;
  const cuda::DecodedRoom room = {pages, pages * cuda::DecodedFormat(call_.kv.format).LayerBytes()};
  const bool decodes = kernels != cuda::AttentionKernels::kByRow && cuda::DecodesPages(call_, room);
  const AttentionParams call = decodes ? DecodedCall(device) : call_;
  const cuda::AttentionKernels chosen = cuda::ChooseAttention(call, device.properties());
  kernels_ = kernels.value_or(chosen);
  TM_CHECK(kernels_ == chosen ||
               (kernels_ == cuda::AttentionKernels::kMmaSync && call.kv.format.element == DType::kBf16),
           "kernels %d do not serve %s", static_cast<int>(kernels_), NameOf(shape).c_str());
  PlanFor(call, device);
}

AttentionParams AttentionProblem::MakeCall(ProblemDevice& device) {
  // As a server would hold it: pages that left the window of the first query are gone.
  const int64_t first_query = shape_.context - shape_.queries;
  const int64_t kv_base = FirstVisible(first_query, shape_.window) / kPageSize * kPageSize;
  const auto pages_each = static_cast<int32_t>(CeilDivide(shape_.context - kv_base, kPageSize));
  const int32_t pages = shape_.batch * pages_each;
  AttentionParams call;
  const KvFormat format = {
      .element = shape_.pages, .kv_heads = kKvHeads, .head_dim = kHeadDim, .page_size = kPageSize};
  pool_bytes_ = pages * format.PageBytes(1);
  copies_ = device.CopiesBeyondCache(pool_bytes_);
  // Of normal numbers in bf16: as codes they are any, as scales in f16 between -3 and 3.
  pool_ = static_cast<std::byte*>(device.AllocateRandom(copies_ * pool_bytes_));
  call.kv = KvLayerView(format, pool_, format.PageBytes(1));

  std::vector<int32_t> page_ids(static_cast<size_t>(pages));
  std::iota(page_ids.begin(), page_ids.end(), 0);
  std::shuffle(page_ids.begin(), page_ids.end(), std::mt19937_64(1));
  std::vector<int32_t> first_entry, qo_indptr;
  for (int32_t b = 0; b <= shape_.batch; ++b) {
    first_entry.push_back(b * pages_each - static_cast<int32_t>(kv_base / kPageSize));
    qo_indptr.push_back(b * shape_.queries);
  }
  const auto sequences = static_cast<size_t>(shape_.batch);
  call.qo_indptr = device.Upload(qo_indptr);
  call.table = {
      .page_indices = device.Upload(page_ids),
      .first_entry = device.Upload(first_entry),
      .kv_base = device.Upload(std::vector<int32_t>(sequences, static_cast<int32_t>(kv_base))),
      .kv_end = device.Upload(std::vector<int32_t>(sequences, static_cast<int32_t>(shape_.context))),
      .listed_pages = pages};
  const int64_t tokens = int64_t{shape_.batch} * shape_.queries, bytes = tokens * kWidth * 2;
  call.query = MakeTensor(device.AllocateRandom(bytes), DType::kBf16, tokens, kWidth);
  call.out = MakeTensor(device.Allocate(bytes), DType::kBf16, tokens, kWidth);
  call.batch = shape_.batch;
  call.query_heads = kKvHeads * kGroup;
  call.window = shape_.window;
  call.scale = 1.0f / std::sqrt(static_cast<float>(kHeadDim));
  return call;
}

AttentionParams AttentionProblem::DecodedCall(ProblemDevice& device) {
  const StepMaxima maxima = {.sequences = shape_.batch,
                             .kv_heads = kKvHeads,
                             .head_dim = kHeadDim,
                             .quantised_pages = call_.table.listed_pages,
                             .page_size = kPageSize};
  decoded_pages_ = std::make_unique<cuda::DecodedPages>();
  decoded_pages_->Reserve(maxima,
                          static_cast<std::byte*>(device.Allocate(cuda::DecodedRoomFor(maxima).bytes)),
                          static_cast<std::byte*>(device.Allocate(cuda::DecodedPages::ListBytes(maxima))));
  AttentionParams decoded;
  const int error =
      decoded_pages_->Decode(call_, device.properties().multiprocessors, device.stream(), &decoded);
  TM_CHECK(error == 0, "decoding pages: error %d", error);
  return decoded;
}

void AttentionProblem::PlanFor(const AttentionParams& call, ProblemDevice& device) {
  const cuda::AttentionTiling tiling = cuda::TileAttention(call, kernels_, device.properties());
  const auto list = [&](int64_t entry_bytes) { return device.Allocate(tiling.max_items * entry_bytes); };
  auto* const items = static_cast<cuda::AttentionItem*>(list(sizeof(cuda::AttentionItem)));
  auto* const merges = static_cast<cuda::AttentionMerge*>(list(sizeof(cuda::AttentionMerge)));
  auto* const work = static_cast<cuda::AttentionWork*>(device.Allocate(sizeof(cuda::AttentionWork)));
  const int64_t parts = int64_t{cuda::AttentionPartialBound(kKvHeads, tiling.target_blocks)} * kKvHeads;
  const int64_t part_rows = parts * tiling.tile_rows;
  run_ = cuda::RunParamsOf(call);
  run_.items = items;
  run_.merges = merges;
  run_.work = work;
  run_.partial_out = static_cast<float*>(device.Allocate(part_rows * kHeadDim * int64_t{sizeof(float)}));
  run_.partial_lse = static_cast<float*>(device.Allocate(part_rows * int64_t{sizeof(float)}));
  run_.tile_rows = tiling.tile_rows;
  run_.max_items = tiling.max_items;
  const int64_t counts =
      2 * cuda::AttentionCountBound(kKvHeads, tiling.target_blocks, call.batch);  // of any kernels
  run_.parts_done = device.Upload(std::vector<int32_t>(static_cast<size_t>(counts)));
  plan_ = {.kv_base = call.table.kv_base,
           .kv_end = call.table.kv_end,
           .qo_indptr = call.qo_indptr,
           .batch = call.batch,
           .window = call.window,
           .group = kGroup,
           .tile_rows = tiling.tile_rows,
           .kv_heads = kKvHeads,
           .target_blocks = tiling.target_blocks,
           .max_items = tiling.max_items,
           .items = items,
           .merges = merges,
           .work = work};
  multiprocessors_ = device.properties().multiprocessors;
  if (IsHopper()) {
    pool_maps_.resize(static_cast<size_t>(decodes_pages() ? 1 : copies_));
    for (size_t i = 0; i < pool_maps_.size(); ++i) {
      const int error =
          cuda::MakePoolMap(decodes_pages() ? call.kv : PoolOf(static_cast<int>(i)), &pool_maps_[i]);
      TM_CHECK(error == 0, "a map of the pages: error %d", error);
    }
  }
  const int error = Plan(device.stream());
  TM_CHECK(error == 0, "planning attention: error %d", error);
}

KvLayerView AttentionProblem::PoolOf(int i) const {
  return KvLayerView(call_.kv.format, pool_ + i * pool_bytes_, call_.kv.page_bytes);
}

std::string AttentionProblem::KernelName() const {
  const char* const name = kernels_ == cuda::AttentionKernels::kByRow           ? "AttentionByRowKernel"
                           : kernels_ == cuda::AttentionKernels::kHopperPrefill ? "HopperPrefillKernel"
                           : kernels_ == cuda::AttentionKernels::kHopperDecode  ? "HopperDecodeKernel"
                                                                                : "AttentionKernel";
  return std::string(decodes_pages() ? "DecodePagesKernel, " : "") + name + ", " +
         std::to_string(run_.tile_rows) + " rows";
}

int AttentionProblem::Run(int i, void* stream) const {
  cuda::AttentionRunParams run = run_;
  if (decodes_pages()) {
    AttentionParams call = call_, decoded;
    call.kv = PoolOf(i);
    if (const int error = decoded_pages_->Decode(call, multiprocessors_, stream, &decoded)) return error;
  } else {
    run.kv = PoolOf(i);
  }
  if (kernels_ == cuda::AttentionKernels::kMmaSync) return cuda::RunAttention(run, stream);
  if (kernels_ == cuda::AttentionKernels::kByRow) {
    cuda::AttentionByRowParams by_row{};
    by_row.run = run;
    return cuda::RunAttentionByRow(by_row, stream);
  }
  cuda::HopperAttentionParams hopper{};
  hopper.pool = pool_maps_[decodes_pages() ? 0 : static_cast<size_t>(i)];
  hopper.run = run;
  hopper.blocks = multiprocessors_;
  return kernels_ == cuda::AttentionKernels::kHopperPrefill ? cuda::RunHopperPrefill(hopper, stream)
                                                            : cuda::RunHopperDecode(hopper, stream);
}

bool AttentionProblem::IsHopper() const {
  return kernels_ == cuda::AttentionKernels::kHopperPrefill ||
         kernels_ == cuda::AttentionKernels::kHopperDecode;
}

int64_t AttentionProblem::OutElements() const { return int64_t{shape_.batch} * shape_.queries * kWidth; }

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
  const auto of_vector =
      static_cast<double>(call_.kv.format.VectorBytes() + shape_.pages.CompanionBytes(kHeadDim));
  return shape_.batch * (keys * 2 * kKvHeads * of_vector + 2.0 * shape_.queries * kWidth * 2);
}

double AttentionProblem::Flops() const { return Pairs() * kGroup * kKvHeads * kHeadDim * 4; }

}  // namespace tramontane::gpu

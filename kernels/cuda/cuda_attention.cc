#include "kernels/cuda/cuda_attention.h"

#include <algorithm>
#include <string>

#include "kernels/core/check.h"
#include "kernels/core/kv_quantize.h"
#include "kernels/cuda/attention_latent.h"
#include "kernels/cuda/hopper_attention.h"
#include "kernels/cuda/pieces.h"

namespace tramontane::cuda {

namespace {

constexpr size_t kMostPoolMaps = 8;  // more pools than that: the oldest map is made again

// Why heads have no kernel.
std::string NoHeads(int32_t head_dim, int32_t group) {
  return "attention with heads of " + std::to_string(head_dim) + " and " + std::to_string(group) +
         " query heads a kv head; the CUDA backend has 32, 64, 96 and 128, and 1 to 16";
}

// Why rows of latent pages have no kernel.
std::string NoLatentRows(int32_t head_dim, int32_t value_dim) {
  return "latent rows of " + std::to_string(head_dim) + " lanes with values of " + std::to_string(value_dim) +
         "; the CUDA backend takes multiples of 8 up to " + std::to_string(kMostLatentDim) + " and " +
         std::to_string(kMostLatentValueDim);
}

// Whether it may be a decode whose sequences share keys: what they do share the device finds. A window that
// is never split saves too little.
bool MayShare(const AttentionParams& p, AttentionKernels kernels, int32_t max_merges) {
  const bool has_kernels = kernels == AttentionKernels::kHopperDecode ||
                           kernels == AttentionKernels::kMmaSync || kernels == AttentionKernels::kByRow;
  return has_kernels && p.sinks.len == nullptr && p.mask.bits == nullptr && max_merges > 0 && p.batch > 1 &&
         p.query.rows <= p.batch && CanShare(p.query_heads / p.kv.format.kv_heads);
}

}  // namespace

OpCode CudaAttention::CheckHeads(const StepMaxima& maxima) {
  const int32_t group = maxima.query_heads / maxima.kv_heads;
  // A single kv head may be the row of latent pages, which pages say when they come.
  const bool latent = maxima.kv_heads == 1 && LatentAttentionSupported(maxima.head_dim, kLeastLatentDim);
  if (!latent && !AttentionSupported(DType::kBf16, maxima.head_dim, group)) {
    return context_.Fail(OpCode::kUnsupported, NoHeads(maxima.head_dim, group));
  }
  return OpCode::kOk;
}

void CudaAttention::Reserve() {
  decoded_pages_.Reserve(context_.maxima(), context_.At(&WorkspaceMap::decoded_pages),
                         context_.At(&WorkspaceMap::page_lists));
}

// What pages may hold.
OpCode CudaAttention::CheckPages(const KvLayerView& kv) {
  const Format& element = kv.format.element;
  if (kv.format.latent()) {
    if (element != DType::kBf16) {
      return context_.Fail(OpCode::kUnsupported,
                           "latent pages of " + FormatName(element) + "; the CUDA backend has those of bf16");
    }
    if (!LatentAttentionSupported(kv.format.head_dim, kv.format.latent_value_dim)) {
      return context_.Fail(OpCode::kUnsupported,
                           NoLatentRows(kv.format.head_dim, kv.format.latent_value_dim));
    }
    return OpCode::kOk;
  }
  if (element == DType::kBf16) return OpCode::kOk;
  const bool fits = element == Format::BareFp8() ||
                    (element.in_groups() && IsKvElement(element) && element.block_log2 >= kMinKvGroupLog2);
  if (!fits || kv.format.head_dim % 16 != 0 || kv.format.head_dim % element.block_size() != 0) {
    return context_.Fail(OpCode::kUnsupported,
                         "pages of " + FormatName(element) + " with heads of " +
                             std::to_string(kv.format.head_dim) +
                             "; the CUDA backend has bf16, fp8, and int8 and int4 in groups of 8 "
                             "to 128 that divide heads of a multiple of 16");
  }
  TM_CHECK(element.companion_bytes == 0 || kv.scale.scales != nullptr, "pages of %s without scales",
           FormatName(element).c_str());
  TM_CHECK(kv.page_bytes % 2 == 0 && kv.layer_offset % 2 == 0 && kv.value_offset % 2 == 0 &&
               kv.head_bytes % 2 == 0 && kv.token_bytes % 2 == 0,
           "pages whose rows are no pieces of 2 bytes");
  return OpCode::kOk;
}

OpCode CudaAttention::PlanFor(const AttentionParams& p, const AttentionPlan** out) {
  const AttentionKernels kernels = ChooseAttention(p, context_.device());
  const size_t kept = std::min(plans_.size(), kAttentionPlans);
  for (size_t i = plans_.size() - kept; i < plans_.size(); ++i) {
    *out = &plans_[i];
    if (plans_[i].Serves(p, kernels)) return OpCode::kOk;
  }
  const int32_t kv_heads = p.kv.format.kv_heads, group = p.query_heads / kv_heads;
  const auto tokens = static_cast<int32_t>(p.query.rows);
  TM_CHECK(tokens <= context_.maxima().tokens && p.batch <= context_.maxima().sequences &&
               kv_heads <= context_.maxima().kv_heads,
           "attention over %d tokens of %d sequences, beyond what was reserved", tokens, p.batch);
  const WorkspaceMap& map = context_.map();
  std::byte* const slot = context_.At(&WorkspaceMap::plans) +
                          static_cast<int64_t>(plans_.size() % kAttentionPlans) * map.plan_bytes;
  AttentionPlan plan;
  plan.page_indices = p.table.page_indices;
  plan.first_entry = p.table.first_entry;
  plan.kv_end = p.table.kv_end;
  plan.qo_indptr = p.qo_indptr;
  plan.left = p.sinks.left;
  plan.by_mask = p.mask.bits != nullptr;
  plan.window = p.window;
  plan.batch = p.batch;
  plan.tokens = tokens;
  plan.kernels = kernels;
  const AttentionTiling tiling = TileAttention(p, kernels, context_.device());
  plan.tile_rows = tiling.tile_rows;
  plan.max_items = tiling.max_items;
  plan.items = reinterpret_cast<AttentionItem*>(slot);
  plan.merges = reinterpret_cast<AttentionMerge*>(slot + map.plan_merges);
  plan.work = reinterpret_cast<AttentionWork*>(slot + map.plan_work);
  AttentionSharers* sharers = nullptr;
  if (MayShare(p, kernels, tiling.max_merges)) {
    sharers = reinterpret_cast<AttentionSharers*>(slot + map.plan_sharers);
    plan.shares = reinterpret_cast<AttentionShare*>(slot + map.plan_shares);
    plan.max_items = SharingItemBound(plan.max_items, p.batch, p.window);
    const int64_t key_and_value_bytes =
        p.kv.format.LayerBytes() / (int64_t{kv_heads} * p.kv.format.page_size);
    const OpCode code =
        context_.Queued(FindAttentionSharers({.table = p.table,
                                              .qo_indptr = p.qo_indptr,
                                              .batch = p.batch,
                                              .page_size = p.kv.format.page_size,
                                              .window = p.window,
                                              .group = group,
                                              .least_tiles = LeastTilesSaved(kv_heads, key_and_value_bytes),
                                              .sharers = sharers},
                                             context_.stream()),
                        "finding who shares keys");
    if (code != OpCode::kOk) return code;
  }
  const AttentionPlanParams params = {.kv_base = p.table.kv_base,
                                      .kv_end = p.table.kv_end,
                                      .qo_indptr = p.qo_indptr,
                                      .batch = p.batch,
                                      .window = p.window,
                                      .group = group,
                                      .tile_rows = plan.tile_rows,
                                      .kv_heads = kv_heads,
                                      .target_blocks = tiling.target_blocks,
                                      .max_items = plan.max_items,
                                      .items = plan.items,
                                      .merges = plan.merges,
                                      .work = plan.work,
                                      .left = p.sinks.left,
                                      .by_mask = plan.by_mask,
                                      .sharers = sharers,
                                      .shares = plan.shares};
  plans_.push_back(plan);
  *out = &plans_.back();
  return context_.Queued(PlanAttention(params, context_.stream()), "planning attention");
}

// A map is made once a pool, and kept; a pool that comes to lie where another one did finds its own.
OpCode CudaAttention::MapOfPool(const KvLayerView& kv, TensorMap* map) {
  for (const PoolMap& known : pool_maps_) {
    if (known.Describes(kv)) {
      *map = known.map;
      return OpCode::kOk;
    }
  }
  PoolMap made{.pool = kv.pool, .page_bytes = kv.page_bytes, .format = kv.format, .map = {}};
  if (const OpCode code = context_.Queued(MakePoolMap(kv, &made.map), "a map of the pages");
      code != OpCode::kOk)
    return code;
  if (pool_maps_.size() == kMostPoolMaps) pool_maps_.erase(pool_maps_.begin());
  pool_maps_.push_back(made);
  *map = made.map;
  return OpCode::kOk;
}

OpCode CudaAttention::Run(const AttentionParams& p) {
  TM_CHECK(p.query.dtype == DType::kBf16 && p.out.dtype == DType::kBf16, "attention of %s queries to %s",
           DTypeName(p.query.dtype), DTypeName(p.out.dtype));
  if (const OpCode code = CheckPages(p.kv); code != OpCode::kOk) return code;
  if (p.query.rows == 0 || p.batch == 0) return OpCode::kOk;
  CheckPieces(p.query, "query");
  CheckPieces(p.out, "out");
  TM_CHECK(p.kv.format.element != DType::kBf16 ||
               (IsOfPieces(p.kv.page_bytes) && IsOfPieces(p.kv.layer_offset) &&
                IsOfPieces(p.kv.value_offset) && IsOfPieces(p.kv.head_bytes) && IsOfPieces(p.kv.token_bytes)),
           "pages whose keys are no pieces of 16 bytes");
  if (p.kv.format.latent() && (p.sinks.len != nullptr || p.table.sink_entry != nullptr)) {
    return context_.Fail(OpCode::kUnsupported, "rows that see sinks in latent pages have no kernel");
  }
  const int32_t group = p.query_heads / p.kv.format.kv_heads;
  if (!p.kv.format.latent() && !AttentionSupported(DType::kBf16, p.kv.format.head_dim, group)) {
    return context_.Fail(OpCode::kUnsupported, NoHeads(p.kv.format.head_dim, group));
  }
  const bool by_windows = p.sinks.len == nullptr && p.mask.bits == nullptr;
  if (by_windows || !p.plain.any()) return Attend(p);
  TM_CHECK(p.plain.sequences <= p.batch && p.plain.tokens <= p.query.rows,
           "%d plain sequences of %d tokens, in all there are %d of %lld", p.plain.sequences, p.plain.tokens,
           p.batch, static_cast<long long>(p.query.rows));
  const OpCode code = Attend(PlainPart(p));
  return code == OpCode::kOk ? Attend(OtherPart(p)) : code;
}

OpCode CudaAttention::Attend(const AttentionParams& p) {
  if (p.query.rows == 0 || p.batch == 0) return OpCode::kOk;
  if (!DecodesPages(p, decoded_pages_.room())) return AttendOver(p);
  AttentionParams decoded;
  const int error = decoded_pages_.Decode(p, context_.device().multiprocessors, context_.stream(), &decoded);
  const OpCode code = context_.Queued(error, "decoding pages");
  return code == OpCode::kOk ? AttendOver(decoded) : code;
}

OpCode CudaAttention::AttendOver(const AttentionParams& p) {
  const AttentionPlan* plan = nullptr;
  if (const OpCode code = PlanFor(p, &plan); code != OpCode::kOk) return code;
  AttentionRunParams run = RunParamsOf(p);
  run.items = plan->items;
  run.merges = plan->merges;
  run.work = plan->work;
  run.shares = plan->shares;
  run.partial_out = context_.At<float>(&WorkspaceMap::partial_out);
  run.partial_lse = context_.At<float>(&WorkspaceMap::partial_lse);
  run.tile_rows = plan->tile_rows;
  run.max_items = plan->max_items;
  run.parts_done = context_.At<int32_t>(&WorkspaceMap::parts_done);
  if (plan->kernels == AttentionKernels::kLatent)
    return context_.Queued(RunLatentAttention({.run = run, .mask = p.mask}, context_.stream()),
                           "latent attention");
  if (plan->kernels == AttentionKernels::kMmaSync)
    return context_.Queued(RunAttention(run, context_.stream()), "attention");
  if (plan->kernels != AttentionKernels::kByRow) {
    HopperAttentionParams hopper{};
    if (const OpCode code = MapOfPool(p.kv, &hopper.pool); code != OpCode::kOk) return code;
    hopper.run = run;
    hopper.blocks = context_.device().multiprocessors;
    return context_.Queued(plan->kernels == AttentionKernels::kHopperPrefill
                               ? RunHopperPrefill(hopper, context_.stream())
                               : RunHopperDecode(hopper, context_.stream()),
                           "attention of sm_90a");
  }
  if (p.sinks.len != nullptr) {
    TM_CHECK(p.sinks.query.dtype == DType::kBf16, "queries for sinks are %s", DTypeName(p.sinks.query.dtype));
    CheckPieces(p.sinks.query, "queries for sinks");
  }
  const AttentionByRowParams by_row = {.run = run, .sinks = p.sinks, .mask = p.mask};
  return context_.Queued(RunAttentionByRow(by_row, context_.stream()), "attention by row");
}

}  // namespace tramontane::cuda

#include "kernels/cuda/cuda_moe.h"

#include <string>

#include "kernels/core/check.h"
#include "kernels/cuda/packed_weight.h"
#include "kernels/cuda/pieces.h"

namespace tramontane::cuda {

namespace {

void CheckMoe(const MoeParams& p, const StepMaxima& maxima) {
  TM_CHECK(p.x.dtype == DType::kBf16 && p.out.dtype == DType::kBf16 && p.out.columns == p.x.columns,
           "x is %s, out is %s", DTypeName(p.x.dtype), DTypeName(p.out.dtype));
  TM_CHECK(p.rows <= maxima.tokens && p.x.columns <= maxima.hidden && p.experts <= maxima.experts &&
               p.experts_per_token <= maxima.experts_per_token && p.experts_per_token <= p.experts,
           "%d rows of %d of %d experts, beyond what was reserved", p.rows, p.experts_per_token, p.experts);
  TM_CHECK(p.epilogue != Epilogue::kSwiGlu, "a mixture ends plain or in an addition");
  CheckPieces(p.x, "x");
  CheckPieces(p.out, "out");
}

// A segment of an expert's weight, and what becomes of its product; no segment where the weight has fewer.
struct ExpertForm {
  const Segment* segment = nullptr;
  MoeOut out_kind = MoeOut::kF32;

  bool Joins(const ExpertForm& other) const {
    return segment != nullptr && other.segment != nullptr && out_kind == other.out_kind &&
           segment->format == other.segment->format;
  }
};

ExpertForm FormOf(const WeightHandle& handle, size_t index) {
  const PackedWeight& weight = PackedWeightOf(handle);
  if (index >= weight.segments.size()) return {};
  const MoeOut of_gates = weight.alone() != nullptr ? MoeOut::kSwiGlu
                          : index == 0              ? MoeOut::kGate
                                                    : MoeOut::kUp;
  return {&weight.segments[index], weight.layout == LinearLayout::kGateUp ? of_gates : MoeOut::kF32};
}

}  // namespace

OpCode CudaMoe::CheckExperts(const StepMaxima& maxima) {
  if (maxima.experts == 0 || maxima.hidden <= kMaxMoeHidden) return OpCode::kOk;
  return context_.Fail(OpCode::kUnsupported, "experts over rows of " + std::to_string(maxima.hidden) +
                                                 "; the CUDA backend takes up to " +
                                                 std::to_string(kMaxMoeHidden));
}

// Where any expert has its columns in an order of its own: rows of x for each pair in its expert's order.
// After it gemm.x is such rows.
OpCode CudaMoe::ReorderForExperts(const WeightHandle* weights, size_t index, void* reordered,
                                  MoeGemmParams* gemm) {
  MoeOrderParams order{};
  bool in_order = true;
  for (int32_t e = 0; e < gemm->experts; ++e) {
    const ExpertForm form = FormOf(weights[e], index);
    order.orders[e] = form.segment == nullptr ? nullptr : form.segment->column_order;
    in_order &= order.orders[e] == nullptr;
  }
  if (in_order) return OpCode::kOk;
  order.x = gemm->x;
  order.y = reordered;
  order.chosen = gemm->chosen;
  order.pairs = gemm->pairs;
  order.pairs_of_a_row = gemm->pairs_of_a_row;
  order.width = gemm->in_features;
  gemm->x = reordered;
  gemm->pairs_of_a_row = 1;
  return context_.Queued(LaunchMoeOrder(order, context_.stream()), "experts' columns in order");
}

// A product with segment `index` of each expert's weight, if there is one: a launch for the experts of each
// form, which is one form but in rare files.
OpCode CudaMoe::MultiplyExperts(const WeightHandle* weights, size_t index, void* reordered,
                                MoeGemmParams gemm, const char* what) {
  if (const OpCode code = ReorderForExperts(weights, index, reordered, &gemm); code != OpCode::kOk)
    return code;
  for (int32_t first = 0; first < gemm.experts; ++first) {
    const ExpertForm form = FormOf(weights[first], index);
    bool is_new = form.segment != nullptr;
    for (int32_t e = 0; is_new && e < first; ++e) is_new = !FormOf(weights[e], index).Joins(form);
    if (!is_new) continue;
    gemm.out_kind = form.out_kind;
    gemm.out_features = static_cast<int32_t>(form.segment->out_features);
    gemm.weight_format = form.segment->format;
    for (int32_t e = 0; e < gemm.experts; ++e) {
      const ExpertForm of_expert = FormOf(weights[e], index);
      gemm.weights[e] = of_expert.Joins(form) ? of_expert.segment->data : nullptr;
    }
    if (const OpCode code = context_.Queued(LaunchMoeGemm(gemm, context_.stream()), what);
        code != OpCode::kOk)
      return code;
  }
  return OpCode::kOk;
}

// The products of a mixture, without what differs between its two.
MoeGemmParams CudaMoe::ExpertProducts(const MoeParams& p, int32_t intermediate) const {
  MoeGemmParams gemm{};
  gemm.rows = p.rows;
  gemm.pairs = p.rows * p.experts_per_token;
  gemm.experts = p.experts;
  gemm.chosen = context_.At<const int32_t>(&WorkspaceMap::moe_chosen);
  if (MoeIsSmall(p.rows, static_cast<int32_t>(p.x.columns), intermediate)) return gemm;
  gemm.order = context_.At<const int32_t>(&WorkspaceMap::moe_order);
  gemm.tiles = context_.At<const MoeTile>(&WorkspaceMap::moe_tiles);
  gemm.max_tiles = MoeTileBound(gemm.pairs, p.experts);
  return gemm;
}

OpCode CudaMoe::Route(const MoeParams& p, const MoeGemmParams& gemm) {
  const MoeRouteParams route = {.x = p.x.data,
                                .norm_weight = p.norm_weight,
                                .router = p.router,
                                .normalised = context_.At(&WorkspaceMap::normalised),
                                .chosen = context_.At<int32_t>(&WorkspaceMap::moe_chosen),
                                .shares = context_.At<float>(&WorkspaceMap::moe_shares),
                                .live_rows = p.live_rows,
                                .x_stride = p.x.row_stride,
                                .rows = p.rows,
                                .hidden = static_cast<int32_t>(p.x.columns),
                                .experts = p.experts,
                                .experts_per_token = p.experts_per_token,
                                .epsilon = p.norm_epsilon};
  const OpCode code = context_.Queued(LaunchMoeRoute(route, context_.stream()), "choosing experts");
  if (code != OpCode::kOk || gemm.order == nullptr) return code;
  const MoeGroupParams group = {.chosen = gemm.chosen,
                                .order = context_.At<int32_t>(&WorkspaceMap::moe_order),
                                .tiles = context_.At<MoeTile>(&WorkspaceMap::moe_tiles),
                                .pairs = gemm.pairs,
                                .experts = p.experts,
                                .max_tiles = gemm.max_tiles};
  return context_.Queued(LaunchMoeGroup(group, context_.stream()), "listing rows by expert");
}

OpCode CudaMoe::Run(const MoeParams& p) {
  CheckMoe(p, context_.maxima());
  if (p.rows == 0) return OpCode::kOk;
  const PackedWeight& first = PackedWeightOf(p.down[0]);
  const auto hidden = static_cast<int32_t>(first.out_features),
             intermediate = static_cast<int32_t>(first.in_features);
  TM_CHECK(hidden == p.x.columns && intermediate <= context_.maxima().expert_intermediate,
           "experts of %d by %d, beyond what was reserved", hidden, intermediate);
  MoeGemmParams gemm = ExpertProducts(p, intermediate);
  if (const OpCode code = Route(p, gemm); code != OpCode::kOk) return code;

  gemm.x = context_.At(&WorkspaceMap::normalised);
  gemm.out = context_.At(&WorkspaceMap::moe_inner);
  gemm.pairs_of_a_row = p.experts_per_token;
  gemm.in_features = hidden;
  // Outputs are made last: until then their memory has room for every pair's row in another order.
  void* const reordered = context_.At(&WorkspaceMap::moe_outer);
  OpCode code = MultiplyExperts(p.gate_up, 0, reordered, gemm, "experts' gates");
  if (code == OpCode::kOk) code = MultiplyExperts(p.gate_up, 1, reordered, gemm, "experts' gates");
  if (code != OpCode::kOk) return code;

  gemm.x = context_.At(&WorkspaceMap::moe_inner);
  gemm.out = context_.At(&WorkspaceMap::moe_outer);
  gemm.pairs_of_a_row = 1;
  gemm.in_features = intermediate;
  code = MultiplyExperts(p.down, 0, context_.At(&WorkspaceMap::moe_inner), gemm, "experts' outputs");
  if (code != OpCode::kOk) return code;

  const MoeCombineParams combine = {.y = context_.At<const float>(&WorkspaceMap::moe_outer),
                                    .shares = context_.At<const float>(&WorkspaceMap::moe_shares),
                                    .out = p.out.data,
                                    .live_rows = p.live_rows,
                                    .out_stride = p.out.row_stride,
                                    .rows = p.rows,
                                    .hidden = hidden,
                                    .experts_per_token = p.experts_per_token,
                                    .add = p.epilogue == Epilogue::kAddResidual};
  return context_.Queued(LaunchMoeCombine(combine, context_.stream()), "summing experts");
}

}  // namespace tramontane::cuda

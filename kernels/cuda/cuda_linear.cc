#include "kernels/cuda/cuda_linear.h"

#include <algorithm>
#include <cstddef>

#include "kernels/core/check.h"
#include "kernels/cuda/linear_small.h"
#include "kernels/cuda/linear_tile.h"
#include "kernels/cuda/pieces.h"
#include "kernels/cuda/pointwise.h"
#include "kernels/cuda/product_plans.h"

namespace tramontane::cuda {

namespace {

// What a product does with its result.
MatmulOut KindOf(Epilogue epilogue, DType out) {
  if (out == DType::kF32) return MatmulOut::kF32;
  return epilogue == Epilogue::kAddResidual ? MatmulOut::kBf16Add : MatmulOut::kBf16;
}

void CheckLinear(const LinearParams& p, const PackedWeight& weight) {
  const bool swiglu = p.epilogue == Epilogue::kSwiGlu;
  const int64_t columns = swiglu ? weight.out_features / 2 : weight.out_features;
  TM_CHECK(p.x.dtype == DType::kBf16 && p.x.columns == weight.in_features,
           "x [.., %lld] %s, the weight takes %lld", static_cast<long long>(p.x.columns),
           DTypeName(p.x.dtype), static_cast<long long>(weight.in_features));
  TM_CHECK(p.out.columns == columns && p.rows <= p.out.rows, "out [%lld, %lld] for %d rows of %lld",
           static_cast<long long>(p.out.rows), static_cast<long long>(p.out.columns), p.rows,
           static_cast<long long>(columns));
  TM_CHECK(p.out.dtype == DType::kBf16 || (p.out.dtype == DType::kF32 && p.epilogue == Epilogue::kNone),
           "%s out with an epilogue", DTypeName(p.out.dtype));
  TM_CHECK(swiglu == (weight.layout == LinearLayout::kGateUp), "SwiGLU and the gate-up layout go together");
  TM_CHECK(p.adapter_index == nullptr, "there are no adapters");
  CheckPieces(p.x, "x");
  if (swiglu) CheckPieces(p.out, "out");
  // Of other outputs, which may be of any width, what cuBLASLt is promised; few rows do without.
  TM_CHECK(BeginsAtAPiece(p.out), "out at %p, which is no multiple of 16 bytes", p.out.data);
}

// Whether every form that the weight stands in takes the norm with it.
bool FusesNorm(const PackedWeight& weight, int32_t rows) {
  return std::all_of(weight.segments.begin(), weight.segments.end(), [&](const Segment& segment) {
    SmallLinearParams small{};
    small.rows = rows;
    small.in_features = static_cast<int32_t>(weight.in_features);
    small.prologue = Prologue::kRmsNorm;
    small.weight_format = segment.format;
    return segment.column_order == nullptr &&
           rows <= (segment.format == DType::kBf16 ? kFusedNormRows : kFusedNormRowsOverBlocks) &&
           SmallLinearSupported(small);
  });
}

// The call for the columns of the output that a segment makes.
LinearParams PartOf(const LinearParams& p, const Segment& weight) {
  LinearParams part = p;
  part.out.data = static_cast<std::byte*>(p.out.data) + Format(p.out.dtype).Bytes(weight.first_out);
  part.out.columns = p.epilogue == Epilogue::kSwiGlu ? weight.out_features / 2 : weight.out_features;
  return part;
}

// Rows [begin, begin + count) of a segment that is not bf16, begin being a multiple of 16.
Segment RowsOf(const Segment& weight, int64_t begin, int64_t count, int64_t in_features) {
  Segment rows = weight;
  rows.first_out = begin;
  rows.out_features = count;
  if (weight.row_scales != nullptr) {
    rows.row_scales += begin;
    rows.data += begin * in_features;
  } else {
    rows.data += UnitsBytes(weight.format, begin, in_features);
  }
  return rows;
}

}  // namespace

OpCode CudaLinear::Run(const LinearParams& p) {
  const PackedWeight& weight = PackedWeightOf(p.weight);
  CheckLinear(p, weight);
  if (p.rows == 0) return OpCode::kOk;
  const bool apart = p.epilogue == Epilogue::kSwiGlu && weight.alone() == nullptr;
  return apart ? GateUpApart(p, weight) : LinearOfSegments(p, weight);
}

// Where gates and ups of these rows lie until SwiGLU.
Tensor CudaLinear::GateUpRows(const LinearParams& p) const {
  TM_CHECK(p.rows <= context_.maxima().tokens && p.out.columns <= context_.maxima().hidden,
           "%d rows of SwiGLU, beyond what was reserved", p.rows);
  return MakeTensor(context_.At(&WorkspaceMap::gate_up), DType::kBf16, p.rows, 2 * p.out.columns);
}

OpCode CudaLinear::SwiGluOf(const Tensor& gate_up, const LinearParams& p, bool apart) {
  const SwiGluKernelParams swiglu = {.gate_up = gate_up.data,
                                     .h = p.out.data,
                                     .h_stride = p.out.row_stride,
                                     .rows = p.rows,
                                     .width = static_cast<int32_t>(p.out.columns),
                                     .apart = apart};
  return context_.Queued(LaunchSwiGlu(swiglu, context_.stream()), "SwiGLU");
}

// A product for gate and one for up, rounded to bf16 as ever, then SwiGLU.
OpCode CudaLinear::GateUpApart(const LinearParams& p, const PackedWeight& weight) {
  LinearParams product = p;
  product.epilogue = Epilogue::kNone;
  product.out = GateUpRows(p);
  if (const OpCode code = LinearOfSegments(product, weight); code != OpCode::kOk) return code;
  return SwiGluOf(product.out, p, /*apart=*/true);
}

OpCode CudaLinear::LinearOfSegments(const LinearParams& p, const PackedWeight& weight) {
  const bool norm_apart = p.prologue == Prologue::kRmsNorm && !FusesNorm(weight, p.rows);
  LinearParams prepared = p;
  prepared.x = MakeTensor(context_.At(&WorkspaceMap::normalised), DType::kBf16, p.rows, weight.in_features);
  prepared.x_rows = nullptr;
  prepared.prologue = Prologue::kNone;
  const Segment* prepared_for = nullptr;
  bool quantised = false;
  for (const Segment& segment : weight.segments) {
    if (const int plan = Fp8PlanFor(p, segment); plan != ProductPlans::kNotPlanned) {
      OpCode code = quantised ? OpCode::kOk : QuantiseRows(p);
      quantised = true;
      bool served = false;
      if (code == OpCode::kOk) code = Fp8Linear(p, segment, plan, &served);
      if (code != OpCode::kOk) return code;
      if (served) continue;
    }
    const bool as_they_are = segment.column_order == nullptr && !norm_apart;
    if (!as_they_are && (prepared_for == nullptr || prepared_for->column_order != segment.column_order)) {
      if (const OpCode code = PrepareRows(p, segment.column_order); code != OpCode::kOk) return code;
      prepared_for = &segment;
    }
    if (const OpCode code = LinearOf(as_they_are ? p : prepared, segment); code != OpCode::kOk) return code;
  }
  return OpCode::kOk;
}

// Rows of x by a kernel of their own: normalised, in the order of a weight's columns, or both.
OpCode CudaLinear::PrepareRows(const LinearParams& p, const int32_t* column_order) {
  TM_CHECK(p.rows <= std::max(context_.maxima().tokens, context_.maxima().logit_rows) &&
               p.x.columns <= context_.maxima().hidden,
           "%d rows of %lld to normalise or to reorder, beyond what was reserved", p.rows,
           static_cast<long long>(p.x.columns));
  if (p.prologue == Prologue::kNone) {
    const GatherColumnsParams gather = {.x = p.x.data,
                                        .x_rows = p.x_rows,
                                        .column_order = column_order,
                                        .y = context_.At(&WorkspaceMap::normalised),
                                        .x_stride = p.x.row_stride,
                                        .rows = p.rows,
                                        .width = static_cast<int32_t>(p.x.columns)};
    return context_.Queued(LaunchGatherColumns(gather, context_.stream()), "columns in another order");
  }
  const RmsNormKernelParams norm = {.x = p.x.data,
                                    .x_rows = p.x_rows,
                                    .weight = p.norm_weight,
                                    .y = context_.At(&WorkspaceMap::normalised),
                                    .x_stride = p.x.row_stride,
                                    .rows = p.rows,
                                    .width = static_cast<int32_t>(p.x.columns),
                                    .epsilon = p.norm_epsilon,
                                    .column_order = column_order};
  return context_.Queued(LaunchRmsNorm(norm, context_.stream()), "a norm");
}

// The same in fp8.
OpCode CudaLinear::QuantiseRows(const LinearParams& p) {
  TM_CHECK(p.rows <= context_.maxima().tokens && p.x.columns <= context_.maxima().hidden,
           "%d rows of %lld in fp8, beyond what was reserved", p.rows, static_cast<long long>(p.x.columns));
  const QuantiseRowsParams rows = {.x = p.x.data,
                                   .x_rows = p.x_rows,
                                   .norm_weight = p.prologue == Prologue::kRmsNorm ? p.norm_weight : nullptr,
                                   .y = context_.At(&WorkspaceMap::quantised),
                                   .scales = context_.At<float>(&WorkspaceMap::x_scales),
                                   .x_stride = p.x.row_stride,
                                   .rows = p.rows,
                                   .width = static_cast<int32_t>(p.x.columns),
                                   .epsilon = p.norm_epsilon};
  return context_.Queued(LaunchQuantiseRows(rows, context_.stream()), "rows in fp8");
}

OpCode CudaLinear::LinearOf(const LinearParams& p, const Segment& weight) {
  const LinearParams part = PartOf(p, weight);
  const SmallLinearParams small = {.x = p.x.data,
                                   .x_rows = p.x_rows,
                                   .norm_weight = p.norm_weight,
                                   .weight = weight.data,
                                   .out = part.out.data,
                                   .x_stride = p.x.row_stride,
                                   .out_stride = p.out.row_stride,
                                   .rows = p.rows,
                                   .in_features = static_cast<int32_t>(p.x.columns),
                                   .out_features = static_cast<int32_t>(weight.out_features),
                                   .epsilon = p.norm_epsilon,
                                   .prologue = p.prologue,
                                   .epilogue = p.epilogue,
                                   .out_dtype = p.out.dtype,
                                   .weight_format = weight.format,
                                   .row_scales = weight.row_scales};
  if (SmallLinearSupported(small))
    return context_.Queued(LaunchSmallLinear(small, context_.stream()), "a linear layer");
  TM_CHECK(p.x_rows == nullptr, "rows are gathered by the norm");
  if (weight.format == DType::kBf16) return LargeLinear(part, weight);
  return DecodesSlices(part, weight) ? DecodedLinear(part, weight) : TileLinear(part, weight);
}

OpCode CudaLinear::TileLinear(const LinearParams& p, const Segment& weight) {
  TileLinearParams tiles{};
  tiles.weights[0] = weight.data;
  tiles.x = p.x.data;
  tiles.out = p.out.data;
  tiles.x_stride = p.x.row_stride;
  tiles.out_stride = p.out.row_stride;
  tiles.rows = p.rows;
  tiles.places_of_a_row = 1;
  tiles.in_features = static_cast<int32_t>(p.x.columns);
  tiles.out_features = static_cast<int32_t>(weight.out_features);
  tiles.epilogue = p.epilogue;
  tiles.out_dtype = p.out.dtype;
  tiles.weight_format = weight.format;
  tiles.row_scales = weight.row_scales;
  return context_.Queued(LaunchTileLinear(tiles, context_.stream()), "a linear layer in tiles");
}

OpCode CudaLinear::LargeLinear(const LinearParams& p, const Segment& weight) {
  if (p.epilogue != Epilogue::kSwiGlu) return Multiply(p, weight, p.out);
  const Tensor gate_up = GateUpRows(p);
  if (const OpCode code = Multiply(p, weight, gate_up); code != OpCode::kOk) return code;
  return SwiGluOf(gate_up, p, /*apart=*/false);
}

// ---- weights that are decoded a slice at a time -------------------------------------------------

bool CudaLinear::DecodesSlices(const LinearParams& p, const Segment& weight) const {
  if (p.rows < context_.forms().least_decoded_rows || weight.slice_plans == nullptr) return false;
  if (p.rows <= kTileLinearRows && weight.out_features >= context_.forms().tiled_outputs) return false;
  if (DecodedBytes(weight.slices.rows, p.x.columns) > context_.map().decoded_bytes) return false;
  if (p.epilogue != Epilogue::kSwiGlu && !BeginsAtAPiece(p.out)) return false;
  const int plan = ProductPlans::PlanOf(*weight.slice_plans, KindOf(p.epilogue, p.out.dtype), p.rows);
  return plan != ProductPlans::kNotPlanned;
}

OpCode CudaLinear::DecodedLinear(const LinearParams& p, const Segment& weight) {
  const bool swiglu = p.epilogue == Epilogue::kSwiGlu;
  LinearParams product = p;
  if (swiglu) {
    product.epilogue = Epilogue::kNone;
    product.out = GateUpRows(p);
  }
  for (int64_t i = 0; i < weight.slices.count; ++i) {
    const int64_t begin = i * weight.slices.rows;
    Segment slice = RowsOf(weight, begin, weight.slices.RowsOf(i), p.x.columns);
    if (i + 1 == weight.slices.count) slice.slice_plans = weight.last_slice_plans;
    if (const OpCode code = MultiplySlice(PartOf(product, slice), slice); code != OpCode::kOk) return code;
  }
  return swiglu ? SwiGluOf(product.out, p, /*apart=*/false) : OpCode::kOk;
}

// In tiles where the library has no product of these rows.
OpCode CudaLinear::MultiplySlice(const LinearParams& p, const Segment& slice) {
  const DecodeWeightParams decode = {.weight = slice.data,
                                     .out = context_.At(&WorkspaceMap::decoded),
                                     .rows = static_cast<int32_t>(slice.out_features),
                                     .in_features = static_cast<int32_t>(p.x.columns),
                                     .format = slice.format,
                                     .row_scales = slice.row_scales};
  if (const OpCode code = context_.Queued(LaunchDecodeWeight(decode, context_.stream()), "decoding a weight");
      code != OpCode::kOk)
    return code;
  const MatmulParams product = {.x = p.x.data,
                                .weight = context_.At(&WorkspaceMap::decoded),
                                .out = p.out.data,
                                .x_stride = p.x.row_stride,
                                .out_stride = p.out.row_stride,
                                .rows = p.rows};
  const int plan = ProductPlans::PlanOf(*slice.slice_plans, KindOf(p.epilogue, p.out.dtype), p.rows);
  const int error = context_.runtime().Matmul(plan, product);
  return error == Runtime::kNoMatmul ? TileLinear(p, slice)
                                     : context_.Queued(error, "a product of a decoded weight");
}

// ---- products of fp8 by fp8: where there is none, rows stay in bf16 and the weight is decoded ---

// How a segment is multiplied by rows in fp8; kNotPlanned: not so.
int CudaLinear::Fp8PlanFor(const LinearParams& p, const Segment& weight) const {
  if (weight.row_scales == nullptr || p.rows <= kSmallLinearRows || !BeginsAtAPiece(PartOf(p, weight).out))
    return ProductPlans::kNotPlanned;
  const int plan = ProductPlans::PlanOf(*weight.plans, KindOf(p.epilogue, p.out.dtype), p.rows);
  return plan != ProductPlans::kNotPlanned && context_.runtime().HasKernel(plan) ? plan
                                                                                 : ProductPlans::kNotPlanned;
}

// Of the rows that were quantised last. `served` is false where the library refuses the very number of rows.
OpCode CudaLinear::Fp8Linear(const LinearParams& p, const Segment& weight, int plan, bool* served) {
  const LinearParams part = PartOf(p, weight);
  const bool swiglu = p.epilogue == Epilogue::kSwiGlu;
  const Tensor out = swiglu ? GateUpRows(part) : part.out;
  const MatmulParams product = {.x = context_.At(&WorkspaceMap::quantised),
                                .weight = weight.data,
                                .out = out.data,
                                .x_stride = p.x.columns,
                                .out_stride = out.row_stride,
                                .rows = p.rows,
                                .x_scales = context_.At<float>(&WorkspaceMap::x_scales),
                                .weight_scales = weight.row_scales};
  const int error = context_.runtime().Matmul(plan, product);
  *served = error != Runtime::kNoMatmul;
  if (!*served) return OpCode::kOk;
  const OpCode code = context_.Queued(error, "a matrix product in fp8");
  return code == OpCode::kOk && swiglu ? SwiGluOf(out, part, /*apart=*/false) : code;
}

// ---- large products -----------------------------------------------------------------------------

OpCode CudaLinear::Multiply(const LinearParams& p, const Segment& weight, const Tensor& out) {
  const int plan = ProductPlans::PlanOf(*weight.plans, KindOf(p.epilogue, out.dtype), p.rows);
  TM_CHECK(plan != ProductPlans::kNotPlanned, "a product of %d rows, beyond what was reserved", p.rows);
  if (!BeginsAtAPiece(out))
    return MultiplyInSlices(p, weight, out);  // a segment behind any number of outputs
  const MatmulParams params = {.x = p.x.data,
                               .weight = weight.data,
                               .out = out.data,
                               .x_stride = p.x.row_stride,
                               .out_stride = out.row_stride,
                               .rows = p.rows};
  const int error = context_.runtime().Matmul(plan, params);
  return error == Runtime::kNoMatmul ? MultiplyInSlices(p, weight, out)
                                     : context_.Queued(error, "a matrix product");
}

// Where the device's library has no kernel, or is promised that outputs begin elsewhere: our own, as many
// rows at a time as it takes. It reads the weight once for each slice.
OpCode CudaLinear::MultiplyInSlices(const LinearParams& p, const Segment& weight, const Tensor& out) {
  const int64_t x_bytes = Format(p.x.dtype).Bytes(p.x.row_stride),
                out_bytes = Format(out.dtype).Bytes(out.row_stride);
  for (int32_t row = 0; row < p.rows; row += kSmallLinearRows) {
    SmallLinearParams slice{};
    slice.x = static_cast<const std::byte*>(p.x.data) + row * x_bytes;
    slice.weight = weight.data;
    slice.out = static_cast<std::byte*>(out.data) + row * out_bytes;
    slice.x_stride = p.x.row_stride;
    slice.out_stride = out.row_stride;
    slice.rows = std::min(kSmallLinearRows, p.rows - row);
    slice.in_features = static_cast<int32_t>(p.x.columns);
    slice.out_features = static_cast<int32_t>(weight.out_features);
    slice.epilogue = p.epilogue == Epilogue::kSwiGlu ? Epilogue::kNone : p.epilogue;  // which is apart here
    slice.out_dtype = out.dtype;
    TM_CHECK(SmallLinearSupported(slice), "rows of %d were packed, which have no kernel of our own",
             slice.in_features);
    if (const OpCode code =
            context_.Queued(LaunchSmallLinear(slice, context_.stream()), "a slice of a matrix product");
        code != OpCode::kOk)
      return code;
  }
  return OpCode::kOk;
}

}  // namespace tramontane::cuda

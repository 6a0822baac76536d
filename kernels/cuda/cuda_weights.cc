#include "kernels/cuda/cuda_weights.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "kernels/core/check.h"
#include "kernels/cuda/pieces.h"

namespace tramontane::cuda {

namespace {

constexpr int64_t kStagingBytes = int64_t{16} << 20;  // of host memory through which weights pass

// What a weight's products may be asked to do with their result.
std::vector<MatmulOut> OutsOf(const LinearSource& source, bool fp8_rows) {
  if (source.use == WeightUse::kExpert) return {};  // other kernels multiply by them
  if (source.use == WeightUse::kTable || source.use == WeightUse::kHead) return {MatmulOut::kF32};
  if (source.layout == LinearLayout::kGateUp) return {MatmulOut::kBf16};
  if (fp8_rows) return {MatmulOut::kBf16, MatmulOut::kBf16Add};  // what gives f32 is decoded
  return {MatmulOut::kBf16, MatmulOut::kBf16Add, MatmulOut::kF32};
}

int64_t ColumnOrderBytes(const PackedSegment& segment) {
  if (segment.column_order == nullptr) return 0;
  return RoundUp(segment.in_features * int64_t{sizeof(int32_t)}, kAlignment);
}

}  // namespace

CudaWeights::~CudaWeights() {
  while (!weights_.empty()) Free({*weights_.begin()});
  context_.runtime().FreeHost(staging_);
}

std::vector<PackedSegment> CudaWeights::SegmentsFor(const LinearSource& source) const {
  return SegmentsOf(source, context_.forms().fp8 ? Fp8Form::kRows : Fp8Form::kUnits);
}

int64_t CudaWeights::PackedBytes(const LinearSource& source) const {
  if (!WhyNotPackable(source, kCudaPackingLimits).empty()) return 0;
  int64_t bytes = 0;
  for (const PackedSegment& segment : SegmentsFor(source)) {
    bytes += RoundUp(segment.bytes(), kAlignment) + RoundUp(segment.scale_bytes(), kAlignment) +
             ColumnOrderBytes(segment);
  }
  return bytes;
}

OpCode CudaWeights::Pack(const LinearSource& source, WeightHandle* out) {
  if (std::string reason = WhyNotPackable(source, kCudaPackingLimits); !reason.empty()) {
    return context_.Fail(OpCode::kUnsupported, std::move(reason));
  }
  const int64_t bytes = PackedBytes(source);
  auto* data = static_cast<std::byte*>(context_.runtime().Allocate(bytes));
  if (data == nullptr) {
    return context_.Fail(OpCode::kOutOfMemory,
                         "no device memory for a weight of " + std::to_string(bytes) + " bytes");
  }
  auto weight = std::make_unique<PackedWeight>(source.layout, 0, source.in_features, data);
  const std::vector<PackedSegment> segments = SegmentsFor(source);
  LinearSource in_segments = source;
  in_segments.layout = segments[0].layout;  // of a gate and an up that stand apart kStacked
  SourceRows rows(in_segments);
  std::byte* at = data;
  for (const PackedSegment& segment : segments) {
    OpCode code = CopySegment(in_segments, segment, rows, at);
    std::byte* const scales = at + RoundUp(segment.bytes(), kAlignment);
    const float* const row_scales = segment.fp8_rows ? reinterpret_cast<const float*>(scales) : nullptr;
    const ProductPlans::Table* plans = nullptr;
    if (!segment.in_blocks()) {
      plans = products_.Add(source.in_features, segment.rows, OutsOf(in_segments, segment.fp8_rows), at,
                            row_scales);
    }
    std::byte* const order = scales + RoundUp(segment.scale_bytes(), kAlignment);
    if (code == OpCode::kOk && segment.column_order != nullptr) {
      code = CopyToDevice(order, segment.column_order, segment.in_features * int64_t{sizeof(int32_t)});
    }
    if (code != OpCode::kOk) {
      context_.runtime().Free(data);
      return code;
    }
    weight->segments.push_back(
        {segment.format, segment.first_row, segment.rows, at, plans,
         segment.column_order == nullptr ? nullptr : reinterpret_cast<const int32_t*>(order), row_scales});
    if (segment.format != DType::kBf16) PlanSlices(in_segments, weight->segments.back());
    weight->out_features += segment.rows;
    at = order + ColumnOrderBytes(segment);
  }
  CountFp8(segments);
  weights_.insert(weight.get());
  out->impl = weight.release();
  return OpCode::kOk;
}

// Products of what is decoded of a segment.
void CudaWeights::PlanSlices(const LinearSource& source, Segment& segment) {
  const std::vector<MatmulOut> outs = OutsOf(source, /*fp8_rows=*/false);
  segment.slices = SlicesOf(segment.out_features, source.in_features, context_.forms().decoded_slice_bytes);
  if (outs.empty() || segment.slices.count == 0) return;
  const auto plans_of = [&](int64_t rows) {
    return products_.AddDecoded(source.in_features, rows, outs, context_.forms().least_decoded_rows);
  };
  segment.slice_plans = plans_of(segment.slices.rows);
  segment.last_slice_plans = plans_of(segment.slices.last_rows);
}

// As many rows at a time as the staging memory holds.
OpCode CudaWeights::CopySegment(const LinearSource& source, const PackedSegment& segment, SourceRows& rows,
                                std::byte* data) {
  if (source.feed != nullptr && segment.format == DType::kBf16 &&
      source.feed->FillOnDevice(data, segment.bytes() / int64_t{sizeof(uint16_t)})) {
    return OpCode::kOk;
  }
  if (staging_ == nullptr) staging_ = context_.runtime().AllocateHost(kStagingBytes);
  const int64_t bytes = segment.bytes_at_once(), most = kStagingBytes / bytes;
  if (staging_ == nullptr || most == 0) {
    return context_.Fail(OpCode::kOutOfMemory,
                         "no host memory for rows of " + std::to_string(bytes) + " bytes");
  }
  const int64_t all = segment.bytes() / bytes;
  std::vector<float> scales(static_cast<size_t>(segment.fp8_rows ? segment.rows : 0));
  for (int64_t begin = 0; begin < all; begin += most) {
    const int64_t count = std::min(most, all - begin);
    float* const of_rows = segment.fp8_rows ? scales.data() + begin * segment.rows_at_once() : nullptr;
    if (!PackSegment(source, segment, begin, count, rows, static_cast<std::byte*>(staging_), of_rows))
      return context_.Fail(OpCode::kUnsupported, "its rows cannot be had");
    const OpCode code = CopyToDevice(data + begin * bytes, staging_, count * bytes);
    if (code != OpCode::kOk) return code;
  }
  if (!segment.fp8_rows) return OpCode::kOk;
  return CopyToDevice(data + RoundUp(segment.bytes(), kAlignment), scales.data(), segment.scale_bytes());
}

OpCode CudaWeights::CopyToDevice(void* device, const void* host, int64_t bytes) {
  Runtime& runtime = context_.runtime();
  const OpCode code =
      context_.Queued(runtime.CopyToDevice(device, host, bytes, WhichStream::kSteps), "an upload");
  return code == OpCode::kOk ? context_.Queued(runtime.Synchronize(), "the device") : code;
}

void CudaWeights::Free(WeightHandle handle) {
  auto* weight = static_cast<PackedWeight*>(handle.impl);
  TM_CHECK(weights_.erase(weight) == 1, "a weight handle that is not live");
  for (const Segment& segment : weight->segments) {
    if (segment.plans == nullptr) continue;
    products_.Remove(weight->in_features, segment.out_features, segment.data, segment.row_scales);
  }
  context_.runtime().Free(weight->data);
  delete weight;
}

void CudaWeights::Reserve() {
  context_.runtime().FreeHost(std::exchange(staging_, nullptr));
  products_.Reserve(std::max(context_.maxima().tokens, context_.maxima().logit_rows));
}

OpCode CudaWeights::UseTuning(const char* text) {
  TM_CHECK(weights_.empty(), "weights are planned for already");
  if (products_.UseTuning(text)) return OpCode::kOk;
  return context_.Fail(OpCode::kUnsupported, "a line is no choice of a kernel");
}

// Products are timed over the workspace, which no step uses yet.
OpCode CudaWeights::Tune() {
  TM_CHECK(context_.reserved() && !context_.recording(),
           "kernels are chosen between Reserve and the first step");
  const ProductPlans::Scratch scratch = {.x = context_.At(&WorkspaceMap::normalised),
                                         .x_bytes = context_.map().gate_up - context_.map().normalised,
                                         .out = context_.At(&WorkspaceMap::gate_up),
                                         .out_bytes = context_.map().bytes - context_.map().gate_up,
                                         .x_scales = context_.At<float>(&WorkspaceMap::x_scales),
                                         .decoded = context_.At(&WorkspaceMap::decoded),
                                         .decoded_bytes = context_.map().decoded_bytes};
  return context_.Queued(products_.Tune(scratch), "a product that was timed");
}

// ---- remarks ------------------------------------------------------------------------------------

std::string CudaWeights::Remarks() const { return Fp8Remarks() + products_.remarks(); }

// What became of products of fp8, where they were asked for.
std::string CudaWeights::Fp8Remarks() const {
  if (!fp8_asked_) return "";
  if (!context_.forms().fp8) {
    return "no products of fp8 by fp8: " + context_.device().why_no_fp8_products +
           "; weights in fp8 are decoded\n";
  }
  std::string text = std::to_string(fp8_row_weights_) + " of " + std::to_string(fp8_weights_) +
                     " weights in fp8 are multiplied with rows in fp8";
  if (fp8_row_weights_ < fp8_weights_) {
    text += "; the others give logits, are experts' or have several scales a row, and are decoded";
  }
  return text + "\n";
}

void CudaWeights::CountFp8(const std::vector<PackedSegment>& segments) {
  bool any = false, in_rows = true;
  for (const PackedSegment& segment : segments) {
    if (segment.format.dtype != DType::kFp8E4M3) continue;
    any = true;
    in_rows &= segment.fp8_rows;
  }
  fp8_weights_ += any ? 1 : 0;
  fp8_row_weights_ += any && in_rows ? 1 : 0;
}

}  // namespace tramontane::cuda

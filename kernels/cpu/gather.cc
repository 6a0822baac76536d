// GatherKv. Plain code, compiled once: every number is widened and then rounded once.
#include <cstring>

#include "kernels/core/check.h"
#include "kernels/core/kv_quantize.h"
#include "kernels/cpu/ops.h"

namespace tramontane {
namespace {

constexpr int32_t kMaxGatherDim = 1024;  // of a head

void PutNumber(DType dtype, float number, std::byte* numbers, int64_t d) {
  if (dtype == DType::kF32) {
    std::memcpy(numbers + d * int64_t{sizeof(float)}, &number, sizeof(number));
    return;
  }
  const uint16_t bits = dtype == DType::kBf16 ? FloatToBf16(number) : FloatToF16(number);
  std::memcpy(numbers + d * int64_t{sizeof(bits)}, &bits, sizeof(bits));
}

// One head's vector of a page, widened.
void LoadRow(const Format& format, const std::byte* from, const std::byte* scales, int32_t count,
             float* row) {
  if (format.companion_bytes > 0) return DequantizeKvRow(format, from, scales, count, row);
  if (format.dtype == DType::kFp8E4M3) return WidenKvRowOfFp8(from, count, KvFp8Scale(scales), row);
  if (format.dtype == DType::kF32) {
    std::memcpy(row, from, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  const auto* halves = reinterpret_cast<const uint16_t*>(from);
  for (int32_t d = 0; d < count; ++d) {
    row[d] = format.dtype == DType::kBf16 ? Bf16ToFloat(halves[d]) : F16ToFloat(halves[d]);
  }
}

// Into columns [head * count, (head + 1) * count) of a row.
void PutHead(const float* numbers, int32_t count, const Tensor& out, int64_t row, int64_t head) {
  for (int32_t d = 0; d < count; ++d) {
    PutNumber(out.dtype, numbers[d], static_cast<std::byte*>(out.data),
              row * out.row_stride + head * count + d);
  }
}

}  // namespace

void RunGatherKv(const GatherKvParams& params, const CpuContext& context) {
  const KvFormat& format = params.kv.format;
  TM_CHECK(Format(params.key.dtype).plain() && Format(params.value.dtype).plain(), "gathering as %s",
           DTypeName(params.key.dtype));
  const int64_t heads = int64_t{format.kv_heads} * params.repeat;
  TM_CHECK(params.key.columns == heads * format.head_dim && params.value.columns == heads * format.ValueDim(),
           "rows of %lld and %lld numbers for %lld heads", static_cast<long long>(params.key.columns),
           static_cast<long long>(params.value.columns), static_cast<long long>(heads));
  TM_CHECK(format.head_dim <= kMaxGatherDim, "head_dim is %d, the most is %d", format.head_dim,
           kMaxGatherDim);
  CheckKvView(params.kv);
  context.pool.ParallelFor(params.batch, [&](int64_t item, int32_t) {
    const auto b = static_cast<int32_t>(item);
    const int64_t kv_base = params.table.kv_base[b];
    const int64_t tokens = params.out_indptr[b + 1] - params.out_indptr[b];
    TM_CHECK(tokens == params.table.kv_end[b] - kv_base,
             "sequence %d: %lld rows for the tokens that its table lists", b, static_cast<long long>(tokens));
    const PagesOfSequence pages = PagesOf(params.table, b);
    float numbers[kMaxGatherDim];
    for (int64_t position = kv_base; position < kv_base + tokens; ++position) {
      const int32_t page = pages[PageOf(position, 0, format.page_size)];
      const int32_t offset = OffsetInPage(position, format.page_size);
      const int64_t row = params.out_indptr[b] + position - kv_base;
      for (int64_t head = 0; head < heads; ++head) {
        const auto kv_head = static_cast<int32_t>(head / params.repeat);
        LoadRow(format.element, params.kv.Key(page, kv_head, offset),
                params.kv.scale.Key(page, kv_head, offset), format.head_dim, numbers);
        PutHead(numbers, format.head_dim, params.key, row, head);
        LoadRow(format.element, params.kv.Value(page, kv_head, offset),
                params.kv.scale.Value(page, kv_head, offset), format.ValueDim(), numbers);
        PutHead(numbers, format.ValueDim(), params.value, row, head);
      }
    }
  });
}

}  // namespace tramontane

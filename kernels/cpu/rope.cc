// RopeTable and RopeAppend. Plain code, compiled once: no sum is taken here, so every variant has the same
// bits.
#include <cmath>
#include <cstring>

#include "kernels/core/check.h"
#include "kernels/core/kv_quantize.h"
#include "kernels/cpu/ops.h"

namespace tramontane {
namespace {

// Tokens that one claim of a thread takes: enough work to pay for the claim.
constexpr int64_t kTokensPerItem = 8;

// Calls body(token) for every token, shared among the threads.
template <typename Body>
void ForEachToken(ThreadPool& pool, int64_t tokens, Body&& body) {
  pool.ParallelFor((tokens + kTokensPerItem - 1) / kTokensPerItem, [&](int64_t item, int32_t) {
    const int64_t end = std::min(tokens, (item + 1) * kTokensPerItem);
    for (int64_t token = item * kTokensPerItem; token < end; ++token) body(token);
  });
}

// head [head_dim], cos_sin [half, 2].
void RotateHead(RotaryStyle style, const float* __restrict cos_sin, int32_t half, float* __restrict head) {
  const int32_t step = style == RotaryStyle::kHalfSplit ? 1 : 2;
  float* const first = head;
  float* const second = style == RotaryStyle::kHalfSplit ? head + half : head + 1;
  for (int32_t i = 0; i < half; ++i) {
    const float cosine = cos_sin[2 * i];
    const float sine = cos_sin[2 * i + 1];
    const float x = first[i * step];
    const float y = second[i * step];
    first[i * step] = x * cosine - y * sine;
    second[i * step] = x * sine + y * cosine;
  }
}

// One vector of a page: each element rounded once, or each group quantised. scales: where those of the vector
// lie, where it has any.
void StoreVector(const Format& format, const float* __restrict from, int32_t count, std::byte* __restrict to,
                 std::byte* __restrict scales) {
  auto* halves = reinterpret_cast<uint16_t*>(to);
  switch (format.dtype) {
    case DType::kF32:
      std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
      return;
    case DType::kBf16:
      for (int32_t d = 0; d < count; ++d) halves[d] = FloatToBf16(from[d]);
      return;
    case DType::kF16:
      for (int32_t d = 0; d < count; ++d) halves[d] = FloatToF16(from[d]);
      return;
    case DType::kInt8:
    case DType::kInt4:
      return QuantizeKvRow(format, from, count, to, scales);
    case DType::kFp8E4M3:
      return RoundKvRowToFp8(from, count, KvFp8Scale(scales), to);
    default:
      return;  // refused before
  }
}

void ScaleBy(const float* scale, int32_t count, float* numbers) {
  if (scale == nullptr) return;
  for (int32_t i = 0; i < count; ++i) numbers[i] *= *scale;
}

void AppendToken(const RopeAppendParams& params, int64_t token) {
  const KvFormat& format = params.kv.format;
  const int32_t head_dim = format.head_dim;
  const int32_t half = head_dim / 2;
  const int32_t query_columns = params.query_heads * head_dim;
  float* const query = static_cast<float*>(params.qkv.data) + token * params.qkv.row_stride;
  float* const key = query + query_columns;
  const float* const value = key + int64_t{format.kv_heads} * head_dim;
  const float* const query_scale = params.query_scale == nullptr ? nullptr : params.query_scale + token;

  if (params.sink_cos_sin != nullptr) {
    float* const sink_query =
        static_cast<float*>(params.sink_query.data) + token * params.sink_query.row_stride;
    std::memcpy(sink_query, query, static_cast<size_t>(query_columns) * sizeof(float));
    for (int32_t head = 0; head < params.query_heads; ++head) {
      RotateHead(params.style, params.sink_cos_sin + token * head_dim, half,
                 sink_query + int64_t{head} * head_dim);
    }
    ScaleBy(query_scale, query_columns, sink_query);
  }
  if (params.cos_sin != nullptr) {
    const float* cos_sin = params.cos_sin + token * head_dim;
    for (int32_t head = 0; head < params.query_heads + format.kv_heads; ++head) {
      RotateHead(params.style, cos_sin, half, query + int64_t{head} * head_dim);
    }
  }
  ScaleBy(query_scale, query_columns, query);
  const int64_t slot = params.slots[token];
  if (slot < 0) return;
  const int64_t page = PageOfSlot(slot, format.page_size);
  const int32_t offset = OffsetOfSlot(slot, format.page_size);
  for (int32_t head = 0; head < format.kv_heads; ++head) {
    const KvScaleView& scale = params.kv.scale;
    StoreVector(format.element, key + int64_t{head} * head_dim, head_dim, params.kv.Key(page, head, offset),
                scale.Key(page, head, offset));
    if (format.latent()) continue;
    StoreVector(format.element, value + int64_t{head} * head_dim, head_dim,
                params.kv.Value(page, head, offset), scale.Value(page, head, offset));
  }
}

}  // namespace

void CheckKvView(const KvLayerView& kv) {
  const Format& element = kv.format.element;
  TM_CHECK(IsKvElement(element), "keys and values as %s", FormatName(element).c_str());
  TM_CHECK(kv.format.head_dim % element.block_size() == 0 && kv.format.ValueDim() % element.block_size() == 0,
           "head_dim %d in groups of %lld", kv.format.head_dim, static_cast<long long>(element.block_size()));
  TM_CHECK(element.companion_bytes == 0 || kv.scale.scales != nullptr, "pages of %s without scales",
           FormatName(element).c_str());
}

void RunRopeTable(const RopeTableParams& params, const CpuContext& context) {
  ForEachToken(context.pool, params.tokens, [&](int64_t token) {
    float* cos_sin = params.cos_sin + token * params.half_dim * 2;
    for (int32_t i = 0; i < params.half_dim; ++i) {
      const double angle = static_cast<double>(params.positions[token]) * params.inverse_frequency[i];
      cos_sin[2 * i] = static_cast<float>(params.magnitude * std::cos(angle));
      cos_sin[2 * i + 1] = static_cast<float>(params.magnitude * std::sin(angle));
    }
    if (params.query_scale != nullptr) {
      const int32_t times = params.positions[token] / params.query_scale_positions;
      params.query_scale[token] = static_cast<float>(1.0 + params.query_scale_beta * std::log(1.0 + times));
    }
  });
}

void RunRopeAppend(const RopeAppendParams& params, const CpuContext& context) {
  const KvFormat& format = params.kv.format;
  TM_CHECK(params.qkv.dtype == DType::kF32, "qkv is %s, not f32", DTypeName(params.qkv.dtype));
  TM_CHECK(format.head_dim % 2 == 0, "head_dim %d is odd", format.head_dim);
  TM_CHECK(
      params.qkv.columns == int64_t{params.query_heads + format.Halves() * format.kv_heads} * format.head_dim,
      "qkv has %lld columns", static_cast<long long>(params.qkv.columns));
  CheckKvView(params.kv);
  ForEachToken(context.pool, params.qkv.rows, [&](int64_t token) { AppendToken(params, token); });
}

}  // namespace tramontane

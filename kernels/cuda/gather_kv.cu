// GatherKv: keys and values out of pages of any format. Not part of a step: plain rather than fast.
//
// Grid:   (batch, 32) of 128 threads: a block takes every 32nd token of a sequence, a thread one number of
//         the row at a time.
// Bytes:  a block reads 16, and 4 more where tables are rings; a token reads 4 for its page and, for each
//         number that it writes, that number in the page (a whole byte of int4) and its scale where it has
//         one.
// Limits: none but the op's.
// Math:   as the CPU: a number times its scale in f32, rounded once to the type of the rows.
#include "kernels/cuda/device_pages.cuh"
#include "kernels/cuda/kv_numbers.cuh"
#include "kernels/cuda/pointwise.h"

namespace tramontane::cuda {

namespace {

constexpr int kThreads = 128;
constexpr int kBlocksOfASequence = 32;

// Number d of a vector.
TM_DEVICE float NumberAt(const Format& format, const std::byte* vector, const std::byte* scales, int d) {
  switch (format.dtype) {
    case DType::kF32:
      return LoadGlobal(reinterpret_cast<const float*>(vector) + d);
    case DType::kBf16:
      return ToFloat(LoadGlobal(reinterpret_cast<const Bf16*>(vector) + d));
    case DType::kF16:
      return ToFloat(LoadGlobal(reinterpret_cast<const F16*>(vector) + d));
    case DType::kFp8E4M3: {
      const float scale = scales == nullptr ? 1.0f : LoadGlobal(reinterpret_cast<const float*>(scales));
      return FloatOfFp8(LoadGlobal(reinterpret_cast<const uint8_t*>(vector) + d)) * scale;
    }
    default: {
      const bool nibbles = format.dtype == DType::kInt4;
      const int32_t byte = LoadGlobal(reinterpret_cast<const uint8_t*>(vector) + (nibbles ? d / 2 : d));
      const int32_t code = nibbles ? byte >> (d % 2 * 4) & 15 : byte, sign = nibbles ? 8 : 128;
      const float scale = LoadKvScale(format, scales + (d >> format.block_log2) * format.companion_bytes);
      return static_cast<float>((code ^ sign) - sign) * scale;
    }
  }
}

TM_DEVICE void PutNumber(const Tensor& out, int64_t at, float number) {
  if (out.dtype == DType::kF32) return StoreGlobal(static_cast<float*>(out.data) + at, number);
  auto* halves = static_cast<uint16_t*>(out.data) + at;
  StoreGlobal(halves, out.dtype == DType::kBf16 ? FromFloat<Bf16>(number).bits : FromFloat<F16>(number).bits);
}

}  // namespace

TM_KERNEL TM_BOUNDS(kThreads) void GatherKvKernel(GatherKvParams p) {
  AwaitPriorKernels();
  const KvFormat& format = p.kv.format;
  const int b = BlockX();
  const int first_row = LoadUniform(p.out_indptr + b), tokens = LoadUniform(p.out_indptr + b + 1) - first_row;
  const PagesOfSequence pages = LoadPages(p.table, b);
  const int kv_base = LoadUniform(p.table.kv_base + b);
  const bool has_scales = p.kv.scale.scales != nullptr;
  const int heads = format.kv_heads * p.repeat;
  for (int i = BlockY(); i < tokens; i += GridY()) {
    const int64_t page = UniformPageAt(pages, static_cast<int>(PageOf(kv_base + i, 0, format.page_size)));
    const int offset = OffsetInPage(kv_base + i, format.page_size);
    for (int half = 0; half < 2; ++half) {
      const bool is_value = half == 1;
      const int dim = is_value ? format.ValueDim() : format.head_dim;
      const Tensor& out = is_value ? p.value : p.key;
      for (int column = ThreadX(); column < heads * dim; column += kThreads) {
        const int head = column / dim / p.repeat;
        const std::byte* const vector =
            is_value ? p.kv.Value(page, head, offset) : p.kv.Key(page, head, offset);
        const std::byte* const scales = !has_scales ? nullptr
                                        : is_value  ? p.kv.scale.Value(page, head, offset)
                                                    : p.kv.scale.Key(page, head, offset);
        PutNumber(out, (first_row + i) * out.row_stride + column,
                  NumberAt(format.element, vector, scales, column % dim));
      }
    }
  }
}

int LaunchGatherKv(const GatherKvParams& params, void* stream) {
  const Dim3 grid{static_cast<unsigned>(params.batch), kBlocksOfASequence, 1};
  return TM_LAUNCH(GatherKvKernel, grid, Dim3{kThreads}, 0, static_cast<Stream>(stream), params);
}

}  // namespace tramontane::cuda

#include "server/core/kv_export.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "kernels/core/check.h"
#include "kernels/foreign_kv.h"
#include "kernels/kv_rows.h"
#include "server/core/kv_snapshot.h"

namespace tramontane {
namespace {

constexpr std::string_view kOpenPpl = "openppl";
// Rows of zeros beside each row of the file at most: what a model of many narrow windows beside one wide one
// has, and no file that was made up to fill the memory.
constexpr int64_t kMostTimesTheFile = 64;

const char* SafetensorsType(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kBf16:
      return "BF16";
    case DType::kF16:
      return "F16";
    case DType::kFp8E4M3:
      return "F8_E4M3";
    case DType::kInt8:
      return "I8";
    default:
      return "U8";
  }
}

// What is exported, in numbers.
struct KvShape {
  KvFormat rows;       // of all tokens
  int64_t sinks = 0;   // positions [0, sinks)
  int64_t first = 0;   // and those from here on,
  int64_t tokens = 0;  // together so many
  int32_t layers = 0;
  int64_t last_dim = 0;   // X as stored
  int64_t scale_dim = 0;  // X of scales; 0: there are none
};

StatusOr<KvShape> ShapeOf(const v1::SavedKv& saved) {
  KvShape shape;
  shape.layers = saved.layers_size();
  if (shape.layers == 0) return FailedPrecondition("holds keys and values of no layer");
  shape.first = saved.layers(0).begin();
  for (const v1::SavedKvLayer& layer : saved.layers()) {
    shape.first = std::min(shape.first, layer.begin());
    shape.sinks = std::max(shape.sinks, layer.sinks());
  }
  shape.sinks = std::min(shape.sinks, shape.first);
  shape.tokens = shape.sinks + saved.tokens() - shape.first;
  int64_t held = 0;
  for (const v1::SavedKvLayer& layer : saved.layers()) held += layer.sinks() + saved.tokens() - layer.begin();
  if (shape.layers * shape.tokens > kMostTimesTheFile * held) {
    return FailedPrecondition("holds " + std::to_string(held) + " rows of " + std::to_string(shape.layers) +
                              " layers, whose tensors would have " +
                              std::to_string(shape.layers * shape.tokens) + ", more than " +
                              std::to_string(kMostTimesTheFile) + " times as many");
  }
  TM_ASSIGN_OR_RETURN(const KvFormat rows, RowFormatOf(saved, 0));
  shape.rows = FormatOfRows(rows, shape.tokens);
  const Format& element = rows.element;
  shape.last_dim = element.dtype == DType::kInt4 ? rows.VectorBytes() : rows.head_dim;
  shape.scale_dim = element.companion_bytes == 0 ? 0 : element.Blocks(rows.head_dim);
  return shape;
}

ExportedTensor NewTensor(std::string name, const char* dtype, std::vector<int64_t> shape,
                         int64_t bytes_of_last, int64_t last) {
  int64_t vectors = 1;
  for (const int64_t dim : shape) vectors *= dim;
  shape.push_back(last);
  ExportedTensor tensor = {.name = std::move(name), .dtype = dtype, .shape = std::move(shape), .bytes = {}};
  tensor.bytes.resize(static_cast<size_t>(vectors * bytes_of_last));
  return tensor;
}

// The numbers' tensor, and that of their scales where they have any. `shape` without X.
void AddTensors(const KvShape& of, const std::string& prefix, const char* numbers, const char* scales,
                const std::vector<int64_t>& shape, ExportedKv* exported) {
  exported->tensors.push_back(NewTensor(prefix + numbers, SafetensorsType(of.rows.element.dtype), shape,
                                        of.rows.VectorBytes(), of.last_dim));
  if (of.scale_dim == 0) return;
  exported->tensors.push_back(NewTensor(prefix + scales, SafetensorsType(of.rows.element.scale), shape,
                                        of.rows.element.CompanionBytes(of.rows.head_dim), of.scale_dim));
}

// Vectors of so many bytes, whatever is in them.
KvFormat BytesFormat(const KvFormat& like, int64_t vector_bytes) {
  KvFormat format = like;
  format.element = Format::BareFp8();
  format.head_dim = static_cast<int32_t>(vector_bytes);
  return format;
}

// One page of FlashInfer's, the scales in a page of their own.
KvLayerView PageView(const KvShape& shape, KvOrder order, std::byte* numbers, std::byte* scales) {
  KvFormat format = shape.rows;
  format.order = order;
  KvLayerView view = FlashInferView(BytesFormat(format, format.VectorBytes()), numbers);
  view.format = format;
  if (scales == nullptr) return view;
  const int64_t scale_bytes = format.element.CompanionBytes(format.head_dim);
  const KvLayerView apart = FlashInferView(BytesFormat(format, scale_bytes), scales);
  view.scale = {.scales = scales,
                .strides = {.page = apart.page_bytes,
                            .kv = apart.value_offset,
                            .head = apart.head_bytes,
                            .token = apart.token_bytes}};
  return view;
}

StatusOr<KvLayerView> OpenPplLayerView(const KvShape& shape, int32_t layout, int32_t layer,
                                       std::byte* numbers, std::byte* scales) {
  const Format& element = shape.rows.element;
  OpenPplAttributes attributes = {.num_layer = shape.layers, .layer_idx = layer, .cache_layout = layout};
  if (scales != nullptr) {
    attributes.quant_bit = static_cast<int32_t>(8 * element.block_bytes / element.block_size());
    attributes.quant_group = static_cast<int32_t>(element.block_size());
  }
  const OpenPplShape cache = {.cache_tokens = shape.tokens,
                              .kv_heads = shape.rows.kv_heads,
                              .head_dim = shape.rows.head_dim,
                              .has_scale = scales != nullptr};
  TM_ASSIGN_OR_RETURN(const Format row, OpenPplRowFormat(attributes, cache, element.dtype, element.scale));
  return OpenPplView(attributes, cache, row, numbers, scales);
}

std::vector<int64_t> OpenPplDims(const KvShape& shape, int32_t layout) {
  const int64_t t = shape.tokens, l = shape.layers, h = shape.rows.kv_heads;
  switch (layout) {
    case 0:
      return {t, l, 2, h};
    case 1:
      return {l, t, 2, h};
    case 2:
      return {l, 2, t, h};
    default:
      return {l, 2, h, t};
  }
}

Status WrongLayout(const std::string& layout, const std::string& why) {
  return InvalidArgument("is \"" + layout + "\", " + why).WithField("layout", FieldForm::kSubject);
}

}  // namespace

StatusOr<ExportedKv> ExportKv(
    const v1::SavedKv& saved, const std::string& layout,
    const std::function<Status(int32_t layer, std::vector<std::byte>* rows)>& read_layer) {
  const bool known = std::find(std::begin(kKvExportLayouts), std::end(kKvExportLayouts), layout) !=
                     std::end(kKvExportLayouts);
  if (!known) return WrongLayout(layout, "allowed are hnd, nhd and openppl0 to openppl3");
  TM_ASSIGN_OR_RETURN(const KvShape shape, ShapeOf(saved));
  const int64_t heads = shape.rows.kv_heads;
  const bool open_ppl = layout.starts_with(kOpenPpl);
  const int32_t variant = open_ppl ? layout.back() - '0' : 0;
  const KvOrder order = layout == "nhd" ? KvOrder::kNhd : KvOrder::kHnd;
  if (open_ppl && shape.rows.element.dtype == DType::kFp8E4M3) {
    return WrongLayout(layout, "which has no fp8, and the file holds fp8; hnd and nhd have it");
  }

  ExportedKv exported = {.sinks = shape.sinks, .first_position = shape.first, .tensors = {}};
  if (open_ppl) AddTensors(shape, "kv_", "cache", "scale", OpenPplDims(shape, variant), &exported);
  std::vector<std::byte> rows;
  for (int32_t layer = 0; layer < shape.layers; ++layer) {
    TM_RETURN_IF_ERROR(read_layer(layer, &rows));
    TM_ASSIGN_OR_RETURN(const KvFormat format, RowFormatOf(saved, layer));
    TM_CHECK(std::ssize(rows) == RowBytes(format), "%zu bytes of rows", rows.size());
    if (!open_ppl) {
      const std::vector<int64_t> dims = order == KvOrder::kHnd
                                            ? std::vector<int64_t>{1, 2, heads, shape.tokens}
                                            : std::vector<int64_t>{1, 2, shape.tokens, heads};
      AddTensors(shape, "layers." + std::to_string(layer) + ".kv", "", "_scale", dims, &exported);
    }
    const size_t scales_at = exported.tensors.size() - 1;
    std::byte* const scales = shape.scale_dim == 0 ? nullptr : exported.tensors[scales_at].bytes.data();
    std::byte* const numbers = exported.tensors[scales_at - (scales == nullptr ? 0 : 1)].bytes.data();
    KvLayerView out;
    if (open_ppl) {
      TM_ASSIGN_OR_RETURN(out, OpenPplLayerView(shape, variant, layer, numbers, scales));
    } else {
      out = PageView(shape, order, numbers, scales);
    }
    const v1::SavedKvLayer& of = saved.layers(layer);
    const KvLayerView in(format, rows.data(), format.LayerBytes());
    CopyKvRows({.pages = in, .base = 0}, {.pages = out, .base = 0}, 0, std::min(of.sinks(), shape.sinks));
    // What it has in front of its begin beside others' sinks: they may have begun there.
    const int64_t base = shape.first - shape.sinks;
    CopyKvRows({.pages = in, .base = 0}, {.pages = out, .base = base}, shape.first, of.sinks());
    CopyKvRows({.pages = in, .base = of.begin() - of.sinks()}, {.pages = out, .base = base}, of.begin(),
               saved.tokens());
  }
  return exported;
}

}  // namespace tramontane

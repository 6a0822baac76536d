#include "server/sessions/kv_export.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "kernels/core/check.h"
#include "kernels/foreign_kv.h"
#include "kernels/kv_rows.h"
#include "server/sessions/kv_snapshot.h"

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

// [2, kv heads, tokens] vectors of one layer, in whichever order.
int64_t LayerVectors(const KvShape& of) { return 2 * of.rows.kv_heads * of.tokens; }
int64_t LayerNumberBytes(const KvShape& of) { return LayerVectors(of) * of.rows.VectorBytes(); }
int64_t LayerScaleBytes(const KvShape& of) {
  return of.scale_dim == 0 ? 0 : LayerVectors(of) * of.rows.element.CompanionBytes(of.rows.head_dim);
}

// The numbers' tensor, and that of their scales where they have any. `shape` without X.
void AddTensors(const KvShape& of, const std::string& prefix, const char* numbers, const char* scales,
                std::vector<int64_t> shape, int64_t layers, ExportedKv* exported) {
  shape.push_back(of.last_dim);
  exported->tensors.push_back({.name = prefix + numbers,
                               .dtype = SafetensorsType(of.rows.element.dtype),
                               .shape = shape,
                               .bytes = layers * LayerNumberBytes(of)});
  if (of.scale_dim == 0) return;
  shape.back() = of.scale_dim;
  exported->tensors.push_back({.name = prefix + scales,
                               .dtype = SafetensorsType(of.rows.element.scale),
                               .shape = shape,
                               .bytes = layers * LayerScaleBytes(of)});
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

// Layer `layer` of a buffer of so many.
StatusOr<KvLayerView> OpenPplLayerView(const KvShape& shape, int32_t layout, int32_t layer, int32_t layers,
                                       std::byte* numbers, std::byte* scales) {
  const Format& element = shape.rows.element;
  OpenPplAttributes attributes = {.num_layer = layers, .layer_idx = layer, .cache_layout = layout};
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

// What a layout's name says.
struct NamedLayout {
  bool open_ppl = false;
  int32_t variant = 0;            // of OpenPPL
  KvOrder order = KvOrder::kHnd;  // else
  bool is_held_whole() const { return open_ppl && variant == 0; }
};

StatusOr<NamedLayout> LayoutNamed(const std::string& layout, const KvShape& shape) {
  NamedLayout named = {.open_ppl = layout.starts_with(kOpenPpl),
                       .order = layout == "nhd" ? KvOrder::kNhd : KvOrder::kHnd};
  if (named.open_ppl) named.variant = layout.back() - '0';
  if (named.open_ppl && shape.rows.element.dtype == DType::kFp8E4M3) {
    return WrongLayout(layout, "which has no fp8, and the file holds fp8; hnd and nhd have it");
  }
  return named;
}

Status CheckLayoutName(const std::string& layout) {
  const bool known = std::find(std::begin(kKvExportLayouts), std::end(kKvExportLayouts), layout) !=
                     std::end(kKvExportLayouts);
  return known ? Status::Ok() : WrongLayout(layout, "allowed are hnd, nhd and openppl0 to openppl3");
}

// The rows of one layer to where the view has them; what it has not stays as it is.
void CopyLayer(const v1::SavedKv& saved, const KvShape& shape, int32_t layer, const KvFormat& format,
               std::vector<std::byte>& rows, const KvLayerView& out) {
  const v1::SavedKvLayer& of = saved.layers(layer);
  const KvLayerView in(format, rows.data(), format.LayerBytes());
  CopyKvRows({.pages = in, .base = 0}, {.pages = out, .base = 0}, 0, std::min(of.sinks(), shape.sinks));
  // What it has in front of its begin beside others' sinks: they may have begun there.
  const int64_t base = shape.first - shape.sinks;
  CopyKvRows({.pages = in, .base = 0}, {.pages = out, .base = base}, shape.first, of.sinks());
  CopyKvRows({.pages = in, .base = of.begin() - of.sinks()}, {.pages = out, .base = base}, of.begin(),
             saved.tokens());
}

}  // namespace

StatusOr<ExportedKv> DescribeExport(const v1::SavedKv& saved, const std::string& layout) {
  TM_RETURN_IF_ERROR(CheckLayoutName(layout));
  TM_ASSIGN_OR_RETURN(const KvShape shape, ShapeOf(saved));
  TM_ASSIGN_OR_RETURN(const NamedLayout named, LayoutNamed(layout, shape));
  ExportedKv exported = {.sinks = shape.sinks, .first_position = shape.first, .tensors = {}};
  if (named.open_ppl) {
    AddTensors(shape, "kv_", "cache", "scale", OpenPplDims(shape, named.variant), shape.layers, &exported);
    return exported;
  }
  const int64_t heads = shape.rows.kv_heads;
  const std::vector<int64_t> dims = named.order == KvOrder::kHnd
                                        ? std::vector<int64_t>{1, 2, heads, shape.tokens}
                                        : std::vector<int64_t>{1, 2, shape.tokens, heads};
  for (int32_t layer = 0; layer < shape.layers; ++layer) {
    AddTensors(shape, "layers." + std::to_string(layer) + ".kv", "", "_scale", dims, 1, &exported);
  }
  return exported;
}

Status ExportKv(const v1::SavedKv& saved, const std::string& layout,
                const std::function<Status(int32_t layer, std::vector<std::byte>* rows)>& read_layer,
                const std::function<Status(std::span<const std::byte> bytes)>& write) {
  TM_RETURN_IF_ERROR(CheckLayoutName(layout));
  TM_ASSIGN_OR_RETURN(const KvShape shape, ShapeOf(saved));
  TM_ASSIGN_OR_RETURN(const NamedLayout named, LayoutNamed(layout, shape));
  const int32_t held = named.is_held_whole() ? shape.layers : 1;  // layers whose numbers are
  const int32_t held_scales = named.open_ppl ? shape.layers : 1;
  std::vector<std::byte> numbers(static_cast<size_t>(held * LayerNumberBytes(shape)));
  std::vector<std::byte> scales(static_cast<size_t>(held_scales * LayerScaleBytes(shape)));
  std::vector<std::byte> rows;
  for (int32_t layer = 0; layer < shape.layers; ++layer) {
    TM_RETURN_IF_ERROR(read_layer(layer, &rows));
    TM_ASSIGN_OR_RETURN(const KvFormat format, RowFormatOf(saved, layer));
    TM_CHECK(std::ssize(rows) == RowBytes(format), "%zu bytes of rows", rows.size());
    std::byte* scales_of_layer = scales.empty() ? nullptr : scales.data();
    KvLayerView out;
    if (named.is_held_whole()) {
      TM_ASSIGN_OR_RETURN(
          out, OpenPplLayerView(shape, named.variant, layer, shape.layers, numbers.data(), scales_of_layer));
      CopyLayer(saved, shape, layer, format, rows, out);
      continue;
    }
    std::fill(numbers.begin(), numbers.end(), std::byte{0});
    if (named.open_ppl) {
      if (scales_of_layer != nullptr) scales_of_layer += layer * LayerScaleBytes(shape);
      TM_ASSIGN_OR_RETURN(out, OpenPplLayerView(shape, named.variant, 0, 1, numbers.data(), scales_of_layer));
    } else {
      std::fill(scales.begin(), scales.end(), std::byte{0});
      out = PageView(shape, named.order, numbers.data(), scales_of_layer);
    }
    CopyLayer(saved, shape, layer, format, rows, out);
    TM_RETURN_IF_ERROR(write(numbers));
    if (!named.open_ppl && !scales.empty()) TM_RETURN_IF_ERROR(write(scales));
  }
  if (named.is_held_whole()) TM_RETURN_IF_ERROR(write(numbers));
  return named.open_ppl && !scales.empty() ? write(scales) : Status::Ok();
}

}  // namespace tramontane

#include "server/sessions/kv_snapshot.h"

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "kernels/core/check.h"
#include "kernels/core/dtype.h"
#include "kernels/paged_kv.h"
#include "models/opened_model.h"

namespace tramontane {
namespace {

constexpr int32_t kMostHeads = 1 << 16;
constexpr int32_t kMostHeadDim = 1 << 16;
constexpr std::array kKvTypes = {DType::kF32,     DType::kBf16, DType::kF16,
                                 DType::kFp8E4M3, DType::kInt8, DType::kInt4};

int32_t GroupOf(const Format& element) {
  return element.plain() ? 0 : static_cast<int32_t>(element.block_size());
}

std::string ElementText(const std::string& dtype, int32_t group) {
  return group == 0 ? dtype : dtype + " in groups of " + std::to_string(group);
}

KvPagesFrom PageAt(const KvLayout& layout, const KvPages::Image& image, int32_t layer_in_group,
                   int64_t block) {
  return {.pages = layout.LayerView(image.get(), layer_in_group), .base = block * layout.format.page_size};
}

// Calls visit(first, end) for the rows of a layer that lie in the block: those in sight for ever, and those
// from its begin on.
template <typename Visit>
void ForEachPartOf(const v1::SavedKv& saved, const v1::SavedKvLayer& layer, int64_t block, int32_t page_size,
                   const Visit& visit) {
  const int64_t first = block * page_size;
  const int64_t end = first + page_size;
  if (first < layer.sinks()) visit(first, std::min(end, layer.sinks()));
  const int64_t behind = std::max(first, layer.begin());
  if (behind < std::min(end, saved.tokens())) visit(behind, std::min(end, saved.tokens()));
}

}  // namespace

v1::SavedKv DescribeKv(const KvPages& pages, const KvLayout& layout, const ContextPolicy& policy) {
  v1::SavedKv saved;
  saved.set_dtype(DTypeName(layout.format.element.dtype));
  saved.set_group(GroupOf(layout.format.element));
  saved.set_kv_heads(layout.format.kv_heads);
  saved.set_head_dim(layout.format.head_dim);
  saved.set_tokens(pages.tokens);
  for (const KvLayout::Place& place : layout.places) {
    const auto group = static_cast<size_t>(place.group);
    const SeenOfGroup seen = SeenBehind(pages.tokens, layout, policy, group);
    v1::SavedKvLayer* layer = saved.add_layers();
    layer->set_begin(seen.begin);
    layer->set_sinks(seen.sinks);
    layer->set_window(layout.groups[group].window);
  }
  return saved;
}

StatusOr<KvFormat> RowFormatOf(const v1::SavedKv& saved, int32_t layer) {
  const auto out_of = [](const char* name, int64_t value, int64_t most) {
    return InvalidArgument("is " + std::to_string(value) + ", the range is [1, " + std::to_string(most) + "]")
        .WithField(name, FieldForm::kSubject);
  };
  if (saved.kv_heads() < 1 || saved.kv_heads() > kMostHeads)
    return out_of("kv_heads", saved.kv_heads(), kMostHeads);
  if (saved.head_dim() < 1 || saved.head_dim() > kMostHeadDim) {
    return out_of("head_dim", saved.head_dim(), kMostHeadDim);
  }
  if (saved.tokens() < 1 || saved.tokens() > kMaxContext)
    return out_of("tokens", saved.tokens(), kMaxContext);
  const int64_t begin = saved.layers(layer).begin();
  if (begin < 0 || begin >= saved.tokens()) {
    return InvalidArgument("is " + std::to_string(begin) + ", the range is [0, " +
                           std::to_string(saved.tokens() - 1) + "]")
        .WithField(FieldElement("layers", static_cast<size_t>(layer)) + ".begin", FieldForm::kSubject);
  }
  const int64_t sinks = saved.layers(layer).sinks();
  if (sinks < 0 || sinks > begin) {
    return InvalidArgument("is " + std::to_string(sinks) + ", the range is [0, " + std::to_string(begin) +
                           "]")
        .WithField(FieldElement("layers", static_cast<size_t>(layer)) + ".sinks", FieldForm::kSubject);
  }
  const auto dtype = std::find_if(kKvTypes.begin(), kKvTypes.end(),
                                  [&](DType type) { return saved.dtype() == DTypeName(type); });
  if (dtype == kKvTypes.end()) {
    return InvalidArgument("is \"" + saved.dtype() + "\", which is no type of numbers")
        .WithField("dtype", FieldForm::kSubject);
  }
  KvFormat format;
  TM_ASSIGN_OR_RETURN(format.element,
                      KvElementOf({.dtype = *dtype, .group = saved.group()}, saved.head_dim()));
  format.kv_heads = saved.kv_heads();
  format.head_dim = saved.head_dim();
  return FormatOfRows(format, sinks + saved.tokens() - begin);
}

int64_t RowBaseOf(const v1::SavedKvLayer& layer, int64_t position) {
  return position < layer.sinks() ? 0 : layer.begin() - layer.sinks();
}

int64_t RowBytes(const KvFormat& rows) { return rows.LayerBytes(); }

std::string KvElementText(const v1::SavedKv& saved) { return ElementText(saved.dtype(), saved.group()); }

std::string KvFault(const v1::SavedKv& saved, const KvLayout& layout) {
  const KvFormat& format = layout.format;
  const std::string served = ElementText(DTypeName(format.element.dtype), GroupOf(format.element));
  if (KvElementText(saved) != served) {
    return "holds keys and values as " + KvElementText(saved) + ", and this server keeps them as " + served +
           " (--kv-dtype, --kv-group)";
  }
  bool same = saved.kv_heads() == format.kv_heads && saved.head_dim() == format.head_dim &&
              saved.layers_size() == std::ssize(layout.places) && !format.latent();
  for (int32_t layer = 0; same && layer < saved.layers_size(); ++layer) {
    const KvLayout::Place& place = layout.places[static_cast<size_t>(layer)];
    same = saved.layers(layer).window() == layout.groups[static_cast<size_t>(place.group)].window;
  }
  return same ? "" : "holds keys and values of other layers than those of this model";
}

void RowsOfPages(const KvPages& pages, const KvLayout& layout, const v1::SavedKv& saved, int32_t layer,
                 std::vector<std::byte>* rows) {
  const v1::SavedKvLayer& of = saved.layers(layer);
  const KvFormat format = FormatOfRows(layout.format, of.sinks() + saved.tokens() - of.begin());
  rows->resize(static_cast<size_t>(RowBytes(format)));
  const KvLayout::Place& place = layout.places[static_cast<size_t>(layer)];
  const int32_t page_size = layout.format.page_size;
  const auto group = static_cast<size_t>(place.group);
  for (int64_t block = 0; block * page_size < saved.tokens(); ++block) {
    ForEachPartOf(saved, of, block, page_size, [&](int64_t begin, int64_t end) {
      const KvPagesFrom to = {.pages = KvLayerView(format, rows->data(), format.LayerBytes()),
                              .base = RowBaseOf(of, begin)};
      const KvPages::Image& image = pages.at(group, static_cast<size_t>(block));
      CopyKvRows(PageAt(layout, image, place.layer_in_group, block), to, begin, end);
    });
  }
}

PagesOfRows::PagesOfRows(const KvLayout& layout, const v1::SavedKv& saved, const ContextPolicy& policy)
    : layout_(layout), saved_(saved), policy_(policy) {
  const int32_t page_size = layout.format.page_size;
  const int64_t blocks = PagesFor(saved.tokens(), page_size);
  pages_.tokens = saved.tokens();
  pages_.Resize(layout.groups.size(), blocks);
  for (size_t group = 0; group < layout.groups.size(); ++group) {
    int64_t begin = 0;
    int64_t sinks = INT64_MAX;
    for (const int32_t layer : layout.groups[group].layers) {
      begin = std::max(begin, saved.layers(layer).begin());
      sinks = std::min(sinks, saved.layers(layer).sinks());
    }
    const SeenOfGroup seen = SeenBehind(saved.tokens(), layout, policy, group);
    if (begin > seen.begin || (seen.begin > 0 && sinks < seen.sinks)) pages_.tokens = 0;
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t first = block * page_size;
      const int64_t end = first + page_size;
      const bool is_whole = end <= sinks || (first >= begin && end <= saved.tokens());
      if (!is_whole && first >= sinks && end <= begin) continue;
      auto& lists = is_whole ? pages_.groups : pages_.parts;
      lists[group][static_cast<size_t>(block)] =
          std::make_unique<std::byte[]>(static_cast<size_t>(layout.page_bytes()));
    }
  }
}

void PagesOfRows::Add(int32_t layer, std::vector<std::byte>& rows) {
  const v1::SavedKvLayer& of = saved_.layers(layer);
  const KvFormat format = FormatOfRows(layout_.format, of.sinks() + saved_.tokens() - of.begin());
  TM_CHECK(std::ssize(rows) == RowBytes(format), "%zu bytes of rows", rows.size());
  const KvLayout::Place& place = layout_.places[static_cast<size_t>(layer)];
  const int32_t page_size = layout_.format.page_size;
  const auto group = static_cast<size_t>(place.group);
  for (size_t block = 0; block < pages_.blocks(); ++block) {
    const KvPages::Image& image = pages_.at(group, block);
    if (image == nullptr) continue;
    const auto number = static_cast<int64_t>(block);
    ForEachPartOf(saved_, of, number, page_size, [&](int64_t begin, int64_t end) {
      const KvPagesFrom from = {.pages = KvLayerView(format, rows.data(), format.LayerBytes()),
                                .base = RowBaseOf(of, begin)};
      CopyKvRows(from, PageAt(layout_, image, place.layer_in_group, number), begin, end);
    });
  }
}

KvPages PagesOfRows::Take() {
  if (pages_.tokens == 0) KeepWholePages(&pages_, layout_, policy_);
  return std::move(pages_);
}

}  // namespace tramontane

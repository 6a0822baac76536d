// Pages of keys and values: the only place that turns (page, layer, head, offset) into an address, and an
// index in a page table into an absolute position. Both backends and the page tables of engine/ include this.
// Any thread; plain values, they cross the library border of a backend.
//
// One pool serves every layer group. A page holds `page_size` consecutive tokens of *all* layers of its
// group:
//
//   page p:  | layer 0: K [kv_heads, page_size, head_dim] | layer 0: V ... | layer 1: K | layer 1: V | ...
//
// Where numbers are quantised in groups, each K and each V is followed by its scales
// [kv_heads, page_size, head_dim / group].
//
// That is HND order; NHD (page_size before kv_heads) is the same view with other strides. A layer is named by
// its index *within its group*, so groups of equal layer count have pages of equal bytes. Buffers that others
// laid out are views too: five strides (KvStrides) say where page, half, layer, head and token lie
// (foreign_kv.h). A latent page has no values apart: a row's first lanes are its value.
//
// A sequence's table for one group lists the pages of positions kv_base and on; kv_base is a multiple of
// page_size and grows as pages leave the window. Where its first tokens stay visible as sinks, the pages that
// hold positions from 0 on are listed apart (sink_entry).
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/core/broken_rule.h"
#include "kernels/core/format.h"

namespace tramontane {

// A page of a pool whose bytes go to the host, or come from there.
struct PageMove {
  enum class Way : int32_t { kOut = 0, kIn = 1 };
  Way way = Way::kOut;
  int32_t page = 0;
  std::byte* image = nullptr;  // host [page_bytes]
};

enum class KvOrder : int32_t { kHnd = 0, kNhd = 1 };

// The shape of one layer's part of a page.
struct KvFormat {
  Format element = DType::kBf16;  // how keys and values are stored
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t page_size = 16;  // tokens
  KvOrder order = KvOrder::kHnd;
  // Of latent pages (multi-head latent attention): a row's value is its first so many lanes, and there is no
  // other. 0: values lie apart, as wide as keys.
  int32_t latent_value_dim = 0;

  constexpr bool latent() const { return latent_value_dim > 0; }
  // Lanes of a value, and of a head's output.
  constexpr int32_t ValueDim() const { return latent() ? latent_value_dim : head_dim; }
  // Keys, or keys and values.
  constexpr int32_t Halves() const { return latent() ? 1 : 2; }
  // One head's key (value) of one token, head_dim numbers side by side: whole blocks, where there are blocks.
  constexpr int64_t VectorBytes() const { return element.Bytes(head_dim); }
  // K or V of one layer in one page; companions, where the format has any, behind the numbers.
  constexpr int64_t HalfLayerBytes() const {
    return int64_t{kv_heads} * page_size * (VectorBytes() + element.CompanionBytes(head_dim));
  }
  constexpr int64_t LayerBytes() const { return Halves() * HalfLayerBytes(); }
  constexpr int64_t PageBytes(int32_t layers) const { return layers * LayerBytes(); }
  // Keys and values of one token in one layer.
  constexpr int64_t TokenBytes() const {
    return Halves() * int64_t{kv_heads} * (VectorBytes() + element.CompanionBytes(head_dim));
  }
  // Vectors from one head to the next, and from one token to the next.
  constexpr int32_t HeadStride() const { return order == KvOrder::kHnd ? page_size : 1; }
  constexpr int32_t TokenStride() const { return order == KvOrder::kHnd ? 1 : kv_heads; }
};

// Bytes from one page, half (a key to its value), layer, head and token to the next.
struct KvStrides {
  int64_t page = 0;
  int64_t kv = 0;
  int64_t layer = 0;
  int64_t head = 0;
  int64_t token = 0;
};

// Of a pool whose pages take so many bytes.
constexpr KvStrides StridesOfPool(const KvFormat& format, int64_t page_bytes) {
  return {.page = page_bytes,
          .kv = format.latent() ? 0 : format.HalfLayerBytes(),
          .layer = format.LayerBytes(),
          .head = format.HeadStride() * format.VectorBytes(),
          .token = format.TokenStride() * format.VectorBytes()};
}

// Where the scales of quantised rows lie, apart from their numbers: those of a row's groups side by side. Of
// fp8, which has one f32 scale for each head, the strides of pages and tokens are 0.
struct KvScaleView {
  std::byte* scales = nullptr;  // of the layer; null: the format has none apart
  KvStrides strides = {};

  // fp8's scales [2, kv_heads]: of the layer's keys, then of its values.
  static KvScaleView OfFp8(float* scales, int32_t kv_heads) {
    constexpr int64_t kBytes = sizeof(float);
    return {.scales = reinterpret_cast<std::byte*>(scales),
            .strides = {.kv = kv_heads * kBytes, .head = kBytes}};
  }

  constexpr std::byte* Key(int64_t page, int32_t kv_head, int32_t offset) const {
    return scales + page * strides.page + kv_head * strides.head + offset * strides.token;
  }
  constexpr std::byte* Value(int64_t page, int32_t kv_head, int32_t offset) const {
    return Key(page, kv_head, offset) + strides.kv;
  }
};

// Of a layer whose scales stand behind its numbers.
constexpr KvScaleView ScalesInPages(const KvFormat& format, std::byte* pool, int64_t page_bytes,
                                    int64_t layer_offset) {
  const int64_t scale_bytes = format.element.CompanionBytes(format.head_dim);
  if (pool == nullptr || scale_bytes == 0) return {};
  return {.scales = pool + layer_offset + int64_t{format.kv_heads} * format.page_size * format.VectorBytes(),
          .strides = {.page = page_bytes,
                      .kv = format.latent() ? 0 : format.HalfLayerBytes(),
                      .layer = format.LayerBytes(),
                      .head = format.HeadStride() * scale_bytes,
                      .token = format.TokenStride() * scale_bytes}};
}

// The pages of one layer: where a (page, head, offset) lies. What follows from the format is computed here
// once, so that a kernel multiplies and adds and no more.
struct KvLayerView {
  constexpr KvLayerView() = default;
  constexpr explicit KvLayerView(const KvFormat& of, std::byte* pages = nullptr, int64_t bytes_of_page = 0,
                                 int64_t offset_of_layer = 0)
      : KvLayerView(of, StridesOfPool(of, bytes_of_page), pages) {
    layer_offset = offset_of_layer;
    scale = ScalesInPages(of, pages, bytes_of_page, offset_of_layer);
  }
  // Any layout: layer `layer` of a buffer with such strides. format.order says nothing then, and scales that
  // lie apart are the caller's to name.
  constexpr KvLayerView(const KvFormat& of, const KvStrides& strides, std::byte* buffer, int64_t layer = 0)
      : pool(buffer),
        page_bytes(strides.page),
        layer_offset(layer * strides.layer),
        value_offset(strides.kv),
        head_bytes(strides.head),
        token_bytes(strides.token),
        format(of) {}

  std::byte* pool = nullptr;
  int64_t page_bytes = 0;    // from one page to the next
  int64_t layer_offset = 0;  // from a page's start to this layer's K
  int64_t value_offset = 0;  // from a key to its value
  int64_t head_bytes = 0;    // from one head to the next
  int64_t token_bytes = 0;   // from one token to the next
  KvFormat format;
  KvScaleView scale = {};

  // The key (value) vector of one head and token.
  constexpr std::byte* Key(int64_t page, int32_t kv_head, int32_t offset) const {
    return pool + page * page_bytes + layer_offset + kv_head * head_bytes + offset * token_bytes;
  }
  constexpr std::byte* Value(int64_t page, int32_t kv_head, int32_t offset) const {
    return Key(page, kv_head, offset) + value_offset;
  }
};

// Page tables of a batch for one layer group. Device memory but for listed_pages. A sequence's pages are a
// ring, or a list:
//
//   page_indices:   ... | sinks: 0 1 2 . | others: 16 9 10 11 12 13 14 15 | ...      page_mask 7
//                         ^ sink_entry     ^ first_entry
//
// The page with absolute number n (positions n * page_size and on) is entry first_entry + (n & page_mask): a
// window rolls on and no entry moves. Entries of pages that no query of the batch sees may be others'.
// Compressed rows (FlashInfer's vocabulary) are the case in which every bit of the mask is set: first_entry
// is kv_indptr, less the number of the first page that is listed.
struct PageTableView {
  const int32_t* page_indices = nullptr;  // page ids of all sequences
  const int32_t* first_entry = nullptr;   // [batch] where page 0 is, or would be
  const int32_t* page_mask = nullptr;     // [batch] a power of two less one, or -1; null: -1 for all
  const int32_t* kv_base = nullptr;     // [batch] position of the first token that is listed: a page's first
  const int32_t* kv_end = nullptr;      // [batch] position after the last one
  const int32_t* sink_entry = nullptr;  // [batch] where page 0 is for sinks; null: among the others
  // Where each token of the step is written: page * page_size + offset, or -1 for a padded row (write
  // nothing).
  const int64_t* slots = nullptr;  // [tokens]
  // Pages from kv_base to kv_end of all sequences for which windows decide, who have neither sinks nor a
  // mask: so many at most, a page that several list counted for each. 0: only the device knows (a recorded
  // step).
  int64_t listed_pages = 0;
};

// Sequence b's pages by absolute number.
struct PagesOfSequence {
  const int32_t* entries = nullptr;
  int32_t mask = -1;

  constexpr int32_t operator[](int64_t page) const { return entries[page & mask]; }
};
constexpr PagesOfSequence PagesOf(const PageTableView& table, int32_t b) {
  return {table.page_indices + table.first_entry[b], table.page_mask == nullptr ? -1 : table.page_mask[b]};
}
constexpr PagesOfSequence SinkPagesOf(const PageTableView& table, int32_t b) {
  if (table.sink_entry == nullptr) return PagesOf(table, b);
  return {table.page_indices + table.sink_entry[b], -1};
}

// Index of a position's page in its table, and its offset in that page.
constexpr int64_t PageOf(int64_t position, int64_t kv_base, int32_t page_size) {
  return (position - kv_base) / page_size;
}
constexpr int32_t OffsetInPage(int64_t position, int32_t page_size) {
  return static_cast<int32_t>(position % page_size);
}
constexpr int64_t SlotOf(int64_t page, int64_t position, int32_t page_size) {
  return page * page_size + OffsetInPage(position, page_size);
}
constexpr int64_t PageOfSlot(int64_t slot, int32_t page_size) { return slot / page_size; }
constexpr int32_t OffsetOfSlot(int64_t slot, int32_t page_size) {
  return static_cast<int32_t>(slot % page_size);
}
constexpr int64_t PagesFor(int64_t tokens, int32_t page_size) { return (tokens + page_size - 1) / page_size; }

// First position that a query at `position` may see: the window counts the query itself. No window: 0.
constexpr int64_t FirstVisible(int64_t position, int32_t window) {
#ifndef __CUDACC__
  if (!std::is_constant_evaluated() && IsBroken(KvRule::kWindow) && window > 0) ++window;
#endif
  return window <= 0 || position < window ? 0 : position - window + 1;
}
// The other way round: first position of a query that no more sees the key at `position`. The window is one.
constexpr int64_t FirstBlind(int64_t position, int32_t window) { return position + window; }

}  // namespace tramontane

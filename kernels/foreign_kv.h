// Keys and values that others laid out, and the index inputs that others' operators take: what becomes of
// them here. Any thread; pure functions of host memory.
//
// Nothing of this is a pool of its own. A layout is five strides of one KvLayerView, and index inputs become
// a page table, so append, gather and attention are the same kernels over all of them:
//
//   FlashInfer   NHD (page, 2, token, head, dim) and HND (page, 2, head, token, dim), keys and values in one
//                buffer or in two; CSR page tables are ours already.
//   OpenPPL      KeyValueCache's layouts over a buffer of T token slots, with layer and half inside:
//                0 (T, L, 2, H, X)   1 (L, T, 2, H, X)   2 (L, 2, T, H, X)   3 (L, 2, H, T, X)
//                where X is Dh numbers, Dh / 2 bytes for 4 bits, Dh / group for scales. A page begins at any
//                token slot: the view's page stride is its token stride, and a page id is the slot that a
//                page begins at.
//
// Every check of an input is an INVALID_ARGUMENT that names the argument, the element and the limit.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/core/status.h"
#include "kernels/paged_kv.h"

namespace tramontane {

// A batch's page tables (PageTableView, without rings) and write slots, on the host.
struct HostPageTables {
  std::vector<int32_t> page_indices;
  std::vector<int32_t> first_entry;
  std::vector<int32_t> kv_base;
  std::vector<int32_t> kv_end;
  std::vector<int64_t> slots;  // of the rows that are appended

  int32_t batch() const { return static_cast<int32_t>(kv_base.size()); }
  // Tokens that sequence b's table lists.
  int32_t Length(int32_t b) const;
  // Lists another sequence's tokens [base, end) in these pages; base is a multiple of page_size.
  void Add(std::span<const int32_t> pages, int64_t base, int64_t end, int32_t page_size);
  // Of memory of the host. Valid until the tables change.
  PageTableView View() const;
};

// ---- FlashInfer

// keys: of one buffer for both halves ("single"), or the keys' own; values null: behind the keys of a page.
KvLayerView FlashInferView(const KvFormat& format, std::byte* keys, std::byte* values = nullptr);

// kv_indptr, kv_page_indices and kv_last_page_len as given. Checked: kv_indptr from 0, monotone and as long
// as the others say; page indices in [0, num_pages); last_page_len in 1..page_size, 0 for a sequence without
// a page.
StatusOr<HostPageTables> FlashInferTables(std::vector<int32_t> kv_indptr, std::vector<int32_t> page_indices,
                                          std::vector<int32_t> last_page_len, int32_t page_size,
                                          int32_t num_pages);

// Adds the slots of rows appended to such tables, which count them already: each sequence's last ones.
// Checked: append_indptr from 0, monotone and as long as the batch; no sequence appends more than it holds;
// no slot is written twice.
Status AddAppendSlots(const std::vector<int32_t>& append_indptr, int32_t page_size, HostPageTables* tables);

// Starts of ragged rows: from 0, monotone, of batch + 1 elements. `name` is the argument's.
Status CheckIndptr(const char* name, const std::vector<int32_t>& indptr, int64_t batch);

// ---- OpenPPL

// The operator's attributes.
struct OpenPplAttributes {
  int32_t num_layer = 1;
  int32_t layer_idx = 0;
  int32_t quant_bit = 0;  // 0, 8 or 4
  int32_t quant_group = 8;
  int32_t num_repeat = 1;
  int32_t cache_mode = 0;    // 0: a sequence's slots follow each other; 1: pages
  int32_t cache_layout = 0;  // 0 to 3
  int32_t page_size = 128;   // of mode 1
};

// Its inputs. Lengths are 64 bits there, and must fit 32 here.
struct OpenPplInputs {
  std::vector<int64_t> seqstarts;    // [batch + 1] rows of current_key
  std::vector<int64_t> kvstarts;     // [batch + 1] rows of the output key
  std::vector<int64_t> cachestarts;  // mode 0: [batch]; mode 1: [batch, pages], -1 is unused
  std::vector<int64_t> start_pos;    // [batch] tokens before the current ones
  int64_t max_seqlen = 0;
  int64_t max_kvlen = 0;
};

struct OpenPplShape {
  int64_t cache_tokens = 0;  // T
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int64_t current_rows = 0;  // of current_key
  bool has_scale = false;
};

// Rows of int8 as they come, which nothing scales: they are copied (kv_rows.h), and no op computes with them.
inline constexpr Format kBareInt8 = {DType::kInt8, 0, 1, 0};

// Row format of the cache: `plain` where nothing is quantised (f32, bf16, f16 or kBareInt8), else integers
// with scales of `scales`. Checked: quant_bit 0, 8 or 4, and 0 of rows that come in int8; quant_group a power
// of two from 2 to 128 dividing head_dim; a scale buffer exactly where quant_bit is not 0.
StatusOr<Format> OpenPplRowFormat(const OpenPplAttributes& attributes, const OpenPplShape& shape,
                                  const Format& plain, DType scales);

// The view of one layer of a buffer in layout 0 to 3.
StatusOr<KvLayerView> OpenPplView(const OpenPplAttributes& attributes, const OpenPplShape& shape, Format row,
                                  std::byte* cache, std::byte* scale);

// Page tables of such a view, the slots of the current rows included. Checked: all starts from 0 and
// monotone; seqlens at most max_seqlen and kvlens at most max_kvlen; kvlen = start_pos + seqlen; every slot
// in the buffer, and none written twice.
StatusOr<HostPageTables> OpenPplTables(const OpenPplAttributes& attributes, const OpenPplInputs& inputs,
                                       const OpenPplShape& shape);

// Tokens of a page of those tables: page_size in mode 1, the whole buffer in mode 0.
int32_t OpenPplPageSize(const OpenPplAttributes& attributes, const OpenPplShape& shape);

}  // namespace tramontane

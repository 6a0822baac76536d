// What an attention call is given, and the mask rule in words.
//
// The mask: a query at absolute position p sees the keys at positions max(0, p - window + 1) .. p, itself
// included: `window` keys once the sequence is long enough. window 0 means no window (never a large number).
// Prefill and decode are one operation: the queries of sequence b are the *last* qo_indptr[b+1] -
// qo_indptr[b] tokens of its page table, so query i of b has position kv_end[b] - count + i. Keys are already
// in their pages, rotated by absolute position.
//
// A mask instead of the window (`mask`): it alone decides, over the tokens that the table lists, whatever
// their order; builders of masks.h make it, with a group's window folded in. Causal order, windows, trees of
// candidates and ragged batches are all masks. A sequence whose part of the mask is empty has none: its
// window (and its sinks) decide.
//
// Sinks (`sinks`, StreamingLLM): a row also sees the sequence's first `len` tokens, however far behind, and
// of the others those from `left` on. Sink keys stand as they were rotated; where tokens between them and the
// window were discarded, the query that meets them is turned back by as many positions instead
// (`sinks.query`, rotated at `query_position`): scores depend on differences only, so that equals moving
// every key of the window up, and no key is ever turned again. Softmax runs over both kinds together.
//
// The window shortens the loop: a page without a visible key is never read, and neither are slots beyond
// kv_end. Softmax: scores * scale in f32, max subtracted, f32 sums. A row of queries with no key gives zeros.
// Query head h reads kv head h / (query_heads / kv_heads).
#pragma once

#include <cstdint>

#include "kernels/core/tensor.h"
#include "kernels/paged_kv.h"

namespace tramontane {

// Keys are summed by where a table lists them. Listed elsewhere, by a multiple of this farther on, with keys
// in between that a mask hides, they are summed in the same order: the CPU gives the same bits.
inline constexpr int32_t kAttentionOrderKeys = 512;

// A mask of bits for each sequence: bit q * keys + k says whether its query q sees the k-th token its table
// lists from kv_base on. Least significant first; each sequence begins at a byte. No byte: it has no mask.
struct AttentionMaskView {
  const uint8_t* bits = nullptr;    // null: no mask, the window decides
  const int32_t* indptr = nullptr;  // [batch + 1] in bytes
};

// What rows see beside their window. Positions within a sequence ascend, and `len` and `left` with them. A
// row whose both are 0 sees what it would without.
struct AttentionSinks {
  const int32_t* len = nullptr;             // [tokens] sink_len: 0 and up; null: no row has sinks
  const int32_t* left = nullptr;            // [tokens] first visible position that is no sink
  const int32_t* query_position = nullptr;  // [tokens] where the query stands for sink keys
  Tensor query = {};                        // [tokens, query_heads * head_dim] rotated there
  int32_t windowed = 0;  // 1: a sink farther than the window from query_position is hidden too
};

// Sequences in front of the batch that have neither sinks nor a mask, and their tokens; or, of a step that is
// recorded, where to read which those are by then.
struct AttentionPlain {
  int32_t sequences = 0;
  int32_t tokens = 0;
  // [batch + 1] each, as AttentionParams::qo_indptr: the others have no token in the first, and these none in
  // the second. Null: the numbers say it.
  const int32_t* qo_indptr = nullptr;
  const int32_t* others_qo_indptr = nullptr;

  constexpr bool any() const { return sequences > 0 || qo_indptr != nullptr; }
};

struct AttentionParams {
  Tensor query;    // [tokens, query_heads * head_dim]; row_stride may be wider (q lies inside qkv)
  Tensor out;      // [tokens, query_heads * head_dim]; of latent pages [tokens, query_heads * ValueDim()]
  KvLayerView kv;  // this layer's pages
  PageTableView table;
  const int32_t* qo_indptr = nullptr;  // [batch + 1] first token of each sequence in `query`
  int32_t batch = 0;                   // sequences; padded ones have no token
  int32_t query_heads = 0;
  int32_t window = 0;  // keys a query sees, itself included; 0: all before it
  float scale = 0.0f;  // head_dim^-0.5
  AttentionMaskView mask = {};
  AttentionSinks sinks = {};  // of sequences without a mask
  // Where others have sinks or a mask: a backend may serve these as if nobody had. Fewer than there are will
  // do, and none, too.
  AttentionPlain plain = {};
  // [tokens, query_heads] log2 of the sum of e^score over the keys that a row sees, -inf where it sees none;
  // null: not wanted.
  float* lse = nullptr;
};

}  // namespace tramontane

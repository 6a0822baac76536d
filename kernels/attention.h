// What an attention call is given, and the mask rule in words.
//
// The mask: a query at absolute position p sees the keys at positions max(0, p - window + 1) .. p, itself
// included: `window` keys once the sequence is long enough. window 0 means no window (never a large number).
// Prefill and decode are one operation: the queries of sequence b are the *last* qo_indptr[b+1] -
// qo_indptr[b] tokens of its page table, so query i of b has position KvEnd(b) - count + i. Keys are already
// in their pages, rotated by absolute position.
//
// The window shortens the loop: a page without a visible key is never read, and neither are slots beyond
// KvEnd. Softmax: scores * scale in f32, max subtracted, f32 sums. A row of queries with no key gives zeros.
// Query head h reads kv head h / (query_heads / kv_heads).
#pragma once

#include <cstdint>

#include "kernels/core/tensor.h"
#include "kernels/paged_kv.h"

namespace tramontane {

struct AttentionParams {
  Tensor query;    // [tokens, query_heads * head_dim]; row_stride may be wider (q lies inside qkv)
  Tensor out;      // [tokens, query_heads * head_dim]
  KvLayerView kv;  // this layer's pages
  PageTableView table;
  const int32_t* qo_indptr = nullptr;  // [batch + 1] first token of each sequence in `query`
  int32_t batch = 0;                   // sequences; padded ones have no token
  int32_t query_heads = 0;
  int32_t window = 0;  // keys a query sees, itself included; 0: all before it
  float scale = 0.0f;  // head_dim^-0.5
};

}  // namespace tramontane

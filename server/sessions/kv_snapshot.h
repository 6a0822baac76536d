// Keys and values of one text by themselves: the rows of each layer, in the order of NHD and whatever pages
// they lay in, so that they fit pools of other page sizes and layouts. They are bytes as the pool keeps them.
//
// Any thread; pure functions of host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/transfer/kv_transfer.h"
#include "kernels/core/status.h"
#include "kernels/kv_rows.h"
#include "models/kv_layout.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {

// What is kept of the pages: rows that are seen from pages.tokens on, and no others. `policy`: of the text
// (CachedText).
v1::SavedKv DescribeKv(const KvPages& pages, const KvLayout& layout, const ContextPolicy& policy);

// The format of a layer's rows, or what is wrong with what is said of them.
StatusOr<KvFormat> RowFormatOf(const v1::SavedKv& saved, int32_t layer);
// Where position p is in a layer's rows: at p - RowBaseOf(layer, p).
int64_t RowBaseOf(const v1::SavedKvLayer& layer, int64_t position);
// Bytes of them.
int64_t RowBytes(const KvFormat& rows);
// "int8 in groups of 32"
std::string KvElementText(const v1::SavedKv& saved);

// "" or why such rows are not those of the model that is served: "holds keys and values as bf16, ..".
std::string KvFault(const v1::SavedKv& saved, const KvLayout& layout);

// The rows of a layer out of its pages. rows: RowBytes of them.
void RowsOfPages(const KvPages& pages, const KvLayout& layout, const v1::SavedKv& saved, int32_t layer,
                 std::vector<std::byte>* rows);

// Pages of a pool, made of rows layer by layer. `policy`: of the text. REQUIRES: no KvFault.
class PagesOfRows {
 public:
  PagesOfRows(const KvLayout& layout, const v1::SavedKv& saved, const ContextPolicy& policy);

  void Add(int32_t layer, std::vector<std::byte>& rows);
  // Once all layers were added.
  KvPages Take();

 private:
  const KvLayout& layout_;
  const v1::SavedKv& saved_;
  const ContextPolicy policy_;
  KvPages pages_;
};

}  // namespace tramontane

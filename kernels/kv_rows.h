// Rows of keys and values from one layout to another, as they are stored: bytes are moved and nothing is read
// as a number, so what comes back is what was there. Any thread; pure functions of host memory.
//
// A layer's rows by themselves, as files hold them, are one long page in NHD order: keys [tokens, kv_heads],
// their scales where the format has any, then the values in the same way.
#pragma once

#include <cstdint>

#include "kernels/paged_kv.h"

namespace tramontane {

// Pages of one layer on the host, one after another, the first of which begins at `base`.
struct KvPagesFrom {
  KvLayerView pages;
  int64_t base = 0;  // absolute position
};

// The format of a layer's rows by themselves. tokens: 1 to 2^31 - 1.
KvFormat FormatOfRows(const KvFormat& pages, int64_t tokens);

// Copies positions [begin, end). REQUIRES: both sides have them, and store rows alike (element, kv_heads,
// head_dim, latent_value_dim).
void CopyKvRows(const KvPagesFrom& from, const KvPagesFrom& to, int64_t begin, int64_t end);

}  // namespace tramontane

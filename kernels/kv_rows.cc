#include "kernels/kv_rows.h"

#include <cstddef>
#include <cstring>

#include "kernels/core/check.h"

namespace tramontane {
namespace {

struct RowPlace {
  int64_t page = 0;
  int32_t offset = 0;
};

RowPlace PlaceOf(const KvPagesFrom& pages, int64_t position) {
  const int64_t index = position - pages.base;
  const int32_t page_size = pages.pages.format.page_size;
  return {.page = PageOf(index, 0, page_size), .offset = OffsetInPage(index, page_size)};
}

}  // namespace

KvFormat FormatOfRows(const KvFormat& pages, int64_t tokens) {
  TM_CHECK(tokens > 0 && tokens <= INT32_MAX, "%lld rows", static_cast<long long>(tokens));
  KvFormat rows = pages;
  rows.page_size = static_cast<int32_t>(tokens);
  rows.order = KvOrder::kNhd;
  return rows;
}

void CopyKvRows(const KvPagesFrom& from, const KvPagesFrom& to, int64_t begin, int64_t end) {
  const KvFormat& format = from.pages.format;
  const KvFormat& other = to.pages.format;
  TM_CHECK(format.element == other.element && format.kv_heads == other.kv_heads &&
               format.head_dim == other.head_dim && format.latent_value_dim == other.latent_value_dim,
           "rows of one kind are copied to another");
  const auto bytes = static_cast<size_t>(format.VectorBytes());
  const auto scale_bytes = static_cast<size_t>(format.element.CompanionBytes(format.head_dim));
  for (int64_t position = begin; position < end; ++position) {
    const RowPlace source = PlaceOf(from, position);
    const RowPlace target = PlaceOf(to, position);
    for (int32_t head = 0; head < format.kv_heads; ++head) {
      std::memcpy(to.pages.Key(target.page, head, target.offset),
                  from.pages.Key(source.page, head, source.offset), bytes);
      if (!format.latent()) {
        std::memcpy(to.pages.Value(target.page, head, target.offset),
                    from.pages.Value(source.page, head, source.offset), bytes);
      }
      if (scale_bytes == 0) continue;
      std::memcpy(to.pages.scale.Key(target.page, head, target.offset),
                  from.pages.scale.Key(source.page, head, source.offset), scale_bytes);
      if (format.latent()) continue;
      std::memcpy(to.pages.scale.Value(target.page, head, target.offset),
                  from.pages.scale.Value(source.page, head, source.offset), scale_bytes);
    }
  }
}

}  // namespace tramontane

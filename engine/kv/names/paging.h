// Paging: which pages positions lie in, and where. The engine's only arithmetic of a page's size. A value;
// any thread.
#pragma once

#include <cstdint>

#include "kernels/paged_kv.h"

namespace tramontane {

class Paging {
 public:
  constexpr explicit Paging(int32_t page_size) : tokens_(page_size) {}
  constexpr Paging(const KvFormat& format)  // NOLINT(google-explicit-constructor)
      : Paging(format.page_size) {}

  constexpr int32_t tokens() const { return tokens_; }  // of a page
  // The index of a position's page, which is the number of whole pages in front of it; its offset there.
  constexpr int64_t PageOf(int64_t position) const { return tramontane::PageOf(position, 0, tokens_); }
  constexpr int32_t OffsetOf(int64_t position) const { return OffsetInPage(position, tokens_); }
  // The first position of a page, which is the number of tokens in the pages in front of it.
  constexpr int64_t BeginOf(int64_t page) const { return page * tokens_; }
  constexpr int64_t PagesFor(int64_t tokens) const { return tramontane::PagesFor(tokens, tokens_); }
  // To a page's border.
  constexpr int64_t RoundDown(int64_t position) const { return BeginOf(PageOf(position)); }
  constexpr int64_t RoundUp(int64_t position) const { return BeginOf(PagesFor(position)); }

 private:
  int32_t tokens_;
};

}  // namespace tramontane

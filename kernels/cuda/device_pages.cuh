// Where a kernel finds the page of a position or slot: the only place that turns a position into an entry of
// a page table, and an entry into a page. Device code.
#pragma once

#include "kernels/cuda/device_pages.h"
#include "kernels/cuda/primitives.cuh"

namespace tramontane::cuda {

// A sequence's pages, the same for all threads of a block; entries are read later.
TM_DEVICE PagesOfSequence LoadPages(const PageTableView& table, int b) {
  const int mask = table.page_mask == nullptr ? -1 : LoadUniform(table.page_mask + b);
  return {table.page_indices + LoadUniform(table.first_entry + b), mask};
}
// `others`: its LoadPages.
TM_DEVICE PagesOfSequence LoadSinkPages(const PageTableView& table, int b, const PagesOfSequence& others) {
  if (table.sink_entry == nullptr) return others;
  return {table.page_indices + LoadUniform(table.sink_entry + b), -1};
}

// The page of a position or slot, and its offset there.
struct PagePlace {
  int page, offset;
};

// Of slots beyond 2^31 the quotient is found the long way.
TM_DEVICE PagePlace PlaceOfSlot(const PageDivisor& divisor, int64_t slot) {
  const int page = slot > 0x7fffffff ? static_cast<int>(PageOfSlot(slot, divisor.size()))
                                     : divisor.Quotient(static_cast<int>(slot));
  return {page, static_cast<int>(slot - int64_t{page} * divisor.size())};
}

// kLanes neighbours ask for the same position.
template <int kLanes>
TM_DEVICE PagePlace FindPage(const PagesOfSequence& pages, const PageDivisor& divisor, int position) {
  const int number = divisor.Quotient(position);
  return {LoadTogether<kLanes>(pages.entries + (number & pages.mask)), position - number * divisor.size()};
}
// The pages of the positions [begin, end) by number: `count` from `first` on. Not empty.
struct PageRange {
  int first, count;
};

TM_DEVICE PageRange PagesOfPositions(const PageDivisor& divisor, int begin, int end) {
  const int first = divisor.Quotient(begin);
  return {first, divisor.Quotient(end - 1) + 1 - first};
}

// By number. UniformPageAt: all threads of a block ask for the same.
TM_DEVICE int PageAt(const PagesOfSequence& pages, int number) {
  return LoadGlobal(pages.entries + (number & pages.mask));
}
TM_DEVICE int UniformPageAt(const PagesOfSequence& pages, int number) {
  return LoadUniform(pages.entries + (number & pages.mask));
}

}  // namespace tramontane::cuda

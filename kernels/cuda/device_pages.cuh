// Where a kernel finds the page of a position: the only place that turns a position into an entry of a page
// table, and an entry into a page. Device code.
#pragma once

#include "kernels/cuda/device_pages.h"
#include "kernels/cuda/primitives.cuh"

namespace tramontane::cuda {

// The pages that a table lists for one sequence, oldest first.
struct ListedPages {
  const int32_t* ids;
  int base;  // position of the first token listed, a multiple of the page size
};

// A listed position's page and its offset there.
struct PagePlace {
  int page, offset;
};

// kLanes neighbours ask for the same position.
template <int kLanes>
TM_DEVICE PagePlace FindPage(const ListedPages& listed, const PageDivisor& divisor, int position) {
  const int from_base = position - listed.base;
  const int index = divisor.Quotient(from_base);
  return {LoadTogether<kLanes>(listed.ids + index), from_base - index * divisor.size()};
}

}  // namespace tramontane::cuda

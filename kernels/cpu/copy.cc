// CopyPages, MovePages: whole pages, all layers at once. Scatter: numbers, one at a time.
#include <cstring>

#include "kernels/cpu/ops.h"

namespace tramontane {

void RunCopyPages(const CopyPagesParams& params, const CpuContext& context) {
  context.pool.ParallelFor(params.count, [&](int64_t pair, int32_t) {
    const int64_t from = params.pairs[2 * pair];
    const int64_t to = params.pairs[2 * pair + 1];
    std::memcpy(params.pool + to * params.page_bytes, params.pool + from * params.page_bytes,
                static_cast<size_t>(params.page_bytes));
  });
}

// One by one: what is moved out may be moved in to next.
void RunMovePages(const MovePagesParams& params, const CpuContext&) {
  const auto bytes = static_cast<size_t>(params.page_bytes);
  for (int32_t i = 0; i < params.count; ++i) {
    const PageMove& move = params.moves[i];
    std::byte* const page = params.pool + move.page * params.page_bytes;
    const bool goes_out = move.way == PageMove::Way::kOut;
    std::memcpy(goes_out ? move.image : page, goes_out ? page : move.image, bytes);
  }
}

void RunScatter(const ScatterParams& params, const CpuContext&) {
  for (int64_t pair = 0; pair < params.count; ++pair) {
    params.out[params.pairs[2 * pair]] = params.pairs[2 * pair + 1];
  }
}

}  // namespace tramontane

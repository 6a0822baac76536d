// PageMoves: pages copied between the pool and the host, beside the step that is open: behind the last one
// that was collected, and behind the copies of pages that the open one begins with, since who had the page
// that is copied may have let go of it. What is queued next that reads or writes pages waits for them. Engine
// thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/run/model_runner.h"
#include "kernels/backend.h"
#include "models/kv_layout.h"
#include "models/op_status.h"

namespace tramontane {

class PageMoves {
 public:
  PageMoves(Backend& backend, const KvLayout& layout, std::byte* pool)
      : backend_(backend), layout_(layout), pool_(pool) {}

  // The next moves begin behind this fence.
  void BeginBehind(uint64_t fence) { after_ = std::max(after_, fence); }

  // ModelRunner's.
  Status Move(std::span<const PageMove> moves) {
    const MovePagesParams params = {.pool = pool_,
                                    .page_bytes = layout_.page_bytes(),
                                    .moves = moves.data(),
                                    .count = static_cast<int32_t>(moves.size()),
                                    .after = after_};
    return OpStatus(backend_.MovePages(params), backend_, "moving pages");
  }
  Status Copy(std::span<const PageImage> images, PageMove::Way way) {
    const bool out = way == PageMove::Way::kOut;
    const char* const what = out ? "reading pages" : "writing pages";
    TM_RETURN_IF_ERROR(OpStatus(backend_.AwaitMoves(), backend_, what));
    for (const PageImage& image : images) {
      std::byte* const page = static_cast<std::byte*>(layout_.LayerView(pool_, 0).Key(image.page, 0, 0));
      TM_RETURN_IF_ERROR(OpStatus(out ? backend_.Download(image.bytes, page, layout_.page_bytes())
                                      : backend_.Upload(page, image.bytes, layout_.page_bytes()),
                                  backend_, what));
    }
    after_ = backend_.RecordFence();
    return OpStatus(backend_.WaitFence(after_), backend_, what);
  }

 private:
  Backend& backend_;
  const KvLayout& layout_;
  std::byte* const pool_;
  uint64_t after_ = 0;
};

}  // namespace tramontane

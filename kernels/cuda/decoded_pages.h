// DecodedPages: quantised pages of one layer as bf16, in the workspace, and the lists of which pages those
// are. Attention over quantised pages goes by tiles of 16 rows, each of which decodes its keys anew; calls of
// many rows have theirs decoded once, and go on as over bf16 pages (DecodesPages in attention_choice.h says
// which). Owned by the backend; engine thread.
// Always: what is decoded is that of the call that was queued last, and only until its attention is done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/attention.h"
#include "kernels/backend.h"
#include "kernels/cuda/decode_pages.h"

namespace tramontane::cuda {

// Bytes of bf16 that are decoded at once at most: 128k keys of 8 heads of 128. A step that lists more, of a
// longer context or of several long sequences, goes by row.
inline constexpr int64_t kMostDecodedPageBytes = int64_t{512} << 20;

// How much can be decoded at once.
struct DecodedRoom {
  int64_t pages = 0;  // that a list has room for; 0: none are decoded
  int64_t bytes = 0;  // of bf16

  constexpr bool Holds(int64_t listed_pages, const KvFormat& format) const {
    return listed_pages <= pages && listed_pages * DecodedFormat(format).LayerBytes() <= bytes;
  }
};

// Of the steps that a backend is reserved for.
DecodedRoom DecodedRoomFor(const StepMaxima& maxima);

class DecodedPages {
 public:
  // Bytes of the lists of a step's windows.
  static int64_t ListBytes(const StepMaxima& maxima);

  // Borrows DecodedRoomFor(maxima).bytes and ListBytes(maxima) of device memory.
  void Reserve(const StepMaxima& maxima, std::byte* pages, std::byte* lists);
  const DecodedRoom& room() const { return room_; }

  // Queues what decodes the pages of a call, behind the list of them where this is the first call of the step
  // over its table and window. 0 or the runtime's error. decoded: the same call over what was decoded.
  // REQUIRES: the room holds what the call lists.
  int Decode(const AttentionParams& call, int32_t multiprocessors, void* stream, AttentionParams* decoded);

  // Tables may have changed: lists are of the step before.
  void ForgetLists() { lists_.clear(); }

 private:
  // What a list was made for.
  struct List {
    const int32_t* page_indices = nullptr;
    const int32_t* first_entry = nullptr;
    const int32_t* kv_end = nullptr;
    const int32_t* qo_indptr = nullptr;
    int32_t batch = 0;
    int32_t window = 0;
    PageListing listing = {};

    bool Serves(const AttentionParams& call) const {
      return page_indices == call.table.page_indices && first_entry == call.table.first_entry &&
             kv_end == call.table.kv_end && qo_indptr == call.qo_indptr && batch == call.batch &&
             window == call.window;
    }
  };

  int ListPages(const AttentionParams& call, void* stream, PageListing* listing);

  DecodedRoom room_;
  int64_t list_bytes_ = 0;  // of one
  int32_t sequences_ = 0;
  std::byte* pages_ = nullptr;
  std::byte* memory_of_lists_ = nullptr;
  std::vector<List> lists_;  // of the step that is being queued; list i lies in slot i % kListSlots
};

}  // namespace tramontane::cuda

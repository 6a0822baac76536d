#include "kernels/cuda/decoded_pages.h"

#include <algorithm>

#include "kernels/core/check.h"

namespace tramontane::cuda {
namespace {

constexpr size_t kListSlots = 8;  // more (table, window) pairs than that in a step: the oldest is made again

int64_t PaddedBytes(int64_t entries) { return (entries * int64_t{sizeof(int32_t)} + 15) / 16 * 16; }

// sources | page_indices | first_entry | count
int64_t BytesOfList(int64_t pages, int64_t sequences) {
  return pages == 0 ? 0 : 2 * PaddedBytes(pages) + PaddedBytes(sequences) + PaddedBytes(1);
}

PageListing ListingAt(std::byte* memory, int64_t pages, int64_t sequences) {
  const auto take = [&memory](int64_t entries) {
    auto* const taken = reinterpret_cast<int32_t*>(memory);
    memory += PaddedBytes(entries);
    return taken;
  };
  return {
      .sources = take(pages), .page_indices = take(pages), .first_entry = take(sequences), .count = take(1)};
}

}  // namespace

DecodedRoom DecodedRoomFor(const StepMaxima& maxima) {
  const KvFormat format = {
      .kv_heads = maxima.kv_heads, .head_dim = maxima.head_dim, .page_size = maxima.page_size};
  if (maxima.quantised_pages == 0) return {};
  const int64_t pages = std::min(maxima.quantised_pages, kMostDecodedPageBytes / format.LayerBytes());
  return {.pages = pages, .bytes = pages * format.LayerBytes()};
}

int64_t DecodedPages::ListBytes(const StepMaxima& maxima) {
  return static_cast<int64_t>(kListSlots) * BytesOfList(DecodedRoomFor(maxima).pages, maxima.sequences);
}

void DecodedPages::Reserve(const StepMaxima& maxima, std::byte* pages, std::byte* lists) {
  room_ = DecodedRoomFor(maxima);
  list_bytes_ = BytesOfList(room_.pages, maxima.sequences);
  sequences_ = maxima.sequences;
  pages_ = pages;
  memory_of_lists_ = lists;
  ForgetLists();
}

int DecodedPages::Decode(const AttentionParams& call, int32_t multiprocessors, void* stream,
                         AttentionParams* decoded) {
  TM_CHECK(room_.Holds(call.table.listed_pages, call.kv.format) && call.batch <= sequences_,
           "%lld pages of %d sequences to decode, beyond what was reserved",
           static_cast<long long>(call.table.listed_pages), call.batch);
  PageListing listing;
  if (const int error = ListPages(call, stream, &listing)) return error;
  const KvFormat format = DecodedFormat(call.kv.format);
  *decoded = call;
  decoded->kv = KvLayerView(format, pages_, format.LayerBytes());
  decoded->table.page_indices = listing.page_indices;
  decoded->table.first_entry = listing.first_entry;
  decoded->table.page_mask = nullptr;
  return LaunchDecodePages({.kv = call.kv,
                            .decoded = decoded->kv,
                            .listing = listing,
                            .most_pages = call.table.listed_pages,
                            .multiprocessors = multiprocessors},
                           stream);
}

int DecodedPages::ListPages(const AttentionParams& call, void* stream, PageListing* listing) {
  const size_t kept = std::min(lists_.size(), kListSlots);
  const auto known = std::find_if(lists_.end() - static_cast<std::ptrdiff_t>(kept), lists_.end(),
                                  [&](const List& list) { return list.Serves(call); });
  if (known != lists_.end()) {
    *listing = known->listing;
    return 0;
  }
  std::byte* const slot = memory_of_lists_ + static_cast<int64_t>(lists_.size() % kListSlots) * list_bytes_;
  *listing = ListingAt(slot, room_.pages, sequences_);
  lists_.push_back({.page_indices = call.table.page_indices,
                    .first_entry = call.table.first_entry,
                    .kv_end = call.table.kv_end,
                    .qo_indptr = call.qo_indptr,
                    .batch = call.batch,
                    .window = call.window,
                    .listing = *listing});
  return LaunchListPages({.table = call.table,
                          .qo_indptr = call.qo_indptr,
                          .batch = call.batch,
                          .window = call.window,
                          .listing = *listing,
                          .divisor = PageDivisor(call.kv.format.page_size)},
                         stream);
}

}  // namespace tramontane::cuda

// Quantised pages of keys and values as bf16 pages, so that calls of many rows go by the kernels of those:
// which pages a call reads, once a step, and what they hold, once a layer. decode_pages.cu has the grids, the
// bytes and the limits; decoded_pages.h owns the memory. Host side; any CUDA stream.
#pragma once

#include <cstdint>

#include "kernels/cuda/device_pages.h"
#include "kernels/paged_kv.h"

namespace tramontane::cuda {

// The format of what a page is decoded to: one layer of a pool of ours, in the order of its own.
constexpr KvFormat DecodedFormat(const KvFormat& format) {
  KvFormat decoded = format;
  decoded.element = DType::kBf16;
  return decoded;
}

// The pages that a call reads: of each sequence those from the first that some row sees to that of its last
// key, sequence behind sequence. What page i of the list holds is decoded to page i. Device memory.
struct PageListing {
  int32_t* sources;       // [pages] page of the pool
  int32_t* page_indices;  // [pages] 0, 1, 2, ..: PageTableView's, of decoded pages, and
  int32_t* first_entry;   // [batch] the same
  int32_t* count;         // [1] pages
};

struct ListPagesParams {
  PageTableView table;
  const int32_t* qo_indptr;  // [batch + 1]; sequences without a token list nothing
  int32_t batch;
  int32_t window;  // 0: none
  PageListing listing;
  PageDivisor divisor;  // by the tokens of a page
};

struct DecodePagesParams {
  KvLayerView kv;       // int8 and int4 in groups of 8 and more, or fp8
  KvLayerView decoded;  // of DecodedFormat
  PageListing listing;
  int64_t most_pages;       // that the listing has at most
  int32_t multiprocessors;  // of the device
  // Set by LaunchDecodePages.
  PageDivisor by_pieces = {};   // of a vector
  PageDivisor by_vectors = {};  // side by side: tokens of a head, or heads of a token
  bool wide = false;
  bool scales_are_f32 = false;
};

// Queue a launch on `stream` (a cudaStream_t). 0 or the runtime's error.
int LaunchListPages(const ListPagesParams& params, void* stream);
int LaunchDecodePages(const DecodePagesParams& params, void* stream);

}  // namespace tramontane::cuda

// What all backends compute a token from in the same way: the order in which tokens are filtered, the first
// histogram of a filter, and how it finds where it cuts. The exponential of the weights: sampling_exp.h.
//
// Pure; host and device code. What goes by vectors on the CPU has its own loops there, over the constants of
// this header.
#pragma once

#include <bit>
#include <cstdint>

#ifdef __CUDACC__  // where a search's steps are a device's own
#define TM_SAMPLING __device__ __forceinline__
#else
#define TM_SAMPLING inline
#endif

namespace tramontane {

// ---- order --------------------------------------------------------------------------------------

// Ascending with x; -0 and 0 are equal. No NaN.
constexpr uint32_t OrderOf(float x) {
  const auto bits = std::bit_cast<uint32_t>(x + 0.0f);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}
constexpr float OfOrder(uint32_t order) {
  return std::bit_cast<float>((order >> 31) != 0 ? order & 0x7fffffffu : ~order);
}

// A token's sort key is smaller the higher its logit, then the lower its id. All keys of a row differ.
constexpr uint64_t KeyOf(float logit, int32_t token) {
  return uint64_t{~OrderOf(logit)} << 32 | static_cast<uint32_t>(token);
}
constexpr float LogitOf(uint64_t key) { return OfOrder(~static_cast<uint32_t>(key >> 32)); }
constexpr int32_t TokenOf(uint64_t key) { return static_cast<int32_t>(static_cast<uint32_t>(key)); }

// ---- the first histogram of a filter ------------------------------------------------------------

// Buckets of logits by their distance from the highest: neither the subtraction nor the product changes an
// order, so a bucket's tokens all sort before the next bucket's. The last has all that are farther.
inline constexpr int32_t kCutBuckets = 2048;
inline constexpr float kBucketsPerNat = 64;  // so that buckets reach 32 nats below the highest logit

constexpr int32_t DistanceBucket(float highest, float logit) {
  const float distance = (highest - logit) * kBucketsPerNat;
  return distance < kCutBuckets - 1 ? static_cast<int32_t>(distance) : kCutBuckets - 1;
}

// ---- where a filter cuts ------------------------------------------------------------------------

// The last of the shortest head of a row's tokens, in the order of their keys, whose measures come to a
// limit. Only the tokens of one bucket are ever put in order. A Search is what a backend knows of the row,
// and how those who work on it, a thread, threads with a part each or a block, do together what it is asked:
//   FillBuckets   adds up measures by bucket: by distance, and after LookCloser those of the found one alone
//   FindBucket    adds up buckets, on top of all before them, until they come to the limit; false: never
//   ListBucket    the tokens of that bucket; false: there are more than can be listed
//   FindListed    the listed one at which the measures, added up in the order of the keys, come to the limit
//   LookCloser    from now on the found bucket is all there is, in finer ones
//   All           what stays where the measures never come to the limit
// Whoever has room for all tokens never looks closer.
template <typename Search>
TM_SAMPLING auto FindCut(Search search) {
  while (true) {
    search.FillBuckets();
    if (!search.FindBucket()) return search.All();
    if (search.ListBucket()) return search.FindListed();
    search.LookCloser();
  }
}

}  // namespace tramontane

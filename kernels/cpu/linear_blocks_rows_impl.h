// Of linear_blocks_impl.h: rows of x as 8 bits take them, rounded and summed a block at a time.
#pragma once

#include "kernels/cpu/linear_blocks_bytes_impl.h"

namespace tramontane {
namespace {

// In sums of a block, and of each part of it that a weight has a scale for: two whole numbers to a word, in
// the order in which a vector of scales, four bytes to a lane, gives its even bytes and its odd ones.
struct RoundedX32 {
  static constexpr int kBlock = 32;
  float scale;       // d_x
  float scaled_sum;  // d_x sum q
  int32_t sum;       // sum q
  int8_t q[32];
};
struct RoundedX256 {
  static constexpr int kBlock = 256;
  float scale;
  int16_t sums16[16];  // of runs 0, 2, 1, 3, 4, 6, 5, 7, ... of 16
  int16_t sums32[8];   // of runs 0, 2, 1, 3, 4, 6, 5, 7 of 32
  int8_t q[256];
};

// Where the sum of a run stands.
constexpr int PlaceOfRun(int run) { return run / 4 * 4 + run % 2 * 2 + run % 4 / 2; }

inline int32_t SumOf(const int8_t* q, int count) {
  int32_t sum = 0;
  for (int i = 0; i < count; ++i) sum += q[i];
  return sum;
}

inline void PutSums(RoundedX32& to) {
  to.sum = SumOf(to.q, 32);
  to.scaled_sum = to.scale * static_cast<float>(to.sum);
}
inline void PutSums(RoundedX256& to) {
  for (int run = 0; run < 16; ++run) {
    to.sums16[PlaceOfRun(run)] = static_cast<int16_t>(SumOf(to.q + run * 16, 16));
  }
  for (int run = 0; run < 8; ++run) {
    to.sums32[PlaceOfRun(run)] = static_cast<int16_t>(SumOf(to.q + run * 32, 32));
  }
}

// Whole numbers of at most 127 to bytes.
inline void StoreBytes(int8_t* to, Vi value) {
#if TM_SIMD_WIDTH == 16
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(value)));
#elif TM_SIMD_WIDTH == 8
  const auto words = reinterpret_cast<__m256i>(value);
  const __m128i halves = _mm_packs_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packs_epi16(halves, halves));
#else
  for (int i = 0; i < kWidth; ++i) to[i] = static_cast<int8_t>(value[i]);
#endif
}

// A block that holds what is no number, or is infinite, has a scale that is no number; one whose values are
// all too small to divide by is zero.
template <typename Rounded>
void RoundBlock(const float* x, Rounded& to) {
  constexpr float kLeast = 1e-30f;
  Vf largest = {}, probe = {};
  for (int k = 0; k < Rounded::kBlock; k += kWidth) {
    const Vf value = Load(x + k);
    largest = Max(largest, Max(value, -value));
    probe += value * 0.0f;  // not zero where value is not finite
  }
  const float size = MaxLanes(largest);
  const float inverse = size > kLeast ? 127.0f / size : 0.0f;
  to.scale = (size > kLeast ? size / 127.0f : 0.0f) + SumLanes(probe);
  for (int k = 0; k < Rounded::kBlock; k += kWidth) {
    // Adding leaves the nearest whole number in the low bits.
    const Vi rounded = FloatToBits(Load(x + k) * inverse + kExpRounder) - FloatToBits(Splat(kExpRounder));
    StoreBytes(to.q + k, rounded);
  }
  PutSums(to);
}

// The packed rows of a tile: [in_features / block][rows of the tile].
template <typename Rounded>
Rounded* RoundedTile(const LinearJob& job, int64_t tile) {
  return reinterpret_cast<Rounded*>(job.packed_x) +
         job.TileBegin(tile) * (job.in_features / int64_t{Rounded::kBlock});
}
static_assert(sizeof(RoundedX32) <= 32 * sizeof(float) && sizeof(RoundedX256) <= 256 * sizeof(float),
              "a rounded row needs no more than PackedRowBytes");

// put(row of the tile, block, what it is rounded to) for every block of a tile's rows.
template <typename Rounded, typename Put>
void RoundRows(const LinearJob& job, int64_t tile, const Put& put) {
  const int64_t begin = job.TileBegin(tile);
  const int64_t rows = job.TileBegin(tile + 1) - begin;
  for (int64_t r = 0; r < rows; ++r) {
    const float* x = job.x + (job.x_rows == nullptr ? begin + r : job.x_rows[begin + r]) * job.x_stride;
    const float scale = job.norm_weight == nullptr ? 1.0f : NormScale(x, job.in_features, job.norm_epsilon);
    for (int64_t block = 0; block < job.in_features / Rounded::kBlock; ++block) {
      const int64_t first = block * Rounded::kBlock;
      alignas(64) float normalised[Rounded::kBlock];
      for (int k = 0; k < Rounded::kBlock; k += kWidth) {
        Vf value = LoadInputs(job, x, first + k, kWidth);
        if (job.norm_weight != nullptr)
          value = value * scale * LoadInputs(job, job.norm_weight, first + k, kWidth);
        Store(normalised + k, value);
      }
      Rounded rounded;
      RoundBlock(normalised, rounded);
      put(r, block, rounded);
    }
  }
}

template <typename Rounded>
void RoundTile(const LinearJob& job, int64_t tile) {
  Rounded* const to = RoundedTile<Rounded>(job, tile);
  const int64_t rows = job.TileBegin(tile + 1) - job.TileBegin(tile);
  RoundRows<Rounded>(job, tile, [to, rows](int64_t row, int64_t block, const Rounded& rounded) {
    to[block * rows + row] = rounded;
  });
}

#ifndef TM_BF16_PRODUCTS  // which take these of another variant
void PackTileInBlocks(const LinearJob& job, int64_t tile) {
  if (RoundedBlock(job.weight_format) == 32) {
    RoundTile<RoundedX32>(job, tile);
  } else {
    RoundTile<RoundedX256>(job, tile);
  }
}
#endif

}  // namespace
}  // namespace tramontane

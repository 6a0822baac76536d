// Linear over weights that stand in blocks (kernels/core/block_types.h), as block_panels.h packs them. The
// second half of linear_impl.h, whose pieces it uses.
//
// Exactly: a block of k of some panels is decoded to f32 scratch, once for all rows, and multiplied as f32
// weights are, in the same order: the bits are those of an f32 weight of the decoded values. One row takes
// the numbers as they are decoded, without scratch.
//
// In 8 bits: a row of x is rounded a block at a time,
//
//   x_k = d_x q_k,   d_x = max |x_k| / 127,   q_k = x_k / d_x to the nearest whole number, even of two,
//
// over blocks of 32, of 256 where the weight's are. Sums of products of a weight's integers with q_k are
// whole numbers, which no order of additions changes. A block adds to an output's f32 sum, in ascending k,
//
//   q8_0, q4_0, q5_0   (d_w d_x) sum (w - middle) q
//   q4_1, q5_1         (d_w d_x) sum w q,   then m_w (d_x sum q)
//   q4_k, q5_k         (d_w d_x) sum over groups s sum w q,   then minus (n_w d_x) sum over groups t sum q
//   q6_k               (d_w d_x) sum over groups s sum (w - 32) q
//   int4, int8         (s_w d_x) (sum w q - z sum q),   for every 32 of a group
//
// each by one fused multiply-add. One output is one lane, so a row has the same bits among any others, and
// the variants with fused multiply-adds agree.
//
//   per four k: a vector of words of the panel, made bytes by a mask or a shift; each row's four bytes to all
//   lanes; a product of bytes, whose sums of pairs are added in 16 bits as far as these hold them. With VNNI
//   one instruction adds four products to 32 bits.
//
// The bound of one row is the weight's bytes over the memory's bandwidth, that of many the products of bytes.
#pragma once

#include "kernels/cpu/linear_impl.h"

namespace tramontane {
namespace {

// ---- vectors of bytes, of 16-bit and of 32-bit integers, all as kWidth lanes of 32 bits

using Vu = uint32_t __attribute__((vector_size(4 * TM_SIMD_WIDTH)));
using Vh = int16_t __attribute__((vector_size(4 * TM_SIMD_WIDTH)));

inline Vi LoadWords(const std::byte* from) {
  Vi value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}
inline Vi SpreadWord(const void* from) {
  int32_t word;
  __builtin_memcpy(&word, from, sizeof word);
  return SplatInt(word);
}
inline Vf ToFloats(Vi value) { return __builtin_convertvector(value, Vf); }
inline Vi ShiftRight(Vi value, int bits) { return reinterpret_cast<Vi>(reinterpret_cast<Vu>(value) >> bits); }
// By a number that is known only when it runs.
inline Vi ShiftRightBy(Vi value, Vi bits) {
  return reinterpret_cast<Vi>(reinterpret_cast<Vu>(value) >> reinterpret_cast<Vu>(bits));
}

inline Vi ShiftLeftBy(Vi value, Vi bits) { return value << bits; }
// (value & mask) ^ bits
inline Vi MaskedXor(Vi value, Vi mask, Vi bits) {
#if TM_SIMD_WIDTH == 16
  return reinterpret_cast<Vi>(_mm512_ternarylogic_epi32(reinterpret_cast<__m512i>(value),
                                                        reinterpret_cast<__m512i>(mask),
                                                        reinterpret_cast<__m512i>(bits), 0x6a));
#else
  return (value & mask) ^ bits;
#endif
}
// Bits of a where mask has ones, of b elsewhere.
inline Vi SelectBits(Vi mask, Vi a, Vi b) {
#if TM_SIMD_WIDTH == 16
  return reinterpret_cast<Vi>(_mm512_ternarylogic_epi32(
      reinterpret_cast<__m512i>(mask), reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b), 0xca));
#else
  return (a & mask) | (b & ~mask);
#endif
}
// Bit even + kOdd of each byte to bit 4; what the others hold then is of no account.
template <int kOdd>
inline Vi ToBit4(Vi value, int even) {
#if TM_SIMD_WIDTH == 16
  return reinterpret_cast<Vi>(
      _mm512_rolv_epi32(reinterpret_cast<__m512i>(value), _mm512_set1_epi32((4 - even - kOdd) & 31)));
#else
  return ShiftRightBy(value, SplatInt(even)) << (4 - kOdd);
#endif
}
inline bool AllFinite(Vf value) {
#if TM_SIMD_WIDTH == 16
  return _mm512_fpclass_ps_mask(value, 0x99) == 0;  // NaN of both kinds, infinity of both signs
#else
  return SumLanes(value * 0.0f) == 0.0f;
#endif
}

// A lane of two 16-bit integers times another: the sum of the two products.
inline Vi DotHalves(Vi a, Vi b) {
#if TM_SIMD_WIDTH == 16
  return reinterpret_cast<Vi>(_mm512_madd_epi16(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif TM_SIMD_WIDTH == 8
  return reinterpret_cast<Vi>(_mm256_madd_epi16(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#else
  return (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
#endif
}

// Bytes below 256 times signed bytes: sums of four to 32 bits in one step, or of two to 16 bits.
#if TM_SIMD_WIDTH == 4 || defined(TM_VNNI)
#define TM_DOTS_OF_FOUR
inline Vi DotBytes(Vi sum, Vi w, const int8_t* four) {
#ifdef TM_VNNI
  return AddDotOfBytes(sum, w, four);
#else
  const Vi x = SpreadWord(four);
  return sum + (w & 255) * (x << 24 >> 24) + (w >> 8 & 255) * (x << 16 >> 24) +
         (w >> 16 & 255) * (x << 8 >> 24) + (w >> 24 & 255) * (x >> 24);
#endif
}
#else
inline Vi DotPairs(Vi w, Vi x) {
#if TM_SIMD_WIDTH == 16
  return reinterpret_cast<Vi>(
      _mm512_maddubs_epi16(reinterpret_cast<__m512i>(w), reinterpret_cast<__m512i>(x)));
#else
  return reinterpret_cast<Vi>(
      _mm256_maddubs_epi16(reinterpret_cast<__m256i>(w), reinterpret_cast<__m256i>(x)));
#endif
}
inline Vi AddHalves(Vi a, Vi b) {
  return Now(reinterpret_cast<Vi>(reinterpret_cast<Vh>(a) + reinterpret_cast<Vh>(b)));
}
// Sizes of signed bytes, at most 128.
inline Vi SizeOfBytes(Vi w) {
#if TM_SIMD_WIDTH == 16
  return reinterpret_cast<Vi>(_mm512_abs_epi8(reinterpret_cast<__m512i>(w)));
#else
  return reinterpret_cast<Vi>(_mm256_abs_epi8(reinterpret_cast<__m256i>(w)));
#endif
}
// x where w is positive, -x where it is negative. x is not -128.
inline Vi WithSignOf(Vi x, Vi w) {
#if TM_SIMD_WIDTH == 16
  const auto bytes = reinterpret_cast<__m512i>(x);
  return reinterpret_cast<Vi>(_mm512_mask_sub_epi8(bytes, _mm512_movepi8_mask(reinterpret_cast<__m512i>(w)),
                                                   _mm512_setzero_si512(), bytes));
#else
  return reinterpret_cast<Vi>(_mm256_sign_epi8(reinterpret_cast<__m256i>(x), reinterpret_cast<__m256i>(w)));
#endif
}
#endif

// sum and a lane of two 16-bit integers times the two at `two`.
inline Vi AddDotHalves(Vi sum, Vi a, const int16_t* two) {
#ifdef TM_VNNI
  return AddDotOfHalves(sum, a, two);
#else
  return sum + DotHalves(a, SpreadWord(two));
#endif
}

// ---- rows of x, rounded

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

// ---- the types
//
// X: what rows are rounded to. kBits: of a weight's integer, as Word gives it. A block of k is kChunks chunks
// of the same form, a chunk kRuns runs that share words, a run kGroups groups of four k. Runs of kAlternating
// chunks alternate along k: PlaceOfRunInBlock says where a run stands among all.
//
// Word(words, chunk, run, group): the integers of a group, four bytes to a lane; words: the block's first
// word of this vector of lanes, whose next is kWordStride further. kMiddle: what is subtracted from each, in
// the definition.
//
// For decoding, where a chunk is kDecodeRuns runs of kDecodeGroups groups: DecodeWord<run>(words, chunk,
// group) has a group's integers at bits FirstBit(run), 8 further, and so on. Other bits are of no account;
// integers of four bits are left in their halves of bytes.

constexpr int kWordStride = kPanelWidth * 4;
inline Vi WordAt(const std::byte* words, int index) {
  return LoadWords(words + int64_t{index} * kWordStride);
}
// The f16 of a block, in f32.
inline Vf HalfAt(const std::byte* block, int half, int v) {
  return LoadF16(reinterpret_cast<const uint16_t*>(block) + half * kPanelWidth + v * kWidth);
}

constexpr int32_t kNibbles = 0x0f0f0f0f;

template <DType kType>
struct SmallBlocks {
  using X = RoundedX32;
  static constexpr bool kInGroups = false;
  static constexpr DType kDType = kType;
  static constexpr bool kHasMinimum = kType == DType::kQ4_1 || kType == DType::kQ5_1;
  static constexpr bool kFiveBits = kType == DType::kQ5_0 || kType == DType::kQ5_1;
  static constexpr int kBits = kType == DType::kQ8_0 ? 8 : kFiveBits ? 5 : 4;
  static constexpr int kMiddle = kHasMinimum || kType == DType::kQ8_0 ? 0 : kFiveBits ? 16 : 8;
  static constexpr int kHalves = kHasMinimum ? 2 : 1;
  static constexpr int kChunks = 1, kRuns = 1, kGroups = 8, kAlternating = 1;
  static constexpr int kDecodeRuns = kBits == 8 ? 1 : 2, kDecodeGroups = kGroups / kDecodeRuns;

  [[gnu::always_inline]] static Vi Word(const std::byte* words, int, int, int group) {
    if constexpr (kType == DType::kQ8_0) return WordAt(words, group);
    const Vi low = WordAt(words, group % 4 + (kFiveBits ? 1 : 0));
    Vi w = (group < 4 ? low : low >> 4) & kNibbles;
    if constexpr (kFiveBits) {
      const Vi plane = WordAt(words, 0);
      w |= (group < 4 ? plane << (4 - group % 4) : plane >> (group - 4)) & 0x10101010;
    }
    return w;
  }
  template <int kRun>
  [[gnu::always_inline]] static Vi DecodeWord(const std::byte* words, int, int group) {
    if constexpr (!kFiveBits) return WordAt(words, group);
    const Vi low = WordAt(words, 1 + group), plane = WordAt(words, 0);
    return SelectBits(SplatInt(kNibbles), kRun == 0 ? low : low >> 4,
                      ShiftRightBy(kRun == 0 ? plane << 4 : plane, SplatInt(group)));
  }
};

// Scales of the groups of 32 in q4_k and q5_k, four bytes to a lane: groups 0 to 3, then 4 to 7.
struct GroupScaleWords {
  Vi scales[2];
  Vi minima[2];
};
inline GroupScaleWords LoadGroupScales(const std::byte* words) {
  const Vi a = WordAt(words, 0), b = WordAt(words, 1), c = WordAt(words, 2);
  constexpr int32_t kSix = 0x3f3f3f3f, kHighTwo = 0x30303030;
  return {{a & kSix, (c & kNibbles) | (ShiftRight(a, 2) & kHighTwo)},
          {b & kSix, (ShiftRight(c, 4) & kNibbles) | (ShiftRight(b, 2) & kHighTwo)}};
}

template <DType kType>
struct GroupedBlocks {
  using X = RoundedX256;
  static constexpr bool kInGroups = false;
  static constexpr DType kDType = kType;
  static constexpr bool kFiveBits = kType == DType::kQ5K;
  static constexpr int kBits = kFiveBits ? 5 : 4;
  static constexpr int kMiddle = 0;
  static constexpr int kHalves = 2;
  static constexpr int kChunks = 4, kRuns = 2, kGroups = 8, kAlternating = 1;
  static constexpr int kDecodeRuns = kRuns, kDecodeGroups = kGroups;

  [[gnu::always_inline]] static Vi Word(const std::byte* words, int chunk, int run, int group) {
    const Vi low = WordAt(words, 3 + (kFiveBits ? 8 : 0) + chunk * 8 + group);
    Vi w = (run == 0 ? low : low >> 4) & kNibbles;
    if constexpr (kFiveBits) {
      const Vi plane = ShiftRightBy(WordAt(words, 3 + group), SplatInt(2 * chunk));
      w |= (run == 0 ? plane << 4 : plane << 3) & 0x10101010;
    }
    return w;
  }
  template <int kRun>
  [[gnu::always_inline]] static Vi DecodeWord(const std::byte* words, int chunk, int group) {
    const Vi low = WordAt(words, 3 + (kFiveBits ? 8 : 0) + chunk * 8 + group);
    if constexpr (!kFiveBits) return low;
    return SelectBits(SplatInt(kNibbles), kRun == 0 ? low : low >> 4,
                      ToBit4<kRun>(WordAt(words, 3 + group), 2 * chunk));
  }
  // The scale of a run among those of the block, in each lane.
  static void RunScales(const std::byte* words, Vi (&scales)[kChunks * kRuns]) {
    const GroupScaleWords packed = LoadGroupScales(words);
    for (int run = 0; run < kChunks * kRuns; ++run) {
      scales[run] = ShiftRight(packed.scales[run / 4], run % 4 * 8) & 255;
    }
  }
  // The same from bytes, four to a lane: first all scales, then all that minima have.
  static constexpr int kScaleWords = 4;
  static void ScaleBytes(const std::byte* words, Vi (&bytes)[kScaleWords]) {
    const GroupScaleWords packed = LoadGroupScales(words);
    for (int half = 0; half < 2; ++half) {
      bytes[half] = packed.scales[half];
      bytes[2 + half] = packed.minima[half];
    }
  }
  static Vi ScaleOfByte(Vi bytes, int byte) { return ShiftRightBy(bytes, SplatInt(byte * 8)) & 255; }
  static constexpr int kSumWords = 4;
  // Words of two 16-bit integers to multiply the block's sums of x with.
  static void SumScales(const std::byte* words, Vi (&scales)[kSumWords]) {
    constexpr int32_t kEvenBytes = 0x00ff00ff;
    const GroupScaleWords packed = LoadGroupScales(words);
    for (int half = 0; half < 2; ++half) {
      scales[2 * half] = packed.minima[half] & kEvenBytes;
      scales[2 * half + 1] = ShiftRight(packed.minima[half], 8) & kEvenBytes;
    }
  }
  static const int16_t* Sums(const X& x) { return x.sums32; }
};

struct SixBitBlocks {
  using X = RoundedX256;
  static constexpr bool kInGroups = false;
  static constexpr DType kDType = DType::kQ6K;
  static constexpr int kBits = 6;
  static constexpr int kMiddle = 32;
  static constexpr int kHalves = 1;
  static constexpr int kChunks = 4, kRuns = 4, kGroups = 4, kAlternating = 2;
  static constexpr int kDecodeRuns = kRuns, kDecodeGroups = kGroups;

  // Three words a group: the two high bits of numbers 0, 32, 64 and 96 further, the low bits of those 0 and
  // 64 further, and of those 32 and 96 further.
  [[gnu::always_inline]] static Vi Word(const std::byte* words, int chunk, int run, int group) {
    const std::byte* const of_group = words + int64_t{4 + (chunk * kGroups + group) * 3} * kWordStride;
    const Vi high = WordAt(of_group, 0);
    const Vi low = WordAt(of_group, 1 + run % 2);
    const Vi top = run == 0 ? high << 4 : run == 1 ? high << 2 : run == 2 ? high : high >> 2;
    return ((run < 2 ? low : low >> 4) & kNibbles) | (top & 0x30303030);
  }
  static void RunScales(const std::byte* words, Vi (&scales)[kChunks * kRuns]) {
    for (int run = 0; run < kChunks * kRuns; ++run) {
      scales[run] = WordAt(words, run / 4) << (24 - run % 4 * 8) >> 24;
    }
  }
  template <int kRun>
  [[gnu::always_inline]] static Vi DecodeWord(const std::byte* words, int chunk, int group) {
    const std::byte* const of_group = words + int64_t{4 + (chunk * kGroups + group) * 3} * kWordStride;
    const Vi high = WordAt(of_group, 0), low = WordAt(of_group, 1 + kRun % 2);
    const Vi top = kRun == 0 ? high << 4 : kRun == 1 ? high << 2 : kRun == 2 ? high : high >> 2;
    return SelectBits(SplatInt(kNibbles), kRun < 2 ? low : low >> 4, top);
  }
  static constexpr int kScaleWords = 4;
  static void ScaleBytes(const std::byte* words, Vi (&bytes)[kScaleWords]) {
    for (int word = 0; word < kScaleWords; ++word) bytes[word] = WordAt(words, word);
  }
  static Vi ScaleOfByte(Vi bytes, int byte) { return ShiftLeftBy(bytes, SplatInt(24 - byte * 8)) >> 24; }
  static constexpr int kSumWords = 8;
  static void SumScales(const std::byte* words, Vi (&scales)[kSumWords]) {
    for (int word = 0; word < 4; ++word) {
      const Vh packed = reinterpret_cast<Vh>(WordAt(words, word));
      scales[2 * word] = reinterpret_cast<Vi>(packed << 8 >> 8);
      scales[2 * word + 1] = reinterpret_cast<Vi>(packed >> 8);
    }
  }
  static const int16_t* Sums(const X& x) { return x.sums16; }
};

// ---- groups, whose size and scales are known only when it runs

// Of a group's beginning, the scales and zero points of one vector of outputs.
struct GroupHead {
  Vf scale;
  Vi zero;
};

inline Vi LoadUnsignedBytes(const std::byte* from) {
#if TM_SIMD_WIDTH == 16
  return reinterpret_cast<Vi>(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#elif TM_SIMD_WIDTH == 8
  return reinterpret_cast<Vi>(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#else
  Vi value;
  for (int i = 0; i < kWidth; ++i) value[i] = static_cast<int32_t>(from[i]);
  return value;
#endif
}

// Half as many numbers as there are lanes, each in two neighbours.
inline Vf LoadTwice(const float* from) {
#if TM_SIMD_WIDTH == 16
  const __m512i each = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
  return reinterpret_cast<Vf>(_mm512_permutexvar_ps(each, _mm512_castps256_ps512(_mm256_loadu_ps(from))));
#elif TM_SIMD_WIDTH == 8
  const __m256i each = _mm256_set_epi32(3, 3, 2, 2, 1, 1, 0, 0);
  return reinterpret_cast<Vf>(_mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(from)), each));
#else
  Vf value;
  for (int i = 0; i < kWidth; ++i) value[i] = from[i / 2];
  return value;
#endif
}

inline GroupHead LoadGroupHead(const Format& format, const std::byte* group, int v) {
  GroupHead head;
  const std::byte* scales = group + v * kWidth * format.packed_scale_bytes();
  if (format.scale == DType::kF16) {
    head.scale = LoadF16(reinterpret_cast<const uint16_t*>(scales));
  } else if (format.scale == DType::kBf16) {
    head.scale = LoadBf16(reinterpret_cast<const uint16_t*>(scales));
  } else {
    const auto* floats = reinterpret_cast<const float*>(scales);
    head.scale = format.scale_rows == 1 ? Load(floats) : LoadTwice(floats);
  }
  const std::byte* zeros = group + kPanelWidth * format.packed_scale_bytes();
  if (format.zero_points == 0) {
    head.zero = SplatInt(format.middle());
  } else if (format.dtype == DType::kInt4) {  // the vectors' in the halves of the same bytes
    head.zero = (LoadUnsignedBytes(zeros) >> (4 * v) & 15) + format.least_zero;
  } else {
    head.zero = LoadUnsignedBytes(zeros + v * kWidth);
  }
  return head;
}

// 32 numbers of a group: their words are those of a block of 32 without its scale.
template <DType kType>
struct PartsOfGroups : SmallBlocks<kType == DType::kInt4 ? DType::kQ4_0 : DType::kQ8_0> {
  static constexpr DType kDType = kType;
  static constexpr bool kInGroups = true;
  static constexpr int kHalves = 0;
  static constexpr int64_t kPartBytes = (kType == DType::kInt4 ? 16 : 32) * int64_t{kPanelWidth};
};

template <typename Type>
constexpr int64_t kPanelBlockBytes = int64_t{Format(Type::kDType).block_bytes} * kPanelWidth;
template <typename Type>
const std::byte* WordsOf(const std::byte* block, int v) {
  return block + Type::kHalves * kPanelWidth * 2 + v * kWidth * 4;
}
template <typename Type>
constexpr bool kHasRunScales = Type::X::kBlock == 256;
template <typename Type>
constexpr int PlaceOfRunInBlock(int chunk, int run) {
  constexpr int n = Type::kAlternating;
  return (chunk / n * Type::kRuns + run) * n + chunk % n;
}

// ---- exactly
//
// Whole numbers become f32 where they stand: with an exponent above it, the number q at bit `at` of a word is
//
//   (word & mask) | (150 - at) << 23   =   2^(23 - at) + q
//
// and a subtraction leaves q less its middle. Every unit of a processor does these operations, where shifts
// and conversions are one or two units' alone. Where there are tables of 16 and 32 f32, four or five bits
// choose from one.
//
// A code of fp8 has its exponent and mantissa put where an f32 has its own. That is 2^-120 of the number,
// which 2^120 times the scale makes whole again. Subnormal codes make subnormal f32. Where the processor is
// slow with these, 32 numbers of a panel that have such a code are read with the exponent 120 higher: what
// was subnormal, m 2^-9, is then y = 2^-7 (1 + m / 8), and 2 y - 2^-6 is m 2^-9; for all other numbers that
// is more than y. NaN goes a way of its own.

// Where the integers of a run begin in its words.
template <typename Type>
constexpr int FirstBit(int run) {
  return Type::kBits == 4 ? 4 * run : 0;
}

// What the first and the second number of a run's words have above their own. middle: that of integers that
// have no sign.
template <typename Type>
[[gnu::always_inline]] inline void PutAbove(int run, Vf middle, Vf (&above)[2]) {
  above[0] = middle + static_cast<float>(1 << (23 - FirstBit<Type>(run)));
  above[1] = middle + static_cast<float>(1 << (15 - FirstBit<Type>(run)));
}

// Of five bits those at bit 0 come from a table, of four all: additions and fused multiply-adds get in each
// other's way (Zen 4), and where there is a minimum two of these follow.
template <typename Type>
constexpr bool kHasTable = kWidth == 16 && !Type::kInGroups && Type::kBits <= 5;

#if TM_SIMD_WIDTH == 16
template <typename Type>
[[gnu::always_inline]] inline Vf NumberFromTable(Vi w) {
  constexpr float m = Type::kMiddle;
  const Vf numbers = {0 - m, 1 - m, 2 - m,  3 - m,  4 - m,  5 - m,  6 - m,  7 - m,
                      8 - m, 9 - m, 10 - m, 11 - m, 12 - m, 13 - m, 14 - m, 15 - m};
  const auto bits = reinterpret_cast<__m512i>(w);  // of which four, or five, are looked at
  if constexpr (Type::kBits == 4) return _mm512_permutexvar_ps(bits, numbers);
  return _mm512_permutex2var_ps(numbers, bits, numbers + 16.0f);
}
#endif

template <typename Type, int kAt>
[[gnu::always_inline]] inline Vf NumberAt(Vi w, Vf above) {
  static_assert(kAt + Type::kBits <= 23, "of an f32's mantissa");
#if TM_SIMD_WIDTH == 16
  if constexpr (kAt == 0 && kHasTable<Type>) return NumberFromTable<Type>(w);
#endif
  constexpr int32_t kMask = ((1 << Type::kBits) - 1) << kAt;
  constexpr int32_t kSign = Type::kBits == 8 ? 128 << kAt : 0;  // of signed bytes, which become 128 more
  return BitsToFloat(MaskedXor(w, SplatInt(kMask), SplatInt(((150 - kAt) << 23) ^ kSign))) - above;
}

// Number i of the four in a word, without its middle.
template <typename Type, int kRun>
[[gnu::always_inline]] inline Vf NumberOfWord(Vi w, int i, const Vf (&above)[2]) {
  constexpr int kFirst = FirstBit<Type>(kRun);
#if TM_SIMD_WIDTH == 16
  if constexpr (kHasTable<Type> && Type::kBits == 4)
    return NumberFromTable<Type>(ShiftRight(w, kFirst + 8 * i));
#endif
  if constexpr (kWidth != 16 && (Type::kBits == 6 || (Type::kBits == 5 && Type::kHalves == 2))) {
    // With no registers left for masks and exponents of their own.
    return ToFloats((ShiftRight(w, 8 * i) & ((1 << Type::kBits) - 1)) - Type::kMiddle);
  }
  const Vi half = i < 2 ? w : ShiftRight(w, 16);
  return i % 2 == 0 ? NumberAt<Type, kFirst>(half, above[0]) : NumberAt<Type, kFirst + 8>(half, above[1]);
}

// body(run) for the runs of a chunk, known when compiled.
template <int kRuns, typename Body>
[[gnu::always_inline]] inline void ForEachRun(const Body& body) {
  body(std::integral_constant<int, 0>());
  if constexpr (kRuns > 1) body(std::integral_constant<int, 1>());
  if constexpr (kRuns > 2) body(std::integral_constant<int, 2>());
  if constexpr (kRuns > 3) body(std::integral_constant<int, 3>());
}

// A block's numbers as f32, side by side of some panels: put(v, k, value) of number k of vector v of their
// outputs, in ascending k, and before(k) for every fourth. Where there is a minimum the product that it is
// taken from is exact, so a fused multiply-add makes the same value.
template <typename Type, int kPanels, typename Put, typename Before>
[[gnu::always_inline]] inline void DecodeBlock(const std::byte* const (&blocks)[kPanels], const Put& put,
                                               const Before& before) {
  constexpr int kVectors = 2 * kPanels;
  const std::byte* words[kVectors];
  Vf factors[kVectors], minima[kVectors] = {};
  Vi scale_bytes[kVectors][4];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    words[v] = WordsOf<Type>(blocks[v / 2], v % 2);
    factors[v] = HalfAt(blocks[v / 2], 0, v % 2);
    if constexpr (Type::kHalves == 2) minima[v] = HalfAt(blocks[v / 2], 1, v % 2);
    if constexpr (kHasRunScales<Type>) Type::ScaleBytes(words[v], scale_bytes[v]);
  }
#pragma GCC unroll 1
  for (int first = 0; first < Type::kChunks; first += Type::kAlternating) {
    ForEachRun<Type::kDecodeRuns>([&](auto run) __attribute__((always_inline)) {
      constexpr int kRun = run;
      Vf above[2];
      PutAbove<Type>(kRun, Splat(Type::kBits == 8 ? 128 : Type::kMiddle), above);
#pragma GCC unroll 1
      for (int chunk = first; chunk < first + Type::kAlternating; ++chunk) {
        const int index = (first * Type::kDecodeRuns + kRun * Type::kAlternating) + chunk - first;
        Vf factor[kVectors], minimum[kVectors];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          factor[v] = factors[v];
          minimum[v] = minima[v];
          if constexpr (kHasRunScales<Type>) {
            factor[v] = factors[v] * ToFloats(Type::ScaleOfByte(scale_bytes[v][index / 4], index % 4));
            if constexpr (Type::kHalves == 2) {
              const Vi least = Type::ScaleOfByte(scale_bytes[v][2 + index / 4], index % 4);
              minimum[v] = -(minima[v] * ToFloats(least));
            }
          }
        }
#pragma GCC unroll 1
        for (int group = 0; group < Type::kDecodeGroups; ++group) {
          const int k = (index * Type::kDecodeGroups + group) * 4;
          before(k);
          Vi w[kVectors];
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) w[v] = Type::template DecodeWord<kRun>(words[v], chunk, group);
#pragma GCC unroll 4
          for (int i = 0; i < 4; ++i) {
#pragma GCC unroll 4
            for (int v = 0; v < kVectors; ++v) {
              const Vf number = NumberOfWord<Type, kRun>(w[v], i, above);
              if constexpr (Type::kHalves == 2) {
                put(v, k + i, Fma(factor[v], number, minimum[v]));
              } else {
                put(v, k + i, factor[v] * number);
              }
            }
          }
        }
      }
    });
  }
}

// The same of 32 numbers of a group of integers.
template <typename Type, int kPanels, typename Put>
[[gnu::always_inline]] inline void DecodePart(const std::byte* const (&parts)[kPanels],
                                              const GroupHead (&heads)[2 * kPanels], const Put& put) {
  constexpr int kVectors = 2 * kPanels;
  ForEachRun<Type::kDecodeRuns>([&](auto run) __attribute__((always_inline)) {
    constexpr int kRun = run;
    Vf above[kVectors][2];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) PutAbove<Type>(kRun, ToFloats(heads[v].zero), above[v]);
#pragma GCC unroll 1
    for (int group = 0; group < Type::kDecodeGroups; ++group) {
      Vi w[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        w[v] = Type::template DecodeWord<kRun>(WordsOf<Type>(parts[v / 2], v % 2), 0, group);
      }
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          put(v, (kRun * Type::kDecodeGroups + group) * 4 + i,
              heads[v].scale * NumberOfWord<Type, kRun>(w[v], i, above[v]));
        }
      }
    }
  });
}

// Number i of the four codes of fp8 in a word. kSubnormal: 2^-120 of it, of a subnormal code a subnormal f32.
template <bool kSubnormal>
[[gnu::always_inline]] inline Vf Fp8OfWord(Vi w, int i) {
  // As 16-bit integers, so that one shift brings two signs to their place: the upper byte, four bits lower.
  const Vh halves = reinterpret_cast<Vh>(w);
  const Vi two = reinterpret_cast<Vi>((i % 2 == 0 ? halves << 8 : halves) >> 4);
  const Vi code = i < 2 ? two << 16 : two;
  constexpr int32_t kInverted = kFp8Inverted << 20, kSignBit = static_cast<int32_t>(0x80000000u);
  if constexpr (kSubnormal) {
    return BitsToFloat(MaskedXor(code, SplatInt(kInverted | kSignBit), SplatInt(kInverted)));
  }
  const Vf size = BitsToFloat(MaskedXor(code, SplatInt(kInverted), SplatInt(kInverted)) + (120 << 23));
  const Vf number = Min(size, Fma(size, Splat(2.0f), Splat(-0x1p-6f)));
  return BitsToFloat(MaskedXor(code, SplatInt(kSignBit), FloatToBits(number)));
}

// What is among the codes of fp8 that were looked at, byte by byte: the least and the most of what they are
// without their signs, inverted as they are stored.
struct Fp8Range {
  using Bytes = uint8_t __attribute__((vector_size(4 * TM_SIMD_WIDTH)));
  static constexpr uint8_t kSubnormal = kFp8Inverted ^ 7;  // and zero

  // The codes of 32 numbers of a panel's outputs.
  [[gnu::always_inline]] void Add(const std::byte* part) {
#pragma GCC unroll 16
    for (int word = 0; word < 16; ++word) {
      const Bytes codes = reinterpret_cast<Bytes>(LoadWords(part + word * 4 * kWidth)) & kFp8Inverted;
      least = codes < least ? codes : least;
      most = codes > most ? codes : most;
    }
  }
  [[gnu::always_inline]] bool HasNan() const { return !AllTopBits(least + kFp8Inverted); }
  [[gnu::always_inline]] bool HasSubnormal() const { return !AllTopBits(~(most + (128 - kSubnormal))); }

  // Whether each byte is at least 128.
  [[gnu::always_inline]] static bool AllTopBits(Bytes bytes) {
#if TM_SIMD_WIDTH == 16
    return _mm512_movepi8_mask(reinterpret_cast<__m512i>(bytes)) == ~__mmask64{0};
#elif TM_SIMD_WIDTH == 8
    return _mm256_movemask_epi8(reinterpret_cast<__m256i>(bytes)) == -1;
#else
    uint8_t all = 128;
    for (int i = 0; i < 4 * kWidth; ++i) all &= bytes[i];
    return all != 0;
#endif
  }

  Bytes least = Bytes{} + kFp8Inverted, most = {};
};

// The same as DecodePart, of fp8 without NaN.
template <int kPanels, bool kSubnormal, typename Put>
[[gnu::always_inline]] inline void DecodeFp8Part(const std::byte* const (&parts)[kPanels],
                                                 const GroupHead (&heads)[2 * kPanels], const Put& put) {
  constexpr int kVectors = 2 * kPanels;
  Vf factors[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) factors[v] = heads[v].scale * (kSubnormal ? 0x1p120f : 1.0f);
#pragma GCC unroll 1
  for (int group = 0; group < 8; ++group) {
    Vi w[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) w[v] = WordAt(parts[v / 2] + v % 2 * kWidth * 4, group);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) put(v, group * 4 + i, factors[v] * Fp8OfWord<kSubnormal>(w[v], i));
    }
  }
}

// Any codes, number after number: number k of 32 of a panel's outputs.
[[gnu::noinline]] inline void PutFp8Numbers(const std::byte* part, int k, float* numbers) {
  for (int lane = 0; lane < kPanelWidth; ++lane) {
    const int code = static_cast<int>(part[(k / 4 * kPanelWidth + lane) * 4 + k % 4]) ^ kFp8Inverted;
    const int size = code & 127;
    int32_t bits = (size << 20) + (120 << 23);
    if (size < 8) {
      const float subnormal = static_cast<float>(size) * 0x1p-9f;
      __builtin_memcpy(&bits, &subnormal, sizeof bits);
    }
    if (size == 127) bits = 0x7fc00000;
    if (code >= 128) bits |= static_cast<int32_t>(0x80000000u);
    __builtin_memcpy(numbers + lane, &bits, sizeof bits);
  }
}

// The same as DecodePart, of any fp8. fits: all scales times 2^120 are finite.
template <int kPanels, typename Put>
[[gnu::always_inline]] inline void DecodeAnyFp8Part(const std::byte* const (&parts)[kPanels],
                                                    const GroupHead (&heads)[2 * kPanels], bool fits,
                                                    const Put& put) {
  Fp8Range range;
  for (const std::byte* part : parts) range.Add(part);
  if (!range.HasNan()) {
    if (fits && (IsAmd() || !range.HasSubnormal())) return DecodeFp8Part<kPanels, true>(parts, heads, put);
    return DecodeFp8Part<kPanels, false>(parts, heads, put);
  }
#pragma GCC unroll 1
  for (int k = 0; k < 32; ++k) {
#pragma GCC unroll 4
    for (int v = 0; v < 2 * kPanels; ++v) {
      alignas(64) float numbers[kPanelWidth];
      PutFp8Numbers(parts[v / 2], k, numbers);
      put(v, k, heads[v].scale * Load(numbers + v % 2 * kWidth));
    }
  }
}

// `count` numbers of the outputs of each panel from the blocks at `from` on: put and before as DecodeBlock
// has them, but before(panels, k) is told where a block, or 32 numbers of a group, begin.
template <typename Type, int kPanels, typename Put, typename Before>
[[gnu::always_inline]] inline void DecodeNumbers(const Format& format, const std::byte* (&from)[kPanels],
                                                 int64_t count, const Put& put, const Before& before) {
  if constexpr (!Type::kInGroups) {
    for (int64_t begin = 0; begin < count; begin += Type::X::kBlock) {
      DecodeBlock<Type, kPanels>(
          from, [&](int v, int k, Vf value) __attribute__((always_inline)) { put(v, begin + k, value); },
          [&](int k) __attribute__((always_inline)) { before(from, k); });
      for (const std::byte*& block : from) block += kPanelBlockBytes<Type>;
    }
  } else {
    GroupHead heads[2 * kPanels] = {};
    bool fits = false;  // for fp8
    for (int64_t begin = 0; begin < count; begin += 32) {
      if ((begin & (format.block_size() - 1)) == 0) {
        fits = true;
        for (int v = 0; v < 2 * kPanels; ++v) {
          heads[v] = LoadGroupHead(format, from[v / 2], v % 2);
          fits = fits && AllFinite(heads[v].scale * 0x1p120f);
        }
        for (const std::byte*& group : from) group += format.PackedCodesAt(kPanelWidth);
      }
      before(from, 0);
      const auto put_part = [&](int v, int k, Vf value)
                                __attribute__((always_inline)) { put(v, begin + k, value); };
      if constexpr (Type::kDType == DType::kFp8E4M3) {
        DecodeAnyFp8Part<kPanels>(from, heads, fits, put_part);
      } else {
        DecodePart<Type, kPanels>(from, heads, put_part);
      }
      for (const std::byte*& part : from) part += Type::kPartBytes;
    }
  }
}

// `count` numbers of each of a panel's outputs from the blocks at `from`, [k][kPanelWidth].
using DecodePanelFunction = void (*)(const Format& format, const std::byte* from, int64_t count, float* to);

template <typename Type>
void DecodePanel(const Format& format, const std::byte* from, int64_t count, float* to) {
  const std::byte* at[1] = {from};
  DecodeNumbers<Type, 1>(
      format, at, count,
      [to](int v, int64_t k, Vf value)
          __attribute__((always_inline)) { Store(to + k * kPanelWidth + v * kWidth, value); },
      [](const std::byte* const(&)[1], int) {});
}

// One tile of rows takes as much at once as the first cache holds decoded, more tiles what the second does.
inline void MultiplyExactly(const LinearJob& job, const LinearBlock& block, DecodePanelFunction decode,
                            BlockScratch& scratch) {
  const Format& format = job.weight_format;
  const int64_t depth = job.tiles == 1 ? format.block_size() : kBlockK;
  const int64_t width = job.tiles == 1 ? std::max<int64_t>(1, kBlockPanels * 32 / depth) : kBlockPanels;
  const int64_t stride = depth * kPanelWidth;  // of decoded panels
  for (int64_t begin = block.panel_begin; begin < block.panel_end; begin += width) {
    LinearBlock some = block;
    some.panel_begin = begin;
    some.panel_end = std::min<int64_t>(begin + width, block.panel_end);
    for (int64_t k = 0; k < job.in_features; k += depth) {
      const int64_t count = std::min<int64_t>(depth, job.in_features - k);
      for (int64_t panel = some.panel_begin; panel < some.panel_end; ++panel) {
        const std::byte* from = job.panels + panel * job.panel_bytes + format.PackedBytes(k, kPanelWidth);
        if (job.tiles == 1) {
          for (int64_t line = 0; line < format.PackedBytes(count, kPanelWidth); line += 64) {
            __builtin_prefetch(from + kPrefetchBytes + line);
          }
        }
        decode(format, from, count, scratch.weights + (panel - some.panel_begin) * stride);
      }
      MultiplyTilesAtK<F32Panels>(
          job, some,
          {reinterpret_cast<const std::byte*>(scratch.weights), stride * int64_t{sizeof(float)}, k, count},
          scratch);
    }
  }
}

// Asks the memory for what comes later of a panel. Of large blocks line by line between the products: many
// lines at once would wait for each other, and none would be under way later on.
template <typename Type, bool kAsks>
struct AskAhead {
  static constexpr int64_t Bytes() {
    if constexpr (Type::kInGroups) {
      return Type::kPartBytes;
    } else {
      return kPanelBlockBytes<Type>;
    }
  }
  static constexpr int kLines = kAsks ? static_cast<int>((Bytes() + 63) / 64) : 0;
  static constexpr int kLinesOfGroup = Type::X::kBlock == 32 ? 0 : kLines / (Type::kChunks * Type::kGroups);
  static constexpr int kLinesOfChunk = kLinesOfGroup * Type::kGroups;  // what its groups ask for
  static constexpr int kRest =
      (kLines - kLinesOfChunk * Type::kChunks + Type::kChunks - 1) / Type::kChunks;  // at its beginning

  const std::byte* lines;
  const std::byte* rest;

  AskAhead(const std::byte* block, int chunk)
      : lines(block + kPrefetchBytes + chunk * kLinesOfChunk * 64),
        rest(block + kPrefetchBytes + (Type::kChunks * kLinesOfChunk + chunk * kRest) * 64) {}

  [[gnu::always_inline]] void BeforeChunk() const {
#pragma GCC unroll 8
    for (int i = 0; i < kRest; ++i) __builtin_prefetch(rest + i * 64);
  }
  [[gnu::always_inline]] void BeforeGroup(int group) const {
#pragma GCC unroll 8
    for (int i = 0; i < kLinesOfGroup; ++i) __builtin_prefetch(lines + (group * kLinesOfGroup + i) * 64);
  }
};

// Asks for what comes later of a panel, where number k of the block that begins at `block` is decoded.
template <typename Type>
[[gnu::always_inline]] inline void AskForRow(const std::byte* block, int k) {
  constexpr int kGroupsOfChunk = Type::kRuns * Type::kGroups;
  const int group = k / 4;
  // Chunks that alternate are read crosswise: all of them are asked for before the first.
  if constexpr (Type::kAlternating > 1) block += kPanelBlockBytes<Type>;
  const AskAhead<Type, true> ahead(block, group / kGroupsOfChunk);
  if (group % kGroupsOfChunk == 0) ahead.BeforeChunk();
  if (group % Type::kRuns == 0) ahead.BeforeGroup(group % kGroupsOfChunk / Type::kRuns);
}

// Panels that go through together, for the sums of one wait for each other; 16 registers hold what six bits
// need of one.
template <typename Type>
constexpr int kPanelsOfRow = kWidth == 8 && Type::kBits == 6 ? 1 : 2;

// One row: its sums take each number as it is decoded, in the order in which they take those of scratch. A
// panel that is left over goes with itself.
template <typename Type>
void MultiplyRowExactly(const LinearJob& job, const LinearBlock& block) {
  constexpr int kPanels = kPanelsOfRow<Type>;
  const float* const x = PackedRows<F32Panels>(job, 0, 0);
  const bool asks = AsksAhead();
  for (int64_t panel = block.panel_begin; panel < block.panel_end; panel += kPanels) {
    const int64_t panels = std::min<int64_t>(kPanels, block.panel_end - panel);
    const std::byte* from[kPanels];
    for (int p = 0; p < kPanels; ++p) {
      from[p] = job.panels + (panel + std::min<int64_t>(p, panels - 1)) * job.panel_bytes;
    }
    Vf sums[2 * kPanels] = {};
    DecodeNumbers<Type, kPanels>(
        job.weight_format, from, job.in_features,
        [x, &sums](int v, int64_t k, Vf value)
            __attribute__((always_inline)) { sums[v] = Fma(Splat(x[k]), value, sums[v]); },
        [asks](const std::byte* const(&blocks)[kPanels], int k) __attribute__((always_inline)) {
          if (!asks) return;
          for (const std::byte* of_panel : blocks) AskForRow<Type>(of_panel, k);
        });
    alignas(64) float whole[kPanels * kPanelWidth];
    for (int v = 0; v < 2 * kPanels; ++v) Store(whole + v * kWidth, sums[v]);
    FinishPanels(job, 0, 1, panel, panels, whole);
  }
}

// ---- in 8 bits

// A lane's scale of a run as a product of its sums takes it.
inline Vi RunScale(Vi scale) {
#ifdef TM_DOTS_OF_FOUR
  return scale;
#else
  return (scale & 0xffff) | scale << 16;
#endif
}

// The rows of a tile at one block of k.
template <typename X>
struct BlockRows {
  const X* rows;
  const int8_t* Four(int r, int index) const { return rows[r].q + index * 4; }
};

// totals += scale times the sums of a run's products, for kRuns runs of a chunk from `run` on, whose words
// are read once. Where Type has no scales they are of one. words: of the block, by vector; before_group is
// called for each group before its words are read.
template <typename Type, int kRows, int kVectors, int kRuns, typename BeforeGroup>
[[gnu::always_inline]] inline void AddRuns(const std::byte* const (&words)[kVectors], int chunk, int run,
                                           const BlockRows<typename Type::X>& x,
                                           const Vi (&scales)[kRuns][kVectors], Vi (&totals)[kRows][kVectors],
                                           const BeforeGroup& before_group) {
  const auto first = [&](int i) { return PlaceOfRunInBlock<Type>(chunk, run + i) * Type::kGroups; };
#ifdef TM_DOTS_OF_FOUR
  Vi sums[kRuns][kRows][kVectors];
#pragma GCC unroll 4
  for (int i = 0; i < kRuns; ++i) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sums[i][r][v] = kHasRunScales<Type> ? Vi{} : totals[r][v];
    }
  }
#pragma GCC unroll 8
  for (int group = 0; group < Type::kGroups; ++group) {
    before_group(group);
    Vi w[kRuns][kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 4
      for (int i = 0; i < kRuns; ++i) {
        w[i][v] = Type::Word(words[v], chunk, run + i, group);
        if constexpr (Type::kBits == 8)
          w[i][v] ^= static_cast<int32_t>(0x80808080u);  // 128 more, and no sign
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < kRuns; ++i) {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) {
          sums[i][r][v] = DotBytes(sums[i][r][v], w[i][v], x.Four(r, first(i) + group));
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < kRuns; ++i) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        if constexpr (kHasRunScales<Type>) {
          totals[r][v] += sums[i][r][v] * scales[i][v];
        } else {
          totals[r][v] = sums[i][r][v];
        }
      }
    }
  }
#else
  // Sums of pairs that 16 bits hold: 2 (2^bits - 1) 127 each.
  constexpr int kFold = Type::kBits == 4 ? 8 : Type::kBits == 5 ? 4 : Type::kBits == 6 ? 2 : 1;
  static_assert(Type::kBits == 8 || kFold * 2 * ((1 << Type::kBits) - 1) * 127 <= 32767, "of 16 bits");
  constexpr int kGroups = Type::kGroups;
  constexpr int kStep = kFold < kGroups ? kFold : kGroups;
#pragma GCC unroll 8
  for (int begin = 0; begin < kGroups; begin += kStep) {
    Vi pairs[kRuns][kRows][kVectors];
#pragma GCC unroll 8
    for (int group = begin; group < begin + kStep; ++group) {
      before_group(group);
#pragma GCC unroll 4
      for (int i = 0; i < kRuns; ++i) {
        Vi w[kVectors], size[kVectors];
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) {
          w[v] = Type::Word(words[v], chunk, run + i, group);
          size[v] = Type::kBits == 8 ? SizeOfBytes(w[v]) : w[v];
        }
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          const Vi spread = SpreadWord(x.Four(r, first(i) + group));
#pragma GCC unroll 2
          for (int v = 0; v < kVectors; ++v) {
            const Vi some = DotPairs(size[v], Type::kBits == 8 ? WithSignOf(spread, w[v]) : spread);
            if constexpr (kStep == 1) {
              totals[r][v] = Now(totals[r][v] + DotHalves(some, scales[i][v]));  // no register for what waits
            } else {
              pairs[i][r][v] = group == begin ? some : AddHalves(pairs[i][r][v], some);
            }
          }
        }
      }
    }
    if constexpr (kStep > 1) {
#pragma GCC unroll 4
      for (int i = 0; i < kRuns; ++i) {
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
          for (int v = 0; v < kVectors; ++v) {
            totals[r][v] = Now(totals[r][v] + DotHalves(pairs[i][r][v], scales[i][v]));
          }
        }
      }
    }
  }
#endif
}

// Sums of small blocks' products, to the f32 sums.
template <typename Type, int kRows, bool kAsks>
[[gnu::always_inline]] inline void AddBlock(const std::byte* block, const RoundedX32* x,
                                            Vf (&sums)[kRows][2]) {
  Vi totals[kRows][2];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#ifdef TM_DOTS_OF_FOUR
    constexpr int kMore = Type::kBits == 8 ? 128 : Type::kMiddle;  // of each integer
#else
    constexpr int kMore = Type::kMiddle;
#endif
    totals[r][0] = totals[r][1] = kMore == 0 ? Vi{} : SplatInt(-kMore * x[r].sum);
  }
  const Vi ones = RunScale(SplatInt(1));
  AskAhead<Type, kAsks>(block, 0).BeforeChunk();
  // Two lines and more that stand first are read first, where few rows leave registers for it.
  constexpr bool kHalvesFirst = Type::kHasMinimum && kRows <= kMostRowsUnasked;
  Vf halves[2][2] = {};
  if constexpr (kHalvesFirst) {
    for (int v = 0; v < 2; ++v) {
      halves[0][v] = HalfAt(block, 0, v);
      halves[1][v] = HalfAt(block, 1, v);
    }
  }
  AddRuns<Type, kRows, 2, 1>({WordsOf<Type>(block, 0), WordsOf<Type>(block, 1)}, 0, 0, {x}, {{ones, ones}},
                             totals, [](int) {});
#pragma GCC unroll 2
  for (int v = 0; v < 2; ++v) {
    const Vf scale = kHalvesFirst ? halves[0][v] : HalfAt(block, 0, v);
    const Vf minimum = kHalvesFirst ? halves[1][v] : Type::kHasMinimum ? HalfAt(block, 1, v) : Vf{};
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      sums[r][v] = Fma(ToFloats(totals[r][v]), scale * x[r].scale, sums[r][v]);
      if constexpr (Type::kHasMinimum) sums[r][v] = Fma(minimum, Splat(x[r].scaled_sum), sums[r][v]);
    }
  }
}

// What turns the totals of a large block into f32, for one vector of outputs.
template <typename Type>
struct BlockScales {
  Vf scale;
  Vf minimum;
  Vi of_sums[Type::kSumWords];

  BlockScales(const std::byte* block, int v)
      : scale(HalfAt(block, 0, v)), minimum(Type::kHalves == 2 ? HalfAt(block, 1, v) : Vf{}) {
    Type::SumScales(WordsOf<Type>(block, v), of_sums);
  }

  // sum and what a row's total adds to it.
  [[gnu::always_inline]] Vf Added(Vf sum, Vi total, const RoundedX256& x) const {
    Vi subtracted = {};
#pragma GCC unroll 8
    for (int word = 0; word < Type::kSumWords; ++word) {
      subtracted = AddDotHalves(subtracted, of_sums[word], Type::Sums(x) + 2 * word);
    }
    if constexpr (Type::kMiddle != 0) total -= Type::kMiddle * subtracted;
    sum = Fma(ToFloats(total), scale * x.scale, sum);
    if constexpr (Type::kHalves == 2) sum = Fma(-ToFloats(subtracted), minimum * x.scale, sum);
    return sum;
  }
};

// The same of large blocks.
template <typename Type, int kRows, bool kAsks>
[[gnu::always_inline]] inline void AddBlock(const std::byte* block, const RoundedX256* x,
                                            Vf (&sums)[kRows][2]) {
  // As many runs of a chunk at once, and vectors, as the registers hold sums of.
  constexpr int kRuns = kRows * Type::kRuns <= kWidth / 2 ? Type::kRuns : 1;
  constexpr int kVectors = kRows <= kWidth / 4 ? 2 : 1;
  Vi of_runs[2][Type::kChunks * Type::kRuns];
#pragma GCC unroll 2
  for (int v = 0; v < 2; ++v) Type::RunScales(WordsOf<Type>(block, v), of_runs[v]);
  Vi totals[2 / kVectors][kRows][kVectors] = {};
#pragma GCC unroll 1
  for (int chunk = 0; chunk < Type::kChunks; ++chunk) {
    const AskAhead<Type, kAsks> ahead(block, chunk);
    ahead.BeforeChunk();
#pragma GCC unroll 4
    for (int run = 0; run < Type::kRuns; run += kRuns) {
#pragma GCC unroll 2
      for (int first = 0; first < 2; first += kVectors) {
        const std::byte* words[kVectors];
        Vi scales[kRuns][kVectors];
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) {
          words[v] = WordsOf<Type>(block, first + v);
#pragma GCC unroll 4
          for (int i = 0; i < kRuns; ++i) {
            scales[i][v] = RunScale(of_runs[first + v][PlaceOfRunInBlock<Type>(chunk, run + i)]);
          }
        }
        AddRuns<Type, kRows, kVectors, kRuns>(words, chunk, run, {x}, scales, totals[first / kVectors],
                                              [&](int group) {
                                                if (run == 0 && first == 0) ahead.BeforeGroup(group);
                                              });
      }
    }
  }
#pragma GCC unroll 2
  for (int v = 0; v < 2; ++v) {
    const BlockScales<Type> of_block(block, v);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      sums[r][v] = of_block.Added(sums[r][v], totals[v / kVectors][r][v % kVectors], x[r]);
    }
  }
}

// All groups of a panel's outputs.
template <typename Type, int kRows, bool kAsks>
[[gnu::always_inline]] inline void AddGroups(const LinearJob& job, const std::byte* group,
                                             const RoundedX32* x, int64_t x_stride, Vf (&sums)[kRows][2]) {
#ifdef TM_DOTS_OF_FOUR
  constexpr int kLess = 0;  // than a zero point: what products are with is unsigned
#else
  constexpr int kLess = Type::kBits == 8 ? 128 : 0;
#endif
  const Format format = job.weight_format;
  const Vi ones = RunScale(SplatInt(1));
  for (int64_t k = 0; k < job.in_features;) {
    Vf scales[2];
    Vi zeros[2];  // of 16 bits, with zeros above
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      const GroupHead head = LoadGroupHead(format, group, v);
      scales[v] = head.scale;
      zeros[v] = (kLess - head.zero) & 0xffff;
    }
    group += format.PackedCodesAt(kPanelWidth);
    const int64_t end = std::min(k + format.block_size(), job.in_features);
    for (; k < end; k += 32, group += Type::kPartBytes, x += x_stride) {
      Vi totals[kRows][2];
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) totals[r][v] = DotHalves(zeros[v], SpreadWord(&x[r].sum));
      }
      AskAhead<Type, kAsks>(group, 0).BeforeChunk();
      AddRuns<Type, kRows, 2, 1>({WordsOf<Type>(group, 0), WordsOf<Type>(group, 1)}, 0, 0, {x},
                                 {{ones, ones}}, totals, [](int) {});
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) {
          sums[r][v] = Fma(ToFloats(totals[r][v]), scales[v] * x[r].scale, sums[r][v]);
        }
      }
    }
  }
}

// Some rows of a tile that go through together.
struct RowRun {
  int64_t tile;
  int64_t first;      // of the tile's rows
  int64_t tile_rows;  //
};

// All k of such rows and one panel.
template <typename Type, int kRows, bool kAsks>
void MultiplyRounded(const LinearJob& job, const RowRun& run, int64_t panel) {
  Vf sums[kRows][2] = {};
  const std::byte* block = job.panels + panel * job.panel_bytes;
  const typename Type::X* x = RoundedTile<typename Type::X>(job, run.tile) + run.first;
  if constexpr (Type::kInGroups) {
    AddGroups<Type, kRows, kAsks>(job, block, x, run.tile_rows, sums);
  } else {
    for (int64_t left = job.in_features; left > 0; left -= Type::X::kBlock) {
      AddBlock<Type, kRows, kAsks>(block, x, sums);
      block += kPanelBlockBytes<Type>;
      x += run.tile_rows;
    }
  }
  alignas(64) float whole[kRows * kPanelWidth];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    Store(whole + r * kPanelWidth, sums[r][0]);
    Store(whole + r * kPanelWidth + kWidth, sums[r][1]);
  }
  FinishPanels(job, job.TileBegin(run.tile) + run.first, kRows, panel, 1, whole);
}

// A tile's rows go through the most together that fits, then the next fewer: the panel is in a cache by then.
template <typename Type, int kRows>
void MultiplyRoundedTile(const LinearJob& job, RowRun run, int64_t panel) {
  for (; run.first + kRows <= run.tile_rows; run.first += kRows) {
    if constexpr (kRows <= kMostRowsUnasked) {
      if (!AsksAhead()) {
        MultiplyRounded<Type, kRows, false>(job, run, panel);
        continue;
      }
    }
    MultiplyRounded<Type, kRows, true>(job, run, panel);
  }
  if constexpr (kRows > 1) MultiplyRoundedTile<Type, kRows / 2>(job, run, panel);
}
template <typename Type>
constexpr int kRowsTogether = kWidth == 4           ? 2
                              : kHasRunScales<Type> ? kWidth / 2
                              : kWidth == 16        ? 8
                              : Type::kBits == 8    ? 4
                                                    : 6;

// ---- in 8 bits, more rows and large blocks
//
// A block of k of a panel is unpacked once for all tiles of rows: its integers a byte each, its scales
// spread.

template <typename Type>
struct UnpackedBlock {
  static constexpr int kAllRuns = Type::kChunks * Type::kRuns;

  alignas(64) std::byte words[Type::X::kBlock / 4][kPanelWidth * 4];
  Vi run_scales[2][kAllRuns];

  explicit UnpackedBlock(const std::byte* block) {
    for (int v = 0; v < 2; ++v) {
      const std::byte* const from = WordsOf<Type>(block, v);
      for (int chunk = 0; chunk < Type::kChunks; ++chunk) {
#pragma GCC unroll 8
        for (int run = 0; run < Type::kRuns; ++run) {
#pragma GCC unroll 8
          for (int group = 0; group < Type::kGroups; ++group) {
            const Vi w = Type::Word(from, chunk, run, group);
            __builtin_memcpy(
                words[PlaceOfRunInBlock<Type>(chunk, run) * Type::kGroups + group] + v * kWidth * 4, &w,
                sizeof w);
          }
        }
      }
      Type::RunScales(from, run_scales[v]);
      for (Vi& scale : run_scales[v]) scale = RunScale(scale);
    }
  }
};

// A Type's integers as UnpackedBlock has them: a chunk is a run.
template <typename Type>
struct UnpackedWords : Type {
  static constexpr int kChunks = UnpackedBlock<Type>::kAllRuns, kRuns = 1, kAlternating = 1;

  [[gnu::always_inline]] static Vi Word(const std::byte* words, int chunk, int, int group) {
    return WordAt(words, chunk * Type::kGroups + group);
  }
};

// One vector of a panel's outputs at one block of k, between whose blocks sums rest in memory.
template <typename Type>
struct UnpackedPass {
  const UnpackedBlock<Type>& block;
  const BlockScales<Type>& scales;
  int v;
  const RoundedX256* x;   // of the tile's first row
  float (*sums)[kWidth];  // [rows of the tile]
};

template <typename Type, int kRows>
void AddUnpacked(const UnpackedPass<Type>& pass) {
  Vi totals[kRows][1] = {};
  const std::byte* const words[1] = {pass.block.words[0] + pass.v * kWidth * 4};
#pragma GCC unroll 1
  for (int run = 0; run < UnpackedBlock<Type>::kAllRuns; ++run) {
    AddRuns<UnpackedWords<Type>, kRows, 1, 1>(words, run, 0, {pass.x}, {{pass.block.run_scales[pass.v][run]}},
                                              totals, [](int) {});
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    Store(pass.sums[r], pass.scales.Added(Load(pass.sums[r]), totals[r][0], pass.x[r]));
  }
}

template <typename Type>
using UnpackedFunction = void (*)(const UnpackedPass<Type>& pass);
template <typename Type, int... kRowsMinusOne>
constexpr std::array<UnpackedFunction<Type>, sizeof...(kRowsMinusOne)> UnpackedFunctions(
    std::integer_sequence<int, kRowsMinusOne...>) {
  return {&AddUnpacked<Type, kRowsMinusOne + 1>...};
}
// [rows - 1]
template <typename Type>
constexpr auto kUnpackedFunctions = UnpackedFunctions<Type>(std::make_integer_sequence<int, kTileRows>());

using UnpackedSums = float[kBlockTiles][2][kTileRows][kWidth];  // of each tile, by vector
static_assert(sizeof(UnpackedSums) <= sizeof(BlockScratch), "sums rest in scratch");

template <typename Type>
void MultiplyUnpacked(const LinearJob& job, const LinearBlock& block, int64_t panel, UnpackedSums& sums) {
  const std::byte* from = job.panels + panel * job.panel_bytes;
  __builtin_memset(sums, 0, static_cast<size_t>(block.tile_end - block.tile_begin) * sizeof sums[0]);
  for (int64_t k = 0; k < job.in_features; k += Type::X::kBlock, from += kPanelBlockBytes<Type>) {
    const UnpackedBlock<Type> unpacked(from);
    for (int64_t line = 0; line < kPanelBlockBytes<Type>; line += 64) {  // of the next block
      __builtin_prefetch(from + kPanelBlockBytes<Type> + line, 0, 2);
    }
    const BlockScales<Type> scales[2] = {{from, 0}, {from, 1}};
    for (int64_t tile = block.tile_begin; tile < block.tile_end; ++tile) {
      const int64_t rows = job.TileBegin(tile + 1) - job.TileBegin(tile);
      const RoundedX256* const x = RoundedTile<RoundedX256>(job, tile) + k / Type::X::kBlock * rows;
      for (int v = 0; v < 2; ++v) {
        kUnpackedFunctions<Type>[static_cast<size_t>(rows - 1)](
            {unpacked, scales[v], v, x, sums[tile - block.tile_begin][v]});
      }
    }
  }
  for (int64_t tile = block.tile_begin; tile < block.tile_end; ++tile) {
    const auto& of_tile = sums[tile - block.tile_begin];
    const int64_t first = job.TileBegin(tile);
    for (int64_t row = first; row < job.TileBegin(tile + 1); ++row) {
      FinishPanel(job, row, panel, Load(of_tile[0][row - first]), Load(of_tile[1][row - first]));
    }
  }
}

template <typename Type>
void MultiplyBlocksOf(const LinearJob& job, const LinearBlock& block, std::byte* scratch) {
  if (job.mode == LinearMode::kExact) {
    if (job.rows == 1) return MultiplyRowExactly<Type>(job, block);
    return MultiplyExactly(job, block, DecodePanel<Type>, *reinterpret_cast<BlockScratch*>(scratch));
  }
  for (int64_t panel = block.panel_begin; panel < block.panel_end; ++panel) {
    if constexpr (kHasRunScales<Type>) {
      if (job.tiles > 1) {
        MultiplyUnpacked<Type>(job, block, panel, *reinterpret_cast<UnpackedSums*>(scratch));
        continue;
      }
    }
    for (int64_t tile = block.tile_begin; tile < block.tile_end; ++tile) {
      const int64_t rows = job.TileBegin(tile + 1) - job.TileBegin(tile);
      MultiplyRoundedTile<Type, kRowsTogether<Type>>(job, {tile, 0, rows}, panel);
    }
  }
}

#ifndef TM_BF16_PRODUCTS
void MultiplyBlocks(const LinearJob& job, const LinearBlock& block, std::byte* scratch) {
  switch (job.weight_format.dtype) {
    case DType::kQ8_0:
      return MultiplyBlocksOf<SmallBlocks<DType::kQ8_0>>(job, block, scratch);
    case DType::kQ4_0:
      return MultiplyBlocksOf<SmallBlocks<DType::kQ4_0>>(job, block, scratch);
    case DType::kQ4_1:
      return MultiplyBlocksOf<SmallBlocks<DType::kQ4_1>>(job, block, scratch);
    case DType::kQ5_0:
      return MultiplyBlocksOf<SmallBlocks<DType::kQ5_0>>(job, block, scratch);
    case DType::kQ5_1:
      return MultiplyBlocksOf<SmallBlocks<DType::kQ5_1>>(job, block, scratch);
    case DType::kQ4K:
      return MultiplyBlocksOf<GroupedBlocks<DType::kQ4K>>(job, block, scratch);
    case DType::kQ5K:
      return MultiplyBlocksOf<GroupedBlocks<DType::kQ5K>>(job, block, scratch);
    case DType::kQ6K:
      return MultiplyBlocksOf<SixBitBlocks>(job, block, scratch);
    case DType::kInt4:
      return MultiplyBlocksOf<PartsOfGroups<DType::kInt4>>(job, block, scratch);
    case DType::kInt8:
      return MultiplyBlocksOf<PartsOfGroups<DType::kInt8>>(job, block, scratch);
    case DType::kFp8E4M3: {
      using Type = PartsOfGroups<DType::kFp8E4M3>;  // has no whole numbers
      if (job.rows == 1) return MultiplyRowExactly<Type>(job, block);
      return MultiplyExactly(job, block, DecodePanel<Type>, *reinterpret_cast<BlockScratch*>(scratch));
    }
    case DType::kF32:
    case DType::kBf16:
    case DType::kF16:
      return;  // Multiply's own
  }
}
#endif

}  // namespace
}  // namespace tramontane

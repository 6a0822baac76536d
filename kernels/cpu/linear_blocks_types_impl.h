// Of linear_blocks_impl.h: what each type of block says of itself.
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
#pragma once

#include "kernels/cpu/linear_blocks_rows_impl.h"

namespace tramontane {
namespace {

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

}  // namespace
}  // namespace tramontane

// Quantised keys and values in registers. Included by attention_few_impl.h.
//
// Values are those of kernels/core/kv_quantize.h: a small number times its scale, rounded once to f32. Few
// rows transpose keys as they are stored, four or eight numbers a unit, and take numbers out of units and
// bytes as they multiply them: attention_few_impl.h. For many rows a row becomes one of f32 in their copies.
#pragma once

#include "kernels/cpu/attention_elements_impl.h"

namespace tramontane {
namespace {

static_assert(kWidth <= kAttentionDecodedKeys);

// kWidth lanes of bytes: each 32 bits get byte i of their own on top, zeros below.
#if TM_SIMD_WIDTH == 16
inline Vi ByteOnTop(Vi units, int i) {
  const int32_t first = (i << 24) | 0x808080, next = 4 << 24;
  const __m512i from = _mm512_set4_epi32(first + 3 * next, first + 2 * next, first + next, first);
  return reinterpret_cast<Vi>(_mm512_shuffle_epi8(reinterpret_cast<__m512i>(units), from));
}
inline Vf FloatOfInts(Vi numbers) { return _mm512_cvtepi32_ps(reinterpret_cast<__m512i>(numbers)); }
#elif TM_SIMD_WIDTH == 8
inline Vi ByteOnTop(Vi units, int i) {
  const int32_t first = (i << 24) | 0x808080, next = 4 << 24;
  const __m256i from = _mm256_setr_epi32(first, first + next, first + 2 * next, first + 3 * next, first,
                                         first + next, first + 2 * next, first + 3 * next);
  return reinterpret_cast<Vi>(_mm256_shuffle_epi8(reinterpret_cast<__m256i>(units), from));
}
inline Vf FloatOfInts(Vi numbers) { return _mm256_cvtepi32_ps(reinterpret_cast<__m256i>(numbers)); }
#else
inline Vi ByteOnTop(Vi units, int i) {
  using Unsigned = uint32_t __attribute__((vector_size(4 * TM_SIMD_WIDTH)));
  return reinterpret_cast<Vi>(reinterpret_cast<Unsigned>(units) << (24 - 8 * i)) & SplatInt(-0x1000000);
}
inline Vf FloatOfInts(Vi numbers) { return __builtin_convertvector(numbers, Vf); }
#endif

// ---- kWidth numbers, before their scale. Reads no byte beyond them.

#if TM_SIMD_WIDTH == 16
using ByteVector = __m128i;  // kWidth of them, in the low bytes
inline Vf WidenBytes(ByteVector numbers) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(numbers)); }
inline ByteVector LoadBytes(const std::byte* from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}
inline ByteVector LoadHalfBytes(const std::byte* from) {
  return _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
}
// Each byte's e4m3 read as the top of an f16, which makes 2^-8 of the number.
inline Vf WidenFp8(ByteVector codes) {
  const __m256i wide = _mm256_cvtepu8_epi16(codes);
  const __m256i magnitude = _mm256_and_si256(wide, _mm256_set1_epi16(0x7f));
  const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(wide, _mm256_set1_epi16(0x80)), 8);
  const __m256i nan =
      _mm256_and_si256(_mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f)), _mm256_set1_epi16(0x7e00));
  return _mm512_cvtph_ps(_mm256_or_si256(_mm256_or_si256(_mm256_slli_epi16(magnitude, 7), sign), nan));
}
#elif TM_SIMD_WIDTH == 8
using ByteVector = __m128i;
inline Vf WidenBytes(ByteVector numbers) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(numbers)); }
inline ByteVector LoadBytes(const std::byte* from) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
}
inline ByteVector LoadHalfBytes(const std::byte* from) {
  int32_t bytes;
  __builtin_memcpy(&bytes, from, sizeof bytes);
  return _mm_cvtepu8_epi16(_mm_cvtsi32_si128(bytes));
}
inline Vf WidenFp8(ByteVector codes) {
  const __m128i wide = _mm_cvtepu8_epi16(codes);
  const __m128i magnitude = _mm_and_si128(wide, _mm_set1_epi16(0x7f));
  const __m128i sign = _mm_slli_epi16(_mm_and_si128(wide, _mm_set1_epi16(0x80)), 8);
  const __m128i nan = _mm_and_si128(_mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7f)), _mm_set1_epi16(0x7e00));
  return _mm256_cvtph_ps(_mm_or_si128(_mm_or_si128(_mm_slli_epi16(magnitude, 7), sign), nan));
}
#endif

struct Int8Numbers {
  static constexpr bool kInGroups = true;
  static constexpr int64_t Bytes(int64_t count) { return count; }
  static constexpr int kPerUnit = 4;
  static constexpr bool kStoredUnits = true;
  static constexpr bool kPairsByTurns = false;
  // Number i of each unit, over kUnitFactor.
  static constexpr float kUnitFactor = 0x1p-24f;
  static Vf OfUnits(Vi units, int i) { return FloatOfInts(ByteOnTop(units, i)); }
  static Vf At(const std::byte* numbers) {
#if TM_SIMD_WIDTH == 4
    Vf value;
    for (int i = 0; i < kWidth; ++i) value[i] = static_cast<float>(static_cast<int8_t>(numbers[i]));
    return value;
#else
    return WidenBytes(LoadBytes(numbers));
#endif
  }
};

struct Int4Numbers {
  static constexpr bool kInGroups = true;
  static constexpr int64_t Bytes(int64_t count) { return count / 2; }
  static constexpr int kPerUnit = 8;
  static constexpr bool kStoredUnits = true;
  static constexpr bool kPairsByTurns = true;
#if TM_SIMD_WIDTH == 16
  // A number is looked up by the low four bits of its lane.
  static Vf Table() { return Vf{0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1}; }
  static Vf LookUp(Vi lanes, Vf table) {
    return _mm512_permutexvar_ps(reinterpret_cast<__m512i>(lanes), table);
  }
  static constexpr float kUnitFactor = 1.0f;
  static Vf OfUnits(Vi units, int i) { return LookUp(units >> (4 * i), Table()); }
  // Even and odd numbers of 2 kWidth, times their scale.
  static VectorPair ScaledPairAt(const std::byte* numbers, Vf scale) {
    const Vi bytes = reinterpret_cast<Vi>(_mm512_cvtepu8_epi32(LoadBytes(numbers)));
    const Vf scaled = Table() * scale;
    return {LookUp(bytes, scaled), LookUp(bytes >> 4, scaled)};
  }
#else
  static constexpr float kUnitFactor = 0x1p-28f;
  static Vf OfUnits(Vi units, int i) {
    using Unsigned = uint32_t __attribute__((vector_size(4 * TM_SIMD_WIDTH)));
    const Vi on_top = reinterpret_cast<Vi>(reinterpret_cast<Unsigned>(units) << (28 - 4 * i));
    return FloatOfInts(on_top & SplatInt(-0x10000000));
  }
  static VectorPair ScaledPairAt(const std::byte* numbers, Vf scale) {
#if TM_SIMD_WIDTH == 8
    const Vi bytes = reinterpret_cast<Vi>(_mm256_cvtepi8_epi32(LoadBytes(numbers)));
#else
    Vi bytes;
    for (int i = 0; i < kWidth; ++i) bytes[i] = static_cast<int8_t>(numbers[i]);
#endif
    const Vi even = ((bytes & 15) ^ 8) - 8;
    return {FloatOfInts(even) * scale, FloatOfInts(bytes >> 4) * scale};
  }
#endif
  static Vf At(const std::byte* numbers) {
#if TM_SIMD_WIDTH == 4
    Vf value;
    for (int i = 0; i < kWidth; ++i) {
      const int nibble = static_cast<int>(numbers[i / 2]) >> (i % 2 * 4) & 0xf;
      value[i] = static_cast<float>((nibble ^ 8) - 8);
    }
    return value;
#else
    // A byte of two in 16 bits, then one in each 8: the even number low.
    const __m128i pairs = LoadHalfBytes(numbers);
    const __m128i low = _mm_and_si128(pairs, _mm_set1_epi16(0x000f));
    const __m128i high = _mm_and_si128(_mm_slli_epi16(pairs, 4), _mm_set1_epi16(0x0f00));
    const __m128i middle = _mm_set1_epi8(8);
    return WidenBytes(_mm_sub_epi8(_mm_xor_si128(_mm_or_si128(low, high), middle), middle));
#endif
  }
};

struct Fp8Numbers {
  static constexpr bool kInGroups = false;
  static constexpr int64_t Bytes(int64_t count) { return count; }
  static constexpr int kPerUnit = 4;
  static constexpr bool kStoredUnits = true;
  static constexpr bool kPairsByTurns = false;
  // Number i of each unit, over kFactor. One whose exponent is zero has no leading bit: it is twice what it
  // would be with one, less the smallest number that has. For all others that is not below the number.
  static Vf OfUnits(Vi units, int i) {
    constexpr int32_t kBias = 120 - (kFactor == 256.0f ? 8 : 0);
    constexpr float kSmallest = 0x1p-6f / kFactor;
    const Vi top = ByteOnTop(units, i);
    const Vi magnitude = (top >> 4) & SplatInt(0x07f00000);
    const Vf normal = BitsToFloat(magnitude + SplatInt(kBias << 23));
    const Vf value = Min(normal, Fma(normal, Splat(2.0f), Splat(-kSmallest)));
    const Vi nan = magnitude == SplatInt(0x07f00000);
    return BitsToFloat(FloatToBits(value) | nan | (top & SplatInt(INT32_MIN)));
  }
#if TM_SIMD_WIDTH == 4
  static constexpr float kFactor = 1.0f;  // of what At gives
  static Vf At(const std::byte* numbers) {
    Vf value;
    for (int i = 0; i < kWidth; ++i) value[i] = Fp8E4M3ToFloat(static_cast<uint8_t>(numbers[i]));
    return value;
  }
#else
  static constexpr float kFactor = 256.0f;
  static Vf At(const std::byte* numbers) { return WidenFp8(LoadBytes(numbers)); }
#endif
};

template <typename Elements>
constexpr bool kIsQuantized = requires { Elements::kInGroups; };

template <typename Numbers>
  requires kIsQuantized<Numbers>
Vf ElementOfUnits(Vf units, int i) {
  return Numbers::OfUnits(FloatToBits(units), i);
}

// Two vectors of numbers times their scale, in the order of kPairsByTurns.
template <typename Numbers>
VectorPair ScaledPairAt(const std::byte* numbers, Vf scale) {
  if constexpr (Numbers::kPairsByTurns) {
    return Numbers::ScaledPairAt(numbers, scale);
  } else {
    return {Numbers::At(numbers) * scale, Numbers::At(numbers + Numbers::Bytes(kWidth)) * scale};
  }
}

// The first n <= kWidth numbers, an even count; the others are zero.
template <typename Numbers>
Vf FirstNumbersAt(const std::byte* numbers, int n) {
  if (n == kWidth) return Numbers::At(numbers);
  std::byte first[kWidth] = {};
  __builtin_memcpy(first, numbers, static_cast<size_t>(Numbers::Bytes(n)));
  return Numbers::At(first);
}

// ---- rows

inline float ScaleOfGroup(DType type, const std::byte* scales, int32_t group) {
  if (type == DType::kF32) {
    float scale;
    __builtin_memcpy(&scale, scales + group * 4, sizeof scale);
    return scale;
  }
  uint16_t bits;
  __builtin_memcpy(&bits, scales + group * 2, sizeof bits);
#if TM_SIMD_WIDTH == 4
  return F16ToFloat(bits);
#else
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)));
#endif
}

// One vector in f32: to [PaddedHeadDim], zeros behind its head_dim numbers.
template <typename Numbers>
void DecodeRow(const Format& format, const std::byte* numbers, const std::byte* scales, int32_t head_dim,
               float* to) {
  int32_t d = 0;
  if constexpr (Numbers::kInGroups) {
    const auto group = static_cast<int32_t>(format.block_size());
    for (int32_t g = 0; d < head_dim; ++g) {
      const Vf scale = Splat(ScaleOfGroup(format.scale, scales, g));
      const int32_t end = d + group;
      for (; d + 2 * kWidth <= end; d += 2 * kWidth) {
        const Vf first = Numbers::At(numbers + Numbers::Bytes(d));
        const Vf second = Numbers::At(numbers + Numbers::Bytes(d + kWidth));
        Store(to + d, first * scale);
        Store(to + d + kWidth, second * scale);
      }
      for (; d + kWidth <= end; d += kWidth) Store(to + d, Numbers::At(numbers + Numbers::Bytes(d)) * scale);
      if (d == end) continue;
      StoreFirst(to + d, FirstNumbersAt<Numbers>(numbers + Numbers::Bytes(d), end - d) * scale, end - d);
      d = end;
    }
  } else {
    const float scale = KvFp8Scale(scales) * Numbers::kFactor;
    for (; d + kWidth <= head_dim; d += kWidth) {
      Store(to + d, Numbers::At(numbers + Numbers::Bytes(d)) * scale);
    }
    if (d < head_dim) {
      StoreFirst(to + d, FirstNumbersAt<Numbers>(numbers + Numbers::Bytes(d), head_dim - d) * scale,
                 head_dim - d);
    }
    d = head_dim;
  }
  for (const int64_t padded = PaddedHeadDim(head_dim); d < padded; ++d) to[d] = 0.0f;
}

// ---- scales of a strip's rows, in f32

// Of fp8 all numbers of a head are one group.
template <typename Numbers>
int GroupLog2(const Format& format) {
  return Numbers::kInGroups ? format.block_log2 : 30;
}

// Whether few rows can be served from the pages: whole units, each in one group; scales that can be divided
// by kUnitFactor and lose no bit.
template <typename Elements>
bool HasWholeUnits([[maybe_unused]] const KvFormat& format) {
  if constexpr (!kIsQuantized<Elements>) {
    return true;
  } else if constexpr (Elements::kInGroups) {
    return format.element.scale == DType::kF16 && format.element.block_size() % Elements::kPerUnit == 0;
  } else {
    return format.head_dim % Elements::kPerUnit == 0;
  }
}

#if TM_SIMD_WIDTH != 4
inline __m128 FourScales(const std::byte* scales, int32_t group) {
  return _mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(scales + 2 * group)));
}
#endif

// Those of keys as ScoreStrips takes them: to [groups, count], for numbers over kUnitFactor. count is a
// multiple of 4.
template <typename Numbers>
void PutKeyScales(const std::byte* const* scales, int32_t groups, int count, float* to) {
  if constexpr (!Numbers::kInGroups) {
    const float scale = KvFp8Scale(scales[0]) * Numbers::kFactor;
    for (int k = 0; k < count; ++k) to[k] = scale;
  } else {
    int32_t g = 0;
#if TM_SIMD_WIDTH != 4
    const __m128 factor = _mm_set1_ps(Numbers::kUnitFactor);
    for (; g + 4 <= groups; g += 4) {
      for (int k = 0; k < count; k += 4) {
        __m128 rows[4];
        for (int i = 0; i < 4; ++i) rows[i] = _mm_mul_ps(FourScales(scales[k + i], g), factor);
        _MM_TRANSPOSE4_PS(rows[0], rows[1], rows[2], rows[3]);
        for (int i = 0; i < 4; ++i) _mm_storeu_ps(to + (g + i) * count + k, rows[i]);
      }
    }
#endif
    for (; g < groups; ++g) {
      for (int k = 0; k < count; ++k) {
        to[g * count + k] = ScaleOfGroup(DType::kF16, scales[k], g) * Numbers::kUnitFactor;
      }
    }
  }
}

// Those of values [begin, end), `offset` bytes behind those of the keys: to [end, groups].
template <typename Numbers>
void PutValueScales(const std::byte* const* scales, int64_t offset, int32_t groups, int begin, int end,
                    float* to) {
  for (int k = begin; k < end; ++k) {
    float* row = to + int64_t{k} * groups;
    if constexpr (!Numbers::kInGroups) {
      row[0] = k == begin ? KvFp8Scale(scales[k] + offset) * Numbers::kFactor : row[-1];
    } else {
      int32_t g = 0;
#if TM_SIMD_WIDTH != 4
      for (; g + 4 <= groups; g += 4) _mm_storeu_ps(row + g, FourScales(scales[k] + offset, g));
#endif
      for (; g < groups; ++g) row[g] = ScaleOfGroup(DType::kF16, scales[k] + offset, g);
    }
  }
}

// Of the n <= kWidth numbers from d on, a multiple of kWidth, out of one row of those; groups of 8 and more.
inline Vf ScaleLanes(const float* scales, int32_t d, [[maybe_unused]] int n, int group_log2) {
#if TM_SIMD_WIDTH == 16
  if (group_log2 == 3 && n > 8) {
    const Vf first = Splat(scales[d >> 3]), second = Splat(scales[(d >> 3) + 1]);
    return __builtin_shufflevector(first, second, 0, 1, 2, 3, 4, 5, 6, 7, 24, 25, 26, 27, 28, 29, 30, 31);
  }
#endif
  return Splat(scales[d >> group_log2]);
}

// ---- rows in f32

// Vectors somewhere in pages, and their scales.
struct QuantizedRows {
  const std::byte* const* numbers = nullptr;
  const std::byte* const* scales = nullptr;
  int64_t numbers_offset = 0;  // 0 of keys, from there to values
  int64_t scales_offset = 0;
};

// Asks for the lines of row k.
template <typename Numbers>
void AskForRow(const QuantizedRows& rows, int k, int32_t head_dim) {
  const std::byte* const numbers = rows.numbers[k] + rows.numbers_offset;
  for (int64_t at = 0; at < Numbers::Bytes(head_dim); at += kLineBytes) AskFor(numbers + at);
  if constexpr (Numbers::kInGroups) AskFor(rows.scales[k] + rows.scales_offset);
}

// Rows [begin, end) to [end - begin, PaddedHeadDim]. Asks for the same rows of `ahead`, if it has any.
template <typename Numbers>
void DecodeRows(const Format& format, const QuantizedRows& rows, int begin, int end,
                const QuantizedRows& ahead, int32_t head_dim, float* to, int64_t stride) {
  for (int k = begin; k < end; ++k, to += stride) {
    if (ahead.numbers != nullptr) AskForRow<Numbers>(ahead, k, head_dim);
    DecodeRow<Numbers>(format, rows.numbers[k] + rows.numbers_offset, rows.scales[k] + rows.scales_offset,
                       head_dim, to);
  }
}

}  // namespace
}  // namespace tramontane

// Quantised keys and values become rows of f32 in the first-level cache, a strip at a time, which the kernels
// then read as those of f32 pages: same numbers, same sums in the same order. Included by attention_impl.h.
//
// Values are those of kernels/core/kv_quantize.h: a small number times its scale, rounded once to f32.
// Such pages are half as many bytes or less, and bound by what is done with a key, decoding included. While a
// strip is decoded, memory is asked for what is read next.
#pragma once

#include "kernels/cpu/attention_few_impl.h"

namespace tramontane {
namespace {

static_assert(kStripKeys <= kAttentionDecodedKeys);

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

// The first n < kWidth numbers, an even count; the others are zero.
template <typename Numbers>
Vf FirstNumbersAt(const std::byte* numbers, int n) {
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

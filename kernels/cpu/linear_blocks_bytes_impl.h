// Of linear_blocks_impl.h: vectors of bytes, of 16-bit and of 32-bit integers, all as kWidth lanes of 32
// bits.
#pragma once

#include "kernels/cpu/linear_impl.h"

namespace tramontane {
namespace {

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

}  // namespace
}  // namespace tramontane

// A vector of kWidth floats and the few operations our kernels are written in, for the variant that includes
// this.
//
// Included only by the *_impl.h bodies, and these only by variant_<name>.cc, between TM_TARGET_BEGIN and
// TM_TARGET_END, after intrinsics.h, with TM_SIMD_WIDTH defined as 16 (AVX-512), 8 (AVX2, FMA, F16C) or 4
// (portable). Everything is in an anonymous namespace: every variant has its own copy (see variant.h).
//
// Always: an operation does to each lane the same thing, so a value does not depend on the lane it stands in;
// a load or store of the first n lanes touches no memory beyond them, and the other lanes of such a load are
// zero. Portable code has no fused multiply-add: its Fma rounds twice.
#pragma once

namespace tramontane {
namespace {

constexpr int kWidth = TM_SIMD_WIDTH;

using Vf = float __attribute__((vector_size(4 * TM_SIMD_WIDTH)));
using Vi = int32_t __attribute__((vector_size(4 * TM_SIMD_WIDTH)));

inline Vf Splat(float value) { return value - Vf{}; }
inline Vi SplatInt(int32_t value) { return value - Vi{}; }
inline Vf BitsToFloat(Vi bits) { return reinterpret_cast<Vf>(bits); }
inline Vi FloatToBits(Vf value) { return reinterpret_cast<Vi>(value); }
// b where either is NaN or both are zero. Compilers do not make one instruction of the general form.
#if TM_SIMD_WIDTH == 16
inline Vf Max(Vf a, Vf b) { return _mm512_max_ps(a, b); }
inline Vf Min(Vf a, Vf b) { return _mm512_min_ps(a, b); }
#elif TM_SIMD_WIDTH == 8
inline Vf Max(Vf a, Vf b) { return _mm256_max_ps(a, b); }
inline Vf Min(Vf a, Vf b) { return _mm256_min_ps(a, b); }
#else
inline Vf Max(Vf a, Vf b) { return a > b ? a : b; }
inline Vf Min(Vf a, Vf b) { return a < b ? a : b; }
#endif

inline Vf Load(const float* from) {
  Vf value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}
inline void Store(float* to, Vf value) { __builtin_memcpy(to, &value, sizeof value); }

#if TM_SIMD_WIDTH == 16

inline __mmask16 FirstLanes(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
inline Vf Fma(Vf a, Vf b, Vf c) { return _mm512_fmadd_ps(a, b, c); }  // a * b + c
inline Vf LoadFirst(const float* from, int n) { return _mm512_maskz_loadu_ps(FirstLanes(n), from); }
inline void StoreFirst(float* to, Vf value, int n) { _mm512_mask_storeu_ps(to, FirstLanes(n), value); }
inline Vf WidenBf16(__m256i halves) {
  return BitsToFloat(reinterpret_cast<Vi>(_mm512_cvtepu16_epi32(halves)) << 16);
}
inline Vf LoadBf16(const uint16_t* from) {
  return WidenBf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
inline Vf LoadBf16First(const uint16_t* from, int n) {
  return WidenBf16(_mm256_maskz_loadu_epi16(FirstLanes(n), from));
}
inline Vf LoadF16(const uint16_t* from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

#elif TM_SIMD_WIDTH == 8

inline __m256i FirstLanes(int n) {
  const Vi lane = {0, 1, 2, 3, 4, 5, 6, 7};
  return reinterpret_cast<__m256i>(lane < SplatInt(n));
}
inline Vf Fma(Vf a, Vf b, Vf c) { return _mm256_fmadd_ps(a, b, c); }  // a * b + c
inline Vf LoadFirst(const float* from, int n) { return _mm256_maskload_ps(from, FirstLanes(n)); }
inline void StoreFirst(float* to, Vf value, int n) { _mm256_maskstore_ps(to, FirstLanes(n), value); }
inline Vf LoadBf16(const uint16_t* from) {
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return BitsToFloat(reinterpret_cast<Vi>(_mm256_cvtepu16_epi32(halves)) << 16);
}
inline Vf LoadF16(const uint16_t* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

#else

inline Vf Fma(Vf a, Vf b, Vf c) { return a * b + c; }
inline Vf LoadFirst(const float* from, int n) {
  Vf value = {};
  for (int i = 0; i < n; ++i) value[i] = from[i];
  return value;
}
inline void StoreFirst(float* to, Vf value, int n) {
  for (int i = 0; i < n; ++i) to[i] = value[i];
}
inline Vf LoadBf16(const uint16_t* from) {
  Vi bits;
  for (int i = 0; i < kWidth; ++i) bits[i] = static_cast<int32_t>(uint32_t{from[i]} << 16);
  return BitsToFloat(bits);
}
inline Vf LoadF16(const uint16_t* from) {
  Vf value;
  for (int i = 0; i < kWidth; ++i) value[i] = F16ToFloat(from[i]);
  return value;
}

#endif

#if TM_SIMD_WIDTH != 16
inline Vf LoadBf16First(const uint16_t* from, int n) {
  uint16_t halves[kWidth] = {};
  for (int i = 0; i < n; ++i) halves[i] = from[i];
  return LoadBf16(halves);
}
#endif

inline Vf LoadF16First(const uint16_t* from, int n) {
  uint16_t halves[kWidth] = {};
  for (int i = 0; i < n; ++i) halves[i] = from[i];
  return LoadF16(halves);
}

// Lane i gets lane i ^ kMask.
template <int kMask>
inline Vf Crossed(Vf a) {
#if TM_SIMD_WIDTH == 16
  return __builtin_shufflevector(a, a, 0 ^ kMask, 1 ^ kMask, 2 ^ kMask, 3 ^ kMask, 4 ^ kMask, 5 ^ kMask,
                                 6 ^ kMask, 7 ^ kMask, 8 ^ kMask, 9 ^ kMask, 10 ^ kMask, 11 ^ kMask,
                                 12 ^ kMask, 13 ^ kMask, 14 ^ kMask, 15 ^ kMask);
#elif TM_SIMD_WIDTH == 8
  return __builtin_shufflevector(a, a, 0 ^ kMask, 1 ^ kMask, 2 ^ kMask, 3 ^ kMask, 4 ^ kMask, 5 ^ kMask,
                                 6 ^ kMask, 7 ^ kMask);
#else
  return __builtin_shufflevector(a, a, 0 ^ kMask, 1 ^ kMask, 2 ^ kMask, 3 ^ kMask);
#endif
}

// Sum and maximum of all lanes, by halves: one fixed order.
inline float SumLanes(Vf value) {
  if constexpr (kWidth == 16) value += Crossed<8 % kWidth>(value);
  if constexpr (kWidth >= 8) value += Crossed<4 % kWidth>(value);
  value += Crossed<2>(value);
  value += Crossed<1>(value);
  return value[0];
}
inline float MaxLanes(Vf value) {
  if constexpr (kWidth == 16) value = Max(value, Crossed<8 % kWidth>(value));
  if constexpr (kWidth >= 8) value = Max(value, Crossed<4 % kWidth>(value));
  value = Max(value, Crossed<2>(value));
  value = Max(value, Crossed<1>(value));
  return value[0];
}

// The parts of e^x for x within a float's exponents: x = n ln 2 + r with |r| <= ln 2 / 2, e^x = 2^n e^r.
struct ExpParts {
  Vf power;     // e^r, a polynomial in r: within 2 units in the last place
  Vf exponent;  // n + kExpRounder: n stands in the low bits
};
constexpr float kExpRounder =
    12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits

[[gnu::always_inline]] inline ExpParts SplitExp(Vf x) {
  const Vf shifted = Fma(x, Splat(1.44269504f), Splat(kExpRounder));
  const Vf n = shifted - kExpRounder;
  Vf r = Fma(n, Splat(-0.693359375f), x);  // ln 2 in two parts; n times the first is exact
  r = Fma(n, Splat(2.12194440e-4f), r);
  Vf p = Splat(1.0f / 5040.0f);
  p = Fma(p, r, Splat(1.0f / 720.0f));
  p = Fma(p, r, Splat(1.0f / 120.0f));
  p = Fma(p, r, Splat(1.0f / 24.0f));
  p = Fma(p, r, Splat(1.0f / 6.0f));
  p = Fma(p, r, Splat(0.5f));
  p = Fma(p, r, Splat(1.0f));
  p = Fma(p, r, Splat(1.0f));
  return {.power = p, .exponent = shifted};
}

// e^x within 2 units in the last place; 0 below -87.3 (no subnormals), infinity above 88.7, NaN for NaN.
inline Vf Exp(Vf x) {
  constexpr float kLowest = -87.336544f, kHighest = 88.722839f;
  const ExpParts parts = SplitExp(Min(Max(x, Splat(kLowest)), Splat(kHighest)));
  // 2^n as two factors: n = 128 is beyond a float's exponents where e^r 2^n is not.
  const Vi n = FloatToBits(parts.exponent) - FloatToBits(Splat(kExpRounder));
  const Vi half = n >> 1;
  const Vf value = parts.power * BitsToFloat((half + 127) << 23) * BitsToFloat((n - half + 127) << 23);
  const Vf bounded = x < Splat(kLowest) ? Vf{} : x > Splat(kHighest) ? Splat(__builtin_inff()) : value;
  return x != x ? x : bounded;
}

#if TM_SIMD_WIDTH != 4
// A sum here and now: a compiler that may add whole numbers in any order first takes all products, and keeps
// them in memory.
inline Vi Now(Vi sum) {
  asm("" : "+v"(sum));
  return sum;
}
#endif

// sum + a * b, rounded once, in the register of `sum`: left to choose, a compiler writes over a factor and
// keeps other sums in memory.
inline Vf AddProduct(Vf sum, Vf a, Vf b) {
#if TM_SIMD_WIDTH == 16
  asm("vfmadd231ps %1, %2, %0" : "+v"(sum) : "v"(a), "v"(b));
  return sum;
#else
  return Fma(a, b, sum);
#endif
}

#ifdef TM_VNNI
// Lanes of four bytes below 256, or of two 16-bit integers, times the same word of memory, added to `sum`.
// The instruction spreads the word by itself, of which compilers make two.
inline Vi AddDotOfBytes(Vi sum, Vi w, const int8_t* four) {
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(*reinterpret_cast<const int32_t*>(four)));
  return sum;
}
inline Vi AddDotOfHalves(Vi sum, Vi w, const int16_t* two) {
  asm("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(*reinterpret_cast<const int32_t*>(two)));
  return sum;
}
#endif

}  // namespace
}  // namespace tramontane

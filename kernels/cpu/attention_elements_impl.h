// Head elements of each page dtype in registers, and rows of a register file that become columns. Included by
// attention_impl.h.
#pragma once

#include "kernels/cpu/simd.h"

namespace tramontane {
namespace {

inline void AskFor(const std::byte* line) { __builtin_prefetch(line, 0, 2); }
constexpr int kLineBytes = 64;

// Lanes of a and b in turn: first halves, second halves.
#if TM_SIMD_WIDTH == 16
inline Vf InterleaveLow(Vf a, Vf b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
inline Vf InterleaveHigh(Vf a, Vf b) {
  return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}
#elif TM_SIMD_WIDTH == 8
inline Vf InterleaveLow(Vf a, Vf b) { return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11); }
inline Vf InterleaveHigh(Vf a, Vf b) { return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15); }
#else
inline Vf InterleaveLow(Vf a, Vf b) { return __builtin_shufflevector(a, b, 0, 4, 1, 5); }
inline Vf InterleaveHigh(Vf a, Vf b) { return __builtin_shufflevector(a, b, 2, 6, 3, 7); }
#endif

// Within every 128 bits, of a and b in turn: their low or high two floats, their low or high half.
#if TM_SIMD_WIDTH == 16
inline Vf LowFloats(Vf a, Vf b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
}
inline Vf HighFloats(Vf a, Vf b) {
  return __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
}
inline Vf LowHalves(Vf a, Vf b) {
  return __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
}
inline Vf HighHalves(Vf a, Vf b) {
  return __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
}
// Quarters 0 and 2, or 1 and 3, of a, then of b.
inline Vf EvenQuarters(Vf a, Vf b) {
  return __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
}
inline Vf OddQuarters(Vf a, Vf b) {
  return __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
}
#elif TM_SIMD_WIDTH == 8
inline Vf LowFloats(Vf a, Vf b) { return __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13); }
inline Vf HighFloats(Vf a, Vf b) { return __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15); }
inline Vf LowHalves(Vf a, Vf b) { return __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13); }
inline Vf HighHalves(Vf a, Vf b) { return __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15); }
// The quarter 0 or 1 of a, then of b.
inline Vf EvenQuarters(Vf a, Vf b) { return __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11); }
inline Vf OddQuarters(Vf a, Vf b) { return __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15); }
#else
inline Vf LowFloats(Vf a, Vf b) { return __builtin_shufflevector(a, b, 0, 4, 1, 5); }
inline Vf HighFloats(Vf a, Vf b) { return __builtin_shufflevector(a, b, 2, 6, 3, 7); }
inline Vf LowHalves(Vf a, Vf b) { return __builtin_shufflevector(a, b, 0, 1, 4, 5); }
inline Vf HighHalves(Vf a, Vf b) { return __builtin_shufflevector(a, b, 2, 3, 6, 7); }
#endif

// 4 x 4 within every 128 bits: row c becomes, in 128 bits number l, column 4 l + c of the four rows.
inline void TransposeQuarters(Vf* rows) {
  const Vf first = LowFloats(rows[0], rows[1]), second = HighFloats(rows[0], rows[1]);
  const Vf third = LowFloats(rows[2], rows[3]), fourth = HighFloats(rows[2], rows[3]);
  rows[0] = LowHalves(first, third);
  rows[1] = HighHalves(first, third);
  rows[2] = LowHalves(second, fourth);
  rows[3] = HighHalves(second, fourth);
}

// Rows become columns. Only the shuffles of the last rounds cross a border of 128 bits.
inline void Transpose(Vf (&rows)[kWidth]) {
#pragma GCC unroll 4
  for (int i = 0; i < kWidth; i += 4) TransposeQuarters(rows + i);
#if TM_SIMD_WIDTH == 16
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const Vf even_low = EvenQuarters(rows[i], rows[4 + i]), odd_low = OddQuarters(rows[i], rows[4 + i]);
    const Vf even_high = EvenQuarters(rows[8 + i], rows[12 + i]);
    const Vf odd_high = OddQuarters(rows[8 + i], rows[12 + i]);
    rows[i] = EvenQuarters(even_low, even_high);
    rows[4 + i] = EvenQuarters(odd_low, odd_high);
    rows[8 + i] = OddQuarters(even_low, even_high);
    rows[12 + i] = OddQuarters(odd_low, odd_high);
  }
#elif TM_SIMD_WIDTH == 8
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const Vf low = rows[i], high = rows[4 + i];
    rows[i] = EvenQuarters(low, high);
    rows[4 + i] = OddQuarters(low, high);
  }
#endif
}

// Loads of a key's or value's elements. A unit is 32 bits that are transposed as one: neighbours as they are
// stored, or one element widened to f32.
struct F32Elements {
  static constexpr int64_t Bytes(int64_t count) { return 4 * count; }
  static constexpr int kPerUnit = 1;
  static constexpr bool kStoredUnits = true;
  static constexpr bool kPairsByTurns = false;  // PairAt gives even and odd elements
  static Vf At(const std::byte* row, int d) { return Load(reinterpret_cast<const float*>(row) + d); }
  static Vf FirstAt(const std::byte* row, int d, int n) {
    return LoadFirst(reinterpret_cast<const float*>(row) + d, n);
  }
};
struct Bf16Elements {
  static constexpr int64_t Bytes(int64_t count) { return 2 * count; }
  static constexpr int kPerUnit = 2;
  static constexpr bool kStoredUnits = true;
  static constexpr bool kPairsByTurns = true;
  static Vf At(const std::byte* row, int d) { return LoadBf16(reinterpret_cast<const uint16_t*>(row) + d); }
  static Vf FirstAt(const std::byte* row, int d, int n) {
    return LoadBf16First(reinterpret_cast<const uint16_t*>(row) + d, n);
  }
};
struct F16Elements {
  static constexpr int64_t Bytes(int64_t count) { return 2 * count; }
  static constexpr int kPerUnit = 1;
  static constexpr bool kStoredUnits = false;
  static constexpr bool kPairsByTurns = false;
  static Vf At(const std::byte* row, int d) { return LoadF16(reinterpret_cast<const uint16_t*>(row) + d); }
  static Vf FirstAt(const std::byte* row, int d, int n) {
    return LoadF16First(reinterpret_cast<const uint16_t*>(row) + d, n);
  }
};

#if TM_SIMD_WIDTH == 8
// The four floats at `low`, then those at `high`.
inline Vf LoadQuarters(const std::byte* low, const std::byte* high) {
  return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(reinterpret_cast<const float*>(low))),
                              _mm_loadu_ps(reinterpret_cast<const float*>(high)), 1);
}
#endif

// kWidth units, from element d on.
template <typename Elements>
Vf UnitsAt(const std::byte* row, int d) {
  if constexpr (!Elements::kStoredUnits) return Elements::At(row, d);
  return Load(reinterpret_cast<const float*>(row + Elements::Bytes(d)));
}

// The units of the first n elements, which fill them, the others zero.
template <typename Elements>
Vf FirstUnitsAt(const std::byte* row, int d, int n) {
  if constexpr (!Elements::kStoredUnits) return Elements::FirstAt(row, d, n);
  return LoadFirst(reinterpret_cast<const float*>(row + Elements::Bytes(d)), n / Elements::kPerUnit);
}

// The first and the second element of each unit of two bf16.
inline Vf FirstOfUnits(Vf units) { return BitsToFloat(FloatToBits(units) << 16); }
inline Vf SecondOfUnits(Vf units) { return BitsToFloat(FloatToBits(units) & SplatInt(-0x10000)); }
template <typename Elements>
Vf ElementOfUnits(Vf units, int i) {
  if constexpr (Elements::kPerUnit == 1) return units;
  return i == 0 ? FirstOfUnits(units) : SecondOfUnits(units);
}

// Two vectors of neighbouring elements, in the order in which a load of 2 kWidth elements widens cheapest:
// bf16 by even and odd elements.
struct VectorPair {
  Vf a, b;
};
template <typename Elements>
VectorPair PairAt(const std::byte* row, int d) {
  if constexpr (Elements::kPerUnit == 1) return {Elements::At(row, d), Elements::At(row, d + kWidth)};
  const Vf units = UnitsAt<Elements>(row, d);
  return {FirstOfUnits(units), SecondOfUnits(units)};
}
// Stores a pair of even and odd elements as neighbours.
inline void StoreInOrder(float* to, VectorPair pair) {
  Store(to, InterleaveLow(pair.a, pair.b));
  Store(to + kWidth, InterleaveHigh(pair.a, pair.b));
}

}  // namespace
}  // namespace tramontane

// Weights in blocks on the device: what a lane loads of a unit (blocks.h), or of sixteen rows of fp8 with one
// scale each, and eight numbers of a row from it.
//
// A number (Decode) is the f32 of DecodeBlocks (kernels/core/block_types.h) rounded once to bf16. The bits of
// a number, as an unsigned byte u, are the lowest of the float 2^23 + u; what is taken from them is exact,
// and so is a product with a scale, as there.
//
// Products of types that ScalesSums take the numbers before the scale (Codes), all of which are bf16, and
// multiply the sum of a tile by the scale in f32: nothing but sums is rounded.
#pragma once

#include "kernels/cuda/blocks.h"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/primitives.cuh"

namespace tramontane::cuda {

// Bytes of four numbers times (scale), plus (minimum) where there is one, as two pairs of bf16.
template <int kBias, bool kHasMinimum>
TM_DEVICE void DecodeBytes(uint32_t bytes, float scale, float minimum, uint32_t* out) {
  float value[4];
  TM_UNROLL
  for (int i = 0; i < 4; ++i) {
    const float number = FloatAboveByte(bytes, i) - (8388608.0f + static_cast<float>(kBias));
    value[i] = kHasMinimum ? scale * number + minimum : scale * number;
  }
  out[0] = PackPair<Bf16>(value[0], value[1]);
  out[1] = PackPair<Bf16>(value[2], value[3]);
}

TM_DEVICE float HalfOf(uint32_t pair, int which) {
  return ToFloat(F16{static_cast<uint16_t>(which == 0 ? pair : pair >> 16)});
}

// Of rows g and g + 8: what multiplies the sums of codes, and what Codes takes from bits.
struct CodeScales {
  float scale[2];
  uint32_t zero[2];
};

// Four unsigned bytes below 128 less a number of 0 to 127, as two pairs of bf16: a byte is the lowest bits of
// 128 + itself. minus: of both halves -(128 + the number).
TM_DEVICE void CodesOfBytes(uint32_t bytes, uint32_t minus, uint32_t* out) {
  constexpr uint32_t kOne = 0x3f803f80u, k128 = 0x43434343u;
  out[0] = MultiplyAddPair(PermuteBytes(bytes, k128, 0x4140u), kOne, minus);
  out[1] = MultiplyAddPair(PermuteBytes(bytes, k128, 0x4342u), kOne, minus);
}
TM_HOST_DEVICE constexpr uint32_t MinusForCodes(uint32_t number) { return (0xc300u | number) * 0x10001u; }

// The same of any bytes less zero, which is the bits of a byte's FloatAboveByte.
TM_DEVICE void CodesOfWholeBytes(uint32_t bytes, uint32_t zero, uint32_t* out) {
  float code[4];
  TM_UNROLL
  for (int i = 0; i < 4; ++i) code[i] = FloatAboveByte(bytes, i) - FloatOf(zero);
  out[0] = PackPair<Bf16>(code[0], code[1]);
  out[1] = PackPair<Bf16>(code[2], code[3]);
}

// The scales of rows g and g + 8 of a unit: one f16 a row and block.
struct RowScales {
  uint32_t pair;

  TM_DEVICE static RowScales Load(const std::byte* at, int lane) {
    return {LoadTogether<4>(reinterpret_cast<const uint32_t*>(at) + lane / 4)};
  }
  TM_DEVICE float Scale(int, int half, int) const { return HalfOf(pair, half); }
  TM_DEVICE float Minimum(int, int) const { return 0.0f; }
};

// A scale and a minimum.
struct RowMinima {
  Vector8 pairs;  // [half] scale, minimum

  TM_DEVICE static RowMinima Load(const std::byte* at, int lane) {
    return {LoadTogether<4>(reinterpret_cast<const Vector8*>(at) + lane / 4)};
  }
  TM_DEVICE float Scale(int, int half, int) const { return HalfOf(pairs.word[half], 0); }
  TM_DEVICE float Minimum(int, int half) const { return HalfOf(pairs.word[half], 1); }
};

// Scales and minima of 6 bits for each tile, as q4_k stores them: words 1 to 3 hold twelve bytes
// (UnpackGroupScales).
struct GroupedScales {
  Vector16 row[2];

  TM_DEVICE static GroupedScales Load(const std::byte* at, int lane) {
    const auto* rows = reinterpret_cast<const Vector16*>(at);
    return {{LoadTogether<4>(rows + lane / 4), LoadTogether<4>(rows + 8 + lane / 4)}};
  }
  TM_DEVICE float Scale(int tile, int half, int) const {
    const uint32_t* word = row[half].word;
    const int shift = tile % 4 * 8;
    const uint32_t bits =
        tile < 4 ? word[1] >> shift & 63u : (word[3] >> shift & 15u) | (word[1] >> (shift + 6) & 3u) << 4;
    return HalfOf(word[0], 0) * static_cast<float>(bits);
  }
  TM_DEVICE float Minimum(int tile, int half) const {
    const uint32_t* word = row[half].word;
    const int shift = tile % 4 * 8;
    const uint32_t bits = tile < 4 ? word[2] >> shift & 63u
                                   : (word[3] >> (shift + 4) & 15u) | (word[2] >> (shift + 6) & 3u) << 4;
    return -(HalfOf(word[0], 1) * static_cast<float>(bits));
  }
};

// A signed byte for 16 numbers, times one f16 of the row.
struct SixteenScales {
  Vector16 row[2];
  uint32_t pair;

  TM_DEVICE static SixteenScales Load(const std::byte* at, int lane) {
    const auto* rows = reinterpret_cast<const Vector16*>(at);
    return {{LoadTogether<4>(rows + lane / 4), LoadTogether<4>(rows + 8 + lane / 4)},
            LoadTogether<4>(reinterpret_cast<const uint32_t*>(at + kUnitRows * 16) + lane / 4)};
  }
  TM_DEVICE float Scale(int tile, int half, int t) const {
    const uint32_t byte = row[half].word[tile / 2] >> (tile % 2 * 16 + t / 2 * 8);
    return HalfOf(pair, half) * static_cast<float>(static_cast<int8_t>(byte));
  }
  TM_DEVICE float Minimum(int, int) const { return 0.0f; }
};

// Of groups: the scales and zero points of both rows as they are stored, so that nothing waits for them yet.
struct StoredGroupScales {
  uint32_t word[2];  // f32 each, or both of 16 bits in the first
  uint32_t zeros;    // a byte each, of int4 4 bits

  template <DType kStored>
  TM_DEVICE static StoredGroupScales Load(const std::byte* at, const Format& format, int lane) {
    constexpr bool kShared = kStored == DType::kFp8E4M3;
    StoredGroupScales out = {};
    const int pair = kShared && format.scale_rows == 2 ? lane / 8 : lane / 4;
    if (format.scale == DType::kF32) {
      const Vector8 both = LoadTogether<4>(reinterpret_cast<const Vector8*>(at) + pair);
      out.word[0] = both.word[0];
      out.word[1] = both.word[1];
    } else {
      out.word[0] = LoadTogether<4>(reinterpret_cast<const uint32_t*>(at) + lane / 4);
    }
    if (kStored == DType::kFp8E4M3 || format.zero_points == 0) return out;
    const std::byte* zeros = at + kUnitRows * format.scale_bytes();
    out.zeros = kStored == DType::kInt4
                    ? uint32_t{LoadTogether<4>(reinterpret_cast<const uint8_t*>(zeros) + lane / 4)}
                    : uint32_t{LoadTogether<4>(reinterpret_cast<const uint16_t*>(zeros) + lane / 4)};
    return out;
  }
  TM_DEVICE float Scale(const Format& format, int half) const {
    if (format.scale == DType::kF32) return FloatOf(word[half]);
    if (format.scale == DType::kF16) return HalfOf(word[0], half);
    return ToFloat(Bf16{static_cast<uint16_t>(half == 0 ? word[0] : word[0] >> 16)});
  }
  template <DType kStored>
  TM_DEVICE uint32_t Zero(const Format& format, int half) const {
    if (format.zero_points == 0) return static_cast<uint32_t>(format.middle());
    if (kStored == DType::kInt8) return zeros >> (8 * half) & 255u;
    return (zeros >> (4 * half) & 15u) + static_cast<uint32_t>(format.least_zero);
  }
};

// Their values.
struct GroupScales {
  float scale[2];
  float zero[2];  // and 2^23, as FloatAboveByte has it
};

// Without a scale. What is stored is the upper half of an f32 2^120 below the number; NaN is all ones.
TM_DEVICE float Fp8OfByte(uint32_t word, int i) {
  const uint32_t byte = word >> (8 * i) & 255u;
  const bool nan = (byte & 127u) == 127u;
  return ToFloat(Bf16{static_cast<uint16_t>(nan ? 0x7fc0u : (byte & 128u) << 8 | (byte & 127u) << 4)}) *
         0x1p120f;
}

template <int kWords>
struct Words {
  uint32_t word[kWords];
};
template <>
struct Words<0> {};

// What all types in blocks share. A lane's view; lane numbers are passed, since not only warps that multiply
// use it.
template <DType kStored, typename UnitScales, int kBias, bool kHasMinimum>
struct Blocks {
  static constexpr DType kType = kStored;
  static constexpr bool kInGroups = false;
  static constexpr bool kInRows = false;
  static constexpr bool kScalesSums = ScalesSums(kStored);
  static constexpr UnitLayout kLayout = LayoutOf(kStored);
  static constexpr int kRunTiles = kLayout.run_tiles;
  static constexpr int kLowWords = kLayout.low_bytes() / 128;
  static constexpr int kHighWords = kLayout.high_bits * kRunTiles / 2;  // half a word takes one
  static constexpr bool kHighShared = kLayout.high_bits == 1 && kRunTiles == 1;
  static constexpr int kHighLoaded = kHighShared ? 1 : kHighWords;

  using Scales = UnitScales;
  using StoredScales = UnitScales;
  struct Run {
    Words<kLowWords> low;
    Words<kHighLoaded> high;
  };

  // Of a weight of this format.
  TM_DEVICE static constexpr UnitLayout Layout(const Format&) { return kLayout; }
  TM_DEVICE static constexpr int TilesLog2(const Format&) { return kLayout.tiles == 8 ? 3 : 0; }

  TM_DEVICE static Scales LoadScales(const std::byte* unit, const Format&, int lane) {
    return Scales::Load(unit + kLayout.scales_at(), lane);
  }

  TM_DEVICE static Run LoadRun(const std::byte* unit, int index, int lane) {
    const std::byte* at = unit + index * kLayout.run_bytes();
    Run run;
    if constexpr (kLowWords == 4) {
      const Vector16 words = LoadGlobal16Once(at + lane * 16);
      TM_UNROLL
      for (int i = 0; i < 4; ++i) run.low.word[i] = words.word[i];
    } else {
      const Vector8 words = LoadGlobal8Once(at + lane * 8);
      run.low.word[0] = words.word[0];
      run.low.word[1] = words.word[1];
    }
    at += kLayout.low_bytes();
    if constexpr (kHighShared) {
      run.high.word[0] = LoadTogether<2>(reinterpret_cast<const uint32_t*>(at) + lane / 2) >> lane % 2 * 4;
    } else if constexpr (kHighLoaded == 1) {
      run.high.word[0] = LoadGlobal(reinterpret_cast<const uint32_t*>(at) + lane);
    } else if constexpr (kHighLoaded == 2) {
      const Vector8 words = LoadGlobal8Once(at + lane * 8);
      run.high.word[0] = words.word[0];
      run.high.word[1] = words.word[1];
    }
    return run;
  }

  // Of types that scale sums, whose runs hold a tile.
  TM_DEVICE static StoredScales LoadStoredScales(const std::byte* unit, const Format& format, int lane) {
    return LoadScales(unit, format, lane);
  }
  TM_DEVICE static CodeScales ForCodes(const Scales& scales, const Format&) {
    return {{scales.Scale(0, 0, 0), scales.Scale(0, 1, 0)}, {}};
  }
  TM_DEVICE static Vector16 Codes(const CodeScales&, const Run& run, int half) {
    Vector16 out;
    TM_UNROLL
    for (int quarter = 0; quarter < 2; ++quarter) {
      const uint32_t bytes = BytesOf(run, 0, half, quarter);
      if constexpr (kLayout.low_bits == 8) {
        CodesOfWholeBytes(bytes, 0x4b000000u + kBias, out.word + 2 * quarter);
      } else {
        CodesOfBytes(bytes, MinusForCodes(kBias), out.word + 2 * quarter);
      }
    }
    return out;
  }

  // Numbers 8t .. 8t + 7 of a row of a tile of the unit, in order; `run` holds that tile.
  TM_DEVICE static Vector16 Decode(const Scales& scales, const Run& run, int tile, int half, int t) {
    const float scale = scales.Scale(tile, half, t), minimum = scales.Minimum(tile, half);
    Vector16 out;
    TM_UNROLL
    for (int quarter = 0; quarter < 2; ++quarter) {
      DecodeBytes<kBias, kHasMinimum>(BytesOf(run, tile % kRunTiles, half, quarter), scale, minimum,
                                      out.word + 2 * quarter);
    }
    return out;
  }

 protected:
  // Four numbers, a byte each.
  TM_DEVICE static uint32_t BytesOf(const Run& run, int tile, int half, int quarter) {
    if constexpr (kLayout.low_bits == 8) return run.low.word[2 * half + quarter];
    const uint32_t bits = run.low.word[tile * 2 + half] >> (4 * quarter) & 0x0f0f0f0fu;
    if constexpr (kLayout.high_bits == 1) {
      const int place = tile * 4 + 2 * half + quarter;
      const uint32_t high = place <= 4 ? run.high.word[0] << (4 - place) : run.high.word[0] >> (place - 4);
      return bits | (high & 0x10101010u);
    }
    if constexpr (kLayout.high_bits == 2) {
      const int bit = 2 * (2 * half + quarter);
      const uint32_t high = bit <= 4 ? run.high.word[tile] << (4 - bit) : run.high.word[tile] >> (bit - 4);
      return bits | (high & 0x30303030u);
    }
    return bits;
  }
};

struct Q8_0 : Blocks<DType::kQ8_0, RowScales, 128, false> {};
struct Q4_0 : Blocks<DType::kQ4_0, RowScales, 8, false> {};
struct Q4_1 : Blocks<DType::kQ4_1, RowMinima, 0, true> {};
struct Q5_0 : Blocks<DType::kQ5_0, RowScales, 16, false> {};
struct Q5_1 : Blocks<DType::kQ5_1, RowMinima, 0, true> {};
struct Q4K : Blocks<DType::kQ4K, GroupedScales, 0, true> {};
struct Q5K : Blocks<DType::kQ5K, GroupedScales, 0, true> {};
struct Q6K : Blocks<DType::kQ6K, SixteenScales, 32, false> {};

// Groups of any size, whose units are as many tiles. Runs are of one tile, and know nothing of the size.
template <DType kStored>
struct Groups : Blocks<kStored, GroupScales, 0, false> {
  using Base = Blocks<kStored, GroupScales, 0, false>;
  using Base::kLayout;
  using typename Base::Run;
  static constexpr bool kInGroups = true;
  static constexpr bool kSharesScales = kStored == DType::kFp8E4M3;  // two rows may

  TM_DEVICE static UnitLayout Layout(const Format& format) {
    UnitLayout layout = kLayout;
    layout.tiles = 1 << TilesLog2(format);
    const int scale_bytes = kSharesScales ? format.packed_scale_bytes() : format.scale_bytes();
    layout.scale_bytes =
        kUnitRows * scale_bytes + kUnitRows * Format::ZeroBits(kStored) / 8 * format.zero_points;
    return layout;
  }
  TM_DEVICE static int TilesLog2(const Format& format) { return format.block_log2 - 5; }

  TM_DEVICE static GroupScales LoadScales(const std::byte* unit, const Format& format, int lane) {
    const StoredGroupScales stored = LoadStoredScales(unit, format, lane);
    GroupScales out;
    TM_UNROLL
    for (int half = 0; half < 2; ++half) {
      out.scale[half] = stored.Scale(format, half);
      out.zero[half] = FloatAboveByte(stored.template Zero<kStored>(format, half), 0);
    }
    return out;
  }
  using StoredScales = StoredGroupScales;
  TM_DEVICE static StoredGroupScales LoadStoredScales(const std::byte* unit, const Format& format, int lane) {
    return StoredGroupScales::Load<kStored>(unit + Layout(format).scales_at(), format, lane);
  }

  TM_DEVICE static CodeScales ForCodes(const StoredGroupScales& scales, const Format& format) {
    CodeScales out;
    TM_UNROLL
    for (int half = 0; half < 2; ++half) {
      out.scale[half] = scales.Scale(format, half);
      const uint32_t zero = scales.template Zero<kStored>(format, half);
      out.zero[half] = kStored == DType::kInt4 ? MinusForCodes(zero) : 0x4b000000u | zero;
    }
    return out;
  }
  TM_DEVICE static Vector16 Codes(const CodeScales& scales, const Run& run, int half) {
    Vector16 out;
    TM_UNROLL
    for (int quarter = 0; quarter < 2; ++quarter) {
      const uint32_t bytes = Base::BytesOf(run, 0, half, quarter);
      if constexpr (kStored == DType::kFp8E4M3) {
        CodesOfFp8(bytes, out.word + 2 * quarter);
      } else if constexpr (kStored == DType::kInt4) {
        CodesOfBytes(bytes, scales.zero[half], out.word + 2 * quarter);
      } else {
        CodesOfWholeBytes(bytes, scales.zero[half], out.word + 2 * quarter);
      }
    }
    return out;
  }

  TM_DEVICE static Vector16 Decode(const GroupScales& scales, const Run& run, int, int half, int) {
    Vector16 out;
    TM_UNROLL
    for (int quarter = 0; quarter < 2; ++quarter) {
      const uint32_t bytes = Base::BytesOf(run, 0, half, quarter);
      float value[4];
      TM_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float number =
            kStored == DType::kFp8E4M3 ? Fp8OfByte(bytes, i) : FloatAboveByte(bytes, i) - scales.zero[half];
        value[i] = scales.scale[half] * number;
      }
      out.word[2 * quarter] = PackPair<Bf16>(value[0], value[1]);
      out.word[2 * quarter + 1] = PackPair<Bf16>(value[2], value[3]);
    }
    return out;
  }
};

struct Int4 : Groups<DType::kInt4> {};
struct Int8 : Groups<DType::kInt8> {};
struct Fp8 : Groups<DType::kFp8E4M3> {};
// The same numbers row by row, as cuBLASLt reads them, and an f32 scale a row apart (weight_packing.h). Warps
// take turns of a group's size along K, as over units, so that sums are added in the same order.
struct Fp8Rows : Groups<DType::kFp8E4M3> {
  static constexpr bool kInRows = true;

  // Where a lane's numbers begin of sixteen rows [16, in_features], in_features a multiple of 32.
  TM_DEVICE static const std::byte* OfLane(const std::byte* rows, int in_features, int lane) {
    return rows + int64_t{lane / 4} * in_features + lane % 4 * 8;
  }
  TM_DEVICE static Run LoadTile(const std::byte* of_lane, int in_features, int tile) {
    Run run;
    TM_UNROLL
    for (int half = 0; half < 2; ++half) {
      const Vector8 words =
          LoadGlobal8Once(of_lane + half * (int64_t{8} * in_features) + tile * kTileNumbers);
      run.low.word[2 * half] = words.word[0];
      run.low.word[2 * half + 1] = words.word[1];
    }
    return run;
  }
  // scales: of the sixteen.
  TM_DEVICE static StoredGroupScales LoadRowScales(const float* scales, int lane) {
    return {{BitsOf(LoadTogether<4>(scales + lane / 4)), BitsOf(LoadTogether<4>(scales + lane / 4 + 8))}, 0};
  }
};

// Bytes of 16 rows.
template <typename Type>
TM_DEVICE int64_t BytesOfUnitRows(const Format& format, int in_features) {
  if constexpr (Type::kInRows) {
    return int64_t{kUnitRows} * in_features;
  } else {
    const UnitLayout layout = Type::Layout(format);
    const int units = (in_features + layout.numbers() - 1) >> (Type::TilesLog2(format) + 5);
    return int64_t{units} * layout.bytes();
  }
}

// Whether a kernel's weight is plain.
template <typename Type>
inline constexpr bool kIsBf16 = false;
template <>
inline constexpr bool kIsBf16<Bf16> = true;

// Calls function(Q8_0()) or its kin; a type that does not stand in blocks is an error of the runtime, 1.
template <typename Function>
int WithBlocks(DType type, const Function& function) {
  switch (type) {
    case DType::kQ8_0:
      return function(Q8_0());
    case DType::kQ4_0:
      return function(Q4_0());
    case DType::kQ4_1:
      return function(Q4_1());
    case DType::kQ5_0:
      return function(Q5_0());
    case DType::kQ5_1:
      return function(Q5_1());
    case DType::kQ4K:
      return function(Q4K());
    case DType::kQ5K:
      return function(Q5K());
    case DType::kQ6K:
      return function(Q6K());
    case DType::kInt4:
      return function(Int4());
    case DType::kInt8:
      return function(Int8());
    case DType::kFp8E4M3:
      return function(Fp8());
    case DType::kF32:
    case DType::kBf16:
    case DType::kF16:
      break;
  }
  return 1;
}

}  // namespace tramontane::cuda

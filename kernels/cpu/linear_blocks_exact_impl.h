// Of linear_blocks_impl.h: products with weights that are decoded, exactly.
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
#pragma once

#include "kernels/cpu/linear_blocks_types_impl.h"

namespace tramontane {
namespace {

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

}  // namespace
}  // namespace tramontane

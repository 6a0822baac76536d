// Of linear_blocks_impl.h: products in 8 bits, of whole numbers a block at a time.
#pragma once

#include "kernels/cpu/linear_blocks_types_impl.h"

namespace tramontane {
namespace {

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

}  // namespace
}  // namespace tramontane

// The two products of attention for a tile of few rows: a decode step. Included by attention_impl.h.
//
// Same sums in the same order as for many rows, so the same bits; only the way of the bytes is another. Few
// rows do not pay for a widened copy of the keys and values:
//
//   scores   2 kWidth keys at a time are transposed as stored (two bf16 are one lane, four or eight quantised
//            numbers) into a strip of the first-level cache, and widened in registers for up to kFewRows
//            rows.
//   values   are widened straight from the page; two or more vectors of dimensions gather over all keys.
//   scales   of a strip's quantised numbers become f32 once, in a table beside it.
//
// Keys are read in strips of kStripKeys, then their values in the same strips. Pages lie scattered, so no
// hardware prefetcher runs ahead. As it goes, each strip asks the memory for the lines of a strip that is
// read half a block later, spread over all that is done with it, the transposing too: a core keeps few lines
// in flight, and time in which fewer are is lost. The lines go to the second-level cache; in the first they
// would push out the strip. A page's first line is asked for a block earlier, for the sake of its address:
// looking that up takes as long as some ten lines do.
#pragma once

#include "kernels/cpu/attention_quantized_impl.h"

namespace tramontane {
namespace {

// Rows that share one widening. Their accumulators, two vectors each, fill half the register file or more.
constexpr int kFewRows = kWidth == 16 ? 8 : 4;

// Keys that are scored together: two vectors, so that sums of few rows do not wait for each other.
constexpr int kStripKeys = 2 * kWidth;

constexpr int kLineUnits = kLineBytes / 4;

// Keys, or values `offset` bytes behind them, that are read soon.
struct StripAhead {
  const std::byte* const* keys = nullptr;  // [kStripKeys]; null: nothing
  int64_t offset = 0;

  void Ask(int key, int64_t at) const { AskFor(keys[key] + offset + at); }
};

// Asks for the scales of a strip of keys, or of their values `offset` bytes behind them: keys of a page have
// theirs side by side, so that every fourth key's are on the same lines or nearly.
inline void AskForScales(const std::byte* const* scales, int64_t offset, int32_t groups) {
  const int step = groups <= 8 ? 4 : 1;
  for (int k = 0; k < kStripKeys; k += step) AskFor(scales[k] + offset);
}

// Units [0, kWidth) of kWidth keys from element d on, as columns.
template <typename Elements>
void LoadColumns(const std::byte* const* keys, int32_t d, Vf (&columns)[kWidth]) {
#if TM_SIMD_WIDTH == 8
  if constexpr (Elements::kStoredUnits) {
    // Quarters of two keys meet as they are loaded, which saves the shuffles that cross 128 bits.
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const std::byte* low = keys[i] + Elements::Bytes(d);
      const std::byte* high = keys[4 + i] + Elements::Bytes(d);
      columns[i] = LoadQuarters(low, high);
      columns[4 + i] = LoadQuarters(low + 16, high + 16);
    }
    TransposeQuarters(columns);
    TransposeQuarters(columns + 4);
    return;
  }
#endif
#pragma GCC unroll 16
  for (int i = 0; i < kWidth; ++i) columns[i] = UnitsAt<Elements>(keys[i], d);
  Transpose(columns);
}

// kStripKeys keys as columns of units: strip [units, kStripKeys]. Asks for the lines of half of the strip
// `ahead`, ScoreStrips for the others.
template <typename Elements>
void TransposeStrip(const std::byte* const* keys, int32_t head_dim, const StripAhead& ahead, float* strip) {
  constexpr int kElements = kWidth * Elements::kPerUnit;  // of a key in one register
  Vf columns[kWidth];
  auto ask = [&ahead](int half, int64_t offset) __attribute__((always_inline)) {
    if (ahead.keys == nullptr || offset % kLineBytes != 0) return;
#pragma GCC unroll 8
    for (int i = 0; i < kWidth / 2; ++i) ahead.Ask(half * kWidth + i, offset);
  };
  for (int half = 0; half < 2; ++half, keys += kWidth, strip += kWidth) {
    float* to = strip;
    int32_t d = 0;
    for (; d + kElements <= head_dim; d += kElements, to += kWidth * kStripKeys) {
      LoadColumns<Elements>(keys, d, columns);
      ask(half, Elements::Bytes(d));
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) Store(to + i * kStripKeys, columns[i]);
    }
    if (d == head_dim) continue;
    ask(half, Elements::Bytes(d));
    for (int i = 0; i < kWidth; ++i) columns[i] = FirstUnitsAt<Elements>(keys[i], d, head_dim - d);
    Transpose(columns);
    for (int i = 0; d + i * Elements::kPerUnit < head_dim; ++i) Store(to + i * kStripKeys, columns[i]);
  }
}

// The queries of few rows as ScoreStrips takes them: [head_dim, kAttentionFewRows], so that one register
// finds them all.
inline void PutQueries(const float* const* queries, int32_t rows, int32_t head_dim, float* to) {
  for (int32_t r = 0; r < rows; ++r) {
    const float* query = queries[r];
    for (int32_t d = 0; d < head_dim; ++d) to[d * kAttentionFewRows + r] = query[d];
  }
}

// Strips of keys, `floats` apart. Of quantised ones also their scales: [groups, kStripKeys] for each strip,
// groups of 2^group_log2 numbers.
struct Strips {
  const float* keys = nullptr;
  int64_t floats = 0;
  const float* scales = nullptr;
  int64_t scale_floats = 0;
  int group_log2 = 0;
};

// Scores of the keys of kStrips strips. Row strides are kAttentionBlockKeys. In every round it asks for a
// line of each strip `ahead`.
template <typename Elements, int kRows, int kStrips>
void ScoreStrips(const Strips& strips, const float* query, int32_t head_dim, const StripAhead (&ahead)[2],
                 float* scores) {
  const float* strip = strips.keys;
  constexpr int kVectors = 2 * kStrips;
  Vf sums[kRows][kVectors] = {};
  constexpr int kLineElements = kLineUnits * Elements::kPerUnit;
  for (int32_t line = 0; line < head_dim; line += kLineElements) {
    const int64_t offset = Elements::Bytes(line);
    const bool asks = ahead[0].keys != nullptr && offset % kLineBytes == 0;
    const int32_t end = head_dim - line < kLineElements ? head_dim : line + kLineElements;
    int round = 0;
    for (int32_t d = line; d < end; d += Elements::kPerUnit, strip += kStripKeys) {
      if (asks && round < kWidth) {
#pragma GCC unroll 2
        for (int s = 0; s < kStrips; ++s) ahead[s].Ask(round % 2 * kWidth + (kWidth + round) / 2, offset);
        ++round;
      }
      Vf units[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) units[v] = Load(strip + v / 2 * strips.floats + v % 2 * kWidth);
      Vf scales[kVectors];
      if constexpr (kIsQuantized<Elements>) {
        const float* of_group = strips.scales + (d >> strips.group_log2) * kStripKeys;
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          scales[v] = Load(of_group + v / 2 * strips.scale_floats + v % 2 * kWidth);
        }
      }
#pragma GCC unroll 8
      for (int i = 0; i < Elements::kPerUnit; ++i) {
        Vf elements[kVectors];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          elements[v] = ElementOfUnits<Elements>(units[v], i);
          if constexpr (kIsQuantized<Elements>) elements[v] *= scales[v];
        }
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const Vf own = Splat(query[i * kAttentionFewRows + r]);
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) sums[r][v] = Fma(own, elements[v], sums[r][v]);
        }
      }
      query += Elements::kPerUnit * kAttentionFewRows;
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) Store(scores + r * kAttentionBlockKeys + v * kWidth, sums[r][v]);
  }
}

// The values of keys [begin, end) of a strip, weighted by each row's weights, join weighted * carry.
struct FewValues {
  const std::byte* const* keys = nullptr;  // [kStripKeys]
  int64_t value_offset = 0;                // from a key to its value
  int32_t begin = 0;
  int32_t end = 0;
  const float* weights = nullptr;  // [rows, kAttentionBlockKeys]
  const float* carry = nullptr;    // [rows]; null: as ones
  float* weighted = nullptr;       // [rows, PaddedHeadDim] in the order of PairAt
  int64_t stride = 0;
  StripAhead ahead;
  // Of quantised values: [kStripKeys, groups], groups of 2^group_log2 numbers.
  const float* scales = nullptr;
  int32_t groups = 0;
  int group_log2 = 0;
};

// Whether pairs of vectors are read as such: those of smaller groups would have several scales.
template <typename Elements>
bool ReadsPairs(int group_log2) {
  return !kIsQuantized<Elements> || int64_t{1} << group_log2 >= 2 * kWidth;
}

// Dimensions [d, d + 2 kPairs kWidth) of kRows rows.
template <typename Elements, int kRows, int kPairs>
void WeighPairs(const FewValues& v, int32_t d) {
  VectorPair sums[kRows][kPairs];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < kPairs; ++p) {
      const float* before = v.weighted + r * v.stride + d + p * 2 * kWidth;
      const float carry = v.carry == nullptr ? 1.0f : v.carry[r];
      sums[r][p] = {Load(before) * carry, Load(before + kWidth) * carry};
    }
  }
  const int64_t value_of_key = v.value_offset + Elements::Bytes(d);
  auto add = [&](int32_t k) __attribute__((always_inline)) {
    const std::byte* value = v.keys[k] + value_of_key;
    VectorPair values[kPairs];
#pragma GCC unroll 4
    for (int p = 0; p < kPairs; ++p) {
      if constexpr (kIsQuantized<Elements>) {
        const Vf scale = Splat(v.scales[k * v.groups + ((d + p * 2 * kWidth) >> v.group_log2)]);
        values[p] = ScaledPairAt<Elements>(value + Elements::Bytes(p * 2 * kWidth), scale);
      } else {
        values[p] = PairAt<Elements>(value, p * 2 * kWidth);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vf weight = Splat(v.weights[r * kAttentionBlockKeys + k]);
#pragma GCC unroll 4
      for (int p = 0; p < kPairs; ++p) {
        sums[r][p].a = Fma(weight, values[p].a, sums[r][p].a);
        sums[r][p].b = Fma(weight, values[p].b, sums[r][p].b);
      }
    }
  };
  // Every pass asks for its share of the lines: those it reads first, or that of every other key.
  constexpr int64_t kBytes = Elements::Bytes(kPairs * 2 * kWidth);  // of a key
  constexpr int kShare = kBytes < kLineBytes ? kLineBytes / kBytes : 1;
  const int64_t line = Elements::Bytes(d) / kLineBytes * kLineBytes;
  int32_t k = v.begin;
  if (v.ahead.keys != nullptr) {
    const int turn = static_cast<int>(Elements::Bytes(d) / kBytes % kShare);
    for (; k + kShare <= v.end; k += kShare) {
      for (int64_t at = 0; at < kBytes; at += kLineBytes) v.ahead.Ask(k + turn, line + at);
#pragma GCC unroll 4
      for (int i = 0; i < kShare; ++i) add(k + i);
    }
  }
  for (; k < v.end; ++k) add(k);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < kPairs; ++p) {
      float* to = v.weighted + r * v.stride + d + p * 2 * kWidth;
      Store(to, sums[r][p].a);
      Store(to + kWidth, sums[r][p].b);
    }
  }
}

// The first n <= kWidth dimensions from d on.
template <typename Elements, int kRows>
void WeighRest(const FewValues& v, int32_t d, int32_t n) {
  Vf sums[kRows];
  for (int r = 0; r < kRows; ++r) {
    const Vf before = Load(v.weighted + r * v.stride + d);
    sums[r] = v.carry == nullptr ? before : before * v.carry[r];
  }
  for (int32_t k = v.begin; k < v.end; ++k) {
    Vf value;
    if constexpr (kIsQuantized<Elements>) {
      value = FirstNumbersAt<Elements>(v.keys[k] + v.value_offset + Elements::Bytes(d), n) *
              ScaleLanes(v.scales + k * v.groups, d, n, v.group_log2);
    } else {
      value = Elements::FirstAt(v.keys[k] + v.value_offset, d, n);
    }
    for (int r = 0; r < kRows; ++r) {
      sums[r] = Fma(Splat(v.weights[r * kAttentionBlockKeys + k]), value, sums[r]);
    }
  }
  for (int r = 0; r < kRows; ++r) Store(v.weighted + r * v.stride + d, sums[r]);
}

template <typename Elements, int kRows>
void WeighRows(const FewValues& v, int32_t head_dim) {
  constexpr int kPairs = kFewRows / kRows > 4 ? 4 : kFewRows / kRows;
  int32_t d = 0;
  if (ReadsPairs<Elements>(v.group_log2)) {
    for (; d + kPairs * 2 * kWidth <= head_dim; d += kPairs * 2 * kWidth) {
      WeighPairs<Elements, kRows, kPairs>(v, d);
    }
    for (; d + 2 * kWidth <= head_dim; d += 2 * kWidth) {
      WeighPairs<Elements, kRows, 1>(v, d);
    }
  }
  for (; d < head_dim; d += kWidth) {
    WeighRest<Elements, kRows>(v, d, head_dim - d < kWidth ? head_dim - d : kWidth);
  }
}

// From the order of PairAt to that of the dimensions.
template <typename Elements>
void PutInOrder(float* weighted, int32_t head_dim) {
  if constexpr (!Elements::kPairsByTurns) return;
  for (int32_t d = 0; d + 2 * kWidth <= head_dim; d += 2 * kWidth) {
    StoreInOrder(weighted + d, {Load(weighted + d), Load(weighted + d + kWidth)});
  }
}

// kernel.operator()<n>(row) over rows [0, rows), kFewRows at a time.
template <typename Kernel>
void ForFewRows(int32_t rows, const Kernel& kernel) {
  int32_t row = 0;
  for (; row + kFewRows <= rows; row += kFewRows) kernel.template operator()<kFewRows>(row);
  switch (rows - row) {
    case 7:
      return kernel.template operator() < kFewRows == 8 ? 7 : 1 > (row);
    case 6:
      return kernel.template operator() < kFewRows == 8 ? 6 : 1 > (row);
    case 5:
      return kernel.template operator() < kFewRows == 8 ? 5 : 1 > (row);
    case 4:
      return kernel.template operator() < kFewRows == 8 ? 4 : 1 > (row);
    case 3:
      return kernel.template operator()<3>(row);
    case 2:
      return kernel.template operator()<2>(row);
    case 1:
      return kernel.template operator()<1>(row);
    default:
      return;
  }
}

}  // namespace
}  // namespace tramontane

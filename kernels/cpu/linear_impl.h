// Linear, for the variant that includes this (variant.h tells how).
//
// One output is one lane of one accumulator. It starts at zero and takes its products in the order k = 0, 1,
// 2, ...; nothing else is ever added. So its bits do not depend on how many rows or panels go through
// together, on blocks or on threads. Between two blocks of k an accumulator rests in memory as the f32 it is.
//
//   W panel  [k][kPanelWidth]              (bf16: [k / 2][kPanelWidth][2])
//   x        [k / kBlockK][rows][kBlockK]  rows stand a constant apart, so one register addresses a tile
//
//   per k: load the panel's vectors once, broadcast each row's x, rows * vectors fused multiply-adds.
//
// One tile of rows (decode): panels are streamed once from memory and widened in registers. The bound is the
// weight's bytes over the memory's bandwidth.
//
// More tiles (prefill): blocks of kBlockK are widened once to f32 scratch that stays in the second-level
// cache and serve all tiles of the block. The bound is the multiply-adds.
//
// With TM_BF16_PRODUCTS rows of x that meet a bf16 weight are rounded to bf16 when they are packed, and one
// instruction adds the products of a pair of k to an f32 lane: see Bf16Products.
#pragma once

#include "kernels/cpu/simd.h"

namespace tramontane {
namespace {

constexpr int kPanelWidth = 2 * kWidth;
constexpr int kTileRows = kWidth == 16 ? 14 : 6;  // accumulators: 28 of 32 registers, or 12 of 16
constexpr int kBlockK = 256;
constexpr int kBlockPanels = 128 / kPanelWidth;
constexpr int kBlockTiles = 256 / kTileRows;
constexpr int64_t kPrefetchBytes = 2048;  // ahead in a panel; hardware prefetchers stop at a page's end

inline bool IsAmd() {
#if TM_SIMD_WIDTH == 4
  return false;
#else
  return __builtin_cpu_is("amd");
#endif
}
// AMD's processors fetch by themselves what one or two rows read in order, and faster where nobody else asks
// (Zen 4, one row: bf16 104 against 90 % of a plain read, q4_k 101 against 78 %). More rows read more slowly
// than that.
constexpr int kMostRowsUnasked = 2;
inline bool AsksAhead() { return !IsAmd(); }

// ---- the four kinds of weights
//
// Element: a packed weight, or a pair of them. kPerElement: values of k in an Element. kParts:
// multiplications that an Element takes. Input: what MultiplyAdd takes of x, of kPerInput values of k.
// Weights(at, part): a vector of weights. Spread: an x in all lanes. MultiplyAdd: sum + w * x.

struct WidenedSums {
  using Input = float;
  static constexpr int kPerInput = 1;
  static Vf Spread(float x) { return Splat(x); }
  static Vf MultiplyAdd(Vf w, Vf x, Vf sum) { return AddProduct(sum, w, x); }
};
struct F32Panels : WidenedSums {
  using Element = float;
  static constexpr int kPerElement = 1;
  static constexpr int kParts = 1;
  static Vf Weights(const float* at, int) { return Load(at); }
};
struct F16Panels : WidenedSums {
  using Element = uint16_t;
  static constexpr int kPerElement = 1;
  static constexpr int kParts = 1;
  static Vf Weights(const uint16_t* at, int) { return LoadF16(at); }
};
struct Bf16Panels : WidenedSums {
  using Element = uint32_t;  // k even in the low half, k odd in the high half
  static constexpr int kPerElement = 2;
  static constexpr int kParts = 2;
  static Vf Weights(const uint32_t* at, int part) {
    Vi pairs;
    __builtin_memcpy(&pairs, at, sizeof pairs);
    return BitsToFloat(part == 0 ? pairs << 16 : pairs & static_cast<int32_t>(0xffff0000u));
  }
};
#ifdef TM_BF16_PRODUCTS
struct Bf16Products {
  using Element = uint32_t;
  using Input = uint32_t;  // a pair of bf16, as in Element
  static constexpr int kPerInput = 2;
  static constexpr int kPerElement = 2;
  static constexpr int kParts = 1;
  static __m512bh Weights(const uint32_t* at, int) {
    return reinterpret_cast<__m512bh>(_mm512_loadu_si512(at));
  }
  static __m512bh Spread(uint32_t x) {
    return reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int32_t>(x)));
  }
  static Vf MultiplyAdd(__m512bh w, __m512bh x, Vf sum) { return _mm512_dpbf16_ps(sum, w, x); }
};

// The same bits without the instruction: Intel's manual defines it as two fused multiply-adds, the odd k of a
// pair before the even one, with subnormal numbers taken as zero and rounded to zero.
struct Bf16ProductsWidened : WidenedSums {
  using Element = uint32_t;
  static constexpr int kPerElement = 2;
  static constexpr int kParts = 2;
  static Vf Weights(const uint32_t* at, int part) { return Bf16Panels::Weights(at, 1 - part); }
};

// Intel's processors do half as many products per cycle by that instruction as by fused multiply-adds
// (Sapphire Rapids: one in two cycles), so blocks, which the multiplications bound, are widened there. Other
// makers' are faster by it, and whether they round between the two additions is not documented.
inline bool WidensBf16Blocks() { return __builtin_cpu_is("intel"); }

// Subnormal numbers are zero while this lives, as they always are to Bf16Products.
class FlushSubnormals {
 public:
  FlushSubnormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040u); }
  ~FlushSubnormals() { _mm_setcsr(before_); }
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

 private:
  const unsigned before_;
};
#endif

// ---- finishing outputs

inline Vf Silu(Vf x) { return x / (Exp(-x) + 1.0f); }

inline void StoreColumns(float* to, Vf value, int64_t columns) {
  if (columns >= kWidth) {
    Store(to, value);
  } else if (columns > 0) {
    StoreFirst(to, value, static_cast<int>(columns));
  }
}
inline Vf LoadColumns(const float* from, int64_t columns) {
  return columns >= kWidth ? Load(from) : columns > 0 ? LoadFirst(from, static_cast<int>(columns)) : Vf{};
}

// The two vectors of one row and one panel, whole sums, to where they belong in out. Always inlined: as a
// function that takes wide vectors it would return with the upper halves of the registers in use, and every
// SSE instruction of the thread (libm's, the sampler's) would wait for them from then on.
[[gnu::always_inline]] inline void FinishPanel(const LinearJob& job, int64_t row, int64_t panel, Vf first,
                                               Vf second) {
  float* const out = job.out + row * job.out_stride;
  if (job.finish == PanelFinish::kSwiGlu) {  // a panel is kWidth gates, then their ups
    const int64_t column = panel * kWidth;
    StoreColumns(out + column, Silu(first) * second, job.out_columns - column);
    return;
  }
  const int64_t column = panel * kPanelWidth;
  const int64_t left = job.out_columns - column;
  if (job.finish == PanelFinish::kAddResidual) {
    first += LoadColumns(out + column, left);
    second += LoadColumns(out + column + kWidth, left - kWidth);
  } else if (job.finish == PanelFinish::kSilu) {
    first = Silu(first);
    second = Silu(second);
  } else if (job.finish == PanelFinish::kTimes) {
    first = LoadColumns(out + column, left) * first;
    second = LoadColumns(out + column + kWidth, left - kWidth) * second;
  }
  StoreColumns(out + column, first, left);
  StoreColumns(out + column + kWidth, second, left - kWidth);
}

// The same of some rows and panels, whose sums stand as those of a pass do between passes. Not inlined: it
// would be compiled again for every number of rows, and takes no time beside the products.
[[gnu::noinline]] void FinishPanels(const LinearJob& job, int64_t row, int64_t rows, int64_t panel,
                                    int64_t panels, const float* sums) {
  for (int64_t p = 0; p < panels; ++p) {
    for (int64_t r = 0; r < rows; ++r, sums += kPanelWidth) {
      FinishPanel(job, row + r, panel + p, Load(sums), Load(sums + kWidth));
    }
  }
}

// ---- one tile times some panels

struct TilePass {
  const LinearJob& job;
  int64_t row;               // of the tile's first row
  const void* x;             // the tile's packed rows at this pass's first k
  const std::byte* weights;  // panel_begin at this pass's first k
  int64_t weight_stride;     // bytes from one panel to the next
  int64_t panel_begin;
  int64_t panel_end;
  int64_t steps;   // Elements along k
  float* partial;  // [panels][rows of the tile][kPanelWidth] sums between passes; null: one pass does all k
  bool first;      // sums start at zero
  bool last;       // sums are whole after this pass
};

// Inputs from one row of a packed tile to the next.
template <typename Kind>
constexpr int kRowStride = kBlockK / Kind::kPerInput;

template <typename Kind, int kRows, int kPanels>
[[gnu::always_inline]] inline void MultiplyPanels(const TilePass& pass, int64_t panel) {
  using Element = typename Kind::Element;
  constexpr int kVectors = 2 * kPanels;
  Vf sums[kRows][kVectors];
  float* const partial = pass.partial + (panel - pass.panel_begin) * kRows * kPanelWidth;
  const auto place = [](int r, int v) { return (v / 2 * kRows + r) * kPanelWidth + v % 2 * kWidth; };
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) sums[r][v] = pass.first ? Vf{} : Load(partial + place(r, v));
  }

  const auto* x_block = static_cast<const typename Kind::Input*>(pass.x);
  const Element* at[kPanels];
#pragma GCC unroll 16
  for (int p = 0; p < kPanels; ++p) {
    at[p] =
        reinterpret_cast<const Element*>(pass.weights + (panel - pass.panel_begin + p) * pass.weight_stride);
  }
  const bool asks = kRows > kMostRowsUnasked || AsksAhead();
  for (int64_t left = pass.steps; left > 0; left -= kBlockK / Kind::kPerElement) {
    const auto* x = x_block;
    const int64_t steps = std::min<int64_t>(left, kBlockK / Kind::kPerElement);
    for (int64_t step = 0; step < steps; ++step) {
      if (asks) {
#pragma GCC unroll 16
        for (int p = 0; p < kPanels; ++p) {
#pragma GCC unroll 16
          for (int line = 0; line < kPanelWidth * int{sizeof(Element)}; line += 64) {
            __builtin_prefetch(reinterpret_cast<const std::byte*>(at[p]) + kPrefetchBytes + line);
          }
        }
      }
#pragma GCC unroll 2
      for (int part = 0; part < Kind::kParts; ++part) {
        decltype(Kind::Weights(nullptr, 0)) w[kVectors];
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) w[v] = Kind::Weights(at[v / 2] + v % 2 * kWidth, part);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          const auto spread = Kind::Spread(x[r * kRowStride<Kind> + part]);
#pragma GCC unroll 16
          for (int v = 0; v < kVectors; ++v) sums[r][v] = Kind::MultiplyAdd(w[v], spread, sums[r][v]);
        }
      }
      x += Kind::kParts;
#pragma GCC unroll 16
      for (int p = 0; p < kPanels; ++p) at[p] += kPanelWidth;
    }
    x_block += kRows * kRowStride<Kind>;
  }

  alignas(64) float whole[kPanels * kRows * kPanelWidth];
  float* const to = pass.last ? whole : partial;
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) Store(to + place(r, v), sums[r][v]);
  }
  if (pass.last) FinishPanels(pass.job, pass.row, kRows, panel, kPanels, whole);
}

// Few rows leave registers free: several panels at once keep the multiply-add units busy in spite of their
// latency.
constexpr int PanelsAtOnce(int rows) { return rows == 1 ? 4 : rows <= kTileRows / 2 ? 2 : 1; }

template <typename Kind, int kRows>
void MultiplyTile(const TilePass& pass) {
  constexpr int kPanels = PanelsAtOnce(kRows);
  int64_t panel = pass.panel_begin;
  for (; panel + kPanels <= pass.panel_end; panel += kPanels)
    MultiplyPanels<Kind, kRows, kPanels>(pass, panel);
  if constexpr (kPanels > 1) {
    for (; panel < pass.panel_end; ++panel) MultiplyPanels<Kind, kRows, 1>(pass, panel);
  }
}

using TileFunction = void (*)(const TilePass& pass);

template <typename Kind, int... kRowsMinusOne>
constexpr std::array<TileFunction, sizeof...(kRowsMinusOne)> TileFunctions(
    std::integer_sequence<int, kRowsMinusOne...>) {
  return {&MultiplyTile<Kind, kRowsMinusOne + 1>...};
}
// [rows - 1]
template <typename Kind>
constexpr auto kTileFunctions = TileFunctions<Kind>(std::make_integer_sequence<int, kTileRows>());

// ---- blocks

// Packed rows from `row` on, at the block of k that begins at `k`.
template <typename Kind>
typename Kind::Input* PackedRows(const LinearJob& job, int64_t row, int64_t k) {
  return reinterpret_cast<typename Kind::Input*>(job.packed_x) +
         (k / kBlockK * job.rows + row) * kRowStride<Kind>;
}

// All k in one pass over the panels as they are packed.
template <typename Kind>
void StreamBlock(const LinearJob& job, const LinearBlock& block) {
  for (int64_t tile = block.tile_begin; tile < block.tile_end; ++tile) {
    const int64_t row = job.TileBegin(tile);
    const int64_t rows = job.TileBegin(tile + 1) - row;
    kTileFunctions<Kind>[static_cast<size_t>(rows - 1)]({
        .job = job,
        .row = row,
        .x = PackedRows<Kind>(job, row, 0),
        .weights = job.panels + block.panel_begin * job.panel_bytes,
        .weight_stride = job.panel_bytes,
        .panel_begin = block.panel_begin,
        .panel_end = block.panel_end,
        .steps = PaddedInFeatures(job.in_features) / Kind::kPerElement,
        .partial = nullptr,
        .first = true,
        .last = true,
    });
  }
}

// `steps` elements along k of one panel, as f32 [k][kPanelWidth].
template <typename Kind>
void WidenPanel(const typename Kind::Element* from, int64_t steps, float* to) {
  for (int64_t step = 0; step < steps; ++step, from += kPanelWidth) {
    for (int part = 0; part < Kind::kParts; ++part, to += kPanelWidth) {
      Store(to, Kind::Weights(from, part));
      Store(to + kWidth, Kind::Weights(from + kWidth, part));
    }
  }
}

struct BlockScratch {
  alignas(64) float weights[kBlockPanels * kBlockK * kPanelWidth];  // widened
  alignas(
      64) float partial[kBlockTiles * kTileRows * kBlockPanels * kPanelWidth];  // sums between blocks of k
};

// Panels at one block of k or a part of it, as they are multiplied.
struct PanelsAtK {
  const std::byte* weights;
  int64_t weight_stride;  // bytes from one panel to the next
  int64_t k;
  int64_t count;  // values of k
};

template <typename MultiplyKind>
void MultiplyTilesAtK(const LinearJob& job, const LinearBlock& block, const PanelsAtK& at,
                      BlockScratch& scratch) {
  const int64_t first_row = job.TileBegin(block.tile_begin);
  const int64_t panels = block.panel_end - block.panel_begin;
  for (int64_t tile = block.tile_begin; tile < block.tile_end; ++tile) {
    const int64_t row = job.TileBegin(tile);
    const int64_t rows = job.TileBegin(tile + 1) - row;
    kTileFunctions<MultiplyKind>[static_cast<size_t>(rows - 1)]({
        .job = job,
        .row = row,
        .x = PackedRows<MultiplyKind>(job, row, at.k) + at.k % kBlockK / MultiplyKind::kPerInput,
        .weights = at.weights,
        .weight_stride = at.weight_stride,
        .panel_begin = block.panel_begin,
        .panel_end = block.panel_end,
        .steps = at.count / MultiplyKind::kPerElement,
        .partial = scratch.partial + (row - first_row) * panels * kPanelWidth,
        .first = at.k == 0,
        .last = at.k + at.count == PaddedInFeatures(job.in_features),
    });
  }
}

// Block by block along k. Kind: how weights are packed; MultiplyKind: how they are multiplied, Kind itself or
// widened.
template <typename Kind, typename MultiplyKind>
void MultiplyBlockedAlongK(const LinearJob& job, const LinearBlock& block, BlockScratch& scratch) {
  constexpr bool kWiden = !std::is_same_v<Kind, MultiplyKind>;
  constexpr int64_t kStepBytes = kPanelWidth * sizeof(typename Kind::Element);
  const int64_t padded_k = PaddedInFeatures(job.in_features);
  const int64_t panels = block.panel_end - block.panel_begin;
  for (int64_t k = 0; k < padded_k; k += kBlockK) {
    const int64_t count = std::min<int64_t>(kBlockK, padded_k - k);
    const std::byte* weights =
        job.panels + block.panel_begin * job.panel_bytes + k / Kind::kPerElement * kStepBytes;
    int64_t weight_stride = job.panel_bytes;
    if constexpr (kWiden) {
      for (int64_t p = 0; p < panels; ++p) {
        WidenPanel<Kind>(reinterpret_cast<const typename Kind::Element*>(weights + p * weight_stride),
                         count / Kind::kPerElement, scratch.weights + p * count * kPanelWidth);
      }
      weights = reinterpret_cast<const std::byte*>(scratch.weights);
      weight_stride = count * kPanelWidth * int64_t{sizeof(float)};
    }
    MultiplyTilesAtK<MultiplyKind>(job, block, {weights, weight_stride, k, count}, scratch);
  }
}

template <typename Kind, typename MultiplyKind>
void MultiplyAs(const LinearJob& job, const LinearBlock& block, std::byte* scratch) {
  if (job.tiles == 1) {
    StreamBlock<Kind>(job, block);
  } else {
    MultiplyBlockedAlongK<Kind, MultiplyKind>(job, block, *reinterpret_cast<BlockScratch*>(scratch));
  }
}

void MultiplyBf16(const LinearJob& job, const LinearBlock& block, std::byte* scratch) {
#ifdef TM_BF16_PRODUCTS
  const FlushSubnormals flush;
  if (job.tiles == 1 || !WidensBf16Blocks()) {
    MultiplyAs<Bf16Products, Bf16Products>(job, block, scratch);
  } else {
    MultiplyAs<Bf16ProductsWidened, F32Panels>(job, block, scratch);
  }
#else
  MultiplyAs<Bf16Panels, F32Panels>(job, block, scratch);
#endif
}

// Of linear_blocks_impl.h, which builds on this.
void MultiplyBlocks(const LinearJob& job, const LinearBlock& block, std::byte* scratch);
void PackTileInBlocks(const LinearJob& job, int64_t tile);

void Multiply(const LinearJob& job, const LinearBlock& block, std::byte* scratch) {
  switch (job.weight_format.dtype) {
    case DType::kF32:
      return MultiplyAs<F32Panels, F32Panels>(job, block, scratch);
    case DType::kF16:
      return MultiplyAs<F16Panels, F32Panels>(job, block, scratch);
    case DType::kBf16:
      return MultiplyBf16(job, block, scratch);
    default:
      return MultiplyBlocks(job, block, scratch);
  }
}

// ---- rows of x

// 1 / sqrt(mean of squares + epsilon). Four running sums per lane, then one order over them.
float NormScale(const float* x, int64_t n, float epsilon) {
  Vf squares[4] = {};
  int64_t k = 0;
  for (; k + 4 * kWidth <= n; k += 4 * kWidth) {
    for (int i = 0; i < 4; ++i) {
      const Vf value = Load(x + k + i * kWidth);
      squares[i] = Fma(value, value, squares[i]);
    }
  }
  for (; k < n; k += kWidth) {
    const Vf value = LoadColumns(x + k, n - k);
    squares[0] = Fma(value, value, squares[0]);
  }
  const float sum = SumLanes((squares[0] + squares[1]) + (squares[2] + squares[3]));
  return 1.0f / std::sqrt(sum / static_cast<float>(n) + epsilon);
}

// Inputs, or weights of their norm, as columns [k, k + count) of the weight take them, of which a vector has
// at most kWidth; the lanes behind them are zeros.
inline Vf LoadInputs(const LinearJob& job, const float* from, int64_t k, int64_t count) {
  if (job.column_order == nullptr) return LoadColumns(from + k, count);
  alignas(64) float values[kWidth] = {};
  for (int64_t i = 0; i < std::min<int64_t>(count, kWidth); ++i) values[i] = from[job.column_order[k + i]];
  return Load(values);
}

// How a vector of x is stored for each kind. `to` is where its first k stands.
struct PackFloats {
  using Kind = F32Panels;
  static void Put(float* to, Vf value) { Store(to, value); }
};
#ifdef TM_BF16_PRODUCTS
struct PackBf16Pairs {
  using Kind = Bf16Products;
  static void Put(uint32_t* to, Vf value) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(value)));
  }
};
struct PackRoundedFloats {  // for Bf16ProductsWidened: odd k before even ones
  using Kind = F32Panels;
  static void Put(float* to, Vf value) {
    const Vf rounded = WidenBf16(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(value)));
    Store(to, _mm512_permute_ps(rounded, 0xb1));
  }
};
#endif

// Lanes beyond in_features are stored as zeros: the weights' padding meets zeros.
template <typename Pack>
void PackTileAs(const LinearJob& job, int64_t tile) {
  using Kind = typename Pack::Kind;
  const int64_t begin = job.TileBegin(tile);
  const int64_t rows = job.TileBegin(tile + 1) - begin;
  const int64_t n = job.in_features;
  for (int64_t r = 0; r < rows; ++r) {
    const float* x = job.x + (job.x_rows == nullptr ? begin + r : job.x_rows[begin + r]) * job.x_stride;
    const float scale = job.norm_weight == nullptr ? 1.0f : NormScale(x, n, job.norm_epsilon);
    for (int64_t k = 0; k < n; k += kWidth) {
      Vf value = LoadInputs(job, x, k, n - k);
      if (job.norm_weight != nullptr) value = value * scale * LoadInputs(job, job.norm_weight, k, n - k);
      Pack::Put(PackedRows<Kind>(job, begin + r, k) + k % kBlockK / Kind::kPerInput, value);
    }
  }
}

void PackTile(const LinearJob& job, int64_t tile) {
  if (job.mode == LinearMode::kInt8) return PackTileInBlocks(job, tile);
#ifdef TM_BF16_PRODUCTS
  if (job.weight_format.dtype == DType::kBf16) {
    return job.tiles == 1 || !WidensBf16Blocks() ? PackTileAs<PackBf16Pairs>(job, tile)
                                                 : PackTileAs<PackRoundedFloats>(job, tile);
  }
#endif
  PackTileAs<PackFloats>(job, tile);
}

constexpr LinearKernels kLinearKernels = {
    .panel_width = kPanelWidth,
    .tile_rows = kTileRows,
    .block_tiles = kBlockTiles,
    .block_panels = kBlockPanels,
    .block_k = kBlockK,
    .scratch_bytes = sizeof(BlockScratch),
    .pack_tile = PackTile,
    .multiply = Multiply,
};

}  // namespace
}  // namespace tramontane

#ifdef TM_BF16_PRODUCTS
namespace tramontane {
namespace {

// Products of bf16 know nothing of blocks: these are another variant's, which runs wherever there are such
// products.
void MultiplyBlocks(const LinearJob& job, const LinearBlock& block, std::byte* scratch) {
  kAvx512VnniKernels.linear.multiply(job, block, scratch);
}
void PackTileInBlocks(const LinearJob& job, int64_t tile) { kAvx512VnniKernels.linear.pack_tile(job, tile); }

}  // namespace
}  // namespace tramontane
#else
#include "kernels/cpu/linear_blocks_impl.h"
#endif

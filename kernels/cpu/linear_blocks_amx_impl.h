// Linear's weights in blocks by AMX tiles of bytes, for many rows in 8 bits; the variant that has them
// includes this after linear_blocks_impl.h, whose pieces it uses and whose bits it gives: sums of whole
// numbers do not depend on who adds them, and everything in f32 is done in the same order.
//
// A tile is 16 rows of 64 bytes. TDPBSSD adds, to a 16 x 16 tile of 32-bit sums, the products of 16 rows of x
// with 16 outputs over up to 64 values of k, four to a word, which is how panels stand: a run of 32 values of
// k (16 of q6_k) is a tile of x of 16 rows of 32 bytes and a tile of 8 rows of 16 words.
//
//   per block of k and panel: its integers are made signed bytes in scratch, what is in the middle taken off;
//   per tile of rows, vector of outputs and run: load x, load the bytes, one product from zero, and its 16
//   rows of sums go through memory to where a scale and the f32 sum of each row meet them.
//
// The bound is that way through memory: 16 stores, 16 loads and 48 operations on vectors for 8,192 products.
// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, TDPBSSD and LDTILECFG.
#pragma once

#include "kernels/cpu/linear_amx_impl.h"
#include "kernels/cpu/linear_blocks_impl.h"

namespace tramontane {
namespace {

// ---- rows of x, rounded, those of a tile side by side; rows that a tile lacks are zeros

struct alignas(64) TileX32 {
  static constexpr int kBlock = 32;
  using Row = RoundedX32;
  float scale[kAmxRows];
  float scaled_sum[kAmxRows];
  int32_t sum[kAmxRows];
  int8_t q[kAmxRows][32];

  void Put(int row, const Row& from) {
    scale[row] = from.scale;
    scaled_sum[row] = from.scaled_sum;
    sum[row] = from.sum;
    std::memcpy(q[row], from.q, sizeof q[row]);
  }
};
struct alignas(64) TileX256 {
  static constexpr int kBlock = 256;
  using Row = RoundedX256;
  float scale[kAmxRows];
  int16_t sums32[kAmxRows][8];  // as in RoundedX256
  int8_t q[8][kAmxRows][32];    // runs of 32

  void Put(int row, const Row& from) {
    scale[row] = from.scale;
    std::memcpy(sums32[row], from.sums32, sizeof sums32[row]);
    for (int run = 0; run < 8; ++run) std::memcpy(q[run][row], from.q + run * 32, sizeof q[run][row]);
  }
};

// Fewer rows than three tiles of them have go faster through vectors.
constexpr int64_t kLeastAmxTiles = 3;
constexpr int64_t kLeastAmxRows = ((kLeastAmxTiles - 1) * kTileRows + 1) / kLeastAmxTiles;  // of a tile
inline bool MultipliesBytesByTiles(const LinearJob& job) {
  return job.mode == LinearMode::kInt8 && job.tiles >= kLeastAmxTiles;
}
static_assert(kTileRows <= kAmxRows, "a tile of rows is a tile of x");
static_assert(sizeof(TileX32) <= kLeastAmxRows * 32 * sizeof(float) &&
                  sizeof(TileX256) <= kLeastAmxRows * 256 * sizeof(float),
              "a tile of rounded rows needs no more than the PackedRowBytes of the fewest");

// The packed rows of a tile: [in_features / block].
template <typename X>
X* AmxRows(const LinearJob& job, int64_t tile) {
  const int64_t row_bytes = (job.in_features + kBlockK - 1) / kBlockK * kBlockK * int64_t{sizeof(float)};
  return reinterpret_cast<X*>(job.packed_x + job.TileBegin(tile) * row_bytes);
}

template <typename X>
void RoundTileForAmx(const LinearJob& job, int64_t tile) {
  X* const to = AmxRows<X>(job, tile);
  const int64_t rows = job.TileBegin(tile + 1) - job.TileBegin(tile);
  const int64_t blocks = job.in_features / X::kBlock;
  if (rows < kAmxRows) std::memset(static_cast<void*>(to), 0, static_cast<size_t>(blocks) * sizeof(X));
  RoundRows<typename X::Row>(job, tile, [&](int64_t row, int64_t block, const typename X::Row& rounded) {
    to[block].Put(static_cast<int>(row), rounded);
  });
}

void PackTileInBytes(const LinearJob& job, int64_t tile) {
  if (RoundedBlock(job.weight_format) == 32) {
    RoundTileForAmx<TileX32>(job, tile);
  } else {
    RoundTileForAmx<TileX256>(job, tile);
  }
}

// ---- products

constexpr int kAmxChunkK = 512;  // of a panel that is bytes at a time

// Whether a panel's words are signed bytes as they lie there.
template <typename Type>
constexpr bool kMultipliedInPlace = Type::kBits == 8 && !Type::kInGroups;

// Sums of whole numbers, of one run.
using AmxProducts = int32_t[kAmxRows][kWidth];

// What a tile has stored cannot be loaded before it is in the cache, so the sums of the next runs are on
// their way while one is used.
constexpr int kAmxAhead = 3;
using AmxRing = AmxProducts[kAmxAhead + 1];

struct AmxBytesScratch {
  alignas(64) int8_t bytes[kAmxChunkK / 4][kPanelWidth * 4];
  alignas(64) float sums[kBlockTiles][2][kAmxRows][kWidth];  // of each tile, by vector
  alignas(64) AmxRing products;
};

using Vb = int8_t __attribute__((vector_size(4 * TM_SIMD_WIDTH)));

// The integers of a panel's block as signed bytes, [k / 4][kPanelWidth][4].
template <typename Type>
void BytesOfBlock(const std::byte* block, int8_t (*to)[kPanelWidth * 4]) {
  constexpr auto kLess = static_cast<int8_t>(Type::kInGroups ? 0 : Type::kMiddle);
  for (int v = 0; v < 2; ++v) {
    const std::byte* const words = WordsOf<Type>(block, v);
    for (int chunk = 0; chunk < Type::kChunks; ++chunk) {
#pragma GCC unroll 4
      for (int run = 0; run < Type::kRuns; ++run) {
#pragma GCC unroll 8
        for (int group = 0; group < Type::kGroups; ++group) {
          const Vb w = reinterpret_cast<Vb>(Type::Word(words, chunk, run, group)) - kLess;
          __builtin_memcpy(to[PlaceOfRunInBlock<Type>(chunk, run) * Type::kGroups + group] + v * kAmxLine, &w,
                           sizeof w);
        }
      }
    }
  }
}

// `count` values of k of a panel as signed bytes; from: the first of its blocks. Of groups as their words
// stand there, with their zero points still in.
template <typename Type>
void BytesOfPanel(const Format& format, const std::byte* from, int64_t count, int8_t (*to)[kPanelWidth * 4]) {
  if constexpr (!Type::kInGroups) {
    for (int64_t k = 0; k < count; k += Type::X::kBlock) {
      BytesOfBlock<Type>(from + format.Bytes(k) * kPanelWidth, to + k / 4);
    }
  } else {
    for (int64_t k = 0; k < count; k += 32, from += Type::kPartBytes) {
      if (k % format.block_size() == 0) from += format.PackedCodesAt(kPanelWidth);
      BytesOfBlock<Type>(from, to + k / 4);
    }
  }
}

// Values of k that share a scale: those of a tile.
template <typename Type>
constexpr int kAmxRunK = kHasRunScales<Type> ? Type::kGroups * 4 : 32;

// Tile 0: sums, 1: x, 2: a panel's bytes.
template <typename Type>
class AmxByteTiles {
 public:
  AmxByteTiles() {
    TileConfig config;
    const int bytes[3] = {kAmxLine, kAmxRunK<Type>, kAmxLine};
    const int rows[3] = {kAmxRows, kAmxRows, kAmxRunK<Type> / 4};
    for (int tile = 0; tile < 3; ++tile) {
      config.row_bytes[tile] = static_cast<uint16_t>(bytes[tile]);
      config.rows[tile] = static_cast<uint8_t>(rows[tile]);
    }
    _tile_loadconfig(&config);
  }
  ~AmxByteTiles() { _tile_release(); }
  AmxByteTiles(const AmxByteTiles&) = delete;
  AmxByteTiles& operator=(const AmxByteTiles&) = delete;
};

// products = the rows of x times the bytes, from zero.
[[gnu::always_inline]] inline void MultiplyBytes(const int8_t* x, const std::byte* bytes,
                                                 AmxProducts& products) {
  _tile_zero(0);
  _tile_loadd(1, x, 32);
  _tile_loadd(2, bytes, kPanelWidth * 4);
  _tile_dpbssd(0, 1, 2);
  _tile_stored(0, products, kAmxLine);
}
inline Vi LoadProducts(const int32_t (&row)[kWidth]) {
  return LoadWords(reinterpret_cast<const std::byte*>(row));
}

// The runs of some blocks of k, one vector of a panel's outputs.
template <typename Type>
struct AmxRuns {
  using X = std::conditional_t<kHasRunScales<Type>, TileX256, TileX32>;
  static constexpr int kOfBlock = X::kBlock / kAmxRunK<Type>;
  static constexpr int64_t kStride =
      kMultipliedInPlace<Type> ? kPanelBlockBytes<Type> : kAmxRunK<Type> * kPanelWidth;

  const X* x;              // of the first block
  const std::byte* bytes;  // of the first run
  int64_t count;
  AmxRing& ring;

  [[gnu::always_inline]] void Begin() const {
    for (int64_t run = 0; run < std::min<int64_t>(kAmxAhead, count); ++run) Multiply(run);
  }
  // The sums of a run, in order; another is begun.
  [[gnu::always_inline]] const AmxProducts& Next(int64_t run) const {
    if (run + kAmxAhead < count) Multiply(run + kAmxAhead);
    return ring[run % (kAmxAhead + 1)];
  }

 private:
  [[gnu::always_inline]] void Multiply(int64_t run) const {
    const int64_t k = run % kOfBlock * kAmxRunK<Type>;
    MultiplyBytes(RowsAt(x[run / kOfBlock], k), bytes + run * kStride, ring[run % (kAmxAhead + 1)]);
  }
  static const int8_t* RowsAt(const TileX32& block, int64_t) { return block.q[0]; }
  static const int8_t* RowsAt(const TileX256& block, int64_t k) { return block.q[k / 32][0] + k % 32; }
};

// A block's runs to the f32 sums of a vector of outputs; `first` of them all.
template <typename Type>
[[gnu::always_inline]] inline void AddBlockOfTiles(const TileX32& x, const std::byte* block, int v,
                                                   const AmxRuns<Type>& runs, int64_t first,
                                                   Vf (&sums)[kAmxRows]) {
  const AmxProducts& products = runs.Next(first);
  const Vf scale = HalfAt(block, 0, v);
  const Vf minimum = Type::kHasMinimum ? HalfAt(block, 1, v) : Vf{};
#pragma GCC unroll 16
  for (int r = 0; r < kAmxRows; ++r) {
    sums[r] = Fma(ToFloats(LoadProducts(products[r])), scale * x.scale[r], sums[r]);
    if constexpr (Type::kHasMinimum) sums[r] = Fma(minimum, Splat(x.scaled_sum[r]), sums[r]);
  }
}

// The same of large blocks.
template <typename Type>
[[gnu::always_inline]] inline void AddBlockOfTiles(const TileX256& x, const std::byte* block, int v,
                                                   const AmxRuns<Type>& runs, int64_t first,
                                                   Vf (&sums)[kAmxRows]) {
  const std::byte* const words = WordsOf<Type>(block, v);
  Vi scales[AmxRuns<Type>::kOfBlock];
  Type::RunScales(words, scales);
  Vi totals[kAmxRows] = {};
  for (int run = 0; run < AmxRuns<Type>::kOfBlock; ++run) {
    const AmxProducts& products = runs.Next(first + run);
#pragma GCC unroll 16
    for (int r = 0; r < kAmxRows; ++r) totals[r] += LoadProducts(products[r]) * scales[run];
  }
  const Vf scale = HalfAt(block, 0, v);
  const Vf minimum = Type::kHalves == 2 ? HalfAt(block, 1, v) : Vf{};
  Vi sum_scales[Type::kSumWords];
  Type::SumScales(words, sum_scales);
#pragma GCC unroll 16
  for (int r = 0; r < kAmxRows; ++r) {
    sums[r] = Fma(ToFloats(totals[r]), scale * x.scale[r], sums[r]);
    if constexpr (Type::kHalves == 2) {
      Vi subtracted = {};
      for (int word = 0; word < Type::kSumWords; ++word) {
        subtracted += DotHalves(sum_scales[word], SpreadWord(x.sums32[r] + 2 * word));
      }
      sums[r] = Fma(-ToFloats(subtracted), minimum * x.scale[r], sums[r]);
    }
  }
}

// The same of the groups from `group` on, whose zero points the rows' sums take off.
template <typename Type>
[[gnu::always_inline]] inline void AddGroupsOfTiles(const Format& format, const std::byte* group, int v,
                                                    const AmxRuns<Type>& runs, Vf (&sums)[kAmxRows]) {
  constexpr int kLess = Type::kBits == 8 ? 128 : 0;  // than in the file, as panels have them
  const int64_t of_group = format.block_size() / 32;
  Vf scale = {};
  Vi zero = {};  // of 16 bits, with zeros above
  for (int64_t run = 0; run < runs.count; ++run) {
    if (run % of_group == 0) {
      const GroupHead head = LoadGroupHead(format, group, v);
      scale = head.scale;
      zero = (kLess - head.zero) & 0xffff;
      group += format.PackedBytes(format.block_size(), kPanelWidth);
    }
    const AmxProducts& products = runs.Next(run);
    const TileX32& x = runs.x[run];
#pragma GCC unroll 16
    for (int r = 0; r < kAmxRows; ++r) {
      const Vi total = LoadProducts(products[r]) + DotHalves(zero, SpreadWord(&x.sum[r]));
      sums[r] = Fma(ToFloats(total), scale * x.scale[r], sums[r]);
    }
  }
}

template <typename Type>
void AddBlocksByTiles(const Format& format, const AmxRuns<Type>& runs, const std::byte* block, int v,
                      float (&sums_at)[kAmxRows][kWidth]) {
  Vf sums[kAmxRows];
#pragma GCC unroll 16
  for (int r = 0; r < kAmxRows; ++r) sums[r] = Load(sums_at[r]);
  runs.Begin();
  if constexpr (Type::kInGroups) {
    AddGroupsOfTiles<Type>(format, block, v, runs, sums);
  } else {
    for (int64_t run = 0; run < runs.count; run += AmxRuns<Type>::kOfBlock) {
      AddBlockOfTiles<Type>(runs.x[run / AmxRuns<Type>::kOfBlock], block, v, runs, run, sums);
      block += kPanelBlockBytes<Type>;
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kAmxRows; ++r) Store(sums_at[r], sums[r]);
}

template <typename Type>
void MultiplyPanelByTiles(const LinearJob& job, const LinearBlock& block, int64_t panel,
                          AmxBytesScratch& scratch) {
  using X = typename AmxRuns<Type>::X;
  for (int64_t k = 0; k < job.in_features; k += kAmxChunkK) {
    const int64_t count = std::min<int64_t>(kAmxChunkK, job.in_features - k);
    const std::byte* const from =
        job.panels + panel * job.panel_bytes + job.weight_format.PackedBytes(k, kPanelWidth);
    const std::byte* bytes = reinterpret_cast<const std::byte*>(scratch.bytes);
    if constexpr (kMultipliedInPlace<Type>) {
      bytes = WordsOf<Type>(from, 0);
    } else {
      BytesOfPanel<Type>(job.weight_format, from, count, scratch.bytes);
    }
    for (int64_t tile = block.tile_begin; tile < block.tile_end; ++tile) {
      auto& sums = scratch.sums[tile - block.tile_begin];
      if (k == 0) std::memset(sums, 0, sizeof sums);
      for (int v = 0; v < 2; ++v) {
        AddBlocksByTiles<Type>(job.weight_format,
                               {AmxRows<X>(job, tile) + k / X::kBlock, bytes + v * kAmxLine,
                                count / kAmxRunK<Type>, scratch.products},
                               from, v, sums[v]);
      }
    }
  }
  for (int64_t tile = block.tile_begin; tile < block.tile_end; ++tile) {
    const auto& sums = scratch.sums[tile - block.tile_begin];
    const int64_t first = job.TileBegin(tile);
    for (int64_t row = first; row < job.TileBegin(tile + 1); ++row) {
      FinishPanel(job, row, panel, Load(sums[0][row - first]), Load(sums[1][row - first]));
    }
  }
}

template <typename Type>
void MultiplyBlocksByTilesOf(const LinearJob& job, const LinearBlock& block, std::byte* scratch) {
  const AmxByteTiles<Type> tiles;
  for (int64_t panel = block.panel_begin; panel < block.panel_end; ++panel) {
    MultiplyPanelByTiles<Type>(job, block, panel, *reinterpret_cast<AmxBytesScratch*>(scratch));
  }
}

void MultiplyBlocksByTiles(const LinearJob& job, const LinearBlock& block, std::byte* scratch) {
  switch (job.weight_format.dtype) {
    case DType::kQ8_0:
      return MultiplyBlocksByTilesOf<SmallBlocks<DType::kQ8_0>>(job, block, scratch);
    case DType::kQ4_0:
      return MultiplyBlocksByTilesOf<SmallBlocks<DType::kQ4_0>>(job, block, scratch);
    case DType::kQ4_1:
      return MultiplyBlocksByTilesOf<SmallBlocks<DType::kQ4_1>>(job, block, scratch);
    case DType::kQ5_0:
      return MultiplyBlocksByTilesOf<SmallBlocks<DType::kQ5_0>>(job, block, scratch);
    case DType::kQ5_1:
      return MultiplyBlocksByTilesOf<SmallBlocks<DType::kQ5_1>>(job, block, scratch);
    case DType::kQ4K:
      return MultiplyBlocksByTilesOf<GroupedBlocks<DType::kQ4K>>(job, block, scratch);
    case DType::kQ5K:
      return MultiplyBlocksByTilesOf<GroupedBlocks<DType::kQ5K>>(job, block, scratch);
    case DType::kQ6K:
      return MultiplyBlocksByTilesOf<SixBitBlocks>(job, block, scratch);
    case DType::kInt4:
      return MultiplyBlocksByTilesOf<PartsOfGroups<DType::kInt4>>(job, block, scratch);
    case DType::kInt8:
      return MultiplyBlocksByTilesOf<PartsOfGroups<DType::kInt8>>(job, block, scratch);
    case DType::kFp8E4M3:  // has no whole numbers
    case DType::kF32:
    case DType::kBf16:
    case DType::kF16:
      return;  // MultiplyByTiles' own
  }
}

// ---- the variant's Linear

void MultiplyByTiles(const LinearJob& job, const LinearBlock& block, std::byte* scratch) {
  if (job.weight_format.dtype == DType::kBf16) return MultiplyBf16ByTiles(job, block, scratch);
  if (MultipliesBytesByTiles(job)) return MultiplyBlocksByTiles(job, block, scratch);
  kAvx512Bf16Kernels.linear.multiply(job, block, scratch);
}

void PackTileForTiles(const LinearJob& job, int64_t tile) {
  if (job.weight_format.dtype == DType::kBf16) return PackTileAs<PackBf16Pairs>(job, tile);
  if (MultipliesBytesByTiles(job)) return PackTileInBytes(job, tile);
  kAvx512Bf16Kernels.linear.pack_tile(job, tile);
}

constexpr LinearKernels AmxLinearKernels() {
  LinearKernels kernels = kLinearKernels;
  kernels.scratch_bytes =
      std::max({kernels.scratch_bytes, int64_t{sizeof(AmxScratch)}, int64_t{sizeof(AmxBytesScratch)}});
  kernels.pack_tile = PackTileForTiles;
  kernels.multiply = MultiplyByTiles;
  return kernels;
}

}  // namespace
}  // namespace tramontane

// Linear over weights that stand in blocks (kernels/core/block_types.h), as block_panels.h packs them. The
// second half of linear_impl.h, whose pieces it uses. Its own, in this order: linear_blocks_bytes_impl.h
// (vectors of bytes), _rows_ (x in 8 bits), _types_ (the types of blocks), _exact_ and _rounded_ (the two
// kinds of products); here is what many rows do in 8 bits, and which way a job goes.
//
// Exactly: a block of k of some panels is decoded to f32 scratch, once for all rows, and multiplied as f32
// weights are, in the same order: the bits are those of an f32 weight of the decoded values. One row takes
// the numbers as they are decoded, without scratch.
//
// In 8 bits: a row of x is rounded a block at a time,
//
//   x_k = d_x q_k,   d_x = max |x_k| / 127,   q_k = x_k / d_x to the nearest whole number, even of two,
//
// over blocks of 32, of 256 where the weight's are. Sums of products of a weight's integers with q_k are
// whole numbers, which no order of additions changes. A block adds to an output's f32 sum, in ascending k,
//
//   q8_0, q4_0, q5_0   (d_w d_x) sum (w - middle) q
//   q4_1, q5_1         (d_w d_x) sum w q,   then m_w (d_x sum q)
//   q4_k, q5_k         (d_w d_x) sum over groups s sum w q,   then minus (n_w d_x) sum over groups t sum q
//   q6_k               (d_w d_x) sum over groups s sum (w - 32) q
//   int4, int8         (s_w d_x) (sum w q - z sum q),   for every 32 of a group
//
// each by one fused multiply-add. One output is one lane, so a row has the same bits among any others, and
// the variants with fused multiply-adds agree.
//
//   per four k: a vector of words of the panel, made bytes by a mask or a shift; each row's four bytes to all
//   lanes; a product of bytes, whose sums of pairs are added in 16 bits as far as these hold them. With VNNI
//   one instruction adds four products to 32 bits.
//
// The bound of one row is the weight's bytes over the memory's bandwidth, that of many the products of bytes.
#pragma once

#include "kernels/cpu/linear_blocks_exact_impl.h"
#include "kernels/cpu/linear_blocks_rounded_impl.h"
#include "kernels/cpu/linear_impl.h"

namespace tramontane {
namespace {

// ---- in 8 bits, more rows and large blocks
//
// A block of k of a panel is unpacked once for all tiles of rows: its integers a byte each, its scales
// spread.

template <typename Type>
struct UnpackedBlock {
  static constexpr int kAllRuns = Type::kChunks * Type::kRuns;

  alignas(64) std::byte words[Type::X::kBlock / 4][kPanelWidth * 4];
  Vi run_scales[2][kAllRuns];

  explicit UnpackedBlock(const std::byte* block) {
    for (int v = 0; v < 2; ++v) {
      const std::byte* const from = WordsOf<Type>(block, v);
      for (int chunk = 0; chunk < Type::kChunks; ++chunk) {
#pragma GCC unroll 8
        for (int run = 0; run < Type::kRuns; ++run) {
#pragma GCC unroll 8
          for (int group = 0; group < Type::kGroups; ++group) {
            const Vi w = Type::Word(from, chunk, run, group);
            __builtin_memcpy(
                words[PlaceOfRunInBlock<Type>(chunk, run) * Type::kGroups + group] + v * kWidth * 4, &w,
                sizeof w);
          }
        }
      }
      Type::RunScales(from, run_scales[v]);
      for (Vi& scale : run_scales[v]) scale = RunScale(scale);
    }
  }
};

// A Type's integers as UnpackedBlock has them: a chunk is a run.
template <typename Type>
struct UnpackedWords : Type {
  static constexpr int kChunks = UnpackedBlock<Type>::kAllRuns, kRuns = 1, kAlternating = 1;

  [[gnu::always_inline]] static Vi Word(const std::byte* words, int chunk, int, int group) {
    return WordAt(words, chunk * Type::kGroups + group);
  }
};

// One vector of a panel's outputs at one block of k, between whose blocks sums rest in memory.
template <typename Type>
struct UnpackedPass {
  const UnpackedBlock<Type>& block;
  const BlockScales<Type>& scales;
  int v;
  const RoundedX256* x;   // of the tile's first row
  float (*sums)[kWidth];  // [rows of the tile]
};

template <typename Type, int kRows>
void AddUnpacked(const UnpackedPass<Type>& pass) {
  Vi totals[kRows][1] = {};
  const std::byte* const words[1] = {pass.block.words[0] + pass.v * kWidth * 4};
#pragma GCC unroll 1
  for (int run = 0; run < UnpackedBlock<Type>::kAllRuns; ++run) {
    AddRuns<UnpackedWords<Type>, kRows, 1, 1>(words, run, 0, {pass.x}, {{pass.block.run_scales[pass.v][run]}},
                                              totals, [](int) {});
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    Store(pass.sums[r], pass.scales.Added(Load(pass.sums[r]), totals[r][0], pass.x[r]));
  }
}

template <typename Type>
using UnpackedFunction = void (*)(const UnpackedPass<Type>& pass);
template <typename Type, int... kRowsMinusOne>
constexpr std::array<UnpackedFunction<Type>, sizeof...(kRowsMinusOne)> UnpackedFunctions(
    std::integer_sequence<int, kRowsMinusOne...>) {
  return {&AddUnpacked<Type, kRowsMinusOne + 1>...};
}
// [rows - 1]
template <typename Type>
constexpr auto kUnpackedFunctions = UnpackedFunctions<Type>(std::make_integer_sequence<int, kTileRows>());

using UnpackedSums = float[kBlockTiles][2][kTileRows][kWidth];  // of each tile, by vector
static_assert(sizeof(UnpackedSums) <= sizeof(BlockScratch), "sums rest in scratch");

template <typename Type>
void MultiplyUnpacked(const LinearJob& job, const LinearBlock& block, int64_t panel, UnpackedSums& sums) {
  const std::byte* from = job.panels + panel * job.panel_bytes;
  __builtin_memset(sums, 0, static_cast<size_t>(block.tile_end - block.tile_begin) * sizeof sums[0]);
  for (int64_t k = 0; k < job.in_features; k += Type::X::kBlock, from += kPanelBlockBytes<Type>) {
    const UnpackedBlock<Type> unpacked(from);
    for (int64_t line = 0; line < kPanelBlockBytes<Type>; line += 64) {  // of the next block
      __builtin_prefetch(from + kPanelBlockBytes<Type> + line, 0, 2);
    }
    const BlockScales<Type> scales[2] = {{from, 0}, {from, 1}};
    for (int64_t tile = block.tile_begin; tile < block.tile_end; ++tile) {
      const int64_t rows = job.TileBegin(tile + 1) - job.TileBegin(tile);
      const RoundedX256* const x = RoundedTile<RoundedX256>(job, tile) + k / Type::X::kBlock * rows;
      for (int v = 0; v < 2; ++v) {
        kUnpackedFunctions<Type>[static_cast<size_t>(rows - 1)](
            {unpacked, scales[v], v, x, sums[tile - block.tile_begin][v]});
      }
    }
  }
  for (int64_t tile = block.tile_begin; tile < block.tile_end; ++tile) {
    const auto& of_tile = sums[tile - block.tile_begin];
    const int64_t first = job.TileBegin(tile);
    for (int64_t row = first; row < job.TileBegin(tile + 1); ++row) {
      FinishPanel(job, row, panel, Load(of_tile[0][row - first]), Load(of_tile[1][row - first]));
    }
  }
}

template <typename Type>
void MultiplyBlocksOf(const LinearJob& job, const LinearBlock& block, std::byte* scratch) {
  if (job.mode == LinearMode::kExact) {
    if (job.rows == 1) return MultiplyRowExactly<Type>(job, block);
    return MultiplyExactly(job, block, DecodePanel<Type>, *reinterpret_cast<BlockScratch*>(scratch));
  }
  for (int64_t panel = block.panel_begin; panel < block.panel_end; ++panel) {
    if constexpr (kHasRunScales<Type>) {
      if (job.tiles > 1) {
        MultiplyUnpacked<Type>(job, block, panel, *reinterpret_cast<UnpackedSums*>(scratch));
        continue;
      }
    }
    for (int64_t tile = block.tile_begin; tile < block.tile_end; ++tile) {
      const int64_t rows = job.TileBegin(tile + 1) - job.TileBegin(tile);
      MultiplyRoundedTile<Type, kRowsTogether<Type>>(job, {tile, 0, rows}, panel);
    }
  }
}

#ifndef TM_BF16_PRODUCTS
void MultiplyBlocks(const LinearJob& job, const LinearBlock& block, std::byte* scratch) {
  switch (job.weight_format.dtype) {
    case DType::kQ8_0:
      return MultiplyBlocksOf<SmallBlocks<DType::kQ8_0>>(job, block, scratch);
    case DType::kQ4_0:
      return MultiplyBlocksOf<SmallBlocks<DType::kQ4_0>>(job, block, scratch);
    case DType::kQ4_1:
      return MultiplyBlocksOf<SmallBlocks<DType::kQ4_1>>(job, block, scratch);
    case DType::kQ5_0:
      return MultiplyBlocksOf<SmallBlocks<DType::kQ5_0>>(job, block, scratch);
    case DType::kQ5_1:
      return MultiplyBlocksOf<SmallBlocks<DType::kQ5_1>>(job, block, scratch);
    case DType::kQ4K:
      return MultiplyBlocksOf<GroupedBlocks<DType::kQ4K>>(job, block, scratch);
    case DType::kQ5K:
      return MultiplyBlocksOf<GroupedBlocks<DType::kQ5K>>(job, block, scratch);
    case DType::kQ6K:
      return MultiplyBlocksOf<SixBitBlocks>(job, block, scratch);
    case DType::kInt4:
      return MultiplyBlocksOf<PartsOfGroups<DType::kInt4>>(job, block, scratch);
    case DType::kInt8:
      return MultiplyBlocksOf<PartsOfGroups<DType::kInt8>>(job, block, scratch);
    case DType::kFp8E4M3: {
      using Type = PartsOfGroups<DType::kFp8E4M3>;  // has no whole numbers
      if (job.rows == 1) return MultiplyRowExactly<Type>(job, block);
      return MultiplyExactly(job, block, DecodePanel<Type>, *reinterpret_cast<BlockScratch*>(scratch));
    }
    case DType::kF32:
    case DType::kBf16:
    case DType::kF16:
      return;  // Multiply's own
  }
}
#endif

}  // namespace
}  // namespace tramontane

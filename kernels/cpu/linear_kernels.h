// The pieces of Linear that are compiled once per instruction set (linear_impl.h), and the job they work on.
// linear.cc cuts a job into tiles of rows and blocks of output panels and hands them to the threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/backend.h"
#include "kernels/backends/cpu_backend.h"
#include "kernels/cpu/block_panels.h"

namespace tramontane {

// What becomes of a panel's sums.
enum class PanelFinish : int32_t {
  kStore,
  kAddResidual,  // out += y
  kSwiGlu,       // a panel is one vector of gates and one of ups: out = silu(gate) * up
  kSilu,         // out = silu(y): gates whose ups stand in panels of another format or order
  kTimes,        // out *= y: those ups
};

// One Linear call with everything resolved, or the part of it whose weights have one format and one order of
// columns; the same for all threads, constant while they run.
struct LinearJob {
  const float* x = nullptr;         // [.., in_features]
  int64_t x_stride = 0;             // elements from one row to the next
  const int32_t* x_rows = nullptr;  // [rows] rows of x; null: 0..rows-1
  int64_t rows = 0;
  int64_t in_features = 0;
  const float* norm_weight = nullptr;  // [in_features]; null: rows are taken as they are
  float norm_epsilon = 0.0f;
  const int32_t* column_order =
      nullptr;  // [in_features] which input stands where in a packed row; null: in order

  Format weight_format = DType::kBf16;
  LinearMode mode = LinearMode::kExact;  // kInt8 only for a weight that has whole numbers in blocks
  const std::byte* panels = nullptr;
  int64_t panel_bytes = 0;  // from one panel to the next
  int64_t panel_count = 0;

  PanelFinish finish = PanelFinish::kStore;
  float* out = nullptr;  // [rows, out_columns], of this format
  int64_t out_stride = 0;
  int64_t out_columns = 0;

  int64_t tiles = 0;  // row tiles; tile t is rows [TileBegin(t), TileBegin(t + 1))
  // Written by pack_tile: [in_features / block_k][rows][block_k] f32 or bf16 pairs; for products of whole
  // numbers tile by tile, [in_features / block][rows of the tile] of what linear_blocks_impl.h says.
  std::byte* packed_x = nullptr;

  int64_t TileBegin(int64_t tile) const { return tile * rows / tiles; }
};

// Part of a job: some tiles of rows times some panels.
struct LinearBlock {
  int64_t tile_begin = 0;
  int64_t tile_end = 0;
  int64_t panel_begin = 0;
  int64_t panel_end = 0;
};

struct LinearKernels {
  int32_t panel_width;    // outputs side by side in a packed weight: two vectors
  int32_t tile_rows;      // most rows in a tile
  int32_t block_tiles;    // most tiles in a block
  int32_t block_panels;   // most panels in a block of more than one tile
  int32_t block_k;        // packed rows of x are padded to a multiple of it
  int64_t scratch_bytes;  // of one thread, for multiply
  // Gathers, normalises and packs the rows of one tile.
  void (*pack_tile)(const LinearJob& job, int64_t tile);
  // Multiplies packed rows with panels and finishes their outputs. scratch: scratch_bytes, 64-byte aligned.
  void (*multiply)(const LinearJob& job, const LinearBlock& block, std::byte* scratch);
};

// Whether a weight can be multiplied in whole numbers.
constexpr bool HasWholeNumbers(const Format& format) {
  return !format.plain() && format.dtype != DType::kFp8E4M3;
}
// Inputs that share a scale where rows of x are rounded for such a weight.
constexpr int64_t RoundedBlock(const Format& format) { return format.in_groups() ? 32 : format.block_size(); }

// Input features are padded to an even count: bf16 weights are packed in pairs.
constexpr int64_t PaddedInFeatures(int64_t in_features) { return (in_features + 1) / 2 * 2; }

}  // namespace tramontane

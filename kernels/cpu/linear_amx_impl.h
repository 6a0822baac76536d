// Linear's bf16 weights by AMX tiles, for the variant that includes this after linear_impl.h.
//
// A tile is 16 rows of 64 bytes. TDPBF16PS adds, to a 16 x 16 tile of f32 sums, the products of 16 rows of x
// with 16 outputs over 32 values of k: for each output the even k of the pairs and the odd ones are summed
// apart from zero, the two are added, and that is added to the sum. Panels are packed in pairs of k with a
// stride of two vectors, so a panel is two columns of tiles as it lies in memory.
//
//   sums  [2 tiles of rows][2 vectors of a panel]   stay in tiles for all k
//   per 32 k: load 2 tiles of x and 2 of the panel, 4 products of tiles.
//
// The order of an output's additions is fixed by k alone, so one row and 512 give the same bits, as in
// linear_impl.h; they are other bits than avx512_bf16's. Subnormal numbers count as zero.
// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, TDPBF16PS and LDTILECFG.
#pragma once

#include "kernels/cpu/linear_impl.h"
#include "kernels/cpu/variant.h"

namespace tramontane {
namespace {

constexpr int kAmxRows = 16;                             // of a tile
constexpr int kAmxK = 32;                                // values of k in a tile: 16 pairs
constexpr int kAmxPairs = kAmxK / 2;                     // of k in a tile
constexpr int kAmxLine = 64;                             // bytes of a tile's row
constexpr int kAmxGroup = 2 * kAmxRows;                  // rows of x that share a pass over a panel
constexpr int kAmxPanelLine = kPanelWidth * 4;           // bytes of a pair of k in a panel
constexpr int kAmxXLine = kRowStride<Bf16Products> * 4;  // bytes from one packed row of x to the next
static_assert(kBlockK % kAmxK == 0, "a tile of x lies within a block of k");

// The operand of LDTILECFG: bytes of a row and rows, for each of eight tiles.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Tiles 0-3: sums [row tile][vector]; 4, 5: x; 6, 7: a panel's vectors.
class AmxTiles {
 public:
  explicit AmxTiles(int64_t rows) {
    TileConfig config;
    const int first = static_cast<int>(std::min<int64_t>(rows, kAmxRows));
    const int second = static_cast<int>(rows) - first;
    // A tile without rows cannot be configured; where there is no second one it repeats the first's shape.
    const int heights[8] = {first, first, second, second, first, second, kAmxPairs, kAmxPairs};
    for (int tile = 0; tile < 8; ++tile) {
      config.row_bytes[tile] = kAmxLine;
      config.rows[tile] = static_cast<uint8_t>(heights[tile] == 0 ? first : heights[tile]);
    }
    _tile_loadconfig(&config);
  }
  ~AmxTiles() { _tile_release(); }
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;
};

// What the last k of a weight needs whose in_features is no multiple of a tile's: copies with zeros behind.
struct AmxScratch {
  alignas(64) std::byte x[kAmxGroup][kAmxLine];
  alignas(64) std::byte panel[kAmxPairs][kAmxPanelLine];
  alignas(64) float sums[kAmxGroup][kPanelWidth];
};

template <bool kTwoTiles>
[[gnu::always_inline]] inline void MultiplyAmxStep(const std::byte* x, int64_t x_stride,
                                                   const std::byte* panel) {
  _tile_loadd(6, panel, kAmxPanelLine);
  _tile_loadd(7, panel + kAmxLine, kAmxPanelLine);
  _tile_loadd(4, x, x_stride);
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  if constexpr (kTwoTiles) {
    _tile_loadd(5, x + kAmxRows * x_stride, x_stride);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
}

// Up to kAmxGroup rows from `row` on, times one panel; its outputs are finished.
template <bool kTwoTiles>
void MultiplyAmxPanel(const LinearJob& job, int64_t row, int64_t rows, int64_t panel, AmxScratch& scratch) {
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (kTwoTiles) {
    _tile_zero(2);
    _tile_zero(3);
  }
  const std::byte* weights = job.panels + panel * job.panel_bytes;
  const int64_t padded_k = PaddedInFeatures(job.in_features);
  const int64_t whole_k = padded_k / kAmxK * kAmxK;
  for (int64_t k = 0; k < whole_k; k += kAmxK, weights += kAmxPairs * kAmxPanelLine) {
    const auto* x =
        reinterpret_cast<const std::byte*>(PackedRows<Bf16Products>(job, row, k)) + k % kBlockK * 2;
    for (int line = 0; line < kAmxPairs * kAmxPanelLine; line += 64) {
      __builtin_prefetch(weights + kPrefetchBytes + line);
    }
    MultiplyAmxStep<kTwoTiles>(x, kAmxXLine, weights);
  }
  if (whole_k < padded_k) {
    const auto bytes = static_cast<size_t>(padded_k - whole_k) * 2;
    const auto* x = reinterpret_cast<const std::byte*>(PackedRows<Bf16Products>(job, row, whole_k)) +
                    whole_k % kBlockK * 2;
    std::memset(scratch.x, 0, sizeof scratch.x);
    for (int64_t r = 0; r < rows; ++r) std::memcpy(scratch.x[r], x + r * kAmxXLine, bytes);
    std::memset(scratch.panel, 0, sizeof scratch.panel);
    std::memcpy(scratch.panel, weights, bytes / 4 * kAmxPanelLine);
    MultiplyAmxStep<kTwoTiles>(scratch.x[0], kAmxLine, scratch.panel[0]);
  }

  constexpr int kSumsLine = kPanelWidth * 4;
  _tile_stored(0, scratch.sums[0], kSumsLine);
  _tile_stored(1, scratch.sums[0] + kWidth, kSumsLine);
  if constexpr (kTwoTiles) {
    _tile_stored(2, scratch.sums[kAmxRows], kSumsLine);
    _tile_stored(3, scratch.sums[kAmxRows] + kWidth, kSumsLine);
  }
  for (int64_t r = 0; r < rows; ++r) {
    FinishPanel(job, row + r, panel, Load(scratch.sums[r]), Load(scratch.sums[r] + kWidth));
  }
}

void MultiplyBf16ByTiles(const LinearJob& job, const LinearBlock& block, std::byte* scratch_bytes) {
  auto& scratch = *reinterpret_cast<AmxScratch*>(scratch_bytes);
  const int64_t end = job.TileBegin(block.tile_end);
  for (int64_t row = job.TileBegin(block.tile_begin); row < end; row += kAmxGroup) {
    const int64_t rows = std::min<int64_t>(end - row, kAmxGroup);
    const AmxTiles tiles(rows);
    for (int64_t panel = block.panel_begin; panel < block.panel_end; ++panel) {
      if (rows > kAmxRows) {
        MultiplyAmxPanel<true>(job, row, rows, panel, scratch);
      } else {
        MultiplyAmxPanel<false>(job, row, rows, panel, scratch);
      }
    }
  }
}

}  // namespace
}  // namespace tramontane

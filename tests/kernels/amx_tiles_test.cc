// Linear by AMX tiles (kernels/cpu/linear_amx_impl.h, linear_blocks_amx_impl.h), over a model of the tile
// instructions: so that machines without AMX hold its tiles, its tails and its strides to the definition too.
// (linear_test runs the instructions themselves where there are any.)
#if defined(__x86_64__)
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/core/check.h"
#include "kernels/core/dtype.h"
#include "kernels/cpu/intrinsics.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/variant.h"
#include "tests/support/cpu_variants.h"
#include "tests/support/random_blocks.h"

namespace tramontane {
namespace {

// The tile registers as Intel's manual defines them. One thread.
class ModelTiles {
 public:
  // LDTILECFG: palette, start row, 14 reserved bytes, 16 widths of a row in bytes, 16 heights.
  void Configure(const void* operand) {
    const auto* bytes = static_cast<const std::byte*>(operand);
    TM_CHECK(bytes[0] == std::byte{1} && bytes[1] == std::byte{0}, "palette 1 from row 0 is meant");
    for (size_t t = 0; t < tiles_.size(); ++t) {
      Tile& tile = tiles_[t];
      tile = {};
      uint16_t row_bytes;
      std::memcpy(&row_bytes, bytes + 16 + 2 * t, 2);
      tile.row_bytes = row_bytes;
      tile.rows = std::to_integer<int>(bytes[48 + t]);
      const bool unused = tile.rows == 0 && row_bytes == 0;
      TM_CHECK(unused || (tile.rows >= 1 && tile.rows <= 16 && row_bytes >= 4 && row_bytes <= 64),
               "tile %zu: %d rows of %d", t, tile.rows, tile.row_bytes);
    }
    configured_ = true;
  }
  void Release() { configured_ = false; }

  void Zero(int to) { At(to).bytes = {}; }
  void Load(int to, const void* base, int64_t stride) {
    Tile& tile = At(to);
    tile.bytes = {};
    for (int row = 0; row < tile.rows; ++row) {
      std::memcpy(tile.Row(row), static_cast<const std::byte*>(base) + row * stride,
                  static_cast<size_t>(tile.row_bytes));
    }
  }
  void Store(int from, void* base, int64_t stride) {
    Tile& tile = At(from);
    for (int row = 0; row < tile.rows; ++row) {
      std::memcpy(static_cast<std::byte*>(base) + row * stride, tile.Row(row),
                  static_cast<size_t>(tile.row_bytes));
    }
  }

  // TDPBF16PS: sums [m][n] += a [m][pairs] * b [pairs][n], a pair's even values apart from its odd ones.
  void MultiplyBf16(int sums, int a, int b) {
    Tile& to = At(sums);
    Tile& left = At(a);
    Tile& right = At(b);
    CheckShapes(to, left, right);
    for (int m = 0; m < to.rows; ++m) {
      for (int n = 0; n < to.row_bytes / 4; ++n) {
        float halves[2] = {0.0f, 0.0f};
        for (int k = 0; k < right.rows; ++k) {
          for (int half = 0; half < 2; ++half) {
            halves[half] += left.Bf16(m, 2 * k + half) * right.Bf16(k, 2 * n + half);
          }
        }
        float sum;
        std::memcpy(&sum, to.Row(m) + 4 * n, 4);
        sum += halves[0] + halves[1];
        std::memcpy(to.Row(m) + 4 * n, &sum, 4);
      }
    }
  }

  // Of bytes, so far.
  int64_t products() const { return products_; }

  // TDPBSSD: sums [m][n] += a [m][k] * b [k / 4][n][4], signed bytes to 32 bits.
  void MultiplyBytes(int sums, int a, int b) {
    Tile& to = At(sums);
    Tile& left = At(a);
    Tile& right = At(b);
    CheckShapes(to, left, right);
    ++products_;
    for (int m = 0; m < to.rows; ++m) {
      for (int n = 0; n < to.row_bytes / 4; ++n) {
        int32_t sum;
        std::memcpy(&sum, to.Row(m) + 4 * n, 4);
        for (int k = 0; k < left.row_bytes; ++k) sum += left.Byte(m, k) * right.Byte(k / 4, 4 * n + k % 4);
        std::memcpy(to.Row(m) + 4 * n, &sum, 4);
      }
    }
  }

 private:
  struct Tile {
    int rows = 0;
    int row_bytes = 0;
    std::array<std::byte, 16 * 64> bytes = {};

    std::byte* Row(int row) { return bytes.data() + row * 64; }
    float Bf16(int row, int element) {
      uint16_t bits;
      std::memcpy(&bits, Row(row) + 2 * element, 2);
      return Bf16ToFloat(bits);
    }
    int32_t Byte(int row, int element) { return static_cast<int8_t>(Row(row)[element]); }
  };

  static void CheckShapes(const Tile& sums, const Tile& a, const Tile& b) {
    TM_CHECK(sums.rows == a.rows && a.row_bytes / 4 == b.rows && sums.row_bytes == b.row_bytes,
             "tiles of %d x %d, %d x %d and %d x %d", sums.rows, sums.row_bytes, a.rows, a.row_bytes, b.rows,
             b.row_bytes);
  }

  Tile& At(int tile) {
    TM_CHECK(configured_ && tiles_.at(static_cast<size_t>(tile)).rows > 0,
             "tiles are used before they are configured");
    return tiles_.at(static_cast<size_t>(tile));
  }

  bool configured_ = false;
  int64_t products_ = 0;
  std::array<Tile, 8> tiles_;
};

ModelTiles& Tiles() {
  static ModelTiles tiles;
  return tiles;
}

}  // namespace
}  // namespace tramontane

// The kernel below is compiled over the model.
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#define _tile_loadconfig(operand) Tiles().Configure(operand)
#define _tile_release() Tiles().Release()
#define _tile_zero(to) Tiles().Zero(to)
#define _tile_loadd(to, base, stride) Tiles().Load(to, base, stride)
#define _tile_stored(from, base, stride) Tiles().Store(from, base, stride)
#define _tile_dpbf16ps(sums, a, b) Tiles().MultiplyBf16(sums, a, b)
#define _tile_dpbssd(sums, a, b) Tiles().MultiplyBytes(sums, a, b)

#define TM_SIMD_WIDTH 16
#define TM_BF16_PRODUCTS
#define TM_AMX
TM_TARGET_BEGIN("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")
#include "kernels/cpu/linear_impl.h"
// After the bodies that it builds on.
#include "kernels/cpu/linear_amx_impl.h"
#include "kernels/cpu/linear_blocks_amx_impl.h"
TM_TARGET_END

namespace tramontane {
namespace {

// Small whole numbers: bf16 holds them, and f32 their sums of products, so every order of additions gives the
// same.
std::vector<float> SmallIntegers(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> number(-8, 8);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(number(random));
  return values;
}

// A weight packed for a variant's Linear, and the scratch to run it in, full of what is no number. Weights in
// blocks are multiplied in 8 bits.
class PackedLinear {
 public:
  PackedLinear(const LinearKernels& linear, std::vector<std::byte> file, const Format& format,
               int64_t out_features, int64_t in_features, int32_t max_rows)
      : kernels_{.name = "under test",
                 .linear = linear,
                 .attention = BuiltVariants().back()->attention,
                 .moe = BuiltVariants().back()->moe,
                 .sampling = BuiltVariants().back()->sampling},
        in_features_(in_features),
        out_features_(out_features),
        file_(std::move(file)) {
    const WeightRows part = {
        .data = file_.data(), .format = format, .rows = out_features, .row_stride = in_features};
    const LinearSource source = {.parts = &part, .part_count = 1, .in_features = in_features};
    panels_.resize(static_cast<size_t>(PackedLinearBytes(source, kernels_)) / sizeof(Line) + 1);
    packed_ = *PackLinearInto(source, kernels_, pool_, reinterpret_cast<std::byte*>(panels_.data()));
    const StepMaxima maxima = {.tokens = max_rows, .hidden = static_cast<int32_t>(in_features)};
    workspace_.resize(static_cast<size_t>(LinearWorkspaceBytes(maxima, kernels_, 1)) / sizeof(Line) + 1);
    for (Line& line : workspace_) line.bytes.fill(std::byte{0xff});  // not a number
  }

  std::vector<float> Run(std::vector<float> x) {
    const int64_t rows = static_cast<int64_t>(x.size()) / in_features_;
    std::vector<float> out(static_cast<size_t>(rows * out_features_));
    const LinearParams params = {
        .x = MakeTensor(x.data(), DType::kF32, rows, in_features_),
        .rows = static_cast<int32_t>(rows),
        .weight = {.impl = &packed_},
        .out = MakeTensor(out.data(), DType::kF32, rows, out_features_),
    };
    const CpuWorkspace workspace = {reinterpret_cast<std::byte*>(workspace_.data()),
                                    static_cast<int64_t>(workspace_.size() * sizeof(Line))};
    RunLinear(params, {kernels_, pool_, workspace, shared_prefixes_, LinearMode::kInt8});
    return out;
  }

 private:
  struct alignas(64) Line {
    std::array<std::byte, 64> bytes = {};
  };

  const CpuKernels kernels_;
  const int64_t in_features_;
  const int64_t out_features_;
  ThreadPool pool_{1};
  SharedPrefixMemo shared_prefixes_;
  std::vector<std::byte> file_;  // [out_features, in_features]
  std::vector<Line> panels_;
  std::vector<Line> workspace_;
  PackedWeight packed_;
};

TEST(AmxTiles, EveryTailOfKAndOfRowsGivesTheExactSums) {
  if (!MachineHasVariant("avx512_bf16")) {
    GTEST_SKIP()
        << "this machine lacks avx512_bf16, which the tiles' rows are packed with; AMX's tails went unseen";
  }
  std::vector<int64_t> depths = {95, 255, 256, 257, 258, 287, 288, 290, 513};
  for (int64_t k = 1; k <= 67; ++k) depths.push_back(k);
  constexpr int64_t kOutFeatures = 40;  // a whole panel and a part of one
  for (const int64_t depth : depths) {
    const std::vector<float> weight = SmallIntegers(kOutFeatures * depth, 1);
    std::vector<std::byte> file;
    for (const float value : weight) {
      const auto bits = std::bit_cast<std::array<std::byte, 2>>(FloatToBf16(value));
      file.insert(file.end(), bits.begin(), bits.end());
    }
    PackedLinear linear(AmxLinearKernels(), file, DType::kBf16, kOutFeatures, depth, 33);
    for (const int64_t rows : {1, 2, 15, 16, 17, 31, 32, 33}) {
      const std::vector<float> x = SmallIntegers(rows * depth, 2);
      const std::vector<float> out = linear.Run(x);
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t n = 0; n < kOutFeatures; ++n) {
          float want = 0.0f;
          for (int64_t k = 0; k < depth; ++k) {
            want += x[static_cast<size_t>(row * depth + k)] * weight[static_cast<size_t>(n * depth + k)];
          }
          ASSERT_EQ(out[static_cast<size_t>(row * kOutFeatures + n)], want)
              << "row " << row << " of " << rows << ", output " << n << ", depth " << depth;
        }
      }
    }
  }
}

TEST(AmxTiles, ProductsOfBytesGiveTheBitsOfVectors) {
  if (!MachineHasVariant("avx512_bf16")) {
    GTEST_SKIP() << "this machine lacks avx512_bf16, whose products few rows go through; AMX's went unseen";
  }
  constexpr int64_t kOutFeatures = 40;
  constexpr int64_t kRows = 3 * kTileRows + 5;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const Format& format : BlockFormats()) {
    if (!HasWholeNumbers(format)) continue;
    // A part of what is made bytes at once, and more than that.
    for (const int64_t depth : {format.block_size(), int64_t{kAmxChunkK + 256}}) {
      const std::vector<std::byte> file = RandomBlocks(format, kOutFeatures, depth, 1);
      PackedLinear by_tiles(AmxLinearKernels(), file, format, kOutFeatures, depth, kRows);
      PackedLinear by_vectors(kAvx512VnniKernels.linear, file, format, kOutFeatures, depth, kRows);
      // The fewest that tiles take, tiles of fewer than 16 rows, and unequal ones.
      for (const int64_t rows : {int64_t{2 * kTileRows + 1}, int64_t{3 * kTileRows}, kRows}) {
        std::vector<float> x(static_cast<size_t>(rows * depth));
        for (float& value : x) value = normal(random);
        const int64_t products = Tiles().products();
        const std::vector<float> tiles = by_tiles.Run(x), vectors = by_vectors.Run(x);
        EXPECT_GT(Tiles().products(), products) << FormatName(format) << " went another way";
        EXPECT_EQ(std::memcmp(tiles.data(), vectors.data(), tiles.size() * sizeof(float)), 0)
            << FormatName(format) << ", " << rows << " rows of " << depth;
      }
    }
  }
}

}  // namespace
}  // namespace tramontane
#endif

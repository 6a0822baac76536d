// Linear by AMX tiles (kernels/cpu/linear_amx_impl.h), over a model of the tile instructions: so that
// machines without AMX hold its tiles, its tails and its strides to the definition too. (linear_test runs the
// instructions themselves where there are any.)
#if defined(__x86_64__)
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/core/check.h"
#include "kernels/core/dtype.h"
#include "kernels/cpu/intrinsics.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/variant.h"
#include "tests/support/cpu_variants.h"

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
      TM_CHECK(tile.rows >= 1 && tile.rows <= 16 && row_bytes >= 4 && row_bytes <= 64,
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
    TM_CHECK(to.rows == left.rows && left.row_bytes / 4 == right.rows && to.row_bytes == right.row_bytes,
             "tiles of %d x %d, %d x %d and %d x %d", to.rows, to.row_bytes, left.rows, left.row_bytes,
             right.rows, right.row_bytes);
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
  };

  Tile& At(int tile) {
    TM_CHECK(configured_, "tiles are used before they are configured");
    return tiles_.at(static_cast<size_t>(tile));
  }

  bool configured_ = false;
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
#define _tile_loadconfig(operand) Tiles().Configure(operand)
#define _tile_release() Tiles().Release()
#define _tile_zero(to) Tiles().Zero(to)
#define _tile_loadd(to, base, stride) Tiles().Load(to, base, stride)
#define _tile_stored(from, base, stride) Tiles().Store(from, base, stride)
#define _tile_dpbf16ps(sums, a, b) Tiles().MultiplyBf16(sums, a, b)

#define TM_SIMD_WIDTH 16
#define TM_BF16_PRODUCTS
TM_TARGET_BEGIN("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")
#include "kernels/cpu/linear_impl.h"
// After the bodies that it builds on.
#include "kernels/cpu/linear_amx_impl.h"
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

// A bf16 weight packed for tiles, and the scratch to run it in, full of what is no number.
class TiledLinear {
 public:
  TiledLinear(const std::vector<float>& weight, int64_t out_features, int64_t in_features, int32_t max_rows)
      : in_features_(in_features), out_features_(out_features) {
    for (const float value : weight) file_.push_back(FloatToBf16(value));
    const WeightRows part = {
        .data = file_.data(), .format = DType::kBf16, .rows = out_features, .row_stride = in_features};
    const LinearSource source = {.parts = &part, .part_count = 1, .in_features = in_features};
    panels_.resize(static_cast<size_t>(PackedLinearBytes(source, kernels_)) / sizeof(Line) + 1);
    packed_ = PackLinearInto(source, kernels_, pool_, reinterpret_cast<std::byte*>(panels_.data()));
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
    RunLinear(params, {kernels_, pool_, workspace});
    return out;
  }

 private:
  struct alignas(64) Line {
    std::array<std::byte, 64> bytes = {};
  };

  const CpuKernels kernels_ = {.name = "amx_bf16 over a model",
                               .linear = AmxLinearKernels(),
                               .attention = kPortableKernels.attention,
                               .moe = kPortableKernels.moe,
                               .sampling = kPortableKernels.sampling};
  const int64_t in_features_;
  const int64_t out_features_;
  ThreadPool pool_{1};
  std::vector<uint16_t> file_;  // [out_features, in_features]
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
    TiledLinear linear(weight, kOutFeatures, depth, 33);
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

}  // namespace
}  // namespace tramontane
#endif

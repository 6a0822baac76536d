// The small CUDA kernels and the small-batch linear layers against their definitions in double precision: on
// the emulator in every build, on a GPU in bench/gpu_check. bf16 carries 8 bits: a rounding is a relative
// error of at most u = 2^-9.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "kernels/cuda/linear_small.h"
#include "kernels/cuda/pointwise.h"
#include "tests/reference/linear.h"
#include "tests/reference/rope.h"
#include "tests/support/cuda_device.h"

namespace tramontane {
namespace {

constexpr double kUnit = 0x1p-8;

struct Bf16Matrix {
  int64_t rows, columns;
  std::vector<uint16_t> bits;

  Bf16Matrix(int64_t r, int64_t c, uint64_t seed, float scale = 1.0f)
      : rows(r), columns(c), bits(static_cast<size_t>(r * c)) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal(0.0f, scale);
    for (uint16_t& b : bits) b = FloatToBf16(normal(random));
  }
  double At(int64_t r, int64_t c) const { return Bf16ToFloat(bits[static_cast<size_t>(r * columns + c)]); }
  reference::Matrix Exact() const {
    reference::Matrix out(rows, columns);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) out.At(r, c) = At(r, c);
    }
    return out;
  }
};

class CudaOpsTest : public testing::TestWithParam<ThreadOrder> {
 protected:
  void SetUp() override { UseThreadOrder(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Orders, CudaOpsTest, testing::ValuesIn(ThreadOrders()),
                         [](const auto& info) { return "Order" + std::to_string(info.index); });

// The rounded, normalised rows, and how far one of them may be from its definition: the f32 sum of K squares
// errs by less than K * 2^-24 relative, which is below u / 8 for the K here; then one rounding.
TEST_P(CudaOpsTest, RmsNormOfGatheredRowsAgreesWithItsDefinition) {
  for (const int32_t width : {8, 264, 4096, 5000}) {
    const auto numbers = static_cast<size_t>(width);
    const Bf16Matrix x(5, width, 1, 3.0f);
    std::vector<float> weight(numbers);
    std::vector<double> exact_weight(numbers);
    for (size_t i = 0; i < numbers; ++i)
      exact_weight[i] = weight[i] = 0.5f + static_cast<float>(i) / static_cast<float>(width);
    const std::vector<int32_t> rows = {4, 0, 4};
    const DeviceArray device_x(x.bits), device_y(std::vector<uint16_t>(3 * numbers, 0x7FFF));
    const DeviceArray device_rows(rows);
    const DeviceArray device_weight(weight);
    ASSERT_EQ(cuda::LaunchRmsNorm({device_x.data(), device_rows.data(), device_weight.data(), device_y.data(),
                                   width, 3, width, 1e-5f},
                                  nullptr),
              0);
    const std::vector<uint16_t> y = device_y.Get();
    const reference::Matrix expected = reference::RmsNorm(x.Exact(), exact_weight, 1e-5f);
    for (size_t r = 0; r < rows.size(); ++r) {
      for (int64_t c = 0; c < width; ++c) {
        const double want = expected.At(rows[r], c);
        ASSERT_NEAR(Bf16ToFloat(y[r * numbers + static_cast<size_t>(c)]), want,
                    1.25 * kUnit * std::fabs(want))
            << width << " numbers, row " << r << ", " << c;
      }
    }
  }
}

TEST_P(CudaOpsTest, SwiGluReadsInterleavedColumns) {
  const Bf16Matrix gate_up(3, 2 * 24, 2, 2.0f);
  const DeviceArray device_gate_up(gate_up.bits), device_h(std::vector<uint16_t>(3 * 24, 0x7FFF));
  ASSERT_EQ(cuda::LaunchSwiGlu({device_gate_up.data(), device_h.data(), 24, 3, 24}, nullptr), 0);
  const std::vector<uint16_t> h = device_h.Get();
  for (int64_t r = 0; r < 3; ++r) {
    for (int64_t i = 0; i < 24; ++i) {
      const int64_t column = i / 8 * 16 + i % 8;
      const double want = reference::Silu(gate_up.At(r, column)) * gate_up.At(r, column + 8);
      EXPECT_NEAR(Bf16ToFloat(h[static_cast<size_t>(r * 24 + i)]), want,
                  1.25 * kUnit * std::fabs(want) + 1e-30);
    }
  }
}

TEST_P(CudaOpsTest, EmbedCopiesRowsBitForBit) {
  const Bf16Matrix table(7, 40, 3);
  const std::vector<int32_t> ids = {6, 0, 6, 3};
  const DeviceArray device_ids(ids);
  const DeviceArray device_table(table.bits), device_out(std::vector<uint16_t>(4 * 40));
  ASSERT_EQ(
      cuda::LaunchEmbed({device_ids.data(), device_table.data(), device_out.data(), 40, 4, 40}, nullptr), 0);
  const std::vector<uint16_t> out = device_out.Get();
  for (size_t t = 0; t < ids.size(); ++t) {
    for (size_t c = 0; c < 40; ++c)
      EXPECT_EQ(out[t * 40 + c], table.bits[static_cast<size_t>(ids[t]) * 40 + c]);
  }
}

TEST_P(CudaOpsTest, CopyPagesCopiesWholePagesAndNothingElse) {
  std::vector<uint8_t> before(5 * 4096 + 16, 1);
  for (size_t i = 0; i < 4096; ++i) before[2 * 4096 + i] = static_cast<uint8_t>(i * 7);
  const DeviceArray device_pool(before);
  const DeviceArray pairs(std::vector<int32_t>{2, 4, 2, 0});
  ASSERT_EQ(cuda::LaunchCopyPages({reinterpret_cast<std::byte*>(device_pool.data()), 4096, pairs.data(), 2},
                                  nullptr),
            0);
  const std::vector<uint8_t> pool = device_pool.Get();
  for (size_t i = 0; i < pool.size(); ++i) {
    const size_t page = i / 4096;
    EXPECT_EQ(pool[i],
              page == 4 || page == 0 ? before[i < 4 * 4096 ? i + 2 * 4096 : i - 2 * 4096] : before[i])
        << i;
  }
}

class CudaRopeTest : public testing::TestWithParam<std::tuple<RotaryStyle, KvOrder, int32_t>> {};

// Heads that are whole pieces of 16 bytes in twos, of 8, and neither.
INSTANTIATE_TEST_SUITE_P(Styles, CudaRopeTest,
                         testing::Combine(testing::Values(RotaryStyle::kHalfSplit, RotaryStyle::kInterleaved),
                                          testing::Values(KvOrder::kHnd, KvOrder::kNhd),
                                          testing::Values(16, 24, 6)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param) == RotaryStyle::kHalfSplit ? "Half"
                                                                                                 : "Pairs") +
                                  (std::get<1>(info.param) == KvOrder::kHnd ? "Hnd" : "Nhd") +
                                  std::to_string(std::get<2>(info.param));
                         });

// A rotated element is a cos - b sin in f32, rounded once: error u |result| and f32 noise below u / 64 (|a| +
// |b|).
TEST_P(CudaRopeTest, RotatesQueriesInPlaceAndWritesKeysAndValuesToTheirSlots) {
  const auto [style, order, kDim] = GetParam();
  UseThreadOrder(ThreadOrder::kForward);
  constexpr int kQuery = 140, kKv = 2, kTokens = 3;  // more than a block for a token
  KvLayerView kv;
  kv = KvLayerView(
      {.element = DType::kBf16, .kv_heads = kKv, .head_dim = kDim, .page_size = 4, .order = order});
  kv.page_bytes = kv.format.PageBytes(2);
  kv.layer_offset = kv.format.LayerBytes();
  const std::vector<uint16_t> untouched(static_cast<size_t>(3 * kv.page_bytes / 2), 0x7FFF);
  const Bf16Matrix before(kTokens, (kQuery + 2 * kKv) * kDim, 5);
  const std::vector<int32_t> positions = {100000, 7, 8};
  const std::vector<int64_t> slots = {2 * 4 + 3, -1, 0 * 4 + 1};  // the second is padding
  const std::vector<double> frequency = reference::InverseFrequencies(10000.0, kDim);
  const DeviceArray device_pool(untouched), device_qkv(before.bits);
  const DeviceArray device_positions(positions);
  const DeviceArray device_slots(slots);
  const DeviceArray device_frequency(frequency);
  const DeviceArray cos_sin(std::vector<float>(kTokens * kDim));
  const DeviceArray query_scale(std::vector<float>(kTokens, std::nanf("")));
  // As for a model made for long contexts: everything is turned 1.25 times as long, and a query also by its
  // own factor.
  constexpr double kMagnitude = 1.25, kBeta = 0.5;
  constexpr int32_t kScalePositions = 8;
  ASSERT_EQ(cuda::LaunchRopeTable({.positions = device_positions.data(),
                                   .tokens = kTokens,
                                   .inverse_frequency = device_frequency.data(),
                                   .half_dim = kDim / 2,
                                   .cos_sin = cos_sin.data(),
                                   .magnitude = kMagnitude,
                                   .query_scale = query_scale.data(),
                                   .query_scale_beta = kBeta,
                                   .query_scale_positions = kScalePositions},
                                  nullptr),
            0);
  kv.pool = reinterpret_cast<std::byte*>(device_pool.data());
  ASSERT_EQ(
      cuda::LaunchRopeAppend({MakeTensor(device_qkv.data(), DType::kBf16, kTokens, before.columns),
                              cos_sin.data(), style, kQuery, kv, device_slots.data(), query_scale.data()},
                             nullptr),
      0);
  std::vector<uint16_t> pool = device_pool.Get();
  Bf16Matrix qkv = before;
  qkv.bits = device_qkv.Get();
  kv.pool = reinterpret_cast<std::byte*>(pool.data());
  const auto pairs = style == RotaryStyle::kHalfSplit ? reference::RotaryPairs::kHalfSplit
                                                      : reference::RotaryPairs::kInterleaved;
  size_t written = 0;
  for (int t = 0; t < kTokens; ++t) {
    for (int head = 0; head < kQuery + 2 * kKv; ++head) {
      std::vector<double> vector(kDim);
      for (int d = 0; d < kDim; ++d) vector[static_cast<size_t>(d)] = before.At(t, head * kDim + d);
      const bool is_value = head >= kQuery + kKv;
      const int32_t position = positions[static_cast<size_t>(t)];
      std::vector<double> want = is_value ? vector : reference::Rotate(vector, position, frequency, pairs);
      const double scale = head < kQuery ? 1.0 + kBeta * std::log(1.0 + position / kScalePositions) : 1.0;
      for (double& w : want) w *= is_value ? 1.0 : kMagnitude * scale;
      for (int d = 0; d < kDim; ++d) {
        double got = qkv.At(t, head * kDim + d);
        const int64_t slot = slots[static_cast<size_t>(t)];
        if (head >= kQuery) {
          if (slot < 0) continue;
          const int kv_head = (head - kQuery) % kKv;
          const std::byte* at = is_value ? kv.Value(slot / 4, kv_head, static_cast<int32_t>(slot % 4))
                                         : kv.Key(slot / 4, kv_head, static_cast<int32_t>(slot % 4));
          got = Bf16ToFloat(reinterpret_cast<const uint16_t*>(at)[d]);
          ++written;
        }
        EXPECT_NEAR(got, want[static_cast<size_t>(d)],
                    1.1 * kUnit * std::fabs(want[static_cast<size_t>(d)]) + 1e-4)
            << t << " " << head << " " << d;
      }
    }
  }
  size_t changed = 0;
  for (size_t i = 0; i < pool.size(); ++i) changed += pool[i] != untouched[i] ? 1 : 0;
  EXPECT_EQ(changed, written);
}

// Slots count tokens of all pages of a pool, which may be more than 32 bits hold. (Pages in one place.)
TEST(CudaRopeAppendTest, ASlotBeyond32BitsHasItsPlace) {
  KvLayerView kv(KvFormat{.element = DType::kBf16, .kv_heads = 1, .head_dim = 16, .page_size = 6});
  kv.page_bytes = 0;
  const DeviceArray pool(std::vector<uint16_t>(static_cast<size_t>(2 * 6 * 16), 0));
  const Bf16Matrix rows(2, 3 * 16, 6);
  const DeviceArray qkv(rows.bits);
  constexpr int64_t kPage = 1'500'000'000;
  const DeviceArray slots(std::vector<int64_t>{6 * kPage + 5, 6 * 300'000'000 + 1});
  kv.pool = reinterpret_cast<std::byte*>(pool.data());
  const RopeAppendParams params = {.qkv = MakeTensor(qkv.data(), DType::kBf16, 2, 3 * 16),
                                   .query_heads = 1,
                                   .kv = kv,
                                   .slots = slots.data()};
  ASSERT_EQ(cuda::LaunchRopeAppend(params, nullptr), 0);
  const std::vector<uint16_t> got = pool.Get();
  std::vector<uint16_t> want(got.size());
  for (const auto& [row, offset] : {std::pair<size_t, size_t>{0, 5}, {1, 1}}) {
    for (size_t d = 0; d < 16; ++d) {
      want[offset * 16 + d] = rows.bits[row * 48 + 16 + d];
      want[(6 + offset) * 16 + d] = rows.bits[row * 48 + 32 + d];
    }
  }
  EXPECT_EQ(got, want);
}

struct LinearCase {
  const char* name;
  int32_t rows, in, out;
  Prologue prologue;
  Epilogue epilogue;
  DType out_dtype = DType::kBf16;
};

class CudaSmallLinearTest : public testing::TestWithParam<LinearCase> {};

INSTANTIATE_TEST_SUITE_P(
    Shapes, CudaSmallLinearTest,
    testing::Values(LinearCase{"OneRow", 1, 1056, 40, Prologue::kNone, Epilogue::kNone},
                    LinearCase{"OneRowShortK", 1, 32, 16, Prologue::kNone, Epilogue::kNone},
                    LinearCase{"OneRowOfAPiece", 1, 8, 16, Prologue::kNone, Epilogue::kNone},
                    LinearCase{"PartOfABlock", 5, 1064, 24, Prologue::kNone, Epilogue::kAddResidual},
                    LinearCase{"PartOfABlockSwiGlu", 16, 312, 32, Prologue::kRmsNorm, Epilogue::kSwiGlu},
                    LinearCase{"Logits", 3, 256, 50, Prologue::kRmsNorm, Epilogue::kNone, DType::kF32},
                    LinearCase{"EightRowsResidual", 8, 704, 32, Prologue::kNone, Epilogue::kAddResidual},
                    LinearCase{"NineRows", 9, 256, 24, Prologue::kRmsNorm, Epilogue::kNone},
                    LinearCase{"SixteenRowsSwiGlu", 16, 288, 64, Prologue::kRmsNorm, Epilogue::kSwiGlu},
                    LinearCase{"SevenRowsSwiGlu", 7, 2304, 32, Prologue::kNone, Epilogue::kSwiGlu}),
    [](const auto& info) { return info.param.name; });

// Tolerance: products of bf16 are exact in f32; a sum of K of them errs by at most K 2^-24 of the sum of
// magnitudes (K <= 2304: below u / 14). The normalised input is rounded once: u of the magnitudes. Then the
// output's rounding. SwiGLU rounds gate and up before, each passed on with a slope of at most 1.1 (silu) or
// |up|, |silu(gate)|.
TEST_P(CudaSmallLinearTest, AgreesWithItsDefinitionInEveryOrder) {
  const LinearCase c = GetParam();
  const Bf16Matrix x(20, c.in, 11), w(c.out, c.in, 12, 1.0f / std::sqrt(static_cast<float>(c.in)));
  std::vector<float> norm(static_cast<size_t>(c.in));
  std::vector<double> exact_norm(norm.size());
  for (size_t i = 0; i < norm.size(); ++i) exact_norm[i] = norm[i] = 1.0f + 0.25f * static_cast<float>(i % 3);
  std::vector<int32_t> x_rows;
  for (int32_t r = 0; r < c.rows; ++r) x_rows.push_back((r * 7 + 3) % 20);

  reference::Matrix input(c.rows, c.in);
  const reference::Matrix all =
      c.prologue == Prologue::kRmsNorm ? reference::RmsNorm(x.Exact(), exact_norm, 1e-5f) : x.Exact();
  for (int32_t r = 0; r < c.rows; ++r) {
    for (int32_t k = 0; k < c.in; ++k) input.At(r, k) = all.At(x_rows[static_cast<size_t>(r)], k);
  }
  const reference::Matrix product = reference::MultiplyTransposed(input, w.Exact());
  const reference::Matrix magnitude = reference::Magnitude(input, w.Exact());
  const double input_unit = (c.prologue == Prologue::kRmsNorm ? 1.25 * kUnit : 0.0) + c.in * 0x1p-24;

  const bool swiglu = c.epilogue == Epilogue::kSwiGlu;
  const int32_t width = swiglu ? c.out / 2 : c.out;
  const Bf16Matrix residual(c.rows, width, 13);
  const DeviceArray device_x(x.bits), device_w(w.bits);
  const DeviceArray device_norm(norm);
  const DeviceArray device_rows(x_rows);
  for (const ThreadOrder order : ThreadOrders()) {
    UseThreadOrder(order);
    const DeviceArray device_out(residual.bits);
    const DeviceArray device_wide(std::vector<float>(residual.bits.size(), std::nanf("")));
    cuda::SmallLinearParams p{};
    p.x = device_x.data();
    p.x_rows = device_rows.data();
    p.norm_weight = device_norm.data();
    p.weight = device_w.data();
    p.out = c.out_dtype == DType::kF32 ? static_cast<void*>(device_wide.data()) : device_out.data();
    p.x_stride = c.in;
    p.out_stride = width;
    p.rows = c.rows;
    p.in_features = c.in;
    p.out_features = c.out;
    p.epsilon = 1e-5f;
    p.prologue = c.prologue;
    p.epilogue = c.epilogue;
    p.out_dtype = c.out_dtype;
    ASSERT_TRUE(cuda::SmallLinearSupported(p));
    ASSERT_EQ(cuda::LaunchSmallLinear(p, nullptr), 0);
    const std::vector<uint16_t> out = device_out.Get();
    const std::vector<float> wide = device_wide.Get();
    for (int32_t r = 0; r < c.rows; ++r) {
      for (int32_t n = 0; n < width; ++n) {
        const auto at = static_cast<size_t>(r * width + n);
        const double got = c.out_dtype == DType::kF32 ? wide[at] : Bf16ToFloat(out[at]);
        double want = 0, allowed = 0;
        if (swiglu) {
          const int32_t gate = n / 8 * 16 + n % 8, up = gate + 8;
          const double g = product.At(r, gate), u = product.At(r, up);
          const double g_error = input_unit * magnitude.At(r, gate) + kUnit * std::fabs(g);
          const double u_error = input_unit * magnitude.At(r, up) + kUnit * std::fabs(u);
          want = reference::Silu(g) * u;
          allowed = 1.1 * g_error * (std::fabs(u) + u_error) + std::fabs(reference::Silu(g)) * u_error +
                    1.1 * kUnit * std::fabs(want);
        } else {
          want = product.At(r, n) + (c.epilogue == Epilogue::kAddResidual ? residual.At(r, n) : 0.0);
          allowed =
              input_unit * magnitude.At(r, n) +
              (c.out_dtype == DType::kF32 ? 0.0
                                          : kUnit * (std::fabs(want) + input_unit * magnitude.At(r, n)));
        }
        ASSERT_NEAR(got, want, allowed) << "row " << r << " output " << n;
      }
    }
  }
}

}  // namespace
}  // namespace tramontane

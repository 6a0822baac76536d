// Which lane holds what: the fragment layouts of ldmatrix and mma, and the other wrapped instructions, by the
// PTX manual (ISA 9.0, sections on matrix fragments of mma.m16n8k16 and on ldmatrix). In every build this
// holds the emulator to it; on a GPU, in bench/gpu_check, it says whether the manual was read right.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/core/dtype.h"
#include "tests/kernels/fragment_kernels.h"
#include "tests/support/cuda_device.h"

namespace tramontane {
namespace {

constexpr int kLanes = 32;

uint32_t Pair(uint16_t low, uint16_t high) { return low | uint32_t{high} << 16; }

TEST(FragmentTest, LoadMatrixGivesEachLaneTwoNeighboursOfARowOrOfAColumn) {
  std::vector<uint16_t> matrices(4 * 64);
  for (size_t i = 0; i < matrices.size(); ++i) matrices[i] = static_cast<uint16_t>(i * 257);
  const DeviceArray in(matrices);
  auto element = [&](int matrix, int row, int column) {
    return matrices[static_cast<size_t>(matrix * 64 + row * 8 + column)];
  };
  for (const bool transposed : {false, true}) {
    const DeviceArray out(std::vector<uint32_t>(kLanes * 4));
    ASSERT_EQ(cuda::ShowLoadMatrix(in.data(), transposed, out.data()), 0);
    const std::vector<uint32_t> fragment = out.Get();
    for (int lane = 0; lane < kLanes; ++lane) {
      const int a = lane / 4, b = lane % 4 * 2;
      for (int m = 0; m < 4; ++m) {
        const uint32_t want = transposed ? Pair(element(m, b, a), element(m, b + 1, a))
                                         : Pair(element(m, a, b), element(m, a, b + 1));
        EXPECT_EQ(fragment[static_cast<size_t>(lane * 4 + m)], want) << "lane " << lane << " matrix " << m;
      }
    }
  }
}

// Small integers: every product and sum is exact, so each element of c must be.
void ExpectProductOfFragments(DType dtype, int (*show)(const uint32_t*, const uint32_t*, float*)) {
  std::mt19937_64 random(3);
  int a[16][16], b[16][8], c[16][8];
  auto draw = [&] { return static_cast<int>(random() % 17) - 8; };
  for (auto& row : a) {
    for (int& x : row) x = draw();
  }
  for (auto& row : b) {
    for (int& x : row) x = draw();
  }
  for (auto& row : c) {
    for (int& x : row) x = draw();
  }
  auto bits = [&](int x) {
    return dtype == DType::kBf16 ? FloatToBf16(static_cast<float>(x)) : FloatToF16(static_cast<float>(x));
  };
  std::vector<uint32_t> a_fragment, b_fragment;
  std::vector<float> c_fragment;
  for (int lane = 0; lane < kLanes; ++lane) {
    const int g = lane / 4, t = lane % 4 * 2;
    for (const auto& [row, column] : {std::pair{g, t}, {g + 8, t}, {g, t + 8}, {g + 8, t + 8}}) {
      a_fragment.push_back(Pair(bits(a[row][column]), bits(a[row][column + 1])));
    }
    for (const int k : {t, t + 8}) b_fragment.push_back(Pair(bits(b[k][g]), bits(b[k + 1][g])));
    for (const int row : {g, g + 8}) {
      for (const int column : {t, t + 1}) c_fragment.push_back(static_cast<float>(c[row][column]));
    }
  }
  const DeviceArray device_a(a_fragment), device_b(b_fragment);
  const DeviceArray device_c(c_fragment);
  ASSERT_EQ(show(device_a.data(), device_b.data(), device_c.data()), 0);
  const std::vector<float> got = device_c.Get();
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      int want = c[row][column];
      for (int k = 0; k < 16; ++k) want += a[row][k] * b[k][column];
      EXPECT_EQ(got[static_cast<size_t>(lane * 4 + i)], static_cast<float>(want))
          << "row " << row << " column " << column;
    }
  }
}

TEST(FragmentTest, MmaOfBf16MultipliesTheMatricesOfItsFragments) {
  ExpectProductOfFragments(DType::kBf16, cuda::ShowMmaBf16);
}
TEST(FragmentTest, MmaOfF16MultipliesTheMatricesOfItsFragments) {
  ExpectProductOfFragments(DType::kF16, cuda::ShowMmaF16);
}

TEST(FragmentTest, ShufflesMoveValuesBetweenLanes) {
  std::vector<float> values(kLanes);
  std::vector<uint64_t> wide(kLanes);
  for (size_t i = 0; i < kLanes; ++i) {
    values[i] = static_cast<float>(i) + 0.5f;
    wide[i] = i * 0x100000001ull;
  }
  const DeviceArray in(values);
  const DeviceArray wide_in(wide);
  for (const size_t step : {1, 2, 4, 8, 16}) {
    const DeviceArray out{std::vector<float>(kLanes)};
    const DeviceArray wide_out{std::vector<uint64_t>(kLanes)};
    ASSERT_EQ(cuda::ShowShuffleXor(in.data(), static_cast<int>(step), out.data()), 0);
    ASSERT_EQ(cuda::ShowShuffleUp(wide_in.data(), static_cast<int>(step), wide_out.data()), 0);
    const std::vector<float> across = out.Get();
    const std::vector<uint64_t> up = wide_out.Get();
    for (size_t i = 0; i < kLanes; ++i) {
      EXPECT_EQ(across[i], values[i ^ step]);
      EXPECT_EQ(up[i], wide[i < step ? i : i - step]);
    }
  }
}

TEST(FragmentTest, RoundingsAreToNearestEvenAsOnTheHost) {
  const float tie_bf16 = 1.0f + 0x1p-8f, tie_f16 = 1.0f + 0x1p-11f;
  std::vector<float> values = {0.0f,
                               -0.0f,
                               1.0f,
                               tie_bf16,
                               tie_bf16 + 0x1p-7f,
                               tie_f16,
                               -tie_f16,
                               3.14159f,
                               65504.0f,
                               65520.0f,
                               -1e30f,
                               1e-7f,
                               6e-8f,
                               0x1p-14f,
                               0x1.8p-25f,
                               0x1p-126f,
                               std::numeric_limits<float>::infinity(),
                               -std::numeric_limits<float>::infinity()};
  std::mt19937_64 random(5);
  std::normal_distribution<float> normal;
  while (values.size() < kLanes) values.push_back(normal(random));
  const DeviceArray in(values), unpacked(std::vector<float>(kLanes * 2));
  const DeviceArray packed(std::vector<uint32_t>(kLanes * 2));
  ASSERT_EQ(cuda::ShowRoundings(in.data(), packed.data(), unpacked.data()), 0);
  const std::vector<uint32_t> pairs = packed.Get();
  const std::vector<float> back = unpacked.Get();
  for (size_t i = 0; i < kLanes; ++i) {
    const float low = values[i], high = values[(i + 1) % kLanes];
    EXPECT_EQ(pairs[2 * i], Pair(FloatToBf16(low), FloatToBf16(high))) << low;
    EXPECT_EQ(pairs[2 * i + 1], Pair(FloatToF16(low), FloatToF16(high))) << low;
    EXPECT_EQ(back[2 * i], Bf16ToFloat(FloatToBf16(low)));
    EXPECT_EQ(back[2 * i + 1], F16ToFloat(FloatToF16(low)));
  }
}

TEST(FragmentTest, AsynchronousCopiesZeroWhatTheyDoNotRead) {
  std::vector<uint8_t> bytes(16);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i + 1);
  const DeviceArray in(bytes);
  for (const size_t count : {0, 4, 8, 16}) {
    const DeviceArray out(std::vector<uint8_t>(16, 0x55));
    ASSERT_EQ(cuda::ShowCopyAsync(in.data(), static_cast<int>(count), out.data()), 0);
    std::vector<uint8_t> want(16);
    std::copy_n(bytes.begin(), count, want.begin());
    EXPECT_EQ(out.Get(), want);
  }
}

// PTX ISA: ex2.approx errs by 2 units in the last place, lg2.approx by 2^-22 absolute near one, rsqrt by 2
// units.
TEST(FragmentTest, ApproximationsErrByLessThanTheKernelsTolerancesAllow) {
  std::vector<float> values;
  for (int i = 0; i < kLanes; ++i) values.push_back(0.03125f * static_cast<float>(i * i + 1));
  const DeviceArray in(values), out(std::vector<float>(kLanes * 3));
  ASSERT_EQ(cuda::ShowApproximations(in.data(), out.data()), 0);
  const std::vector<float> got = out.Get();
  for (size_t i = 0; i < kLanes; ++i) {
    const double x = values[i];
    EXPECT_NEAR(got[3 * i], std::exp2(x), 0x1p-21 * std::exp2(x));
    EXPECT_NEAR(got[3 * i + 1], std::log2(x), 0x1p-21 * std::max(1.0, std::fabs(std::log2(x))));
    EXPECT_NEAR(got[3 * i + 2], 1.0 / std::sqrt(x), 0x1p-21 / std::sqrt(x));
  }
}

}  // namespace
}  // namespace tramontane

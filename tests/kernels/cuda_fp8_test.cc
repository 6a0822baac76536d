// Rows of x that are rounded to fp8 on the device have the bytes of their definition: on the emulator in
// every build, on a GPU in bench/gpu_check.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cuda/pointwise.h"
#include "tests/kernels/cuda_linear_case.h"
#include "tests/support/cuda_device.h"

namespace tramontane {
namespace {

struct Fp8Rows {
  std::vector<uint8_t> codes;
  std::vector<float> scales;
};

// By its definition (kernels/cuda/pointwise.h).
Fp8Rows Quantised(const std::vector<uint16_t>& x, int64_t width) {
  Fp8Rows out;
  for (size_t row = 0; row < x.size(); row += static_cast<size_t>(width)) {
    float largest = 0.0f;
    for (size_t k = row; k < row + static_cast<size_t>(width); ++k) {
      const float magnitude = std::fabs(Bf16ToFloat(x[k]));
      if (!(magnitude <= largest)) largest = magnitude;  // a NaN stays
      if (std::isnan(largest)) break;
    }
    if (largest < cuda::kLeastQuantised) largest = 0.0f;
    out.scales.push_back(largest / 448.0f);
    const float inverse = largest == 0.0f ? 0.0f : 448.0f / largest;
    for (size_t k = row; k < row + static_cast<size_t>(width); ++k)
      out.codes.push_back(FloatToFp8E4M3(Bf16ToFloat(x[k]) * inverse));
  }
  return out;
}

std::vector<float> NormWeights(int64_t width) {
  std::vector<float> weights;
  for (int64_t k = 0; k < width; ++k) weights.push_back(1.0f + 0.25f * static_cast<float>(k % 3));
  return weights;
}

class CudaFp8Rows : public testing::TestWithParam<ThreadOrder> {
 protected:
  void SetUp() override { UseThreadOrder(GetParam()); }

  // Of rows of x, gathered, after a norm or as they are.
  static Fp8Rows QuantisedOnTheDevice(const std::vector<uint16_t>& x, const std::vector<int32_t>& rows,
                                      int32_t width, bool norm) {
    const auto count = static_cast<int32_t>(rows.size());
    const DeviceArray device_x(x);
    const DeviceArray device_rows(rows);
    const DeviceArray weights(NormWeights(width));
    const DeviceArray codes(std::vector<uint8_t>(rows.size() * static_cast<size_t>(width), 0x55));
    const DeviceArray scales(std::vector<float>(rows.size(), -1.0f));
    EXPECT_EQ(cuda::LaunchQuantiseRows({.x = device_x.data(),
                                        .x_rows = device_rows.data(),
                                        .norm_weight = norm ? weights.data() : nullptr,
                                        .y = codes.data(),
                                        .scales = scales.data(),
                                        .x_stride = width,
                                        .rows = count,
                                        .width = width,
                                        .epsilon = 1e-5f},
                                       nullptr),
              0);
    return {codes.Get(), scales.Get()};
  }
  static void ExpectSameBytes(const Fp8Rows& got, const Fp8Rows& want) {
    ASSERT_EQ(got.codes.size(), want.codes.size());
    EXPECT_EQ(std::memcmp(got.codes.data(), want.codes.data(), want.codes.size()), 0);
    ASSERT_EQ(got.scales.size(), want.scales.size());
    EXPECT_EQ(std::memcmp(got.scales.data(), want.scales.data(), want.scales.size() * sizeof(float)), 0);
  }
};

INSTANTIATE_TEST_SUITE_P(Orders, CudaFp8Rows, testing::ValuesIn(ThreadOrders()),
                         [](const auto& info) { return "Order" + std::to_string(info.index); });

std::vector<uint16_t> Rows(const std::vector<uint16_t>& x, const std::vector<int32_t>& rows, int64_t width) {
  std::vector<uint16_t> out;
  for (const int32_t row : rows)
    out.insert(out.end(), x.begin() + row * width, x.begin() + (row + 1) * width);
  return out;
}

// Rows of one turn of the block's threads and of more, of a part of it, in other orders than they lie.
TEST_P(CudaFp8Rows, HaveTheBytesOfTheirDefinition) {
  for (const int32_t width : {8, 264, 4096, 4864}) {
    const std::vector<uint16_t> x = RandomBf16(5 * int64_t{width}, static_cast<uint64_t>(width), 3.0f);
    const std::vector<int32_t> rows = {4, 0, 4, 2};
    ExpectSameBytes(QuantisedOnTheDevice(x, rows, width, /*norm=*/false),
                    Quantised(Rows(x, rows, width), width));
  }
}

// The norm's kernel and then the definition: what the fused kernel makes is rounded to bf16 between them.
TEST_P(CudaFp8Rows, BehindANormHaveTheBytesOfTheNormsRows) {
  for (const int32_t width : {264, 4864}) {
    const std::vector<uint16_t> x = RandomBf16(5 * int64_t{width}, 1, 3.0f);
    const std::vector<int32_t> rows = {4, 0, 4};
    const DeviceArray device_x(x),
        normalised(std::vector<uint16_t>(rows.size() * static_cast<size_t>(width)));
    const DeviceArray device_rows(rows);
    const DeviceArray weights(NormWeights(width));
    ASSERT_EQ(cuda::LaunchRmsNorm({device_x.data(), device_rows.data(), weights.data(), normalised.data(),
                                   width, 3, width, 1e-5f},
                                  nullptr),
              0);
    ExpectSameBytes(QuantisedOnTheDevice(x, rows, width, /*norm=*/true), Quantised(normalised.Get(), width));
  }
}

// A row of zeros and one too small are zeros; the largest number stays; what is no number is none afterwards.
TEST_P(CudaFp8Rows, AtTheirEnds) {
  constexpr int32_t kWidth = 16;
  const float kNan = std::numeric_limits<float>::quiet_NaN(),
              kInfinity = std::numeric_limits<float>::infinity();
  std::vector<uint16_t> x;
  for (const float largest : {0.0f, 9e-31f, -2e-30f, 448.0f, -3.3e38f, kNan, kInfinity}) {
    for (int k = 0; k < kWidth; ++k)
      x.push_back(FloatToBf16(k == 9 ? largest : std::clamp(0.25f * largest, -1e30f, 1e30f) * (k % 3 == 0)));
  }
  const std::vector<int32_t> rows = {0, 1, 2, 3, 4, 5, 6};
  const Fp8Rows got = QuantisedOnTheDevice(x, rows, kWidth, /*norm=*/false);
  const auto code = [&](size_t row, size_t k) { return got.codes[row * kWidth + k]; };
  for (const size_t row : {0, 1}) {
    EXPECT_EQ(got.scales[row], 0.0f);
    for (size_t k = 0; k < kWidth; ++k) EXPECT_EQ(code(row, k) & 0x7f, 0) << row;
  }
  EXPECT_EQ(code(2, 9), 0xfe) << "-448";
  EXPECT_EQ(got.scales[3], 1.0f);
  EXPECT_EQ(code(3, 9), 0x7e);
  EXPECT_EQ(Fp8E4M3ToFloat(code(3, 0)), 112.0f);
  EXPECT_EQ(code(4, 9), 0xfe);
  EXPECT_TRUE(std::isnan(got.scales[5]));
  EXPECT_EQ(code(5, 9), 0x7f);
  EXPECT_TRUE(std::isinf(got.scales[6]));
  EXPECT_EQ(code(6, 9), 0x7f) << "times a scale without end";
}

}  // namespace
}  // namespace tramontane

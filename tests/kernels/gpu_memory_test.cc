// The kernels of bench/gpu that fill memory with random numbers, and that read it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "bench/gpu/fill_normal.h"
#include "bench/gpu/read_memory.h"
#include "kernels/core/dtype.h"
#include "tests/support/cuda_device.h"

namespace tramontane::gpu {
namespace {

constexpr uint16_t kUntouched = 0x7fc1;  // a NaN

std::vector<uint16_t> Filled(int64_t count, float scale, uint64_t seed, int64_t room = 0) {
  const DeviceArray<uint16_t> memory(std::vector<uint16_t>(static_cast<size_t>(count + room), kUntouched));
  EXPECT_EQ(LaunchFillNormal({.out = memory.data(), .count = count, .scale = scale, .seed = seed}, nullptr),
            0);
  return memory.Get();
}

std::vector<double> Numbers(const std::vector<uint16_t>& bits) {
  std::vector<double> numbers;
  for (const uint16_t b : bits) numbers.push_back(Bf16ToFloat(b));
  return numbers;
}

class FillNormalTest : public testing::Test {
 protected:
  void SetUp() override { UseThreadOrder(ThreadOrder::kForward); }
};

// Of n draws a mean is off by scale / sqrt(n), the mean square by scale^2 * sqrt(2 / n), a product of
// neighbours by scale^2 / sqrt(n), a share p by sqrt(p / n); five times each. bf16 rounds squares by 2^-18 or
// less of their mean.
TEST_F(FillNormalTest, NumbersAreOfANormalDistribution) {
  constexpr int64_t kCount = 1 << 17;
  constexpr float kScale = 0.5f;
  const std::vector<double> numbers = Numbers(Filled(kCount, kScale, 7));
  double sum = 0, squares = 0, neighbours = 0, apart = 0;
  int64_t beyond[3] = {};  // 1, 2 and 3 times the scale
  for (size_t i = 0; i < numbers.size(); ++i) {
    sum += numbers[i] / kScale;
    squares += numbers[i] * numbers[i] / (kScale * kScale);
    neighbours += numbers[i] * numbers[(i + 1) % numbers.size()] / (kScale * kScale);
    apart += numbers[i] * numbers[(i + 8) % numbers.size()] / (kScale * kScale);  // another thread's
    for (int s = 0; s < 3; ++s) beyond[s] += std::abs(numbers[i]) > (s + 1) * kScale;
  }
  const double n = kCount;
  EXPECT_NEAR(sum / n, 0.0, 5 / std::sqrt(n));
  EXPECT_NEAR(squares / n, 1.0, 5 * std::sqrt(2 / n));
  EXPECT_NEAR(neighbours / n, 0.0, 5 / std::sqrt(n));
  EXPECT_NEAR(apart / n, 0.0, 5 / std::sqrt(n));
  // A bf16 step at the border belongs to either side: its share is at most the density times 2^-8 of it.
  constexpr double kShares[] = {0.317311, 0.0455003, 0.0026998};
  for (int s = 0; s < 3; ++s) {
    EXPECT_NEAR(static_cast<double>(beyond[s]) / n, kShares[s],
                5 * std::sqrt(kShares[s] / n) + kShares[s] * 0.02)
        << s + 1;
  }
  EXPECT_LT(*std::max_element(numbers.begin(), numbers.end()), 5.8 * kScale);
}

TEST_F(FillNormalTest, ANumberFollowsFromItsPlaceAndTheSeed) {
  const std::vector<uint16_t> numbers = Filled(5000, 1.0f, 7);
  EXPECT_EQ(Filled(5000, 1.0f, 7), numbers);
  UseThreadOrder(ThreadOrder::kRandom);
  EXPECT_EQ(Filled(5000, 1.0f, 7), numbers);
  const std::vector<uint16_t> fewer = Filled(1003, 1.0f, 7);
  EXPECT_TRUE(std::equal(fewer.begin(), fewer.end(), numbers.begin()));
  const std::vector<uint16_t> other = Filled(5000, 1.0f, 8);
  int64_t same = 0;
  for (size_t i = 0; i < numbers.size(); ++i) same += numbers[i] == other[i];
  EXPECT_LT(same, 100) << "of 5000; by chance some 10";
}

TEST_F(FillNormalTest, NothingBehindTheLastNumberIsTouched) {
  for (const int64_t count : {0, 1, 7, 8, 9, 2047, 2049}) {
    const std::vector<uint16_t> numbers = Filled(count, 1.0f, 7, 8);
    EXPECT_EQ(std::count(numbers.begin(), numbers.end(), kUntouched), 8) << count;
    EXPECT_EQ(std::count(numbers.end() - 8, numbers.end(), kUntouched), 8) << count;
  }
}

// A word that is not read, or twice, is missing in the exclusive or of all.
TEST(ReadMemoryTest, EachWordIsReadOnce) {
  std::mt19937 random(3);
  for (const int64_t bytes : {16, 4080, 8 * 512 * 16, 8 * 512 * 16 + 16, 300000}) {
    for (const ThreadOrder order : ThreadOrders()) {
      UseThreadOrder(order);
      std::vector<uint32_t> words(static_cast<size_t>(bytes / 4));
      uint32_t want = 0, got = 0;
      for (uint32_t& word : words) want ^= word = random();
      const DeviceArray memory(words), out(std::vector<uint32_t>(2 * kReadThreads, 1u << 31));
      ASSERT_EQ(
          LaunchReadMemory({.from = memory.data(), .bytes = bytes, .blocks = 2, .out = out.data()}, nullptr),
          0);
      for (const uint32_t of_thread : out.Get()) got ^= of_thread;
      EXPECT_EQ(got, want) << bytes;
    }
  }
}

}  // namespace
}  // namespace tramontane::gpu

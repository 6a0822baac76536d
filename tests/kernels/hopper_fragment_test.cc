// What the instructions of sm_90a do: fragments and operands of wgmma, boxes of the TMA unit, phases of an
// mbarrier, by the PTX manual (ISA 9.0). In every build this holds the emulator to it; on a GPU of compute
// capability 9.0, in bench/gpu_check, it says whether the manual was read right.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "kernels/core/dtype.h"
#include "tests/kernels/hopper_fragment_kernels.h"
#include "tests/support/cuda_device.h"

namespace tramontane {
namespace {

class HopperFragmentTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!DeviceIsHopper())
      GTEST_SKIP() << "no device of compute capability 9.0: wgmma and TMA were not compared with the manual";
    UseThreadOrder(ThreadOrder::kForward);
  }
};

// Small integers: every product and sum is exact, so each element must be.
struct Matrix {
  int rows, columns;
  std::vector<int> values;

  Matrix(int row_count, int column_count, uint64_t seed)
      : rows(row_count), columns(column_count), values(static_cast<size_t>(row_count * column_count)) {
    std::mt19937_64 random(seed);
    for (int& value : values) value = static_cast<int>(random() % 17) - 8;
  }
  int At(int row, int column) const { return values[static_cast<size_t>(row * columns + column)]; }
  std::vector<uint16_t> Bits() const {
    std::vector<uint16_t> bits;
    for (const int value : values) bits.push_back(FloatToBf16(static_cast<float>(value)));
    return bits;
  }
};

constexpr int kWarpgroup = 128;

// `transposed`: b is [k, n], else [n, k].
void ExpectProduct(int n, bool transposed, int (*show)(int, const uint16_t*, const uint16_t*, float*)) {
  const Matrix a(cuda::kShownRows, cuda::kShownK, 3);
  const Matrix b(transposed ? cuda::kShownK : n, transposed ? n : cuda::kShownK, 4);
  const Matrix c(kWarpgroup, n / 2, 5);
  std::vector<float> sums(c.values.begin(), c.values.end());
  const DeviceArray<uint16_t> device_a(a.Bits()), device_b(b.Bits());
  const DeviceArray<float> d(sums);
  ASSERT_EQ(show(n, device_a.data(), device_b.data(), d.data()), 0);
  const std::vector<float> got = d.Get();
  for (int thread = 0; thread < kWarpgroup; ++thread) {
    for (int i = 0; i < n / 2; ++i) {
      const int row = thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8;
      const int column = i / 4 * 8 + thread % 4 * 2 + i % 2;
      int want = c.At(thread, i);
      for (int k = 0; k < cuda::kShownK; ++k)
        want += a.At(row, k) * (transposed ? b.At(k, column) : b.At(column, k));
      ASSERT_EQ(got[static_cast<size_t>(thread * n / 2 + i)], static_cast<float>(want))
          << "n " << n << " row " << row << " column " << column;
    }
  }
}

TEST_F(HopperFragmentTest, WgmmaMultipliesOperandsInSharedMemoryWhoseRowsAreAlongK) {
  for (const int n : {64, 128}) ExpectProduct(n, false, cuda::ShowWgmmaShared);
}
TEST_F(HopperFragmentTest, WgmmaMultipliesRegistersByAnOperandWhoseRowsAreAlongN) {
  for (const int n : {64, 128}) ExpectProduct(n, true, cuda::ShowWgmmaRegisters);
}

// A tensor [page 3][half 2][head 2][token 16][128] of which a box takes 64 of the last and all tokens: what
// the attention kernels ask for. Coordinates outside of it give zeros, pages as well as parts of a box.
TEST_F(HopperFragmentTest, ABoxIsSwizzledByRowsAndZeroOutsideOfItsTensor) {
  constexpr int kDim = 128, kTokens = 16, kHeads = 2, kHalves = 2, kPages = 3;
  std::vector<uint16_t> numbers(kDim * kTokens * kHeads * kHalves * kPages);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<uint16_t>(i * 40503u);
  const DeviceArray<uint16_t> tensor(numbers);
  struct Case {
    int32_t dim, token, head, half, page;
  };
  for (const Case& at :
       {Case{0, 0, 0, 0, 0}, Case{64, 0, 1, 0, 2}, Case{64, 0, 1, 1, 1}, Case{0, 0, 0, 0, -1},
        Case{64, 0, 0, 0, kPages}, Case{0, 5, 0, 1, 0}, Case{0, -3, 1, 0, 1}}) {
    const DeviceArray<uint16_t> out{std::vector<uint16_t>(kTokens * 64, 0x5555)};
    cuda::ShownBox box{};
    ASSERT_EQ(cuda::MakeShownMap({.base = tensor.data(),
                                  .sizes = {kDim, kTokens, kHeads, kHalves, kPages},
                                  .stride_bytes = {kDim * 2, kTokens * kDim * 2, kHeads * kTokens * kDim * 2,
                                                   kHalves * kHeads * kTokens * kDim * 2},
                                  .box = {64, kTokens, 1, 1, 1}},
                                 &box.map),
              0);
    const int32_t coordinates[] = {at.dim, at.token, at.head, at.half, at.page};
    std::copy_n(coordinates, cuda::kTensorMapDimensions, box.coordinates);
    box.rows = kTokens;
    box.out = out.data();
    ASSERT_EQ(cuda::ShowBox(box), 0);
    const std::vector<uint16_t> got = out.Get();
    for (int row = 0; row < kTokens; ++row) {
      const int token = at.token + row;
      const bool inside = token >= 0 && token < kTokens && at.page >= 0 && at.page < kPages;
      for (int i = 0; i < 64; ++i) {
        const int vector = ((at.page * kHalves + at.half) * kHeads + at.head) * kTokens + token;
        const uint16_t want = inside ? numbers[static_cast<size_t>(vector * kDim + at.dim + i)] : 0;
        const int piece = i / 8 ^ row % 8;
        ASSERT_EQ(got[static_cast<size_t>(row * 64 + piece * 8 + i % 8)], want)
            << "page " << at.page << " row " << row << " element " << i;
      }
    }
  }
}

// As a pool in NHD order has it: the stride of heads is less than that of tokens.
TEST_F(HopperFragmentTest, StridesOfABoxNeedNotAscend) {
  constexpr int kDim = 64, kTokens = 8, kHeads = 3;
  std::vector<uint16_t> numbers(kDim * kTokens * kHeads);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<uint16_t>(i);
  const DeviceArray<uint16_t> tensor(numbers);
  const DeviceArray<uint16_t> out{std::vector<uint16_t>(kTokens * 64)};
  cuda::ShownBox box{};
  ASSERT_EQ(cuda::MakeShownMap({.base = tensor.data(),
                                .sizes = {kDim, kTokens, kHeads, 1, 1},
                                .stride_bytes = {kHeads * kDim * 2, kDim * 2, kTokens * kHeads * kDim * 2,
                                                 kTokens * kHeads * kDim * 2},
                                .box = {64, kTokens, 1, 1, 1}},
                               &box.map),
            0);
  box.coordinates[2] = 1;
  box.rows = kTokens;
  box.out = out.data();
  ASSERT_EQ(cuda::ShowBox(box), 0);
  const std::vector<uint16_t> got = out.Get();
  for (int token = 0; token < kTokens; ++token) {
    for (int i = 0; i < 64; ++i) {
      ASSERT_EQ(got[static_cast<size_t>(token * 64 + (i / 8 ^ token) * 8 + i % 8)],
                static_cast<uint16_t>((token * kHeads + 1) * kDim + i));
    }
  }
}

TEST_F(HopperFragmentTest, AMapThatTheUnitCannotReadIsRefused) {
  const DeviceArray<uint16_t> tensor{std::vector<uint16_t>(2 * 2 * 8 * 64)};
  const cuda::TensorMapShape sound = {.base = tensor.data(),
                                      .sizes = {64, 8, 2, 2, int64_t{1} << 28},  // 1 TiB, as a pool's
                                      .stride_bytes = {128, 8 * 128, 2 * 8 * 128, 4 * 8 * 128},
                                      .box = {64, 8, 1, 1, 1}};
  cuda::TensorMap map;
  EXPECT_EQ(cuda::MakeShownMap(sound, &map), 0);
  cuda::TensorMapShape shape = sound;
  shape.base = tensor.data() + 4;
  EXPECT_NE(cuda::MakeShownMap(shape, &map), 0) << "a base at 8 bytes";
  shape = sound;
  shape.sizes[4] = (int64_t{1} << 32) + 1;
  EXPECT_NE(cuda::MakeShownMap(shape, &map), 0) << "more than 2^32 pages";
  shape = sound;
  shape.sizes[2] = 0;
  EXPECT_NE(cuda::MakeShownMap(shape, &map), 0) << "no heads";
  shape = sound;
  shape.stride_bytes[1] += 8;
  EXPECT_NE(cuda::MakeShownMap(shape, &map), 0) << "a stride of 8 bytes more";
  shape = sound;
  shape.stride_bytes[3] = int64_t{1} << 40;
  EXPECT_NE(cuda::MakeShownMap(shape, &map), 0) << "a stride of 2^40";
  shape = sound;
  shape.box[1] = 257;
  EXPECT_NE(cuda::MakeShownMap(shape, &map), 0) << "a box of 257 tokens";
}

TEST_F(HopperFragmentTest, PhasesOfTwoBarriersHandAPlaceToAndFro) {
  constexpr int kRounds = 7;
  const DeviceArray<int32_t> out{std::vector<int32_t>(kRounds, -1)};
  ASSERT_EQ(cuda::ShowTurns(kRounds, out.data()), 0);
  const std::vector<int32_t> got = out.Get();
  for (int round = 0; round < kRounds; ++round) EXPECT_EQ(got[static_cast<size_t>(round)], round * 3);
}

}  // namespace
}  // namespace tramontane

// What bench/gpu measures attention by, on the emulator: the kernels that the backend goes by, and the same
// call by mma.sync.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/gpu/attention_problem.h"
#include "kernels/core/dtype.h"
#include "kernels/cuda/emulator/emulator.h"
#include "tests/support/cuda_device.h"

namespace tramontane::gpu {
namespace {

using cuda::AttentionKernels;

class EmulatedDevice final : public ProblemDevice {
 public:
  explicit EmulatedDevice(bool hopper) {
    properties_.name = "emulated";
    properties_.multiprocessors = 16;
    properties_.shared_bytes = 228 * 1024;
    properties_.shared_bytes_reserved = 1024;
    properties_.hopper = hopper;
  }

  const cuda::DeviceProperties& properties() const override { return properties_; }
  void* stream() const override { return nullptr; }
  int CopiesBeyondCache(int64_t) const override { return 2; }
  // What no kernel wrote is NaN in bf16, and no count.
  void* Allocate(int64_t bytes) override {
    memory_.push_back(
        std::make_unique<DeviceArray<uint8_t>>(std::vector<uint8_t>(static_cast<size_t>(bytes), 0xff)));
    return memory_.back()->data();
  }

 private:
  void CopyToDevice(void* device, const void* host, int64_t bytes) override {
    tramontane::CopyToDevice(device, host, static_cast<size_t>(bytes));
  }

  cuda::DeviceProperties properties_;
  std::vector<std::unique_ptr<DeviceArray<uint8_t>>> memory_;
};

struct Outcome {
  std::vector<uint16_t> out;  // bits of bf16
  int64_t boxes = 0;          // that the TMA unit copied
};

Outcome OutcomeOf(const AttentionProblem& problem, int copy) {
  const int64_t before = BoxesCopied().value();
  EXPECT_EQ(problem.Run(copy, nullptr), 0);
  Outcome outcome = {std::vector<uint16_t>(static_cast<size_t>(problem.OutElements())),
                     BoxesCopied().value() - before};
  CopyFromDevice(outcome.out.data(), problem.out(), outcome.out.size() * sizeof(uint16_t));
  return outcome;
}

// Values are of a normal distribution, none beyond 6. Both families are off the definition by 4.5 * 2^-9
// times the largest of them at most (cuda_attention_test), and so by twice that from each other.
constexpr float kTolerance = 2 * 4.5f * 0x1p-9f * 6;

struct Case {
  const char* name;
  AttentionShape shape;
  AttentionKernels on_hopper;
  const char* hopper_kernel;
  const char* mma_sync_kernel;
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

constexpr AttentionKernels kDecode = AttentionKernels::kHopperDecode,
                           kPrefill = AttentionKernels::kHopperPrefill;
// The first is in parts; so is the second, of whose keys a window hides some.
constexpr Case kCases[] = {
    {"Decode", {1, 1100, 1, 0}, kDecode, "HopperDecodeKernel, 16 rows", "AttentionKernel, 16 rows"},
    {"DecodeInAWindow", {2, 900, 1, 600}, kDecode, "HopperDecodeKernel, 16 rows", "AttentionKernel, 16 rows"},
    {"FourTokens", {2, 70, 4, 0}, kDecode, "HopperDecodeKernel, 16 rows", "AttentionKernel, 16 rows"},
    {"FiveTokens", {2, 70, 5, 0}, kPrefill, "HopperPrefillKernel, 128 rows", "AttentionKernel, 64 rows"},
    {"Prompt", {1, 150, 150, 0}, kPrefill, "HopperPrefillKernel, 128 rows", "AttentionKernel, 64 rows"},
    {"ChunkInAWindow",
     {1, 300, 40, 100},
     kPrefill,
     "HopperPrefillKernel, 128 rows",
     "AttentionKernel, 64 rows"}};

class AttentionProblemTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override { UseThreadOrder(ThreadOrder::kForward); }
};

TEST_P(AttentionProblemTest, OnHopperItGoesByTheKernelsThereAndAgreesWithMmaSync) {
  const Case& c = GetParam();
  EmulatedDevice device(/*hopper=*/true);
  const AttentionProblem problem(device, c.shape);
  const AttentionProblem other(device, c.shape, AttentionKernels::kMmaSync);
  EXPECT_EQ(problem.kernels(), c.on_hopper);
  EXPECT_EQ(problem.KernelName(), c.hopper_kernel);
  EXPECT_EQ(other.KernelName(), c.mma_sync_kernel);
  std::vector<std::vector<uint16_t>> outs;
  for (int copy = 0; copy < problem.copies(); ++copy) {
    const Outcome hopper = OutcomeOf(problem, copy), mma_sync = OutcomeOf(other, copy);
    EXPECT_GT(hopper.boxes, 0);
    EXPECT_EQ(mma_sync.boxes, 0);
    ASSERT_EQ(hopper.out.size(), mma_sync.out.size());
    for (size_t i = 0; i < hopper.out.size(); ++i) {
      ASSERT_NEAR(Bf16ToFloat(hopper.out[i]), Bf16ToFloat(mma_sync.out[i]), kTolerance)
          << "copy " << copy << " element " << i;
    }
    outs.push_back(hopper.out);
  }
  EXPECT_NE(outs[0], outs[1]) << "a map for each pool";
  EXPECT_EQ(OutcomeOf(problem, 0).out, outs[0]) << "a replay is the same call";
}

TEST_P(AttentionProblemTest, BeforeHopperItGoesByMmaSync) {
  const Case& c = GetParam();
  EmulatedDevice device(/*hopper=*/false);
  const AttentionProblem problem(device, c.shape);
  EXPECT_EQ(problem.kernels(), AttentionKernels::kMmaSync);
  EXPECT_EQ(problem.KernelName(), c.mma_sync_kernel);
  EXPECT_EQ(OutcomeOf(problem, 0).boxes, 0);
}

TEST(AttentionProblemOfFewBits, GoesByTheKernelsThatDecodeThemInADecode) {
  UseThreadOrder(ThreadOrder::kForward);
  struct Pages {
    Format format;
    const char* name;
    double bytes_of_vector;
  };
  for (const Pages& pages :
       {Pages{Format::WithScalesApart(DType::kInt8, 5), "2 x 300, int8 pages", 128 + 4 * 2},
        Pages{Format::WithScalesApart(DType::kInt4, 5), "2 x 300, int4 pages", 64 + 4 * 2},
        Pages{Format::BareFp8(), "2 x 300, fp8_e4m3 pages", 128}}) {
    for (const bool hopper : {true, false}) {
      EmulatedDevice device(hopper);
      const AttentionShape shape = {2, 300, 1, 0, pages.format};
      const AttentionProblem problem(device, shape);
      EXPECT_EQ(NameOf(shape), pages.name);
      EXPECT_EQ(problem.kernels(), AttentionKernels::kByRow);
      EXPECT_EQ(problem.KernelName(), "AttentionByRowKernel, 16 rows");
      EXPECT_DOUBLE_EQ(problem.Bytes(), 2 * (300 * 2 * 8 * pages.bytes_of_vector + 2 * 32 * 128 * 2));
      const std::vector<uint16_t> first = OutcomeOf(problem, 0).out, second = OutcomeOf(problem, 1).out;
      if (pages.format == Format::BareFp8()) continue;  // of any codes some are NaN, and so every output
      EXPECT_NE(first, second) << "each copy has its pages and scales";
      for (const uint16_t bits : first) ASSERT_TRUE(std::isfinite(Bf16ToFloat(bits)));
    }
  }
}

// Of many rows they are decoded first, with each call those of its own copy, and the rest is that of bf16
// pages; or each tile of 16 rows decodes its keys. Weights, values and the output are rounded to bf16 by
// both, values being codes times scales up to 4.
TEST(AttentionProblemOfFewBits, DecodesThePagesOfManyRowsOnceOrInEachTile) {
  UseThreadOrder(ThreadOrder::kForward);
  for (const bool hopper : {true, false}) {
    EmulatedDevice device(hopper);
    const AttentionShape shape = {1, 300, 40, 0, Format::WithScalesApart(DType::kInt4, 5)};
    const AttentionProblem problem(device, shape);
    const AttentionProblem by_row(device, shape, AttentionKernels::kByRow);
    EXPECT_EQ(problem.KernelName(), hopper ? "DecodePagesKernel, HopperPrefillKernel, 128 rows"
                                           : "DecodePagesKernel, AttentionKernel, 64 rows");
    EXPECT_EQ(by_row.KernelName(), "AttentionByRowKernel, 16 rows");
    EXPECT_EQ(problem.Bytes(), by_row.Bytes());
    std::vector<std::vector<uint16_t>> outs;
    for (int copy = 0; copy < problem.copies(); ++copy) {
      const Outcome decoded = OutcomeOf(problem, copy), in_tiles = OutcomeOf(by_row, copy);
      EXPECT_EQ(decoded.boxes > 0, hopper);
      EXPECT_EQ(in_tiles.boxes, 0);
      for (size_t i = 0; i < decoded.out.size(); ++i) {
        ASSERT_NEAR(Bf16ToFloat(decoded.out[i]), Bf16ToFloat(in_tiles.out[i]), 2 * 4.5f * 0x1p-9f * 8 * 4)
            << "copy " << copy << " element " << i;
      }
      outs.push_back(decoded.out);
    }
    EXPECT_NE(outs[0], outs[1]) << "each copy has its pages and scales";
    EXPECT_EQ(OutcomeOf(problem, 0).out, outs[0]) << "a replay is the same call";
  }
}

// A barrier's phase tells by its parity alone: whoever waits for one phase must be done with that before the
// next but one is over, however late its warp gets its turn.
TEST(AttentionProblemOrderTest, NoWarpNeedsToKeepUpWithTheOthers) {
  struct Launch {
    AttentionShape shape;
    int warps;
  };
  // Four tiles of keys and more, of which most are whole pages: nobody has rows to clear. And blocks of
  // several items each, most of one tile.
  for (const Launch& launch : {Launch{{1, 512, 64, 0}, 12}, Launch{{1, 300, 40, 100}, 12},
                               Launch{{1, 180, 180, 0}, 12}, Launch{{1, 700, 1, 0}, 5}}) {
    EmulatedDevice device(/*hopper=*/true);
    emulator::CurrentSettings() = {};
    const AttentionProblem problem(device, launch.shape);
    const std::vector<uint16_t> want = OutcomeOf(problem, 0).out;
    for (int warp = 0; warp < launch.warps; ++warp) {
      SCOPED_TRACE(NameOf(launch.shape) + ", warp " + std::to_string(warp));
      emulator::CurrentSettings() = {.last_warp = warp};
      EXPECT_EQ(OutcomeOf(problem, 0).out, want);
    }
  }
  emulator::CurrentSettings() = {};
}

TEST(AttentionProblemDeathTest, KernelsThatTheDeviceLacksAreNoChoice) {
  EmulatedDevice device(/*hopper=*/false);
  EXPECT_DEATH(AttentionProblem(device, {1, 32, 1, 0}, AttentionKernels::kHopperDecode),
               "do not serve 1 x 32");
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionProblemTest, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tramontane::gpu

// What the emulator is for: small kernels with planted faults, each of which it must catch, beside the same
// kernels without the fault, which must pass.
#include "kernels/cuda/emulator/emulator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

#include "kernels/cuda/primitives.cuh"

namespace tramontane::cuda {
namespace {

using emulator::LaneOrder;

constexpr int kThreads = 64;
constexpr LaneOrder kOrders[] = {LaneOrder::kForward, LaneOrder::kReverse, LaneOrder::kRandom};

// Runs kernel(arguments...) on one block in the given order.
template <typename Kernel, typename... Arguments>
emulator::LaunchStats RunIn(LaneOrder order, Kernel kernel, Arguments... arguments) {
  emulator::CurrentSettings() = {.order = order, .seed = 5};
  emulator::TotalStats() = {};
  EXPECT_EQ(TM_LAUNCH(kernel, Dim3(), Dim3{kThreads}, kThreads * sizeof(float), nullptr, arguments...), 0);
  return emulator::TotalStats();
}

// Every thread puts its number into shared memory and reads that of its mirror image.
template <bool kBarrier>
TM_KERNEL void Mirror(float* out) {
  auto* shared = reinterpret_cast<float*>(SharedBytes());
  shared[ThreadX()] = static_cast<float>(ThreadX());
  if (kBarrier) SyncThreads();
  StoreGlobal(out + ThreadX(), shared[kThreads - 1 - ThreadX()]);
}

int CountWrong(const std::vector<float>& out) {
  int wrong = 0;
  for (int i = 0; i < kThreads; ++i) {
    wrong += out[static_cast<size_t>(i)] == static_cast<float>(kThreads - 1 - i) ? 0 : 1;
  }
  return wrong;
}

TEST(EmulatorTest, ExchangeThroughSharedMemoryWorksWithItsBarrier) {
  for (const LaneOrder order : kOrders) {
    std::vector<float> out(kThreads);
    const emulator::LaunchStats stats = RunIn(order, Mirror<true>, out.data());
    EXPECT_EQ(CountWrong(out), 0);
    EXPECT_EQ(stats.barriers, 1);
    EXPECT_EQ(stats.global_written_bytes, kThreads * 4);
  }
}

TEST(EmulatorTest, MissingBarrierShowsInEveryOrder) {
  for (const LaneOrder order : kOrders) {
    std::vector<float> out(kThreads);
    RunIn(order, Mirror<false>, out.data());
    EXPECT_GT(CountWrong(out), 0);
  }
}

// Copies 16 bytes a thread into shared memory in two groups and reads the first, waiting for all but kLeft
// groups.
template <int kLeft>
TM_KERNEL void ReadFirstGroup(const float* in, float* out) {
  auto* shared = reinterpret_cast<float*>(SharedBytes());
  if (ThreadX() < 4) CopyAsync16(shared + ThreadX() * 4, in + ThreadX() * 4, 16);
  CopyCommit();
  if (ThreadX() < 4) CopyAsync16(shared + 16 + ThreadX() * 4, in + 16 + ThreadX() * 4, 16);
  CopyCommit();
  CopyWait<kLeft>();
  SyncThreads();
  if (ThreadX() < 16) StoreGlobal(out + ThreadX(), shared[ThreadX()]);
  SyncThreads();
  CopyWait<0>();
}

TEST(EmulatorTest, WaitCountOneTooHighShowsInEveryOrderUnlessCopiesAreEager) {
  std::vector<float> in(32);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(i);
  for (const LaneOrder order : kOrders) {
    std::vector<float> right(16), wrong(16);
    RunIn(order, ReadFirstGroup<1>, static_cast<const float*>(in.data()), right.data());
    RunIn(order, ReadFirstGroup<2>, static_cast<const float*>(in.data()), wrong.data());
    for (size_t i = 0; i < 16; ++i) {
      EXPECT_EQ(right[i], in[i]);
      EXPECT_TRUE(std::isnan(wrong[i])) << wrong[i];
    }
  }
}

TM_KERNEL void HalfTheWarpShuffles(float* out) {
  if (LaneId() < 16) StoreGlobal(out + ThreadX(), ShuffleXor(1.0f, 1));
}

TEST(EmulatorDeathTest, LanesThatNeverArriveAreADeadlock) {
  std::vector<float> out(kThreads);
  EXPECT_DEATH(RunIn(LaneOrder::kForward, HalfTheWarpShuffles, out.data()),
               "deadlock.*(\n.*)*warp collective");
}

TM_KERNEL void LanesShuffleAtDifferentLines(float* out) {
  float value = 1.0f;
  if (LaneId() < 16) {
    value = ShuffleXor(value, 1);
  } else {
    value = ShuffleXor(value, 2);
  }
  StoreGlobal(out + ThreadX(), value);
}

TEST(EmulatorDeathTest, LanesInDifferentCollectivesAreCaught) {
  std::vector<float> out(kThreads);
  EXPECT_DEATH(RunIn(LaneOrder::kForward, LanesShuffleAtDifferentLines, out.data()),
               "lanes of a warp meet in different collectives.*emulator_test.cc");
}

// clang-format off
TM_KERNEL void LanesShuffleInOneLine(float* out) {
  StoreGlobal(out + ThreadX(), LaneId() < 16 ? ShuffleXor(1.0f, 1) : ShuffleXor(2.0f, 1));
}
// clang-format on

template <int kMask>
TM_DEVICE float ShuffledBy() {
  return ShuffleXor(1.0f, kMask);
}
template <bool kTogether>
TM_KERNEL void LanesShuffleInATemplate(float* out) {
  StoreGlobal(out + ThreadX(), kTogether || LaneId() < 16 ? ShuffledBy<1>() : ShuffledBy<2>());
}

TEST(EmulatorDeathTest, LanesInDifferentCollectivesOfOneLineAreCaught) {
  std::vector<float> out(kThreads);
  for (const LaneOrder order : kOrders) {
    EXPECT_DEATH(RunIn(order, LanesShuffleInOneLine, out.data()),
                 "lanes of a warp meet in different collectives.*emulator_test.cc");
    EXPECT_DEATH(RunIn(order, LanesShuffleInATemplate<false>, out.data()),
                 "lanes of a warp meet in different collectives.*emulator_test.cc");
    RunIn(order, LanesShuffleInATemplate<true>, out.data());
  }
}

template <int kBarrier>
TM_DEVICE void WaitInATemplate() {
  SyncThreads();
}
TM_KERNEL void ThreadsWaitInDifferentTemplates(float* out) {
  ThreadX() < 32 ? WaitInATemplate<0>() : WaitInATemplate<1>();
  StoreGlobal(out + ThreadX(), 1.0f);
}

TEST(EmulatorDeathTest, ThreadsAtDifferentBarriersOfOneLineAreCaught) {
  std::vector<float> out(kThreads);
  EXPECT_DEATH(RunIn(LaneOrder::kForward, ThreadsWaitInDifferentTemplates, out.data()),
               "threads of a block meet at different barriers");
}

TM_KERNEL void OneThreadSkipsTheBarrier(float* out) {
  if (ThreadX() != 7) SyncThreads();
  StoreGlobal(out + ThreadX(), ShuffleXor(1.0f, 1));
}

TEST(EmulatorDeathTest, ABarrierThatOneThreadSkipsIsADeadlock) {
  std::vector<float> out(kThreads);
  EXPECT_DEATH(RunIn(LaneOrder::kForward, OneThreadSkipsTheBarrier, out.data()), "deadlock.*(\n.*)*barrier");
}

TM_KERNEL void MaskLeavesTheCallerOut(float* out) {
  float value = 1.0f;
  emulator::WarpCollective(0xfffffffeu, emulator::Site::current(), &value, sizeof(value),
                           [](void* const*, unsigned) {});
  StoreGlobal(out + ThreadX(), value);
}

template <bool kAwaits>
TM_KERNEL void StoresOne(float* out) {
  if (kAwaits) AwaitPriorKernels();
  StoreGlobal(out, 1.0f);
}

TM_KERNEL void StoresAConstant(const Vector16* constant, Vector16* out) {
  const Vector16 early = LoadConstant16Once(constant);
  AwaitPriorKernels();
  StoreGlobal16(out + ThreadX(), early);
}

// What no kernel writes, weights, may be read before; it is counted like everything else.
TEST(EmulatorTest, AConstantMayBeReadBeforeTheKernelsBeforeAreDone) {
  emulator::CommandQueue stream;
  emulator::TotalStats() = {};
  const Vector16 constant = {{1, 2, 3, 4}};
  std::vector<Vector16> out(32);
  EXPECT_EQ(TM_LAUNCH(StoresAConstant, Dim3(), Dim3{32}, 0, &stream, &constant, out.data()), 0);
  stream.RunUntil(stream.queued());
  EXPECT_EQ(out[31].word[3], 4u);
  EXPECT_EQ(emulator::TotalStats().global_read_bytes, 32 * 16);
}

// On a stream a kernel may begin while the one before it runs.
TEST(EmulatorDeathTest, AKernelThatDoesNotAwaitTheOnesBeforeIsCaught) {
  emulator::CommandQueue stream;
  float out = 0;
  EXPECT_EQ(TM_LAUNCH(StoresOne<true>, Dim3(), Dim3{32}, 0, &stream, &out), 0);
  EXPECT_EQ(out, 0) << "a launch only queues";
  stream.RunUntil(stream.queued());
  EXPECT_EQ(out, 1);
  EXPECT_EQ(TM_LAUNCH(StoresOne<false>, Dim3(), Dim3{32}, 0, &stream, &out), 0);
  EXPECT_DEATH(stream.RunUntil(stream.queued()), "before AwaitPriorKernels");
}

TEST(EmulatorDeathTest, AMaskWithoutItsCallerIsCaught) {
  std::vector<float> out(kThreads);
  EXPECT_DEATH(RunIn(LaneOrder::kForward, MaskLeavesTheCallerOut, out.data()), "whose mask leaves it out");
}

TM_KERNEL void LoadsRowsAtAStride(int row_bytes, float* out) {
  uint32_t fragment[4];
  LoadMatrix4(fragment, SharedBytes() + (LaneId() % 8) * row_bytes);
  StoreGlobal(out + ThreadX(), static_cast<float>(fragment[0] & 1u));
}

TEST(EmulatorTest, BankConflictsOfMatrixLoadsAreCounted) {
  std::vector<float> out(kThreads);
  emulator::CurrentSettings() = {};
  for (const auto& [row_bytes, conflicts] : {std::pair{16, 0}, {32, 1}, {64, 3}, {128, 7}, {144, 0}}) {
    emulator::TotalStats() = {};
    EXPECT_EQ(TM_LAUNCH(LoadsRowsAtAStride, Dim3(), Dim3{32}, 2048, nullptr, row_bytes, out.data()), 0);
    EXPECT_EQ(emulator::TotalStats().matrix_loads, 1);
    EXPECT_EQ(emulator::TotalStats().bank_conflicts, 4 * conflicts) << row_bytes;
  }
}

TM_KERNEL void LoadsPiecesAtAStride(int stride, float* out) {
  const Vector16 piece = LoadShared16(SharedBytes() + LaneId() * stride);
  StoreGlobal(out + ThreadX(), static_cast<float>(piece.word[0] & 1u));
}

TM_KERNEL void LoadsFloatsAtAStride(int stride, float* out) {
  const float* numbers = reinterpret_cast<const float*>(SharedBytes());
  StoreGlobal(out + ThreadX(), static_cast<float>(BitsOf(LoadShared(numbers + LaneId() * stride)) & 1u));
}
TM_KERNEL void LoadsPairsAtAStride(int stride, float* out) {
  const Vector8 pair = LoadShared8(SharedBytes() + LaneId() * stride * 8);
  StoreGlobal(out + ThreadX(), static_cast<float>(pair.word[0] & 1u));
}

// All lanes go at once, of pairs two halves; who asks for the same place shares it.
TEST(EmulatorTest, BankConflictsOfNumbersAndPairsAreCounted) {
  std::vector<float> out(kThreads);
  emulator::CurrentSettings() = {.count_shared_conflicts = true};
  const auto conflicts_at = [&](auto kernel, int stride) {
    emulator::TotalStats() = {};
    EXPECT_EQ(TM_LAUNCH(kernel, Dim3(), Dim3{32}, 8192, nullptr, stride, out.data()), 0);
    EXPECT_EQ(emulator::TotalStats().plain_accesses, 1);
    return emulator::TotalStats().plain_conflicts;
  };
  for (const auto& [stride, conflicts] :
       {std::pair{0, 0}, {1, 0}, {2, 1}, {8, 7}, {20, 3}, {32, 31}, {33, 0}}) {
    EXPECT_EQ(conflicts_at(LoadsFloatsAtAStride, stride), conflicts) << stride;
  }
  for (const auto& [stride, conflicts] : {std::pair{0, 0}, {1, 0}, {2, 1}, {16, 15}, {17, 0}}) {
    EXPECT_EQ(conflicts_at(LoadsPairsAtAStride, stride), 2 * conflicts) << stride;
  }
  emulator::CurrentSettings() = {};
}

TEST(EmulatorTest, BankConflictsOfPlainLoadsAreCountedWhereAskedFor) {
  std::vector<float> out(kThreads);
  emulator::CurrentSettings() = {.count_shared_conflicts = true};
  for (const auto& [stride, conflicts] : {std::pair{16, 0}, {32, 1}, {64, 3}, {128, 7}, {144, 0}}) {
    emulator::TotalStats() = {};
    EXPECT_EQ(TM_LAUNCH(LoadsPiecesAtAStride, Dim3(), Dim3{32}, 32 * 144, nullptr, stride, out.data()), 0);
    EXPECT_EQ(emulator::TotalStats().plain_conflicts, 4 * conflicts) << stride;
  }
  emulator::CurrentSettings() = {};
}

TM_KERNEL void LoadsAPieceAt(const float* from, float* out) {
  StoreGlobal(out, static_cast<float>(LoadGlobal16(from).word[0]));
}

TEST(EmulatorDeathTest, APieceThatIsNotAlignedIsCaught) {
  std::vector<float> out(kThreads);
  alignas(16) const float from[8] = {};
  RunIn(LaneOrder::kForward, LoadsAPieceAt, from + 4, out.data());
  EXPECT_DEATH(RunIn(LaneOrder::kForward, LoadsAPieceAt, from + 1, out.data()),
               "an access of 16 bytes at no multiple of them");
}

TM_KERNEL void TakesItsTurn(int* turns, int* next) {
  if (ThreadX() == 0) turns[BlockX()] = (*next)++;
}

TEST(EmulatorTest, BlocksMayRunInAnotherOrder) {
  using emulator::BlockOrder;
  for (const BlockOrder order : {BlockOrder::kAscending, BlockOrder::kLaterHalfFirst, BlockOrder::kRandom}) {
    emulator::CurrentSettings() = {.seed = 3, .blocks = order};
    int turns[16] = {}, next = 0;
    EXPECT_EQ(TM_LAUNCH(TakesItsTurn, Dim3{16}, Dim3{32}, 0, nullptr, turns, &next), 0);
    EXPECT_EQ(next, 16) << "each has run once";
    EXPECT_EQ(std::is_sorted(std::begin(turns), std::end(turns)), order == BlockOrder::kAscending);
    const bool by_halves = *std::max_element(turns + 8, turns + 16) < *std::min_element(turns, turns + 8);
    EXPECT_EQ(by_halves, order == BlockOrder::kLaterHalfFirst);
    EXPECT_FALSE(by_halves && std::is_sorted(turns + 8, turns + 16)) << "within a half in no order";
  }
  emulator::CurrentSettings() = {};
}

struct LargeParameters {
  std::byte bytes[4096];
};
TM_KERNEL void TakesMuch(LargeParameters, int) {}

TEST(EmulatorDeathTest, ALaunchBeyondTheLimitsIsCaught) {
  std::vector<float> out(kThreads);
  const auto launch = [&out](Dim3 grid, int shared_bytes) {
    return TM_LAUNCH(StoresOne<true>, grid, Dim3{1}, shared_bytes, nullptr, out.data());
  };
  EXPECT_EQ(launch(Dim3{1}, 48 * 1024), 0);
  EXPECT_DEATH((void)launch(Dim3{1}, 48 * 1024 + 16), "of shared memory, the kernel is allowed 49152");
  EXPECT_DEATH((void)launch(Dim3{1, 65'536}, 0), "a grid of 1 by 65536 by 1");
  EXPECT_DEATH((void)launch(Dim3{0}, 0), "a grid of 0 by 1 by 1");
  EXPECT_DEATH((void)TM_LAUNCH(TakesMuch, Dim3{1}, Dim3{1}, 0, nullptr, LargeParameters{}, 1),
               "4100 bytes of parameters, the limit is 4096");
}

// In pairs of bf16; the lower number is the case, the upper one 1 * 1 + 1.
TEST(EmulatorTest, APairIsMultipliedAndAddedWithOneRounding) {
  const auto multiply_add = [](uint32_t a, uint32_t b, uint32_t c) {
    const uint32_t out = MultiplyAddPair(a | 0x3f800000u, b | 0x3f800000u, c | 0x3f800000u);
    EXPECT_EQ(out >> 16, 0x4000u);
    return out & 0xffffu;
  };
  EXPECT_EQ(multiply_add(0x0010, 0x7b80, 0), 0x3b00u);       // 2^-129, subnormal, times 2^120
  EXPECT_EQ(multiply_add(0x0001, 0x3f00, 0x0001), 0x0002u);  // 1.5 times the least number: to even
  EXPECT_EQ(multiply_add(0x4307, 0x3f80, 0xc308), 0xbf80u);  // 135 - 136
  EXPECT_EQ(multiply_add(0x7f7f, 0x4000, 0), 0x7f80u);
  EXPECT_EQ(multiply_add(0x7f7f, 0x4000, 0xff7f), 0x7f7fu);  // the product alone has no room
  // 1.5078125 and half a unit: what is added, far below f64's last digit, says where to.
  EXPECT_EQ(multiply_add(0x3f81, 0x3fc0, 0), 0x3fc2u);
  EXPECT_EQ(multiply_add(0x3f81, 0x3fc0, 0x0d80), 0x3fc2u);
  EXPECT_EQ(multiply_add(0x3f81, 0x3fc0, 0x8d80), 0x3fc1u);
  EXPECT_EQ(multiply_add(0x3f80, 0x3f80, 0xffff) & 0x7f80u, 0x7f80u);
  EXPECT_NE(multiply_add(0x3f80, 0x3f80, 0xffff) & 0x7fu, 0u);
}

TEST(EmulatorTest, BytesArePermutedAndTheirHighestBitSpread) {
  EXPECT_EQ(PermuteBytes(0x83020100u, 0x77665544u, 0x7340u), 0x77834400u);
  EXPECT_EQ(PermuteBytes(0x83020100u, 0x77f65544u, 0xeb98u), 0xffff0000u);
}

TEST(EmulatorTest, SharedMemoryStartsAsNaN) {
  std::vector<float> out(kThreads);
  RunIn(
      LaneOrder::kForward,
      +[](float* to) { StoreGlobal(to + ThreadX(), reinterpret_cast<float*>(SharedBytes())[ThreadX()]); },
      out.data());
  for (const float value : out) EXPECT_TRUE(std::isnan(value));
}

}  // namespace
}  // namespace tramontane::cuda

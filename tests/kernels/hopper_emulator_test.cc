// What the emulator catches of sm_90a's instructions: small kernels with planted faults, each of which it
// must catch, beside the same kernels without the fault, which must pass.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/cuda/emulator/emulator.h"
#include "kernels/cuda/hopper_primitives.cuh"

namespace tramontane::cuda {
namespace {

using emulator::LaneOrder;

constexpr LaneOrder kEveryOrder[] = {LaneOrder::kForward, LaneOrder::kReverse, LaneOrder::kRandom};
constexpr int kWarpgroup = 128;
constexpr int kRowBytes = 128;
constexpr int kTileBytes = 64 * kRowBytes;

template <typename Kernel, typename... Arguments>
void RunOnWarpgroup(LaneOrder order, Kernel kernel, Arguments... arguments) {
  emulator::CurrentSettings() = {.order = order, .seed = 5};
  EXPECT_EQ(TM_LAUNCH(kernel, Dim3(), Dim3{kWarpgroup}, 2 * kTileBytes + 64, nullptr, arguments...), 0);
}

enum class Fault {
  kNone,
  kNoProxyFence,      // between plain stores and the product that reads them
  kNoFence,           // before the first product
  kReadBeforeWait,    // of the sums
  kStoreBeforeWait,   // over an operand
  kChangedRegisters,  // that are an operand
  kNeverWaited
};

// d [64, 64] = a [64, 16] * b [16, 64], all ones, with a in registers and b in shared memory.
template <Fault kFault>
TM_KERNEL void Ones(float* out) {
  std::byte* rows = AlignedSharedBytes();
  const auto* barrier = reinterpret_cast<Mbarrier*>(rows + 2 * kTileBytes);
  if (ThreadX() == 0) InitBarrier(const_cast<Mbarrier*>(barrier), 1);  // who has one, minds proxies
  SyncThreads();
  const Vector16 ones = {{0x3F803F80u, 0x3F803F80u, 0x3F803F80u, 0x3F803F80u}};
  for (int i = ThreadX(); i < kTileBytes / 16; i += kWarpgroup) StoreShared16(rows + i * 16, ones);
  if (kFault != Fault::kNoProxyFence) FenceAsyncProxy();
  SyncThreads();
  float sums[32] = {};
  uint32_t a[4] = {0x3F803F80u, 0x3F803F80u, 0x3F803F80u, 0x3F803F80u};
  if (kFault != Fault::kNoFence) WgmmaFence();
  WgmmaRegisters<64>(sums, a, MatrixDescriptor(rows, kTileBytes, 1024));
  WgmmaCommit();
  SyncThreads();
  if (kFault == Fault::kReadBeforeWait) StoreGlobal(out + ThreadX(), sums[0]);
  if (kFault == Fault::kStoreBeforeWait && ThreadX() == 0) StoreShared16(rows, {});
  if (kFault == Fault::kChangedRegisters) a[2] = 0;
  SyncThreads();
  if (kFault == Fault::kNeverWaited) return;
  WgmmaWait<0>();
  if (kFault != Fault::kReadBeforeWait) StoreGlobal(out + ThreadX(), sums[0]);
}

TEST(HopperEmulatorTest, SumsLandWhenTheyAreWaitedForAndNotBefore) {
  for (const LaneOrder order : kEveryOrder) {
    std::vector<float> right(kWarpgroup), early(kWarpgroup);
    RunOnWarpgroup(order, Ones<Fault::kNone>, right.data());
    RunOnWarpgroup(order, Ones<Fault::kReadBeforeWait>, early.data());
    for (size_t i = 0; i < kWarpgroup; ++i) {
      EXPECT_EQ(right[i], 16.0f);
      EXPECT_TRUE(std::isnan(early[i]));
    }
  }
}

TEST(HopperEmulatorDeathTest, BrokenRulesOfProductsAreCaught) {
  std::vector<float> out(kWarpgroup);
  const auto run = [&](auto kernel) { RunOnWarpgroup(LaneOrder::kForward, kernel, out.data()); };
  EXPECT_DEATH(run(Ones<Fault::kNoProxyFence>), "stored without a proxy fence");
  EXPECT_DEATH(run(Ones<Fault::kNoFence>), "without a fence before it");
  EXPECT_DEATH(run(Ones<Fault::kStoreBeforeWait>), "overwritten before its product was waited for");
  EXPECT_DEATH(run(Ones<Fault::kChangedRegisters>), "overwritten before its product was waited for");
  EXPECT_DEATH(run(Ones<Fault::kNeverWaited>), "products that were never waited for");
}

enum class BoxFault {
  kNone,
  kReadBeforeWait,
  kNeverWaited,
  kTooFewBytes,     // expected: the phase ends never
  kNotInitialised,  // the barrier
  kStoredBefore,    // plain stores to where the box lands, and no proxy fence
};

// A box of eight rows of ones, of which each thread reads one number.
template <BoxFault kFault>
TM_KERNEL void OneBox(TensorMap map, float* out) {
  std::byte* rows = AlignedSharedBytes();
  auto* full = reinterpret_cast<Mbarrier*>(rows + kTileBytes);
  Mbarrier* const used = kFault == BoxFault::kNotInitialised ? full + 1 : full;
  if (ThreadX() == 0) {
    InitBarrier(full, 1);
    FenceBarrierInit();
    if (kFault == BoxFault::kStoredBefore) StoreShared16(rows, {});
    ArriveExpecting(used, kFault == BoxFault::kTooFewBytes ? 512 : 1024);
    LoadBox(rows, map, used, {0, 0, 0, 0, 0});
  }
  SyncThreads();
  if (kFault == BoxFault::kNeverWaited) return;
  if (kFault != BoxFault::kReadBeforeWait) WaitPhase(full, 0);
  StoreGlobal(out + ThreadX(), ToFloat(reinterpret_cast<const Bf16*>(rows)[ThreadX() * 4]));
  SyncThreads();
  WaitPhase(full, 0);
}

TEST(HopperEmulatorDeathTest, ABoxLandsWhenItsBarrierIsWaitedForAndNotBefore) {
  const std::vector<uint16_t> tensor(8 * 64, 0x3F80);
  TensorMap map;
  ASSERT_EQ(MakeTensorMap({.base = tensor.data(),
                           .sizes = {64, 8, 1, 1, 1},
                           .stride_bytes = {128, 1024, 1024, 1024},
                           .box = {64, 8, 1, 1, 1}},
                          &map),
            0);
  for (const LaneOrder order : kEveryOrder) {
    std::vector<float> right(kWarpgroup), early(kWarpgroup);
    RunOnWarpgroup(order, OneBox<BoxFault::kNone>, map, right.data());
    RunOnWarpgroup(order, OneBox<BoxFault::kReadBeforeWait>, map, early.data());
    for (size_t i = 0; i < kWarpgroup; ++i) EXPECT_EQ(right[i], 1.0f);
    EXPECT_TRUE(std::isnan(early[0]));  // whoever runs first
  }
  const auto run = [&](auto kernel) {
    std::vector<float> out(kWarpgroup);
    RunOnWarpgroup(LaneOrder::kForward, kernel, map, out.data());
  };
  EXPECT_DEATH(run(OneBox<BoxFault::kNeverWaited>), "boxes that nobody waited for");
  EXPECT_DEATH(run(OneBox<BoxFault::kTooFewBytes>), "deadlock.*(\n.*)*wait for a phase");
  EXPECT_DEATH(run(OneBox<BoxFault::kNotInitialised>), "never initialised");
  EXPECT_DEATH(run(OneBox<BoxFault::kStoredBefore>), "stored without a proxy fence");
}

// Two groups of 64 threads take turns at a place, by two named barriers: each signals the other's.
template <bool kWaits>
TM_KERNEL void TakeTurns(int32_t* out) {
  auto* place = reinterpret_cast<int32_t*>(AlignedSharedBytes());
  const int group = ThreadX() / 64;
  if (ThreadX() == 0) *place = 0;
  SyncThreads();
  if (group == 1) ArriveAtNamedBarrier(1, kWarpgroup);
  for (int round = 0; round < 3; ++round) {
    if (kWaits) SyncNamedBarrier(1 + group, kWarpgroup);
    if (ThreadX() % 64 == 0) {
      StoreGlobal(out + round * 2 + group, *place);
      *place += 1;
    }
    ArriveAtNamedBarrier(2 - group, kWarpgroup);
  }
  if (kWaits && group == 0) SyncNamedBarrier(1, kWarpgroup);
}

TEST(HopperEmulatorTest, NamedBarriersGiveTurns) {
  for (const LaneOrder order : kEveryOrder) {
    std::vector<int32_t> out(6, -1);
    RunOnWarpgroup(order, TakeTurns<true>, out.data());
    for (int32_t i = 0; i < 6; ++i) EXPECT_EQ(out[static_cast<size_t>(i)], i);
  }
  std::vector<int32_t> unordered(6, -1);
  RunOnWarpgroup(LaneOrder::kForward, TakeTurns<false>, unordered.data());
  EXPECT_NE(unordered[2], 2);
}

}  // namespace
}  // namespace tramontane::cuda

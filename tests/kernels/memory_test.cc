// Memory of the CPU backend: zero, aligned, and all of it there.
#include "kernels/cpu/memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tramontane {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

TEST(MemoryTest, BlocksAreZeroAndAlignedAndEveryByteIsTheirs) {
  for (const int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{63}, int64_t{64}, int64_t{4096}, kMiB - 65,
                              kMiB - 64, kMiB, 2 * kMiB - 1, 2 * kMiB, 5 * kMiB + 3}) {
    SCOPED_TRACE(testing::Message() << bytes << " bytes");
    std::vector<std::byte*> blocks;
    for (int i = 0; i < 3; ++i) {
      auto* block = static_cast<std::byte*>(AllocateZeroed(bytes));
      ASSERT_NE(block, nullptr);
      ASSERT_EQ(reinterpret_cast<uintptr_t>(block) % 64, 0u);
      ASSERT_EQ(std::count(block, block + bytes, std::byte{0}), bytes);
      std::fill_n(block, bytes, static_cast<std::byte>(i + 1));
      blocks.push_back(block);
    }
    for (size_t i = 0; i < blocks.size(); ++i) {
      EXPECT_EQ(std::count(blocks[i], blocks[i] + bytes, static_cast<std::byte>(i + 1)), bytes);
      FreeZeroed(blocks[i]);
    }
  }
}

TEST(MemoryTest, LargeBlocksBeginAHugePage) {
  for (const int64_t bytes : {kMiB, 2 * kMiB, 64 * kMiB + 64}) {
    void* block = AllocateZeroed(bytes);
    ASSERT_NE(block, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % (2 * kMiB), 0u) << bytes << " bytes";
    FreeZeroed(block);
  }
}

TEST(MemoryTest, MoreThanThereIsGivesNull) { EXPECT_EQ(AllocateZeroed(int64_t{1} << 56), nullptr); }

}  // namespace
}  // namespace tramontane

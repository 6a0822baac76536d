#include "server/base/heap_trim.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/support/sanitizers.h"

namespace tramontane {
namespace {

using namespace std::chrono_literals;

TEST(HeapTrim, WhatAStormHasLeftInPiecesGoesBackToTheSystem) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer keeps what is freed: there is nothing to trim";
  constexpr int64_t kMiB = 1 << 20;
  HeapTrim heap;
  const HeapTrim::Time begin = std::chrono::steady_clock::now();
  EXPECT_EQ(heap.Look(begin), 0);
  std::vector<std::unique_ptr<std::string>> storm(160 * kMiB / 10'000);
  for (auto& piece : storm) piece = std::make_unique<std::string>(10'000, 'x');
  heap.Look(begin + 1s);  // it has grown, and all of it is in use
  const int64_t most = ResidentBytes();
  for (size_t i = 0; i < storm.size(); ++i) {
    if (i % 100 != 0) storm[i] = nullptr;  // the others keep the heap where it is
  }
  EXPECT_EQ(heap.Look(begin + 5s), 0) << "it has not grown since";
  EXPECT_GT(heap.Look(begin + 11s), 100 * kMiB);
  EXPECT_LT(ResidentBytes(), most - 100 * kMiB);
  EXPECT_LT(heap.Look(begin + 21s), HeapTrim::kWorthBytes) << "once more, for it was worth it";
  EXPECT_EQ(heap.Look(begin + 40s), 0) << "then it waits twice as long";
}

}  // namespace
}  // namespace tramontane

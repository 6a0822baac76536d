// ThreadPool: every item once, results visible to the caller, whatever the workers do meanwhile.
#include "kernels/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "tests/support/test_scale.h"

namespace tramontane {
namespace {

class ThreadPoolTest : public testing::TestWithParam<int32_t> {};

TEST_P(ThreadPoolTest, RunsEveryItemOnceAndItsWritesAreVisible) {
  ThreadPool pool(GetParam());
  const int64_t jobs = ScaledCount(20000, 500);
  for (int64_t job = 0; job < jobs; ++job) {
    const int64_t count = job % 23;
    std::vector<int64_t> written(static_cast<size_t>(count),
                                 -1);  // plain memory: a race would be seen by TSan
    pool.ParallelFor(count, [&](int64_t item, int32_t thread) {
      ASSERT_GE(thread, 0);
      ASSERT_LT(thread, GetParam());
      ASSERT_EQ(written[static_cast<size_t>(item)], -1);
      written[static_cast<size_t>(item)] = job + item;
    });
    for (int64_t item = 0; item < count; ++item) ASSERT_EQ(written[static_cast<size_t>(item)], job + item);
  }
}

// No two items of one thread index run at the same time: per-thread scratch is safe.
TEST_P(ThreadPoolTest, AThreadIndexRunsOneItemAtATime) {
  ThreadPool pool(GetParam());
  std::vector<std::atomic<int>> busy(static_cast<size_t>(GetParam()));
  for (int job = 0; job < 200; ++job) {
    pool.ParallelFor(64, [&](int64_t, int32_t thread) {
      ASSERT_EQ(busy[static_cast<size_t>(thread)].fetch_add(1), 0);
      ASSERT_EQ(busy[static_cast<size_t>(thread)].fetch_sub(1), 1);
    });
  }
}

// Workers that went to sleep after their spin come back.
TEST_P(ThreadPoolTest, WakesAfterItsWorkersFellAsleep) {
  ThreadPool pool(GetParam());
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::microseconds(10 * ThreadPool::kSpinMicroseconds));
    std::atomic<int64_t> sum{0};
    pool.ParallelFor(100, [&](int64_t item, int32_t) { sum += item; });
    ASSERT_EQ(sum, 4950);
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolTest, testing::Values(1, 2, 3, 4, 7));

TEST(ThreadPoolTest, OneThreadRunsItemsInOrderOnTheCaller) {
  ThreadPool pool(1);
  const std::thread::id caller = std::this_thread::get_id();
  std::vector<int64_t> order;
  pool.ParallelFor(5, [&](int64_t item, int32_t) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    order.push_back(item);
  });
  EXPECT_EQ(order, (std::vector<int64_t>{0, 1, 2, 3, 4}));
}

TEST(ThreadPoolTest, UsableCoresIsAtLeastOne) { EXPECT_GE(UsableCores(), 1); }

}  // namespace
}  // namespace tramontane

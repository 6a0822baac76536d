#include "server/core/worker_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <vector>

namespace tramontane {
namespace {

// Work that says when it starts and then waits until it is let go.
class Blocker {
 public:
  std::function<void()> work() {
    return [this] {
      started_.set_value();
      go_.get_future().wait();
    };
  }
  void WaitUntilStarted() { started_.get_future().wait(); }
  void LetGo() { go_.set_value(); }

 private:
  std::promise<void> started_;
  std::promise<void> go_;
};

TEST(WorkerPool, OneThreadWorksInTheOrderOfSubmission) {
  WorkerPool pool({.threads = 1});
  std::vector<int> order;
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(
        pool.TrySubmit(i % 3 == 0 ? pool.options().long_bytes : 1, [&order, i] { order.push_back(i); }));
  }
  pool.WaitIdle();
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST(WorkerPool, AClientThatHoldsItsPartLetsOthersPass) {
  Blocker blocker;
  WorkerPool pool({.threads = 2, .max_running_of_client = 1});
  ASSERT_TRUE(pool.TrySubmit(1, "a", blocker.work()));
  blocker.WaitUntilStarted();
  std::atomic<bool> second_ran{false};
  ASSERT_TRUE(pool.TrySubmit(1, "a", [&] { second_ran = true; }));
  for (const char* client : {"b", "", "b"}) {
    std::promise<void> ran;
    ASSERT_TRUE(pool.TrySubmit(1, client, [&] { ran.set_value(); }));
    ran.get_future().wait();
  }
  EXPECT_FALSE(second_ran) << "one thread was free, but not for the same client";
  blocker.LetGo();
  pool.WaitIdle();
  EXPECT_TRUE(second_ran);
}

TEST(WorkerPool, RefusesWhatIsBeyondItsQueue) {
  Blocker blocker;
  WorkerPool pool({.threads = 1, .max_queued = 2});
  ASSERT_TRUE(pool.TrySubmit(1, blocker.work()));
  blocker.WaitUntilStarted();  // it runs, so it no longer waits
  EXPECT_TRUE(pool.TrySubmit(1, [] {}));
  EXPECT_TRUE(pool.TrySubmit(1, [] {}));
  bool ran = false;
  EXPECT_FALSE(pool.TrySubmit(1, [&ran] { ran = true; }));
  EXPECT_EQ(pool.pending(), 3);
  blocker.LetGo();
  pool.WaitIdle();
  EXPECT_FALSE(ran);
  EXPECT_TRUE(pool.TrySubmit(1, [] {}));
}

TEST(WorkerPool, RefusesMoreBytesThanItMayHold) {
  Blocker blocker;
  WorkerPool pool({.threads = 1, .max_queued_bytes = 100});
  ASSERT_TRUE(pool.TrySubmit(60, blocker.work()));
  blocker.WaitUntilStarted();
  EXPECT_FALSE(pool.TrySubmit(41, [] {}));  // what runs counts too
  EXPECT_TRUE(pool.TrySubmit(40, [] {}));
  EXPECT_FALSE(pool.TrySubmit(1, [] {}));
  blocker.LetGo();
  pool.WaitIdle();
  EXPECT_TRUE(pool.TrySubmit(100, [] {}));
}

TEST(WorkerPool, ShortInputsDoNotWaitBehindLongOnes) {
  Blocker first_long;
  std::atomic<bool> second_long_ran{false};
  WorkerPool pool({.threads = 2, .long_bytes = 1000});
  ASSERT_TRUE(pool.TrySubmit(1000, first_long.work()));
  first_long.WaitUntilStarted();
  ASSERT_TRUE(pool.TrySubmit(5000, [&] { second_long_ran = true; }));
  for (int i = 0; i < 10; ++i) {
    std::promise<void> ran;
    ASSERT_TRUE(pool.TrySubmit(999, [&] { ran.set_value(); }));
    ran.get_future().wait();  // would never come if a long input had taken the last thread
  }
  EXPECT_FALSE(second_long_ran);
  first_long.LetGo();
  pool.WaitIdle();
  EXPECT_TRUE(second_long_ran);
}

TEST(WorkerPool, TheEndDoesWhatIsQueued) {
  std::atomic<int> done{0};
  {
    Blocker blocker;
    WorkerPool pool({.threads = 2, .long_bytes = 10});
    ASSERT_TRUE(pool.TrySubmit(1, blocker.work()));
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(pool.TrySubmit(i, [&] { ++done; }));
    blocker.LetGo();
  }
  EXPECT_EQ(done, 20);
}

TEST(WorkerPool, ManySubmittersLoseNothing) {
  std::atomic<int> done{0};
  std::atomic<int> taken{0};
  WorkerPool pool({.threads = 3, .max_queued = 16, .long_bytes = 2});
  std::vector<std::thread> submitters;
  for (int t = 0; t < 4; ++t) {
    submitters.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) taken += pool.TrySubmit((i + t) % 4, [&] { ++done; });
    });
  }
  for (std::thread& submitter : submitters) submitter.join();
  pool.WaitIdle();
  EXPECT_EQ(done, taken);
  EXPECT_GT(taken, 0);
  EXPECT_EQ(pool.pending(), 0);
}

}  // namespace
}  // namespace tramontane

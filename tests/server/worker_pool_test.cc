#include "server/base/worker_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <functional>
#include <future>
#include <string>
#include <thread>
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

// A pool of one thread that is busy until it is let go, with a queue of pieces that write down whose they
// were.
class BusyPool {
 public:
  explicit BusyPool(WorkerPoolOptions options = {}) : pool_(WithOneThread(options)) {
    EXPECT_TRUE(pool_.TrySubmit({"busy", 0, blocker_.work(), [] {}}));
    blocker_.WaitUntilStarted();
  }

  // `name`: whose, and which: "a1".
  bool Add(const std::string& name, int64_t bytes = 1) {
    return pool_.TrySubmit({name.substr(0, 1), bytes, [this, name] { order_ += name + " "; },
                            [this, name] { given_way_ += name + " "; }});
  }
  const std::string& given_way() const { return given_way_; }
  std::string DoAll() {
    blocker_.LetGo();
    pool_.WaitIdle();
    return order_;
  }

 private:
  static WorkerPoolOptions WithOneThread(WorkerPoolOptions options) {
    options.threads = 1;
    return options;
  }

  Blocker blocker_;
  std::string order_;
  std::string given_way_;
  WorkerPool pool_;
};

TEST(WorkerPool, CallersTakeTurns) {
  BusyPool pool;
  for (const char* name : {"a1", "a2", "a3", "b1", "c1", "b2"}) ASSERT_TRUE(pool.Add(name));
  EXPECT_EQ(pool.DoAll(), "a1 b1 c1 a2 b2 a3 ");
}

TEST(WorkerPool, WhoeverComesWhileOneHasAllThreadsIsNext) {
  for (const int32_t threads : {1, 2}) {
    std::deque<Blocker> blockers(static_cast<size_t>(threads));
    WorkerPool pool({.threads = threads});
    for (Blocker& blocker : blockers) {
      ASSERT_TRUE(pool.TrySubmit({"a", 1, blocker.work(), [] {}}));
      blocker.WaitUntilStarted();
    }
    Blocker next_of_a;
    ASSERT_TRUE(pool.TrySubmit({"a", 1, next_of_a.work(), [] {}}));
    std::promise<void> other_ran;
    ASSERT_TRUE(pool.TrySubmit({"b", 1, [&] { other_ran.set_value(); }, [] {}}));
    blockers[0].LetGo();
    other_ran.get_future().wait();  // would never come behind the next one of "a"
    next_of_a.LetGo();
    for (size_t i = 1; i < blockers.size(); ++i) blockers[i].LetGo();
    pool.WaitIdle();
  }
}

TEST(WorkerPool, ACallerThatHoldsItsPartLetsOthersPass) {
  Blocker blocker;
  WorkerPool pool({.threads = 2, .max_running_of_caller = 1});
  ASSERT_TRUE(pool.TrySubmit({"a", 1, blocker.work(), [] {}}));
  blocker.WaitUntilStarted();
  std::atomic<bool> second_ran{false};
  ASSERT_TRUE(pool.TrySubmit({"a", 1, [&] { second_ran = true; }, [] {}}));
  for (const char* caller : {"b", "c", "b"}) {
    std::promise<void> ran;
    ASSERT_TRUE(pool.TrySubmit({caller, 1, [&] { ran.set_value(); }, [] {}}));
    ran.get_future().wait();
  }
  EXPECT_FALSE(second_ran) << "one thread was free, but not for the same caller";
  blocker.LetGo();
  pool.WaitIdle();
  EXPECT_TRUE(second_ran);
}

TEST(WorkerPool, OneCallerHasAllOfTheQueueWhileNobodyElseWaits) {
  BusyPool pool({.max_queued = 4});
  for (const char* name : {"a1", "a2", "a3", "a4"}) EXPECT_TRUE(pool.Add(name));
  EXPECT_FALSE(pool.Add("a5"));
  EXPECT_EQ(pool.DoAll(), "a1 a2 a3 a4 ");
  EXPECT_EQ(pool.given_way(), "");
}

TEST(WorkerPool, TheNewestOfWhoeverHasMostOfAFullQueueGivesWay) {
  BusyPool pool({.max_queued = 4});
  for (const char* name : {"a1", "a2", "a3", "a4"}) ASSERT_TRUE(pool.Add(name));
  EXPECT_TRUE(pool.Add("b1"));
  EXPECT_EQ(pool.given_way(), "a4 ");
  EXPECT_FALSE(pool.Add("a5")) << "others wait, and it has half";
  EXPECT_TRUE(pool.Add("b2"));
  EXPECT_FALSE(pool.Add("b3")) << "it has half, too";
  EXPECT_TRUE(pool.Add("c1"));
  EXPECT_TRUE(pool.Add("d1"));
  EXPECT_THAT(pool.given_way(), ::testing::AnyOf("a4 a3 b2 a2 ", "a4 a3 a2 b2 "));
  EXPECT_FALSE(pool.Add("e1")) << "nobody has more than it would";
  EXPECT_EQ(pool.DoAll(), "a1 b1 c1 d1 ");
}

TEST(WorkerPool, WhileOthersWaitOneCallerHasAtMostHalfOfTheQueue) {
  BusyPool pool({.max_queued = 8, .max_queued_bytes = 1000});
  ASSERT_TRUE(pool.Add("b1"));
  for (const char* name : {"a1", "a2", "a3", "a4"}) EXPECT_TRUE(pool.Add(name));
  EXPECT_FALSE(pool.Add("a5"));
  EXPECT_TRUE(pool.Add("b2", 499));
  EXPECT_FALSE(pool.Add("b3", 1)) << "half of the bytes";
  EXPECT_EQ(pool.given_way(), "");
  pool.DoAll();
}

TEST(WorkerPool, BytesGiveWayToo) {
  BusyPool pool({.max_queued_bytes = 100});
  ASSERT_TRUE(pool.Add("a1", 40));
  ASSERT_TRUE(pool.Add("a2", 30));
  ASSERT_TRUE(pool.Add("a3", 30));
  EXPECT_TRUE(pool.Add("b1", 50));
  EXPECT_EQ(pool.given_way(), "a3 a2 ");
  EXPECT_TRUE(pool.Add("c1", 10));
  EXPECT_FALSE(pool.Add("c2", 41)) << "more than anybody has";
  EXPECT_EQ(pool.DoAll(), "a1 b1 c1 ");
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
  std::atomic<int> given_way{0};
  WorkerPool pool({.threads = 3, .max_queued = 16, .long_bytes = 2});
  std::vector<std::thread> submitters;
  for (int t = 0; t < 4; ++t) {
    submitters.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) {
        taken += pool.TrySubmit(
            {std::string(1, static_cast<char>('a' + t)), (i + t) % 4, [&] { ++done; }, [&] { ++given_way; }});
      }
    });
  }
  for (std::thread& submitter : submitters) submitter.join();
  pool.WaitIdle();
  EXPECT_EQ(done + given_way, taken);
  EXPECT_GT(taken, 0);
  EXPECT_EQ(pool.pending(), 0);
}

}  // namespace
}  // namespace tramontane

#include "server/base/work_queue.h"
#include "server/base/queue_drain.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/base/queue_drain.h"

namespace tramontane {
namespace {

constexpr int64_t kLongBytes = 1 << 20;

class WorkQueueTest : public ::testing::Test {
 protected:
  bool Push(const std::string& client, int64_t bytes = 1) {
    return queue_.Push({.caller = client, .bytes = bytes, .run = nullptr}, nullptr);
  }
  // Whose work comes next; it stays under way.
  std::string Begin(bool may_be_long = true) {
    auto work = queue_.Begin(may_be_long);
    if (!work) return "";
    under_way_.push_back(std::move(*work));
    return under_way_.back().caller;
  }
  std::string Next(int64_t took_ns = 1000) {
    const std::string client = Begin();
    if (client.empty()) return "";
    queue_.End(under_way_.back(), took_ns);
    under_way_.pop_back();
    return client;
  }

  WorkQueue queue_{{.max_queued = 1000, .by_time = true, .keeps_room = true}};
  std::vector<WorkPiece> under_way_;
};

TEST_F(WorkQueueTest, OneThatComesWaitsForNoneOfWhatAnotherHasBroughtInMasses) {
  for (int i = 0; i < 500; ++i) Push("greedy");
  for (int i = 0; i < 5; ++i) EXPECT_EQ(Next(), "greedy");
  EXPECT_EQ(Begin(), "greedy");
  Push("honest");
  Push("honest");
  EXPECT_EQ(Begin(), "honest") << "nothing of it is under way";
  EXPECT_EQ(Begin(), "greedy") << "each has one";
}

TEST_F(WorkQueueTest, ClientsTakeTurnsByTheTimeThatTheirWorkTook) {
  for (int i = 0; i < 100; ++i) Push("slow");
  for (int i = 0; i < 100; ++i) Push("quick");
  int slow = 0;
  for (int i = 0; i < 55; ++i) {
    const std::string client = Begin();
    if (client == "slow") ++slow;
    queue_.End(under_way_.back(), client == "slow" ? 10'000 : 1000);
    under_way_.pop_back();
  }
  EXPECT_GE(slow, 5);
  EXPECT_LE(slow, 6);
}

TEST_F(WorkQueueTest, LongWorkStandsInALineOfItsOwn) {
  Push("greedy", kLongBytes);
  Push("greedy", kLongBytes);
  Push("greedy");
  Push("other", kLongBytes);
  EXPECT_EQ(Begin(/*may_be_long=*/false), "greedy");
  EXPECT_EQ(under_way_.back().bytes, 1) << "what is short passes what is long, of the same client too";
  EXPECT_EQ(Begin(/*may_be_long=*/false), "");
  EXPECT_EQ(Begin(), "other");
  EXPECT_EQ(Begin(), "greedy");
}

TEST_F(WorkQueueTest, AClientsOwnWorkIsDoneInItsOrder) {
  Push("one", 3);
  Push("one", kLongBytes);
  Push("one", 4);
  for (const int64_t bytes : {int64_t{3}, kLongBytes, int64_t{4}}) {
    Begin();
    EXPECT_EQ(under_way_.back().bytes, bytes);
  }
}

TEST_F(WorkQueueTest, AClientHasAtMostHalfOfTheQueueWhileAnotherWaits) {
  Push("other");
  int taken = 0;
  while (Push("greedy")) ++taken;
  EXPECT_EQ(taken, 500);
  EXPECT_TRUE(Push("other"));
  EXPECT_EQ(Next(), "other");
  EXPECT_TRUE(Push("third"));
}

TEST_F(WorkQueueTest, TheLastPlaceIsForOneThatHasNoneYet) {
  WorkQueue queue({.max_queued = 1, .keeps_room = true});
  EXPECT_TRUE(queue.Push({.caller = "one", .run = nullptr}, nullptr));
  EXPECT_FALSE(queue.Push({.caller = "other", .run = nullptr}, nullptr));
}

TEST_F(WorkQueueTest, WithoutTimeWhoeverHasBeenWithoutForLongestIsNext) {
  WorkQueue queue({.max_queued = 8});
  std::vector<WorkPiece> given_way;
  for (const char* caller : {"a", "a", "b", "b"}) {
    EXPECT_TRUE(queue.Push({.caller = caller, .run = nullptr}, &given_way));
  }
  std::string order;
  while (const auto piece = queue.Begin(/*may_be_long=*/true)) {
    order += piece->caller;
    queue.End(*piece, piece->caller == "a" ? 1'000'000 : 1);
  }
  EXPECT_EQ(order, "abab");
}

TEST_F(WorkQueueTest, AQueueOfOneClientHasRoomForAnother) {
  int taken = 0;
  while (Push("greedy")) ++taken;
  EXPECT_GT(taken, 500);
  EXPECT_TRUE(Push("honest"));
}

// ---- how fast a queue empties ----------------------------------------------------------------

constexpr int64_t kMs = 1'000'000;

TEST(QueueDrain, OneThatFindsItFullIsToldWhenTheNextOneWillHaveLeft) {
  QueueDrain drain;
  int64_t now = 5'000 * kMs;
  for (int i = 0; i < 100; ++i) drain.Came(now);
  EXPECT_EQ(drain.TellNextNs(now), 500 * kMs) << "nothing is known yet";
  now += 3'600'000 * kMs;  // nobody leaves for an hour
  EXPECT_GT(drain.TellNextNs(now), 500 * kMs);
  for (int i = 0; i < 400; ++i) {
    now += 50 * kMs;
    drain.Left(now);
    drain.Came(now);
  }
  now += 60'000 * kMs;  // those told before have come
  drain.Left(now);
  for (int i = 0; i < 400; ++i) {
    now += 50 * kMs;
    drain.Left(now);
    drain.Came(now);
  }
  EXPECT_NEAR(static_cast<double>(drain.TellNextNs(now)), 50 * kMs, 10 * kMs);
  EXPECT_NEAR(static_cast<double>(drain.TellNextNs(now)), 100 * kMs, 20 * kMs) << "behind the one before";
  now += 75 * kMs;
  EXPECT_NEAR(static_cast<double>(drain.TellNextNs(now)), 75 * kMs, 20 * kMs);
}

TEST(QueueDrain, TimeWithoutAQueueSaysNothingOfIt) {
  QueueDrain drain;
  int64_t now = 0;
  for (int i = 0; i < 200; ++i) {  // one at a time waits for 10 ms, each second
    drain.Came(now);
    drain.Left(now + 10 * kMs);
    now += 1'000 * kMs;
  }
  drain.Came(now);
  EXPECT_LT(drain.TellNextNs(now), 15 * kMs);
}

TEST(QueueDrain, NobodyIsToldMoreThanAMinuteOrThanAllWhoWaitNeed) {
  QueueDrain drain;
  int64_t now = 0;
  for (int i = 0; i < 10; ++i) drain.Came(now);
  for (int i = 0; i < 100; ++i) EXPECT_LE(drain.TellNextNs(now), 5'000 * kMs);
  for (int i = 0; i < 1'000; ++i) drain.Came(now);
  for (int i = 0; i < 1'000; ++i) EXPECT_LE(drain.TellNextNs(now), 60'000 * kMs);
  EXPECT_EQ(drain.TellNextNs(now), 60'000 * kMs);
}

}  // namespace
}  // namespace tramontane

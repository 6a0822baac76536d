#include "engine/life/inbox.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace tramontane {
namespace {

constexpr int64_t kAnyBytes = int64_t{1} << 40;

std::shared_ptr<LiveRequest> MakeLive(const std::string& id, size_t prompt_tokens = 1, int32_t choices = 1) {
  Request request;
  request.choices = choices;
  request.id = id;
  request.prompt.assign(prompt_tokens, 1);
  return std::make_shared<LiveRequest>(request, std::make_shared<TokenStream>(id, nullptr), nullptr,
                                       std::vector<int32_t>{});
}

std::vector<std::shared_ptr<LiveRequest>> TakeAll(Inbox& inbox) {
  std::vector<std::shared_ptr<LiveRequest>> requests;
  while (auto live = inbox.Pop()) requests.push_back(std::move(live));
  EXPECT_TRUE(inbox.empty());
  return requests;
}

std::vector<std::string> IdsOf(const std::vector<std::shared_ptr<LiveRequest>>& requests) {
  std::vector<std::string> ids;
  for (const auto& live : requests) ids.push_back(live->request.id);
  return ids;
}

TEST(Inbox, GivesRequestsInTheOrderOfTheirPushes) {
  Inbox inbox(8, kAnyBytes);
  EXPECT_TRUE(TakeAll(inbox).empty());
  for (const char* id : {"a", "b", "c"}) ASSERT_TRUE(inbox.Push(MakeLive(id)));
  EXPECT_EQ(IdsOf(TakeAll(inbox)), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_TRUE(TakeAll(inbox).empty());
}

TEST(Inbox, CountsARequestUntilItLeavesTheQueue) {
  Inbox inbox(2, kAnyBytes);
  ASSERT_TRUE(inbox.Push(MakeLive("a")));
  ASSERT_TRUE(inbox.Push(MakeLive("b")));
  EXPECT_FALSE(inbox.Push(MakeLive("c")));
  const auto taken = TakeAll(inbox);
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_FALSE(inbox.Push(MakeLive("c"))) << "taken, but both still wait";
  inbox.LeaveQueue(*taken[0]);
  EXPECT_TRUE(inbox.Push(MakeLive("c")));
  EXPECT_EQ(inbox.queued(), 2);
}

TEST(Inbox, RequestsAreBoundedByTheirBytesTooAndALoneOneAlwaysFits) {
  Inbox inbox(100, 10'000);
  ASSERT_TRUE(inbox.Push(MakeLive("larger than the bound", 5'000)));
  EXPECT_FALSE(inbox.Push(MakeLive("small")));
  inbox.LeaveQueue(*TakeAll(inbox).at(0));
  EXPECT_EQ(inbox.queued_bytes(), 0);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(inbox.Push(MakeLive("a quarter", 600))) << i;
  EXPECT_FALSE(inbox.Push(MakeLive("one more", 600)));
  EXPECT_EQ(inbox.queued(), 4);
  EXPECT_LE(inbox.queued_bytes(), 10'000);
}

TEST(Inbox, ChoicesShareOnePrompt) {
  const auto bytes = [](size_t prompt_tokens, int32_t choices) {
    Inbox inbox(1, kAnyBytes);
    EXPECT_TRUE(inbox.Push(MakeLive("a", prompt_tokens, choices)));
    return inbox.queued_bytes();
  };
  for (const int32_t choices : {1, 8})
    EXPECT_EQ(bytes(2'000, choices) - bytes(1'000, choices), 1'000 * static_cast<int64_t>(sizeof(int32_t)));
}

TEST(Inbox, FreesWhatWasNeverTaken) {
  std::weak_ptr<LiveRequest> watched;
  {
    Inbox inbox(2, kAnyBytes);
    auto live = MakeLive("a");
    watched = live;
    ASSERT_TRUE(inbox.Push(std::move(live)));
  }
  EXPECT_TRUE(watched.expired());
}

TEST(Inbox, LosesNothingAndNeverExceedsItsCapacityUnderManyThreads) {
  constexpr int kThreads = 4, kPushes = 500, kCapacity = 16;
  Inbox inbox(kCapacity, kAnyBytes);
  std::atomic<int> refused{0}, accepted{0}, running{kThreads};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kPushes; ++i) {
        // The order within one thread can be checked from the number in the id.
        ++(inbox.Push(MakeLive(std::to_string(t) + ":" + std::to_string(i))) ? accepted : refused);
      }
      --running;
    });
  }
  int taken = 0;
  std::vector<int> last(kThreads, -1);
  while (true) {
    const bool last_round = running == 0;
    EXPECT_LE(inbox.queued(), kCapacity);
    while (const auto live = inbox.Pop()) {
      const std::string& id = live->request.id;
      const int thread = id[0] - '0', number = std::stoi(id.substr(2));
      EXPECT_GT(number, last[thread]);
      last[thread] = number;
      ++taken;
      inbox.LeaveQueue(*live);
    }
    if (last_round) break;
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(taken, accepted);
  EXPECT_EQ(accepted + refused, kThreads * kPushes);
  EXPECT_EQ(inbox.queued(), 0);
}

}  // namespace
}  // namespace tramontane

// A cancellation, a deadline or a time limit takes effect within one step of its being known, from every
// state a request can be in, and gives every page and every place back.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/request/step_bounds.h"
#include "tests/support/in_process_engine.h"

namespace tramontane {
namespace {

// Pages of 4 and steps of 16 tokens; one slot, so that a second request waits.
EngineLimits OneSlot() {
  EngineLimits limits = SmallLimits(64);
  limits.max_sequences = 1;
  limits.max_choices = 1;
  return limits;
}

struct State {
  const char* name;
  bool behind_another;  // the one slot is taken by an older request
  int64_t prompt_tokens;
  int steps;  // until the state is reached
};

const std::vector<State> kStates = {
    {"in the inbox", false, 5, 0},
    {"waiting for a slot", true, 5, 2},
    {"in prefill", false, 40, 1},
    {"in decode", false, 5, 4},
};

std::vector<std::pair<State, int32_t>> EveryStateAndStepsInFlight() {
  std::vector<std::pair<State, int32_t>> cases;
  for (const State& state : kStates) {
    for (const int32_t steps : {1, 2}) cases.emplace_back(state, steps);
  }
  return cases;
}

// Brings a request into each state, with one and with two steps in flight, ends it from outside by `strike`,
// and looks at it one step later.
void EndFromEveryState(const std::function<void(Request&)>& prepare,
                       const std::function<void(SteppedEngine&, StreamReader&)>& strike,
                       const std::function<void(StreamReader&)>& expect) {
  for (const auto& [state, steps_in_flight] : EveryStateAndStepsInFlight()) {
    SCOPED_TRACE(std::string(state.name) + ", steps in flight: " + std::to_string(steps_in_flight));
    EngineLimits limits = OneSlot();
    limits.steps_in_flight = steps_in_flight;
    SteppedEngine test(limits);
    std::unique_ptr<StreamReader> other;
    if (state.behind_another) other = test.Submit(MakeRequest("other", 5, 40));
    Request request = MakeRequest("r", state.prompt_tokens, 20);
    prepare(request);
    auto reader = test.Submit(request);
    ASSERT_TRUE(reader->refused().ok()) << reader->refused();
    for (int step = 0; step < state.steps; ++step) test.Step();
    strike(test, *reader);
    test.Step();
    reader->WaitToEnd();
    ASSERT_EQ(reader->choice().finished.size(), 1u);
    ASSERT_EQ(reader->started().size(), 1u);
    EXPECT_EQ(reader->choice().end().usage.completion_tokens,
              static_cast<int64_t>(reader->choice().ids.size()));
    expect(*reader);
    EXPECT_EQ(test.engine().Load().waiting, 0);
    EXPECT_EQ(test.engine().Load().running, other ? 1 : 0);
    if (other) {
      other->stream().Cancel();
      test.Step();
      other->WaitToEnd();
    }
    EXPECT_EQ(test.engine().Load().held_pages, 0);
    EXPECT_TRUE(test.engine().idle());
  }
}

TEST(Cancellation, EndsARequestWithinOneStepFromEveryState) {
  EndFromEveryState([](Request&) {}, [](SteppedEngine&, StreamReader& reader) { reader.stream().Cancel(); },
                    [](StreamReader& reader) {
                      EXPECT_EQ(reader.status().code(), StatusCode::kCancelled);
                      EXPECT_EQ(reader.choice().end().reason, FinishReason::kCancelled);
                    });
}

TEST(Cancellation, APassedDeadlineEndsARequestFromEveryState) {
  EndFromEveryState([](Request& request) { request.deadline_ns = 1'000'000'000; },
                    [](SteppedEngine& test, StreamReader&) { test.clock().Advance(1'000'000'000); },
                    [](StreamReader& reader) {
                      EXPECT_EQ(reader.status().code(), StatusCode::kDeadlineExceeded);
                      EXPECT_EQ(reader.choice().end().status.code(), StatusCode::kDeadlineExceeded);
                    });
}

TEST(Cancellation, ATimeLimitEndsARequestWithOkFromEveryState) {
  EndFromEveryState([](Request& request) { request.stopping.time_limit_ns = 1'000'000'000; },
                    [](SteppedEngine& test, StreamReader&) { test.clock().Advance(1'000'000'000); },
                    [](StreamReader& reader) {
                      EXPECT_TRUE(reader.status().ok());
                      EXPECT_EQ(reader.choice().end().reason, FinishReason::kTimeLimit);
                    });
}

TEST(Cancellation, OfAFinishedButUndeliveredRequestChangesNothing) {
  SteppedEngine test(OneSlot());
  auto reader = test.Submit(MakeRequest("r", 5, 3));
  test.RunToEnd({});
  reader->stream().Cancel();
  test.Step();
  reader->WaitToEnd();
  EXPECT_TRUE(reader->status().ok());
  EXPECT_EQ(reader->choice().ids.size(), 3u);
}

TEST(Cancellation, OfChoicesThatWereNotForkedYetEndsThemAll) {
  SteppedEngine test(SmallLimits(64));
  Request request = MakeRequest("r", 40, 20);
  request.choices = 3;
  auto reader = test.Submit(request);
  test.Step();
  reader->stream().Cancel();
  test.Step();
  reader->WaitToEnd();
  for (int32_t c = 0; c < 3; ++c) EXPECT_EQ(reader->choice(c).finished.size(), 1u);
  EXPECT_EQ(test.engine().Load().held_pages, 0);
  // Their slots are free again: a request as wide as the engine starts at once.
  auto next = test.Submit(request);
  test.RunToEnd({next.get()});
  EXPECT_TRUE(next->status().ok());
}

// However many come at once, of however many choices; each is ended where it was cancelled before.
TEST(Cancellation, AStepBeginsAPartOfAMass) {
  constexpr int64_t kMass = 100, kChoices = 4, kBegun = kChoicesBegun.most / kChoices;
  EngineLimits limits = SmallLimits(64);
  limits.max_queued_requests = kMass;
  SteppedEngine test(limits);
  std::vector<std::unique_ptr<StreamReader>> mass;
  for (int64_t i = 0; i < kMass; ++i) {
    Request request = MakeRequest("four", 5, 5);
    request.choices = kChoices;
    mass.push_back(test.Submit(request));
    mass.back()->stream().Cancel();
  }
  for (int64_t begun = kBegun; begun < kMass + kBegun; begun += kBegun) {
    test.Step();
    EXPECT_EQ(test.engine().Load().finished_requests, std::min(begun, kMass));
  }
}

TEST(Cancellation, AStepEndsAPartOfAMass) {
  constexpr int64_t kMass = 700;
  EngineLimits limits = OneSlot();
  limits.max_queued_requests = kMass;
  SteppedEngine test(limits);
  std::vector<std::unique_ptr<StreamReader>> mass;
  for (int64_t i = 0; i < kMass; ++i) mass.push_back(test.Submit(MakeRequest("one", 40, 20)));
  for (int step = 0; step < 8; ++step) test.Step();  // until all have begun to wait
  for (const auto& reader : mass) reader->stream().Cancel();
  int64_t steps = 0;
  for (int64_t finished = 0; finished < kMass; ++steps) {
    const int64_t visits = test.engine().Load().waiting_visits;
    test.Step();
    EXPECT_LE(test.engine().Load().waiting_visits - visits, kWaitingEnded.most);
    ASSERT_LT(steps, kMass) << "has stopped to end them";
    finished = test.engine().Load().finished_requests;
  }
  EXPECT_GE(steps, kMass / kWaitingEnded.most);
  for (const auto& reader : mass) {
    reader->WaitToEnd();
    EXPECT_EQ(reader->status().code(), StatusCode::kCancelled);
  }
}

TEST(Cancellation, AStepLetsGoOfAPartOfThePagesOfLongTexts) {
  constexpr int64_t kTexts = 5, kTokens = 2'100;
  static_assert(4 * kTokens > kPagesLetGo.most && 3 * kTokens < kPagesLetGo.most);
  EngineLimits limits = SmallLimits(kTexts * (kTokens + 20));
  limits.page_size = 1;
  limits.context = kTokens + 20;
  limits.max_step_tokens = 2'200;
  SteppedEngine test(limits);
  std::vector<std::unique_ptr<StreamReader>> texts;
  for (uint32_t i = 0; i < kTexts; ++i) texts.push_back(test.Submit(MakeRequest("long", kTokens, 19, i)));
  while (test.engine().Load().held_pages < kTexts * kTokens) test.Step();
  for (const auto& reader : texts) reader->stream().Cancel();
  test.Step();
  EXPECT_EQ(test.engine().Load().finished_requests, 4);
  test.Step();
  EXPECT_EQ(test.engine().Load().finished_requests, 5);
}

// Steps look at none of ten thousand that wait but those whose readers are gone or whose time is up, however
// the times are ordered.
TEST(Cancellation, StepsVisitOfTenThousandThatWaitOnlyThoseThatEnd) {
  constexpr int64_t kWaiting = 10'000;
  constexpr int64_t kHour = 3'600'000'000'000;
  EngineLimits limits = OneSlot();
  limits.max_queued_requests = kWaiting + 1;
  limits.context = 200;
  SteppedEngine test(limits, {16});
  const auto running = test.Submit(MakeRequest("running", 5, 190));
  ASSERT_TRUE(running->refused().ok()) << running->refused();
  test.Step();
  std::vector<std::unique_ptr<StreamReader>> waiting;
  for (int64_t i = 0; i < kWaiting; ++i) {
    Request request = MakeRequest("waits", 5, 5);
    request.deadline_ns = kHour + (i * 7919 % kWaiting) * 1'000'000'000;  // each its own
    waiting.push_back(test.Submit(request));
    ASSERT_TRUE(waiting.back()->refused().ok()) << waiting.back()->refused();
  }
  for (int step = 0; step < 80; ++step) test.Step();  // a step begins a part of what has come
  EXPECT_EQ(test.engine().Load().waiting, kWaiting);
  EXPECT_EQ(test.engine().Load().waiting_visits, 0);

  for (const size_t i : {17u, 9'999u, 0u}) {
    waiting[i]->stream().Cancel();
    waiting[i]->stream().Cancel();
  }
  running->stream().Cancel();  // runs: what waits has nothing to do with it
  test.Step();
  EXPECT_EQ(test.engine().Load().waiting_visits, 3);
  for (const size_t i : {17u, 9'999u, 0u}) {
    waiting[i]->WaitToEnd();
    EXPECT_EQ(waiting[i]->status().code(), StatusCode::kCancelled) << i;
  }

  // 0 was the earliest of all, and has left; another runs by now.
  const int64_t before = test.engine().Load().waiting;
  test.clock().Advance(kHour + 5'000'000'000 - test.clock().NowNs());
  test.Step();
  int64_t out_of_time = 0;
  for (size_t i = 0; i < waiting.size(); ++i) {
    const int64_t seconds = static_cast<int64_t>(i) * 7919 % kWaiting;
    if (seconds == 0 || seconds > 5) continue;
    waiting[i]->WaitToEnd();
    EXPECT_EQ(waiting[i]->status().code(), StatusCode::kDeadlineExceeded) << i;
    ++out_of_time;
  }
  EXPECT_EQ(out_of_time, 5);
  EXPECT_EQ(test.engine().Load().waiting_visits, 3 + 5);
  EXPECT_EQ(test.engine().Load().waiting, before - 5);
}

}  // namespace
}  // namespace tramontane

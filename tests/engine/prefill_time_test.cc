// How long prefill steps had a request in them before its first token, beside the account of the runner that
// computed them.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>

#include "engine/engine.h"
#include "tests/support/in_process_engine.h"

namespace tramontane {
namespace {

constexpr int64_t kStepNs = 7'000'000;  // of a forward pass

struct RunnersAccount {
  int64_t prefill_ns = 0;        // of steps with a chunk of the request, but for those that sample
  int64_t last_chunk_steps = 0;  // that computed its last prompt token
};

// `watched` is the request whose account is kept.
RunnersAccount RunWatching(SteppedEngine* test, const std::string& watched,
                           const std::vector<StreamReader*>& readers) {
  RunnersAccount account;
  test->runner().on_forward = [&](const StepPlan& plan) {
    test->clock().Advance(kStepNs);
    if (plan.lane != Lane::kPrefill) return;
    for (const StepRow& row : plan.rows) {
      if (row.sequence->request->id != watched || row.sequence->output_tokens() > 0) continue;
      account.prefill_ns += kStepNs;
      account.last_chunk_steps += row.start + row.count == row.sequence->prompt_tokens() ? 1 : 0;
    }
  };
  test->RunToEnd(readers);
  test->runner().on_forward = nullptr;
  return account;
}

TEST(PrefillTime, CountsTheStepsThatTheRequestWasIn) {
  SteppedEngine test(SmallLimits(64));
  const auto other = test.Submit(MakeRequest("other", 4, 40));
  test.Step();
  const auto reader = test.Submit(MakeRequest("r", 44, 3));
  const RunnersAccount account = RunWatching(&test, "r", {other.get(), reader.get()});
  const Timings& timings = reader->choice().end().timings;
  EXPECT_EQ(account.prefill_ns, 3 * kStepNs);
  EXPECT_EQ(timings.prefill_run_ns, account.prefill_ns);
  EXPECT_EQ(timings.prefilled_ns, timings.first_token_ns) << "sampling takes no time here";
  EXPECT_GT(timings.prefilled_ns - timings.first_chunk_ns, timings.prefill_run_ns)
      << "it waited between them";
}

// Its chunks are computed again, and count again; what preemption undoes after the first token does not.
TEST(PrefillTime, OfAPreemptedPromptCountsWhatWasComputedAgain) {
  bool was_preempted_in_prefill = false;
  for (const int64_t pages : {16, 17, 18, 19, 20}) {
    EngineLimits limits = SmallLimits(pages);
    limits.max_step_tokens = 4;  // many steps, in between which the older one takes its pages
    SteppedEngine test(limits);
    const auto older = test.Submit(MakeRequest("older", 4, 40));
    test.Step();
    const auto reader = test.Submit(MakeRequest("r", 56, 6));
    const RunnersAccount account = RunWatching(&test, "r", {older.get(), reader.get()});
    const StreamFinished& end = reader->choice().end();
    EXPECT_EQ(end.timings.prefill_run_ns, account.prefill_ns) << pages;
    EXPECT_LE(end.timings.first_chunk_ns + end.timings.prefill_run_ns, end.timings.prefilled_ns);
    EXPECT_LE(end.timings.prefilled_ns, end.timings.first_token_ns);
    EXPECT_EQ(account.last_chunk_steps, 1);
    was_preempted_in_prefill |= account.prefill_ns > 14 * kStepNs && end.usage.preemptions > 0;
  }
  EXPECT_TRUE(was_preempted_in_prefill) << "the pools were meant to be too small";
}

// Steps of an asynchronous device are one behind the other, and each ends with its samples.
TEST(PrefillTime, WithTwoStepsInFlightNoTimeCountsTwice) {
  EngineLimits limits = SmallLimits(64);
  limits.steps_in_flight = 2;
  SteppedEngine test(limits);
  const auto reader = test.Submit(MakeRequest("r", 44, 3));
  const RunnersAccount account = RunWatching(&test, "r", {reader.get()});
  const Timings& timings = reader->choice().end().timings;
  EXPECT_EQ(account.prefill_ns, 3 * kStepNs);
  EXPECT_EQ(timings.prefilled_ns, timings.first_token_ns);
  EXPECT_EQ(timings.prefill_run_ns, timings.prefilled_ns - timings.first_chunk_ns)
      << "alone, from its first chunk on something of it is always under way";
}

TEST(PrefillTime, FirstOutputIsOfTheStepThatGaveIt) {
  SteppedEngine test(SmallLimits(64));
  const auto stream = test.engine().Submit(MakeRequest("r", 20, 3), nullptr);
  ASSERT_TRUE(stream.ok());
  const int64_t begin_ns = test.clock().NowNs();
  StreamUpdate update;
  for (bool done = false; !done;) {
    test.Step();
    StreamUpdate next = (*stream)->Take();
    done = next.done;
    if (next.first_ids) update = std::move(next);
  }
  ASSERT_TRUE(update.first_ids.has_value());
  EXPECT_FALSE(update.first_text.has_value()) << "no tokenizer, no text";
  EXPECT_EQ(update.first_ids->usage.prefill_chunks, 2);
  EXPECT_EQ(update.first_ids->timings.first_token_ns, begin_ns + 2'000'000) << "its second step";
  EXPECT_EQ(update.first_ids->timings.finished_ns, update.first_ids->timings.first_token_ns);
}

}  // namespace
}  // namespace tramontane

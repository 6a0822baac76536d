// What the scheduler asks of each row, who gets slots, and what becomes of sequences that end.
#include "engine/schedule/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "engine/request/step_bounds.h"
#include "tests/engine/fake_serving.h"

namespace tramontane {
namespace {

using ::testing::ElementsAre;

// A pool of plenty, 8 tokens a step.
EngineLimits SmallSteps(const KvLayout& layout) {
  EngineLimits limits = TestLimits(layout, 1000);
  limits.max_step_tokens = 8;
  limits.max_choices = 4;
  return limits;
}

TEST(SchedulerTest, OnlyTheLastChunkOfAPromptSamples) {
  const KvLayout layout = TestLayout({0}, 4);
  FakeServing serving(SmallSteps(layout), layout);
  serving.Submit({.id = "a", .prompt_tokens = 20, .max_tokens = 3});
  EXPECT_THAT(serving.Steps(6),
              ElementsAre("step 1 prefill cost 9: a.0[0,8)", "step 2 prefill cost 9: a.0[8,16)",
                          "step 3 prefill cost 5: a.0[16,20)*", "step 4 decode cost 1: a.0[20,21)*",
                          "step 5 decode cost 1: a.0[21,22)*", ""));
  EXPECT_EQ(serving.ended("a").completion_tokens[0], 3);
  EXPECT_EQ(serving.ended("a").usage[0].prefill_chunks, 3);
}

TEST(SchedulerTest, PromptLogprobsScoreEveryPromptTokenButTheFirst) {
  const KvLayout layout = TestLayout({0}, 4);
  FakeServing serving(SmallSteps(layout), layout);
  serving.Submit({.id = "a", .prompt_tokens = 17, .max_tokens = 1, .prompt_logprobs = true});
  EXPECT_THAT(serving.Steps(3),
              ElementsAre("step 1 prefill cost 9: a.0[0,8)?[0,8)", "step 2 prefill cost 9: a.0[8,16)?[8,16)",
                          "step 3 prefill cost 2: a.0[16,17)*"))
      << "position 15 scores the last prompt token, 16";
  EXPECT_EQ(serving.ended("a").scored_tokens, 16);

  serving.Submit({.id = "b", .prompt_tokens = 5, .max_tokens = 1, .prompt_logprobs = true});
  EXPECT_THAT(serving.Steps(1), ElementsAre("step 4 prefill cost 6: b.0[0,5)?[0,4)*"));
}

TEST(SchedulerTest, NoTokensAskedForMeansThePromptIsOnlyScored) {
  const KvLayout layout = TestLayout({0}, 4);
  FakeServing serving(SmallSteps(layout), layout);
  serving.Submit({.id = "a", .prompt_tokens = 10, .max_tokens = 0, .choices = 2, .prompt_logprobs = true});
  EXPECT_THAT(serving.Steps(3), ElementsAre("step 1 prefill cost 9: a.0[0,8)?[0,8)",
                                            "step 2 prefill cost 3: a.0[8,10)?[8,9)", ""));
  EXPECT_EQ(serving.ended("a").scored_tokens, 9);
  EXPECT_THAT(serving.ended("a").completion_tokens, ElementsAre(0, 0));
}

// Three choices of a prompt of 6 with page 4: page [4, 8) is shared by three when decode begins. Two of them
// copy it before they write position 6; the last owner keeps it.
TEST(SchedulerTest, ChoicesShareThePromptAndCopyItsLastPageOnly) {
  const KvLayout layout = TestLayout({0}, 4);
  FakeServing serving(SmallSteps(layout), layout);
  serving.Submit({.id = "a", .prompt_tokens = 6, .max_tokens = 6, .choices = 3});
  EXPECT_THAT(serving.Steps(1), ElementsAre("step 1 prefill cost 7: a.0[0,6)*3"));
  EXPECT_EQ(serving.scheduler().store().held_pages(), 2) << "one prompt";
  EXPECT_THAT(serving.Steps(3), ElementsAre("step 2 decode cost 3 copies 2: a.0[6,7)* a.1[6,7)* a.2[6,7)*",
                                            "step 3 decode cost 3: a.0[7,8)* a.1[7,8)* a.2[7,8)*",
                                            "step 4 decode cost 3: a.0[8,9)* a.1[8,9)* a.2[8,9)*"));
  EXPECT_EQ(serving.scheduler().store().held_pages(), 1 + 3 * 2);
  serving.RunUntilIdle(10);
  EXPECT_THAT(serving.ended("a").completion_tokens, ElementsAre(6, 6, 6));
}

// slots 4:   a holds 1, b holds 2, c wants 3 and waits; d wants 1 and must not pass c
TEST(SchedulerTest, ARequestThatNeedsMoreSlotsThanAreFreeWaitsAndNobodyPassesIt) {
  const KvLayout layout = TestLayout({0}, 4);
  EngineLimits limits = SmallSteps(layout);
  limits.max_sequences = 4;
  FakeServing serving(limits, layout);
  serving.Submit({.id = "a", .prompt_tokens = 1, .max_tokens = 3});
  serving.Submit({.id = "b", .prompt_tokens = 1, .max_tokens = 4, .choices = 2});
  serving.Submit({.id = "c", .prompt_tokens = 1, .max_tokens = 2, .choices = 3});
  serving.Submit({.id = "d", .prompt_tokens = 1, .max_tokens = 2});
  EXPECT_THAT(
      serving.Steps(4),
      ElementsAre("step 1 prefill cost 3: a.0[0,1)* b.0[0,1)*2",
                  "step 2 decode cost 3 copies 1: a.0[1,2)* b.0[1,2)* b.1[1,2)*",
                  "step 3 decode cost 3: a.0[2,3)* b.0[2,3)* b.1[2,3)*",  // a ends: 2 slots, c needs 3
                  "step 4 decode cost 2: b.0[3,4)* b.1[3,4)*"));
  EXPECT_EQ(serving.scheduler().free_slots(), 4);
  EXPECT_THAT(serving.Steps(1), ElementsAre("step 5 prefill cost 3: c.0[0,1)*3 d.0[0,1)*"));
  serving.RunUntilIdle(10);
}

TEST(SchedulerTest, ASlotReservedForAChoiceComesBackWhenTheRequestIsCancelledBeforeItForks) {
  const KvLayout layout = TestLayout({0}, 4);
  EngineLimits limits = SmallSteps(layout);
  limits.max_sequences = 4;
  FakeServing serving(limits, layout);
  serving.Submit({.id = "a", .prompt_tokens = 20, .max_tokens = 4, .choices = 4});
  serving.Steps(1);
  EXPECT_EQ(serving.scheduler().free_slots(), 0);
  serving.Cancel("a");
  serving.Steps(1);
  EXPECT_EQ(serving.scheduler().free_slots(), 4);
  EXPECT_EQ(serving.scheduler().store().held_pages(), 0);
}

// Cancelled while it waits for slots, for a place, part-way, in decode, and finished already.
TEST(SchedulerTest, CancellationInEveryStateGivesEverythingBackWithinTheStep) {
  const KvLayout layout = TestLayout({0, 8}, 4);
  EngineLimits limits = SmallSteps(layout);
  limits.max_sequences = 3;
  limits.max_choices = 1;
  limits.max_partial_prefills = 1;
  FakeServing serving(limits, layout);
  serving.Submit({.id = "decode", .prompt_tokens = 1, .max_tokens = 50});
  serving.Steps(1);
  serving.Submit({.id = "part", .prompt_tokens = 50, .max_tokens = 5});
  serving.Submit({.id = "ready", .prompt_tokens = 50, .max_tokens = 5});
  serving.Submit({.id = "queue", .prompt_tokens = 50, .max_tokens = 5});
  serving.Steps(2);
  EXPECT_EQ(serving.sequence("decode").state(), SequenceState::kDecode);
  EXPECT_EQ(serving.sequence("part").state(), SequenceState::kPrefill);
  EXPECT_EQ(serving.sequence("ready").state(), SequenceState::kWaiting);
  EXPECT_EQ(serving.sequence("ready").slots(), 1);
  EXPECT_EQ(serving.sequence("queue").state(), SequenceState::kWaiting);
  EXPECT_EQ(serving.sequence("queue").slots(), 0);
  for (const char* id : {"queue", "ready", "decode", "part", "part"}) serving.Cancel(id);
  EXPECT_EQ(serving.scheduler().store().held_pages(), 0);
  EXPECT_EQ(serving.scheduler().free_slots(), 3);
  EXPECT_EQ(serving.scheduler().waiting() + serving.scheduler().running(), 0);
  EXPECT_THAT(serving.Steps(1), ElementsAre(""));
}

TEST(SchedulerTest, AFinishedSequenceKeepsItsPagesWhileAStepInFlightMentionsIt) {
  const KvLayout layout = TestLayout({0}, 4);
  EngineLimits limits = SmallSteps(layout);
  limits.steps_in_flight = 2;
  Scheduler scheduler(limits, layout);
  Request request;
  request.id = "a";
  request.prompt = {1, 2, 3};
  Sequence sequence;
  sequence.request = &request;
  sequence.tokens = SequenceTokens(request.prompt);
  sequence.max_len = 20;
  scheduler.Admit(&sequence, 0);
  const StepPlan prefill = scheduler.Plan(1);
  const StepPlan decode = scheduler.Plan(2);
  EXPECT_EQ(ToString(decode), "step 2 decode cost 1: a.0[3,4)*") << "its token is still on the device";

  scheduler.Finish(&sequence);
  EXPECT_FALSE(sequence.releasable());
  EXPECT_EQ(scheduler.store().held_pages(), 1);
  scheduler.Apply(prefill, {{.accepted = 3}});
  EXPECT_FALSE(sequence.releasable());
  scheduler.Apply(decode, {{.accepted = 1}});
  EXPECT_TRUE(sequence.releasable());
  EXPECT_EQ(scheduler.store().held_pages(), 0);
  EXPECT_EQ(scheduler.free_slots(), limits.max_sequences);
}

TEST(SchedulerTest, PositionsThatAreNotAcceptedArePlannedAgain) {
  const KvLayout layout = TestLayout({0, 4}, 4);
  Scheduler scheduler(SmallSteps(layout), layout);
  Request request;
  request.id = "a";
  request.prompt = {1, 2, 3};
  Sequence sequence;
  sequence.request = &request;
  sequence.tokens = SequenceTokens(request.prompt);
  sequence.max_len = 20;
  scheduler.Admit(&sequence, 0);
  scheduler.Apply(scheduler.Plan(1), {{.accepted = 3}});
  sequence.tokens.push_back(4);
  scheduler.Apply(scheduler.Plan(2), {{.accepted = 0}});
  EXPECT_EQ(sequence.accepted_len(), 3);
  EXPECT_EQ(ToString(scheduler.Plan(3)), "step 3 decode cost 1: a.0[3,4)*");
}

// Plans a step and applies it; who draws gets token 1.
StepPlan StepOf(Scheduler& scheduler) {
  StepPlan plan = scheduler.Plan(0);
  std::vector<RowOutcome> outcomes;
  for (const StepRow& row : plan.rows) {
    outcomes.push_back({row.count});
    if (plan.Draws(row) > 0) row.sequence->tokens.push_back(1);
  }
  if (plan.lane != Lane::kIdle) scheduler.Apply(plan, outcomes);
  return plan;
}

// Two prompts of 8 tokens, and texts of 28, in a pool of 8 pages of 4, which holds one text and a bit.
struct TwoInATightPool {
  TwoInATightPool() {
    for (int i = 0; i < 2; ++i) {
      requests[i].id = i == 0 ? "old" : "young";
      requests[i].prompt.assign(8, 1);
      sequences[i].request = &requests[i];
      sequences[i].tokens = SequenceTokens(requests[i].prompt);
      sequences[i].max_len = 28;
      scheduler.Admit(&sequences[i], i);
    }
  }
  static EngineLimits Limits(const KvLayout& layout) {
    EngineLimits limits = TestLimits(layout, /*pool_pages=*/8);
    limits.context = 28;
    return limits;
  }
  StepPlan Step() { return StepOf(scheduler); }

  const KvLayout layout = TestLayout({0}, 4);
  Scheduler scheduler{Limits(layout), layout};
  Request requests[2];
  Sequence sequences[2];
};

// Of two in decode the older one is held; then the younger one needs its pages.
TEST(SchedulerTest, AHeldSequenceIsInNoPlanAndTheFirstToBePreempted) {
  TwoInATightPool two;
  Scheduler& scheduler = two.scheduler;
  Sequence* const sequences = two.sequences;
  while (sequences[1].state() != SequenceState::kDecode) two.Step();
  scheduler.Hold(&sequences[0]);
  while (scheduler.preemptions() == 0) {
    const StepPlan plan = two.Step();
    ASSERT_EQ(plan.rows.size(), 1u);
    EXPECT_EQ(plan.rows[0].sequence, &sequences[1]);
  }
  EXPECT_EQ(sequences[0].state(), SequenceState::kWaiting) << "older, and held";
  while (sequences[1].tokens.size() < 28) EXPECT_EQ(two.Step().rows[0].sequence, &sequences[1]);
  EXPECT_EQ(two.Step().lane, Lane::kIdle) << "held, it does not start again";
  scheduler.Finish(&sequences[1]);
  scheduler.Resume(&sequences[0]);
  EXPECT_EQ(two.Step().rows[0].sequence, &sequences[0]);
}

// The oldest of three sees sinks from position 6 on, and goes last then; those behind it stay in order.
TEST(SchedulerTest, RowsThatSeeSinksComeBehindThoseOfWindowsAlone) {
  const KvLayout layout = TestLayout({0}, 4);
  Scheduler scheduler(SmallSteps(layout), layout);
  Request requests[3];
  Sequence sequences[3];
  for (int i = 0; i < 3; ++i) {
    requests[i].id = std::string(1, static_cast<char>('a' + i));
    requests[i].prompt.assign(2, 1);
    if (i == 0) {
      requests[i].context_policy =
          ContextPolicy{.type = ContextPolicyType::kShift, .n_ctx = 4, .n_keep = 1, .n_discard = 1};
    }
    sequences[i].request = &requests[i];
    sequences[i].tokens = SequenceTokens(requests[i].prompt);
    sequences[i].max_len = 20;
    scheduler.Admit(&sequences[i], i);
  }
  std::vector<std::string> steps;
  for (int step = 0; step < 5; ++step) steps.push_back(ToString(StepOf(scheduler)));
  EXPECT_THAT(steps, ElementsAre("step 1 prefill cost 7: a.0[0,2)* b.0[0,2)* c.0[0,2)*",
                                 "step 2 decode cost 3: a.0[2,3)* b.0[2,3)* c.0[2,3)*",
                                 "step 3 decode cost 3: a.0[3,4)* b.0[3,4)* c.0[3,4)*",
                                 "step 4 decode cost 3: b.0[4,5)* c.0[4,5)* a.0[4,5)*",
                                 "step 5 decode cost 3: b.0[5,6)* c.0[5,6)* a.0[5,6)*"));
}

// One sequence under re-evaluation, driven by hand: it discards [6, 16) of 25 tokens, sinks 0..5.
class Reevaluation : public testing::Test {
 protected:
  void Start(int64_t pool_pages, int32_t max_sequences = 64) {
    EngineLimits limits = TestLimits(layout_, pool_pages);
    limits.context = 32;
    limits.max_sequences = max_sequences;
    scheduler_.emplace(limits, layout_);
    request_.context_policy =
        ContextPolicy{.type = ContextPolicyType::kReevaluate, .n_ctx = 24, .n_keep = 6, .n_discard = 10};
    Admit(&request_, &sequence_, "a", 9, 100);
  }
  void Admit(Request* request, Sequence* sequence, const char* id, size_t prompt_tokens, int64_t max_len) {
    request->id = id;
    request->share.caller = "all of them";
    request->prompt.assign(prompt_tokens, 1);
    sequence->request = request;
    sequence->tokens = SequenceTokens(request->prompt);
    sequence->max_len = max_len;
    scheduler_->Admit(sequence, arrivals_++);
  }

  StepPlan Step() {
    StepPlan plan = scheduler_->Plan(0);
    std::vector<RowOutcome> outcomes;
    for (const StepRow& row : plan.rows) {
      outcomes.push_back({row.count});
      if (plan.Draws(row) > 0) row.sequence->tokens.push_back(1);
    }
    if (plan.lane != Lane::kIdle) scheduler_->Apply(plan, outcomes);
    scheduler_->store().CheckAccounting();
    return plan;
  }
  void StepToTheDiscard() {
    while (sequence_.tokens.size() < 25) ASSERT_NE(Step().lane, Lane::kIdle);
  }
  void Discard() {
    sequence_.tokens.Erase(6, 10);
    sequence_.discarded += 10;
    sequence_.max_len -= 10;
    scheduler_->Reevaluate(&sequence_, arrivals_++);
  }
  std::vector<PageId> FirstPages() const {
    std::vector<PageId> pages;
    for (const PageTable& table : sequence_.lease().tables) pages.push_back(table.pages.front());
    return pages;
  }

  const KvLayout layout_ = TestLayout({8, 0}, 4);
  std::optional<Scheduler> scheduler_;
  Request request_;
  Sequence sequence_;
  int64_t arrivals_ = 0;
};

// The window of the first group has rolled over them long before, and there is no prefix cache.
TEST_F(Reevaluation, SinksStayInEveryGroupFromDiscardToDiscard) {
  Start(/*pool_pages=*/100);
  while (sequence_.state() != SequenceState::kDecode) Step();
  const std::vector<PageId> sinks = FirstPages();
  for (int discard = 0; discard < 3; ++discard) {
    StepToTheDiscard();
    EXPECT_GT(sequence_.lease().tables[0].kv_base, 0);
    Discard();
    EXPECT_EQ(scheduler_->store().held_pages(), 4) << "two of each group";
    EXPECT_EQ(sequence_.expected_hit(), 6);
    const StepPlan plan = Step();
    ASSERT_EQ(plan.rows.size(), 1u);
    EXPECT_EQ(plan.rows[0].start, 6);
    EXPECT_EQ(plan.rows[0].count, 9) << "the survivors";
    EXPECT_EQ(plan.copies.size(), 2u) << "the page of tokens 4 and 5, of each group";
    EXPECT_EQ(sequence_.kept().tables[0].pages.front(), sinks[0]);
    EXPECT_EQ(sequence_.kept().tables[1].pages.front(), sinks[1]);
    EXPECT_EQ(sequence_.lease().tables[1].pages.front(), sinks[1]);
  }
  scheduler_->Finish(&sequence_);
  EXPECT_EQ(scheduler_->store().held_pages(), 0);
}

// It discards again and again, and each time it is one more prompt.
TEST_F(Reevaluation, WaitsBehindThePromptsThatWereThere) {
  Start(/*pool_pages=*/100);
  StepToTheDiscard();
  Request other_request;
  Sequence other;
  Admit(&other_request, &other, "other", 24, 30);
  Discard();
  const StepPlan plan = Step();
  ASSERT_FALSE(plan.rows.empty());
  EXPECT_EQ(plan.rows[0].sequence, &other);
  EXPECT_TRUE(Older(other, sequence_));
  scheduler_->Finish(&other);
  scheduler_->Finish(&sequence_);
}

// Ages of one caller's go by arrival, also where one gets its slot long after the discard of another that
// arrived later.
TEST_F(Reevaluation, IsYoungerThanWhatWaitedForSlotsWhenItDiscarded) {
  Start(/*pool_pages=*/100, /*max_sequences=*/2);
  Request busy_request, late_request;
  Sequence busy, late;
  Admit(&busy_request, &busy, "busy", 9, 32);
  StepToTheDiscard();
  Admit(&late_request, &late, "late", 9, 32);
  Step();
  Discard();
  while (sequence_.state() != SequenceState::kDecode) Step();
  scheduler_->Finish(&busy);
  Step();
  ASSERT_GT(late.slots(), 0);
  EXPECT_TRUE(Older(late, sequence_));
  scheduler_->Finish(&late);
  scheduler_->Finish(&sequence_);
}

// What a burst costs is in proportion to its prompts, those that have started in the step notwithstanding.
TEST(SchedulerTest, APromptOfABurstCostsWhatItCostsAlone) {
  const KvLayout layout = TestLayout({0}, 4);
  const auto sized_leases_of_burst = [&](int32_t prompts) {
    EngineLimits limits = TestLimits(layout, 4 * prompts);
    limits.max_sequences = prompts;
    limits.max_step_tokens = limits.max_logit_rows = prompts;
    FakeServing serving(limits, layout);
    for (int32_t p = 0; p < prompts; ++p) {
      serving.Submit({.id = "p" + std::to_string(p), .prompt_tokens = 1, .max_tokens = 1});
    }
    serving.Steps(3);
    return serving.scheduler().store().sized_leases();
  };
  const int64_t few = sized_leases_of_burst(50);
  EXPECT_GT(few, 0);
  EXPECT_LE(sized_leases_of_burst(800), 20 * few);
}

TEST_F(Reevaluation, SinksAreLetGoWhereAnotherCouldNotStartForThem) {
  Start(/*pool_pages=*/22);
  StepToTheDiscard();
  scheduler_->Hold(&sequence_);  // so that it waits for nobody
  Request other_request;
  Sequence other;
  Admit(&other_request, &other, "b", 31, 32);
  while (other.state() != SequenceState::kDecode) ASSERT_NE(Step().lane, Lane::kIdle);
  EXPECT_EQ(scheduler_->preemptions(), 0);
  EXPECT_TRUE(sequence_.kept().tables.empty());
  scheduler_->Finish(&other);
  scheduler_->Resume(&sequence_);
  Discard();
  const StepPlan plan = Step();
  ASSERT_EQ(plan.rows.size(), 1u);
  EXPECT_EQ(plan.rows[0].start, 0);
  EXPECT_EQ(plan.rows[0].count, 15);
  scheduler_->Finish(&sequence_);
  EXPECT_EQ(scheduler_->store().held_pages(), 0);
}

// Three keep their sinks; then pages are short. The fork's go first, with those of its parent, which are the
// same pages, and no older one's.
TEST_F(Reevaluation, TheSinksOfAYoungForkAreLetGoBeforeAnOlderSequences) {
  Start(/*pool_pages=*/64);
  const auto policy = request_.context_policy;
  Request older_request, forked_request;
  older_request.context_policy = forked_request.context_policy = policy;
  Sequence older, parent, fork;
  Admit(&older_request, &older, "older", 9, 100);
  while (older.tokens.size() < 12) Step();
  forked_request.choices = 2;
  Admit(&forked_request, &parent, "forked", 9, 100);
  fork.request = &forked_request;
  fork.choice = 1;
  fork.tokens = parent.tokens;
  fork.max_len = 100;
  const StepPlan prompt = scheduler_->Plan(0);
  ASSERT_EQ(prompt.rows.size(), 1u);
  ASSERT_EQ(prompt.Draws(prompt.rows[0]), 2);
  scheduler_->Fork(parent, &fork);
  parent.tokens.push_back(1);
  fork.tokens.push_back(1);
  scheduler_->Apply(prompt, {{.accepted = 9}});
  EXPECT_TRUE(Older(parent, fork));
  EXPECT_TRUE(Older(older, fork));
  while (fork.tokens.size() < 20) ASSERT_NE(Step().lane, Lane::kIdle);
  for (Sequence* sequence : {&sequence_, &older, &parent, &fork}) {
    ASSERT_TRUE(sequence->has_kept());
    scheduler_->Hold(sequence);  // so that nothing else changes
  }
  std::vector<Request> others(16);
  std::vector<Sequence> crowd(others.size());
  for (size_t i = 0; i < crowd.size() && older.has_kept() && fork.has_kept(); ++i) {
    Admit(&others[i], &crowd[i], "crowd", 3, 4);
    Step();
  }
  EXPECT_FALSE(fork.has_kept());
  EXPECT_FALSE(parent.has_kept());
  EXPECT_TRUE(older.has_kept());
  EXPECT_TRUE(sequence_.has_kept());
}

TEST_F(Reevaluation, SinksAreLetGoBeforeAnybodyIsPreempted) {
  Start(/*pool_pages=*/20);
  StepToTheDiscard();
  scheduler_->Hold(&sequence_);  // the first that would be preempted
  ASSERT_TRUE(sequence_.has_kept());
  Request other_request;
  Sequence other;
  Admit(&other_request, &other, "b", 9, 32);
  while (other.decode_left() || other.tokens.size() == 9) ASSERT_NE(Step().lane, Lane::kIdle);
  EXPECT_EQ(scheduler_->preemptions(), 0);
  EXPECT_FALSE(sequence_.has_kept());
  scheduler_->Finish(&other);
  scheduler_->Finish(&sequence_);
}

TEST_F(Reevaluation, WhatLosesItsSinksWhileItWaitsExpectsNoneOfThem) {
  Start(/*pool_pages=*/14);
  StepToTheDiscard();
  Request other_request;
  Sequence other;
  Admit(&other_request, &other, "b", 31, 32);
  Discard();
  EXPECT_EQ(sequence_.expected_hit(), 6);
  EXPECT_EQ(Step().rows.at(0).sequence, &other);
  EXPECT_FALSE(sequence_.has_kept());
  EXPECT_EQ(sequence_.expected_hit(), 0);
  scheduler_->Finish(&other);
  scheduler_->Finish(&sequence_);
}

// A discard makes it the youngest.
TEST_F(Reevaluation, WhatHasDiscardedLosesItsSinksBeforeOthers) {
  Start(/*pool_pages=*/27);
  Request request, crowd_request;
  request.context_policy = request_.context_policy;
  Sequence decodes, crowd;
  Admit(&request, &decodes, "decodes", 9, 100);
  StepToTheDiscard();
  scheduler_->Hold(&decodes);
  Admit(&crowd_request, &crowd, "crowd", 31, 32);
  Discard();
  ASSERT_TRUE(sequence_.has_kept());
  ASSERT_TRUE(decodes.has_kept());
  EXPECT_EQ(Step().rows.at(0).sequence, &crowd);
  EXPECT_FALSE(sequence_.has_kept());
  EXPECT_TRUE(decodes.has_kept());
  for (Sequence* sequence : {&crowd, &decodes, &sequence_}) scheduler_->Finish(sequence);
}

TEST_F(Reevaluation, WhatEndsWhileItWaitsGivesItsSinksBack) {
  Start(/*pool_pages=*/22);
  StepToTheDiscard();
  Discard();
  EXPECT_EQ(scheduler_->store().held_pages(), 4);
  scheduler_->Finish(&sequence_);
  EXPECT_EQ(scheduler_->store().held_pages(), 0) << "while it waits";
}

// Each is known; it is looked up block by block, and its pages are leased one by one.
TEST(SchedulerTest, APlanLooksUpALongTextOrHasItBegin) {
  constexpr int64_t kBlocks = kBlocksWalked.most + 50, kTokens = 4 * kBlocks;
  const KvLayout layout = TestLayout({0}, 4);
  EngineLimits limits = TestLimits(layout, 10 * kBlocks);
  limits.prefix_cache = true;
  limits.lane_policy = LanePolicy::kPrefillFirst;
  Scheduler scheduler(limits, layout);
  const std::vector<int32_t> text(kTokens + 1, 1);
  KvStore& store = scheduler.cache();
  Lease lease = store.NewLease();
  store.Acquire(lease, {.tokens = text});
  std::vector<PageCopy> copies;
  store.Extend(lease, 0, kTokens, &copies);
  store.Seal(lease, text, kTokens);
  store.Release(lease);
  std::vector<Request> requests(3);
  std::vector<Sequence> sequences(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].prompt = text;
    sequences[i].request = &requests[i];
    sequences[i].tokens = SequenceTokens(requests[i].prompt);
    sequences[i].max_len = kTokens + 10;
    scheduler.Admit(&sequences[i], static_cast<int64_t>(i));
  }
  std::vector<size_t> prompt_rows;
  for (size_t plans = 0; plans < 2 * requests.size(); ++plans) {
    const int64_t before = store.walked_blocks();
    const StepPlan plan = scheduler.Plan(0);
    EXPECT_EQ(store.walked_blocks() - before, kBlocks + kBlocks / 8) << "what was found is gone over again";
    prompt_rows.push_back(plan.lane == Lane::kPrefill ? plan.rows.size() : 0);
    EXPECT_TRUE(scheduler.has_put_off()) << "they wait for the next plan, or slots do";
    if (plan.rows.empty()) continue;
    for (const StepRow& row : plan.rows) row.sequence->tokens.push_back(1);
    scheduler.Apply(plan, std::vector<RowOutcome>(plan.rows.size(), {.accepted = 1}));
  }
  EXPECT_THAT(prompt_rows, ::testing::ElementsAre(0, 1, 0, 1, 0, 1));
}

TEST(SchedulerTest, AForkHasTheMomentsAndCountsOfItsParent) {
  const KvLayout layout = TestLayout({0}, 4);
  FakeServing serving(SmallSteps(layout), layout);
  serving.Submit({.id = "a", .prompt_tokens = 20, .max_tokens = 2, .choices = 2});
  serving.RunUntilIdle(10);
  const Timings& of_parent = serving.ended("a").timings[0];
  const Timings& of_fork = serving.ended("a").timings[1];
  EXPECT_GT(of_fork.admitted_ns, 0);
  EXPECT_EQ(of_fork.admitted_ns, of_parent.admitted_ns);
  EXPECT_EQ(of_fork.first_chunk_ns, of_parent.first_chunk_ns);
  EXPECT_EQ(of_fork.last_chunk_ns, of_parent.last_chunk_ns);
  EXPECT_EQ(serving.ended("a").usage[1].prefill_chunks, 3);
}

// Its next token may be anything until its mask is filled.
TEST(SchedulerTest, AnUndecidedSequenceThatIsPreemptedIsHeld) {
  TwoInATightPool two;
  Scheduler& scheduler = two.scheduler;
  Sequence* const sequences = two.sequences;
  sequences[1].undecided = true;
  while (scheduler.preemptions() == 0) ASSERT_NE(two.Step().lane, Lane::kIdle);
  EXPECT_TRUE(sequences[1].held());
  scheduler.Finish(&sequences[0]);
  EXPECT_EQ(scheduler.waiting(), 0);
  scheduler.Resume(&sequences[1]);
  EXPECT_EQ(two.Step().rows.at(0).sequence, &sequences[1]);
}

// What it costs counts as its length does.
TEST(SchedulerTest, APromptOfFewTokensAndManyKeysDoesNotFitOneChunk) {
  const KvLayout layout = TestLayout({0}, 4);
  EngineLimits limits = TestLimits(layout, 1000);
  limits.max_step_tokens = 64;
  limits.attended_keys_per_token = 1;
  FakeServing serving(limits, layout);
  serving.Submit({.id = "dear", .prompt_tokens = 20, .max_tokens = 4});
  serving.Submit({.id = "cheap", .prompt_tokens = 5, .max_tokens = 4});
  serving.Steps(1);
  EXPECT_FALSE(serving.sequence("dear").fits_one_chunk());
  EXPECT_TRUE(serving.sequence("cheap").fits_one_chunk());
}

TEST(SchedulerTest, AHeldSequenceCutsPrefillStepsAsOthersInDecodeDo) {
  const KvLayout layout = TestLayout({0}, 4);
  EngineLimits limits = TestLimits(layout, 1000);
  limits.max_step_tokens = 64;
  limits.decode_gap_ns = 1;
  limits.least_step_tokens = 4;
  Scheduler scheduler(limits, layout);
  Request requests[2];
  Sequence sequences[2];
  for (int i = 0; i < 2; ++i) {
    requests[i].prompt.assign(i == 0 ? 2 : 40, 1);
    sequences[i].request = &requests[i];
    sequences[i].tokens = SequenceTokens(requests[i].prompt);
    sequences[i].max_len = 50;
  }
  scheduler.Admit(&sequences[0], 0);
  scheduler.Apply(scheduler.Plan(0), {{.accepted = 2}});
  sequences[0].tokens.push_back(1);
  scheduler.Hold(&sequences[0]);
  scheduler.Admit(&sequences[1], 1);
  EXPECT_EQ(scheduler.Plan(0).tokens, 4);
}

TEST(SchedulerTest, TimesAndCountsAreStampedOnTheWay) {
  const KvLayout layout = TestLayout({0}, 4);
  EngineLimits limits = SmallSteps(layout);
  limits.max_sequences = 4;
  FakeServing serving(limits, layout);
  serving.Submit({.id = "a", .prompt_tokens = 20, .max_tokens = 2});
  serving.Steps(5);  // clock: 1, cost 9 -> 10, cost 9 -> 19, cost 5 -> 24, cost 1 -> 25
  const Timings& timings = serving.ended("a").timings[0];
  EXPECT_EQ(timings.admitted_ns, 1);
  EXPECT_EQ(timings.first_chunk_ns, 1);
  EXPECT_EQ(timings.last_chunk_ns, 19);
  EXPECT_EQ(timings.first_token_ns, 24);
}

TEST(SchedulerDeathTest, RefusesAContextThatThePoolCannotHold) {
  const KvLayout layout = TestLayout({0}, 4);
  EngineLimits limits = SmallSteps(layout);
  limits.context = 4001;
  EXPECT_DEATH(Scheduler(limits, layout), "does not fit 1000 pages");
}

TEST(EngineLimitsTest, NamesEveryBreachAtOnce) {
  EngineLimits limits = SmallSteps(TestLayout({0}, 4));
  EXPECT_TRUE(limits.Validate().ok());
  limits.max_step_tokens = 0;
  limits.page_size = -3;
  limits.max_sequences = 2;
  const Status status = limits.Validate();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), ::testing::HasSubstr("page_size is -3, the limits are 1 to 1024"));
  EXPECT_THAT(status.message(), ::testing::HasSubstr("max_step_tokens is 0"));
  EXPECT_THAT(status.message(),
              ::testing::HasSubstr("max_choices is 4, more than max_sequences, which is 2"));
}

TEST(EngineLimitsTest, PrintsEveryBoundWithWhatHappensThere) {
  const EngineLimits limits = SmallSteps(TestLayout({0}, 4));
  const std::string text = limits.ToString();
  EXPECT_THAT(text,
              ::testing::HasSubstr(
                  "pool_pages = 1000: the youngest sequence is preempted and recomputed; of a step 50 us\n"));
  EXPECT_THAT(text,
              ::testing::HasSubstr("max_sequences = 64: later requests wait in order; of a step 19 us\n"));
  EXPECT_THAT(text, ::testing::HasSubstr(
                        "lane_policy = fair: after max_prefill_steps prefill steps comes a decode step\n"));
  EXPECT_THAT(text,
              ::testing::HasSubstr("recorded_rows = 1 2 4 8 16 24 32 40 48 56 64: a wider decode step"));
  EXPECT_THAT(text, ::testing::HasSubstr("recorded_rows with sinks = 1 2 4 8 16 32 64: likewise\n"));
  EXPECT_THAT(text, ::testing::HasSubstr("prefix_cache = off: a page is free as soon as"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 36);
}

TEST(LanePolicyTest, HasANameThatReadsBack) {
  for (const char* name : {"fair", "prefill-first", "decode-first"}) {
    const std::optional<LanePolicy> policy = ParseLanePolicy(name);
    ASSERT_TRUE(policy.has_value()) << name;
    EXPECT_STREQ(LanePolicyName(*policy), name);
  }
  EXPECT_EQ(EngineLimits().lane_policy, LanePolicy::kFair);
  EXPECT_FALSE(ParseLanePolicy("prefill").has_value());
}

// Costs against the definition, token by token.
TEST(PrefillCostTest, CountsTheKeysThatEachTokenSees) {
  for (const std::vector<int32_t>& windows :
       std::vector<std::vector<int32_t>>{{0}, {7}, {0, 7, 7, 7}, {1, 0}, {5, 9}}) {
    const PrefillCost cost(TestLayout(windows, 4), 10);
    for (int64_t begin : {0, 1, 5, 6, 7, 8, 30}) {
      for (int64_t end : {begin, begin + 1, begin + 2, begin + 9, begin + 40}) {
        int64_t parts = 0;
        for (int64_t p = begin; p < end; ++p) {
          for (int32_t window : windows)
            parts += 10 + (window == 0 ? p + 1 : std::min<int64_t>(p + 1, window));
        }
        ASSERT_EQ(cost.Parts(begin, end), parts) << begin << " to " << end;
      }
    }
    EXPECT_EQ(cost.parts_per_token(), 10 * static_cast<int64_t>(windows.size()));
    EXPECT_EQ(cost.TokenEquivalents(cost.parts_per_token() + 1), 2);
  }
}

}  // namespace
}  // namespace tramontane

// The scheduler's bounds as timelines under a fake clock: each test draws what should happen, then compares
// plans.
//
// Costs count each attended key as almost nothing here, so a chunk of c tokens costs c + 1 (rounded up), and
// decode one a row. Steps are of 8 tokens, so half a step, what the oldest prompt is sure of, is 4.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/engine/fake_serving.h"

namespace tramontane {
namespace {

using ::testing::ElementsAre;

EngineLimits EightTokenSteps(const KvLayout& layout, int64_t pool_pages = 1000) {
  EngineLimits limits = TestLimits(layout, pool_pages);
  limits.max_step_tokens = 8;
  limits.context = ContextThatFits(layout, pool_pages, limits.max_step_tokens);
  limits.max_choices = 4;
  return limits;
}

// a decodes when b arrives with 24 tokens:
//
//   step     1  2  3  4  5  6  7  8
//   prefill  a     b     b     b
//   decode      a     a     a     ab      gap: one prefill step
TEST(TimelineTest, DecodeWaitsForOnePrefillStepAtATime) {
  const KvLayout layout = TestLayout({0}, 4);
  FakeServing serving(EightTokenSteps(layout), layout);
  serving.Submit({.id = "a", .prompt_tokens = 1, .max_tokens = 20});
  EXPECT_THAT(serving.Steps(2),
              ElementsAre("step 1 prefill cost 2: a.0[0,1)*", "step 2 decode cost 1: a.0[1,2)*"));
  serving.Submit({.id = "b", .prompt_tokens = 24, .max_tokens = 5});
  EXPECT_THAT(
      serving.Steps(6),
      ElementsAre("step 3 prefill cost 9: b.0[0,8)", "step 4 decode cost 1: a.0[2,3)*",
                  "step 5 prefill cost 9: b.0[8,16)", "step 6 decode cost 1: a.0[3,4)*",
                  "step 7 prefill cost 9: b.0[16,24)*", "step 8 decode cost 2: a.0[4,5)* b.0[24,25)*"));
}

// The same with max_prefill_steps = 2:
//
//   step     3  4  5  6  7
//   prefill  b  b     b
//   decode         a     ab               gap: two prefill steps
TEST(TimelineTest, DecodeWaitsForAsManyPrefillStepsAsConfigured) {
  const KvLayout layout = TestLayout({0}, 4);
  EngineLimits limits = EightTokenSteps(layout);
  limits.max_prefill_steps = 2;
  FakeServing serving(limits, layout);
  serving.Submit({.id = "a", .prompt_tokens = 1, .max_tokens = 20});
  serving.Steps(2);
  serving.Submit({.id = "b", .prompt_tokens = 24, .max_tokens = 5});
  EXPECT_THAT(serving.Steps(5),
              ElementsAre("step 3 prefill cost 9: b.0[0,8)", "step 4 prefill cost 9: b.0[8,16)",
                          "step 5 decode cost 1: a.0[2,3)*", "step 6 prefill cost 9: b.0[16,24)*",
                          "step 7 decode cost 2: a.0[3,4)* b.0[24,25)*"));
}

// prefill-first: a stands still until b's prompt is done.
//
//   step     3  4  5  6
//   prefill  b  b  b
//   decode            ab                  gap: three prefill steps
TEST(TimelineTest, PrefillFirstLetsDecodeWaitForWholePrompts) {
  const KvLayout layout = TestLayout({0}, 4);
  EngineLimits limits = EightTokenSteps(layout);
  limits.lane_policy = LanePolicy::kPrefillFirst;
  FakeServing serving(limits, layout);
  serving.Submit({.id = "a", .prompt_tokens = 1, .max_tokens = 20});
  serving.Steps(2);
  serving.Submit({.id = "b", .prompt_tokens = 24, .max_tokens = 5});
  EXPECT_THAT(
      serving.Steps(4),
      ElementsAre("step 3 prefill cost 9: b.0[0,8)", "step 4 prefill cost 9: b.0[8,16)",
                  "step 5 prefill cost 9: b.0[16,24)*", "step 6 decode cost 2: a.0[2,3)* b.0[24,25)*"));
}

// prefill-first has no bound of its own: prompts that end with their first token give their slots back, and
// while such ones come a stands still. The first that goes on to decode keeps its slot (two in all here), and
// then the others wait.
//
//   slots    1 of a, 1 of s0, s1, ... one after another, then of b
//   prefill  a  s0 s1 s2 ... s19 b
//   decode                          ab
TEST(TimelineTest, PrefillFirstHasNoBoundButTheSlots) {
  const KvLayout layout = TestLayout({0}, 4);
  EngineLimits limits = EightTokenSteps(layout);
  limits.lane_policy = LanePolicy::kPrefillFirst;
  limits.max_sequences = 2;
  limits.max_choices = 1;
  FakeServing serving(limits, layout);
  serving.Submit({.id = "a", .prompt_tokens = 1, .max_tokens = 20});
  serving.Steps(1);
  for (int i = 0; i < 20; ++i) {
    serving.Submit({.id = "s" + std::to_string(i), .prompt_tokens = 8, .max_tokens = 1});
  }
  for (const char* id : {"b", "c"}) serving.Submit({.id = id, .prompt_tokens = 8, .max_tokens = 2});
  for (const std::string& plan : serving.Steps(21)) EXPECT_THAT(plan, ::testing::HasSubstr("prefill"));
  EXPECT_THAT(serving.Steps(2),
              ElementsAre("step 23 decode cost 2: a.0[1,2)* b.0[8,9)*", "step 24 prefill cost 9: c.0[0,8)*"));
}

// decode-first: b's prompt waits until a is done, and c's until b is.
//
//   step     3  4  5  6  7  8
//   prefill        b     b     c          each prefill step comes when nothing decodes
//   decode   a  a     -     b
TEST(TimelineTest, DecodeFirstLetsPromptsWaitForWholeAnswers) {
  const KvLayout layout = TestLayout({0}, 4);
  EngineLimits limits = EightTokenSteps(layout);
  limits.lane_policy = LanePolicy::kDecodeFirst;
  FakeServing serving(limits, layout);
  serving.Submit({.id = "a", .prompt_tokens = 1, .max_tokens = 4});
  serving.Steps(2);
  serving.Submit({.id = "b", .prompt_tokens = 12, .max_tokens = 2});
  serving.Submit({.id = "c", .prompt_tokens = 12, .max_tokens = 1});
  EXPECT_THAT(serving.Steps(7),
              ElementsAre("step 3 decode cost 1: a.0[2,3)*", "step 4 decode cost 1: a.0[3,4)*",
                          "step 5 prefill cost 9: b.0[0,8)", "step 6 prefill cost 9: b.0[8,12)* c.0[0,4)",
                          "step 7 decode cost 1: b.0[12,13)*", "step 8 prefill cost 9: c.0[4,12)*", ""));
}

// A prompt of 40 is part-way when one of 3 arrives: it is done in the next step, and what it leaves goes
// back.
//
//   step     1      2            3
//   prefill  L 8    L 4+1  s 3   L 8
TEST(TimelineTest, AShortPromptBehindALongOneIsDoneInTheNextStep) {
  const KvLayout layout = TestLayout({0}, 4);
  FakeServing serving(EightTokenSteps(layout), layout);
  serving.Submit({.id = "L", .prompt_tokens = 40, .max_tokens = 1});
  serving.Steps(1);
  serving.Submit({.id = "s", .prompt_tokens = 3, .max_tokens = 1});
  EXPECT_THAT(serving.Steps(2),
              ElementsAre("step 2 prefill cost 9: L.0[8,13) s.0[0,3)*", "step 3 prefill cost 9: L.0[13,21)"));
}

// Three equal prompts of 16 at once. Sharing equally would end all of them after 6 steps; in order they end
// after 2, 4 and 6: the last no later, the mean 4 instead of 6.
//
//   step     1    2    3    4    5    6
//   prefill  a 8  a 8* b 8  b 8* c 8  c 8*
TEST(TimelineTest, EqualPromptsAreDoneOneAfterAnother) {
  const KvLayout layout = TestLayout({0}, 4);
  FakeServing serving(EightTokenSteps(layout), layout);
  for (const char* id : {"a", "b", "c"}) serving.Submit({.id = id, .prompt_tokens = 16, .max_tokens = 1});
  EXPECT_THAT(serving.Steps(6),
              ElementsAre("step 1 prefill cost 9: a.0[0,8)", "step 2 prefill cost 9: a.0[8,16)*",
                          "step 3 prefill cost 9: b.0[0,8)", "step 4 prefill cost 9: b.0[8,16)*",
                          "step 5 prefill cost 9: c.0[0,8)", "step 6 prefill cost 9: c.0[8,16)*"));
}

// L of 40 is the oldest, m of 12 arrives in step 2: neither fits half a step, so the shortest remaining gets
// the rest.
//
//   step     1    2        3        4        5
//   prefill  L 8  L 4 m 4  L 4 m 4  L 4 m 4* L 8
TEST(TimelineTest, TheShortestRemainingGetsWhatTheOldestLeaves) {
  const KvLayout layout = TestLayout({0}, 4);
  FakeServing serving(EightTokenSteps(layout), layout);
  serving.Submit({.id = "L", .prompt_tokens = 40, .max_tokens = 1});
  serving.Steps(1);
  serving.Submit({.id = "m", .prompt_tokens = 12, .max_tokens = 1});
  EXPECT_THAT(
      serving.Steps(4),
      ElementsAre("step 2 prefill cost 9: L.0[8,12) m.0[0,4)", "step 3 prefill cost 9: L.0[12,16) m.0[4,8)",
                  "step 4 prefill cost 9: L.0[16,20) m.0[8,12)*", "step 5 prefill cost 9: L.0[20,28)"));
}

// A new short prompt of 4 before every step, for ever: the long one of 16 still gets half of each step.
//
//   step     1         2         3         4          5
//   prefill  L 4 s0 4* L 4 s1 4* L 4 s2 4* L 4* s3 4* s4 4*
TEST(TimelineTest, AStreamOfShortPromptsCannotHoldUpALongOne) {
  const KvLayout layout = TestLayout({0}, 4);
  FakeServing serving(EightTokenSteps(layout), layout);
  serving.Submit({.id = "L", .prompt_tokens = 16, .max_tokens = 1});
  std::vector<std::string> plans;
  for (int i = 0; i < 5; ++i) {
    serving.Submit({.id = "s" + std::to_string(i), .prompt_tokens = 4, .max_tokens = 1});
    plans.push_back(serving.Steps(1)[0]);
  }
  EXPECT_THAT(
      plans,
      ElementsAre("step 1 prefill cost 9: L.0[0,4) s0.0[0,4)*", "step 2 prefill cost 9: L.0[4,8) s1.0[0,4)*",
                  "step 3 prefill cost 9: L.0[8,12) s2.0[0,4)*",
                  "step 4 prefill cost 9: L.0[12,16)* s3.0[0,4)*", "step 5 prefill cost 5: s4.0[0,4)*"));
}

// Long prompts before every step, two places of three taken: the short one uses the place that is kept.
//
//   step     1       2       3       4            5
//   prefill  L0 8    L0 8    L0 8    L0 4+1 s 3*  L0 3* L1 5
TEST(TimelineTest, AStreamOfLongPromptsCannotHoldUpAShortOne) {
  const KvLayout layout = TestLayout({0}, 4);
  EngineLimits limits = EightTokenSteps(layout);
  limits.max_partial_prefills = 3;
  FakeServing serving(limits, layout);
  std::vector<std::string> plans;
  for (int i = 0; i < 5; ++i) {
    serving.Submit({.id = "L" + std::to_string(i), .prompt_tokens = 32, .max_tokens = 1});
    if (i == 3) serving.Submit({.id = "s", .prompt_tokens = 3, .max_tokens = 1});
    plans.push_back(serving.Steps(1)[0]);
  }
  EXPECT_THAT(
      plans, ElementsAre("step 1 prefill cost 9: L0.0[0,8)", "step 2 prefill cost 9: L0.0[8,16)",
                         "step 3 prefill cost 9: L0.0[16,24)", "step 4 prefill cost 9: L0.0[24,29) s.0[0,3)*",
                         "step 5 prefill cost 9: L0.0[29,32)* L1.0[0,5)"));
}

// One long, then six of 3, all at once, one decode sequence d: the i-th short one starts in the i-th prefill
// step at the latest, and every second step is d's.
//
//   step     1   2                3  4                 5  6                 7  8            9
//   prefill  d   L 4 s0* s1 1        L 4 s1* s2 2         L 4 s2* s3*          L 4 s4* s5 1
//   decode                        d                    ...
TEST(TimelineTest, AllAtOnceShortPromptsFollowEachOtherInOrder) {
  const KvLayout layout = TestLayout({0}, 4);
  FakeServing serving(EightTokenSteps(layout), layout);
  serving.Submit({.id = "d", .prompt_tokens = 1, .max_tokens = 50});
  serving.Steps(1);
  serving.Submit({.id = "L", .prompt_tokens = 40, .max_tokens = 1});
  for (int i = 0; i < 6; ++i) {
    serving.Submit({.id = "s" + std::to_string(i), .prompt_tokens = 3, .max_tokens = 1});
  }
  EXPECT_THAT(
      serving.Steps(8),
      ElementsAre("step 2 prefill cost 9: L.0[0,4) s0.0[0,3)* s1.0[0,1)", "step 3 decode cost 1: d.0[1,2)*",
                  "step 4 prefill cost 9: L.0[4,8) s1.0[1,3)* s2.0[0,2)", "step 5 decode cost 1: d.0[2,3)*",
                  "step 6 prefill cost 9: L.0[8,12) s2.0[2,3)* s3.0[0,3)*", "step 7 decode cost 1: d.0[3,4)*",
                  "step 8 prefill cost 9: L.0[12,16) s4.0[0,3)* s5.0[0,1)",
                  "step 9 decode cost 1: d.0[4,5)*"));
}

// Prompts that end within a step need no place: any number of them goes at once.
TEST(TimelineTest, TinyPromptsShareOneStepWhateverTheNumberOfPlaces) {
  const KvLayout layout = TestLayout({0}, 4);
  EngineLimits limits = EightTokenSteps(layout);
  limits.max_partial_prefills = 1;
  FakeServing serving(limits, layout);
  for (const char* id : {"a", "b", "c", "d"}) serving.Submit({.id = id, .prompt_tokens = 2, .max_tokens = 1});
  EXPECT_THAT(serving.Steps(1),
              ElementsAre("step 1 prefill cost 9: a.0[0,2)* b.0[0,2)* c.0[0,2)* d.0[0,2)*"));
}

// Two places: one for L, one kept. m, which does not fit one chunk, waits for L; s0 is done at once, s1
// begins.
//
//   step     1    2    3               4
//   prefill  L 8  L 8  L 4 s0 3* s1 1  L 6 s1 2*
TEST(TimelineTest, OnePlaceIsKeptForPromptsThatFitOneChunk) {
  const KvLayout layout = TestLayout({0}, 4);
  EngineLimits limits = EightTokenSteps(layout);
  limits.max_partial_prefills = 2;
  FakeServing serving(limits, layout);
  serving.Submit({.id = "L", .prompt_tokens = 40, .max_tokens = 1});
  serving.Steps(1);
  serving.Submit({.id = "m", .prompt_tokens = 12, .max_tokens = 1});
  EXPECT_THAT(serving.Steps(1), ElementsAre("step 2 prefill cost 9: L.0[8,16)"));
  for (const char* id : {"s0", "s1"}) serving.Submit({.id = id, .prompt_tokens = 3, .max_tokens = 1});
  EXPECT_THAT(serving.Steps(2), ElementsAre("step 3 prefill cost 9: L.0[16,20) s0.0[0,3)* s1.0[0,1)",
                                            "step 4 prefill cost 9: L.0[20,26) s1.0[1,3)*"));
}

// A pool of 10 pages of 4. Prompts a and b need 7 each: b would end up with a in a gridlock, so it does not
// start, and c, which would fit, does not pass it for want of pages.
//
//   step     1    2    3    4              5    6
//   prefill  a 8  a 8  a 8  a 4* (ends)    b 4+.. c
TEST(TimelineTest, APromptStartsOnlyWhenThePoolHoldsWhatAllPartWayPromptsNeed) {
  const KvLayout layout = TestLayout({0}, 4);
  FakeServing serving(EightTokenSteps(layout, 10), layout);
  for (const char* id : {"a", "b"}) serving.Submit({.id = id, .prompt_tokens = 28, .max_tokens = 1});
  serving.Submit({.id = "c", .prompt_tokens = 4, .max_tokens = 1});
  EXPECT_THAT(serving.Steps(8),
              ElementsAre("step 1 prefill cost 9: a.0[0,8)", "step 2 prefill cost 9: a.0[8,16)",
                          "step 3 prefill cost 9: a.0[16,24)", "step 4 prefill cost 5: a.0[24,28)*",
                          "step 5 prefill cost 9: b.0[0,4) c.0[0,4)*", "step 6 prefill cost 9: b.0[4,12)",
                          "step 7 prefill cost 9: b.0[12,20)", "step 8 prefill cost 9: b.0[20,28)*"));
}

// Pages of 1 and a pool of 42: d has one and takes another with each decode step, a and b need 28 and 12.
// When b begins its last 4 tokens, d has taken a page too many: b gets 3, because a still needs the others.
//
//   step     1  2        3  4        5  6          free before step 6: 23, of which a needs 20
//   prefill  d  a 4 b 4     a 4 b 4     a 4+1 b 3
//   decode               d           d
TEST(TimelineTest, AYoungerPromptLeavesThePagesThatAnOlderOneNeeds) {
  const KvLayout layout = TestLayout({0}, 1);
  FakeServing serving(EightTokenSteps(layout, 42), layout);
  serving.Submit({.id = "d", .prompt_tokens = 1, .max_tokens = 30});
  serving.Steps(1);
  serving.Submit({.id = "a", .prompt_tokens = 28, .max_tokens = 1});
  serving.Submit({.id = "b", .prompt_tokens = 12, .max_tokens = 1});
  EXPECT_THAT(serving.Steps(5),
              ElementsAre("step 2 prefill cost 9: a.0[0,4) b.0[0,4)", "step 3 decode cost 1: d.0[1,2)*",
                          "step 4 prefill cost 9: a.0[4,8) b.0[4,8)", "step 5 decode cost 1: d.0[2,3)*",
                          "step 6 prefill cost 9: a.0[8,13) b.0[8,11)"));
  serving.RunUntilIdle(100);
}

// A pool of 4 pages: d holds one and may need another, so a, which needs the other three, waits until d has
// ended.
//
//   step     1  2  3  4
//   prefill  d        a 8
//   decode      d  d*
TEST(TimelineTest, APromptLeavesAPageForEverySequenceInDecode) {
  const KvLayout layout = TestLayout({0}, 4);
  FakeServing serving(EightTokenSteps(layout, 4), layout);
  serving.Submit({.id = "d", .prompt_tokens = 1, .max_tokens = 3});
  serving.Steps(1);
  serving.Submit({.id = "a", .prompt_tokens = 12, .max_tokens = 1});
  EXPECT_THAT(serving.Steps(3),
              ElementsAre("step 2 decode cost 1: d.0[1,2)*", "step 3 decode cost 1: d.0[2,3)*",
                          "step 4 prefill cost 9: a.0[0,8)"));
}

// Pages of 4, a pool of 4: both prompts fit, then both grow until the pool is full. At step 6 a needs a third
// page and b gives both of its own; its prompt and the 5 tokens it had are computed again.
//
//   step     1   2   3   4   5   6   7   8   9   10
//   a        p   d   d   d   d   d   d
//   b        p   d   d   d   d           p   p*  d
TEST(TimelineTest, TheYoungestIsPreemptedAndComputedAgain) {
  const KvLayout layout = TestLayout({0}, 4);
  FakeServing serving(EightTokenSteps(layout, 4), layout);
  serving.Submit({.id = "a", .prompt_tokens = 4, .max_tokens = 7});
  serving.Submit({.id = "b", .prompt_tokens = 4, .max_tokens = 7});
  EXPECT_THAT(
      serving.Steps(12),
      ElementsAre("step 1 prefill cost 9: a.0[0,4)* b.0[0,4)*", "step 2 decode cost 2: a.0[4,5)* b.0[4,5)*",
                  "step 3 decode cost 2: a.0[5,6)* b.0[5,6)*", "step 4 decode cost 2: a.0[6,7)* b.0[6,7)*",
                  "step 5 decode cost 2: a.0[7,8)* b.0[7,8)*",  // 5 tokens of output each
                  "step 6 decode cost 1: a.0[8,9)*",            // b gives its pages
                  "step 7 decode cost 1: a.0[9,10)*",           // a ends with 7 tokens
                  "step 8 prefill cost 9: b.0[0,8)", "step 9 prefill cost 2: b.0[8,9)*",
                  "step 10 decode cost 1: b.0[9,10)*", "", ""));
  EXPECT_EQ(serving.ended("a").usage[0].preemptions, 0);
  EXPECT_EQ(serving.ended("b").usage[0].preemptions, 1);
  EXPECT_EQ(serving.ended("b").usage[0].prefill_chunks, 3);
  EXPECT_EQ(serving.ended("b").completion_tokens[0], 7);
}

// A group with window 5, pages of 4 and chunks of 7: a full chunk can need ceil(11 / 4) + 1 = 4 pages, the
// pool has 3. The chunk shrinks to what fits, and nobody waits.
//
//   pages    |0..3|4..7|8..11|12..15|16..19|20..23|
//   step 1    ....... 0..6
//   step 2    ^ the query at 7 sees 3..7: both pages stay, one is free: 7..11
//   step 3              ^ the query at 12 sees 8..12, two are free: 12..18
//   step 4                    ^ the query at 19 sees 15..19, one is free: 19..23
TEST(TimelineTest, ChunksShrinkWhereThePoolIsShortOfPages) {
  const KvLayout layout = TestLayout({5}, 4);
  EngineLimits limits = EightTokenSteps(layout, 3);
  limits.max_step_tokens = 7;
  FakeServing serving(limits, layout);
  serving.Submit({.id = "a", .prompt_tokens = 26, .max_tokens = 1});
  EXPECT_THAT(serving.Steps(5),
              ElementsAre("step 1 prefill cost 8: a.0[0,7)", "step 2 prefill cost 6: a.0[7,12)",
                          "step 3 prefill cost 8: a.0[12,19)", "step 4 prefill cost 6: a.0[19,24)",
                          "step 5 prefill cost 3: a.0[24,26)*"));
}

// Costs: kappa 4 and a step of cost 16. A token at position p costs 1 + (p + 1) / 4, so chunks shrink as the
// prompt grows: positions 0..7 cost 8 + 36/4 = 17, so 0..6 go; 7..11 cost 5 + 50/4 = 17.5, so 7..10 go; and
// so on. One token always goes.
TEST(TimelineTest, ChunksShrinkAsTheirTokensAttendMoreKeys) {
  const KvLayout layout = TestLayout({0}, 4);
  EngineLimits limits = EightTokenSteps(layout);
  limits.attended_keys_per_token = 4;
  limits.max_step_cost = 16;
  FakeServing serving(limits, layout);
  serving.Submit({.id = "a", .prompt_tokens = 80, .max_tokens = 1});
  EXPECT_THAT(serving.Steps(4),
              ElementsAre("step 1 prefill cost 14: a.0[0,7)", "step 2 prefill cost 14: a.0[7,11)",
                          "step 3 prefill cost 13: a.0[11,14)", "step 4 prefill cost 15: a.0[14,17)"));
  while (serving.sequence("a").scheduled_len() < 79) serving.Steps(1);
  EXPECT_THAT(serving.last_plan(), ::testing::HasSubstr("cost 21: a.0[78,79)"))
      << "one token, over the budget";
}

// ---- shares ---------------------------------------------------------------------------------------

// A flood of prompts of 16 is there when n comes with one. It is not behind all of them: it waits for the one
// that has begun, and what the oldest leaves goes to it.
//
//   step     1     2         3           4       5
//   prefill  f0 8  f0 4 n 4  f0 4* n 4   n 8*    f1 8
TEST(TimelineTest, ANewcomerWaitsForOneTurnOfAFlood) {
  const KvLayout layout = TestLayout({0}, 4);
  FakeServing serving(EightTokenSteps(layout), layout);
  for (int i = 0; i < 6; ++i) {
    serving.Submit(
        {.id = "f" + std::to_string(i), .prompt_tokens = 16, .max_tokens = 1, .share = {.caller = "flood"}});
  }
  serving.Steps(1);
  serving.Submit({.id = "n", .prompt_tokens = 16, .max_tokens = 1, .share = {.caller = "new"}});
  EXPECT_THAT(serving.Steps(4),
              ElementsAre("step 2 prefill cost 9: f0.0[8,12) n.0[0,4)",
                          "step 3 prefill cost 9: f0.0[12,16)* n.0[4,8)", "step 4 prefill cost 9: n.0[8,16)*",
                          "step 5 prefill cost 9: f1.0[0,8)"));
}

// The same where each prompt is half a step.
//
//   step     1         2         3         4
//   prefill  f0* f1*   f2* n0*   f3* n1*   f4* f5*
TEST(TimelineTest, ShortPromptsOfTwoCallersGoInTurn) {
  const KvLayout layout = TestLayout({0}, 4);
  FakeServing serving(EightTokenSteps(layout), layout);
  const auto submit = [&](const std::string& caller, int number) {
    serving.Submit({.id = caller + std::to_string(number),
                    .prompt_tokens = 4,
                    .max_tokens = 1,
                    .share = {.caller = caller}});
  };
  for (int i = 0; i < 6; ++i) submit("f", i);
  serving.Steps(1);
  for (int i = 0; i < 2; ++i) submit("n", i);
  EXPECT_THAT(serving.Steps(3), ElementsAre("step 2 prefill cost 9: f2.0[0,4)* n0.0[0,4)*",
                                            "step 3 prefill cost 9: f3.0[0,4)* n1.0[0,4)*",
                                            "step 4 prefill cost 9: f4.0[0,4)* f5.0[0,4)*"));
}

// Tags, in tokens: a's prompts of 8 have 0, 8, 16; b's, of weight 3, have 0, 8/3, 16/3, 8, ...
TEST(TimelineTest, PrefillGoesByWeight) {
  const KvLayout layout = TestLayout({0}, 4);
  FakeServing serving(EightTokenSteps(layout), layout);
  for (int i = 0; i < 3; ++i) {
    serving.Submit(
        {.id = "a" + std::to_string(i), .prompt_tokens = 8, .max_tokens = 1, .share = {.caller = "a"}});
  }
  for (int i = 0; i < 6; ++i) {
    serving.Submit({.id = "b" + std::to_string(i),
                    .prompt_tokens = 8,
                    .max_tokens = 1,
                    .share = {.caller = "b", .weight = 3}});
  }
  std::string order;
  serving.on_plan = [&](const StepPlan& plan) { order += plan.rows[0].sequence->request->id + " "; };
  serving.RunUntilIdle(10);
  EXPECT_EQ(order, "a0 b0 b1 b2 a1 b3 b4 b5 a2 ");
}

// L has weight 3 and is the oldest: it has half of each step at least. Prompts of 4 of another caller have
// the other half until they are a step's tokens ahead of what L has got by its weight; then every other step.
//
//   step     1..4     5    6      7    8      9     10
//   prefill  L 4 s 4  L 8  L 4 s  L 8  L 4 s  L 8*  s s
TEST(TimelineTest, ShortPromptsPassALongOneOfAnotherCallerWithinTheirPart) {
  const KvLayout layout = TestLayout({0}, 4);
  FakeServing serving(EightTokenSteps(layout), layout);
  serving.Submit({.id = "L", .prompt_tokens = 48, .max_tokens = 1, .share = {.caller = "a", .weight = 3}});
  for (int i = 0; i < 8; ++i) {
    serving.Submit(
        {.id = "s" + std::to_string(i), .prompt_tokens = 4, .max_tokens = 1, .share = {.caller = "b"}});
  }
  serving.Steps(3);
  EXPECT_THAT(
      serving.Steps(7),
      ElementsAre("step 4 prefill cost 9: L.0[12,16) s3.0[0,4)*", "step 5 prefill cost 9: L.0[16,24)",
                  "step 6 prefill cost 9: L.0[24,28) s4.0[0,4)*", "step 7 prefill cost 9: L.0[28,36)",
                  "step 8 prefill cost 9: L.0[36,40) s5.0[0,4)*", "step 9 prefill cost 9: L.0[40,48)*",
                  "step 10 prefill cost 9: s6.0[0,4)* s7.0[0,4)*"));
}

// What nobody who is behind can use goes to those that are ahead: b is alone in the end.
//
//   step     1           2
//   prefill  a* b0* ...  b2* b3*
TEST(TimelineTest, ACallerAloneHasTheWholeStep) {
  const KvLayout layout = TestLayout({0}, 4);
  FakeServing serving(EightTokenSteps(layout), layout);
  serving.Submit({.id = "a", .prompt_tokens = 2, .max_tokens = 1, .share = {.caller = "a", .weight = 1000}});
  for (int i = 0; i < 4; ++i) {
    serving.Submit(
        {.id = "b" + std::to_string(i), .prompt_tokens = 3, .max_tokens = 1, .share = {.caller = "b"}});
  }
  EXPECT_THAT(serving.Steps(2), ElementsAre("step 1 prefill cost 9: a.0[0,2)* b0.0[0,3)* b1.0[0,3)*",
                                            "step 2 prefill cost 7: b2.0[0,3)* b3.0[0,3)*"));
}

// Those that have used up their part wait behind newcomers, also where they have nothing alive between two
// requests: a has had 16 more than b when it comes back.
TEST(TimelineTest, ACallerThatAsksForOneThingAfterAnotherIsNoNewcomerEachTime) {
  const KvLayout layout = TestLayout({0}, 4);
  FakeServing serving(EightTokenSteps(layout), layout);
  const auto submit = [&](const char* id, const char* caller) {
    serving.Submit({.id = id, .prompt_tokens = 16, .max_tokens = 1, .share = {.caller = caller}});
  };
  submit("a0", "a");
  submit("b0", "b");
  submit("b1", "b");
  submit("b2", "b");
  serving.Steps(3);
  ASSERT_TRUE(serving.has_ended("a0"));
  submit("a1", "a");
  EXPECT_EQ(serving.scheduler().callers().known(), 2u);
  std::string order;
  serving.on_plan = [&](const StepPlan& plan) {
    for (const StepRow& row : plan.rows) {
      if (plan.Draws(row) > 0) order += row.sequence->request->id + " ";
    }
  };
  serving.RunUntilIdle(20);
  EXPECT_EQ(order, "b0 b1 a1 b2 ") << "a newcomer would be in front of b1";
  submit("c", "c");
  serving.Steps(1);
  EXPECT_EQ(serving.scheduler().callers().known(), 1u) << "of a step without prompts on nobody owes anything";
}

// One slot. The least priority goes first, in order of arrival.
TEST(TimelineTest, TheLeastPriorityGoesFirst) {
  const KvLayout layout = TestLayout({0}, 4);
  EngineLimits limits = EightTokenSteps(layout);
  limits.max_sequences = limits.max_choices = 1;
  FakeServing serving(limits, layout);
  serving.Submit({.id = "a", .prompt_tokens = 8, .max_tokens = 1, .share = {.caller = "", .priority = 7}});
  serving.Steps(1);
  const std::pair<const char*, int32_t> kAsked[] = {{"five", 5}, {"zero", 0}, {"best", -2}, {"zero too", 0}};
  for (const auto& [id, priority] : kAsked)
    serving.Submit(
        {.id = id, .prompt_tokens = 8, .max_tokens = 1, .share = {.caller = "", .priority = priority}});
  EXPECT_THAT(serving.Steps(4),
              ElementsAre("step 2 prefill cost 9: best.0[0,8)*", "step 3 prefill cost 9: zero.0[0,8)*",
                          "step 4 prefill cost 9: zero too.0[0,8)*", "step 5 prefill cost 9: five.0[0,8)*"));
}

// One slot, a step takes 9 ns, and so much of waiting makes up for one of priority. p, of priority 3, waits
// from the beginning on behind a stream of 0: those that come within 27 ns pass it.
//
//   arrives  p q0  q1    q2    q3    q4    q5
//   step     q0    q1    q2    p     q3    q4
TEST(TimelineTest, WaitingMakesUpForPriority) {
  const KvLayout layout = TestLayout({0}, 4);
  EngineLimits limits = EightTokenSteps(layout);
  limits.max_sequences = limits.max_choices = 1;
  limits.priority_ageing_ns = 9;
  FakeServing serving(limits, layout);
  serving.Submit({.id = "p", .prompt_tokens = 8, .max_tokens = 1, .share = {.caller = "", .priority = 3}});
  std::vector<std::string> plans;
  for (int i = 0; i < 6; ++i) {
    serving.Submit({.id = "q" + std::to_string(i), .prompt_tokens = 8, .max_tokens = 1});
    plans.push_back(serving.Steps(1)[0]);
  }
  EXPECT_THAT(plans, ElementsAre("step 1 prefill cost 9: q0.0[0,8)*", "step 2 prefill cost 9: q1.0[0,8)*",
                                 "step 3 prefill cost 9: q2.0[0,8)*", "step 4 prefill cost 9: p.0[0,8)*",
                                 "step 5 prefill cost 9: q3.0[0,8)*", "step 6 prefill cost 9: q4.0[0,8)*"));
}

// Six of f wait for so long that they are equals of the best; n, which comes then, is of another caller.
TEST(TimelineTest, WaitingMakesNobodyBetterThanTheBest) {
  const KvLayout layout = TestLayout({0}, 4);
  EngineLimits limits = EightTokenSteps(layout);
  limits.max_sequences = limits.max_choices = 1;
  limits.priority_ageing_ns = 9;
  FakeServing serving(limits, layout);
  for (int i = 0; i < 6; ++i) {
    serving.Submit({.id = "f" + std::to_string(i),
                    .prompt_tokens = 8,
                    .max_tokens = 1,
                    .share = {.caller = "f", .priority = 1}});
  }
  serving.Steps(3);
  serving.Submit({.id = "n", .prompt_tokens = 8, .max_tokens = 1, .share = {.caller = "n"}});
  EXPECT_THAT(serving.Steps(2),
              ElementsAre("step 4 prefill cost 9: n.0[0,8)*", "step 5 prefill cost 9: f3.0[0,8)*"));
  serving.RunUntilIdle(10);
}

// f may have five of six slots, and there are two: the one that comes back is n's first.
TEST(TimelineTest, TheFirstSlotOfACallerComesBeforeTheNextOfAHeavyOne) {
  const KvLayout layout = TestLayout({0}, 4);
  EngineLimits limits = EightTokenSteps(layout);
  limits.max_sequences = limits.max_choices = 2;
  FakeServing serving(limits, layout);
  for (int i = 0; i < 5; ++i) {
    serving.Submit({.id = "f" + std::to_string(i),
                    .prompt_tokens = 1,
                    .max_tokens = i == 0 ? 20 : 2,
                    .share = {.caller = "f", .weight = 5}});
  }
  serving.Submit({.id = "n", .prompt_tokens = 1, .max_tokens = 1, .share = {.caller = "n"}});
  serving.Steps(3);
  EXPECT_TRUE(serving.has_ended("n"));
  EXPECT_FALSE(serving.has_ended("f2"));
  serving.RunUntilIdle(60);
}

// The same with slots for all: while it has level 3 p gets nothing, short as it is; then it is as old as its
// tag says, before those that came later.
TEST(TimelineTest, WaitingMakesUpForPriorityWithASlot) {
  const KvLayout layout = TestLayout({0}, 4);
  EngineLimits limits = EightTokenSteps(layout);
  limits.priority_ageing_ns = 9;
  FakeServing serving(limits, layout);
  serving.Submit({.id = "p", .prompt_tokens = 4, .max_tokens = 1, .share = {.caller = "", .priority = 3}});
  std::vector<std::string> plans;
  for (int i = 0; i < 5; ++i) {
    serving.Submit({.id = "q" + std::to_string(i), .prompt_tokens = 16, .max_tokens = 1});
    plans.push_back(serving.Steps(1)[0]);
  }
  EXPECT_THAT(plans,
              ElementsAre("step 1 prefill cost 9: q0.0[0,8)", "step 2 prefill cost 9: q0.0[8,16)*",
                          "step 3 prefill cost 9: q1.0[0,8)", "step 4 prefill cost 9: p.0[0,4)* q1.0[8,12)",
                          "step 5 prefill cost 9: q1.0[12,16)* q2.0[0,4)"));
}

// Four slots, all of f, when n comes with three prompts: two are its part, so the youngest two of f, f3 and
// f2, give up pages and slots. As slots come back it is the turn of who holds fewer.
//
//   slots    f0 f1 f2 f3   f0 f1 n0 n1   f0 f1 n2 f2   ..
TEST(TimelineTest, TheYoungestOfTheCallerWithMostSlotsAreSetAside) {
  const KvLayout layout = TestLayout({0}, 4);
  EngineLimits limits = EightTokenSteps(layout);
  limits.max_sequences = 4;
  FakeServing serving(limits, layout);
  for (int i = 0; i < 5; ++i) {
    serving.Submit(
        {.id = "f" + std::to_string(i), .prompt_tokens = 1, .max_tokens = 6, .share = {.caller = "f"}});
  }
  serving.Steps(2);
  for (int i = 0; i < 3; ++i) {
    serving.Submit(
        {.id = "n" + std::to_string(i), .prompt_tokens = 2, .max_tokens = 4, .share = {.caller = "n"}});
  }
  EXPECT_THAT(serving.Steps(6),
              ElementsAre("step 3 prefill cost 5: n0.0[0,2)* n1.0[0,2)*",
                          "step 4 decode cost 4: f0.0[2,3)* f1.0[2,3)* n0.0[2,3)* n1.0[2,3)*",
                          "step 5 decode cost 4: f0.0[3,4)* f1.0[3,4)* n0.0[3,4)* n1.0[3,4)*",
                          "step 6 decode cost 4: f0.0[4,5)* f1.0[4,5)* n0.0[4,5)* n1.0[4,5)*",
                          "step 7 prefill cost 6: f2.0[0,3)* n2.0[0,2)*",
                          "step 8 decode cost 4: f0.0[5,6)* f1.0[5,6)* f2.0[3,4)* n2.0[2,3)*"));
  serving.RunUntilIdle(30);
  EXPECT_EQ(serving.scheduler().preemptions(), 2);
  for (const char* id : {"f2", "f3"}) {
    EXPECT_EQ(serving.ended(id).usage[0].preemptions, 1);
    EXPECT_THAT(serving.ended(id).completion_tokens, ElementsAre(6));
  }
}

// Slots that come back one by one are kept for b, which needs two, once it is next: c, whose weight is
// larger, does not pass it.
TEST(TimelineTest, SlotsAreSavedForARequestThatNeedsSeveral) {
  const KvLayout layout = TestLayout({0}, 4);
  EngineLimits limits = EightTokenSteps(layout);
  limits.max_sequences = limits.max_choices = 2;
  FakeServing serving(limits, layout);
  serving.Submit({.id = "a0", .prompt_tokens = 1, .max_tokens = 3, .share = {.caller = "a"}});
  serving.Submit({.id = "a1", .prompt_tokens = 1, .max_tokens = 6, .share = {.caller = "a"}});
  serving.Steps(1);
  serving.Submit({.id = "b", .prompt_tokens = 1, .max_tokens = 2, .choices = 2, .share = {.caller = "b"}});
  serving.Steps(3);
  ASSERT_TRUE(serving.has_ended("a0"));
  serving.Submit({.id = "c", .prompt_tokens = 1, .max_tokens = 2, .share = {.caller = "c", .weight = 1000}});
  EXPECT_THAT(serving.Steps(3),
              ElementsAre("step 5 decode cost 1: a1.0[4,5)*", "step 6 decode cost 1: a1.0[5,6)*",
                          "step 7 prefill cost 2: b.0[0,1)*2"));
  serving.RunUntilIdle(10);
}

// Nobody is set aside for a caller that has its part, 2 of 6 slots, though another has 3 and a third only 1;
// nor for one whose priority is worse.
TEST(TimelineTest, NobodyIsSetAsideForMoreThanAPartOrForAWorsePriority) {
  const KvLayout layout = TestLayout({0}, 4);
  EngineLimits limits = EightTokenSteps(layout);
  limits.max_sequences = 6;
  for (const int32_t priority : {0, 1}) {
    FakeServing serving(limits, layout);
    for (const std::string caller : {"f", "f", "f", "n", "n", priority == 0 ? "x" : "f", "n"}) {
      serving.Submit({.id = caller + std::to_string(serving.unfinished()),
                      .prompt_tokens = 1,
                      .max_tokens = 6,
                      .share = {.caller = caller, .priority = caller == "n" ? priority : 0}});
    }
    serving.RunUntilIdle(30);
    EXPECT_EQ(serving.scheduler().set_aside(), 0);
  }
}

// A prompt that needs a slot for each of its three choices waits for them all, and what another caller has
// too many of is set aside for them together; n's choices go back and forth in the end, one by one.
TEST(TimelineTest, ARequestOfManyChoicesIsGivenSlotsTogether) {
  const KvLayout layout = TestLayout({0}, 4);
  EngineLimits limits = EightTokenSteps(layout);
  limits.max_sequences = 6;
  FakeServing serving(limits, layout);
  for (int i = 0; i < 6; ++i) {
    serving.Submit(
        {.id = "f" + std::to_string(i), .prompt_tokens = 1, .max_tokens = 6, .share = {.caller = "f"}});
  }
  serving.Steps(1);
  serving.Submit({.id = "n", .prompt_tokens = 2, .max_tokens = 4, .choices = 3, .share = {.caller = "n"}});
  EXPECT_THAT(serving.Steps(2), ElementsAre("step 2 prefill cost 3: n.0[0,2)*3",
                                            "step 3 decode cost 6 copies 2: f0.0[1,2)* f1.0[1,2)* f2.0[1,2)* "
                                            "n.0[2,3)* n.1[2,3)* n.2[2,3)*"));
  serving.RunUntilIdle(40);
  EXPECT_EQ(serving.scheduler().preemptions(), 3);
}

// ---- the time between two decode steps ------------------------------------------------------------

constexpr int64_t kMs = 1'000'000;

// A prefill token takes 1 ms, a decode step 2.
StepCosts OneTokenAMillisecond() {
  return {.prefill = TaughtModel(0, kMs, 0), .decode = TaughtModel(2 * kMs, 0, 0)};
}

// a decodes when b comes. Between two decode steps of 2 ms there are 4.5 of 6.5: four tokens. When a is done
// the steps are whole again.
//
//   step     3    4  5    6  7
//   prefill  b 4     b 4     b 8
//   decode        a       a
TEST(TimelineTest, BesideDecodeAPrefillStepTakesWhatFitsIntoTheGap) {
  const KvLayout layout = TestLayout({0}, 4);
  EngineLimits limits = EightTokenSteps(layout);
  limits.decode_gap_ns = 6'500'000;
  limits.least_step_tokens = 2;
  FakeServing serving(limits, layout, OneTokenAMillisecond());
  serving.Submit({.id = "a", .prompt_tokens = 1, .max_tokens = 4});
  serving.Steps(2);
  serving.Submit({.id = "b", .prompt_tokens = 24, .max_tokens = 5});
  EXPECT_THAT(serving.Steps(5),
              ElementsAre("step 3 prefill cost 5: b.0[0,4)", "step 4 decode cost 1: a.0[2,3)*",
                          "step 5 prefill cost 5: b.0[4,8)", "step 6 decode cost 1: a.0[3,4)*",
                          "step 7 prefill cost 9: b.0[8,16)"));
}

// Two prefill steps between decode steps share the time: (8.5 - 2) / 2 ms, three tokens each.
TEST(TimelineTest, PrefillStepsInARowShareTheGap) {
  const KvLayout layout = TestLayout({0}, 4);
  EngineLimits limits = EightTokenSteps(layout);
  limits.max_prefill_steps = 2;
  limits.decode_gap_ns = 8'500'000;
  FakeServing serving(limits, layout, OneTokenAMillisecond());
  serving.Submit({.id = "a", .prompt_tokens = 1, .max_tokens = 20});
  serving.Steps(2);
  serving.Submit({.id = "b", .prompt_tokens = 24, .max_tokens = 5});
  EXPECT_THAT(serving.Steps(3),
              ElementsAre("step 3 prefill cost 4: b.0[0,3)", "step 4 prefill cost 4: b.0[3,6)",
                          "step 5 decode cost 1: a.0[2,3)*"));
}

// However little time there is, a step of fewer than least_step_tokens would waste the machine. The oldest
// has half of them.
TEST(TimelineTest, AStepIsNotCutBelowTheLeastTokens) {
  const KvLayout layout = TestLayout({0}, 4);
  EngineLimits limits = EightTokenSteps(layout);
  limits.decode_gap_ns = 1;
  limits.least_step_tokens = 6;
  FakeServing serving(limits, layout, OneTokenAMillisecond());
  serving.Submit({.id = "a", .prompt_tokens = 1, .max_tokens = 20});
  serving.Steps(2);
  serving.Submit({.id = "b", .prompt_tokens = 24, .max_tokens = 5});
  EXPECT_THAT(serving.Steps(2),
              ElementsAre("step 3 prefill cost 7: b.0[0,6)", "step 4 decode cost 1: a.0[2,3)*"));
  serving.Submit({.id = "s", .prompt_tokens = 4, .max_tokens = 1});
  EXPECT_THAT(serving.Steps(1), ElementsAre("step 5 prefill cost 7: b.0[6,9) s.0[0,3)"));
}

// Nothing was ever timed: the first steps beside decode are the least ones, and what they take decides on the
// next. The prompt of a took 1 ms, its decode step 2.
TEST(TimelineTest, UntimedStepsAreTheLeastOnes) {
  const KvLayout layout = TestLayout({0}, 4);
  EngineLimits limits = EightTokenSteps(layout);
  limits.decode_gap_ns = 8'500'000;
  limits.least_step_tokens = 3;
  FakeServing serving(limits, layout);
  serving.Submit({.id = "a", .prompt_tokens = 1, .max_tokens = 20});
  serving.Steps(2);
  serving.step_ns = [](const StepPlan& plan) {
    return plan.lane == Lane::kPrefill ? plan.tokens * kMs : 2 * kMs;
  };
  serving.Submit({.id = "b", .prompt_tokens = 2000, .max_tokens = 5});
  EXPECT_THAT(serving.Steps(2),
              ElementsAre("step 3 prefill cost 4: b.0[0,3)", "step 4 decode cost 1: a.0[2,3)*"));
  serving.Steps(1);
  EXPECT_THAT(serving.last_plan(), ::testing::HasSubstr("prefill"));
  serving.Steps(14);
  EXPECT_THAT(serving.last_plan(), ::testing::HasSubstr("prefill"));
  std::vector<std::string> plans = serving.Steps(2);
  EXPECT_THAT(plans[1], ::testing::HasSubstr("prefill cost 7: "));
}

// A token at position p costs (p + 1) / 10 ms beside its 1: chunks shrink with the depth, down to the least.
TEST(TimelineTest, ChunksShrinkWithTheirDepthDownToTheLeast) {
  const KvLayout layout = TestLayout({0}, 4);
  EngineLimits limits = EightTokenSteps(layout);
  limits.decode_gap_ns = 8 * kMs;
  limits.least_step_tokens = 2;
  const StepCosts costs = {.prefill = TaughtModel(0, kMs, 0.1 * kMs), .decode = {}};
  FakeServing serving(limits, layout, costs);
  serving.Submit({.id = "a", .prompt_tokens = 1, .max_tokens = 60});
  serving.Steps(2);
  serving.Submit({.id = "b", .prompt_tokens = 100, .max_tokens = 1});
  std::vector<int64_t> starts;
  serving.on_plan = [&](const StepPlan& plan) {
    if (plan.lane == Lane::kPrefill) starts.push_back(plan.rows[0].start);
  };
  serving.Steps(30);
  // 5 tokens take 5 + 15/10 ms, 6 would take 8.1; then 4 take 4 + 30/10, 5 would take 9; 3 take 3 + 33/10 and
  // 3 + 42/10, then 8.1; and from position 31 on 2 take 8.5 ms, and go all the same.
  EXPECT_THAT(starts, ElementsAre(0, 5, 9, 12, 15, 17, 19, 21, 23, 25, 27, 29, 31, 33, 35));
}

// The other policies share no steps, and cut none.
TEST(TimelineTest, OnlyTheFairPolicyHoldsAGap) {
  const KvLayout layout = TestLayout({0}, 4);
  EngineLimits limits = EightTokenSteps(layout);
  limits.decode_gap_ns = 6'500'000;
  limits.lane_policy = LanePolicy::kPrefillFirst;
  FakeServing serving(limits, layout, OneTokenAMillisecond());
  serving.Submit({.id = "a", .prompt_tokens = 1, .max_tokens = 4});
  serving.Steps(2);
  serving.Submit({.id = "b", .prompt_tokens = 24, .max_tokens = 5});
  EXPECT_THAT(serving.Steps(1), ElementsAre("step 3 prefill cost 9: b.0[0,8)"));
}

// Two steps in flight: each decode step is planned before the token of the one before is known, and the
// prompt's second chunk before the first is applied.
//
//   plan     1  2  |3  |4  |5  |6     the bar: the step before last is applied
TEST(TimelineTest, PlansRunTwoStepsAhead) {
  const KvLayout layout = TestLayout({0, 4}, 4);
  EngineLimits limits = EightTokenSteps(layout);
  limits.steps_in_flight = 2;
  FakeServing serving(limits, layout);
  serving.Submit({.id = "a", .prompt_tokens = 12, .max_tokens = 4, .stops_after = 2});
  EXPECT_THAT(serving.Steps(2),
              ElementsAre("step 1 prefill cost 9: a.0[0,8)", "step 2 prefill cost 5: a.0[8,12)*"));
  EXPECT_EQ(serving.sequence("a").accepted_len(), 8);
  EXPECT_EQ(serving.sequence("a").scheduled_len(), 12);
  EXPECT_EQ(serving.sequence("a").lease().tables[1].kv_base, 4) << "the window rolls by what is accepted";
  EXPECT_THAT(serving.Steps(2),
              ElementsAre("step 3 decode cost 1: a.0[12,13)*", "step 4 decode cost 1: a.0[13,14)*"));
  // Step 3 is applied: its token, the second, was a stop, and step 4 has run for nothing.
  EXPECT_EQ(serving.sequence("a").state(), SequenceState::kFinished);
  EXPECT_GT(serving.scheduler().store().held_pages(), 0) << "step 4 is still in flight";
  EXPECT_THAT(serving.Steps(1), ElementsAre(""));
  EXPECT_EQ(serving.ended("a").completion_tokens[0], 2);
  EXPECT_EQ(serving.scheduler().store().held_pages(), 0);
}

// The choices of a prompt are known one step late, when the parent's first decode step is in flight already
// and has written into the page that they share.
TEST(TimelineTest, ChoicesForkBehindAParentThatIsAStepAhead) {
  const KvLayout layout = TestLayout({0}, 4);
  EngineLimits limits = EightTokenSteps(layout);
  limits.steps_in_flight = 2;
  FakeServing serving(limits, layout);
  serving.Submit({.id = "a", .prompt_tokens = 6, .max_tokens = 4, .choices = 2});
  EXPECT_THAT(serving.Steps(4),
              ElementsAre("step 1 prefill cost 7: a.0[0,6)*2", "step 2 decode cost 1: a.0[6,7)*",
                          "step 3 decode cost 2 copies 1: a.0[7,8)* a.1[6,7)*",
                          "step 4 decode cost 2: a.0[8,9)* a.1[7,8)*"));
  serving.RunUntilIdle(10);
  EXPECT_THAT(serving.ended("a").completion_tokens, ElementsAre(4, 4));
}

// The youngest is in flight when the older one needs its page: it sits out, although it could go on in its
// own page, and is preempted once its step is applied.
//
//   pages of 4, pool 2, two steps in flight
//   plan     1  2  -        3      the third plan is idle: a has no page, b sits out
//   a        p  d           d
//   b        p  d           preempted
TEST(TimelineTest, AVictimInFlightSitsOutUntilItsStepIsApplied) {
  const KvLayout layout = TestLayout({0}, 4);
  EngineLimits limits = EightTokenSteps(layout, 2);
  limits.steps_in_flight = 2;
  FakeServing serving(limits, layout);
  serving.Submit({.id = "a", .prompt_tokens = 3, .max_tokens = 3});
  serving.Submit({.id = "b", .prompt_tokens = 1, .max_tokens = 5});
  EXPECT_THAT(serving.Steps(4), ElementsAre("step 1 prefill cost 5: a.0[0,3)* b.0[0,1)*",
                                            "step 2 decode cost 2: a.0[3,4)* b.0[1,2)*", "",
                                            "step 3 decode cost 1: a.0[4,5)*"));
  serving.RunUntilIdle(20);
  EXPECT_EQ(serving.ended("b").usage[0].preemptions, 1);
}

}  // namespace
}  // namespace tramontane

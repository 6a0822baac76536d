// Iterations over page tables that roll, as `inspect --kv` shows them and `kv_vectors` checks them.
#include "server/commands/rolling_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace tramontane {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<RollingStep> Traced(const RollingTraceOptions& options) {
  StatusOr<std::vector<RollingStep>> steps = TraceRolling(options);
  EXPECT_TRUE(steps.ok()) << steps.status().ToString();
  return steps.ok() ? *std::move(steps) : std::vector<RollingStep>();
}

// What a row sees by the definitions alone, among all tokens so far.
std::set<int64_t> SeenBy(const RollingTraceOptions& options, int64_t position) {
  const ContextPolicy& policy = options.policy;
  const int64_t window = options.window == 0 ? INT64_MAX : options.window;
  std::vector<int64_t> kept;  // in order of cache positions, under `shift`
  int64_t discarded = 0;
  if (policy.type == ContextPolicyType::kShift) {
    while (position + 1 - discarded > policy.n_ctx) discarded += policy.n_discard;
  }
  for (int64_t token = 0; token <= position; ++token) {
    const bool gone = token >= policy.n_keep && token < policy.n_keep + discarded;
    if (!gone) kept.push_back(token);
  }
  std::set<int64_t> seen;
  for (size_t cache_position = 0; cache_position < kept.size(); ++cache_position) {
    const int64_t token = kept[cache_position];
    bool sees = static_cast<int64_t>(kept.size() - cache_position) <= window;
    if (policy.type == ContextPolicyType::kSinks) {
      const int64_t distance = position - token;
      sees = token < policy.n_keep || (distance < window && distance < policy.n_ctx - policy.n_keep);
    }
    if (sees) seen.insert(token);
  }
  return seen;
}

// Each row's mask shows what the definitions say, and the table lists all of it.
void CheckStep(const RollingTraceOptions& options, const RollingStep& step) {
  const StatusOr<RaggedMask> mask = MaskOf(options, step);
  ASSERT_TRUE(mask.ok()) << mask.status().ToString();
  for (size_t b = 0; b < step.rows.size(); ++b) {
    const RollingRow& row = step.rows[b];
    for (size_t query = 0; query < row.block.queries.size(); ++query) {
      std::set<int64_t> shown;
      for (size_t key = 0; key < row.block.keys.size(); ++key) {
        if (!mask->Sees(b, static_cast<int64_t>(query), static_cast<int64_t>(key))) continue;
        shown.insert(row.block.keys[key]);
        EXPECT_GE(PoolSlotOf(row.table, options.page_size, row.block.keys[key]), 0)
            << row.block.keys[key] << " is seen from " << row.block.queries[query];
      }
      EXPECT_EQ(shown, SeenBy(options, row.block.queries[query])) << row.block.queries[query];
    }
  }
}

TEST(RollingTraceTest, TablesListAllThatAnyRowSees) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const auto draw = [&](int32_t least, int32_t most) {
    return std::uniform_int_distribution<int32_t>(least, most)(random);
  };
  for (int round = 0; round < 200; ++round) {
    RollingTraceOptions options;
    for (int32_t b = draw(1, 3); b > 0; --b) options.prompt_tokens.push_back(draw(1, 30));
    options.window = draw(0, 1) * draw(1, 12);
    options.chunk = draw(1, 12);
    options.decode_steps = draw(0, 20);
    options.page_size = draw(1, 5);
    options.policy.type = static_cast<ContextPolicyType>(draw(0, 2));
    const bool endless = options.policy.type != ContextPolicyType::kNone;
    if (endless) {
      options.policy.n_ctx = draw(2, 20);
      options.policy.n_keep = draw(0, static_cast<int32_t>(options.policy.n_ctx) - 1);
      const auto most = static_cast<int32_t>(options.policy.n_ctx - options.policy.n_keep);
      options.policy.n_discard = options.policy.type == ContextPolicyType::kShift ? draw(1, most) : 0;
    } else {
      options.policy.n_keep = 0;
    }
    options.shared_prefix =
        draw(0, 1) * *std::min_element(options.prompt_tokens.begin(), options.prompt_tokens.end());
    for (const RollingStep& step : Traced(options)) CheckStep(options, step);
    if (HasFailure()) FAIL() << "round " << round;
  }
}

TEST(RollingTraceTest, WithoutAPolicyTheMaskIsTheArticles) {
  const RollingTraceOptions options = {
      .prompt_tokens = {4, 1, 3}, .window = 3, .chunk = 2, .decode_steps = 5, .page_size = 1};
  const std::vector<RollingStep> steps = Traced(options);
  ASSERT_EQ(steps.size(), 7u);
  for (const RollingStep& step : steps) {
    const StatusOr<RaggedMask> article = RollingMask(BlocksOf(step), options.window);
    const StatusOr<RaggedMask> general = MaskOf(options, step);
    ASSERT_TRUE(article.ok() && general.ok());
    EXPECT_EQ(BlockDiagonalRows(*article), BlockDiagonalRows(*general));
  }
  EXPECT_THAT(steps[1].rows[0].let_go, ElementsAre(0, 1));
  EXPECT_EQ(steps[1].rows[0].rolled_kv_base, 2);
}

TEST(RollingTraceTest, ADiscardLetsThePageBehindTheSinksGo) {
  const std::vector<RollingStep> steps =
      Traced({.prompt_tokens = {16},
              .window = 0,
              .chunk = 16,
              .decode_steps = 2,
              .page_size = 1,
              .policy = {.type = ContextPolicyType::kShift, .n_ctx = 16, .n_keep = 4, .n_discard = 1}});
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_THAT(steps[0].rows[0].let_go, ElementsAre(4));
  EXPECT_THAT(steps[0].rows[0].table.sinks, IsEmpty());
  EXPECT_THAT(steps[1].rows[0].table.sinks, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(steps[1].rows[0].table.kv_base, 5);
  EXPECT_EQ(steps[2].held_pages, 15);
}

TEST(RollingTraceTest, ASecondPromptFindsTheFullPagesOfTheFirst) {
  const std::vector<RollingStep> steps = Traced({.prompt_tokens = {7, 6},
                                                 .window = 0,
                                                 .chunk = 7,
                                                 .decode_steps = 0,
                                                 .page_size = 2,
                                                 .policy = {},
                                                 .shared_prefix = 5});
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_THAT(steps[0].rows[1].block.queries, IsEmpty());
  EXPECT_EQ(steps[1].rows[1].hit_tokens, 4);
  EXPECT_THAT(steps[1].rows[1].block.queries, ElementsAre(4, 5));
  EXPECT_EQ(steps[1].rows[1].table.pages[1], steps[0].rows[0].table.pages[1]);
  EXPECT_NE(steps[1].rows[1].table.pages[2], steps[0].rows[0].table.pages[2]);
}

TEST(RollingTraceTest, WhatItCannotTraceIsNamed) {
  const RollingTraceOptions good = {.prompt_tokens = {4, 1}, .window = 3, .chunk = 2};
  const auto refused = [&](const std::function<void(RollingTraceOptions&)>& change) {
    RollingTraceOptions options = good;
    change(options);
    return TraceRolling(options).status().ToString();
  };
  using O = RollingTraceOptions;
  EXPECT_THAT(refused([](O& o) { o.prompt_tokens.clear(); }), HasSubstr("seqlens is empty"));
  EXPECT_THAT(refused([](O& o) { o.prompt_tokens[1] = 0; }), HasSubstr("seqlens[1] is 0, allowed are 1 to"));
  EXPECT_THAT(refused([](O& o) { o.window = -1; }), HasSubstr("window is -1, allowed are 0 to"));
  EXPECT_THAT(refused([](O& o) { o.chunk = 0; }), HasSubstr("chunk is 0, allowed are 1 to"));
  EXPECT_THAT(refused([](O& o) { o.page_size = 0; }), HasSubstr("page_size is 0, allowed are 1 to"));
  EXPECT_THAT(refused([](O& o) { o.shared_prefix = 2; }),
              HasSubstr("shared_prefix is 2, allowed are 0 to 1"));
  EXPECT_THAT(refused([](O& o) {
                o.policy = {.type = ContextPolicyType::kSinks, .n_ctx = 4, .n_keep = 4, .n_discard = 0};
              }),
              HasSubstr("n_keep is 4, allowed are 0 to 3"));
  EXPECT_THAT(refused([](O& o) {
                o.policy = {.type = ContextPolicyType::kReevaluate, .n_ctx = 4, .n_keep = 2, .n_discard = 1};
              }),
              HasSubstr("policy is reevaluate"));
}

}  // namespace
}  // namespace tramontane

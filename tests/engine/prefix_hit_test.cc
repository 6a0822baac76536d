#include "engine/kv/names/prefix_hit.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <utility>
#include <vector>

#include "kernels/context_policy.h"
#include "tests/support/test_scale.h"
#include "tests/support/test_seed.h"

namespace tramontane {
namespace {

using Pages = std::vector<std::set<int64_t>>;  // [groups] those that are known

// `policy`: what it shows beside the windows.
int64_t Hit(int64_t prompt, int32_t page_size, const std::vector<PrefixGroup>& groups, const Pages& known,
            const ContextPolicy& policy = {}) {
  return LongestPrefixHit(
      prompt, Paging(page_size), groups,
      [&](size_t group, int64_t page) { return known[group].count(page) > 0; },
      [&](int64_t position) { return ViewAt(policy, position).left; });
}

// The definition, position by position.
bool IsHit(int64_t tokens, int32_t page_size, const std::vector<PrefixGroup>& groups, const Pages& known,
           const ContextPolicy& policy) {
  const int64_t left = ViewAt(policy, tokens).left;
  for (size_t g = 0; g < groups.size(); ++g) {
    for (int64_t p = 0; p < tokens; ++p) {
      const bool in_window = groups[g].window == 0 || p >= tokens - groups[g].window + 1;
      const bool is_needed = (in_window && p >= left) || p < groups[g].n_keep;
      if (is_needed && known[g].count(p / page_size) == 0) return false;
    }
  }
  return true;
}

TEST(PagingTest, SaysWhichPageAPositionLiesInAndWhereThatBegins) {
  const Paging paging(4);
  EXPECT_EQ(paging.PageOf(7), 1);
  EXPECT_EQ(paging.PageOf(8), 2);
  EXPECT_EQ(paging.OffsetOf(7), 3);
  EXPECT_EQ(paging.BeginOf(2), 8);
  EXPECT_EQ(paging.PagesFor(8), 2);
  EXPECT_EQ(paging.PagesFor(9), 3);
  EXPECT_EQ(paging.RoundDown(11), 8);
  EXPECT_EQ(paging.RoundUp(8), 8);
  EXPECT_EQ(paging.RoundUp(9), 12);
}

TEST(LongestPrefixHitTest, WithoutAWindowNeedsEveryPage) {
  const std::vector<PrefixGroup> groups = {{.window = 0}};
  EXPECT_EQ(Hit(17, 4, groups, {{0, 1, 2, 3}}), 16);
  EXPECT_EQ(Hit(17, 4, groups, {{0, 1, 3}}), 8);
  EXPECT_EQ(Hit(17, 4, groups, {{1, 2, 3}}), 0);
  EXPECT_EQ(Hit(17, 4, groups, {{}}), 0);
}

TEST(LongestPrefixHitTest, LeavesAtLeastOneTokenToCompute) {
  const std::vector<PrefixGroup> groups = {{.window = 0}};
  const Pages known = {{0, 1, 2, 3}};
  EXPECT_EQ(Hit(16, 4, groups, known), 12);
  EXPECT_EQ(Hit(4, 4, groups, known), 0);
  EXPECT_EQ(Hit(5, 4, groups, known), 4);
  EXPECT_EQ(Hit(1, 1, groups, {{0}}), 0);
  EXPECT_EQ(Hit(2, 1, groups, {{0}}), 1);
}

TEST(LongestPrefixHitTest, InAWindowNeedsWhatTheNextQuerySees) {
  const std::vector<PrefixGroup> groups = {{.window = 6}};  // the query at 16 sees 11..16
  EXPECT_EQ(Hit(18, 4, groups, {{2, 3}}), 16);
  EXPECT_EQ(Hit(18, 4, groups, {{3}}), 0);
  EXPECT_EQ(Hit(18, 4, {{.window = 5}}, {{3}}), 16) << "12..16";
  EXPECT_EQ(Hit(18, 4, {{.window = 1}}, {{}}), 16) << "itself alone";
}

TEST(LongestPrefixHitTest, NeedsEveryGroup) {
  const std::vector<PrefixGroup> groups = {{.window = 0}, {.window = 6}};
  EXPECT_EQ(Hit(30, 4, groups, {{0, 1, 2, 3, 4, 5}, {0, 1, 4, 5}}), 24);
  EXPECT_EQ(Hit(30, 4, groups, {{0, 1, 2, 3, 4}, {0, 1, 4, 5}}), 8);
  EXPECT_EQ(Hit(30, 4, groups, {{0, 1, 2, 3, 4}, {2}}), 0);
}

TEST(LongestPrefixHitTest, KeptFirstPositionsAreNeededBesideTheWindow) {
  EXPECT_EQ(Hit(18, 4, {{.window = 5, .n_keep = 4}}, {{3}}), 0);
  EXPECT_EQ(Hit(18, 4, {{.window = 5, .n_keep = 4}}, {{0, 3}}), 16);
  EXPECT_EQ(Hit(18, 4, {{.window = 5, .n_keep = 5}}, {{0, 3}}), 4);
}

TEST(LongestPrefixHitTest, UnderAPolicyNeedsWhatIsNotDiscarded) {
  const ContextPolicy shift = {.type = ContextPolicyType::kShift, .n_ctx = 12, .n_keep = 4, .n_discard = 2};
  const std::vector<PrefixGroup> groups = {{.window = 0, .n_keep = 4}};
  EXPECT_EQ(Hit(18, 4, groups, {{0, 2, 3}}, shift), 16) << "the query at 16 sees 0..3 and 10..16";
  EXPECT_EQ(Hit(18, 4, groups, {{2, 3}}, shift), 0);
  EXPECT_EQ(Hit(18, 4, groups, {{0, 3}}, shift), 4);
}

TEST(LongestPrefixHitTest, IsTheLargestThatTheDefinitionAllows) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE("TRAMONTANE_TEST_SEED=" + std::to_string(seed));
  std::mt19937 random(seed);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  for (int64_t round = 0; round < ScaledCount(5000, 500); ++round) {
    const auto page_size = static_cast<int32_t>(1 + below(5));
    const int64_t prompt = 1 + below(60);
    std::vector<PrefixGroup> groups(static_cast<size_t>(1 + below(3)));
    Pages known(groups.size());
    ContextPolicy policy = {.type = static_cast<ContextPolicyType>(below(3)), .n_ctx = 10 + below(30)};
    policy.n_keep = below(9);
    policy.n_discard = 1 + below(policy.n_ctx - policy.n_keep);
    const int64_t missing = 2 + below(20);  // one page of so many
    for (size_t g = 0; g < groups.size(); ++g) {
      groups[g] = {.window = static_cast<int32_t>(below(3) == 0 ? 0 : 1 + below(20)),
                   .n_keep = below(2) * policy.n_keep};
      for (int64_t page = 0; page <= prompt / page_size; ++page) {
        if (below(missing) > 0) known[g].insert(page);
      }
    }
    int64_t longest = 0;
    for (int64_t tokens = 0; tokens < prompt; tokens += page_size) {
      if (IsHit(tokens, page_size, groups, known, policy)) longest = tokens;
    }
    ASSERT_EQ(Hit(prompt, page_size, groups, known, policy), longest) << "round " << round;
  }
}

}  // namespace
}  // namespace tramontane

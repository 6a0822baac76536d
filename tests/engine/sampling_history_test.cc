#include "engine/request/sampling_history.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>

namespace tramontane {
namespace {

constexpr int32_t kEos = 2;

Request MakeRequest(std::vector<int32_t> prompt) {
  Request request;
  request.id = "r";
  request.prompt = std::move(prompt);
  return request;
}

const LogitAdjust* Find(const SamplingHistory& history, int32_t token) {
  for (const LogitAdjust& entry : history.adjusts()) {
    if (entry.token == token) return &entry;
  }
  return nullptr;
}

TEST(SamplingHistory, IsEmptyWhenNothingWasAskedFor) {
  SamplingHistory history(MakeRequest({5, 6, 7}), {kEos});
  history.Append(5);
  EXPECT_TRUE(history.adjusts().empty());
}

TEST(SamplingHistory, RepetitionPenaltySeesPromptAndOutputOthersOnlyTheOutput) {
  Request request = MakeRequest({7, 5, 7});
  request.sampling.repetition_penalty = 1.1f;
  SamplingHistory history(request, {kEos});
  ASSERT_EQ(history.adjusts().size(), 2u);
  EXPECT_EQ(Find(history, 7)->in_context, 1);
  EXPECT_EQ(Find(history, 7)->output_count, 0);
  history.Append(9);
  history.Append(7);
  EXPECT_EQ(Find(history, 9)->in_context, 1);
  EXPECT_EQ(Find(history, 7)->output_count, 1);

  request.sampling.repetition_penalty = 1.0f;
  request.sampling.presence_penalty = 0.5f;
  SamplingHistory presence(request, {kEos});
  EXPECT_TRUE(presence.adjusts().empty());
  presence.Append(7);
  EXPECT_EQ(presence.adjusts().size(), 1u);
}

TEST(SamplingHistory, BansEndingsUntilMinTokensAndThenPutsTheRequestsBiasBack) {
  Request request = MakeRequest({5});
  request.stopping.min_tokens = 2;
  request.stopping.stop_token_ids = {8, kEos};  // named twice: banned once
  request.sampling.logit_bias = {{8, 1.5f}};
  SamplingHistory history(request, {kEos});
  ASSERT_EQ(history.adjusts().size(), 2u);
  EXPECT_TRUE(std::isinf(Find(history, kEos)->bias) && std::isinf(Find(history, 8)->bias));
  history.Append(5);
  EXPECT_TRUE(std::isinf(Find(history, kEos)->bias));
  history.Append(5);
  EXPECT_EQ(Find(history, kEos)->bias, 0.0f);
  EXPECT_EQ(Find(history, 8)->bias, 1.5f);
}

TEST(SamplingHistory, IgnoreEosLeavesEosAlone) {
  Request request = MakeRequest({5});
  request.stopping.min_tokens = 2;
  request.stopping.ignore_eos = true;
  EXPECT_TRUE(SamplingHistory(request, {kEos}).adjusts().empty());
}

TEST(SamplingHistory, IncrementalUpdatesEqualACountFromTheStart) {
  std::mt19937 random(11);
  Request request = MakeRequest({});
  for (int i = 0; i < 300; ++i) request.prompt.push_back(static_cast<int32_t>(random() % 100));
  request.sampling.repetition_penalty = 1.2f;
  request.sampling.frequency_penalty = 0.1f;
  request.sampling.logit_bias = {{3, -1.0f}, {150, 2.0f}};
  SamplingHistory history(request, {kEos});
  std::map<int32_t, int32_t> counts;
  for (int i = 0; i < 400; ++i) {
    const auto token = static_cast<int32_t>(random() % 200);
    history.Append(token);
    ++counts[token];
  }
  const auto adjusts = history.adjusts();
  std::set<int32_t> named;
  for (const LogitAdjust& entry : adjusts) EXPECT_TRUE(named.insert(entry.token).second) << entry.token;
  for (int32_t token = 0; token < 200; ++token) {
    const bool in_prompt =
        std::find(request.prompt.begin(), request.prompt.end(), token) != request.prompt.end();
    const LogitAdjust* entry = Find(history, token);
    const int32_t count = counts.contains(token) ? counts[token] : 0;
    if (entry == nullptr) {
      EXPECT_TRUE(!in_prompt && count == 0) << token;
      continue;
    }
    EXPECT_EQ(entry->output_count, count) << token;
    EXPECT_EQ(entry->in_context, in_prompt || count > 0) << token;
    EXPECT_EQ(entry->bias, token == 3 ? -1.0f : token == 150 ? 2.0f : 0.0f) << token;
  }
}

}  // namespace
}  // namespace tramontane

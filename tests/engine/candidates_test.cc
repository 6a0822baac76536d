// Many continuations of one prompt in one row: each must get what it gets alone behind the prompt. How a tree
// lies and is listed is held to its definition; the fake model reads every slot that a row sees by that
// definition; on the CPU the logprobs are those of the prompt and one continuation as a prompt of their own,
// bit for bit.

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/attention.h"
#include "tests/support/in_process_engine.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tiny_model.h"

namespace tramontane {
namespace {

using Candidates = std::vector<std::vector<int32_t>>;

Candidates SomeCandidates(const std::vector<int64_t>& lengths) {
  Candidates candidates;
  for (size_t c = 0; c < lengths.size(); ++c) {
    candidates.push_back(MakeRequest("c", lengths[c], 0, /*salt=*/100 + static_cast<uint32_t>(c)).prompt);
  }
  return candidates;
}

Request ScoreRequest(const std::string& id, int64_t prompt_tokens, const std::vector<int64_t>& lengths,
                     uint32_t salt = 0) {
  Request request = MakeRequest(id, prompt_tokens, 0, salt);
  request.candidates = SomeCandidates(lengths);
  return request;
}

std::unique_ptr<StreamReader> Ask(EngineUnderTest& test, const Request& request) {
  auto reader = test.Submit(request);
  EXPECT_TRUE(reader->refused().ok()) << reader->refused();
  if (reader->refused().ok()) test.RunToEnd({reader.get()});
  return reader;
}

struct Score {
  int32_t token = -1;
  float logprob = 0;
  int32_t rank = 0;

  bool operator==(const Score&) const = default;
};
void PrintTo(const Score& score, std::ostream* out) {
  *out << score.token << " " << score.logprob << " #" << score.rank;
}

std::vector<Score> ScoresOf(const StreamReader& reader) {
  std::vector<Score> scores;
  EXPECT_TRUE(reader.status().ok()) << reader.status();
  if (reader.started().size() != 1) return scores;
  for (const TokenInfo& info : reader.started()[0].prompt_logprobs)
    scores.push_back({info.token, info.logprob, info.rank});
  return scores;
}

// Each candidate as the end of a prompt that is scored, one after another.
std::vector<Score> AloneScores(EngineUnderTest& test, const Request& request) {
  std::vector<Score> all;
  for (const std::vector<int32_t>& candidate : request.candidates) {
    Request alone = request;
    alone.candidates.clear();
    alone.prompt.insert(alone.prompt.end(), candidate.begin(), candidate.end());
    alone.output.prompt_logprobs = 0;
    const std::vector<Score> scores = ScoresOf(*Ask(test, alone));
    all.insert(all.end(), scores.end() - static_cast<ptrdiff_t>(candidate.size()), scores.end());
  }
  return all;
}

// ---- how a tree lies ----------------------------------------------------------------------------

TEST(CandidateTree, ABranchBeginsAtAPageWithTheEndOfThePrompt) {
  const CandidateTree tree =
      CandidateTree::Of(std::vector<int32_t>{10, 11, 12, 13, 14, 15}, {{20, 21}, {30, 31, 32}, {40}}, 4);
  EXPECT_EQ(tree.trunk_len, 4);
  EXPECT_EQ(tree.branch_begin, (std::vector<int64_t>{4, 8, 12}));
  EXPECT_EQ(tree.tokens, (std::vector<int32_t>{10, 11, 12, 13, 14, 15, 20, 21, 14, 15, 30, 31, 14, 15}));
  std::vector<std::pair<int64_t, int32_t>> scores;
  for (const TokenToScore& score : tree.scores) scores.emplace_back(score.place, score.token);
  EXPECT_EQ(scores, (std::vector<std::pair<int64_t, int32_t>>{
                        {5, 20}, {6, 21}, {9, 30}, {10, 31}, {11, 32}, {13, 40}}));
  EXPECT_EQ(tree.plain_len(), 8);
  EXPECT_EQ(tree.PositionOf(7), 7);
  EXPECT_EQ(tree.PositionOf(8), 4);
  EXPECT_EQ(tree.PositionOf(13), 5);
  EXPECT_EQ(tree.ScoresBefore(9), 2);
  EXPECT_TRUE(tree.Sees(9, 3, 0));
  EXPECT_FALSE(tree.Sees(9, 3, 2)) << "it stands at 5";
  EXPECT_FALSE(tree.Sees(9, 6, 0)) << "the other branch";
  EXPECT_EQ(CandidateTree::PlacesOf(6, {{20, 21}, {30, 31, 32}, {40}}, 4, 100), tree.places());
  // A prompt that ends with a page: its last page is each branch's own.
  EXPECT_EQ(CandidateTree::Of(std::vector<int32_t>{1, 2, 3, 4}, {{5}, {6}}, 4).branch_begin,
            (std::vector<int64_t>{0, 4}));
}

// What a row is told: every key that a place sees, once, in the order of positions, and as far from a
// multiple of kAttentionOrderKeys as where it stands.
TEST(BranchListing, ShowsWhatAPlaceSeesByTheDefinition) {
  std::mt19937 random(5);
  const auto draw = [&](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random);
  };
  for (int round = 0; round < 60; ++round) {
    const auto page_size = static_cast<int32_t>(int64_t{1} << draw(0, 5));
    const int64_t prompt = draw(1, round % 3 == 0 ? 1300 : 90);
    const auto window = static_cast<int32_t>(round % 2 == 0 ? 0 : draw(1, 700));
    std::vector<int64_t> lengths(static_cast<size_t>(draw(2, 5)));
    for (int64_t& length : lengths) length = draw(1, 40);
    const CandidateTree tree =
        CandidateTree::Of(MakeRequest("r", prompt, 0).prompt, SomeCandidates(lengths), page_size);
    const int64_t end = draw(tree.plain_len() + 1, tree.places());
    const int64_t start = draw(std::max<int64_t>(0, end - 60), end - 1);
    const int64_t first_seen = FirstVisible(std::min(start, tree.trunk_len), window);
    PageTable table;
    table.kv_base = PageOf(first_seen, 0, page_size) * page_size;
    for (int64_t at = table.kv_base; at < end; at += page_size)
      table.pages.push_back(static_cast<PageId>(at / page_size));

    const BranchListing listing(tree, table.kv_base, start, end, page_size);
    std::vector<int32_t> pages(static_cast<size_t>(listing.pages()), -1);
    listing.ListPages(table, pages.data());
    std::vector<uint8_t> bits(static_cast<size_t>(listing.mask_bytes()));
    listing.ShowKeys(window, bits.data());
    for (int64_t place = start; place < end; ++place) {
      std::vector<int64_t> expected, shown;
      for (int64_t key = 0; key <= place; ++key) {
        if (tree.Sees(place, key, window)) expected.push_back(key);
      }
      for (int64_t k = 0; k < listing.keys(); ++k) {
        const int64_t bit = (place - start) * listing.keys() + k;
        if ((bits[static_cast<size_t>(bit / 8)] >> (bit % 8) & 1) == 0) continue;
        const int64_t key = int64_t{pages[static_cast<size_t>(k / page_size)]} * page_size + k % page_size;
        shown.push_back(key);
        ASSERT_EQ((table.kv_base + k) % kAttentionOrderKeys, tree.PositionOf(key) % kAttentionOrderKeys)
            << "round " << round << ", place " << place << ", key " << key;
      }
      ASSERT_EQ(shown, expected) << "round " << round << ", place " << place;
    }
  }
}

// ---- the engine, over the fake model ------------------------------------------------------------

class ScoredCandidates : public testing::TestWithParam<std::vector<int32_t>> {};  // windows
INSTANTIATE_TEST_SUITE_P(Windows, ScoredCandidates,
                         testing::Values(std::vector<int32_t>{0}, std::vector<int32_t>{16, 0},
                                         std::vector<int32_t>{6}, std::vector<int32_t>{1, 9}),
                         [](const auto& info) { return std::to_string(info.index); });

EngineLimits Roomy() {
  EngineLimits limits = SmallLimits(200);
  limits.context = 160;
  return limits;
}

TEST_P(ScoredCandidates, EachGetsWhatItGetsAlone) {
  for (const int32_t step_tokens : {1, 3, 16, 100}) {
    for (const int64_t prompt : {1, 4, 21, 32}) {
      SCOPED_TRACE(std::to_string(step_tokens) + " tokens a step, prompt of " + std::to_string(prompt));
      EngineLimits limits = Roomy();
      limits.max_step_tokens = step_tokens;
      limits.prefix_cache = false;
      SteppedEngine test(limits, GetParam()), alone(Roomy(), GetParam());
      const Request request = ScoreRequest("r", prompt, {3, 1, 9, 4, 1, 12});
      const auto reader = Ask(test, request);
      EXPECT_EQ(ScoresOf(*reader), AloneScores(alone, request));
      EXPECT_EQ(reader->choice().end().reason, FinishReason::kLength);
      EXPECT_EQ(reader->choice().end().usage.prompt_tokens, prompt);
      EXPECT_EQ(reader->choice().end().usage.completion_tokens, 0);
      EXPECT_TRUE(reader->choice().ids.empty());
      EXPECT_EQ(test.engine().Load().held_pages, 0);
    }
  }
}

// Beside texts that decode, in a pool that is short: what is preempted begins again.
TEST_P(ScoredCandidates, ACrowdAndPreemptionChangeNoScore) {
  EngineLimits limits = Roomy();
  limits.pool_pages = 60;
  SteppedEngine test(limits, GetParam()), alone(Roomy(), GetParam());
  std::vector<Request> requests;
  std::vector<std::unique_ptr<StreamReader>> readers;
  std::vector<StreamReader*> all;
  for (uint32_t i = 0; i < 8; ++i) {
    const std::string id = "r" + std::to_string(i);
    requests.push_back(i % 2 == 0 ? MakeRequest(id, 30, 60, i)
                                  : ScoreRequest(id, 20 + i, {5, 2, 7, 1, 3, 8, 2}, i % 4));
    readers.push_back(test.Submit(requests.back()));
    ASSERT_TRUE(readers.back()->refused().ok()) << readers.back()->refused();
    all.push_back(readers.back().get());
    test.Step();
  }
  test.RunToEnd(all);
  if (GetParam() == std::vector<int32_t>{0}) {
    EXPECT_GT(test.engine().Load().preemptions, 0) << "the pool was meant to be too small";
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    if (requests[i].candidates.empty()) {
      EXPECT_EQ(readers[i]->choice().ids, Ask(alone, requests[i])->choice().ids) << i;
    } else {
      EXPECT_EQ(ScoresOf(*readers[i]), AloneScores(alone, requests[i])) << i;
    }
  }
  EXPECT_EQ(test.engine().Load().held_pages, 0);
}

// The trunk is found and is found again; pages of branches, where two tokens stand at one position, never
// are.
TEST_P(ScoredCandidates, TheTrunkIsCachedAndBranchesAreNot) {
  SteppedEngine test(Roomy(), GetParam()), alone(Roomy(), GetParam());
  const Request request = ScoreRequest("r", 22, {9, 6, 1});
  const auto first = Ask(test, request);
  EXPECT_EQ(first->choice().end().usage.cached_tokens, 0);
  const auto again = Ask(test, request);
  EXPECT_EQ(again->choice().end().usage.cached_tokens, 20);
  EXPECT_EQ(ScoresOf(*again), ScoresOf(*first));
  // As a prompt, with the first candidate behind it, of which pages were computed.
  Request longer = MakeRequest("longer", 22, 4);
  longer.prompt.insert(longer.prompt.end(), request.candidates[0].begin(), request.candidates[0].end());
  const auto reader = Ask(test, longer);
  EXPECT_EQ(reader->choice().end().usage.cached_tokens, 20);
  EXPECT_EQ(reader->choice().ids, Ask(alone, longer)->choice().ids);
  // A prompt that ends with a page has its last one computed: it gives the first scores.
  EXPECT_EQ(Ask(test, ScoreRequest("at a border", 20, {2, 3}))->choice().end().usage.cached_tokens, 16);
}

TEST_P(ScoredCandidates, ACancelledOneGivesItsPagesBack) {
  EngineLimits limits = Roomy();
  limits.max_step_tokens = 4;
  SteppedEngine test(limits, GetParam());
  auto reader = test.Submit(ScoreRequest("r", 30, {9, 9, 9}));
  for (int i = 0; i < 12; ++i) test.Step();
  EXPECT_GT(test.engine().Load().held_pages, 0);
  reader->stream().Cancel();
  test.RunToEnd({reader.get()});
  EXPECT_EQ(reader->status().code(), StatusCode::kCancelled);
  EXPECT_EQ(test.engine().Load().held_pages, 0);
}

TEST(ScoredCandidatesLimits, BadInputIsRefusedByName) {
  SteppedEngine test(Roomy());
  const auto refusal = [&](const Request& request) { return test.Submit(request)->refused().message(); };
  Request request = ScoreRequest("r", 5, {2, 2});
  request.candidates[1].clear();
  EXPECT_EQ(refusal(request), "candidates[1] is empty; it must hold at least one token");
  request.candidates[1] = {5, 64};
  EXPECT_EQ(refusal(request), "candidates[1] has the id 64 at index 1; the vocabulary has the ids 0 to 63");
  request.candidates[1] = {-1};
  EXPECT_EQ(refusal(request), "candidates[1] has the id -1 at index 0; the vocabulary has the ids 0 to 63");
  request = ScoreRequest("r", 5, std::vector<int64_t>(1025, 1));
  EXPECT_EQ(refusal(request), "candidates has 1025 entries; at most 1024 are allowed");
  request = ScoreRequest("r", 150, {8, 8});
  EXPECT_EQ(
      refusal(request),
      "candidates take 169 or more places together with their prompt of 150 tokens; the context holds 160");
  request = ScoreRequest("r", 5, {2});
  request.stopping.max_tokens = 1;
  EXPECT_EQ(refusal(request), "stopping.max_tokens must be 0 where candidates are scored");
  request = ScoreRequest("r", 5, {2});
  request.choices = 2;
  EXPECT_EQ(refusal(request), "choices must be 1 where candidates are scored");
  request = ScoreRequest("r", 5, {2});
  request.context_policy = ContextPolicy{.type = ContextPolicyType::kSinks, .n_ctx = 20, .n_keep = 2};
  EXPECT_EQ(refusal(request), "context_policy.type is sinks; it must be none where candidates are scored");
}

// The windowed group's pages of all branches are held to the end, which a small pool may not have.
TEST(ScoredCandidatesLimits, WhatThePoolCannotHoldIsRefused) {
  const Request request = ScoreRequest("r", 20, std::vector<int64_t>(10, 6));
  EngineLimits limits = SmallLimits(32);
  limits.context = 140;
  SteppedEngine test(limits, {6}), alone(Roomy(), {6});
  const auto other = test.Submit(MakeRequest("other", 20, 100));
  const auto reader = test.Submit(request);
  ASSERT_TRUE(reader->refused().ok()) << reader->refused();
  test.RunToEnd({other.get(), reader.get()});
  EXPECT_EQ(ScoresOf(*reader), AloneScores(alone, request)) << "with every page of the pool";
  limits.pool_pages = 31;
  SteppedEngine small(limits, {6});
  EXPECT_EQ(small.Submit(request)->refused().message(),
            "candidates take 32 pages with their prompt; the pool has 31");
}

// ---- the CPU ------------------------------------------------------------------------------------

class CandidatesOnTheCpu : public testing::Test {
 protected:
  CandidatesOnTheCpu() {
    TinyModel model;
    model.context = 2048;
    model.window = {16, 0, 600};
    model.layers = 3;
    model.heads = 6;  // groups of three: tiles of rows end within a query
    model.Randomise(11);
    model.WriteMistral(folder_);
    // Queries are scaled by where they stand, which is not where they lie.
    nlohmann::json params = model.MistralParams();
    params["llama_4_scaling"] = {{"original_max_position_embeddings", 32}, {"beta", 0.1}};
    folder_.Write("params.json", params.dump());
  }

  std::unique_ptr<CpuEngine> Start(int32_t page_size, int32_t step_tokens, DType dtype, int32_t threads,
                                   bool cache) {
    BackendEngine::Options options;
    options.kv_dtype = dtype;
    options.threads = threads;
    options.limits.context = 2048;
    options.limits.page_size = page_size;
    options.limits.pool_pages = 20000 / page_size;
    options.limits.max_step_tokens = step_tokens;
    options.limits.prefix_cache = cache;
    return std::make_unique<CpuEngine>(folder_.path(), options);
  }

  const TempFolder folder_;
};

TEST_F(CandidatesOnTheCpu, HaveTheBitsThatTheyHaveAlone) {
  struct Case {
    int32_t page_size;
    int32_t step_tokens;
    DType dtype;
    int32_t threads;
  };
  // Prompts that end within the first block of attention's keys, at a border of its segments, and behind it.
  for (const int64_t prompt : {3, 512, 701}) {
    const Request request = ScoreRequest("r", prompt, {5, 1, 30, 70, 2, 17});
    for (const Case& c : {Case{16, 512, DType::kBf16, 1}, Case{1, 64, DType::kF32, 2},
                          Case{16, 7, DType::kInt8, 2}, Case{64, 100, DType::kInt4, 1}}) {
      SCOPED_TRACE("prompt of " + std::to_string(prompt) + ", pages of " + std::to_string(c.page_size));
      const auto alone = Start(c.page_size, 512, c.dtype, 1, /*cache=*/false);
      const std::vector<Score> expected = AloneScores(*alone, request);
      ASSERT_EQ(expected.size(), 125u);
      const auto test = Start(c.page_size, c.step_tokens, c.dtype, c.threads, /*cache=*/true);
      EXPECT_EQ(ScoresOf(*Ask(*test, request)), expected);
      const auto again = Ask(*test, request);
      const int64_t trunk = (prompt - 1) / c.page_size * c.page_size;
      EXPECT_EQ(again->choice().end().usage.cached_tokens, trunk);
      EXPECT_EQ(ScoresOf(*again), expected) << "the prompt is found";
    }
  }
}

// In one step with prompts that have no mask, and with some that see sinks.
TEST_F(CandidatesOnTheCpu, HaveThemInACrowd) {
  const auto alone = Start(16, 256, DType::kBf16, 1, /*cache=*/false);
  const auto test = Start(16, 256, DType::kBf16, 2, /*cache=*/true);
  std::vector<Request> requests;
  std::vector<std::unique_ptr<StreamReader>> readers;
  std::vector<StreamReader*> all;
  for (uint32_t i = 0; i < 9; ++i) {
    Request request = i % 3 == 0 ? ScoreRequest("s" + std::to_string(i), 40 + 9 * i, {3, 8, 1, 21}, i)
                                 : MakeRequest("g" + std::to_string(i), 30 + 7 * i, 6, i);
    if (i % 3 == 2)
      request.context_policy = ContextPolicy{.type = ContextPolicyType::kSinks, .n_ctx = 40, .n_keep = 4};
    requests.push_back(request);
    readers.push_back(test->Submit(request));
    ASSERT_TRUE(readers.back()->refused().ok()) << readers.back()->refused();
    all.push_back(readers.back().get());
  }
  test->RunToEnd(all);
  for (size_t i = 0; i < requests.size(); ++i) {
    if (requests[i].candidates.empty()) {
      EXPECT_EQ(readers[i]->choice().ids, Ask(*alone, requests[i])->choice().ids) << i;
    } else {
      EXPECT_EQ(ScoresOf(*readers[i]), AloneScores(*alone, requests[i])) << i;
    }
  }
}

}  // namespace
}  // namespace tramontane

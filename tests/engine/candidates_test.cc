// Many continuations of one prompt, which go on from its pages: each must get what it gets alone behind the
// prompt. The fake model reads every slot that a row sees; on the CPU the logprobs are those of the prompt
// and one continuation as a prompt of their own, bit for bit.

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/request/step_bounds.h"
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
  int64_t preemptions = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    preemptions += readers[i]->choice().end().usage.preemptions;
    if (requests[i].candidates.empty()) {
      EXPECT_EQ(readers[i]->choice().ids, Ask(alone, requests[i])->choice().ids) << i;
    } else {
      EXPECT_EQ(ScoresOf(*readers[i]), AloneScores(alone, requests[i])) << i;
    }
  }
  EXPECT_EQ(preemptions, test.engine().Load().preemptions) << "those of branches are their request's";
  EXPECT_EQ(test.engine().Load().held_pages, 0);
}

// An older text takes the pages of a branch that is part-way.
TEST(ScoredCandidatesInATightPool, WhatBranchesArePreemptedIsTheirRequests) {
  SteppedEngine alone(Roomy());
  const Request request = ScoreRequest("r", 18, {60, 2});
  const std::vector<Score> scores = AloneScores(alone, request);
  int64_t preemptions = 0;
  for (int64_t pool = 22; pool < 30; ++pool) {
    EngineLimits limits = Roomy();
    limits.pool_pages = pool;
    limits.context = 80;
    limits.max_step_tokens = 4;
    limits.prefix_cache = false;
    SteppedEngine test(limits);
    const auto older = test.Submit(MakeRequest("older", 21, 50));
    const auto reader = test.Submit(request);
    while (test.engine().Load().prompt_tokens < 21 + 18) test.Step();
    EXPECT_EQ(test.engine().Load().preemptions, 0) << "before it has branches";
    test.RunToEnd({older.get(), reader.get()});
    EXPECT_EQ(ScoresOf(*reader), scores);
    EXPECT_EQ(reader->choice().end().usage.preemptions, test.engine().Load().preemptions);
    preemptions += test.engine().Load().preemptions;
  }
  EXPECT_GT(preemptions, 0);
}

// The pool has a page too few for the branch beside a text that decodes: what was kept for it goes, and it
// begins behind what the cache knows of its prompt, not of its candidate, which somebody has asked for as a
// prompt. Where the prompt ends within a page the branch would need one more, to copy that.
TEST(ScoredCandidatesInATightPool, ABranchWhosePagesAreGoneBeginsWhereItsScoresDo) {
  for (const int64_t prompt : {20, 18}) {
    SCOPED_TRACE("a prompt of " + std::to_string(prompt));
    EngineLimits limits = Roomy();
    limits.pool_pages = prompt == 20 ? 20 : 21;
    limits.context = 64;
    limits.max_step_tokens = 64;
    limits.lane_policy = LanePolicy::kPrefillFirst;
    SteppedEngine test(limits), alone(Roomy());
    const Request request = ScoreRequest("r", prompt, {24});
    Request longer = MakeRequest("longer", prompt, 1);
    longer.prompt.insert(longer.prompt.end(), request.candidates[0].begin(), request.candidates[0].end());
    Ask(test, longer);
    const auto older = test.Submit(MakeRequest("older", 33, 3, 7));
    test.Step();
    const auto reader = test.Submit(request);
    test.Step();
    const int64_t computed = test.engine().Load().prompt_tokens;
    test.RunToEnd({older.get(), reader.get()});
    EXPECT_EQ(test.engine().Load().prompt_tokens - computed, prompt + 23 - prompt / 4 * 4);
    EXPECT_EQ(test.engine().Load().preemptions, 0);
    EXPECT_EQ(ScoresOf(*reader), AloneScores(alone, request));
  }
}

// The prompt is found and is found again; what is computed behind it is not.
TEST_P(ScoredCandidates, ThePromptIsCachedAndBranchesAreNot) {
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
  // Of a prompt that ends with a page the last position gives the first scores.
  EXPECT_EQ(Ask(test, ScoreRequest("at a border", 20, {2, 3}))->choice().end().usage.cached_tokens, 16);
}

// Each is a sequence of its own, whose second token takes a position. What comes meanwhile is not held up.
TEST(ManyCandidates, AStepBeginsAPartOfThem) {
  constexpr int64_t kCandidates = 2 * kChoicesBegun.most + 10;
  EngineLimits limits = SmallLimits(4'000);
  limits.context = 1'000;
  limits.max_step_tokens = 1'000;
  limits.max_logit_rows = 1'000;
  limits.max_sequences = 1'000;
  SteppedEngine test(limits);
  const auto reader = test.Submit(ScoreRequest("many", 20, std::vector<int64_t>(kCandidates, 2)));
  ASSERT_TRUE(reader->refused().ok()) << reader->refused();
  const auto computed = [&] {
    const int64_t before = test.engine().Load().prompt_tokens;
    test.Step();
    return test.engine().Load().prompt_tokens - before;
  };
  EXPECT_EQ(computed(), 20);
  EXPECT_EQ(computed(), kChoicesBegun.most);
  const auto other = test.Submit(MakeRequest("other", 7, 1, 9));
  EXPECT_EQ(computed(), kChoicesBegun.most - 1 + 7);
  EXPECT_EQ(computed(), 11);
  test.RunToEnd({reader.get(), other.get()});
  EXPECT_EQ(ScoresOf(*reader).size(), 2u * kCandidates);
}

// Between two steps that begin its branches.
TEST(ManyCandidates, ACancelledOneBeginsNoMore) {
  EngineLimits limits = SmallLimits(4'000);
  limits.context = 1'000;
  SteppedEngine test(limits);
  const auto reader = test.Submit(ScoreRequest("many", 20, std::vector<int64_t>(2 * kChoicesBegun.most, 2)));
  while (test.engine().Load().prompt_tokens < 22) test.Step();
  reader->stream().Cancel();
  test.RunToEnd({reader.get()});
  EXPECT_EQ(reader->status().code(), StatusCode::kCancelled);
  EXPECT_EQ(test.engine().Load().held_pages, 0);
  EXPECT_LE(test.engine().Load().prompt_tokens, 22 + 16);
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
  EXPECT_EQ(refusal(ScoreRequest("r", 150, {6, 6})), "") << "their last tokens take no position";
  EXPECT_EQ(refusal(ScoreRequest("r", 150, {6, 7})),
            "candidates take 161 positions together with their prompt of 150 tokens; the context holds 160");
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

// However many: each branch has a slot when one is free, in front of what came later.
TEST_P(ScoredCandidates, OneSlotIsEnough) {
  EngineLimits limits = Roomy();
  limits.max_sequences = 1;
  SteppedEngine test(limits, GetParam()), alone(Roomy(), GetParam());
  const Request request = ScoreRequest("r", 21, {3, 1, 9, 4, 1, 12});
  const auto reader = test.Submit(request);
  const auto later = test.Submit(MakeRequest("later", 5, 3));
  while (!reader->done()) {
    EXPECT_TRUE(later->started().empty());
    test.Step();
    later->Poll();
    reader->Poll();
  }
  EXPECT_EQ(ScoresOf(*reader), AloneScores(alone, request));
  test.RunToEnd({later.get()});
  EXPECT_EQ(later->choice().ids, Ask(alone, MakeRequest("later", 5, 3))->choice().ids);
  EXPECT_EQ(test.engine().Load().running, 0);
}

// The prompt once, each candidate but its first and last token. Where the pool is short the prompt's pages
// are not kept, and it is computed again.
TEST_P(ScoredCandidates, ThePromptIsComputedOnceWhereThePoolHoldsIt) {
  const Request request = ScoreRequest("r", 38, {3, 1, 9, 4, 1, 12, 15});
  SteppedEngine alone(Roomy(), GetParam());
  const std::vector<Score> expected = AloneScores(alone, request);
  for (const bool is_short : {false, true}) {
    EngineLimits limits = Roomy();
    limits.prefix_cache = false;
    limits.context = 76;
    if (is_short) limits.pool_pages = 0;
    for (const int32_t window : GetParam()) {
      if (is_short) limits.pool_pages += window == 0 ? 19 : 8;
    }
    SteppedEngine test(limits, GetParam());
    const auto other = test.Submit(MakeRequest("other", 20, 56, 9));
    const auto reader = test.Submit(request);
    test.RunToEnd({other.get(), reader.get()});
    EXPECT_EQ(ScoresOf(*reader), expected);
    const int64_t computed = test.engine().Load().prompt_tokens;
    EXPECT_EQ(test.engine().Load().prefix_queries, 20 + 38) << "a branch asks for nothing";
    if (!is_short) {
      EXPECT_EQ(computed, 20 + 38 + 2 + 8 + 3 + 11 + 14);
    } else if (GetParam() == std::vector<int32_t>{0}) {
      EXPECT_GT(computed, 20 + 38 + 2 + 8 + 3 + 11 + 14) << "the pool was meant to be too small";
    }
    EXPECT_EQ(test.engine().Load().held_pages, 0);
  }
}

TEST_P(ScoredCandidates, ACancelBetweenThePromptAndItsBranchesEndsAll) {
  EngineLimits limits = Roomy();
  limits.max_sequences = 2;
  SteppedEngine test(limits, GetParam());
  const auto reader = test.Submit(ScoreRequest("r", 10, {9, 9, 9}));
  while (test.engine().Load().prompt_tokens < 10) test.Step();
  EXPECT_EQ(test.engine().Load().prompt_tokens, 10) << "no branch has begun";
  EXPECT_GT(test.engine().Load().held_pages, 0) << "the prompt's pages are kept";
  reader->stream().Cancel();
  test.RunToEnd({reader.get()});
  EXPECT_EQ(reader->status().code(), StatusCode::kCancelled);
  EXPECT_EQ(reader->choice().finished.size(), 1u);
  EXPECT_EQ(test.engine().Load().held_pages, 0);
  EXPECT_EQ(test.engine().Load().cancelled_requests, 1);
}

// The request fails, once, and nobody finds what was computed for it, whichever row it was.
TEST_P(ScoredCandidates, AFailedRowOfOneEndsTheRequest) {
  for (const int64_t position : {22, 25}) {
    SteppedEngine test(Roomy(), GetParam());
    const Request request = ScoreRequest("r", 22, {2, 9, 3, 9});
    test.runner().not_finite = [&](const std::string&, int32_t choice, int64_t at) {
      return at == position && choice == (position == 22 ? 0 : 2);
    };
    const auto reader = Ask(test, request);
    EXPECT_EQ(reader->status().code(), StatusCode::kInternal);
    EXPECT_EQ(reader->choice().finished.size(), 1u);
    EXPECT_TRUE(reader->started().at(0).prompt_logprobs.empty());
    EXPECT_EQ(test.engine().Load().held_pages, 0);
    EXPECT_EQ(test.engine().Load().failed_rows, 1);
    test.runner().not_finite = nullptr;
    const auto again = Ask(test, request);
    EXPECT_TRUE(again->status().ok()) << again->status();
    EXPECT_EQ(again->choice().end().usage.cached_tokens, 0) << position;
  }
}

TEST(ScoredCandidatesLimits, CandidatesThatWaitAreCounted) {
  EngineLimits limits = Roomy();
  limits.max_queued_bytes = 8192;
  SteppedEngine test(limits);
  const auto first = test.Submit(MakeRequest("first", 5, 1));
  const auto few = test.Submit(ScoreRequest("few", 5, std::vector<int64_t>(50, 2)));
  EXPECT_TRUE(few->refused().ok()) << few->refused();
  EXPECT_EQ(test.Submit(ScoreRequest("many", 5, std::vector<int64_t>(500, 1)))->refused().code(),
            StatusCode::kResourceExhausted);
  test.RunToEnd({first.get(), few.get()});
}

// Their first tokens are all scored at one position. A step has room for the most of one request, and for a
// score at each of its other tokens.
TEST(ScoredCandidatesLimits, AStepScoresNoMoreThanItHasRoomFor) {
  EngineLimits limits = Roomy();
  limits.max_step_tokens = 16;
  SteppedEngine test(limits), alone(Roomy());
  size_t most = 0;
  test.runner().on_forward = [&](const StepPlan& plan) { most = std::max(most, plan.wants.size()); };
  std::vector<std::unique_ptr<StreamReader>> readers;
  std::vector<StreamReader*> all;
  for (const int64_t candidates : {1024, 1024, 300, 700}) {
    readers.push_back(
        test.Submit(ScoreRequest("r", 3, std::vector<int64_t>(static_cast<size_t>(candidates), 1), 1)));
    all.push_back(readers.back().get());
  }
  test.RunToEnd(all);
  EXPECT_LE(most, static_cast<size_t>(limits.step_scores()));
  EXPECT_GE(most, 1024u);
  for (const StreamReader* reader : all) EXPECT_TRUE(reader->status().ok()) << reader->status();
  EXPECT_EQ(readers[0]->started().at(0).prompt_logprobs.size(), 1024u);
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
      const int64_t cached = (prompt - 1) / c.page_size * c.page_size;
      EXPECT_EQ(again->choice().end().usage.cached_tokens, cached);
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

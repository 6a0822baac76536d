// Constraints in the engine, over a grammar that the test writes itself.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/support/fake_grammar.h"
#include "tests/support/in_process_engine.h"
#include "tests/support/piece_tokenizer.h"

namespace tramontane {
namespace {

constexpr int32_t kEos = SteppedEngine::kEos;

// Ids 0..63; id i spells letter i % 26, but for the controls.
const PieceTokenizer& Letters() {
  static const PieceTokenizer tokenizer([] {
    std::vector<std::string> pieces = {"<unk>", "<s>", "</s>", "<tool>"};
    while (pieces.size() < SteppedEngine::kVocab) pieces.emplace_back(1, char('a' + pieces.size() % 26));
    return pieces;
  }());
  return tokenizer;
}

// `length` tokens, each larger than the one before and at most ten more, then the end.
std::shared_ptr<FakeGrammar> Rising(size_t length) {
  return std::make_shared<FakeGrammar>([length](const std::vector<int32_t>& output) {
    if (output.size() >= length) return std::vector<int32_t>{kEos};
    std::vector<int32_t> allowed;
    const int32_t last = output.empty() ? 9 : output.back();
    for (int32_t step = 1; step <= 10; ++step) allowed.push_back(std::min(63, last + step));
    return allowed;
  });
}

Request Constrained(const std::string& id, std::shared_ptr<const Grammar> grammar, int64_t max_tokens = 20,
                    uint32_t salt = 0) {
  Request request = MakeRequest(id, 12, max_tokens, salt);
  request.constraint.grammar = std::move(grammar);
  request.sampling.temperature = 1.5f;
  request.sampling.seed = salt;
  request.stopping.ignore_eos = false;
  return request;
}

void ExpectRising(const std::vector<int32_t>& ids, size_t length) {
  ASSERT_EQ(ids.size(), length + 1);
  EXPECT_EQ(ids.back(), kEos);
  for (size_t i = 1; i < length; ++i) {
    EXPECT_GE(ids[i], ids[i - 1]);
    EXPECT_LE(ids[i], ids[i - 1] + 10);
  }
}

TEST(Constraint, OnlyAllowedTokensComeAndThenTheEnd) {
  SteppedEngine test(SmallLimits(32), {0}, &Letters());
  auto reader = test.Submit(Constrained("r", Rising(5)));
  test.RunToEnd({reader.get()});
  ExpectRising(reader->choice().ids, 5);
  EXPECT_EQ(reader->choice().end().reason, FinishReason::kStop);
  EXPECT_EQ(test.engine().Load().constrained_tokens, 5);
}

TEST(Constraint, ATextCutByLengthIsReportedAsLength) {
  SteppedEngine test(SmallLimits(32), {0}, &Letters());
  auto reader = test.Submit(Constrained("r", Rising(5), /*max_tokens=*/3));
  test.RunToEnd({reader.get()});
  EXPECT_EQ(reader->choice().ids.size(), 3u);
  EXPECT_EQ(reader->choice().end().reason, FinishReason::kLength);
}

TEST(Constraint, AnEndThatComesWithTheLastTokenIsTheModelsEnd) {
  SteppedEngine test(SmallLimits(32), {0}, &Letters());
  auto reader = test.Submit(Constrained("r", Rising(2), /*max_tokens=*/3));
  test.RunToEnd({reader.get()});
  ExpectRising(reader->choice().ids, 2);
  EXPECT_EQ(reader->choice().end().reason, FinishReason::kStop);
}

TEST(Constraint, ForcedTokensComeFirstWhateverTheModelWants) {
  SteppedEngine test(SmallLimits(32), {0}, &Letters());
  Request request = Constrained("r", Rising(4));
  request.constraint.forced_prefix = {3, 60};
  auto reader = test.Submit(request);
  test.RunToEnd({reader.get()});
  std::vector<int32_t> ids = reader->choice().ids;
  ASSERT_GT(ids.size(), 2u);
  EXPECT_EQ(ids[0], 3);
  EXPECT_EQ(ids[1], 60);
  ids.erase(ids.begin(), ids.begin() + 2);
  ExpectRising(ids, 4);
}

TEST(Constraint, TheTextStartsAMessageAfterControlTokensOnly) {
  const auto start_of = [](int32_t last_of_prompt, const std::vector<int32_t>& forced) {
    SteppedEngine test(SmallLimits(32), {0}, &Letters());
    const auto grammar = Rising(1);
    Request request = Constrained("r", grammar);
    request.prompt.back() = last_of_prompt;
    request.constraint.forced_prefix = forced;
    auto reader = test.Submit(request);
    test.RunToEnd({reader.get()});
    return grammar->starts().at(0);
  };
  EXPECT_EQ(start_of(1, {}), TextStart::kOfMessage);
  EXPECT_EQ(start_of(1, {3}), TextStart::kOfMessage) << "a control token leaves it there";
  EXPECT_EQ(start_of(1, {40}), TextStart::kWithinMessage) << "a word has been written";
  EXPECT_EQ(start_of(40, {}), TextStart::kWithinMessage);
  EXPECT_EQ(start_of(40, {3}), TextStart::kWithinMessage);
}

TEST(Constraint, EachChoiceFollowsItsOwnText) {
  SteppedEngine test(SmallLimits(64), {0}, &Letters());
  Request request = Constrained("r", Rising(6));
  request.choices = 3;
  auto reader = test.Submit(request);
  test.RunToEnd({reader.get()});
  for (int32_t c = 0; c < 3; ++c) ExpectRising(reader->choice(c).ids, 6);
  EXPECT_NE(reader->choice(0).ids, reader->choice(1).ids);
}

TEST(Constraint, APreemptedChoiceGoesOnWhereItWas) {
  const auto run = [](int64_t pool_pages, int64_t* preemptions) {
    SteppedEngine test(SmallLimits(pool_pages), {0}, &Letters());
    std::vector<std::unique_ptr<StreamReader>> readers;
    std::vector<StreamReader*> all;
    for (uint32_t i = 0; i < 6; ++i) {
      readers.push_back(test.Submit(Constrained("r" + std::to_string(i), Rising(30), 40, i)));
      all.push_back(readers.back().get());
    }
    test.RunToEnd(all);
    if (preemptions != nullptr) *preemptions = test.engine().Load().preemptions;
    std::vector<std::vector<int32_t>> ids;
    for (const StreamReader* reader : all) ids.push_back(reader->choice().ids);
    return ids;
  };
  int64_t preemptions = 0;
  const auto squeezed = run(20, &preemptions);
  EXPECT_GT(preemptions, 0) << "the pool was meant to be too small";
  EXPECT_EQ(squeezed, run(200, nullptr));
  for (const std::vector<int32_t>& ids : squeezed) ExpectRising(ids, 30);
}

TEST(Constraint, AWholeTextBeforeMinTokensIsAnErrorThatSaysSo) {
  SteppedEngine test(SmallLimits(32), {0}, &Letters());
  Request request = Constrained("r", Rising(3));
  request.stopping.min_tokens = 10;
  auto reader = test.Submit(request);
  auto neighbour = test.Submit(Constrained("n", Rising(8)));
  test.RunToEnd({reader.get(), neighbour.get()});
  EXPECT_EQ(reader->choice().ids.size(), 3u);
  EXPECT_EQ(reader->choice().end().reason, FinishReason::kError);
  EXPECT_EQ(reader->status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(reader->status().message().find("min_tokens"), std::string::npos) << reader->status();
  ExpectRising(neighbour->choice().ids, 8);
}

TEST(Constraint, AGrammarThatAllowsNothingEndsItsChoiceAlone) {
  SteppedEngine test(SmallLimits(32), {0}, &Letters());
  const auto nothing =
      std::make_shared<FakeGrammar>([](const std::vector<int32_t>&) { return std::vector<int32_t>(); });
  auto reader = test.Submit(Constrained("r", nothing));
  auto neighbour = test.Submit(Constrained("n", Rising(4)));
  test.RunToEnd({reader.get(), neighbour.get()});
  EXPECT_EQ(reader->status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(reader->choice().end().reason, FinishReason::kError);
  ExpectRising(neighbour->choice().ids, 4);
  EXPECT_EQ(test.engine().Load().held_pages, 0);
}

TEST(Constraint, LogitsThatAreNotFiniteAreStillCalledThat) {
  SteppedEngine test(SmallLimits(32), {0}, &Letters());
  test.runner().not_finite = [](const std::string&, int32_t, int64_t position) { return position == 14; };
  auto reader = test.Submit(Constrained("r", Rising(8)));
  test.RunToEnd({reader.get()});
  EXPECT_EQ(reader->status().code(), StatusCode::kInternal) << reader->status();
}

TEST(Constraint, AGrammarThatTakesTooLongEndsItsChoice) {
  EngineLimits limits = SmallLimits(32);
  limits.max_constraint_step_ns = 5'000'000;
  SteppedEngine test(limits, {0}, &Letters());
  const auto slow = std::make_shared<FakeGrammar>([&test](const std::vector<int32_t>& output) {
    test.clock().Advance(output.size() < 3 ? 1'000'000 : 4'000'000);  // asked twice for each token
    return std::vector<int32_t>{20};
  });
  auto reader = test.Submit(Constrained("r", slow));
  test.RunToEnd({reader.get()});
  EXPECT_EQ(reader->choice().ids.size(), 4u) << "the token that took too long is there";
  EXPECT_EQ(reader->status().code(), StatusCode::kResourceExhausted) << reader->status();
  EXPECT_EQ(test.engine().Load().constraint_ns, 3 * 2'000'000 + 8'000'000);
}

TEST(Constraint, EosThatIsIgnoredIsFollowedByMoreOfItUntilTheLength) {
  SteppedEngine test(SmallLimits(32), {0}, &Letters());
  Request request = Constrained("r", Rising(2), 5);
  request.stopping.ignore_eos = true;
  auto reader = test.Submit(request);
  test.RunToEnd({reader.get()});
  const std::vector<int32_t>& ids = reader->choice().ids;
  ASSERT_EQ(ids.size(), 5u);
  EXPECT_EQ(std::vector<int32_t>(ids.begin() + 2, ids.end()), std::vector<int32_t>(3, kEos));
  EXPECT_EQ(reader->choice().end().reason, FinishReason::kLength);
}

TEST(Constraint, WhatCannotBeForcedIsRefusedByName) {
  SteppedEngine test(SmallLimits(32), {0}, &Letters());
  const auto refusal = [&test](const std::vector<int32_t>& forced, bool with_grammar = true) {
    Request request = Constrained("r", with_grammar ? Rising(2) : nullptr);
    request.constraint.forced_prefix = forced;
    const Status status = test.Submit(request)->refused();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.field(), "constraint.forced_prefix_ids");
    return status.message();
  };
  EXPECT_NE(refusal({5, kEos}).find("ends the text"), std::string::npos);
  EXPECT_NE(refusal({64}).find("64"), std::string::npos);
  EXPECT_NE(refusal({5}, /*with_grammar=*/false).find("grammar"), std::string::npos);
  const size_t most = static_cast<size_t>(test.engine().limits().max_forced_prefix_ids);
  EXPECT_NE(refusal(std::vector<int32_t>(most + 1, 5)).find(std::to_string(most)), std::string::npos);
}

TEST(Constraint, CancellingGivesEverythingBack) {
  SteppedEngine test(SmallLimits(32), {0}, &Letters());
  auto reader = test.Submit(Constrained("r", Rising(30), 40));
  for (int i = 0; i < 6; ++i) test.Step();
  reader->stream().Cancel();
  test.RunToEnd({reader.get()});
  EXPECT_EQ(reader->status().code(), StatusCode::kCancelled);
  EXPECT_EQ(test.engine().Load().held_pages, 0);
}

}  // namespace
}  // namespace tramontane

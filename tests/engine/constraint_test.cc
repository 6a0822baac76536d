// Constraints in the engine, over a grammar that the test writes itself.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "models/grammar/answer_grammar.h"
#include "tests/support/fake_grammar.h"
#include "tests/support/in_process_engine.h"
#include "tests/support/pending_fake.h"
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
  EXPECT_EQ(reader->status().field(), "stopping.min_tokens");
  EXPECT_NE(reader->status().message().find("is 10, but"), std::string::npos) << reader->status();
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

constexpr int64_t kMs = 1'000'000;

// Ten steps' time ahead, and each token brings another one's.
TEST(Constraint, AChoiceThatSpendsItsShareEndsByName) {
  EngineLimits limits = SmallLimits(32);
  limits.max_constraint_step_ns = 5 * kMs;
  SteppedEngine test(limits, {0}, &Letters());
  const auto slow = std::make_shared<FakeGrammar>(
      [](const std::vector<int32_t>&) { return std::vector<int32_t>{20}; },
      [](const std::vector<int32_t>& output) { return output.empty() ? 0 : 5 * kMs; });
  const auto slower = std::make_shared<FakeGrammar>(
      [](const std::vector<int32_t>&) { return std::vector<int32_t>{20}; },
      [](const std::vector<int32_t>& output) { return output.size() < 4 ? 2 * kMs : 6 * kMs; });
  auto fair = test.Submit(Constrained("fair", slow, /*max_tokens=*/40));
  auto one_mask = test.Submit(Constrained("one_mask", slower));
  auto neighbour = test.Submit(Constrained("n", Rising(8)));
  test.RunToEnd({fair.get(), one_mask.get(), neighbour.get()});
  EXPECT_TRUE(fair->status().ok()) << "a step's time for each token is what it may have: " << fair->status();
  EXPECT_EQ(one_mask->choice().ids.size(), 4u) << "the mask behind the fourth takes longer than a step may";
  EXPECT_EQ(one_mask->status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(one_mask->status().message().find("max_constraint_step_us"), std::string::npos);
  ExpectRising(neighbour->choice().ids, 8);
}

TEST(Constraint, TheChoicesOfARequestShareItsTime) {
  EngineLimits limits = SmallLimits(64);
  limits.max_constraint_step_ns = 5 * kMs;
  SteppedEngine test(limits, {0}, &Letters());
  const auto slow = std::make_shared<FakeGrammar>(
      [](const std::vector<int32_t>&) { return std::vector<int32_t>{20}; },
      [](const std::vector<int32_t>& output) { return output.empty() ? 0 : 4 * kMs; });
  Request request = Constrained("r", slow, /*max_tokens=*/40);
  request.choices = 4;
  auto reader = test.Submit(request);
  test.RunToEnd({reader.get()});
  size_t tokens = 0;
  for (int32_t c = 0; c < 4; ++c) {
    EXPECT_EQ(reader->choice(c).end().reason, FinishReason::kError);
    tokens += reader->choice(c).ids.size();
  }
  EXPECT_EQ(reader->status().code(), StatusCode::kResourceExhausted);
  EXPECT_LT(tokens, 40u) << "50 ms, 1.25 ms more for each, and 4 ms spent on each";
}

TEST(Constraint, AFirstTokenThatTakesTooLongIsRefused) {
  SteppedEngine test(SmallLimits(32), {0}, &Letters());
  const auto slow =
      std::make_shared<FakeGrammar>([](const std::vector<int32_t>&) { return std::vector<int32_t>{20}; },
                                    [](const std::vector<int32_t>&) { return 1000 * kMs; });
  const Status status = test.Submit(Constrained("r", slow))->refused();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.field(), "constraint");
}

// Fills no mask behind an output of a certain length until it is let go.
class Gate {
 public:
  explicit Gate(size_t length) : length_(length) {}
  FakeGrammar::Cost AsCost() {
    return [this](const std::vector<int32_t>& output) {
      if (output.size() == length_) {
        ++arrived_;
        open_future_.wait();
      }
      return int64_t{0};
    };
  }
  int32_t arrived() const { return arrived_; }
  void Open() { open_.set_value(); }

 private:
  const size_t length_;
  std::atomic<int32_t> arrived_{0};
  std::promise<void> open_;
  std::shared_future<void> open_future_ = open_.get_future().share();
};

std::shared_ptr<FakeGrammar> GatedRising(size_t length, Gate& gate) {
  return std::make_shared<FakeGrammar>(Rising(length)->rule(), gate.AsCost());
}

TEST(Constraint, AMaskThatIsNotFilledIsNotWaitedForAndChangesNoToken) {
  const auto alone = [](const Request& request) {
    SteppedEngine test(SmallLimits(64), {0}, &Letters());
    auto reader = test.Submit(request);
    test.RunToEnd({reader.get()});
    return reader->choice().ids;
  };
  EngineLimits limits = SmallLimits(64);
  limits.max_constraint_step_ns = 1 * kMs;
  Gate gate(3);
  SteppedEngine test(limits, {0}, &Letters());
  auto stuck = test.Submit(Constrained("stuck", GatedRising(8, gate)));
  auto plain = test.Submit(MakeRequest("plain", 12, 30, 5));
  auto constrained = test.Submit(Constrained("constrained", Rising(8), 20, 6));
  while (!plain->done() || !constrained->done()) {
    test.Step();
    plain->Poll();
    constrained->Poll();
  }
  stuck->Poll();
  EXPECT_EQ(gate.arrived(), 1);
  EXPECT_EQ(stuck->choice().ids.size(), 3u) << "the others are done, and this one waits for its mask";
  gate.Open();
  test.RunToEnd({stuck.get()});
  ExpectRising(stuck->choice().ids, 8);
  EXPECT_EQ(stuck->choice().ids, alone(Constrained("stuck", Rising(8))));
  EXPECT_EQ(plain->choice().ids, alone(MakeRequest("plain", 12, 30, 5)));
  EXPECT_EQ(constrained->choice().ids, alone(Constrained("constrained", Rising(8), 20, 6)));
}

TEST(Constraint, TheEngineFillsLightMasksItselfWhereNoWorkerIsFree) {
  EngineLimits limits = SmallLimits(64);
  limits.max_constraint_step_ns = 1 * kMs;
  limits.mask_workers = 1;
  SteppedEngine test(limits, {0}, &Letters());
  const auto light = std::make_shared<FakeGrammar>(Rising(20)->rule(),
                                                   [](const std::vector<int32_t>&) { return int64_t{1000}; });
  auto reader = test.Submit(Constrained("light", light, 40));
  while (reader->Poll(), reader->choice().ids.size() < 4) test.Step();
  Gate gate(1);
  auto stuck = test.Submit(Constrained("stuck", GatedRising(8, gate), 20, 6));
  while (gate.arrived() == 0) test.Step();
  for (int step = 0; step < 200 && !reader->done(); ++step) {
    test.Step();
    reader->Poll();
  }
  EXPECT_TRUE(reader->done()) << "the only worker is still at the other one's mask";
  ExpectRising(reader->choice().ids, 20);
  gate.Open();
  test.RunToEnd({stuck.get()});
}

TEST(Constraint, PagesOfAChoiceThatWaitsForItsMaskGoToTheOthers) {
  EngineLimits limits = SmallLimits(16);
  limits.max_constraint_step_ns = 1 * kMs;
  Gate gate(3);
  SteppedEngine test(limits, {0}, &Letters());
  auto stuck = test.Submit(Constrained("stuck", GatedRising(20, gate), 40));
  while (gate.arrived() == 0) test.Step();
  auto others = test.Submit(MakeRequest("others", 12, 50, 5));
  while (!others->done()) {
    test.Step();
    others->Poll();
  }
  EXPECT_EQ(others->choice().ids.size(), 50u);
  EXPECT_GT(test.engine().Load().preemptions, 0) << "the older one, since it waits";
  gate.Open();
  test.RunToEnd({stuck.get()});
  ExpectRising(stuck->choice().ids, 20);
}

TEST(Constraint, ACancelledChoiceDoesNotWaitForItsMask) {
  Gate gate(2);
  EngineLimits limits = SmallLimits(32);
  limits.max_constraint_step_ns = 1 * kMs;
  SteppedEngine test(limits, {0}, &Letters());
  auto reader = test.Submit(Constrained("r", GatedRising(8, gate)));
  while (gate.arrived() == 0) test.Step();
  reader->stream().Cancel();
  test.RunToEnd({reader.get()});
  EXPECT_EQ(reader->status().code(), StatusCode::kCancelled);
  EXPECT_EQ(test.engine().Load().held_pages, 0) << "and the worker is still at it";
  gate.Open();
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

// ---- answers that may call -----------------------------------------------------------------------

// What the model says by itself, at each place; and so a place where it would call.
std::vector<int32_t> UnheldIds(const Request& request) {
  SteppedEngine test(SmallLimits(64), {0}, &Letters());
  Request unheld = request;
  unheld.constraint = {};
  auto reader = test.Submit(unheld);
  test.RunToEnd({reader.get()});
  return reader->choice().ids;
}

// Any text until the token that the model says at `place`, which calls; then what `pending` allows.
std::shared_ptr<const Grammar> CallsAt(const std::vector<int32_t>& ids, size_t place,
                                       std::shared_ptr<const PendingGrammar> pending) {
  AnswerShape shape{.begin = AnswerShape::Begin::kAnyText};
  shape.calls.push_back({{ids[place], 3}, std::move(pending)});
  return std::make_shared<AnswerGrammar>(std::move(shape), Letters(), std::vector<int32_t>{kEos},
                                         SteppedEngine::kVocab);
}

Request Free(const std::string& id, uint32_t salt = 0) {
  Request request = Constrained(id, nullptr, /*max_tokens=*/20, salt);
  request.stopping.ignore_eos = true;
  return request;
}
size_t FirstOfItsKind(const std::vector<int32_t>& ids, size_t from) {
  while (std::find(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(from), ids[from]) !=
         ids.begin() + static_cast<std::ptrdiff_t>(from)) {
    ++from;
  }
  return from;
}

TEST(Constraint, TextThatIsFreeHasNoMaskAndIsTheModelsOwn) {
  Request request = Free("r");
  const std::vector<int32_t> ids = UnheldIds(request);
  int32_t unsaid = 10;
  while (std::count(ids.begin(), ids.end(), unsaid) > 0) ++unsaid;
  AnswerShape shape{.begin = AnswerShape::Begin::kAnyText};
  shape.calls.push_back({{unsaid}, std::make_shared<PendingFake>(Rising(2))});
  request.constraint.grammar = std::make_shared<AnswerGrammar>(
      std::move(shape), Letters(), std::vector<int32_t>{kEos}, SteppedEngine::kVocab);
  SteppedEngine test(SmallLimits(32), {0}, &Letters());
  auto reader = test.Submit(request);
  test.RunToEnd({reader.get()});
  EXPECT_EQ(reader->choice().ids, ids);
  EXPECT_EQ(test.engine().Load().constrained_tokens, 0);
  EXPECT_EQ(test.runner().masked_draws, 0);
}

TEST(Constraint, ACallIsHeldFromItsFirstIdOn) {
  Request request = Free("r");
  request.stopping.ignore_eos = false;
  const std::vector<int32_t> ids = UnheldIds(request);
  const size_t place = FirstOfItsKind(ids, 4);
  request.constraint.grammar = CallsAt(ids, place, std::make_shared<PendingFake>(Rising(3)));
  SteppedEngine test(SmallLimits(32), {0}, &Letters());
  auto reader = test.Submit(request);
  test.RunToEnd({reader.get()});
  const std::vector<int32_t>& held = reader->choice().ids;
  const auto text = static_cast<std::ptrdiff_t>(place) + 1;
  ASSERT_EQ(std::ssize(held), text + 1 + 3 + 1);
  EXPECT_TRUE(std::equal(held.begin(), held.begin() + text, ids.begin()));
  EXPECT_EQ(held[static_cast<size_t>(text)], 3);
  ExpectRising({held.begin() + text + 1, held.end()}, 3);
  EXPECT_EQ(test.runner().masked_draws, 5) << "the rest of the head, the text, and the end";
}

// The others go on, and what has to be compiled is of nobody's share of time.
TEST(Constraint, AChoiceWhoseGrammarIsCompiledSitsStepsOut) {
  EngineLimits limits = SmallLimits(64);
  limits.max_constraint_step_ns = 1 * kMs;
  limits.mask_workers = 1;
  Request request = Free("r");
  request.stopping.ignore_eos = false;
  const std::vector<int32_t> ids = UnheldIds(request);
  const size_t place = FirstOfItsKind(ids, 4);
  std::promise<void> begun, go;
  const auto late = std::make_shared<PendingFake>(Rising(3), PendingFake::kCompiledLater, [&] {
    begun.set_value();
    go.get_future().wait();
  });
  request.constraint.grammar = CallsAt(ids, place, late);
  SteppedEngine test(limits, {0}, &Letters());
  auto reader = test.Submit(request);
  auto begun_future = begun.get_future();
  while (begun_future.wait_for(std::chrono::seconds(0)) != std::future_status::ready) test.Step();
  auto neighbour = test.Submit(Constrained("n", Rising(8)));
  while (!neighbour->done()) {
    test.Step();
    neighbour->Poll();
  }
  ExpectRising(neighbour->choice().ids, 8);
  reader->Poll();
  EXPECT_EQ(reader->choice().ids.size(), place + 2) << "it waits behind its head";
  go.set_value();
  test.RunToEnd({reader.get()});
  EXPECT_TRUE(reader->status().ok()) << reader->status();
  EXPECT_EQ(reader->choice().ids.size(), place + 2 + 3 + 1);
  EXPECT_EQ(late->compiled(), 1);
}

TEST(Constraint, WhatDoesNotCompileEndsItsChoiceWithTheReason) {
  Request request = Free("r");
  const std::vector<int32_t> ids = UnheldIds(request);
  const size_t place = FirstOfItsKind(ids, 4);
  request.constraint.grammar =
      CallsAt(ids, place, std::make_shared<PendingFake>(nullptr, PendingFake::kCompiledLater));
  SteppedEngine test(SmallLimits(32), {0}, &Letters());
  auto reader = test.Submit(request);
  auto neighbour = test.Submit(Constrained("n", Rising(4)));
  test.RunToEnd({reader.get(), neighbour.get()});
  EXPECT_EQ(reader->choice().ids.size(), place + 2);
  EXPECT_EQ(reader->choice().end().reason, FinishReason::kError);
  EXPECT_NE(reader->status().message().find("to compile"), std::string::npos) << reader->status();
  ExpectRising(neighbour->choice().ids, 4);
  EXPECT_EQ(test.engine().Load().held_pages, 0);
}

TEST(Constraint, ACallEndsBeforeMinTokensWhereNothingElseMayCome) {
  SteppedEngine test(SmallLimits(32), {0}, &Letters());
  for (const float penalty : {0.0f, 0.5f}) {
    Request request = Constrained("r", Rising(3));
    request.stopping.min_tokens = 10;
    request.sampling.presence_penalty = penalty;
    request.constraint.goes_before_min_tokens = true;
    auto reader = test.Submit(request);
    test.RunToEnd({reader.get()});
    EXPECT_TRUE(reader->status().ok()) << reader->status();
    ExpectRising(reader->choice().ids, 3);
  }
}

TEST(Constraint, ABannedIdNeverComes) {
  Request request = Free("r");
  const std::vector<int32_t> ids = UnheldIds(request);
  request.sampling.banned = {ids[4]};
  request.sampling.logit_bias = {{ids[4], 100.0f}};
  const std::vector<int32_t> without = UnheldIds(request);
  EXPECT_EQ(without.size(), ids.size());
  EXPECT_EQ(std::count(without.begin(), without.end(), ids[4]), 0);
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

// Leases that wait for their owner's next request, as a session does: what it computes then, what they cost
// others, which is nothing, and when they are no more.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "engine/engine.h"
#include "tests/support/in_process_engine.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tiny_model.h"

namespace tramontane {
namespace {

using Ids = std::vector<int32_t>;
using Owner = std::shared_ptr<const KvOwner>;

std::unique_ptr<StreamReader> Ask(EngineUnderTest& test, const Request& request) {
  auto reader = test.Submit(request);
  EXPECT_TRUE(reader->refused().ok()) << reader->refused();
  if (reader->refused().ok()) test.RunToEnd({reader.get()});
  return reader;
}

int64_t CachedTokens(const StreamReader& reader) { return reader.choice().end().usage.cached_tokens; }

Request TurnOf(const Owner& owner, int64_t prompt_tokens, int64_t max_tokens, uint32_t salt = 0) {
  Request request = MakeRequest("turn", prompt_tokens, max_tokens, salt);
  request.kv_owner = owner;
  request.prefers_cache = true;
  return request;
}

// With what was said, and more.
Request NextTurn(const Request& turn, const Ids& said, const Ids& more) {
  Request next = turn;
  next.prompt.insert(next.prompt.end(), said.begin(), said.end());
  next.prompt.insert(next.prompt.end(), more.begin(), more.end());
  return next;
}

struct Kind {
  std::vector<int32_t> windows;
  int32_t page_size = 0;
  bool prefix_cache = true;
};

// In a pool of so many sequences as long as the context.
EngineLimits LimitsOf(const Kind& kind, int64_t sequences, int64_t context = 160) {
  EngineLimits limits = SmallLimits(0);
  limits.page_size = kind.page_size;
  limits.prefix_cache = kind.prefix_cache;
  limits.context = context;
  const KvFormat format = {.kv_heads = 1, .head_dim = 1, .page_size = kind.page_size};
  const KvLayout layout = MakeKvLayout(kind.windows, format);
  limits.pool_pages =
      sequences * layout.PagesForSequence(context, LeastChunk(layout, limits.max_step_tokens));
  return limits;
}

Ids IdsAlone(Request request, const std::vector<int32_t>& windows) {
  request.kv_owner = nullptr;
  SteppedEngine test(LimitsOf({.windows = windows, .page_size = 4, .prefix_cache = false}, 2), windows);
  return Ask(test, request)->choice().ids;
}

// A first turn of 21 tokens and 6 is asked; the one that follows it with three more.
Request SecondTurn(SteppedEngine& test, const Owner& owner) {
  const Request first = TurnOf(owner, 21, 6);
  return NextTurn(first, Ask(test, first)->choice().ids, {9, 10, 11});
}

class IdleLease : public testing::TestWithParam<std::tuple<std::vector<int32_t>, int32_t, bool>> {
 protected:
  Kind kind() const { return {std::get<0>(GetParam()), std::get<1>(GetParam()), std::get<2>(GetParam())}; }
  const std::vector<int32_t>& windows() const { return std::get<0>(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Kinds, IdleLease,
                         testing::Combine(testing::Values(Ids{0}, Ids{16, 0}, Ids{6}, Ids{0, 9, 9, 13}),
                                          testing::Values(1, 4, 16), testing::Bool()),
                         [](const auto& info) {
                           std::string name = "Windows";
                           for (const int32_t window : std::get<0>(info.param))
                             name += std::to_string(window) + "_";
                           name += "PagesOf" + std::to_string(std::get<1>(info.param));
                           return name + (std::get<2>(info.param) ? "" : "WithoutCache");
                         });

// The last token of an answer was drawn and not fed back: that one, and what follows it.
TEST_P(IdleLease, ATurnComputesWhatIsNewAndTheLastToken) {
  SteppedEngine test(LimitsOf(kind(), 8), windows());
  const auto owner = std::make_shared<const KvOwner>();
  Request turn = TurnOf(owner, 21, 6);
  auto answer = Ask(test, turn);
  EXPECT_EQ(CachedTokens(*answer), 0);
  for (const Ids& more : {Ids{9, 10, 11}, Ids{}, Ids{12}, Ids(17, 13)}) {
    turn = NextTurn(turn, answer->choice().ids, more);
    const int64_t computed = test.engine().Load().prompt_tokens;
    answer = Ask(test, turn);
    EXPECT_EQ(test.engine().Load().prompt_tokens - computed, std::ssize(more) + 1);
    EXPECT_EQ(CachedTokens(*answer), std::ssize(turn.prompt) - std::ssize(more) - 1);
    EXPECT_EQ(answer->started()[0].cached_tokens, CachedTokens(*answer));
    EXPECT_EQ(answer->choice().ids, IdsAlone(turn, windows()));
    EXPECT_EQ(test.engine().Load().held_pages, 0);
  }
}

// The page that a turn goes on in is copied before it is written: what was left stays as it was.
TEST_P(IdleLease, ATurnThatIsCancelledChangesNothing) {
  SteppedEngine test(LimitsOf(kind(), 8), windows());
  const auto owner = std::make_shared<const KvOwner>();
  const Request first = TurnOf(owner, 21, 6);
  const Ids said = Ask(test, first)->choice().ids;
  const Request second = NextTurn(first, said, {9, 10, 11});
  Request other = NextTurn(first, said, Ids(30, 14));
  other.stopping.max_tokens = 40;
  auto cancelled = test.Submit(other);
  for (int step = 0; step < 20; ++step) test.Step();
  cancelled->stream().Cancel();
  test.RunToEnd({cancelled.get()});
  EXPECT_EQ(cancelled->choice().end().reason, FinishReason::kCancelled);
  const auto answer = Ask(test, second);
  // A page of one token knows that the cancelled one had begun with the same.
  EXPECT_GE(CachedTokens(*answer), 26);
  EXPECT_EQ(answer->choice().ids, IdsAlone(second, windows()));
}

TEST_P(IdleLease, AFaultyTurnLeavesNothingOfIt) {
  SteppedEngine test(LimitsOf(kind(), 8), windows());
  const auto owner = std::make_shared<const KvOwner>();
  const Request second = SecondTurn(test, owner);
  test.runner().not_finite = [](const std::string&, int32_t, int64_t) { return true; };
  EXPECT_EQ(Ask(test, second)->status().code(), StatusCode::kInternal);
  test.runner().not_finite = nullptr;
  EXPECT_EQ(test.engine().Load().cached_pages, 0);
  const auto answer = Ask(test, second);
  EXPECT_EQ(CachedTokens(*answer), 0);
  EXPECT_EQ(answer->choice().ids, IdsAlone(second, windows()));
}

// Its steps are those that it takes in a pool that nobody has used.
TEST_P(IdleLease, NobodyWaitsForOne) {
  const EngineLimits limits = LimitsOf(kind(), 1);
  const auto steps_of = [&](SteppedEngine& test) {
    const int64_t before = test.engine().Load().steps;
    Request large = MakeRequest("large", 120, 5, /*salt=*/99);
    EXPECT_EQ(Ask(test, large)->choice().ids, IdsAlone(large, windows()));
    EXPECT_EQ(test.engine().Load().preemptions, 0);
    return test.engine().Load().steps - before;
  };
  SteppedEngine fresh(limits, windows());
  const int64_t steps = steps_of(fresh);
  SteppedEngine test(limits, windows());
  std::vector<Owner> owners;
  for (uint32_t number = 1; number <= 12; ++number) {
    owners.push_back(std::make_shared<const KvOwner>());
    Ask(test, TurnOf(owners.back(), 21, 6, number));
  }
  EXPECT_GT(test.engine().Load().cached_pages, 0);
  EXPECT_EQ(steps_of(test), steps);
}

TEST_P(IdleLease, WhoWasGivenUpForOthersComputesAgain) {
  SteppedEngine test(LimitsOf(kind(), 1), windows());
  const auto owner = std::make_shared<const KvOwner>();
  const Request second = SecondTurn(test, owner);
  std::vector<Owner> others;
  for (uint32_t number = 1; number <= 12; ++number) {
    others.push_back(std::make_shared<const KvOwner>());
    Ask(test, TurnOf(others.back(), 100, 20, number));
  }
  const auto answer = Ask(test, second);
  EXPECT_EQ(CachedTokens(*answer), 0);
  EXPECT_EQ(answer->choice().ids, IdsAlone(second, windows()));
}

TEST_P(IdleLease, OthersPagesAreGivenUpBeforeIt) {
  SteppedEngine test(LimitsOf(kind(), 16), windows());
  const auto owner = std::make_shared<const KvOwner>();
  const Request second = SecondTurn(test, owner);
  for (uint32_t number = 1; number <= 120; ++number) {
    Ask(test, MakeRequest("other" + std::to_string(number), 30, 5, number));
  }
  EXPECT_EQ(CachedTokens(*Ask(test, second)), 26);
}

// Shorter than what was left, as where a stop string ended the text that the engine went on with.
TEST_P(IdleLease, ATurnGoesOnWithinWhatWasLeft) {
  SteppedEngine test(LimitsOf(kind(), 8), windows());
  const auto owner = std::make_shared<const KvOwner>();
  const Request first = TurnOf(owner, 21, 6);
  const auto answer = Ask(test, first);
  Request second = NextTurn(first, answer->choice().ids, {});
  second.prompt.resize(24);
  second.prompt.push_back(second.prompt.back() == 9 ? 10 : 9);
  const auto next = Ask(test, second);
  if (windows() == Ids{0}) {
    EXPECT_EQ(CachedTokens(*next), 24);
  }
  EXPECT_EQ(next->choice().ids, IdsAlone(second, windows()));
}

TEST_P(IdleLease, PagesOfAnOwnerThatIsGoneAreFreeWithTheNextRequest) {
  SteppedEngine test(LimitsOf(kind(), 8), windows());
  auto owner = std::make_shared<const KvOwner>();
  {
    Request request = TurnOf(owner, 21, 6);
    Ask(test, request);
  }
  EXPECT_GT(test.engine().Load().cached_pages, 0);
  test.Step();  // lets go of the request
  owner = nullptr;
  Request other = MakeRequest("other", 1, 1, /*salt=*/7);
  Ask(test, other);
  if (kind().prefix_cache) {
    EXPECT_GT(test.engine().Load().cached_pages, 0) << "what its tokens name stays";
  } else {
    EXPECT_EQ(test.engine().Load().cached_pages, 0);
  }
}

TEST_P(IdleLease, EachPolicyGoesOnFromWhatItLeft) {
  using Type = ContextPolicyType;
  const ContextPolicy policies[] = {
      {.type = Type::kSinks, .n_ctx = 24, .n_keep = 4, .n_discard = 0},
      {.type = Type::kSinks, .n_ctx = 19, .n_keep = 6, .n_discard = 0},
      {.type = Type::kShift, .n_ctx = 24, .n_keep = 4, .n_discard = 1},
      {.type = Type::kShift, .n_ctx = 21, .n_keep = 5, .n_discard = 3},
      {.type = Type::kReevaluate, .n_ctx = 60, .n_keep = 4, .n_discard = 50},
  };
  for (const ContextPolicy& policy : policies) {
    SCOPED_TRACE(ContextPolicyText(policy));
    SteppedEngine test(LimitsOf(kind(), 20), windows());
    const auto owner = std::make_shared<const KvOwner>();
    Request turn = TurnOf(owner, 50, 17);
    turn.context_policy = policy;
    auto answer = Ask(test, turn);
    for (int next = 0; next < 3; ++next) {
      turn = NextTurn(turn, answer->choice().ids, {9, 10});
      const int64_t computed = test.engine().Load().prompt_tokens;
      answer = Ask(test, turn);
      // Where the prompt itself made others go than the answer did, all that is left is computed.
      const bool discards = policy.type == Type::kReevaluate;
      if (!discards) {
        EXPECT_EQ(test.engine().Load().prompt_tokens - computed, 3) << next;
      }
      EXPECT_EQ(answer->choice().ids, IdsAlone(turn, windows())) << next;
    }
  }
}

// Two turns of one owner at once, as nobody's session has them: each is right.
TEST_P(IdleLease, TwoAtOnceShareWhatWasLeft) {
  SteppedEngine test(LimitsOf(kind(), 8), windows());
  const auto owner = std::make_shared<const KvOwner>();
  const Request first = TurnOf(owner, 21, 6);
  const Ids said = Ask(test, first)->choice().ids;
  const Request one = NextTurn(first, said, {9, 10, 11});
  const Request two = NextTurn(first, said, {9, 12, 13, 14});
  const auto reader_of_one = test.Submit(one);
  const auto reader_of_two = test.Submit(two);
  test.RunToEnd({reader_of_one.get(), reader_of_two.get()});
  EXPECT_EQ(CachedTokens(*reader_of_one), 26);
  EXPECT_EQ(CachedTokens(*reader_of_two), 26);
  EXPECT_EQ(reader_of_one->choice().ids, IdsAlone(one, windows()));
  EXPECT_EQ(reader_of_two->choice().ids, IdsAlone(two, windows()));
}

// ---- in pools that are just large enough ------------------------------------------------------------

// The longest sequence takes all of the pool, so that there is no room for a copy: it goes on all the same.
TEST_P(IdleLease, WhereACopyHasNoRoomWhatWasLeftGoes) {
  SteppedEngine test(LimitsOf(kind(), 1, /*context=*/96), windows());
  const auto owner = std::make_shared<const KvOwner>();
  const Request first = TurnOf(owner, 85, 6);
  Request second = NextTurn(first, Ask(test, first)->choice().ids, {9});
  second.stopping.max_tokens = 96 - std::ssize(second.prompt);
  const auto answer = Ask(test, second);
  EXPECT_EQ(answer->choice().ids, IdsAlone(second, windows()));
  if (windows() == Ids{0} && kind().page_size == 16) {
    EXPECT_EQ(CachedTokens(*answer), kind().prefix_cache ? 80 : 0);
  }
}

// Moves into the pool come in front of a step's copies: a page that is copied is not made room with before.
TEST(IdleLeaseInTheStore, APageThatIsCopiedIsNobodyElsesUntilThePlanEnds) {
  const KvFormat format = {.kv_heads = 1, .head_dim = 1, .page_size = 4};
  KvStore store(MakeKvLayout({0}, format), 4, PrefixCache::kOff);
  const auto owner = std::make_shared<const KvOwner>();
  const Ids tokens = {5, 6, 7, 8, 9, 10, 11};
  std::vector<PageCopy> copies;
  Lease first = store.NewLease();
  store.Extend(first, 0, 6, &copies);
  store.LeaveIdle(first, tokens, 6, owner);
  EXPECT_EQ(store.idle_texts(), 1);
  EXPECT_EQ(store.available(), 4);

  Lease next = store.NewLease();
  ASSERT_EQ(store.Acquire(next, {.tokens = tokens, .owner = owner.get()}), 6);
  store.Extend(next, 6, 7, &copies);
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(store.available(), 1) << "of 4 pages next has 2, and one is copied";
  Lease other = store.NewLease();
  store.Extend(other, 0, 4, &copies);
  EXPECT_NE(other.tables[0].pages[0], copies[0].from);
  store.EndPlan();
  store.CheckAccounting();
  EXPECT_EQ(store.available(), 1);
  store.Extend(other, 4, 8, &copies);
  store.EndPlan();
  EXPECT_EQ(store.idle_texts(), 0) << "its last page was the only one left";
  store.Release(other);
  store.Release(next);
  store.CheckAccounting();
  EXPECT_EQ(store.free_pages(), 4);
}

// What a snapshot's page holds is written once all pages of its block are there: none of these makes room for
// another before, or an image of it would be kept that nobody has written.
TEST(IdleLeaseInTheStore, APageThatIsPutThereMakesNoRoomForOthersOfItsBlock) {
  const KvFormat format = {.kv_heads = 1, .head_dim = 1, .page_size = 4};
  KvStore store(MakeKvLayout({16, 0}, format), 12, PrefixCache::kOn);
  const auto owner = std::make_shared<const KvOwner>();
  std::vector<PageCopy> copies;
  Ids tokens(24);
  std::iota(tokens.begin(), tokens.end(), 5);
  Lease other = store.NewLease();
  store.Acquire(other, {.tokens = tokens});
  store.Extend(other, 0, 24, &copies);
  store.Seal(other, tokens, 24);
  store.Roll(other, 24);
  ASSERT_EQ(store.available(), 2) << "what left the window";

  Lease above = store.NewLease();
  store.Acquire(above, {.tokens = {}});
  ASSERT_TRUE(store.BeginIdle(owner, {}, {0, 0}, 4));
  std::vector<KvStore::TakenPage> taken;
  // Of the windowed group alone: no hit can use it, so that it is the next to go.
  ASSERT_TRUE(store.Plant(above, Ids{1, 2, 3, 4}, ChainedHash({}, Ids{1, 2, 3, 4}), {true, false}, &taken));
  ASSERT_TRUE(store.PlantIdle(*owner, above, 0, 1, KvStore::Known::kByLease, &taken));
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_NE(taken[0].page, taken[1].page);
  EXPECT_EQ(store.available(), 2) << "nothing stays leased";
  store.CheckAccounting();
  store.Release(above);
  store.Release(other);
  store.CheckAccounting();
}

// ---- beyond the pool --------------------------------------------------------------------------------

TEST(IdleLeaseInATier, ComesBackFromTheHost) {
  for (const Ids& windows : {Ids{0}, Ids{16, 0}, Ids{6}}) {
    SteppedEngine test(SmallLimits(48), windows, nullptr, {.host_pages = 400});
    const auto owner = std::make_shared<const KvOwner>();
    const Request second = SecondTurn(test, owner);
    std::vector<Owner> others;
    for (uint32_t number = 1; number <= 12; ++number) {
      others.push_back(std::make_shared<const KvOwner>());
      Ask(test, TurnOf(others.back(), 44, 20, number));
    }
    const auto answer = Ask(test, second);
    EXPECT_EQ(CachedTokens(*answer), 26);
    EXPECT_EQ(answer->choice().ids, IdsAlone(second, windows));
  }
}

TEST(IdleLeaseInATier, ComesBackFromTheDisk) {
  const TempFolder folder;
  SteppedEngine test(SmallLimits(48), {16, 0}, nullptr,
                     {.host_pages = 40, .disk_pages = 600, .folder = folder.path()});
  const auto owner = std::make_shared<const KvOwner>();
  const Request second = SecondTurn(test, owner);
  std::vector<Owner> others;
  for (uint32_t number = 1; number <= 12; ++number) {
    others.push_back(std::make_shared<const KvOwner>());
    Ask(test, TurnOf(others.back(), 44, 20, number));
  }
  const auto answer = Ask(test, second);
  EXPECT_EQ(CachedTokens(*answer), 26);
  EXPECT_EQ(answer->choice().ids, IdsAlone(second, {16, 0}));
}

// ---- the CPU ------------------------------------------------------------------------------------------

// Bit for bit, of each type of page; the copy of a page begins in the middle of a group of quantised tokens.
TEST(IdleLeaseOnTheCpu, AnswersAsAloneBitForBit) {
  const TempFolder folder;
  TinyModel model;
  model.vocab = SteppedEngine::kVocab;
  model.window = {16, 0};
  model.Randomise(3);
  model.WriteMistral(folder);
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kFp8E4M3, DType::kInt8, DType::kInt4}) {
    for (const bool prefix_cache : {true, false}) {
      SCOPED_TRACE(DTypeName(dtype));
      BackendEngine::Options options;
      options.kv_dtype = dtype;
      options.limits = SmallLimits(200);
      options.limits.page_size = 8;
      options.limits.prefix_cache = prefix_cache;
      CpuEngine test(folder.path(), options);
      options.limits.prefix_cache = false;
      CpuEngine calm(folder.path(), options);
      Request turn = TurnOf(std::make_shared<const KvOwner>(), 21, 6);
      turn.output.logprobs = 2;
      auto answer = Ask(test, turn);
      for (int next = 0; next < 3; ++next) {
        turn = NextTurn(turn, answer->choice().ids, {9, 10, 11});
        answer = Ask(test, turn);
        EXPECT_EQ(CachedTokens(*answer), std::ssize(turn.prompt) - 4);
        Request alone = turn;
        alone.kv_owner = nullptr;
        const auto expected = Ask(calm, alone);
        EXPECT_EQ(answer->choice().ids, expected->choice().ids);
        for (size_t i = 0; i < expected->choice().logprobs.size(); ++i)
          EXPECT_EQ(answer->choice().logprobs.at(i).logprob, expected->choice().logprobs[i].logprob);
      }
    }
  }
}

}  // namespace
}  // namespace tramontane

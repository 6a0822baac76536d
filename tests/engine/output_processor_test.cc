#include "engine/output/output_processor.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "tests/support/fake_grammar.h"
#include "tests/support/piece_tokenizer.h"
#include "tests/support/test_scale.h"
#include "tests/support/test_seed.h"

namespace tramontane {
namespace {

// ---- StopMatcher --------------------------------------------------------------------------------

struct Cut {
  std::string shown;
  std::string stop;  // "" for none
};

Cut MatchInPieces(const std::vector<std::string>& stops, const std::vector<std::string>& pieces,
                  StopMatcher::Matched matched = StopMatcher::Matched::kDropped) {
  StopMatcher matcher(stops, matched);
  Cut cut;
  for (const std::string& piece : pieces) {
    if (const std::string* stop = matcher.Append(piece, &cut.shown)) {
      cut.stop = *stop;
      return cut;
    }
  }
  matcher.Flush(&cut.shown);
  return cut;
}

TEST(StopMatcher, FindsAStopSplitOverPieces) {
  const Cut cut = MatchInPieces({"STOP"}, {"one S", "T", "OP two"});
  EXPECT_EQ(cut.shown, "one ");
  EXPECT_EQ(cut.stop, "STOP");
  EXPECT_EQ(MatchInPieces({"STOP"}, {"one S", "T", "OP two"}, StopMatcher::Matched::kShown).shown,
            "one STOP");
}

TEST(StopMatcher, HoldsBackOnlyTheLongestEndThatBeginsAStop) {
  const std::vector<std::string> stops = {"\n\n", "aab"};
  StopMatcher matcher(stops, StopMatcher::Matched::kDropped);
  std::string shown;
  matcher.Append("x\n", &shown);
  EXPECT_EQ(shown, "x");
  matcher.Append("aaa", &shown);
  EXPECT_EQ(shown, "x\na") << "'aa' may still become 'aab'";
  EXPECT_EQ(*matcher.Append("b", &shown), "aab");
  EXPECT_EQ(shown, "x\na");
}

TEST(StopMatcher, OfTwoThatEndTogetherTheLongerWins) {
  EXPECT_EQ(MatchInPieces({"end", "the end"}, {"this is the end."}).shown, "this is ");
}

TEST(StopMatcher, TextThatDoesNotCountYetMayStillBeginAStop) {
  const std::vector<std::string> stops = {"ab"};
  StopMatcher matcher(stops, StopMatcher::Matched::kDropped);
  std::string shown;
  matcher.AppendUnmatched("xaba", &shown);
  EXPECT_EQ(shown, "xab");
  ASSERT_NE(matcher.Append("b", &shown), nullptr);
  EXPECT_EQ(shown, "xab");
}

TEST(StopMatcher, WhereTheTextIsCutMakesNoDifference) {
  const unsigned seed = 20240611;
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 2000; ++round) {
    // Two letters, so that partial matches overlap all the time.
    auto letters = [&](int most) {
      std::string text;
      for (int n = 1 + static_cast<int>(random() % most); n > 0; --n) text += random() % 2 ? 'a' : 'b';
      return text;
    };
    std::vector<std::string> stops;
    for (int n = 1 + static_cast<int>(random() % 3); n > 0; --n) stops.push_back(letters(6));
    const std::string text = letters(40);
    std::vector<std::string> bytes, pieces;
    for (const char byte : text) bytes.emplace_back(1, byte);
    for (size_t at = 0; at < text.size();) {
      pieces.push_back(text.substr(at, 1 + random() % 7));
      at += pieces.back().size();
    }
    const Cut by_byte = MatchInPieces(stops, bytes), by_piece = MatchInPieces(stops, pieces);
    ASSERT_EQ(by_byte.shown, by_piece.shown) << text;
    ASSERT_EQ(by_byte.stop, by_piece.stop) << text;
  }
}

// ---- ChoiceText ---------------------------------------------------------------------------------

TEST(ChoiceText, ACharacterThatThePromptLeavesUnfinishedIsInTheText) {
  const PieceTokenizer tokenizer({"<s>", "x", "\xF0", "\x9F\x99", "\x82", "\xC3", "\xA9", "a"});
  std::shared_ptr<const Grammar> grammar;
  const auto text_behind = [&](std::vector<int32_t> prompt, const std::vector<int32_t>& ids) {
    Request request;
    request.prompt = std::move(prompt);
    request.constraint.grammar = grammar;
    ChoiceText text(request, &tokenizer);
    ChoiceText::Shown shown;
    for (const int32_t id : ids) text.Append(id, ChoiceText::Spelling::kShown, &shown);
    text.Flush(&shown);
    return shown.text;
  };
  EXPECT_EQ(text_behind({0, 1, 2}, {3, 4, 7}),
            "\xF0\x9F\x99\x82"
            "a");
  EXPECT_EQ(text_behind({0, 2, 3}, {4}), "\xF0\x9F\x99\x82");
  EXPECT_EQ(text_behind({2, 3, 4, 5}, {6}), "\xC3\xA9");
  EXPECT_EQ(text_behind({0, 5}, {7}),
            "\uFFFD"
            "a")
      << "what the ids of both say";
  EXPECT_EQ(text_behind({5, 0}, {6}), "\uFFFD") << "no character goes on behind a control token";
  EXPECT_EQ(text_behind({0, 1, 5, 6}, {7}), "a");
  grammar =
      std::make_shared<FakeGrammar>([](const std::vector<int32_t>&) { return std::vector<int32_t>{7}; });
  EXPECT_EQ(text_behind({0, 5}, {7}), "a") << "which is held to a grammar, by itself";
}

TEST(ChoiceText, MarkedTokensStandAtTheExactByteHoweverTextIsHeldBackAndJoined) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE("TRAMONTANE_TEST_SEED=" + std::to_string(seed));
  std::mt19937 random(seed);
  // Halves of characters and of stop strings, so that much is held back.
  const PieceTokenizer tokenizer({"<s>", "[TOOL_CALLS]", " a", "S", "T", "\xC3", "\xA9", "[{"});
  constexpr int32_t kMarked = 1;
  for (int64_t round = 0; round < ScaledCount(5000); ++round) {
    Request request;
    request.prompt = {0};
    request.stopping.stop = {"STS", "S[{"};
    request.stopping.include_stop = random() % 2 == 0;
    request.stopping.min_tokens = static_cast<int64_t>(random() % 4);
    request.output.skip_special_tokens = random() % 2 == 0;
    request.output.marked_ids = {kMarked};
    std::vector<int32_t> ids;
    for (size_t n = random() % 12; n > 0; --n) ids.push_back(1 + static_cast<int32_t>(random() % 7));

    // Behind what comes before, and behind the token itself where it is spelled, as if that were all.
    Request unstopped = request;
    unstopped.stopping.stop.clear();
    ChoiceText before(unstopped, &tokenizer);
    ChoiceText::Shown shown_before;
    std::vector<std::pair<size_t, size_t>> marked;  // index of the id, byte
    for (size_t i = 0; i < ids.size(); ++i) {
      before.Append(ids[i], ChoiceText::Spelling::kShown, &shown_before);
      if (ids[i] == kMarked) marked.emplace_back(i, shown_before.text.size());
    }

    ChoiceText text(request, &tokenizer);
    TokenStream stream("r", nullptr);
    std::string read;
    std::vector<size_t> told;
    const auto take = [&] {
      for (const StreamDelta& delta : stream.Take().deltas) {
        for (const TextMark& mark : delta.marks) {
          ASSERT_EQ(mark.token, kMarked);
          told.push_back(read.size() + static_cast<size_t>(mark.at));
        }
        read += delta.text;
      }
    };
    const auto put = [&](ChoiceText::Shown shown) {
      StreamDelta delta;
      delta.text = std::move(shown.text);
      delta.marks = std::move(shown.marks);
      stream.PutDelta(std::move(delta));
    };
    const std::string* stop = nullptr;
    size_t appended = 0;
    for (; appended < ids.size() && stop == nullptr; ++appended) {
      ChoiceText::Shown shown;
      stop = text.Append(ids[appended], ChoiceText::Spelling::kShown, &shown);
      put(std::move(shown));
      if (random() % 3 == 0) take();
    }
    if (stop == nullptr) {
      ChoiceText::Shown rest;
      text.Flush(&rest);
      put(std::move(rest));
    }
    take();
    std::vector<size_t> want;  // a stop string cuts off what stands behind its begin
    for (const auto& [index, at] : marked) {
      if (appended > index && read.size() >= at) want.push_back(at);
    }
    ASSERT_EQ(told, want) << read;
  }
}

// ---- OutputProcessor ----------------------------------------------------------------------------

enum Id : int32_t { kBos, kEos, kHello, kWorld, kSt, kOp, kDot };
const PieceTokenizer& Pieces() {
  static const PieceTokenizer tokenizer({"<s>", "</s>", " Hello", " world", " ST", "OP", "."});
  return tokenizer;
}

struct Reader {
  std::string text;
  std::vector<int32_t> ids;
  std::vector<TokenInfo> logprobs;
  std::vector<StreamFinished> finished;
  bool done = false;
  Status status;

  void Take(TokenStream& stream) {
    StreamUpdate update = stream.Take();
    for (StreamDelta& delta : update.deltas) {
      text += delta.text;
      ids.insert(ids.end(), delta.token_ids.begin(), delta.token_ids.end());
      logprobs.insert(logprobs.end(), delta.logprobs.begin(), delta.logprobs.end());
    }
    finished.insert(finished.end(), update.finished.begin(), update.finished.end());
    done = done || update.done;
    if (update.done) status = update.status;
  }
};

// Plays the engine's part for one request of one choice.
constexpr int64_t kUnreadTokens = 30;

EngineLimits LimitsOf(int32_t queue_steps) {
  EngineLimits limits;
  limits.output_queue_steps = queue_steps;
  limits.max_unread_tokens = kUnreadTokens;
  return limits;
}

class Script {
 public:
  // `unread`: counted with other streams; null: alone.
  explicit Script(Request request, std::function<void()> on_ready = nullptr,
                  std::shared_ptr<UnreadBytes> unread = nullptr) {
    request.id = "r";
    if (request.prompt.empty()) request.prompt = {kBos};
    request_ = std::make_shared<const Request>(std::move(request));
    auto stream = std::make_shared<TokenStream>("r", std::move(on_ready), nullptr, std::move(unread));
    live_ = std::make_shared<RequestOutput>(*request_, std::move(stream), &Pieces());
  }

  ChoiceOutput Token(int32_t id, std::optional<ChoiceEnd> end = std::nullopt) {
    ChoiceOutput output;
    output.request = live_;
    output.token = TokenInfo{.token = id, .logprob = -1.0f};
    output.end = std::move(end);
    output.timings.finished_ns = ++time_ns_;
    return output;
  }
  ChoiceOutput End(ChoiceEnd end) {
    ChoiceOutput output = Token(0, std::move(end));
    output.token.reset();
    return output;
  }

  // Delivers all of it, one step each, and reads what came of it.
  template <size_t n>
  Reader Deliver(ChoiceOutput (&&outputs)[n]) {
    return Deliver(std::span<ChoiceOutput>(outputs));
  }
  Reader Deliver(std::span<ChoiceOutput> outputs) {
    DeliverUnread(outputs, LimitsOf(64));
    Reader reader;
    reader.Take(*live_->stream);
    return reader;
  }

  void DeliverUnread(std::span<ChoiceOutput> outputs, const EngineLimits& limits) {
    Signal engine_wake;
    OutputProcessor processor(limits, engine_wake, [] {});
    for (ChoiceOutput& output : outputs) {
      while (processor.Back() == nullptr) engine_wake.Wait(Signal::kForever);
      processor.Back()->push_back(std::move(output));
      processor.Push();
    }
  }

  RequestOutput& live() { return *live_; }

 private:
  std::shared_ptr<const Request> request_;
  std::shared_ptr<RequestOutput> live_;
  int64_t time_ns_ = 0;
};

TEST(OutputProcessor, TextIdsLogprobsAndUsageEndAtTheTokenThatCompletesAStop) {
  Request request;
  request.stopping.stop = {"STOP"};
  request.output.logprobs = 0;
  Script script(request);
  std::vector<ChoiceOutput> outputs;
  for (const int32_t id : {kHello, kSt, kOp}) outputs.push_back(script.Token(id));
  for (int surplus = 0; surplus < 12; ++surplus) outputs.push_back(script.Token(kWorld));
  outputs.push_back(script.End({FinishReason::kStopSequence}));
  const Reader reader = script.Deliver(outputs);
  EXPECT_EQ(reader.text, "Hello ");
  EXPECT_EQ(reader.ids, (std::vector<int32_t>{kHello, kSt, kOp}));
  EXPECT_EQ(reader.logprobs.size(), 3u);
  ASSERT_EQ(reader.finished.size(), 1u);
  EXPECT_EQ(reader.finished[0].reason, FinishReason::kStopSequence);
  EXPECT_EQ(reader.finished[0].stop_string, "STOP");
  EXPECT_EQ(reader.finished[0].usage.completion_tokens, 3);
  EXPECT_EQ(reader.finished[0].timings.finished_ns, 3) << "the time of the token that completed the stop";
  EXPECT_TRUE(reader.done);
  EXPECT_TRUE(script.live().stopped_by_text[0]);
}

TEST(OutputProcessor, ACancellationBehindACompletedStopChangesNothing) {
  Request request;
  request.stopping.stop = {"Hello"};
  Script script(request);
  const Reader reader =
      script.Deliver({script.Token(kHello),
                      script.End({FinishReason::kCancelled, Status(StatusCode::kCancelled, "cancelled")})});
  EXPECT_EQ(reader.finished[0].reason, FinishReason::kStopSequence);
  EXPECT_TRUE(reader.status.ok());
}

TEST(OutputProcessor, EosIsAmongTheIdsButNeverInTheText) {
  for (const bool include_stop : {false, true}) {
    Request request;
    request.stopping.include_stop = include_stop;
    request.output.skip_special_tokens = false;
    Script script(request);
    const Reader reader =
        script.Deliver({script.Token(kHello), script.Token(kEos, ChoiceEnd{FinishReason::kStop, {}, kEos})});
    EXPECT_EQ(reader.text, "Hello");
    EXPECT_EQ(reader.ids, (std::vector<int32_t>{kHello, kEos}));
    EXPECT_EQ(reader.finished[0].usage.completion_tokens, 2);
    EXPECT_EQ(reader.finished[0].stop_token_id, kEos);
  }
}

TEST(OutputProcessor, AStopTokensTextIsKeptByIncludeStop) {
  for (const bool include_stop : {false, true}) {
    Request request;
    request.stopping.include_stop = include_stop;
    Script script(request);
    const Reader reader = script.Deliver(
        {script.Token(kHello), script.Token(kDot, ChoiceEnd{FinishReason::kStopSequence, {}, kDot})});
    EXPECT_EQ(reader.text, include_stop ? "Hello." : "Hello");
  }
}

TEST(OutputProcessor, HeldBackTextComesOutWhenTheChoiceEndsOtherwise) {
  Request request;
  request.stopping.stop = {"STOP"};
  {
    Script script(request);
    const Reader reader = script.Deliver({script.Token(kSt), script.End({FinishReason::kTimeLimit})});
    EXPECT_EQ(reader.text, "ST");
  }
  {
    Script script(request);
    const Reader reader = script.Deliver({script.Token(kSt, ChoiceEnd{FinishReason::kLength})});
    EXPECT_EQ(reader.text, "ST");
  }
}

TEST(OutputProcessor, StopStringsAreNotMatchedBeforeMinTokens) {
  Request request;
  request.stopping.stop = {"STOP"};
  request.stopping.min_tokens = 3;
  Script script(request);
  const Reader reader =
      script.Deliver({script.Token(kSt), script.Token(kOp), script.Token(kSt), script.Token(kOp)});
  EXPECT_EQ(reader.text, "STOP ");
  EXPECT_EQ(reader.finished[0].usage.completion_tokens, 4);
}

TEST(OutputProcessor, AStopStringThatTokenNumberMinTokensCompletesEndsTheChoice) {
  Request request;
  request.stopping.stop = {"STOP"};
  request.stopping.min_tokens = 2;
  Script script(request);
  const Reader reader = script.Deliver({script.Token(kSt), script.Token(kOp), script.Token(kDot)});
  ASSERT_EQ(reader.finished.size(), 1u);
  EXPECT_EQ(reader.finished[0].stop_string, "STOP");
  EXPECT_EQ(reader.finished[0].usage.completion_tokens, 2);
}

TEST(OutputProcessor, EachTokenSaysHowItBecomesText) {
  Request request;
  request.output.logprobs = 0;
  for (const bool skip : {true, false}) {
    request.output.skip_special_tokens = skip;
    Script script(request);
    const Reader reader = script.Deliver({script.Token(kBos), script.Token(kHello), script.Token(kWorld),
                                          script.Token(kEos, ChoiceEnd{FinishReason::kStop, {}, kEos})});
    ASSERT_EQ(reader.logprobs.size(), 4u);
    EXPECT_EQ(reader.logprobs[0].use, skip ? PieceUse::kBeginsText : PieceUse::kSpelledOut);
    EXPECT_EQ(reader.logprobs[1].use, PieceUse::kBeginsText) << "its space is dropped";
    EXPECT_EQ(reader.logprobs[2].use, PieceUse::kAsItIs);
    EXPECT_EQ(reader.logprobs[3].use, PieceUse::kAsItIs) << "the end is never spelled out";
    EXPECT_EQ(reader.text, skip ? "Hello world" : "<s>Hello world");
  }
}

TEST(OutputProcessor, AfterTextTheOutputKeepsItsFirstSpaceAndAfterAControlTokenItDoesNot) {
  Request after_text;
  after_text.prompt = {kBos, kHello};
  Script continued(after_text);
  EXPECT_EQ(continued.Deliver({continued.Token(kWorld, ChoiceEnd{FinishReason::kLength})}).text, " world");
  Script fresh{Request{}};
  EXPECT_EQ(fresh.Deliver({fresh.Token(kWorld, ChoiceEnd{FinishReason::kLength})}).text, "world");
}

TEST(OutputProcessor, TheRequestsOutcomeIsItsFirstFailure) {
  Request request;
  request.choices = 2;
  Script script(request);
  ChoiceOutput failed = script.End({FinishReason::kError, Internal("not finite")});
  failed.choice = 1;
  const Reader reader =
      script.Deliver({std::move(failed), script.Token(kHello, ChoiceEnd{FinishReason::kLength})});
  EXPECT_EQ(reader.text, "Hello") << "the other choice goes on";
  EXPECT_EQ(reader.finished[0].status.code(), StatusCode::kInternal);
  EXPECT_TRUE(reader.finished[1].status.ok());
  EXPECT_EQ(reader.status.code(), StatusCode::kInternal);
}

TEST(OutputProcessor, ARequestWhoseReaderIsTooFarBehindEnds) {
  for (const int64_t tokens : {kUnreadTokens, kUnreadTokens + 1}) {
    const bool is_too_far = tokens > kUnreadTokens;
    Script script(Request{});
    std::vector<ChoiceOutput> outputs;
    for (int64_t i = 0; i < tokens; ++i) outputs.push_back(script.Token(kHello));
    ChoiceEnd end = {FinishReason::kLength};
    if (is_too_far) end = {FinishReason::kCancelled, Status(StatusCode::kCancelled, "cancelled")};
    outputs.push_back(script.End(end));
    const Reader reader = script.Deliver(outputs);
    EXPECT_EQ(std::ssize(reader.ids), tokens);
    EXPECT_EQ(script.live().stream->cancelled(), is_too_far);
    EXPECT_EQ(reader.status.code(), is_too_far ? StatusCode::kResourceExhausted : StatusCode::kOk);
    if (!is_too_far) continue;
    EXPECT_EQ(reader.status.message(),
              "the reader of choice 0 is more than 30 tokens behind, which is the limit (max_unread_tokens)");
  }
}

// A token with 1,000 others beside it: some 8 KiB.
std::vector<ChoiceOutput> LongTokens(Script& script, int64_t count) {
  std::vector<ChoiceOutput> outputs;
  for (int64_t i = 0; i < count; ++i) {
    outputs.push_back(script.Token(kHello));
    outputs.back().token->top.resize(1000);
  }
  return outputs;
}

TEST(OutputProcessor, WhereReadersAreFarBehindTogetherThoseEndThatAre) {
  EngineLimits limits = LimitsOf(64);
  limits.max_unread_bytes = 1 << 20;
  Request request;
  request.output.logprobs = 0;
  const auto unread = std::make_shared<UnreadBytes>(0);
  std::vector<Script> behind;
  for (int i = 0; i < 5; ++i) {
    Script& script = behind.emplace_back(request, nullptr, unread);
    std::vector<ChoiceOutput> outputs = LongTokens(script, 25);
    script.DeliverUnread(outputs, limits);
    EXPECT_FALSE(script.live().stream->cancelled()) << "together they may have a megabyte";
  }
  Script quick(request, nullptr, unread);
  std::vector<ChoiceOutput> quick_outputs = LongTokens(quick, 5);
  Script slow(request, nullptr, unread);
  std::vector<ChoiceOutput> slow_outputs = LongTokens(slow, 10);
  quick.DeliverUnread(quick_outputs, limits);
  slow.DeliverUnread(slow_outputs, limits);
  EXPECT_FALSE(quick.live().stream->cancelled()) << "of it less than 64 KiB wait";
  EXPECT_TRUE(slow.live().stream->cancelled());
  EXPECT_EQ(slow.live().outcome.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(slow.live().outcome.message().find("all readers together more than 1048576, which is the limit"),
            std::string::npos);
  const int64_t before = *unread;
  behind[0].live().stream->Take();
  EXPECT_LT(*unread, before - 25 * 8000) << "what is taken does not count any more";
  behind.clear();
  slow.live().stream->Take();
  quick.live().stream->Take();
  EXPECT_EQ(*unread, 0) << "nor what is gone";
}

TEST(OutputProcessor, AFullQueueGivesNoSlotUntilTheOutputThreadMovesOn) {
  std::promise<void> stalled, go_on;
  Script script(Request{}, [&] {
    stalled.set_value();
    go_on.get_future().wait();
  });
  Signal engine_wake;
  OutputProcessor processor(LimitsOf(2), engine_wake, [] {});
  for (int step = 0; step < 2; ++step) {
    ASSERT_NE(processor.Back(), nullptr);
    processor.Back()->push_back(script.Token(kHello));
    processor.Push();
  }
  stalled.get_future().wait();
  EXPECT_EQ(processor.Back(), nullptr);
  go_on.set_value();
  while (processor.Back() == nullptr) engine_wake.Wait(Signal::kForever);
}

}  // namespace
}  // namespace tramontane

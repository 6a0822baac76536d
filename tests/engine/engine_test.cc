#include "engine/engine.h"

#include <gtest/gtest.h>

#include <future>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine_thread.h"
#include "tests/support/in_process_engine.h"
#include "tests/support/piece_tokenizer.h"

namespace tramontane {
namespace {

// Ids 0..63; id i spells letter i % 26, but for the controls.
const PieceTokenizer& Letters() {
  static const PieceTokenizer tokenizer([] {
    std::vector<std::string> pieces = {"<unk>", "<s>", "</s>"};
    while (pieces.size() < SteppedEngine::kVocab) pieces.emplace_back(1, char('a' + pieces.size() % 26));
    return pieces;
  }());
  return tokenizer;
}

std::vector<int32_t> IdsAlone(const Request& request, const std::vector<int32_t>& windows = {0}) {
  SteppedEngine alone(SmallLimits(64), windows);
  auto reader = alone.Submit(request);
  alone.RunToEnd({reader.get()});
  return reader->choice().ids;
}

// ---- one request -----------------------------------------------------------------------------------------

TEST(Engine, ARequestStreamsItsTokensAndEndsWithUsageAndTimings) {
  SteppedEngine test(SmallLimits(32), {0}, &Letters());
  Request request = MakeRequest("r", 20, 5);
  request.received_ns = 1;
  request.tokenized_ns = 2;
  auto reader = test.Submit(request);
  test.RunToEnd({reader.get()});
  ASSERT_TRUE(reader->done());
  EXPECT_TRUE(reader->status().ok());
  ASSERT_EQ(reader->started().size(), 1u);
  EXPECT_EQ(reader->started()[0].prompt_tokens, 20);
  const ChoiceReading& choice = reader->choice();
  EXPECT_EQ(choice.ids.size(), 5u);
  EXPECT_EQ(choice.text.size(), 5u);
  EXPECT_EQ(choice.completion_tokens, 5);
  ASSERT_EQ(choice.finished.size(), 1u);
  EXPECT_EQ(choice.end().reason, FinishReason::kLength);
  EXPECT_EQ(choice.end().usage.prompt_tokens, 20);
  EXPECT_EQ(choice.end().usage.completion_tokens, 5);
  EXPECT_EQ(choice.end().usage.prefill_chunks, 2) << "20 tokens in steps of 16";
  const Timings& t = choice.end().timings;
  EXPECT_EQ(t.received_ns, 1);
  EXPECT_EQ(t.tokenized_ns, 2);
  EXPECT_GT(t.admitted_ns, t.tokenized_ns);
  EXPECT_GE(t.first_chunk_ns, t.admitted_ns);
  EXPECT_GT(t.last_chunk_ns, t.first_chunk_ns);
  EXPECT_GE(t.first_token_ns, t.last_chunk_ns);
  EXPECT_GT(t.finished_ns, t.first_token_ns);
}

TEST(Engine, ASeedIsDrawnWhenNoneIsGivenAndRepeatsTheOutput) {
  Request request = MakeRequest("r", 5, 20);
  request.sampling.temperature = 1.0f;
  SteppedEngine test(SmallLimits(32));
  auto first = test.Submit(request);
  test.RunToEnd({first.get()});
  auto other = test.Submit(request);
  test.RunToEnd({other.get()});
  EXPECT_NE(first->started()[0].seed, other->started()[0].seed);
  EXPECT_NE(first->choice().ids, other->choice().ids);
  request.sampling.seed = first->started()[0].seed;
  EXPECT_EQ(IdsAlone(request), first->choice().ids);
}

TEST(Engine, EosAndStopTokensEndAChoiceAtOnceAndAreItsLastId) {
  for (const bool eos : {true, false}) {
    const int32_t last = eos ? SteppedEngine::kEos : 40;
    SteppedEngine test(SmallLimits(32), {0}, &Letters());
    test.runner().forced = [&](const std::string&, int32_t, int64_t position) {
      return position == 7 ? last : 30;
    };
    Request request = MakeRequest("r", 5, 20);
    request.stopping.ignore_eos = false;
    request.stopping.stop_token_ids = {40};
    auto reader = test.Submit(request);
    test.RunToEnd({reader.get()});
    EXPECT_EQ(reader->choice().ids, (std::vector<int32_t>{30, 30, last}));
    EXPECT_EQ(reader->choice().text.size(), 2u);
    EXPECT_EQ(reader->choice().end().reason, eos ? FinishReason::kStop : FinishReason::kStopSequence);
    EXPECT_EQ(reader->choice().end().stop_token_id, last);
    EXPECT_EQ(reader->choice().end().usage.completion_tokens, 3);
    EXPECT_EQ(test.engine().Load().output_tokens, 3) << "the engine itself saw the end";
  }
}

TEST(Engine, MinTokensBansTheEndUntilThen) {
  Request request = MakeRequest("r", 5, 20);
  request.stopping.ignore_eos = false;
  request.sampling.logit_bias = {{SteppedEngine::kEos, 100.0f}};
  EXPECT_EQ(IdsAlone(request), (std::vector<int32_t>{SteppedEngine::kEos}));
  request.stopping.min_tokens = 4;
  const std::vector<int32_t> ids = IdsAlone(request);
  ASSERT_EQ(ids.size(), 5u);
  EXPECT_EQ(ids.back(), SteppedEngine::kEos);
}

TEST(Engine, ZeroMaxTokensScoresThePromptAndEnds) {
  SteppedEngine test(SmallLimits(32));
  Request request = MakeRequest("r", 40, 0);
  request.output.prompt_logprobs = 2;
  auto reader = test.Submit(request);
  test.RunToEnd({reader.get()});
  EXPECT_TRUE(reader->choice().ids.empty());
  EXPECT_EQ(reader->choice().end().reason, FinishReason::kLength);
  const std::vector<TokenInfo>& scores = reader->started().at(0).prompt_logprobs;
  ASSERT_EQ(scores.size(), 39u);
  for (size_t i = 0; i < scores.size(); ++i) {
    EXPECT_EQ(scores[i].token, request.prompt[i + 1]);
    EXPECT_LT(scores[i].logprob, 0.0f);
    EXPECT_EQ(scores[i].top.size(), 2u);
  }
}

TEST(Engine, PromptLogprobsDoNotDependOnHowThePromptIsChunked) {
  Request request = MakeRequest("r", 40, 1);
  request.output.prompt_logprobs = 3;
  std::vector<std::vector<TokenInfo>> readings;
  for (const int32_t step_tokens : {1, 7, 64}) {
    EngineLimits limits = SmallLimits(32);
    limits.max_step_tokens = step_tokens;
    SteppedEngine test(limits, {0, 8});
    auto reader = test.Submit(request);
    test.RunToEnd({reader.get()});
    readings.push_back(reader->started().at(0).prompt_logprobs);
  }
  for (const auto& reading : readings) {
    ASSERT_EQ(reading.size(), 39u);
    for (size_t i = 0; i < reading.size(); ++i) EXPECT_EQ(reading[i].logprob, readings[0][i].logprob) << i;
  }
}

TEST(Engine, ChoicesShareAPromptAndDifferByTheirNumber) {
  SteppedEngine test(SmallLimits(64));
  Request request = MakeRequest("r", 10, 12);
  request.choices = 3;
  request.sampling.temperature = 1.0f;
  request.sampling.seed = 5;
  auto reader = test.Submit(request);
  test.RunToEnd({reader.get()});
  std::set<std::vector<int32_t>> distinct;
  for (int32_t c = 0; c < 3; ++c) {
    EXPECT_EQ(reader->choice(c).ids.size(), 12u);
    distinct.insert(reader->choice(c).ids);
  }
  EXPECT_EQ(distinct.size(), 3u);
  request.choices = 1;
  EXPECT_EQ(IdsAlone(request), reader->choice(0).ids) << "the first choice is the one that n = 1 gives";
  EXPECT_EQ(test.engine().Load().prompt_tokens, 10) << "the prompt is computed once";
  EXPECT_EQ(test.engine().Load().held_pages, 0);
}

TEST(Engine, EveryChoiceTellsThePromptsChunks) {
  EngineLimits limits = SmallLimits(64);
  limits.max_step_tokens = 7;
  SteppedEngine test(limits);
  Request request = MakeRequest("r", 20, 3);
  request.choices = 3;
  auto reader = test.Submit(request);
  test.RunToEnd({reader.get()});
  for (int32_t c = 0; c < 3; ++c) EXPECT_EQ(reader->choice(c).end().usage.prefill_chunks, 3) << c;
}

// ---- stop strings and the output thread -------------------------------------------------------------------

TEST(Engine, EverythingEndsAtTheStopHoweverFarTheEngineRanOn) {
  SteppedEngine test(SmallLimits(64), {0}, &Letters());
  // "abcdabcdabcd...": ids 26 + letter.
  test.runner().forced = [](const std::string& id, int32_t, int64_t position) {
    return id == "stopped" ? static_cast<int32_t>(26 + (position - 5) % 4) : 30;
  };
  // The reader of the first request holds the output thread fast in its callback.
  std::promise<void> stalled, go_on;
  const auto staller = test.engine().Submit(MakeRequest("staller", 5, 1), [&] {
    stalled.set_value();
    go_on.get_future().wait();
  });
  ASSERT_TRUE(staller.ok());
  test.Step();
  stalled.get_future().wait();

  Request request = MakeRequest("stopped", 5, 50);
  request.stopping.stop = {"da"};
  request.output.logprobs = 1;
  auto reader = test.Submit(request);
  for (int step = 0; step < 15; ++step) test.Step();
  EXPECT_GE(test.engine().Load().output_tokens, 12);
  go_on.set_value();
  test.RunToEnd({reader.get()});
  EXPECT_EQ(reader->choice().text, "abc");
  EXPECT_EQ(reader->choice().ids, (std::vector<int32_t>{26, 27, 28, 29, 26}));
  EXPECT_EQ(reader->choice().logprobs.size(), 5u);
  EXPECT_EQ(reader->choice().completion_tokens, 5);
  ASSERT_EQ(reader->choice().finished.size(), 1u);
  EXPECT_EQ(reader->choice().end().usage.completion_tokens, 5);
  EXPECT_EQ(reader->choice().end().reason, FinishReason::kStopSequence);
  EXPECT_EQ(reader->choice().end().stop_string, "da");
  EXPECT_TRUE(reader->status().ok());
  test.Step();  // the engine has seen the flag by now
  test.Step();
  EXPECT_EQ(test.engine().Load().held_pages, 0);
}

TEST(Engine, AFullOutputQueueHoldsTheEngineAndLosesNothing) {
  EngineLimits limits = SmallLimits(64);
  limits.output_queue_steps = 3;
  SteppedEngine test(limits);
  std::promise<void> stalled, go_on;
  const auto staller = test.engine().Submit(MakeRequest("staller", 5, 1), [&] {
    stalled.set_value();
    go_on.get_future().wait();
  });
  ASSERT_TRUE(staller.ok());
  test.Step();
  stalled.get_future().wait();
  auto reader = test.Submit(MakeRequest("r", 5, 30));
  for (int step = 0; step < 40; ++step) test.Step();
  EXPECT_LE(test.engine().Load().output_tokens, 1 + 3);
  EXPECT_EQ(test.engine().Step(), StepOutcome::kNoRoom);
  go_on.set_value();
  test.RunToEnd({reader.get()});
  EXPECT_EQ(reader->choice().ids, IdsAlone(MakeRequest("r", 5, 30)));
}

TEST(Engine, ASlowReaderGetsJoinedDeltas) {
  SteppedEngine test(SmallLimits(64));
  auto slow = test.Submit(MakeRequest("slow", 5, 30));
  test.RunToEnd({});
  slow->WaitToEnd();
  EXPECT_LE(slow->updates(), 2);
  EXPECT_EQ(slow->choice().ids, IdsAlone(MakeRequest("slow", 5, 30)));
}

// ---- crowds ----------------------------------------------------------------------------------------------

TEST(Engine, ARequestGivesTheSameTokensAloneInACrowdAndInATinyPool) {
  const std::vector<int32_t> windows = {0, 8, 8};
  std::vector<Request> requests;
  for (int i = 0; i < 8; ++i) {
    requests.push_back(MakeRequest("r" + std::to_string(i), 3 + 5 * i, 20, i));
    requests.back().sampling.temperature = 0.8f;
    requests.back().sampling.seed = i;
    requests.back().sampling.repetition_penalty = 1.3f;
    requests.back().sampling.frequency_penalty = 0.2f;
  }
  int64_t preemptions = 0;
  for (const int64_t pool_pages : {200, 40}) {
    SteppedEngine test(SmallLimits(pool_pages), windows);
    std::vector<std::unique_ptr<StreamReader>> readers;
    std::vector<StreamReader*> all;
    for (const Request& request : requests) {
      readers.push_back(test.Submit(request));
      all.push_back(readers.back().get());
    }
    test.RunToEnd(all);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(readers[i]->choice().ids, IdsAlone(requests[i], windows)) << i << " of pool " << pool_pages;
    }
    EXPECT_EQ(test.engine().Load().held_pages, 0);
    preemptions = test.engine().Load().preemptions;
  }
  EXPECT_GT(preemptions, 0) << "the small pool was meant to be too small";
}

class EngineWithStepsInFlight : public testing::TestWithParam<int32_t> {};
INSTANTIATE_TEST_SUITE_P(StepsInFlight, EngineWithStepsInFlight, testing::Values(1, 2));

TEST_P(EngineWithStepsInFlight, RowsThatAreNotFiniteEndAlone) {
  EngineLimits limits = SmallLimits(64);
  limits.steps_in_flight = GetParam();
  SteppedEngine test(limits);
  test.runner().not_finite = [](const std::string& id, int32_t choice, int64_t position) {
    return id == "bad" && choice == 1 && position == 8;
  };
  Request bad = MakeRequest("bad", 5, 10);
  bad.choices = 2;
  auto good_reader = test.Submit(MakeRequest("good", 6, 10));
  auto bad_reader = test.Submit(bad);
  test.RunToEnd({good_reader.get(), bad_reader.get()});
  test.Step();  // drops the step that was ahead
  EXPECT_TRUE(good_reader->status().ok());
  EXPECT_EQ(good_reader->choice().ids.size(), 10u);
  EXPECT_EQ(bad_reader->choice(0).ids.size(), 10u) << "the other choice goes on";
  EXPECT_EQ(bad_reader->choice(1).ids.size(), 3u);
  EXPECT_EQ(bad_reader->choice(1).end().reason, FinishReason::kError);
  EXPECT_EQ(bad_reader->choice(1).end().status.code(), StatusCode::kInternal);
  EXPECT_EQ(bad_reader->status().code(), StatusCode::kInternal);
  EXPECT_EQ(test.engine().Load().failed_rows, 1);
  EXPECT_EQ(test.engine().Load().held_pages, 0);
}

TEST_P(EngineWithStepsInFlight, AScoreThatIsNotFiniteEndsItsRequestAndNothingIsDrawn) {
  EngineLimits limits = SmallLimits(64);
  limits.steps_in_flight = GetParam();
  SteppedEngine test(limits);
  test.runner().not_finite = [](const std::string&, int32_t, int64_t position) { return position == 3; };
  Request request = MakeRequest("bad", 5, 10);
  request.output.prompt_logprobs = 0;
  auto reader = test.Submit(request);
  test.RunToEnd({reader.get()});
  test.Step();
  EXPECT_TRUE(reader->choice().ids.empty());
  ASSERT_EQ(reader->choice().finished.size(), 1u);
  EXPECT_EQ(reader->choice().end().status.code(), StatusCode::kInternal);
  EXPECT_EQ(test.engine().Load().output_tokens, 0);
  EXPECT_EQ(test.engine().Load().failed_rows, 1);
  EXPECT_EQ(test.engine().Load().held_pages, 0);
}

// The plan that the device gets knows the token it begins with (one step in flight), or leaves it to the
// device.
TEST_P(EngineWithStepsInFlight, ADecodeStepIsForwardedBeforeItsTokenIsKnownOrAfter) {
  EngineLimits limits = SmallLimits(64);
  limits.steps_in_flight = GetParam();
  SteppedEngine test(limits);
  std::vector<int64_t> unknown;  // rows of each decode step
  test.runner().on_forward = [&](const StepPlan& plan) {
    if (plan.lane != Lane::kDecode) return;
    unknown.push_back(std::count_if(plan.rows.begin(), plan.rows.end(), [](const StepRow& row) {
      return row.start == static_cast<int64_t>(row.sequence->tokens.size());
    }));
  };
  auto a = test.Submit(MakeRequest("a", 5, 6, 1));
  auto b = test.Submit(MakeRequest("b", 7, 6, 2));
  test.RunToEnd({a.get(), b.get()});
  EXPECT_EQ(unknown, std::vector<int64_t>(5, GetParam() == 2 ? 2 : 0)) << "both in each of five steps";
  EXPECT_EQ(a->choice().ids, IdsAlone(MakeRequest("a", 5, 6, 1)));
  EXPECT_EQ(b->choice().ids, IdsAlone(MakeRequest("b", 7, 6, 2)));
}

// What a token changes in the logits of the next one is known when that is sampled.
TEST_P(EngineWithStepsInFlight, PenaltiesAndMinTokensSeeEveryTokenBefore) {
  EngineLimits limits = SmallLimits(64);
  limits.steps_in_flight = GetParam();
  SteppedEngine test(limits);
  Request request = MakeRequest("r", 5, 12);
  request.sampling.frequency_penalty = 2.0f;
  request.sampling.repetition_penalty = 1.5f;
  request.sampling.logit_bias = {{SteppedEngine::kEos, 100.0f}};
  request.stopping.min_tokens = 7;
  request.stopping.ignore_eos = false;
  auto reader = test.Submit(request);
  test.RunToEnd({reader.get()});
  EXPECT_EQ(reader->choice().ids, IdsAlone(request));
  EXPECT_EQ(reader->choice().ids.size(), 8u) << "eos as soon as its ban is lifted";
  test.Step();  // drops the step that was ahead
  EXPECT_EQ(test.engine().Load().held_pages, 0);
}

TEST_P(EngineWithStepsInFlight, ALostDeviceEndsEveryStreamAndRefusesWhatComesLater) {
  EngineLimits limits = SmallLimits(64);
  limits.max_sequences = 4;
  limits.steps_in_flight = GetParam();
  SteppedEngine test(limits);
  std::vector<std::unique_ptr<StreamReader>> readers;
  std::vector<StreamReader*> all;
  for (int i = 0; i < 6; ++i) {
    readers.push_back(test.Submit(MakeRequest("r" + std::to_string(i), 5, 20)));
    all.push_back(readers.back().get());
  }
  for (int step = 0; step < 5; ++step) test.Step();
  test.runner().device_lost = true;
  test.RunToEnd(all);
  for (const auto& reader : readers) {
    EXPECT_EQ(reader->status().code(), StatusCode::kInternal);
    EXPECT_EQ(reader->choice().finished.size(), 1u);
  }
  EXPECT_EQ(test.engine().fatal().code(), StatusCode::kInternal);
  EXPECT_EQ(test.Submit(MakeRequest("late", 5, 5))->refused().code(), StatusCode::kInternal);
}

// ---- the door --------------------------------------------------------------------------------------------

TEST(Engine, RefusesWhenTheQueueIsFullWaitingRequestsIncluded) {
  EngineLimits limits = SmallLimits(64);
  limits.max_sequences = 1;
  limits.max_choices = 1;
  limits.max_queued_requests = 2;
  SteppedEngine test(limits);
  auto running = test.Submit(MakeRequest("running", 5, 10));
  test.Step();  // has left the queue
  auto first = test.Submit(MakeRequest("first", 5, 2));
  test.Step();  // drained, but it waits for a slot
  auto second = test.Submit(MakeRequest("second", 5, 2));
  const Status refused = test.Submit(MakeRequest("third", 5, 2))->refused();
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(refused.message(),
            "the queue is full: at most 2 requests (max_queued_requests) and 268435456 bytes wait");
  EXPECT_EQ(test.engine().Load().waiting, 2);
  test.RunToEnd({running.get(), first.get(), second.get()});
  EXPECT_EQ(test.engine().Load().waiting, 0);
  auto third = test.Submit(MakeRequest("third", 5, 2));
  EXPECT_TRUE(third->refused().ok());
  test.RunToEnd({third.get()});
}

TEST(Engine, StopStringsWithoutATokenizerAreRefused) {
  SteppedEngine test(SmallLimits(64));
  Request request = MakeRequest("r", 5, 5);
  request.stopping.stop = {"x"};
  EXPECT_EQ(test.Submit(request)->refused().field(), "stopping.stop");
}

// ---- the thread ------------------------------------------------------------------------------------------

TEST(EngineThread, ServesManySubmittersAtOnceAndStopsWithRequestsAlive) {
  const SteadyClock clock;
  const EngineLimits limits = SmallLimits(64);
  KvFormat format;
  format.kv_heads = format.head_dim = 1;
  format.page_size = limits.page_size;
  const KvLayout layout = MakeKvLayout({0, 8}, format);
  FakeModelRunner runner(layout, limits.pool_pages, SteppedEngine::kVocab);
  std::unique_ptr<StreamReader> endless;
  {
    Engine engine(limits, {SteppedEngine::kVocab, {SteppedEngine::kEos}, layout}, runner, &Letters(), clock);
    EngineThread thread(engine);
    std::vector<std::thread> submitters;
    for (int s = 0; s < 4; ++s) {
      submitters.emplace_back([&, s] {
        for (int i = 0; i < 10; ++i) {
          StreamReader reader(engine, MakeRequest(std::to_string(s) + ":" + std::to_string(i), 4 + i, 10, i));
          ASSERT_TRUE(reader.refused().ok());
          if (i % 5 == 4) reader.stream().Cancel();
          reader.WaitToEnd();
          if (reader.status().ok()) {
            EXPECT_EQ(reader.choice().ids.size(), 10u);
          }
          EXPECT_LE(engine.Load().held_pages, limits.pool_pages);
        }
      });
    }
    for (std::thread& submitter : submitters) submitter.join();
    endless = std::make_unique<StreamReader>(engine, MakeRequest("endless", 5, 59));
  }
  endless->WaitToEnd();
  EXPECT_TRUE(endless->status().ok() || endless->status().code() == StatusCode::kUnavailable);
}

// ---- what a watchdog sees --------------------------------------------------------------------------------

TEST(Engine, AStallIsWorkWithoutAStep) {
  constexpr int64_t kHourNs = int64_t{3600} * 1'000'000'000;
  SteppedEngine test(SmallLimits(32));
  test.clock().Advance(kHourNs);
  EXPECT_EQ(test.engine().stalled_ns(), 0) << "idle for an hour";
  for (int i = 0; i < 2; ++i) {
    auto reader = test.Submit(MakeRequest("r", 20, 5));
    EXPECT_EQ(test.engine().stalled_ns(), 0) << "the request is new";
    test.clock().Advance(5);
    EXPECT_EQ(test.engine().stalled_ns(), 5) << "and waits for its first step";
    test.Step();
    EXPECT_EQ(test.engine().stalled_ns(), 0);
    test.clock().Advance(7);
    EXPECT_EQ(test.engine().stalled_ns(), 7) << "since the last step";
    test.RunToEnd({reader.get()});
    while (!test.engine().idle()) std::this_thread::yield();
    test.clock().Advance(kHourNs);
    EXPECT_EQ(test.engine().stalled_ns(), 0);
  }
}

}  // namespace
}  // namespace tramontane

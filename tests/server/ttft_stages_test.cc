// Where the time to the first content goes, on a clock that only the test moves: each stage grows by what its
// cause took, to the nanosecond, and they sum to the whole.
#include "server/watch/ttft_stages.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <latch>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/threads/clock.h"
#include "models/chat/mistral_chat.h"
#include "models/grammar/constraint_compiler.h"
#include "models/tokenizer/load.h"
#include "server/core/engine_client.h"
#include "server/core/inference_core.h"
#include "tests/server/call_reader.h"
#include "tests/server/scripted_model.h"

namespace tramontane {
namespace {

constexpr int64_t kMs = 1'000'000;

// ---- the list -------------------------------------------------------------------------------------

TEST(TtftStages, AreTheGapsOfOneListOfMoments) {
  TtftStages stages(1000);
  stages.Take(TtftStage::kReceive, 5);
  stages.End(TtftStage::kParse, 1012);
  stages.End(TtftStage::kTokenize, 1003);  // before the parse ended: at once
  EXPECT_FALSE(stages.ended(TtftStage::kQueue));
  EXPECT_EQ(stages.ns(TtftStage::kReceive), 5);
  EXPECT_EQ(stages.ns(TtftStage::kParse), 7);
  EXPECT_EQ(stages.ns(TtftStage::kTokenize), 0);
  EXPECT_EQ(stages.total_ns(), 12);
  v1::Timings proto;
  stages.ToProto(&proto);
  EXPECT_TRUE(proto.has_tokenize_ms());
  EXPECT_FALSE(proto.has_queue_ms() || proto.has_ttft_ms()) << "what has not ended is not told";
}

TEST(TtftStages, NanosecondsSurviveTheMessage) {
  TtftStages stages(7);
  for (size_t i = 0; i < TtftStages::kCount; ++i) {
    stages.Take(static_cast<TtftStage>(i), 123'456'789'012 + static_cast<int64_t>(i));
  }
  v1::Timings proto;
  stages.ToProto(&proto);
  for (size_t i = 0; i < TtftStages::kCount; ++i) {
    EXPECT_EQ(TtftStages::NsOf(proto, static_cast<TtftStage>(i)), 123'456'789'012 + static_cast<int64_t>(i));
  }
  EXPECT_EQ(std::llround(proto.ttft_ms() * 1e6), 9 * 123'456'789'012 + 36);
}

// ---- a call ---------------------------------------------------------------------------------------

// Read by the worker while the test waits for it.
class SharedClock final : public Clock {
 public:
  int64_t NowNs() const override { return now_ns_; }
  void Advance(int64_t ns) { now_ns_ += ns; }

 private:
  std::atomic<int64_t> now_ns_{1'000'000'000};
};

// The scripted model, on that clock.
class TimedModel final : public ModelRunner {
 public:
  TimedModel(std::vector<int32_t> script, SharedClock& clock) : model_(std::move(script)), clock_(clock) {}

  StatusOr<StepTicket> Forward(const StepPlan& plan) override {
    clock_.Advance(forward_ns);
    return model_.Forward(plan);
  }
  Status Sample(StepTicket ticket, const SampleInputs& inputs) override {
    clock_.Advance(sample_ns);
    return model_.Sample(ticket, inputs);
  }
  StatusOr<StepResult> Collect(StepTicket ticket) override { return model_.Collect(ticket); }
  int32_t TokenAt(int64_t position) const { return model_.TokenAt(position); }

  int64_t forward_ns = 20 * kMs;
  int64_t sample_ns = 3 * kMs;

 private:
  ScriptedModel model_;
  SharedClock& clock_;
};

// A grammar of every text that takes its time, on that clock: once to be compiled, and once for its first
// mask.
class SlowGrammar final : public Grammar {
 public:
  explicit SlowGrammar(SharedClock& clock) : clock_(clock) {}
  std::unique_ptr<GrammarMatcher> NewMatcher(TextStart) const override {
    return std::make_unique<Matcher>(clock_);
  }
  int64_t memory_bytes() const override { return 1000; }

 private:
  class Matcher final : public GrammarMatcher {
   public:
    explicit Matcher(SharedClock& clock) : clock_(clock) {}
    void FillMask(std::span<uint32_t> mask, GrammarWork&) override {
      for (uint32_t& word : mask) word = ~0u;
      clock_.Advance(accepted_ ? 0 : 5 * kMs);
    }
    bool Accept(int32_t, GrammarWork&) override { return accepted_ = true; }

   private:
    SharedClock& clock_;
    bool accepted_ = false;
  };

  SharedClock& clock_;
};

class SlowGrammarBackend final : public GrammarBackend {
 public:
  explicit SlowGrammarBackend(SharedClock& clock) : clock_(clock) {}
  StatusOr<std::shared_ptr<const Grammar>> Compile(const std::string&, GrammarWork&) const override {
    clock_.Advance(17 * kMs);
    return std::shared_ptr<const Grammar>(std::make_shared<SlowGrammar>(clock_));
  }

 private:
  SharedClock& clock_;
};

EngineLimits SmallLimits() {
  EngineLimits limits;
  limits.context = 256;
  limits.max_sequences = 8;
  limits.page_size = 4;
  limits.pool_pages = 256;
  limits.max_step_tokens = 16;
  return limits;
}

// One call, stepped by hand.
class TtftOfACall : public ::testing::Test {
 protected:
  TtftOfACall()
      : tokenizer_(LoadTokenizer(TRAMONTANE_SOURCE_DIR "/models/breeze/weights").value()),
        chat_format_(*tokenizer_, tokenizer_->version().value()),
        model_(tokenizer_->Encode("The wind came down from the hills and sang to the river.").value(),
               clock_),
        constraints_(std::make_unique<SlowGrammarBackend>(clock_), {.max_cache_bytes = 4000}),
        engine_(SmallLimits(),
                {tokenizer_->vocab_size(),
                 {tokenizer_->eos_id()},
                 MakeKvLayout({0}, {.kv_heads = 1, .head_dim = 8, .page_size = SmallLimits().page_size})},
                model_, tokenizer_.get(), clock_),
        core_({.workers = {.threads = 1}}),
        client_(core_) {
    ServedModel served;
    served.names = {"scripted"};
    served.config.vocab_size = tokenizer_->vocab_size();
    served.config.context = SmallLimits().context;
    served.config.eos_ids = {tokenizer_->eos_id()};
    served.engine = &engine_;
    served.tokenizer = tokenizer_.get();
    served.chat_format = &chat_format_;
    served.clock = &clock_;
    served.constraints = &constraints_;
    core_.Serve(served);
  }

  static v1::GenerateRequest RequestOf(int64_t prompt_tokens, int64_t max_tokens) {
    v1::GenerateRequest request;
    for (int64_t i = 0; i < prompt_tokens; ++i) request.mutable_token_ids()->add_ids(300);
    request.mutable_stopping()->set_max_tokens(max_tokens);
    return request;
  }
  std::string TextAt(int64_t position) const {
    return std::string(tokenizer_->PieceBytes(model_.TokenAt(position)));
  }

  // Submitted when this returns.
  std::unique_ptr<CallReader> Submit(const v1::GenerateRequest& request,
                                     const InferenceCallOptions& options = {}) {
    auto reader = std::make_unique<CallReader>(client_, request, options);
    EXPECT_FALSE(reader->refused());
    core_.workers().WaitIdle();
    core_.compilers().WaitIdle();
    return reader;
  }
  // Steps until the engine has nothing left, `between_ns` apart.
  void RunToEnd(int64_t between_ns) {
    while (!engine_.idle()) {
      if (engine_.Step() != StepOutcome::kWorked) engine_.WaitForWork(kMs);
      clock_.Advance(between_ns);
    }
  }
  static int64_t NsOf(const CallReader& reader, TtftStage stage) {
    return TtftStages::NsOf(reader.finished().timings(), stage);
  }

  SharedClock clock_;
  const std::unique_ptr<const Tokenizer> tokenizer_;
  const MistralChatFormat chat_format_;
  TimedModel model_;
  ConstraintCompiler constraints_;
  Engine engine_;
  InferenceCore core_;
  EngineClient client_;
};

TEST_F(TtftOfACall, EachStageIsWhatItsCauseTook) {
  // One thread tokenises, and it is busy.
  std::latch begun(1), ends(1);
  ASSERT_TRUE(core_.workers().TrySubmit(1, [&] {
    begun.count_down();
    ends.wait();
  }));
  begun.wait();
  InferenceCallOptions options;
  options.receive_ns = 5 * kMs;
  options.parse_ns = 7 * kMs;
  CallReader reader(client_, RequestOf(40, 2), options);
  clock_.Advance(11 * kMs);
  ends.count_down();
  core_.workers().WaitIdle();
  clock_.Advance(13 * kMs);  // nobody steps
  RunToEnd(2 * kMs);
  ASSERT_TRUE(reader.ReadAll().ok());

  EXPECT_EQ(NsOf(reader, TtftStage::kReceive), 5 * kMs);
  EXPECT_EQ(NsOf(reader, TtftStage::kParse), 7 * kMs);
  EXPECT_EQ(NsOf(reader, TtftStage::kTokenize), 11 * kMs);
  EXPECT_EQ(NsOf(reader, TtftStage::kQueue), 13 * kMs);
  // 16, 16 and 8 tokens; after each of the first two a sampling of nothing and the time between steps.
  EXPECT_EQ(reader.finished().timings().chunks(), 3);
  EXPECT_EQ(NsOf(reader, TtftStage::kPrefillRun), 3 * 20 * kMs);
  EXPECT_EQ(NsOf(reader, TtftStage::kPrefillWait), 2 * (3 + 2) * kMs);
  EXPECT_EQ(NsOf(reader, TtftStage::kSample), 3 * kMs);
  EXPECT_EQ(NsOf(reader, TtftStage::kHold), 0);
  EXPECT_FALSE(reader.finished().timings().has_deliver_ms()) << "nobody has said that it left";
  EXPECT_EQ(reader.finished().timings().preemptions(), 0);
}

TEST_F(TtftOfACall, APromptWaitsBetweenItsChunksForWhatDecodes) {
  v1::GenerateRequest decoding = RequestOf(4, 200);
  const auto other = Submit(decoding);
  engine_.Step();
  engine_.Step();
  const auto reader = Submit(RequestOf(40, 1));
  RunToEnd(0);
  ASSERT_TRUE(reader->ReadAll().ok());
  ASSERT_TRUE(other->ReadAll().ok());
  EXPECT_EQ(NsOf(*reader, TtftStage::kPrefillRun), 3 * 20 * kMs);
  // A decode step after each chunk but the last; each step samples.
  EXPECT_EQ(NsOf(*reader, TtftStage::kPrefillWait), 2 * (3 + 23) * kMs);
}

TEST_F(TtftOfACall, TextThatMayBecomeAStopStringIsHeld) {
  v1::GenerateRequest request = RequestOf(5, 4);
  request.mutable_output()->set_token_ids(false);
  request.mutable_stopping()->add_stop(TextAt(5) + TextAt(6) + "!");
  const auto reader = Submit(request);
  RunToEnd(0);
  ASSERT_TRUE(reader->ReadAll().ok());
  EXPECT_EQ(NsOf(*reader, TtftStage::kSample), 3 * kMs);
  EXPECT_EQ(NsOf(*reader, TtftStage::kHold), 2 * 23 * kMs) << "until its third token";
}

TEST_F(TtftOfACall, TokenIdsAreContentAndNeverHeld) {
  v1::GenerateRequest request = RequestOf(5, 4);
  request.mutable_stopping()->add_stop(TextAt(5) + TextAt(6) + "!");
  const auto reader = Submit(request);
  RunToEnd(0);
  ASSERT_TRUE(reader->ReadAll().ok());
  EXPECT_EQ(NsOf(*reader, TtftStage::kHold), 0);
}

TEST_F(TtftOfACall, WhatIsDeliveredBeforeTheEndIsInTheEnd) {
  const auto reader = Submit(RequestOf(5, 2));
  engine_.Step();
  while (reader->deltas() == 0) ASSERT_TRUE(reader->Next());
  clock_.Advance(9 * kMs);
  reader->call()->NoteDelivered();
  clock_.Advance(90 * kMs);
  reader->call()->NoteDelivered();  // of a later write
  RunToEnd(0);
  ASSERT_TRUE(reader->ReadAll().ok());
  const v1::Timings& timings = reader->finished().timings();
  EXPECT_EQ(NsOf(*reader, TtftStage::kDeliver), 9 * kMs);
  int64_t sum_ns = 0;
  for (size_t i = 0; i < TtftStages::kCount; ++i) sum_ns += NsOf(*reader, static_cast<TtftStage>(i));
  EXPECT_EQ(sum_ns, 23 * kMs + 9 * kMs);
  EXPECT_EQ(timings.ttft_ms(), 32.0);
}

TEST_F(TtftOfACall, TheFirstContentOfAnyChoiceIsTheRequests) {
  v1::GenerateRequest request = RequestOf(5, 3);
  request.set_choices(3);
  const auto reader = Submit(request);
  RunToEnd(kMs);
  ASSERT_TRUE(reader->ReadAll().ok());
  for (int32_t choice = 0; choice < 3; ++choice) {
    const v1::Timings& timings = reader->finished(choice).timings();
    EXPECT_EQ(timings.prefill_run_ms(), 20.0) << choice;
    EXPECT_EQ(timings.sample_ms(), 3.0) << choice;
    EXPECT_EQ(timings.hold_ms(), 0.0) << choice;
  }
}

TEST_F(TtftOfACall, AConstraintIsCompiledBeforeTheQueueAndItsFirstMaskIsFilledInIt) {
  v1::GenerateRequest request = RequestOf(5, 2);
  request.mutable_constraint()->set_regex("x");
  const auto reader = Submit(request);
  RunToEnd(0);
  ASSERT_TRUE(reader->ReadAll().ok());
  EXPECT_EQ(NsOf(*reader, TtftStage::kTokenize), 17 * kMs);
  EXPECT_EQ(NsOf(*reader, TtftStage::kQueue), 5 * kMs);
  EXPECT_EQ(NsOf(*reader, TtftStage::kPrefillRun), 20 * kMs);
  EXPECT_EQ(NsOf(*reader, TtftStage::kSample), 3 * kMs);
}

TEST_F(TtftOfACall, WithoutContentThereIsNoTime) {
  const auto reader = Submit(RequestOf(40, 0));
  RunToEnd(0);
  ASSERT_TRUE(reader->ReadAll().ok());
  const v1::Timings& timings = reader->finished().timings();
  EXPECT_FALSE(timings.has_queue_ms() || timings.has_hold_ms() || timings.has_ttft_ms());
  EXPECT_EQ(timings.chunks(), 3);
}

// ---- the trace ------------------------------------------------------------------------------------

TEST_F(TtftOfACall, ATraceHasStepsAndRequestsWhileSomebodyReads) {
  const auto before = Submit(RequestOf(5, 1));
  RunToEnd(0);
  ASSERT_TRUE(before->ReadAll().ok());

  const std::unique_ptr<TraceText> trace = core_.StartTrace();
  v1::GenerateRequest request = RequestOf(40, 2);
  request.set_cache_salt("traced");  // no page of the request before it
  request.set_request_id("traced \"one\"");
  const auto refused = Submit(request);
  request.set_request_id("traced");
  const auto reader = Submit(request);
  const int64_t begin_us = clock_.NowNs() / 1000;
  RunToEnd(0);
  ASSERT_TRUE(reader->ReadAll().ok());
  EXPECT_FALSE(refused->ReadAll().ok());
  const nlohmann::json events = nlohmann::json::parse(trace->Next() + trace->End());

  std::vector<std::string> steps, stages;
  double run_us = 0;
  for (const auto& event : events) {
    if (event["ph"] == "X") {
      steps.push_back(event["args"]["lane"].get<std::string>() + " " + event["args"]["tokens"].dump());
      EXPECT_EQ(event["args"]["rows"], 1);
      EXPECT_GT(event["args"]["pages"], 0);
      EXPECT_EQ(event["dur"], 23'000.0);
    }
    if (event["ph"] != "b" || event["id"] != 1) continue;
    stages.push_back(event["name"]);
    if (event["name"] == "traced") {
      EXPECT_EQ(event["ts"], begin_us);
      EXPECT_EQ(event["args"]["prompt_tokens"], 40);
      EXPECT_EQ(event["args"]["chunks"], 3);
    }
  }
  for (const auto& event : events) {
    if (event["name"] != "prefill_run" || event["id"] != 1) continue;
    run_us += (event["ph"] == "e" ? 1 : -1) * event["ts"].get<double>();
  }
  EXPECT_EQ(steps, (std::vector<std::string>{"prefill 16", "prefill 16", "prefill 8", "decode 1"}));
  EXPECT_EQ(stages, (std::vector<std::string>{"traced", "receive", "parse", "tokenize", "queue",
                                              "prefill_run", "prefill_wait", "sample", "hold"}));
  EXPECT_EQ(run_us, 60'000.0);
}

}  // namespace
}  // namespace tramontane

// The core's storm: callers on many threads ask at once for all that a door can ask, read slowly or not at
// all, cancel their own calls and each other's, and name ids that are taken; the model arrives late, and in
// the middle the server drains. Still every call ends once, says what the model said, and gives back its id,
// its place and its pages.

#include <gtest/gtest.h>
#include <spdlog/sinks/null_sink.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <latch>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/engine_thread.h"
#include "engine/threads/clock.h"
#include "models/chat/mistral_chat.h"
#include "models/grammar/constraint_compiler.h"
#include "models/tokenizer/load.h"
#include "server/core/engine_client.h"
#include "server/core/inference_core.h"
#include "server/watch/metrics.h"
#include "tests/server/call_reader.h"
#include "tests/server/scripted_model.h"
#include "tests/support/test_scale.h"
#include "tests/support/test_seed.h"
#include "tests/support/wait_for.h"

namespace tramontane {
namespace {

constexpr int64_t kMinuteNs = 60'000'000'000;
constexpr int kCallers = 12;
constexpr int kSharedIds = 6;
constexpr int kPatterns = 12;

// ---- what is served -------------------------------------------------------------------------------

// A grammar of every text: the storm is about who holds it and when, not about what it says.
class AnyText final : public Grammar {
 public:
  std::unique_ptr<GrammarMatcher> NewMatcher(TextStart) const override { return std::make_unique<Matcher>(); }
  int64_t memory_bytes() const override { return 1000; }

 private:
  class Matcher final : public GrammarMatcher {
   public:
    void FillMask(std::span<uint32_t> mask, GrammarWork&) override {
      for (uint32_t& word : mask) word = ~0u;
    }
    bool Accept(int32_t, GrammarWork&) override { return true; }
  };
};

class AnyTextBackend final : public GrammarBackend {
 public:
  StatusOr<std::shared_ptr<const Grammar>> Compile(const std::string&, GrammarWork&) const override {
    return std::shared_ptr<const Grammar>(std::make_shared<AnyText>());
  }
};

// Room for few: requests queue, are refused and are preempted.
EngineLimits NarrowLimits() {
  EngineLimits limits;
  limits.context = 128;
  limits.max_choices = 3;
  limits.max_sequences = 6;
  limits.max_queued_requests = 6;
  limits.page_size = 4;
  limits.pool_pages = 60;
  limits.max_step_tokens = 32;
  limits.max_logit_rows = 8;
  limits.max_constraint_step_ns = kMinuteNs;  // no verdict of the clock's
  return limits;
}

// An engine and its thread over a model whose words are known.
class World {
 public:
  World()
      : tokenizer_(LoadTokenizer(TRAMONTANE_SOURCE_DIR "/models/breeze/weights").value()),
        model_(tokenizer_->Encode("The wind came down from the hills and sang to the river.").value()),
        constraints_(std::make_unique<AnyTextBackend>(), {.max_cache_bytes = 4000}),
        engine_(NarrowLimits(),
                {tokenizer_->vocab_size(),
                 {tokenizer_->eos_id()},
                 MakeKvLayout({0, 8}, {.kv_heads = 1, .head_dim = 8, .page_size = NarrowLimits().page_size})},
                model_, tokenizer_.get(), clock_),
        thread_(engine_) {}

  ServedModel served() {
    ServedModel served;
    served.names = {"scripted"};
    served.config.architecture = "ScriptedForTests";
    served.config.vocab_size = tokenizer_->vocab_size();
    served.config.context = NarrowLimits().context;
    served.config.layers = 2;
    served.config.window = {0, 8};
    served.config.eos_ids = {tokenizer_->eos_id()};
    served.device = "none";
    served.engine = &engine_;
    served.tokenizer = tokenizer_.get();
    served.chat_format = &chat_format_;
    served.clock = &clock_;
    served.constraints = &constraints_;
    return served;
  }

  Engine& engine() { return engine_; }
  int32_t TokenAt(int64_t position) const { return model_.TokenAt(position); }

 private:
  SteadyClock clock_;
  const std::unique_ptr<const Tokenizer> tokenizer_;
  const MistralChatFormat chat_format_{*tokenizer_, tokenizer_->version().value()};
  ScriptedModel model_;
  ConstraintCompiler constraints_;
  Engine engine_;
  EngineThread thread_;
};

// ---- who calls ------------------------------------------------------------------------------------

// Calls in progress, for callers that meddle with those of others.
class OpenCalls {
 public:
  void Add(const std::shared_ptr<InferenceCall>& call) {
    const std::lock_guard lock(mutex_);
    calls_[next_++ % calls_.size()] = call;
  }
  void CancelOne(size_t which) {
    std::shared_ptr<InferenceCall> call;
    {
      const std::lock_guard lock(mutex_);
      call = calls_[which % calls_.size()].lock();
    }
    if (call != nullptr) call->Cancel();
  }

 private:
  std::mutex mutex_;  // guards all below
  std::vector<std::weak_ptr<InferenceCall>> calls_{2 * kCallers};
  size_t next_ = 0;
};

// How a call's reader behaves.
enum class Manner { kReads, kReadsSlowly, kCancels, kAborts, kDrops };

class StormCaller {
 public:
  StormCaller(World& world, InferenceCore& core, OpenCalls& open, uint32_t seed)
      : world_(world), core_(core), client_(core), open_(open), random_(seed) {}

  // One thing that a door could ask for.
  void Ask() {
    if (Chance(0.1)) open_.CancelOne(random_());
    if (Chance(0.3)) return AskUnary();
    Generate();
  }

  // How calls ended, by status.
  const std::map<StatusCode, int64_t>& ends() const { return ends_; }

 private:
  bool Chance(double probability) { return std::uniform_real_distribution<>()(random_) < probability; }
  int64_t Number(int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random_);
  }

  v1::GenerateRequest RandomRequest();
  void AddPrompt(v1::GenerateRequest* request);
  v1::Chat SmallChat();
  void Generate();
  RpcError Read(CallReader& reader, const std::string& id);
  void ExpectSound(const CallReader& reader, const v1::GenerateRequest& request, const RpcError& outcome);
  void AskUnary();

  World& world_;
  InferenceCore& core_;
  EngineClient client_;
  OpenCalls& open_;
  std::mt19937 random_;
  std::map<StatusCode, int64_t> ends_;
};

v1::Chat StormCaller::SmallChat() {
  v1::Chat chat;
  v1::ChatMessage* message = chat.add_messages();
  message->set_role(v1::ROLE_USER);
  message->set_content("Who sang?");
  return chat;
}

void StormCaller::AddPrompt(v1::GenerateRequest* request) {
  switch (Number(0, 2)) {
    case 0:
      return request->set_text("Once upon a time there was a wind");
    case 1:
      *request->mutable_chat() = SmallChat();
      return;
    default:
      for (int64_t i = Number(1, 60); i > 0; --i) request->mutable_token_ids()->add_ids(300 + int32_t(i));
  }
}

v1::GenerateRequest StormCaller::RandomRequest() {
  v1::GenerateRequest request;
  AddPrompt(&request);
  if (Chance(0.5)) request.set_request_id("shared-" + std::to_string(Number(1, kSharedIds)));
  if (Chance(0.3)) request.set_choices(static_cast<int32_t>(Number(2, 3)));
  v1::Stopping* stopping = request.mutable_stopping();
  stopping->set_max_tokens(Number(0, 40));
  if (Chance(0.2)) stopping->add_stop("hills and");
  if (Chance(0.1)) stopping->set_time_limit_ms(1);
  if (Chance(0.2)) request.mutable_output()->set_logprobs(2);
  if (Chance(0.1)) request.mutable_output()->set_prompt_logprobs(1);
  if (Chance(0.2)) request.mutable_constraint()->set_regex("x{" + std::to_string(Number(1, kPatterns)) + "}");
  if (Chance(0.03)) request.mutable_sampling()->set_top_p(7);
  if (Chance(0.03)) request.set_model("of another");
  return request;
}

void StormCaller::Generate() {
  const v1::GenerateRequest request = RandomRequest();
  InferenceCallOptions options;
  if (Chance(0.3)) options.correlation_id = "storm";
  CallReader reader(client_, request, options);
  if (reader.refused()) {
    ++ends_[reader.refusal().code];
    return AskUnary();  // not at once again
  }
  open_.Add(reader.call());
  const RpcError outcome = Read(reader, request.request_id());
  ++ends_[outcome.code];
  ExpectSound(reader, request, outcome);
}

// To the end, unless the reader lets go of the call before.
RpcError StormCaller::Read(CallReader& reader, const std::string& id) {
  const auto manner = static_cast<Manner>(Number(0, 4));
  for (int64_t patience = Number(0, 6);; --patience) {
    const bool has_enough = patience <= 0;
    if (manner == Manner::kReadsSlowly) AskUnary();
    if (manner == Manner::kCancels && has_enough) reader.Cancel();
    if (manner == Manner::kAborts && has_enough) {
      v1::AbortRequest request;
      v1::AbortResponse response;
      request.add_request_ids(id);
      EXPECT_TRUE(core_.Abort({}, request, &response).ok());
    }
    if (manner == Manner::kDrops && has_enough) {
      reader.DropCall();
      return ToRpcError(Status(StatusCode::kCancelled, "dropped"));
    }
    if (!reader.Next()) return reader.outcome();
    if (reader.deltas() > 0 && Chance(0.5)) reader.call()->NoteDelivered();
  }
}

void StormCaller::ExpectSound(const CallReader& reader, const v1::GenerateRequest& request,
                              const RpcError& outcome) {
  static const std::set<StatusCode> expected = {
      StatusCode::kOk,          StatusCode::kCancelled,         StatusCode::kInvalidArgument,
      StatusCode::kNotFound,    StatusCode::kAlreadyExists,     StatusCode::kDeadlineExceeded,
      StatusCode::kUnavailable, StatusCode::kResourceExhausted,
  };
  EXPECT_EQ(expected.count(outcome.code), 1u) << StatusCodeName(outcome.code) << ": " << outcome.message();
  std::map<int32_t, int64_t> finished;
  int64_t prompt_tokens = -1;
  std::map<int32_t, int64_t> said;
  for (const v1::GenerateResponse& event : reader.events()) {
    if (event.has_started()) {
      EXPECT_EQ(prompt_tokens, -1) << "started twice";
      prompt_tokens = event.started().prompt_tokens();
      continue;
    }
    ASSERT_GE(prompt_tokens, 0) << "an event before the start";
    if (event.has_finished()) {
      ++finished[event.finished().choice()];
      const v1::Timings& timings = event.finished().timings();
      EXPECT_EQ(timings.has_receive_ms(), timings.has_hold_ms());
      EXPECT_EQ(timings.has_deliver_ms(), timings.has_ttft_ms());
      continue;
    }
    const v1::Delta& delta = event.delta();
    EXPECT_EQ(finished[delta.choice()], 0) << "a delta after the end of its choice";
    for (const int32_t id : delta.token_ids()) {
      ASSERT_EQ(id, world_.TokenAt(prompt_tokens + said[delta.choice()]++)) << "choice " << delta.choice();
    }
  }
  const int32_t choices = request.has_choices() ? request.choices() : 1;
  for (int32_t choice = 0; outcome.ok() && choice < choices; ++choice) EXPECT_EQ(finished[choice], 1);
}

// The short calls, each awaited; while the model loads they are refused.
void StormCaller::AskUnary() {
  switch (Number(0, 4)) {
    case 0: {
      v1::TokenizeRequest request;
      *request.mutable_chat() = SmallChat();
      Await<v1::TokenizeResponse>([&](auto done) { client_.Ask(Caller(), request, done); });
      return;
    }
    case 1: {
      v1::DetokenizeRequest request;
      request.add_token_ids(300);
      Await<v1::DetokenizeResponse>([&](auto done) { client_.Ask(Caller(), request, done); });
      return;
    }
    case 2:
      Await<v1::GetModelResponse>([&](auto done) { client_.Ask(Caller(), v1::GetModelRequest(), done); });
      return;
    case 3: {
      const auto load =
          Await<v1::GetLoadResponse>([&](auto done) { client_.Ask(Caller(), v1::GetLoadRequest(), done); });
      const v1::GetLoadResponse& of = load.response;
      EXPECT_EQ(of.free_pages() + of.held_pages() + of.cached_pages(), of.total_pages());
      return;
    }
    default:
      if (core_.serving() == nullptr) return;
      EXPECT_NE(
          ServerMetricsText({.model = &core_.serving()->model, .requests = core_.request_counts().get()}),
          "");
  }
}

// ---- the storm ------------------------------------------------------------------------------------

void ExpectNothingHeld(World& world, InferenceCore& core) {
  WaitFor([&] {
    const EngineLoad load = world.engine().Load();
    return load.held_pages == 0 && load.running == 0 && load.waiting == 0;
  });
  const EngineLoad load = world.engine().Load();
  EXPECT_EQ(load.free_pages + load.cached_pages, load.total_pages);
  core.workers().WaitIdle();
  core.compilers().WaitIdle();
  v1::GetLoadResponse of_core;
  EXPECT_TRUE(core.GetLoad(*core.serving(), &of_core).ok());
  EXPECT_EQ(of_core.open_streams(), 0);
  EXPECT_EQ(of_core.queued_work(), 0);
  v1::AbortRequest ids;
  for (int id = 1; id <= kSharedIds; ++id) ids.add_request_ids("shared-" + std::to_string(id));
  v1::AbortResponse taken;
  EXPECT_TRUE(core.Abort({}, ids, &taken).ok());
  EXPECT_EQ(taken.found_size(), 0) << taken.ShortDebugString();
}

// Looks at what happens, as /debug/trace does.
void Watch(const InferenceCore& core, const std::atomic<bool>& is_over) {
  while (!is_over) {
    const std::unique_ptr<TraceText> trace = core.StartTrace();
    std::string text;
    for (int i = 0; i < 3; ++i) {
      text += trace->Next();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    text += trace->End();
    EXPECT_TRUE(text.starts_with("[\n{") && text.ends_with("}\n]\n")) << text.substr(0, 100);
  }
}

// One life of a core: loads, serves, drains, goes. Adds how its calls ended to `ends`.
void RunLife(World& world, uint32_t seed, int64_t calls, std::map<StatusCode, int64_t>* ends) {
  InferenceCore core({.workers = {.threads = 2, .max_queued = 8}, .max_streams = 11});
  OpenCalls open;
  std::atomic<int64_t> asked = 0;
  std::latch is_late(1), is_refusing(1), is_served(1);
  std::vector<std::unique_ptr<StormCaller>> callers;
  std::vector<std::thread> threads;
  for (uint32_t c = 0; c < kCallers; ++c) {
    callers.push_back(std::make_unique<StormCaller>(world, core, open, seed + c));
    threads.emplace_back([&, caller = callers.back().get()] {
      for (int64_t number = asked++; number < calls; number = asked++) {
        if (number == kCallers) is_refusing.count_down();
        if (number >= kCallers) is_served.wait();  // refusals while loading are quick: a few are enough
        if (number == calls * 4 / 5) is_late.count_down();
        caller->Ask();
      }
    });
  }
  is_refusing.wait();
  core.Serve(world.served());
  is_served.count_down();
  std::atomic<bool> is_over = false;
  std::thread watcher([&] { Watch(core, is_over); });
  is_late.wait();
  core.StartDraining();
  EXPECT_TRUE(core.WaitForStreams(kMinuteNs));
  for (std::thread& thread : threads) thread.join();
  is_over = true;
  watcher.join();
  ExpectNothingHeld(world, core);
  for (const auto& caller : callers) {
    for (const auto& [code, count] : caller->ends()) (*ends)[code] += count;
  }
}

TEST(CoreStorm, TheCoreGoesAfterItsLastCall) {
  World world;
  std::atomic<bool> is_over = false, has_let_go = false;
  std::thread holder;
  {
    InferenceCore core({.workers = {.threads = 1}});
    core.Serve(world.served());
    EngineClient client(core);
    v1::GenerateRequest request;
    request.set_text("Once upon a time");
    request.mutable_stopping()->set_max_tokens(3);
    RpcError refusal;
    std::shared_ptr<InferenceCall> call = client.Generate(Caller(), request, {}, [] {}, &refusal);
    ASSERT_NE(call, nullptr) << refusal.message();
    // As the engine may: it holds the call while it tells it that there is something to take.
    holder = std::thread([call = std::move(call), &is_over, &has_let_go]() mutable {
      while (!is_over) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      has_let_go = true;
      call = nullptr;
    });
    is_over = true;
  }
  EXPECT_TRUE(has_let_go);
  holder.join();
}

TEST(CoreStorm, EveryCallEndsAndGivesBackWhatItHeld) {
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>("", std::make_shared<spdlog::sinks::null_sink_mt>()));
  const uint32_t seed = TestSeed();
  SCOPED_TRACE("TRAMONTANE_TEST_SEED=" + std::to_string(seed));
  World world;
  std::map<StatusCode, int64_t> ends;
  for (int64_t life = 0; life < ScaledCount(20, 8); ++life) {
    RunLife(world, seed + static_cast<uint32_t>(life) * kCallers, 2000, &ends);
    if (::testing::Test::HasFailure()) break;
  }
  // The storm was one: all these were met.
  for (const StatusCode code :
       {StatusCode::kOk, StatusCode::kCancelled, StatusCode::kInvalidArgument, StatusCode::kAlreadyExists,
        StatusCode::kResourceExhausted, StatusCode::kUnavailable}) {
    EXPECT_GT(ends[code], 0) << StatusCodeName(code);
  }
  EXPECT_GT(world.engine().Load().preemptions, 0);
}

}  // namespace
}  // namespace tramontane

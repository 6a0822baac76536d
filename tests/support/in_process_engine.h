// What tests need around an Engine: a reader that gathers a whole stream, and an engine over the fake model
// that the test steps by hand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/run/backend_model_runner.h"
#include "engine/threads/signal.h"
#include "kernels/backends/cpu_backend.h"
#include "models/model.h"
#include "tests/support/delayed_backend.h"
#include "tests/support/fake_clock.h"
#include "tests/support/fake_model_runner.h"
#include "tests/support/test_tier.h"

namespace tramontane {

// Everything one choice gave.
struct ChoiceReading {
  std::string text;
  std::vector<int32_t> ids;
  std::vector<TokenInfo> logprobs;
  std::vector<StreamFinished> finished;  // one when all is well
  int64_t completion_tokens = 0;         // as the last delta said

  const StreamFinished& end() const { return finished.at(0); }
};

// One thread reads; the engine's output thread may be another.
class StreamReader {
 public:
  // `submit` is given the on_ready callback of the stream.
  StreamReader(Engine& engine, Request request);

  const Status& refused() const { return refused_; }  // of Submit
  TokenStream& stream() { return *stream_; }

  void Poll();       // takes what is there
  void WaitToEnd();  // until the stream is done; somebody else steps the engine

  bool done() const { return done_; }
  const Status& status() const { return status_; }
  const std::vector<StreamStarted>& started() const { return started_; }
  const ChoiceReading& choice(int32_t c = 0) const { return choices_.at(static_cast<size_t>(c)); }
  int32_t updates() const { return updates_; }

 private:
  // Shared with the callback, which may outlive the reader.
  std::shared_ptr<Signal> ready_ = std::make_shared<Signal>();
  std::shared_ptr<TokenStream> stream_;
  Status refused_;
  std::vector<StreamStarted> started_;
  std::vector<ChoiceReading> choices_;
  bool done_ = false;
  Status status_;
  int32_t updates_ = 0;
};

// An engine that the test steps by hand, on a clock that it moves by hand.
class EngineUnderTest {
 public:
  virtual ~EngineUnderTest() = default;
  virtual Engine& engine() = 0;

  std::unique_ptr<StreamReader> Submit(Request request) {
    return std::make_unique<StreamReader>(engine(), std::move(request));
  }
  // One step; it takes a millisecond.
  bool Step() {
    clock_.Advance(1'000'000);
    return engine().Step() == StepOutcome::kWorked;
  }
  // Steps until every stream is done, and reads `readers`.
  void RunToEnd(const std::vector<StreamReader*>& readers);

  FakeClock& clock() { return clock_; }

 private:
  FakeClock clock_;
};

// Over the fake model.
class SteppedEngine final : public EngineUnderTest {
 public:
  static constexpr int32_t kVocab = 64;
  static constexpr int32_t kEos = 2;

  explicit SteppedEngine(const EngineLimits& limits, const std::vector<int32_t>& windows = {0},
                         const Tokenizer* tokenizer = nullptr, const TestTier& tier = {});

  Engine& engine() override { return engine_; }
  FakeModelRunner& runner() { return runner_; }

 private:
  const KvLayout layout_;
  FakeModelRunner runner_;
  Engine engine_;
};

// Over a model folder and a backend.
class BackendEngine : public EngineUnderTest {
 public:
  struct Options {
    EngineLimits limits;                     // page_size, pool_pages and context are taken as they are
    int32_t threads = 1;                     // of the CPU backend
    std::string variant;                     // of the CPU backend; "": the machine's best
    LinearMode linear = kDefaultLinearMode;  // of the CPU backend
    DType kv_dtype = DType::kBf16;
    KvOrder kv_order = KvOrder::kHnd;
    const Tokenizer* tokenizer = nullptr;
    // Makes the backend run its ops later; limits.steps_in_flight may then be 2.
    std::optional<DelayedBackend::Runs> delayed;
    TestTier tier = {};
    bool recorded = false;  // decode steps are replayed, where the backend can
    // Puts something between the runner and the model; null: nothing.
    std::function<std::unique_ptr<Model>(std::unique_ptr<Model>)> wrap_model;
    std::function<void(const StepPlan&)> on_forward;  // before each forward pass; may move the clock
  };
  BackendEngine(BackendPtr backend, const std::string& folder, const Options& options);

  Engine& engine() override { return *engine_; }
  const KvLayout& layout() const { return model_->kv_layout(); }

 private:
  BackendPtr backend_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<std::byte, std::function<void(std::byte*)>> pool_;
  std::unique_ptr<ModelRunner> runner_;
  std::unique_ptr<Engine> engine_;
};

// Over a model folder and the CPU backend.
class CpuEngine final : public BackendEngine {
 public:
  CpuEngine(const std::string& folder, const Options& options);
};

// Small limits for the fake model: pages of 4 tokens, steps of 16.
EngineLimits SmallLimits(int64_t pool_pages);

// `prompt_tokens` ids that depend on `salt`, greedy, no eos.
Request MakeRequest(const std::string& id, int64_t prompt_tokens, int64_t max_tokens, uint32_t salt = 0);

}  // namespace tramontane

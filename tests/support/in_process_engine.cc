#include "tests/support/in_process_engine.h"

#include <thread>

#include "kernels/core/check.h"
#include "tests/support/load_folder.h"

namespace tramontane {
namespace {

KvLayout SmallLayout(const std::vector<int32_t>& windows, int32_t page_size) {
  KvFormat format;
  format.kv_heads = 1;
  format.head_dim = 1;
  format.page_size = page_size;
  return MakeKvLayout(windows, format);
}

}  // namespace

StreamReader::StreamReader(Engine& engine, Request request)
    : choices_(static_cast<size_t>(request.choices > 0 ? request.choices : 0)) {
  auto submitted = engine.Submit(std::move(request), [ready = ready_] { ready->Notify(); });
  if (submitted.ok()) {
    stream_ = *std::move(submitted);
  } else {
    refused_ = submitted.status();
  }
}

void StreamReader::Poll() {
  StreamUpdate update = stream_->Take();
  if (!update.empty()) ++updates_;
  if (update.started) started_.push_back(*std::move(update.started));
  for (StreamDelta& delta : update.deltas) {
    ChoiceReading& choice = choices_.at(static_cast<size_t>(delta.choice));
    choice.text += delta.text;
    choice.ids.insert(choice.ids.end(), delta.token_ids.begin(), delta.token_ids.end());
    choice.logprobs.insert(choice.logprobs.end(), delta.logprobs.begin(), delta.logprobs.end());
    choice.completion_tokens = delta.completion_tokens;
  }
  for (StreamFinished& finished : update.finished) {
    choices_.at(static_cast<size_t>(finished.choice)).finished.push_back(std::move(finished));
  }
  if (update.done) {
    done_ = true;
    status_ = update.status;
  }
}

void StreamReader::WaitToEnd() {
  for (Poll(); !done_; Poll()) ready_->Wait(Signal::kForever);
}

void EngineUnderTest::RunToEnd(const std::vector<StreamReader*>& readers) {
  while (!engine().idle()) {
    Step();
    std::this_thread::yield();  // the output thread has its own pace
  }
  engine().CheckAccounting();
  for (StreamReader* reader : readers) reader->WaitToEnd();
}

SteppedEngine::SteppedEngine(const EngineLimits& limits, const std::vector<int32_t>& windows,
                             const Tokenizer* tokenizer, const TestTier& tier)
    : layout_(SmallLayout(windows, limits.page_size)),
      runner_(layout_, limits.pool_pages, kVocab),
      engine_(limits, {kVocab, {kEos}, layout_}, runner_, tokenizer, clock(),
              MakeTestTier(tier, FakeModelRunner::ImageBytes(layout_))) {}

namespace {

// Shows each step to a test.
class WatchedRunner final : public ModelRunner {
 public:
  WatchedRunner(std::unique_ptr<ModelRunner> runner, std::function<void(const StepPlan&)> on_forward)
      : runner_(std::move(runner)), on_forward_(std::move(on_forward)) {}

  Status MovePages(std::span<const PageMove> moves) override { return runner_->MovePages(moves); }
  bool copies_pages() const override { return runner_->copies_pages(); }
  Status ReadPages(std::span<const PageImage> images) override { return runner_->ReadPages(images); }
  Status WritePages(std::span<const PageImage> images) override { return runner_->WritePages(images); }
  StatusOr<StepTicket> Forward(const StepPlan& plan) override {
    on_forward_(plan);
    return runner_->Forward(plan);
  }
  Status Sample(StepTicket ticket, const SampleInputs& inputs) override {
    return runner_->Sample(ticket, inputs);
  }
  StatusOr<StepResult> Collect(StepTicket ticket) override { return runner_->Collect(ticket); }

 private:
  const std::unique_ptr<ModelRunner> runner_;
  const std::function<void(const StepPlan&)> on_forward_;
};

}  // namespace

CpuEngine::CpuEngine(const std::string& folder, const Options& options)
    : BackendEngine(
          MakeCpuBackend({.threads = options.threads, .variant = options.variant, .linear = options.linear})
              .value(),
          folder, options) {}

BackendEngine::BackendEngine(BackendPtr backend, const std::string& folder, const Options& options)
    : backend_(options.delayed ? MakeDelayedBackend(std::move(backend), *options.delayed)
                               : std::move(backend)) {
  LoadOptions load;
  load.kv.dtype = options.kv_dtype;
  load.kv.page_size = options.limits.page_size;
  load.kv.order = options.kv_order;
  auto model = LoadFolder(folder, *backend_, load);
  TM_CHECK(model.ok(), "%s", model.status().ToString().c_str());
  model_ = *std::move(model);
  if (options.wrap_model) model_ = options.wrap_model(std::move(model_));
  const int64_t pool_bytes = options.limits.pool_pages * layout().page_bytes();
  pool_ = {static_cast<std::byte*>(backend_->Allocate(pool_bytes)),
           [backend = backend_.get()](std::byte* pool) { backend->Free(pool); }};
  TM_CHECK(pool_ != nullptr, "no memory for %lld bytes of pages", static_cast<long long>(pool_bytes));
  auto runner = BackendModelRunner::Create(*backend_, *model_, options.limits, pool_.get()).value();
  if (options.recorded) TM_CHECK(runner->RecordDecodeSteps().ok(), "recording failed");
  runner_ = std::move(runner);
  if (options.on_forward) runner_ = std::make_unique<WatchedRunner>(std::move(runner_), options.on_forward);
  engine_ = std::make_unique<Engine>(options.limits,
                                     EngineModel{.vocab_size = model_->config().vocab_size,
                                                 .eos_ids = model_->config().eos_ids,
                                                 .kv_layout = layout()},
                                     *runner_, options.tokenizer, clock(),
                                     MakeTestTier(options.tier, layout().page_bytes(), backend_.get()));
}

EngineLimits SmallLimits(int64_t pool_pages) {
  EngineLimits limits;
  limits.context = 64;
  limits.max_choices = 4;
  limits.max_sequences = 8;
  limits.max_queued_requests = 64;
  limits.page_size = 4;
  limits.pool_pages = pool_pages;
  limits.max_step_tokens = 16;
  limits.max_logit_rows = 4;
  return limits;
}

Request MakeRequest(const std::string& id, int64_t prompt_tokens, int64_t max_tokens, uint32_t salt) {
  Request request;
  request.id = id;
  for (int64_t i = 0; i < prompt_tokens; ++i) {
    const uint64_t hash = RaceBits(salt, 0, i, 0);
    request.prompt.push_back(static_cast<int32_t>(3 + hash % (SteppedEngine::kVocab - 3)));
  }
  request.sampling.temperature = 0.0f;
  request.stopping.max_tokens = max_tokens;
  request.stopping.ignore_eos = true;
  return request;
}

}  // namespace tramontane

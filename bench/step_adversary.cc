#include "bench/step_adversary.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/instant_runner.h"
#include "engine/engine.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_tier.h"

namespace tramontane {
namespace {

constexpr int32_t kVocab = 32'000;
constexpr int64_t kLongText = 128 << 10;

using Stream = std::shared_ptr<TokenStream>;

Request RequestOf(int32_t number, int64_t prompt_tokens, int64_t max_tokens) {
  Request request;
  request.id = std::to_string(number);
  request.prompt.reserve(static_cast<size_t>(prompt_tokens));
  for (int64_t i = 0; i < prompt_tokens; ++i)
    request.prompt.push_back(static_cast<int32_t>((i * 31 + int64_t{number} * 7919) % kVocab));
  request.sampling.temperature = 0.0f;
  request.stopping.max_tokens = max_tokens;
  return request;
}

// It never ends by itself, and holds few pages.
Request Endless(int32_t number) {
  Request request = RequestOf(number, 16, 1 << 26);
  request.context_policy = ContextPolicy{.type = ContextPolicyType::kSinks, .n_ctx = 64, .n_keep = 0};
  return request;
}

// Of this thread: what others do on a busy machine is not the engine's, nor are its waits.
int64_t ProcessorNs() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// An engine with a pool of pages of 16 KiB, 4 GiB of them by default, and one stream that decodes all the
// while.
class Victim {
 public:
  struct Options {
    int32_t sequences = 1;
    int64_t pool_pages = 1 << 18;
    int32_t head_dim = 128;
    TestTier tier = {};
  };
  explicit Victim(const Options& options)
      : layout_(Layout(options.head_dim)),
        engine_(Limits(options), Model(), runner_, nullptr, clock_,
                MakeTestTier(options.tier, layout_.page_bytes())) {
    stream_ = Submit(Endless(0));
    StepUntil([this] { return engine_.Load().output_tokens > 10; });
    Forget();
  }
  ~Victim() {
    stream_->Cancel();
    while (!engine_.idle()) engine_.Step();
  }

  Engine& engine() { return engine_; }
  Stream Submit(Request request) {
    auto stream = engine_.Submit(std::move(request), nullptr);
    if (!stream.ok()) {
      std::fprintf(stderr, "%s\n", stream.status().ToString().c_str());
      std::abort();
    }
    return *std::move(stream);
  }
  void Step() {
    (void)stream_->Take();  // so that it is not ended for being read too slowly
    const int64_t begin_ns = ProcessorNs();
    const bool stepped = engine_.Step() == StepOutcome::kWorked;
    const int64_t took_ns = ProcessorNs() - begin_ns;
    longest_ns_ = std::max(longest_ns_, took_ns);
    all_ns_ += took_ns;
    if (!stepped) engine_.WaitForWork(1'000'000);
  }
  void StepUntil(const std::function<bool()>& done) {
    while (!done()) Step();
  }
  void Forget() { longest_ns_ = all_ns_ = 0; }
  double longest_us() const { return static_cast<double>(longest_ns_) * 1e-3; }
  double all_ms() const { return static_cast<double>(all_ns_) * 1e-6; }

 private:
  static KvLayout Layout(int32_t head_dim) {
    KvFormat format;
    format.kv_heads = 2;
    format.head_dim = head_dim;
    return MakeKvLayout({0}, format);
  }
  EngineModel Model() const { return {kVocab, {}, layout_}; }
  static EngineLimits Limits(const Options& options) {
    EngineLimits limits;
    limits.max_sequences = options.sequences;
    limits.max_queued_requests = 20'000;
    limits.max_queued_bytes = int64_t{2} << 30;
    limits.max_step_tokens = 8192;
    limits.context = kLongText;
    limits.pool_pages = options.pool_pages;
    return limits;
  }

  const KvLayout layout_;
  InstantRunner runner_;
  const SteadyClock clock_;
  Engine engine_;
  Stream stream_;
  int64_t longest_ns_ = 0;  // that a step took
  int64_t all_ns_ = 0;      // that they took together
};

void Print(const char* what, const Victim& victim) {
  std::printf("%-58s  %10.0f  %8.1f\n", what, victim.longest_us(), victim.all_ms());
  std::fflush(stdout);
}

void Burst() {
  Victim victim({.sequences = 4096});
  std::vector<Stream> burst;
  for (int32_t i = 1; i <= 4000; ++i) burst.push_back(victim.Submit(RequestOf(i, 1, 1)));
  victim.StepUntil([&] { return victim.engine().Load().finished_requests == 4000; });
  Print("4,000 prompts of a token at once", victim);
}

// Of a caller each and of fifty priorities, behind one caller that has all slots, with endless texts in them.
void ManyCallers() {
  constexpr int32_t kSlots = 128, kCallers = 4000;
  Victim victim({.sequences = kSlots});
  std::vector<Stream> flood, others;
  const auto submit = [&](Request request, const std::string& caller, int32_t priority) {
    request.share = {.caller = caller, .weight = 1, .priority = priority};
    return victim.Submit(std::move(request));
  };
  const auto step_until = [&](const std::function<bool()>& done) {
    victim.StepUntil([&] {
      for (const Stream& stream : flood) (void)stream->Take();
      return done();
    });
  };
  for (int32_t i = 1; i <= 2 * kSlots; ++i) flood.push_back(submit(Endless(i), "flood", i % 50));
  step_until([&] { return victim.engine().Load().running == kSlots; });
  victim.Forget();
  for (int32_t i = 1; i <= kCallers; ++i)
    others.push_back(submit(RequestOf(10'000 + i, 1, 1), std::to_string(i), i % 50 - 100));
  step_until([&] { return victim.engine().Load().finished_requests == kCallers; });
  Print("4,000 callers' prompts behind one that has 128 slots", victim);
  for (const Stream& stream : flood) stream->Cancel();
}

void LongPrompts() {
  Victim victim({.sequences = 64});
  std::vector<Stream> texts;
  for (int32_t i = 1; i <= 20; ++i) texts.push_back(victim.Submit(RequestOf(i, kLongText - 2, 1)));
  victim.StepUntil([&] { return victim.engine().Load().finished_requests == 20; });
  Print("20 prompts of 128k tokens begun, computed and ended", victim);
  victim.Forget();
  for (int32_t i = 1; i <= 20; ++i) texts.push_back(victim.Submit(RequestOf(i, kLongText - 2, 1)));
  victim.StepUntil([&] { return victim.engine().Load().finished_requests == 40; });
  Print("the same again, of which all is cached", victim);
}

void HangUps() {
  Victim victim({.sequences = 1});
  std::vector<Stream> waiting;
  for (int32_t i = 1; i <= 10'000; ++i) waiting.push_back(victim.Submit(RequestOf(i, 1, 1)));
  for (int i = 0; i < 100; ++i) victim.Step();
  std::mt19937 random(1);
  std::shuffle(waiting.begin(), waiting.end(), random);
  for (const Stream& stream : waiting) stream->Cancel();
  victim.StepUntil([&] { return victim.engine().Load().finished_requests == 10'000; });
  Print("10,000 waiting requests, all cancelled between two steps", victim);
}

void LongHangUps() {
  Victim victim({.sequences = 64});
  constexpr int32_t kTexts = 60;
  constexpr int64_t kTokens = 64'000;
  std::vector<Stream> texts;
  for (int32_t i = 1; i <= kTexts; ++i) texts.push_back(victim.Submit(RequestOf(i, kTokens, 60'000)));
  victim.StepUntil([&] {
    for (const Stream& text : texts) (void)text->Take();
    return victim.engine().Load().prompt_tokens >= kTexts * kTokens;
  });
  victim.Forget();
  for (const Stream& stream : texts) stream->Cancel();
  victim.StepUntil([&] { return victim.engine().Load().finished_requests == kTexts; });
  Print("60 running texts of 64,000 tokens, all cancelled at once", victim);
}

// Each but the first token of a candidate is scored by a sequence of its own.
void Candidates() {
  Victim victim({.sequences = 1100});
  Request request = RequestOf(1, 64'000, 0);
  for (int32_t i = 0; i < kMaxCandidates; ++i) request.candidates.push_back(std::vector<int32_t>(2, i));
  const Stream stream = victim.Submit(request);
  victim.StepUntil([&] { return victim.engine().Load().finished_requests == 1; });
  Print("1,024 candidates of 2 tokens behind a prompt of 64,000", victim);
}

void SaveAndRestore() {
  Victim victim({.sequences = 8});
  const Request request = RequestOf(1, kLongText - 10, 4);
  const CachedText text = {.tokens = request.prompt};
  const Stream stream = victim.Submit(request);
  victim.StepUntil([&] { return victim.engine().Load().finished_requests == 1; });
  victim.Forget();
  const auto copy = [&](const std::shared_ptr<KvTransfer>& transfer) {
    if (!victim.engine().StartTransfer(transfer).ok()) std::abort();
    victim.StepUntil([&] { return transfer->done(); });
  };
  const auto saved = std::make_shared<KvTransfer>(text);
  copy(saved);
  if (saved->tokens() < kLongText - 100) std::abort();
  Print("a text of 128k tokens saved", victim);

  Victim other({.sequences = 8});
  const auto restored = std::make_shared<KvTransfer>(text, saved->TakePages());
  if (!other.engine().StartTransfer(restored).ok()) std::abort();
  other.StepUntil([&] { return restored->done(); });
  if (restored->tokens() < kLongText - 100) std::abort();
  Print("the same restored elsewhere", other);
}

// Texts that were evicted to the disk are asked for all at once, beside 400 streams, with 10,000 requests
// that wait behind them.
void DiskRestores() {
  constexpr int32_t kStreams = 400;
  constexpr int32_t kTexts = 16;
  constexpr int64_t kTokens = 32 << 10;
  constexpr int64_t kPagesOfText = kTokens / 16;
  constexpr int32_t kWaiting = 10'000;
  const TempFolder folder;
  const TestTier tier = {
      .host_pages = 2 * kPagesOfText, .disk_pages = (kTexts + 4) * kPagesOfText, .folder = folder.path()};
  Victim victim(
      {.sequences = 512, .pool_pages = 16 * kStreams + 2 * kPagesOfText, .head_dim = 8, .tier = tier});
  Engine& engine = victim.engine();
  const auto ask = [&](int32_t number) { return victim.Submit(RequestOf(number, kTokens - 2, 1)); };
  std::vector<Stream> streams;
  for (int32_t i = 1; i <= kTexts; ++i) {  // one by one, so that the disk keeps up
    streams.push_back(ask(i));
    victim.StepUntil([&] { return engine.Load().finished_requests == i; });
    for (int64_t disk = -1, quiet = 0; quiet < 10; ++quiet) {
      for (int step = 0; step < 100; ++step) victim.Step();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (std::exchange(disk, engine.Load().disk_kv_bytes) != engine.Load().disk_kv_bytes) quiet = 0;
    }
  }
  for (int32_t i = 0; i < kStreams; ++i) streams.push_back(victim.Submit(Endless(1000 + i)));
  victim.StepUntil([&] { return engine.Load().running > kStreams; });
  victim.Forget();
  for (int32_t i = 1; i <= kTexts; ++i) streams.push_back(ask(i));
  for (int32_t i = 0; i < kWaiting; ++i) streams.push_back(victim.Submit(RequestOf(2000 + i, 1, 1)));
  victim.StepUntil([&] {
    for (const Stream& stream : streams) (void)stream->Take();
    return engine.Load().finished_requests == 2 * kTexts + kWaiting;
  });
  if (engine.Load().prefix_hits == 0) std::abort();
  Print("16 texts of 32k tokens asked for that are on the disk", victim);
  for (const Stream& stream : streams) stream->Cancel();
}

}  // namespace

int RunAdversary(const char* only) {
  std::printf("%-58s  %10s  %8s\n", "beside a stream, by processor time", "longest us", "all ms");
  constexpr std::pair<const char*, void (*)()> kRows[] = {{"burst", Burst},
                                                          {"callers", ManyCallers},
                                                          {"prompts", LongPrompts},
                                                          {"hang-ups", HangUps},
                                                          {"ends", LongHangUps},
                                                          {"candidates", Candidates},
                                                          {"transfers", SaveAndRestore},
                                                          {"disk", DiskRestores}};
  for (const auto& [name, run] : kRows) {
    if (only == nullptr || std::strcmp(only, name) == 0) run();
  }
  return 0;
}

}  // namespace tramontane

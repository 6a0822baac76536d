#include "bench/step_adversary.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "bench/instant_runner.h"
#include "engine/engine.h"

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

// An engine with a pool of 4 GiB of pages of 16 KiB, and one stream that decodes all the while.
class Victim {
 public:
  explicit Victim(int32_t sequences)
      : layout_(Layout()), engine_(Limits(sequences), Model(), runner_, nullptr, clock_) {
    stream_ = Submit(RequestOf(0, 64, kLongText - 100));
    StepUntil([this] { return engine_.Load().output_tokens > 10; });
    longest_ns_ = 0;
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
    const int64_t begin_ns = clock_.NowNs();
    const bool stepped = engine_.Step() == StepOutcome::kWorked;
    if (stepped) longest_ns_ = std::max(longest_ns_, clock_.NowNs() - begin_ns);
    if (!stepped) engine_.WaitForWork(1'000'000);
  }
  void StepUntil(const std::function<bool()>& done) {
    while (!done()) Step();
  }
  void Forget() { longest_ns_ = 0; }
  double longest_us() const { return static_cast<double>(longest_ns_) * 1e-3; }

 private:
  static KvLayout Layout() {
    KvFormat format;
    format.kv_heads = 2;
    format.head_dim = 128;
    return MakeKvLayout({0}, format);
  }
  EngineModel Model() const { return {kVocab, {}, layout_}; }
  EngineLimits Limits(int32_t sequences) const {
    EngineLimits limits;
    limits.max_sequences = sequences;
    limits.max_queued_requests = 20'000;
    limits.max_queued_bytes = int64_t{2} << 30;
    limits.max_step_tokens = 8192;
    limits.context = kLongText;
    limits.pool_pages = (int64_t{4} << 30) / layout_.page_bytes();
    return limits;
  }

  const KvLayout layout_;
  InstantRunner runner_;
  const SteadyClock clock_;
  Engine engine_;
  Stream stream_;
  int64_t longest_ns_ = 0;
};

void Print(const char* what, const Victim& victim) {
  std::printf("%-58s  %10.0f\n", what, victim.longest_us());
}

void Burst() {
  Victim victim(4096);
  std::vector<Stream> burst;
  for (int32_t i = 1; i <= 4000; ++i) burst.push_back(victim.Submit(RequestOf(i, 1, 1)));
  victim.StepUntil([&] { return victim.engine().Load().finished_requests == 4000; });
  Print("4,000 prompts of a token at once", victim);
}

void LongPrompts() {
  Victim victim(64);
  std::vector<Stream> texts;
  for (int32_t i = 1; i <= 20; ++i) texts.push_back(victim.Submit(RequestOf(i, kLongText - 2, 1)));
  victim.StepUntil([&] { return victim.engine().Load().finished_requests == 20; });
  Print("20 prompts of 128k tokens begun, computed and ended", victim);
}

void HangUps() {
  Victim victim(1);
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
  Victim victim(64);
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

void SaveAndRestore() {
  Victim victim(8);
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

  Victim other(8);
  const auto restored = std::make_shared<KvTransfer>(text, saved->TakePages());
  if (!other.engine().StartTransfer(restored).ok()) std::abort();
  other.StepUntil([&] { return restored->done(); });
  if (restored->tokens() < kLongText - 100) std::abort();
  Print("the same restored elsewhere", other);
}

}  // namespace

int RunAdversary() {
  std::printf("%-58s  %10s\n", "beside a stream", "longest us");
  Burst();
  LongPrompts();
  HangUps();
  LongHangUps();
  SaveAndRestore();
  return 0;
}

}  // namespace tramontane

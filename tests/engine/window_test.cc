// The heart of the cache: a long run on a model of full and windowed layers, where pages leave the windows
// all the time, against a decoder in double precision that never forgets anything.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "kernels/paged_kv.h"
#include "tests/reference/mistral_reference.h"
#include "tests/support/in_process_engine.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_scale.h"
#include "tests/support/tiny_model.h"
#include "tests/support/tiny_reference.h"

namespace tramontane {
namespace {

constexpr int32_t kWindow = 64;
constexpr int32_t kPageSize = 16;
constexpr int64_t kPromptTokens = 100;  // the window rolls in prefill already

TinyModel MixedModel(int32_t context) {
  TinyModel model;
  model.layers = 3;
  model.heads = 2;
  model.kv_heads = 1;
  model.head_dim = 16;
  model.context = context;
  model.window = {kWindow, 0, kWindow};
  model.Randomise(3);
  return model;
}

// Its windows, where it has some, as wide as that.
reference::Mistral ReferenceOf(TinyModel model, int32_t window) {
  for (int32_t& each : model.window) each = each == 0 ? 0 : window;
  return reference::Mistral(ReferenceWeightsOf(model));
}

// What went into a model and what came out. (The CPU's device memory can be read here.)
struct Tap {
  std::vector<int32_t> tokens;  // of every Forward, in order
  std::vector<float> logits;    // of the last row of the last Logits
  int64_t logit_calls = 0;
};

class TappedModel final : public Model {
 public:
  TappedModel(std::unique_ptr<Model> inner, Tap& tap) : inner_(std::move(inner)), tap_(tap) {}

  const ModelConfig& config() const override { return inner_->config(); }
  const KvLayout& kv_layout() const override { return inner_->kv_layout(); }
  Status Reserve(int32_t max_tokens, int32_t max_sequences, int32_t max_logit_rows) override {
    return inner_->Reserve(max_tokens, max_sequences, max_logit_rows);
  }
  OpCode Forward(const ForwardBatch& batch, std::byte* pool) override {
    tap_.tokens.insert(tap_.tokens.end(), batch.token_ids, batch.token_ids + batch.tokens);
    return inner_->Forward(batch, pool);
  }
  OpCode Logits(const int32_t* rows, int32_t count, const Tensor& logits) override {
    const OpCode code = inner_->Logits(rows, count, logits);
    const auto* last = static_cast<const float*>(logits.data) + (count - 1) * logits.row_stride;
    tap_.logits.assign(last, last + logits.columns);
    ++tap_.logit_calls;
    return code;
  }

 private:
  std::unique_ptr<Model> inner_;
  Tap& tap_;
};

double LargestDifference(const std::vector<float>& logits, const std::vector<double>& expected) {
  double largest = 0;
  for (size_t t = 0; t < expected.size(); ++t) largest = std::max(largest, std::abs(logits[t] - expected[t]));
  return largest;
}

// Pages that a sequence of `tokens` tokens holds between two steps: those that a later query can see.
int64_t PagesHeld(const KvLayout& layout, int64_t tokens) {
  int64_t pages = 0;
  for (const KvGroupSpec& group : layout.groups) {
    pages += PagesFor(tokens, kPageSize) - FirstVisible(tokens, group.window) / kPageSize;
  }
  return pages;
}

// Every product and sum is f32 (2^-24 relative); keys are f32 here. A dot product of 32 terms is good to
// about 1e-6 of its magnitude (a few units), a score likewise, which moves a weight by as much, three layers
// deep, into logits that are four times wider than their inputs: 1e-5 to 1e-4. (Measured over 20,000
// steps: 1.1e-5.)
constexpr double kTolerance = 1e-4;

TEST(RollingCache, TwentyThousandTokensThroughAWindowOf64MatchACacheThatForgetsNothing) {
  const int64_t output_tokens = ScaledCount(20'000, 3 * kWindow);
  const auto context = static_cast<int32_t>(kPromptTokens + output_tokens);
  const TinyModel tiny = MixedModel(context);
  const TempFolder folder;
  tiny.WriteMistral(folder);

  Tap tap;
  CpuEngine::Options options;
  options.kv_dtype = DType::kF32;
  options.limits = SmallLimits(/*pool_pages=*/context / kPageSize + 32);
  options.limits.context = context;
  options.limits.page_size = kPageSize;
  options.limits.max_step_tokens = 24;
  options.wrap_model = [&tap](std::unique_ptr<Model> inner) {
    return std::make_unique<TappedModel>(std::move(inner), tap);
  };
  CpuEngine test(folder.path(), options);
  ASSERT_EQ(test.layout().groups.size(), 3u) << "one full, two windowed";

  Request request = MakeRequest("long", kPromptTokens, output_tokens);
  request.sampling.temperature = 1.0f;
  request.sampling.seed = 7;
  auto reader = test.Submit(request);
  ASSERT_TRUE(reader->refused().ok()) << reader->refused();

  reference::Mistral expected = ReferenceOf(tiny, kWindow);
  reference::Mistral one_wider = ReferenceOf(tiny, kWindow + 1);
  double largest = 0, largest_by_one_wider = 0;
  for (int64_t calls = 0; calls < output_tokens;) {
    if (!test.Step()) continue;  // the output thread is behind
    const auto tokens = static_cast<int64_t>(tap.tokens.size());
    if (tokens < context - 1) {  // the last step gives everything back
      ASSERT_EQ(test.engine().Load().held_pages, PagesHeld(test.layout(), tokens))
          << "after token " << tokens;
    }
    if (tap.logit_calls == calls) continue;  // a chunk of the prompt
    ++calls;
    std::vector<double> logits;
    while (expected.tokens() < tokens)
      logits = expected.Next(tap.tokens[static_cast<size_t>(expected.tokens())]);
    const double difference = LargestDifference(tap.logits, logits);
    ASSERT_LT(difference, kTolerance) << "after token " << tokens;
    largest = std::max(largest, difference);
    if (tokens < 3 * kWindow) {
      while (one_wider.tokens() < tokens) {
        logits = one_wider.Next(tap.tokens[static_cast<size_t>(one_wider.tokens())]);
      }
      largest_by_one_wider = std::max(largest_by_one_wider, LargestDifference(tap.logits, logits));
    }
  }
  RecordProperty("largest_difference", std::to_string(largest));
  EXPECT_GT(largest_by_one_wider, 1000 * kTolerance) << "a window one key wider would show";
  reader->WaitToEnd();
  EXPECT_EQ(static_cast<int64_t>(reader->choice().ids.size()), output_tokens);
  EXPECT_EQ(test.engine().Load().held_pages, 0);
}

}  // namespace
}  // namespace tramontane

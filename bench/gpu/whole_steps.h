// Whole steps of a decoder as a server runs them: which contexts and prompts are measured, which of them fit
// into the memory and the time that a device has left, and how long each takes. Over any backend, so that
// tests see all but the device's numbers. One thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "bench/gpu/report.h"
#include "kernels/core/format.h"
#include "models/kv_layout.h"
#include "tests/support/in_process_engine.h"

namespace tramontane::gpu {

// The shape of a model like Mistral's.
struct StepShape {
  int64_t hidden = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, intermediate = 0, vocab = 0;

  // Numbers in the matrices that one token is multiplied by.
  int64_t LayerWeights() const;
  int64_t Weights() const { return layers * LayerWeights() + vocab * hidden; }
  int64_t KvBytesOfToken() const { return 2 * 2 * kv_heads * head_dim * layers; }  // bf16
};
inline constexpr StepShape kMistral7B = {.hidden = 4096,
                                         .layers = 32,
                                         .heads = 32,
                                         .kv_heads = 8,
                                         .head_dim = 128,
                                         .intermediate = 14336,
                                         .vocab = 32000};

// A model folder of that shape whose matrices are holes: config.json and one safetensors file of bf16, norms
// of ones. Whether it could be written. window: 0 for none; context: the model's.
bool WriteStepModel(const std::string& folder, const StepShape& shape, int32_t window, int64_t context);

// A row of the table: decode where there are sequences, else a prompt's way to its first token.
struct Work {
  int32_t sequences = 0;
  int64_t tokens = 0;  // of each context, or of the prompt

  // Prompt tokens that measuring it takes, those of every repetition.
  int64_t PromptTokens() const;
};
// 1 to 256 streams at 1k, 8k and 32k, and prompts of 128 to 32k; those of the fewest tokens first.
std::span<const Work> AllWork();
// A few of them, to compare by.
std::span<const Work> ShortWork();
// "decode, 8 x 1k", "prefill, 128".
std::string NameOf(const Work& work);
// 1024 is "1k".
std::string TokensText(int64_t count);

// How many steps are timed.
struct StepCounts {
  int warm_ups = 8;
  int timed = 128;  // a multiple of 8

  int64_t OutputTokens() const { return timed + 2 * warm_ups; }
};

// Pages that a row holds at most: under a window those of the window, and of the prompts part-way a chunk
// more.
int64_t PagesOf(const Work& work, const KvLayout& layout, const EngineLimits& limits,
                const StepCounts& counts);

// What bounds a row: of decode the weights, read once, or the FLOPs of their products, whichever takes
// longer, and after these the keys and values that are seen, read once; of a prompt the weights or its FLOPs.
struct StepBounds {
  StepShape shape;
  int32_t window = 0;
  double weight_bytes = 0;  // of the matrices that a step reads
  double bytes_per_second = 0, flops_per_second = 0;

  Bound Of(const Work& work) const;
  double FlopsOfPrompt(int64_t tokens) const;
  double FlopsOfProducts(int64_t rows) const;  // each a token's, to its logits
};

// What goes and what does not, and why: by what a row holds, and by what it would take at the shares of their
// bounds that the rows before it reached.
class WorkPlan {
 public:
  WorkPlan(const StepBounds& bounds, const StepCounts& counts) : bounds_(bounds), counts_(counts) {}

  double SecondsFor(const Work& work) const;
  // "" where it goes.
  std::string WhyNot(const Work& work, int64_t pages, int64_t pool_pages, double seconds_left) const;
  void Measured(const Work& work, double seconds);  // of a step, or of a first token

 private:
  const StepBounds bounds_;
  const StepCounts counts_;
  // Careful guesses, then what the last row of the kind reached.
  double decode_share_ = 0.4, prompt_share_ = 0.25;
};

// Median seconds of a decode step of work.sequences, whose contexts are work.tokens on the average; of a
// prompt, from its submission to its first token. REQUIRES: an engine with LanePolicy::kPrefillFirst and no
// prefix cache. A device that is lost ends the program.
double SecondsOf(BackendEngine& engine, const StepShape& shape, const Work& work, const StepCounts& counts);

}  // namespace tramontane::gpu

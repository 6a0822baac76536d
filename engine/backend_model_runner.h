// BackendModelRunner: a ModelRunner over a Model and its Backend. One upload per step for Forward, one for
// Sample, one small download for Collect. Engine thread only, after Create. One step at a time:
// limits.steps_in_flight is 1.
//
// Rows that want logits (choices to be sampled, prompt tokens to be scored) go through the LM head in slices
// of at most max_logit_rows, so a long prompt's logprobs take no more memory than a decode step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/batch_builder.h"
#include "engine/limits.h"
#include "engine/model_runner.h"
#include "kernels/backend.h"
#include "kernels/core/status.h"
#include "models/model.h"

namespace tramontane {

class BackendModelRunner final : public ModelRunner {
 public:
  // Device memory that Create takes beside what PlanMemory counts as activations, logits and the backend's
  // own: page tables, token ids, sampling records. Pure.
  static int64_t BufferBytes(const KvLayout& layout, const EngineLimits& limits, const ModelConfig& config);

  // Takes every buffer that steps within these limits need. `pool`: limits.pool_pages pages. All borrowed.
  static StatusOr<std::unique_ptr<BackendModelRunner>> Create(Backend& backend, Model& model,
                                                              const EngineLimits& limits, std::byte* pool);
  ~BackendModelRunner() override;

  StatusOr<StepTicket> Forward(const StepPlan& plan) override;
  Status Sample(StepTicket ticket, const SampleInputs& inputs) override;
  StatusOr<StepResult> Collect(StepTicket ticket) override;

 private:
  // One row of logits and what is done with it.
  struct LogitRow {
    int32_t hidden_row = 0;  // of the step's hidden states
    SamplingRow sampling;
    std::span<const LogitAdjust> adjusts;
  };
  struct Buffer {
    std::byte* host = nullptr;
    std::byte* device = nullptr;
  };

  BackendModelRunner(Backend& backend, Model& model, const EngineLimits& limits, std::byte* pool);

  Status Allocate();
  Status AllocateBuffer(int64_t bytes, Buffer* buffer);

  // Sample, in call order.
  void ListLogitRows(const SampleInputs& inputs);
  size_t RoundEnd(size_t begin) const;
  Status SampleRound(size_t begin, size_t end);
  // Collect.
  StepResult ResultOfRecords() const;
  ScoredToken ScoredTokenAt(size_t row) const;

  SampleRecord* DeviceRecords() const { return reinterpret_cast<SampleRecord*>(records_.device); }
  int64_t TopOffset() const;  // bytes from the records to the top logprobs, of this step

  Backend& backend_;
  Model& model_;
  const EngineLimits limits_;
  std::byte* const pool_;
  BatchBuilder builder_;

  Buffer batch_;                 // the packed plan
  Buffer sampling_;              // hidden row indices, SamplingRows, LogitAdjusts
  Buffer records_;               // SampleRecord [rows], then TokenLogprob [rows, kMaxTopLogprobs] if wanted
  std::byte* logits_ = nullptr;  // device [max_logit_rows, vocab] f32

  // ---- the step in flight -------------------------------------------------------------------------------
  int64_t step_ = 0;
  std::vector<StepRow> rows_;          // of its plan
  std::vector<int32_t> first_hidden_;  // [rows] where each row's hidden states begin
  std::vector<LogitRow> logit_rows_;   // by row of the plan: its samples, then its scores
  bool wants_top_ = false;
};

}  // namespace tramontane

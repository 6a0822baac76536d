// BackendModelRunner: a ModelRunner over a Model and its Backend. One upload per step for Forward, one for
// Sample, one small download for Collect. Engine thread only, after Create.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/request/limits.h"
#include "engine/run/batch_builder.h"
#include "engine/run/model_runner.h"
#include "engine/run/page_moves.h"
#include "engine/run/recorded_steps.h"
#include "engine/run/sampling_pass.h"
#include "kernels/backend.h"
#include "kernels/core/status.h"
#include "kernels/step_buffer.h"
#include "models/model.h"

namespace tramontane {

class BackendModelRunner final : public ModelRunner {
 public:
  // Memory that Create takes beside what PlanMemory counts as activations, logits and the backend's own.
  // Pure.
  struct BufferBytes {
    int64_t device = 0;  // page tables, the packed plan, changed logits, sampling and its records
    int64_t host = 0;    // all but the tables; the packed plan once for each step in flight
  };
  static BufferBytes CountBuffers(const KvLayout& layout, const EngineLimits& limits,
                                  const ModelConfig& config);

  // Takes every buffer that steps within these limits need. `pool`: limits.pool_pages pages. All borrowed.
  static StatusOr<std::unique_ptr<BackendModelRunner>> Create(Backend& backend, Model& model,
                                                              const EngineLimits& limits, std::byte* pool);
  ~BackendModelRunner() override;

  // Where the backend records steps: from now on decode steps are replayed. Before the first step.
  Status RecordDecodeSteps();

  // Runs the first `layers` layers over a plan, waits until they are done, and forgets it: to time them.
  // Before the first step.
  Status RunLayers(const StepPlan& plan, int32_t layers);

  StatusOr<StepTicket> Forward(const StepPlan& plan) override;
  Status Sample(StepTicket ticket, const SampleInputs& inputs) override;
  StatusOr<StepResult> Collect(StepTicket ticket) override;
  Status MovePages(std::span<const PageMove> moves) override { return moves_.Move(moves); }
  bool copies_pages() const override { return true; }
  Status ReadPages(std::span<const PageImage> images) override {
    return moves_.Copy(images, PageMove::Way::kOut);
  }
  Status WritePages(std::span<const PageImage> images) override {
    return moves_.Copy(images, PageMove::Way::kIn);
  }

 private:
  struct OpenStep {
    int64_t id = 0;  // 0: none
    LogitRows logits;
    const RecordedSteps::Step* recorded = nullptr;  // what it replays; null: it is queued op by op
    bool sampled = false;
    uint64_t fence = 0;  // behind everything of the step, once sampled
    StepBuffer packed;   // the plan, on the host; kept from step to step
  };

  BackendModelRunner(Backend& backend, Model& model, const EngineLimits& limits, std::byte* pool);

  Status Allocate();
  OpenStep& PlaceOf(int64_t step) { return steps_[static_cast<size_t>(step) % steps_.size()]; }
  OpenStep& Find(StepTicket ticket, const char* verb);
  void ListRecordsInFlight(const StepPlan& plan);
  Status UploadBatch(const PackedBatch& packed, const std::byte* host);
  Status CopyPages(const PackedBatch& packed, const std::string& what);

  Backend& backend_;
  Model& model_;
  const EngineLimits limits_;
  std::byte* const pool_;
  BatchBuilder builder_;
  StepBuffer batch_;  // device: page tables, then the packed plan
  SamplingPass sampling_;
  RecordedSteps recorded_;
  PageMoves moves_;
  std::vector<OpenStep> steps_;             // [steps_in_flight] step n is at n % steps_in_flight
  std::vector<int32_t> records_in_flight_;  // [rows] of the plan that is being packed
};

}  // namespace tramontane

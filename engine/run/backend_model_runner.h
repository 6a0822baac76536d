// BackendModelRunner: a ModelRunner over a Model and its Backend. One upload per step for Forward, one for
// Sample, one small download for Collect. Engine thread only, after Create.
//
// Two steps may be open (limits.steps_in_flight), over one set of device buffers: ops run in order, so each
// buffer is free when the op that writes it next runs. The host's side of the packed plan is there twice; the
// rest of it is written and read between Collect of one step and Sample of the next.
//
// Pages move beside the step that is open: behind the last one that was collected, and where the open one
// begins with copies of pages behind these, since who had the page that is copied may have let go of it.
// Whatever is queued next that reads or writes pages waits for them.
//
// A decode step may be recorded once for each of EngineLimits::RowsToRecord, its forward pass and its
// sampling apart, and replayed with padding from then on: two calls instead of some hundred launches. Forward
// passes in which rows may see sinks are recorded beside them, of fewer widths.
//
// Rows that want logits (choices to be sampled, prompt tokens to be scored) go through the LM head in slices
// of at most EngineLimits::logit_rows, so a long prompt's logprobs take no more memory than a decode step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/request/limits.h"
#include "engine/run/adjust_tables.h"
#include "engine/run/batch_builder.h"
#include "engine/run/model_runner.h"
#include "kernels/backend.h"
#include "kernels/core/status.h"
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
  Status MovePages(std::span<const PageMove> moves) override;
  bool copies_pages() const override { return true; }
  Status ReadPages(std::span<const PageImage> images) override;
  Status WritePages(std::span<const PageImage> images) override;

 private:
  // One row of logits and what is done with it.
  struct LogitRow {
    Want::Kind kind = Want::Kind::kDraw;
    int32_t hidden_row = 0;  // of the step's hidden states
    SamplingRow sampling;
    const Sequence* sequence = nullptr;        // of a draw: whose slot has the history
    const SamplingHistory* history = nullptr;  // null: the logits are taken as they are
    std::span<const uint32_t> mask;
    AdjustTables::Change change = AdjustTables::Change::kNone;  // of the slot, while a round is packed
  };
  struct Buffer {
    std::byte* host = nullptr;
    std::byte* device = nullptr;
  };
  struct RecordedStep {
    int32_t rows = 0;
    RecordingHandle forward;
    RecordingHandle forward_with_sinks;  // of no width but EngineLimits::RowsToRecordWithSinks
    RecordingHandle sampling;
  };
  // Rows of logits whose inputs were uploaded together: where they lie on the device.
  struct PackedRound {
    const int32_t* hidden_rows = nullptr;
    const SamplingRow* rows = nullptr;
    int64_t count = 0;
    SampleRecord* records = nullptr;
    TokenLogprob* top = nullptr;
  };
  // Where a step has the draws of the sequence in a slot: that of draw d is record + d.
  struct DrawnSlot {
    const Sequence* sequence = nullptr;
    int32_t record = 0;
  };
  struct OpenStep {
    int64_t id = 0;                    // 0: none
    size_t wants = 0;                  // of its plan
    std::vector<LogitRow> logit_rows;  // a record of each: of the wants, in their order; then padding
    bool wants_top = false;
    const RecordedStep* recorded = nullptr;  // what it replays; null: it is queued op by op
    bool sees_sinks = false;                 // some row does
    bool sampled = false;
    uint64_t fence = 0;                // behind everything of the step, once sampled
    std::byte* packed_host = nullptr;  // the packed plan; kept from step to step
  };

  BackendModelRunner(Backend& backend, Model& model, const EngineLimits& limits, std::byte* pool);

  Status Allocate();
  Status AllocateBuffer(int64_t bytes, int64_t more, Buffer* buffer);
  OpenStep& PlaceOf(int64_t step) { return steps_[static_cast<size_t>(step) % steps_.size()]; }
  OpenStep& Find(StepTicket ticket, const char* verb);

  Status RecordForward(const RecordedShape& shape, RecordingHandle* recording);
  Status RecordSampling(int32_t rows, RecordingHandle* recording);
  Status Record(const std::function<OpCode()>& ops, RecordingHandle* recording);
  static LogitRow PaddingRow();

  // Forward.
  void ListRecordsInFlight(const StepPlan& plan);
  DrawnSlot& DrawnOf(const Sequence& sequence) { return drawn_slots_[static_cast<size_t>(sequence.slot())]; }
  const RecordedStep* FindRecorded(const StepPlan& plan, bool sees_sinks) const;
  Status UploadBatch(const PackedBatch& packed, const std::byte* host);
  void ListLogitRows(const StepPlan& plan, OpenStep& step) const;
  // Sample, in call order.
  static void FillDraws(const SampleInputs& inputs, OpenStep& step);
  int64_t UploadedAdjusts(const LogitRow& row) const;
  size_t RoundEnd(const OpenStep& step, size_t begin) const;
  StatusOr<PackedRound> PackRound(OpenStep& step, size_t begin, size_t end);
  LogitAdjust* DeviceAdjusts() const { return reinterpret_cast<LogitAdjust*>(sampling_.device); }
  OpCode SampleRound(const PackedRound& round);
  Status QueueDownload(OpenStep& step);
  // Collect.
  StepResult ResultOfRecords(const OpenStep& step) const;
  WantResult ResultAt(const OpenStep& step, size_t record) const;

  // Bytes from the records to the top logprobs.
  static int64_t TopOffset(const OpenStep& step);

  Backend& backend_;
  Model& model_;
  const EngineLimits limits_;
  std::byte* const pool_;
  BatchBuilder builder_;

  std::byte* batch_ = nullptr;  // device: page tables, then the packed plan
  AdjustTables adjust_tables_;
  Buffer sampling_;              // device: AdjustTables; both: hidden row indices, SamplingRows, changes
  Buffer masks_;                 // uint32_t [masked rows, MaskWords(vocab)]
  Buffer records_;               // SampleRecord [rows], then TokenLogprob [rows, kMaxTopLogprobs] if wanted
  std::byte* logits_ = nullptr;  // device [logit_rows, vocab] f32

  std::vector<RecordedStep> recorded_;  // by rows
  std::vector<OpenStep> steps_;         // [steps_in_flight] step n has place n % steps_in_flight
  uint64_t moves_after_ = 0;            // the fence that the next moves begin behind
  // [slots] of the step before the one that is being packed
  std::vector<DrawnSlot> drawn_slots_;
  std::vector<int32_t> records_in_flight_;  // [rows] of the plan that is being packed
};

}  // namespace tramontane

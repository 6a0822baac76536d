// SamplingPass: what becomes of a step's rows of logits, one for each of its wants. What each is chosen by
// goes up, logits are computed in slices of at most EngineLimits::logit_rows (so that a long prompt's
// logprobs take no more memory than a decode step), each row is chosen from, and one small record of each
// comes down. Engine thread only.
//
// Device buffers are those of every step. The host's are written and read between Collect of one step and
// Sample of the next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/request/limits.h"
#include "engine/run/adjust_tables.h"
#include "engine/run/model_runner.h"
#include "kernels/backend.h"
#include "kernels/core/status.h"
#include "kernels/packed_block.h"
#include "kernels/step_buffer.h"
#include "models/model.h"

namespace tramontane {

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

// Those of a step, in the order of StepPlan::wants; then padding. Each has the record of its index.
struct LogitRows {
  std::vector<LogitRow> rows;
  size_t wants = 0;

  void List(const StepPlan& plan);
  void FillDraws(const SampleInputs& inputs);
  void PadTo(int32_t count);  // with rows that are sampled greedily, and read by nobody
};

class SamplingPass {
 public:
  SamplingPass(Backend& backend, Model& model, const EngineLimits& limits);
  Status Allocate();
  // On the host. On the device are AdjustTables beside as much, and logits.
  static int64_t HostBytes(const EngineLimits& limits, int32_t vocab_size);

  // Queues it all, and the download of the records. `recorded`: a recording of MakeOps for rows that these
  // may be padded to; null: none.
  struct Recorded {
    int32_t rows = 0;
    RecordingHandle handle;
  };
  Status Run(LogitRows& step, const Recorded* recorded, int64_t number);
  // Uploads so many rows of padding. The ops that sample them.
  StatusOr<std::function<OpCode()>> MakeOps(int32_t rows);
  StepResult ResultOf(const LogitRows& step) const;  // once the download is done

  // For each row of a plan, which record of the step before it holds the token that it may begin with.
  void ListRecords(const LogitRows& before, const StepPlan& plan, std::vector<int32_t>* records);
  const SampleRecord* device_records() const {
    return reinterpret_cast<const SampleRecord*>(records_.device());
  }

 private:
  // Rows of logits whose inputs were uploaded together: where they lie on the device.
  struct Round {
    const int32_t* hidden_rows = nullptr;
    const SamplingRow* rows = nullptr;
    int64_t count = 0;
    SampleRecord* records = nullptr;
    TokenLogprob* top = nullptr;
  };
  struct Inputs;

  static Inputs LayRound(int64_t rows, int64_t entries, int64_t adjusts, PackedBlock block);
  static int64_t InputBytes(const EngineLimits& limits, int32_t vocab_size);
  int64_t UploadedAdjusts(const LogitRow& row) const;
  size_t RoundEnd(const LogitRows& step, size_t begin) const;
  StatusOr<Round> PackRound(LogitRows& step, size_t begin, size_t end);
  Status PackHistory(const LogitRow& row, SamplingRow* sampling, Inputs& inputs);
  Status QueueUploads(const Inputs& inputs);
  LogitAdjust* DeviceAdjusts() const { return reinterpret_cast<LogitAdjust*>(inputs_.device()); }
  OpCode SampleRound(const Round& round);
  Status QueueDownload(const LogitRows& step);

  Backend& backend_;
  Model& model_;
  const EngineLimits& limits_;
  const int32_t vocab_size_;
  std::string what_ = "sampling";  // is being done, for errors
  AdjustTables adjust_tables_;
  StepBuffer inputs_;   // device: AdjustTables; both: a round's inputs
  StepBuffer masks_;    // uint32_t [masked rows, MaskWords(vocab)]
  StepBuffer records_;  // SampleRecord [rows], then TokenLogprob [rows, kMaxTopLogprobs] if wanted
  StepBuffer logits_;   // device [logit_rows, vocab] f32
  std::vector<int32_t> first_draws_;  // [slots] records of a step: draw d of a slot's sequence is d behind
};

}  // namespace tramontane

#include "engine/backend_model_runner.h"

#include <algorithm>
#include <string>

#include "engine/packed_block.h"
#include "kernels/core/check.h"
#include "models/op_status.h"

namespace tramontane {
namespace {

// Adjusted logits that one upload can carry; more go in several rounds. One row may name the whole
// vocabulary.
int64_t MaxAdjusts(const EngineLimits& limits, int32_t vocab_size) {
  return std::max<int64_t>(vocab_size, int64_t{1024} * limits.max_logit_rows);
}

// Of one step in either lane.
int32_t MaxTokens(const EngineLimits& limits) {
  return std::max(limits.max_step_tokens, limits.max_sequences);
}

// Every sequence may be sampled or every token of a step scored, or a mixture.
int64_t MaxLogitRows(const EngineLimits& limits) {
  return int64_t{limits.max_sequences} + limits.max_step_tokens;
}

int64_t SamplingBytes(const EngineLimits& limits, int32_t vocab_size) {
  return PackedBlock::Bytes<int32_t>(MaxLogitRows(limits)) +
         PackedBlock::Bytes<SamplingRow>(MaxLogitRows(limits)) +
         PackedBlock::Bytes<LogitAdjust>(MaxAdjusts(limits, vocab_size));
}

int64_t RecordBytes(const EngineLimits& limits) {
  return PackedBlock::Bytes<SampleRecord>(MaxLogitRows(limits)) +
         PackedBlock::Bytes<TokenLogprob>(MaxLogitRows(limits) * kMaxTopLogprobs);
}

int64_t LogitBytes(const EngineLimits& limits, int32_t vocab_size) {
  return int64_t{limits.max_logit_rows} * vocab_size * static_cast<int64_t>(sizeof(float));
}

}  // namespace

int64_t BackendModelRunner::BufferBytes(const KvLayout& layout, const EngineLimits& limits,
                                        const ModelConfig& config) {
  return BatchBuilder(layout, limits, config.context).max_bytes() + SamplingBytes(limits, config.vocab_size) +
         RecordBytes(limits);
}

StatusOr<std::unique_ptr<BackendModelRunner>> BackendModelRunner::Create(Backend& backend, Model& model,
                                                                         const EngineLimits& limits,
                                                                         std::byte* pool) {
  TM_CHECK(limits.steps_in_flight == 1, "%d steps in flight", limits.steps_in_flight);
  std::unique_ptr<BackendModelRunner> runner(new BackendModelRunner(backend, model, limits, pool));
  TM_RETURN_IF_ERROR(runner->Allocate());
  return runner;
}

BackendModelRunner::BackendModelRunner(Backend& backend, Model& model, const EngineLimits& limits,
                                       std::byte* pool)
    : backend_(backend),
      model_(model),
      limits_(limits),
      pool_(pool),
      builder_(model.kv_layout(), limits, model.config().context) {}

BackendModelRunner::~BackendModelRunner() {
  for (const Buffer& buffer : {batch_, sampling_, records_}) {
    backend_.FreeHost(buffer.host);
    backend_.Free(buffer.device);
  }
  backend_.Free(logits_);
}

Status BackendModelRunner::Allocate() {
  const int32_t vocab_size = model_.config().vocab_size;
  TM_RETURN_IF_ERROR(model_.Reserve(MaxTokens(limits_), limits_.max_sequences, limits_.max_logit_rows));
  TM_RETURN_IF_ERROR(AllocateBuffer(builder_.max_bytes(), &batch_));
  TM_RETURN_IF_ERROR(AllocateBuffer(SamplingBytes(limits_, vocab_size), &sampling_));
  TM_RETURN_IF_ERROR(AllocateBuffer(RecordBytes(limits_), &records_));
  const int64_t logit_bytes = LogitBytes(limits_, vocab_size);
  logits_ = static_cast<std::byte*>(backend_.Allocate(logit_bytes));
  if (logits_ == nullptr) {
    return ResourceExhausted("no memory for " + std::to_string(logit_bytes) + " bytes of logits");
  }
  return {};
}

Status BackendModelRunner::AllocateBuffer(int64_t bytes, Buffer* buffer) {
  buffer->host = static_cast<std::byte*>(backend_.AllocateHost(bytes));
  buffer->device = static_cast<std::byte*>(backend_.Allocate(bytes));
  if (buffer->host != nullptr && buffer->device != nullptr) return {};
  return ResourceExhausted("no memory for " + std::to_string(bytes) + " bytes of step buffers");
}

// ---- Forward ------------------------------------------------------------------------------------

StatusOr<StepTicket> BackendModelRunner::Forward(const StepPlan& plan) {
  TM_CHECK(rows_.empty(), "step %lld is in flight", static_cast<long long>(step_));
  step_ = plan.step;
  rows_ = plan.rows;
  first_hidden_.clear();
  int32_t tokens = 0;
  for (const StepRow& row : rows_) {
    first_hidden_.push_back(tokens);
    tokens += row.count;
  }
  const std::string what = "step " + std::to_string(plan.step);
  const PackedBatch packed = builder_.Build(plan, batch_.host, batch_.device);
  TM_RETURN_IF_ERROR(OpStatus(backend_.Upload(batch_.device, batch_.host, packed.bytes), backend_, what));
  if (packed.copy_count > 0) {
    const CopyPagesParams copies = {.pool = pool_,
                                    .page_bytes = model_.kv_layout().page_bytes(),
                                    .pairs = packed.copy_pairs,
                                    .count = packed.copy_count};
    TM_RETURN_IF_ERROR(OpStatus(backend_.CopyPages(copies), backend_, what));
  }
  TM_RETURN_IF_ERROR(OpStatus(model_.Forward(packed.forward, pool_), backend_, what));
  return StepTicket{plan.step};
}

// ---- Sample -------------------------------------------------------------------------------------

Status BackendModelRunner::Sample(StepTicket ticket, const SampleInputs& inputs) {
  TM_CHECK(ticket.id == step_, "step %lld is sampled during step %lld", static_cast<long long>(ticket.id),
           static_cast<long long>(step_));
  ListLogitRows(inputs);
  for (size_t begin = 0, end = 0; begin < logit_rows_.size(); begin = end) {
    end = RoundEnd(begin);
    TM_RETURN_IF_ERROR(SampleRound(begin, end));
  }
  return {};
}

void BackendModelRunner::ListLogitRows(const SampleInputs& inputs) {
  logit_rows_.clear();
  wants_top_ = false;
  auto choice = inputs.choices.begin();
  for (size_t r = 0; r < rows_.size(); ++r) {
    const StepRow& row = rows_[r];
    for (int32_t s = 0; s < row.ask.samples; ++s, ++choice) {
      logit_rows_.push_back({first_hidden_[r] + row.count - 1, choice->row, choice->adjusts});
    }
    const Request& request = *row.sequence->request;
    for (int64_t position = row.ask.score_begin; position < row.ask.score_end; ++position) {
      LogitRow scored;
      scored.hidden_row = first_hidden_[r] + static_cast<int32_t>(position - row.start);
      scored.sampling.forced_token = request.prompt[static_cast<size_t>(position) + 1];
      scored.sampling.top_logprobs = request.output.prompt_logprobs;
      logit_rows_.push_back(scored);
    }
  }
  TM_CHECK(choice == inputs.choices.end(), "%zu choices for step %lld", inputs.choices.size(),
           static_cast<long long>(step_));
  for (const LogitRow& row : logit_rows_) wants_top_ = wants_top_ || row.sampling.top_logprobs > 0;
}

// As many rows as one upload can carry the adjusted logits of: usually all.
size_t BackendModelRunner::RoundEnd(size_t begin) const {
  int64_t room = MaxAdjusts(limits_, model_.config().vocab_size);
  size_t end = begin;
  while (end < logit_rows_.size() && static_cast<int64_t>(logit_rows_[end].adjusts.size()) <= room) {
    room -= static_cast<int64_t>(logit_rows_[end].adjusts.size());
    ++end;
  }
  return end;
}

Status BackendModelRunner::SampleRound(size_t begin, size_t end) {
  const std::string what = "sampling step " + std::to_string(step_);
  const auto count = static_cast<int64_t>(end - begin);
  int64_t adjust_count = 0;
  for (size_t i = begin; i < end; ++i) adjust_count += static_cast<int64_t>(logit_rows_[i].adjusts.size());
  // The round before may still be copying from the same memory.
  if (begin > 0) TM_RETURN_IF_ERROR(OpStatus(backend_.WaitFence(backend_.RecordFence()), backend_, what));

  PackedBlock block(sampling_.host, sampling_.device, SamplingBytes(limits_, model_.config().vocab_size));
  const PackedArray<int32_t> hidden_rows = block.Take<int32_t>(count);
  const PackedArray<SamplingRow> rows = block.Take<SamplingRow>(count);
  const PackedArray<LogitAdjust> adjusts = block.Take<LogitAdjust>(adjust_count);
  int32_t adjust = 0;
  for (int64_t i = 0; i < count; ++i) {
    const LogitRow& row = logit_rows_[begin + static_cast<size_t>(i)];
    hidden_rows.host[i] = row.hidden_row;
    rows.host[i] = row.sampling;
    rows.host[i].adjust_begin = adjust;
    std::copy(row.adjusts.begin(), row.adjusts.end(), adjusts.host + adjust);
    adjust += static_cast<int32_t>(row.adjusts.size());
    rows.host[i].adjust_end = adjust;
  }
  TM_RETURN_IF_ERROR(
      OpStatus(backend_.Upload(sampling_.device, sampling_.host, block.bytes()), backend_, what));

  const int32_t vocab_size = model_.config().vocab_size;
  auto* top = wants_top_ ? reinterpret_cast<TokenLogprob*>(records_.device + TopOffset()) : nullptr;
  for (int64_t at = 0; at < count; at += limits_.max_logit_rows) {
    const auto slice = static_cast<int32_t>(std::min<int64_t>(limits_.max_logit_rows, count - at));
    const int64_t record = static_cast<int64_t>(begin) + at;
    const Tensor logits = MakeTensor(logits_, DType::kF32, slice, vocab_size);
    TM_RETURN_IF_ERROR(OpStatus(model_.Logits(hidden_rows.device + at, slice, logits), backend_, what));
    const SampleParams params = {.logits = logits,
                                 .rows = rows.device + at,
                                 .adjusts = adjusts.device,
                                 .records = DeviceRecords() + record,
                                 .top = top == nullptr ? nullptr : top + record * kMaxTopLogprobs};
    TM_RETURN_IF_ERROR(OpStatus(backend_.Sample(params), backend_, what));
  }
  return {};
}

int64_t BackendModelRunner::TopOffset() const {
  return PackedBlock::Bytes<SampleRecord>(static_cast<int64_t>(logit_rows_.size()));
}

// ---- Collect ------------------------------------------------------------------------------------

StatusOr<StepResult> BackendModelRunner::Collect(StepTicket ticket) {
  TM_CHECK(ticket.id == step_, "step %lld is collected during step %lld", static_cast<long long>(ticket.id),
           static_cast<long long>(step_));
  const std::string what = "collecting step " + std::to_string(step_);
  const auto rows = static_cast<int64_t>(logit_rows_.size());
  if (rows > 0) {
    const int64_t bytes =
        TopOffset() + (wants_top_ ? PackedBlock::Bytes<TokenLogprob>(rows * kMaxTopLogprobs) : 0);
    TM_RETURN_IF_ERROR(OpStatus(backend_.Download(records_.host, records_.device, bytes), backend_, what));
  }
  TM_RETURN_IF_ERROR(OpStatus(backend_.WaitFence(backend_.RecordFence()), backend_, what));
  StepResult result = ResultOfRecords();
  rows_.clear();
  return result;
}

StepResult BackendModelRunner::ResultOfRecords() const {
  StepResult result;
  result.rows.resize(rows_.size());
  size_t record = 0;
  for (size_t r = 0; r < rows_.size(); ++r) {
    const RowAsk& ask = rows_[r].ask;
    for (int32_t s = 0; s < ask.samples; ++s) result.rows[r].samples.push_back(ScoredTokenAt(record++));
    for (int64_t p = ask.score_begin; p < ask.score_end; ++p) {
      result.rows[r].scores.push_back(ScoredTokenAt(record++));
    }
  }
  return result;
}

ScoredToken BackendModelRunner::ScoredTokenAt(size_t row) const {
  const SampleRecord& record = reinterpret_cast<const SampleRecord*>(records_.host)[row];
  ScoredToken scored;
  if (record.failed != 0) return scored;
  scored.token = {record.token, record.logprob};
  scored.rank = record.rank;
  if (record.top_count > 0) {
    const auto* top =
        reinterpret_cast<const TokenLogprob*>(records_.host + TopOffset()) + row * kMaxTopLogprobs;
    scored.top.assign(top, top + record.top_count);
  }
  return scored;
}

}  // namespace tramontane

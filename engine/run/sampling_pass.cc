#include "engine/run/sampling_pass.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/core/check.h"
#include "models/op_status.h"

namespace tramontane {
namespace {

// An entry of AdjustTables as Scatter changes it.
constexpr int64_t kAdjustWords = sizeof(LogitAdjust) / sizeof(int32_t);

// Of entries that are packed by themselves.
constexpr int64_t RoundedUp(int64_t adjusts) {
  return PackedBlock::Bytes<LogitAdjust>(adjusts) / static_cast<int64_t>(sizeof(LogitAdjust));
}

// Changed logits that one upload can carry, of slots that get another history and of rows that have no room
// in theirs; more go in several rounds. One row may name the whole vocabulary.
int64_t MaxAdjusts(const EngineLimits& limits, int32_t vocab_size) {
  return RoundedUp(std::max<int64_t>(vocab_size, int64_t{1024} * limits.logit_rows()));
}

// Every sequence may be sampled beside all scores of a step.
int64_t MaxLogitRows(const EngineLimits& limits) {
  return int64_t{limits.max_sequences} + limits.step_scores();
}

int64_t MaskBytes(const EngineLimits& limits, int32_t vocab_size) {
  return PackedBlock::Bytes<uint32_t>(limits.max_sequences * static_cast<int64_t>(MaskWords(vocab_size)));
}

// Where the top logprobs of so many rows begin behind their records, and end.
int64_t TopOffset(int64_t rows) { return PackedBlock::Bytes<SampleRecord>(rows); }
int64_t RecordBytes(int64_t rows) {
  return TopOffset(rows) + PackedBlock::Bytes<TokenLogprob>(rows * kMaxTopLogprobs);
}

// (index, value) of each word of an entry. Returns where the next may be listed.
int32_t* ListEntry(int64_t entry, const LogitAdjust& adjust, int32_t* pairs) {
  int32_t words[kAdjustWords];
  std::memcpy(words, &adjust, sizeof words);
  for (int64_t i = 0; i < kAdjustWords; ++i) {
    *pairs++ = static_cast<int32_t>(entry * kAdjustWords + i);
    *pairs++ = words[i];
  }
  return pairs;
}

}  // namespace

// A round's inputs while they are packed: LayRound says what they are, to whoever measures and to whoever
// packs.
struct SamplingPass::Inputs {
  PackedArray<int32_t> hidden_rows;
  PackedArray<SamplingRow> rows;
  PackedArray<int32_t> changes;      // (index, value) of each word of an entry of AdjustTables
  PackedArray<LogitAdjust> adjusts;  // of rows without room
  PackedBlock block;                 // behind these: what slots get whole
  int64_t bytes = block.bytes();
  int32_t* change = changes.host;  // the next one; likewise
  LogitAdjust* adjust = adjusts.host;
  int64_t masks = 0;
};

SamplingPass::Inputs SamplingPass::LayRound(int64_t rows, int64_t entries, int64_t adjusts,
                                            PackedBlock block) {
  return {.hidden_rows = block.Take<int32_t>(rows),
          .rows = block.Take<SamplingRow>(rows),
          .changes = block.Take<int32_t>(entries * 2 * kAdjustWords),
          .adjusts = block.Take<LogitAdjust>(adjusts),
          .block = block};
}

int64_t SamplingPass::InputBytes(const EngineLimits& limits, int32_t vocab_size) {
  return LayRound(MaxLogitRows(limits), limits.max_sequences, MaxAdjusts(limits, vocab_size), {}).bytes;
}

void LogitRows::List(const StepPlan& plan) {
  rows.clear();
  wants = plan.wants.size();
  int32_t first_hidden = 0;
  for (const StepRow& row : plan.rows) {
    for (const Want& want : plan.WantsOf(row)) {
      LogitRow& logits = rows.emplace_back();
      logits.kind = want.kind;
      logits.hidden_row = first_hidden + static_cast<int32_t>(want.position - row.start);
      if (want.kind == Want::Kind::kDraw) {
        logits.sequence = row.sequence;
      } else {
        logits.sampling.forced_token = want.id;
        logits.sampling.top_logprobs = std::max(row.sequence->request->output.prompt_logprobs, 0);
      }
    }
    first_hidden += row.count;
  }
}

void LogitRows::FillDraws(const SampleInputs& inputs) {
  size_t draws = 0;
  for (LogitRow& row : rows) {
    if (row.kind != Want::Kind::kDraw) continue;
    TM_CHECK(draws < inputs.choices.size(), "%zu choices for more draws", draws);
    const ChoiceSampling& choice = inputs.choices[draws++];
    row.sampling = choice.row;
    row.history = choice.history;
    row.mask = choice.mask;
  }
  TM_CHECK(draws == inputs.choices.size(), "%zu choices for %zu draws", inputs.choices.size(), draws);
}

void LogitRows::PadTo(int32_t count) {
  LogitRow padding;
  padding.sampling.temperature = 0.0f;
  padding.sampling.wants_logprob = 0;
  rows.resize(static_cast<size_t>(count), padding);
}

int64_t SamplingPass::HostBytes(const EngineLimits& limits, int32_t vocab_size) {
  return InputBytes(limits, vocab_size) + MaskBytes(limits, vocab_size) + RecordBytes(MaxLogitRows(limits));
}

SamplingPass::SamplingPass(Backend& backend, Model& model, const EngineLimits& limits)
    : backend_(backend),
      model_(model),
      limits_(limits),
      vocab_size_(model.config().vocab_size),
      adjust_tables_(limits, vocab_size_),
      first_draws_(static_cast<size_t>(limits.max_sequences)) {}

Status SamplingPass::Allocate() {
  const int64_t inputs = InputBytes(limits_, vocab_size_), masks = MaskBytes(limits_, vocab_size_);
  const int64_t records = RecordBytes(MaxLogitRows(limits_));
  TM_RETURN_IF_ERROR(inputs_.Allocate(backend_, inputs, adjust_tables_.bytes() + inputs));
  TM_RETURN_IF_ERROR(masks_.Allocate(backend_, masks, masks));
  TM_RETURN_IF_ERROR(records_.Allocate(backend_, records, records));
  return logits_.Allocate(backend_, 0,
                          int64_t{limits_.logit_rows()} * vocab_size_ * static_cast<int64_t>(sizeof(float)));
}

Status SamplingPass::Run(LogitRows& step, const Recorded* recorded, int64_t number) {
  what_ = "sampling step " + std::to_string(number);
  if (recorded != nullptr && RoundEnd(step, 0) == step.rows.size()) {
    step.PadTo(recorded->rows);
    TM_RETURN_IF_ERROR(PackRound(step, 0, step.rows.size()).status());
    TM_RETURN_IF_ERROR(OpStatus(backend_.Replay(recorded->handle), backend_, what_));
    return QueueDownload(step);
  }
  for (size_t begin = 0, end = 0; begin < step.rows.size(); begin = end) {
    end = RoundEnd(step, begin);
    // The round before may still be copying from the same memory.
    if (begin > 0) TM_RETURN_IF_ERROR(OpStatus(backend_.WaitFence(backend_.RecordFence()), backend_, what_));
    TM_ASSIGN_OR_RETURN(const Round round, PackRound(step, begin, end));
    TM_RETURN_IF_ERROR(OpStatus(SampleRound(round), backend_, what_));
  }
  return QueueDownload(step);
}

StatusOr<std::function<OpCode()>> SamplingPass::MakeOps(int32_t rows) {
  LogitRows padding;
  padding.PadTo(rows);
  TM_ASSIGN_OR_RETURN(const Round round, PackRound(padding, 0, padding.rows.size()));
  return std::function<OpCode()>([this, round] { return SampleRound(round); });
}

// Changed logits that must go up for a row, beside single entries.
int64_t SamplingPass::UploadedAdjusts(const LogitRow& row) const {
  if (row.history == nullptr) return 0;
  const AdjustTables::Change change = adjust_tables_.ChangeFor(*row.sequence, *row.history);
  const bool whole = change == AdjustTables::Change::kAll || change == AdjustTables::Change::kNoRoom;
  return whole ? RoundedUp(std::ssize(row.history->adjusts())) : 0;
}

// As many rows as one upload can carry the changed logits of: usually all.
size_t SamplingPass::RoundEnd(const LogitRows& step, size_t begin) const {
  int64_t room = MaxAdjusts(limits_, vocab_size_);
  size_t end = begin;
  for (; end < step.rows.size(); ++end) {
    const LogitRow& row = step.rows[end];
    // Choices that have not forked yet have a slot together.
    const bool is_there = end > begin && row.history != nullptr && adjust_tables_.HasRoom(*row.history) &&
                          row.sequence == step.rows[end - 1].sequence;
    const int64_t uploaded = is_there ? 0 : UploadedAdjusts(row);
    if (uploaded > room) break;
    room -= uploaded;
  }
  return end;
}

// Writes the rows [begin, end) and queues their upload.
StatusOr<SamplingPass::Round> SamplingPass::PackRound(LogitRows& step, size_t begin, size_t end) {
  using Change = AdjustTables::Change;
  const std::span<LogitRow> of_round = std::span(step.rows).subspan(begin, end - begin);
  int64_t entries = 0, without_room = 0;
  const Sequence* before = nullptr;
  for (LogitRow& row : of_round) {
    row.change = row.history == nullptr ? Change::kNone : adjust_tables_.Update(*row.sequence, *row.history);
    TM_CHECK(row.sequence != before || row.change == Change::kNone || row.change == Change::kNoRoom,
             "choices of one sequence have entries of their own");
    before = row.sequence;
    if (row.change == Change::kOneEntry) ++entries;
    if (row.change == Change::kNoRoom) without_room += std::ssize(row.history->adjusts());
  }
  Inputs inputs =
      LayRound(std::ssize(of_round), entries, without_room,
               {inputs_.host(), inputs_.device() + adjust_tables_.bytes(), InputBytes(limits_, vocab_size_)});
  const auto mask_words = static_cast<int64_t>(MaskWords(model_.config().drawn_ids()));
  for (size_t i = 0; i < of_round.size(); ++i) {
    const LogitRow& row = of_round[i];
    SamplingRow& sampling = inputs.rows.host[i];
    inputs.hidden_rows.host[i] = row.hidden_row;
    sampling = row.sampling;
    if (row.history != nullptr) TM_RETURN_IF_ERROR(PackHistory(row, &sampling, inputs));
    if (row.mask.empty()) continue;
    auto* const masks = reinterpret_cast<uint32_t*>(masks_.host());
    std::copy_n(row.mask.begin(), mask_words, masks + inputs.masks * mask_words);
    sampling.mask_row = static_cast<int32_t>(inputs.masks++);
  }
  TM_RETURN_IF_ERROR(QueueUploads(inputs));
  std::byte* const top = records_.device() + TopOffset(std::ssize(step.rows));
  return Round{.hidden_rows = inputs.hidden_rows.device,
               .rows = inputs.rows.device,
               .count = std::ssize(of_round),
               .records = reinterpret_cast<SampleRecord*>(records_.device()) + begin,
               .top = reinterpret_cast<TokenLogprob*>(top) + begin * kMaxTopLogprobs};
}

// Where a row finds the entries of its history; and what must go up for that.
Status SamplingPass::PackHistory(const LogitRow& row, SamplingRow* sampling, Inputs& inputs) {
  using Change = AdjustTables::Change;
  const std::span<const LogitAdjust> all = row.history->adjusts();
  int32_t first = adjust_tables_.FirstEntry(row.sequence->slot());
  if (row.change == Change::kNoRoom) {
    first =
        static_cast<int32_t>(inputs.adjusts.device - DeviceAdjusts() + (inputs.adjust - inputs.adjusts.host));
    inputs.adjust = std::copy(all.begin(), all.end(), inputs.adjust);
  } else if (row.change == Change::kOneEntry) {
    const int32_t index = row.history->last_change();
    inputs.change = ListEntry(first + index, all[static_cast<size_t>(index)], inputs.change);
  } else if (row.change == Change::kAll && !all.empty()) {
    LogitAdjust* const staging = inputs.block.Take<LogitAdjust>(std::ssize(all)).host;
    std::copy(all.begin(), all.end(), staging);
    TM_RETURN_IF_ERROR(
        OpStatus(backend_.Upload(DeviceAdjusts() + first, staging, static_cast<int64_t>(all.size_bytes())),
                 backend_, what_));
  }
  sampling->adjust_begin = first;
  sampling->adjust_end = first + static_cast<int32_t>(all.size());
  return {};
}

Status SamplingPass::QueueUploads(const Inputs& inputs) {
  std::byte* const device = inputs_.device() + adjust_tables_.bytes();
  TM_RETURN_IF_ERROR(OpStatus(backend_.Upload(device, inputs_.host(), inputs.bytes), backend_, what_));
  if (inputs.change != inputs.changes.host) {
    const ScatterParams scatter = {.pairs = inputs.changes.device,
                                   .count = static_cast<int32_t>((inputs.change - inputs.changes.host) / 2),
                                   .out = reinterpret_cast<int32_t*>(DeviceAdjusts())};
    TM_RETURN_IF_ERROR(OpStatus(backend_.Scatter(scatter), backend_, what_));
  }
  if (inputs.masks == 0) return {};
  const int64_t mask_bytes =
      inputs.masks * MaskWords(model_.config().drawn_ids()) * static_cast<int64_t>(sizeof(uint32_t));
  return OpStatus(backend_.Upload(masks_.device(), masks_.host(), mask_bytes), backend_, what_);
}

OpCode SamplingPass::SampleRound(const Round& round) {
  for (int64_t at = 0; at < round.count; at += limits_.logit_rows()) {
    const auto slice = static_cast<int32_t>(std::min<int64_t>(limits_.logit_rows(), round.count - at));
    const Tensor logits = MakeTensor(logits_.device(), DType::kF32, slice, vocab_size_);
    TM_RETURN_IF_FAILED(model_.Logits(round.hidden_rows + at, slice, logits));
    Tensor of_tokens = logits;
    of_tokens.columns = model_.config().drawn_ids();
    TM_RETURN_IF_FAILED(backend_.Sample({.logits = of_tokens,
                                         .rows = round.rows + at,
                                         .adjusts = DeviceAdjusts(),
                                         .masks = reinterpret_cast<const uint32_t*>(masks_.device()),
                                         .records = round.records + at,
                                         .top = round.top + at * kMaxTopLogprobs}));
  }
  return OpCode::kOk;
}

Status SamplingPass::QueueDownload(const LogitRows& step) {
  if (step.rows.empty()) return {};
  const bool wants_top = std::any_of(step.rows.begin(), step.rows.end(),
                                     [](const LogitRow& row) { return row.sampling.top_logprobs > 0; });
  const int64_t bytes = wants_top ? RecordBytes(std::ssize(step.rows)) : TopOffset(std::ssize(step.rows));
  return OpStatus(backend_.Download(records_.host(), records_.device(), bytes), backend_, what_);
}

StepResult SamplingPass::ResultOf(const LogitRows& step) const {
  const auto* const records = reinterpret_cast<const SampleRecord*>(records_.host());
  const auto* const tops =
      reinterpret_cast<const TokenLogprob*>(records_.host() + TopOffset(std::ssize(step.rows)));
  const int32_t drawn_ids = model_.config().drawn_ids();
  StepResult step_result;
  step_result.wants.reserve(step.wants);
  for (size_t i = 0; i < step.wants; ++i) {
    const SampleRecord& record = records[i];
    WantResult& result = step_result.wants.emplace_back();
    result.kind = step.rows[i].kind;
    if (record.failed != 0) continue;
    result.token = {record.token, record.logprob};
    result.rank = record.rank;
    if (record.token >= drawn_ids) {
      // A row of padding, which a prompt may hold.
      result.token.logprob = -std::numeric_limits<float>::infinity();
      result.rank = drawn_ids + 1;
    }
    const TokenLogprob* const top = tops + i * kMaxTopLogprobs;
    if (record.top_count > 0) result.top.assign(top, top + record.top_count);
  }
  return step_result;
}

void SamplingPass::ListRecords(const LogitRows& before, const StepPlan& plan, std::vector<int32_t>* records) {
  std::fill(first_draws_.begin(), first_draws_.end(), -1);
  for (size_t record = before.wants; record-- > 0;) {
    const Sequence* sequence = before.rows[record].sequence;
    if (sequence != nullptr)
      first_draws_[static_cast<size_t>(sequence->slot())] = static_cast<int32_t>(record);
  }
  records->clear();
  for (const StepRow& row : plan.rows) {
    const int32_t record = first_draws_[static_cast<size_t>(row.sequence->slot())];
    const bool is_its = record >= 0 && before.rows[static_cast<size_t>(record)].sequence == row.sequence;
    records->push_back(is_its ? record : -1);
  }
}

}  // namespace tramontane

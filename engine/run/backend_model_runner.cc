#include "engine/run/backend_model_runner.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

#include "kernels/core/check.h"
#include "kernels/packed_block.h"
#include "models/op_status.h"

namespace tramontane {
namespace {

// Of entries that are packed by themselves.
constexpr int64_t RoundedUp(int64_t adjusts) {
  return PackedBlock::Bytes<LogitAdjust>(adjusts) / static_cast<int64_t>(sizeof(LogitAdjust));
}

// Changed logits that one upload can carry, of slots that get another history and of rows that have no room
// in theirs; more go in several rounds. One row may name the whole vocabulary.
int64_t MaxAdjusts(const EngineLimits& limits, int32_t vocab_size) {
  return RoundedUp(std::max<int64_t>(vocab_size, int64_t{1024} * limits.logit_rows()));
}

// Every sequence may be sampled or every token of a step scored, or a mixture.
int64_t MaxLogitRows(const EngineLimits& limits) {
  return int64_t{limits.max_sequences} + limits.max_step_tokens;
}

// An entry of AdjustTables as Scatter changes it.
constexpr int64_t kAdjustWords = sizeof(LogitAdjust) / sizeof(int32_t);

//   hidden rows | SamplingRows | an entry of each slot | LogitAdjusts of rows without room | of slots
int64_t SamplingBytes(const EngineLimits& limits, int32_t vocab_size) {
  return PackedBlock::Bytes<int32_t>(MaxLogitRows(limits)) +
         PackedBlock::Bytes<SamplingRow>(MaxLogitRows(limits)) +
         PackedBlock::Bytes<int32_t>(limits.max_sequences * 2 * kAdjustWords) +
         PackedBlock::Bytes<LogitAdjust>(MaxAdjusts(limits, vocab_size));
}

int64_t MaskBytes(const EngineLimits& limits, int32_t vocab_size) {
  return PackedBlock::Bytes<uint32_t>(limits.max_sequences * static_cast<int64_t>(MaskWords(vocab_size)));
}

int64_t RecordBytes(const EngineLimits& limits) {
  return PackedBlock::Bytes<SampleRecord>(MaxLogitRows(limits)) +
         PackedBlock::Bytes<TokenLogprob>(MaxLogitRows(limits) * kMaxTopLogprobs);
}

int64_t LogitBytes(const EngineLimits& limits, int32_t vocab_size) {
  return int64_t{limits.logit_rows()} * vocab_size * static_cast<int64_t>(sizeof(float));
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

Status NoStepBuffer(int64_t bytes) {
  return ResourceExhausted("no memory for " + std::to_string(bytes) + " bytes of step buffers");
}

}  // namespace

BackendModelRunner::BufferBytes BackendModelRunner::CountBuffers(const KvLayout& layout,
                                                                 const EngineLimits& limits,
                                                                 const ModelConfig& config) {
  const BatchBuilder builder(layout, limits, config.context);
  const int64_t sampling =
      SamplingBytes(limits, config.vocab_size) + MaskBytes(limits, config.vocab_size) + RecordBytes(limits);
  const int64_t tables = builder.table_bytes() + AdjustTables(limits, config.vocab_size).bytes();
  return {.device = tables + builder.max_bytes() + sampling,
          .host = limits.steps_in_flight * builder.max_bytes() + sampling};
}

StatusOr<std::unique_ptr<BackendModelRunner>> BackendModelRunner::Create(Backend& backend, Model& model,
                                                                         const EngineLimits& limits,
                                                                         std::byte* pool) {
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
      builder_(model.kv_layout(), limits, model.config().context),
      adjust_tables_(limits, model.config().vocab_size),
      steps_(static_cast<size_t>(limits.steps_in_flight)),
      drawn_slots_(static_cast<size_t>(limits.max_sequences)) {}

BackendModelRunner::~BackendModelRunner() {
  backend_.AwaitMoves();
  backend_.WaitFence(backend_.RecordFence());  // an engine may end with a step in flight
  for (const Buffer& buffer : {sampling_, masks_, records_}) {
    backend_.FreeHost(buffer.host);
    backend_.Free(buffer.device);
  }
  for (const RecordedStep& recorded : recorded_) {
    backend_.FreeRecording(recorded.forward);
    if (recorded.forward_with_sinks.impl != nullptr) backend_.FreeRecording(recorded.forward_with_sinks);
    backend_.FreeRecording(recorded.sampling);
  }
  for (const OpenStep& step : steps_) backend_.FreeHost(step.packed_host);
  backend_.Free(batch_);
  backend_.Free(logits_);
}

Status BackendModelRunner::Allocate() {
  const int32_t vocab_size = model_.config().vocab_size;
  TM_RETURN_IF_ERROR(builder_.CheckSize());
  TM_RETURN_IF_ERROR(model_.Reserve(limits_.max_tokens(), limits_.max_sequences, limits_.logit_rows()));
  const int64_t batch_bytes = builder_.table_bytes() + builder_.max_bytes();
  batch_ = static_cast<std::byte*>(backend_.Allocate(batch_bytes));
  if (batch_ == nullptr) return NoStepBuffer(batch_bytes);
  for (OpenStep& step : steps_) {
    step.packed_host = static_cast<std::byte*>(backend_.AllocateHost(builder_.max_bytes()));
    if (step.packed_host == nullptr) return NoStepBuffer(builder_.max_bytes());
  }
  TM_RETURN_IF_ERROR(AllocateBuffer(SamplingBytes(limits_, vocab_size), adjust_tables_.bytes(), &sampling_));
  TM_RETURN_IF_ERROR(AllocateBuffer(MaskBytes(limits_, vocab_size), 0, &masks_));
  TM_RETURN_IF_ERROR(AllocateBuffer(RecordBytes(limits_), 0, &records_));
  const int64_t logit_bytes = LogitBytes(limits_, vocab_size);
  logits_ = static_cast<std::byte*>(backend_.Allocate(logit_bytes));
  if (logits_ == nullptr) {
    return ResourceExhausted("no memory for " + std::to_string(logit_bytes) + " bytes of logits");
  }
  return {};
}

// `more`: bytes that the device alone has, in front.
Status BackendModelRunner::AllocateBuffer(int64_t bytes, int64_t more, Buffer* buffer) {
  buffer->host = static_cast<std::byte*>(backend_.AllocateHost(bytes));
  buffer->device = static_cast<std::byte*>(backend_.Allocate(more + bytes));
  if (buffer->host != nullptr && buffer->device != nullptr) return {};
  return NoStepBuffer(more + bytes);
}

// ---- recorded decode steps ----------------------------------------------------------------------

Status BackendModelRunner::RecordDecodeSteps() {
  if (backend_.info().records_steps == 0) return {};
  for (const int32_t rows : limits_.RowsToRecord()) {
    recorded_.emplace_back().rows = rows;
    TM_RETURN_IF_ERROR(RecordForward({.rows = rows}, &recorded_.back().forward));
    TM_RETURN_IF_ERROR(RecordSampling(rows, &recorded_.back().sampling));
  }
  const std::vector<int32_t> with_sinks = limits_.RowsToRecordWithSinks();
  for (RecordedStep& recorded : recorded_) {
    if (!std::binary_search(with_sinks.begin(), with_sinks.end(), recorded.rows)) continue;
    TM_RETURN_IF_ERROR(RecordForward({.rows = recorded.rows, .sinks = true}, &recorded.forward_with_sinks));
  }
  return {};
}

// Of a step that is padding only: it has the places and sizes of every step of that shape.
Status BackendModelRunner::RecordForward(const RecordedShape& shape, RecordingHandle* recording) {
  std::byte* const host = steps_[0].packed_host;
  const PackedBatch packed = builder_.BuildPadded({}, {}, shape, host, batch_);
  TM_RETURN_IF_ERROR(UploadBatch(packed, host));
  return Record([&] { return model_.Forward(packed.forward, pool_); }, recording);
}

Status BackendModelRunner::RecordSampling(int32_t rows, RecordingHandle* recording) {
  OpenStep& step = steps_[0];
  step.logit_rows.assign(static_cast<size_t>(rows), PaddingRow());
  TM_ASSIGN_OR_RETURN(const PackedRound round, PackRound(step, 0, step.logit_rows.size()));
  return Record([&] { return SampleRound(round); }, recording);
}

// The ops run once before they are recorded: see Backend::BeginRecording. Waits for them, so that host memory
// that was uploaded is free again.
Status BackendModelRunner::Record(const std::function<OpCode()>& ops, RecordingHandle* recording) {
  const std::string what = "recording a decode step";
  TM_RETURN_IF_ERROR(OpStatus(ops(), backend_, what));
  TM_RETURN_IF_ERROR(OpStatus(backend_.BeginRecording(), backend_, what));
  TM_RETURN_IF_ERROR(OpStatus(ops(), backend_, what));
  TM_RETURN_IF_ERROR(OpStatus(backend_.EndRecording(recording), backend_, what));
  return OpStatus(backend_.WaitFence(backend_.RecordFence()), backend_, what);
}

// Sampled greedily, and read by nobody.
BackendModelRunner::LogitRow BackendModelRunner::PaddingRow() {
  LogitRow padding;
  padding.sampling.temperature = 0.0f;
  padding.sampling.wants_logprob = 0;
  return padding;
}

Status BackendModelRunner::RunLayers(const StepPlan& plan, int32_t layers) {
  ListRecordsInFlight(plan);
  PackedBatch packed = builder_.Build(plan, records_in_flight_, steps_[0].packed_host, batch_);
  packed.forward.layers = layers;
  TM_RETURN_IF_ERROR(UploadBatch(packed, steps_[0].packed_host));
  const std::string what = "timing the layers";
  TM_RETURN_IF_ERROR(OpStatus(model_.Forward(packed.forward, pool_), backend_, what));
  return OpStatus(backend_.WaitFence(backend_.RecordFence()), backend_, what);
}

// ---- Forward ------------------------------------------------------------------------------------

StatusOr<StepTicket> BackendModelRunner::Forward(const StepPlan& plan) {
  OpenStep& step = PlaceOf(plan.step);
  TM_CHECK(step.id == 0, "step %lld is in flight", static_cast<long long>(step.id));
  ListRecordsInFlight(plan);
  step.id = plan.step;
  step.sampled = false;
  ListLogitRows(plan, step);
  const std::string what = "step " + std::to_string(plan.step);
  step.sees_sinks = BatchBuilder::HasSinks(plan);
  step.recorded = FindRecorded(plan, step.sees_sinks);
  const PackedBatch packed =
      step.recorded == nullptr ? builder_.Build(plan, records_in_flight_, step.packed_host, batch_)
                               : builder_.BuildPadded(plan, records_in_flight_,
                                                      {.rows = step.recorded->rows, .sinks = step.sees_sinks},
                                                      step.packed_host, batch_);
  TM_RETURN_IF_ERROR(UploadBatch(packed, step.packed_host));
  TM_RETURN_IF_ERROR(OpStatus(backend_.AwaitMoves(), backend_, what));
  if (packed.copy_count > 0) {
    const CopyPagesParams copies = {.pool = pool_,
                                    .page_bytes = model_.kv_layout().page_bytes(),
                                    .pairs = packed.copy_pairs,
                                    .count = packed.copy_count};
    TM_RETURN_IF_ERROR(OpStatus(backend_.CopyPages(copies), backend_, what));
    moves_after_ = backend_.RecordFence();
  }
  if (packed.advance.count > 0) {
    AdvanceParams advance = packed.advance;
    advance.records = reinterpret_cast<const SampleRecord*>(records_.device);
    TM_RETURN_IF_ERROR(OpStatus(backend_.Advance(advance), backend_, what));
  }
  const OpCode forward = step.recorded == nullptr ? model_.Forward(packed.forward, pool_)
                         : step.sees_sinks        ? backend_.Replay(step.recorded->forward_with_sinks)
                                                  : backend_.Replay(step.recorded->forward);
  TM_RETURN_IF_ERROR(OpStatus(forward, backend_, what));
  return StepTicket{plan.step};
}

// The smallest that is wide enough; null where the step is not recorded.
const BackendModelRunner::RecordedStep* BackendModelRunner::FindRecorded(const StepPlan& plan,
                                                                         bool sees_sinks) const {
  if (plan.lane != Lane::kDecode) return nullptr;
  for (const RecordedStep& recorded : recorded_) {
    const bool has_room = !sees_sinks || recorded.forward_with_sinks.impl != nullptr;
    if (has_room && static_cast<int64_t>(plan.rows.size()) <= recorded.rows) return &recorded;
  }
  return nullptr;
}

Status BackendModelRunner::UploadBatch(const PackedBatch& packed, const std::byte* host) {
  std::byte* const block = batch_ + builder_.table_bytes();
  const std::string what = "copying a step to the device";
  // By way of the block's own place, which the step before is done with when these ops run.
  const int64_t most = builder_.max_bytes() / static_cast<int64_t>(sizeof(int32_t)) / 2 * 2;
  for (std::span<const int32_t> rest = packed.early_changes; !rest.empty();) {
    const auto count = std::min(std::ssize(rest), most);
    TM_RETURN_IF_ERROR(OpStatus(
        backend_.Upload(block, rest.data(), count * static_cast<int64_t>(sizeof(int32_t))), backend_, what));
    const ScatterParams changes = {.pairs = reinterpret_cast<const int32_t*>(block),
                                   .count = static_cast<int32_t>(count / 2),
                                   .out = packed.table_changes.out};
    TM_RETURN_IF_ERROR(OpStatus(backend_.Scatter(changes), backend_, what));
    rest = rest.subspan(static_cast<size_t>(count));
    if (rest.empty())
      TM_RETURN_IF_ERROR(OpStatus(backend_.WaitFence(backend_.RecordFence()), backend_, what));
  }
  TM_RETURN_IF_ERROR(OpStatus(backend_.Upload(block, host, packed.bytes), backend_, what));
  if (packed.table_changes.count == 0) return {};
  return OpStatus(backend_.Scatter(packed.table_changes), backend_, what);
}

// Which record of the step before holds the token that a row begins with: its sequence's draw 0 there.
void BackendModelRunner::ListRecordsInFlight(const StepPlan& plan) {
  records_in_flight_.clear();
  const OpenStep& before = PlaceOf(plan.step - 1);
  if (before.id == 0) return;
  TM_CHECK(before.id == plan.step - 1 && before.sampled, "step %lld begins before step %lld is sampled",
           static_cast<long long>(plan.step), static_cast<long long>(before.id));
  records_in_flight_.assign(plan.rows.size(), -1);
  std::fill(drawn_slots_.begin(), drawn_slots_.end(), DrawnSlot());
  for (size_t record = before.wants; record-- > 0;) {
    const Sequence* sequence = before.logit_rows[record].sequence;
    if (sequence != nullptr) DrawnOf(*sequence) = {sequence, static_cast<int32_t>(record)};
  }
  for (size_t r = 0; r < plan.rows.size(); ++r) {
    const DrawnSlot& drawn = DrawnOf(*plan.rows[r].sequence);
    if (drawn.sequence == plan.rows[r].sequence) records_in_flight_[r] = drawn.record;
  }
}

BackendModelRunner::OpenStep& BackendModelRunner::Find(StepTicket ticket, const char* verb) {
  OpenStep& step = PlaceOf(ticket.id);
  TM_CHECK(step.id == ticket.id, "step %lld is %s, and is not open", static_cast<long long>(ticket.id), verb);
  return step;
}

// ---- Sample -------------------------------------------------------------------------------------

Status BackendModelRunner::Sample(StepTicket ticket, const SampleInputs& inputs) {
  OpenStep& step = Find(ticket, "sampled");
  for (const OpenStep& other : steps_) {
    TM_CHECK(other.id == 0 || other.id >= step.id, "step %lld is sampled before step %lld is collected",
             static_cast<long long>(step.id), static_cast<long long>(other.id));
  }
  FillDraws(inputs, step);
  const std::string what = "sampling step " + std::to_string(step.id);
  if (step.recorded != nullptr && RoundEnd(step, 0) == step.logit_rows.size()) {
    step.logit_rows.resize(static_cast<size_t>(step.recorded->rows), PaddingRow());
    TM_RETURN_IF_ERROR(PackRound(step, 0, step.logit_rows.size()).status());
    TM_RETURN_IF_ERROR(OpStatus(backend_.Replay(step.recorded->sampling), backend_, what));
    return QueueDownload(step);
  }
  for (size_t begin = 0, end = 0; begin < step.logit_rows.size(); begin = end) {
    end = RoundEnd(step, begin);
    // The round before may still be copying from the same memory.
    if (begin > 0) TM_RETURN_IF_ERROR(OpStatus(backend_.WaitFence(backend_.RecordFence()), backend_, what));
    TM_ASSIGN_OR_RETURN(const PackedRound round, PackRound(step, begin, end));
    TM_RETURN_IF_ERROR(OpStatus(SampleRound(round), backend_, what));
  }
  return QueueDownload(step);
}

void BackendModelRunner::ListLogitRows(const StepPlan& plan, OpenStep& step) const {
  step.logit_rows.clear();
  step.wants = plan.wants.size();
  int32_t first_hidden = 0;
  for (const StepRow& row : plan.rows) {
    for (const Want& want : plan.WantsOf(row)) {
      LogitRow& logits = step.logit_rows.emplace_back();
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

void BackendModelRunner::FillDraws(const SampleInputs& inputs, OpenStep& step) {
  auto choice = inputs.choices.begin();
  step.wants_top = false;
  for (LogitRow& row : step.logit_rows) {
    if (row.kind == Want::Kind::kDraw) {
      TM_CHECK(choice != inputs.choices.end(), "%zu choices for step %lld", inputs.choices.size(),
               static_cast<long long>(step.id));
      row.sampling = choice->row;
      row.history = choice->history;
      row.mask = choice->mask;
      ++choice;
    }
    step.wants_top = step.wants_top || row.sampling.top_logprobs > 0;
  }
  TM_CHECK(choice == inputs.choices.end(), "%zu choices for step %lld", inputs.choices.size(),
           static_cast<long long>(step.id));
}

// Changed logits that must go up for a row, beside single entries.
int64_t BackendModelRunner::UploadedAdjusts(const LogitRow& row) const {
  if (row.history == nullptr) return 0;
  const AdjustTables::Change change = adjust_tables_.ChangeFor(*row.sequence, *row.history);
  const bool whole = change == AdjustTables::Change::kAll || change == AdjustTables::Change::kNoRoom;
  return whole ? RoundedUp(std::ssize(row.history->adjusts())) : 0;
}

// As many rows as one upload can carry the changed logits of: usually all.
size_t BackendModelRunner::RoundEnd(const OpenStep& step, size_t begin) const {
  int64_t room = MaxAdjusts(limits_, model_.config().vocab_size);
  size_t end = begin;
  for (; end < step.logit_rows.size(); ++end) {
    const LogitRow& row = step.logit_rows[end];
    // Choices that have not forked yet have a slot together.
    const bool is_there = end > begin && row.history != nullptr && adjust_tables_.HasRoom(*row.history) &&
                          row.sequence == step.logit_rows[end - 1].sequence;
    const int64_t uploaded = is_there ? 0 : UploadedAdjusts(row);
    if (uploaded > room) break;
    room -= uploaded;
  }
  return end;
}

// Writes the rows [begin, end) and queues their upload.
StatusOr<BackendModelRunner::PackedRound> BackendModelRunner::PackRound(OpenStep& step, size_t begin,
                                                                        size_t end) {
  using Change = AdjustTables::Change;
  const std::span<LogitRow> of_round = std::span(step.logit_rows).subspan(begin, end - begin);
  const auto count = std::ssize(of_round);
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
  std::byte* const device = sampling_.device + adjust_tables_.bytes();
  PackedBlock block(sampling_.host, device, SamplingBytes(limits_, model_.config().vocab_size));
  const PackedArray<int32_t> hidden_rows = block.Take<int32_t>(count);
  const PackedArray<SamplingRow> rows = block.Take<SamplingRow>(count);
  const PackedArray<int32_t> changes = block.Take<int32_t>(entries * 2 * kAdjustWords);
  const PackedArray<LogitAdjust> adjusts = block.Take<LogitAdjust>(without_room);
  const int64_t uploaded = block.bytes();
  const std::string what = "sampling step " + std::to_string(step.id);

  const auto mask_words = static_cast<int64_t>(MaskWords(model_.config().drawn_ids()));
  auto* masks = reinterpret_cast<uint32_t*>(masks_.host);
  int32_t mask_count = 0;
  int32_t* change = changes.host;
  LogitAdjust* adjust = adjusts.host;
  for (int64_t i = 0; i < count; ++i) {
    const LogitRow& row = of_round[static_cast<size_t>(i)];
    hidden_rows.host[i] = row.hidden_row;
    rows.host[i] = row.sampling;
    if (row.history != nullptr) {
      const std::span<const LogitAdjust> all = row.history->adjusts();
      int32_t first = adjust_tables_.FirstEntry(row.sequence->slot());
      if (row.change == Change::kNoRoom) {
        first = static_cast<int32_t>(adjusts.device - DeviceAdjusts() + (adjust - adjusts.host));
        adjust = std::copy(all.begin(), all.end(), adjust);
      } else if (row.change == Change::kOneEntry) {
        const int32_t place = row.history->last_change();
        change = ListEntry(first + place, all[static_cast<size_t>(place)], change);
      } else if (row.change == Change::kAll && !all.empty()) {
        const PackedArray<LogitAdjust> staging = block.Take<LogitAdjust>(std::ssize(all));
        std::copy(all.begin(), all.end(), staging.host);
        TM_RETURN_IF_ERROR(OpStatus(
            backend_.Upload(DeviceAdjusts() + first, staging.host, static_cast<int64_t>(all.size_bytes())),
            backend_, what));
      }
      rows.host[i].adjust_begin = first;
      rows.host[i].adjust_end = first + static_cast<int32_t>(all.size());
    }
    if (row.mask.empty()) continue;
    std::copy_n(row.mask.begin(), mask_words, masks + mask_count * mask_words);
    rows.host[i].mask_row = mask_count++;
  }
  TM_RETURN_IF_ERROR(OpStatus(backend_.Upload(device, sampling_.host, uploaded), backend_, what));
  if (entries > 0) {
    const ScatterParams scatter = {.pairs = changes.device,
                                   .count = static_cast<int32_t>(entries * kAdjustWords),
                                   .out = reinterpret_cast<int32_t*>(DeviceAdjusts())};
    TM_RETURN_IF_ERROR(OpStatus(backend_.Scatter(scatter), backend_, what));
  }
  if (mask_count > 0) {
    const int64_t bytes = mask_count * mask_words * static_cast<int64_t>(sizeof(uint32_t));
    TM_RETURN_IF_ERROR(OpStatus(backend_.Upload(masks_.device, masks_.host, bytes), backend_, what));
  }
  const int64_t record = static_cast<int64_t>(begin);
  return PackedRound{
      .hidden_rows = hidden_rows.device,
      .rows = rows.device,
      .count = count,
      .records = reinterpret_cast<SampleRecord*>(records_.device) + record,
      .top = reinterpret_cast<TokenLogprob*>(records_.device + TopOffset(step)) + record * kMaxTopLogprobs};
}

OpCode BackendModelRunner::SampleRound(const PackedRound& round) {
  for (int64_t at = 0; at < round.count; at += limits_.logit_rows()) {
    const auto slice = static_cast<int32_t>(std::min<int64_t>(limits_.logit_rows(), round.count - at));
    const Tensor logits = MakeTensor(logits_, DType::kF32, slice, model_.config().vocab_size);
    OpCode code = model_.Logits(round.hidden_rows + at, slice, logits);
    if (code != OpCode::kOk) return code;
    Tensor of_tokens = logits;
    of_tokens.columns = model_.config().drawn_ids();
    code = backend_.Sample({.logits = of_tokens,
                            .rows = round.rows + at,
                            .adjusts = DeviceAdjusts(),
                            .masks = reinterpret_cast<const uint32_t*>(masks_.device),
                            .records = round.records + at,
                            .top = round.top + at * kMaxTopLogprobs});
    if (code != OpCode::kOk) return code;
  }
  return OpCode::kOk;
}

Status BackendModelRunner::QueueDownload(OpenStep& step) {
  const auto rows = static_cast<int64_t>(step.logit_rows.size());
  if (rows > 0) {
    const int64_t bytes =
        TopOffset(step) + (step.wants_top ? PackedBlock::Bytes<TokenLogprob>(rows * kMaxTopLogprobs) : 0);
    TM_RETURN_IF_ERROR(OpStatus(backend_.Download(records_.host, records_.device, bytes), backend_,
                                "sampling step " + std::to_string(step.id)));
  }
  step.fence = backend_.RecordFence();
  step.sampled = true;
  return {};
}

int64_t BackendModelRunner::TopOffset(const OpenStep& step) {
  return PackedBlock::Bytes<SampleRecord>(static_cast<int64_t>(step.logit_rows.size()));
}

// ---- Collect ------------------------------------------------------------------------------------

StatusOr<StepResult> BackendModelRunner::Collect(StepTicket ticket) {
  OpenStep& step = Find(ticket, "collected");
  TM_CHECK(step.sampled, "step %lld is collected before it is sampled", static_cast<long long>(step.id));
  TM_RETURN_IF_ERROR(
      OpStatus(backend_.WaitFence(step.fence), backend_, "collecting step " + std::to_string(step.id)));
  StepResult result = ResultOfRecords(step);
  step.id = 0;
  moves_after_ = std::max(moves_after_, step.fence);
  return result;
}

Status BackendModelRunner::MovePages(std::span<const PageMove> moves) {
  const MovePagesParams params = {.pool = pool_,
                                  .page_bytes = model_.kv_layout().page_bytes(),
                                  .moves = moves.data(),
                                  .count = static_cast<int32_t>(moves.size()),
                                  .after = moves_after_};
  return OpStatus(backend_.MovePages(params), backend_, "moving pages");
}

Status BackendModelRunner::ReadPages(std::span<const PageImage> images) {
  const std::string what = "reading pages";
  const KvLayout& layout = model_.kv_layout();
  const KvLayerView pages = layout.LayerView(pool_, 0);
  TM_RETURN_IF_ERROR(OpStatus(backend_.AwaitMoves(), backend_, what));
  for (const PageImage& image : images) {
    TM_RETURN_IF_ERROR(OpStatus(
        backend_.Download(image.bytes, pages.Key(image.page, 0, 0), layout.page_bytes()), backend_, what));
  }
  moves_after_ = backend_.RecordFence();
  return OpStatus(backend_.WaitFence(moves_after_), backend_, what);
}

Status BackendModelRunner::WritePages(std::span<const PageImage> images) {
  const std::string what = "writing pages";
  const KvLayout& layout = model_.kv_layout();
  const KvLayerView pages = layout.LayerView(pool_, 0);
  TM_RETURN_IF_ERROR(OpStatus(backend_.AwaitMoves(), backend_, what));
  for (const PageImage& image : images) {
    TM_RETURN_IF_ERROR(OpStatus(
        backend_.Upload(pages.Key(image.page, 0, 0), image.bytes, layout.page_bytes()), backend_, what));
  }
  moves_after_ = backend_.RecordFence();
  return OpStatus(backend_.WaitFence(moves_after_), backend_, what);
}

StepResult BackendModelRunner::ResultOfRecords(const OpenStep& step) const {
  StepResult result;
  result.wants.reserve(step.wants);
  for (size_t record = 0; record < step.wants; ++record) result.wants.push_back(ResultAt(step, record));
  return result;
}

WantResult BackendModelRunner::ResultAt(const OpenStep& step, size_t at) const {
  const SampleRecord& record = reinterpret_cast<const SampleRecord*>(records_.host)[at];
  WantResult result = {.kind = step.logit_rows[at].kind};
  if (record.failed != 0) return result;
  result.token = {record.token, record.logprob};
  result.rank = record.rank;
  const int32_t drawn = model_.config().drawn_ids();
  if (record.token >= drawn) {
    // A row of padding, which a prompt may hold.
    result.token.logprob = -std::numeric_limits<float>::infinity();
    result.rank = drawn + 1;
  }
  if (record.top_count > 0) {
    const auto* top =
        reinterpret_cast<const TokenLogprob*>(records_.host + TopOffset(step)) + at * kMaxTopLogprobs;
    result.top.assign(top, top + record.top_count);
  }
  return result;
}

}  // namespace tramontane

#include "engine/run/backend_model_runner.h"

#include <algorithm>
#include <string>

#include "kernels/core/check.h"
#include "models/op_status.h"

namespace tramontane {

BackendModelRunner::BufferBytes BackendModelRunner::CountBuffers(const KvLayout& layout,
                                                                 const EngineLimits& limits,
                                                                 const ModelConfig& config) {
  const BatchBuilder builder(layout, limits, config.context);
  const int64_t sampling = SamplingPass::HostBytes(limits, config.vocab_size);
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
      sampling_(backend, model, limits_),
      recorded_(backend),
      moves_(backend, model.kv_layout(), pool),
      steps_(static_cast<size_t>(limits.steps_in_flight)) {}

BackendModelRunner::~BackendModelRunner() {
  backend_.AwaitMoves();
  backend_.WaitFence(backend_.RecordFence());  // an engine may end with a step in flight
}

Status BackendModelRunner::Allocate() {
  TM_RETURN_IF_ERROR(builder_.CheckSize());
  TM_RETURN_IF_ERROR(model_.Reserve(limits_.max_tokens(), limits_.max_sequences, limits_.logit_rows()));
  TM_RETURN_IF_ERROR(batch_.Allocate(backend_, 0, builder_.table_bytes() + builder_.max_bytes()));
  for (OpenStep& step : steps_) TM_RETURN_IF_ERROR(step.packed.Allocate(backend_, builder_.max_bytes(), 0));
  return sampling_.Allocate();
}

// Steps that are padding only: they have the sizes of every step of their shape, and lie where it does.
Status BackendModelRunner::RecordDecodeSteps() {
  if (backend_.info().records_steps == 0) return {};
  using Ops = RecordedSteps::Ops;
  const auto forward = [this](const RecordedShape& shape) -> StatusOr<Ops> {
    std::byte* const host = steps_[0].packed.host();
    const PackedBatch packed = builder_.Build({}, {}, host, batch_.device(), &shape);
    TM_RETURN_IF_ERROR(UploadBatch(packed, host));
    return Ops([this, batch = packed.forward] { return model_.Forward(batch, pool_); });
  };
  return recorded_.RecordAll(limits_, forward,
                             [this](const RecordedShape& shape) { return sampling_.MakeOps(shape.rows); });
}

Status BackendModelRunner::RunLayers(const StepPlan& plan, int32_t layers) {
  ListRecordsInFlight(plan);
  std::byte* const host = steps_[0].packed.host();
  PackedBatch packed = builder_.Build(plan, records_in_flight_, host, batch_.device());
  packed.forward.layers = layers;
  TM_RETURN_IF_ERROR(UploadBatch(packed, host));
  const std::string what = "timing the layers";
  TM_RETURN_IF_ERROR(OpStatus(model_.Forward(packed.forward, pool_), backend_, what));
  return OpStatus(backend_.WaitFence(backend_.RecordFence()), backend_, what);
}

StatusOr<StepTicket> BackendModelRunner::Forward(const StepPlan& plan) {
  OpenStep& step = PlaceOf(plan.step);
  TM_CHECK(step.id == 0, "step %lld is in flight", static_cast<long long>(step.id));
  ListRecordsInFlight(plan);
  step.id = plan.step;
  step.sampled = false;
  step.logits.List(plan);
  const std::string what = "step " + std::to_string(plan.step);
  const bool sees_sinks = BatchBuilder::HasSinks(plan);
  step.recorded = recorded_.Find(plan, sees_sinks);
  RecordedShape shape = {.sinks = sees_sinks};
  if (step.recorded != nullptr) shape.rows = step.recorded->rows();
  std::byte* const host = step.packed.host();
  const PackedBatch packed = builder_.Build(plan, records_in_flight_, host, batch_.device(),
                                            step.recorded == nullptr ? nullptr : &shape);
  TM_RETURN_IF_ERROR(UploadBatch(packed, host));
  TM_RETURN_IF_ERROR(OpStatus(backend_.AwaitMoves(), backend_, what));
  TM_RETURN_IF_ERROR(CopyPages(packed, what));
  if (packed.advance.count > 0) {
    AdvanceParams advance = packed.advance;
    advance.records = sampling_.device_records();
    TM_RETURN_IF_ERROR(OpStatus(backend_.Advance(advance), backend_, what));
  }
  const OpCode forward = step.recorded == nullptr ? model_.Forward(packed.forward, pool_)
                         : sees_sinks             ? backend_.Replay(step.recorded->forward_with_sinks)
                                                  : backend_.Replay(step.recorded->forward);
  TM_RETURN_IF_ERROR(OpStatus(forward, backend_, what));
  return StepTicket{plan.step};
}

void BackendModelRunner::ListRecordsInFlight(const StepPlan& plan) {
  records_in_flight_.clear();
  const OpenStep& before = PlaceOf(plan.step - 1);
  if (before.id == 0) return;
  TM_CHECK(before.id == plan.step - 1 && before.sampled, "step %lld begins before step %lld is sampled",
           static_cast<long long>(plan.step), static_cast<long long>(before.id));
  sampling_.ListRecords(before.logits, plan, &records_in_flight_);
}

Status BackendModelRunner::UploadBatch(const PackedBatch& packed, const std::byte* host) {
  std::byte* const block = batch_.device() + builder_.table_bytes();
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

Status BackendModelRunner::CopyPages(const PackedBatch& packed, const std::string& what) {
  if (packed.copy_count == 0) return {};
  const CopyPagesParams copies = {.pool = pool_,
                                  .page_bytes = model_.kv_layout().page_bytes(),
                                  .pairs = packed.copy_pairs,
                                  .count = packed.copy_count};
  TM_RETURN_IF_ERROR(OpStatus(backend_.CopyPages(copies), backend_, what));
  moves_.BeginBehind(backend_.RecordFence());
  return {};
}

BackendModelRunner::OpenStep& BackendModelRunner::Find(StepTicket ticket, const char* verb) {
  OpenStep& step = PlaceOf(ticket.id);
  TM_CHECK(step.id == ticket.id, "step %lld is %s, and is not open", static_cast<long long>(ticket.id), verb);
  return step;
}

Status BackendModelRunner::Sample(StepTicket ticket, const SampleInputs& inputs) {
  OpenStep& step = Find(ticket, "sampled");
  for (const OpenStep& other : steps_) {
    TM_CHECK(other.id == 0 || other.id >= step.id, "step %lld is sampled before step %lld is collected",
             static_cast<long long>(step.id), static_cast<long long>(other.id));
  }
  step.logits.FillDraws(inputs);
  TM_RETURN_IF_ERROR(
      sampling_.Run(step.logits, step.recorded == nullptr ? nullptr : &step.recorded->sampling, step.id));
  step.fence = backend_.RecordFence();
  step.sampled = true;
  return {};
}

StatusOr<StepResult> BackendModelRunner::Collect(StepTicket ticket) {
  OpenStep& step = Find(ticket, "collected");
  TM_CHECK(step.sampled, "step %lld is collected before it is sampled", static_cast<long long>(step.id));
  TM_RETURN_IF_ERROR(
      OpStatus(backend_.WaitFence(step.fence), backend_, "collecting step " + std::to_string(step.id)));
  step.id = 0;
  moves_.BeginBehind(step.fence);
  return sampling_.ResultOf(step.logits);
}

}  // namespace tramontane

#include "kernels/cuda/cuda_backend.h"

#include <algorithm>
#include <string>
#include <utility>

#include "kernels/core/check.h"
#include "kernels/core/kv_quantize.h"
#include "kernels/cuda/cuda_attention.h"
#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/cuda_linear.h"
#include "kernels/cuda/cuda_moe.h"
#include "kernels/cuda/cuda_weights.h"
#include "kernels/cuda/packed_weight.h"
#include "kernels/cuda/pieces.h"
#include "kernels/cuda/pointwise.h"
#include "kernels/cuda/sampling.h"
#include "kernels/cuda/workspace.h"

namespace tramontane::cuda {
namespace {

class CudaBackend final : public Backend {
 public:
  CudaBackend(std::unique_ptr<Runtime> runtime, const CudaBackendOptions& options)
      : context_(std::move(runtime), options), weights_(context_, options.fp8_products != 0) {
    info_.name = "cuda";
    info_.variant = context_.device().name.c_str();
    info_.activation_dtype = DType::kBf16;
    info_.memory_bytes = context_.device().memory_bytes;
    info_.asynchronous = 1;
    info_.records_steps = context_.waits_for_every_op() ? 0 : 1;  // a recorded step would be one op
  }

  const BackendInfo& info() const noexcept override { return info_; }
  const char* last_error() const noexcept override { return context_.last_error(); }
  const char* remarks() const noexcept override;

  // ---- memory
  void* Allocate(int64_t bytes) noexcept override {
    return context_.runtime().Allocate(std::max<int64_t>(bytes, 1));
  }
  void Free(void* memory) noexcept override { context_.runtime().Free(memory); }
  void* AllocateHost(int64_t bytes) noexcept override {
    return context_.runtime().AllocateHost(std::max<int64_t>(bytes, 1));
  }
  void FreeHost(void* memory) noexcept override { context_.runtime().FreeHost(memory); }
  OpCode Upload(void* device, const void* host, int64_t bytes) noexcept override;
  OpCode Download(void* host, const void* device, int64_t bytes) noexcept override;
  uint64_t RecordFence() noexcept override;
  OpCode WaitFence(uint64_t fence) noexcept override;
  OpCode MovePages(const MovePagesParams& params) noexcept override;
  OpCode AwaitMoves() noexcept override;

  // ---- before the first step
  int64_t PackedBytes(const LinearSource& source) const noexcept override {
    return weights_.PackedBytes(source);
  }
  OpCode PackLinear(const LinearSource& source, WeightHandle* out) noexcept override {
    return weights_.Pack(source, out);
  }
  void FreeWeight(WeightHandle weight) noexcept override { weights_.Free(weight); }
  int64_t WorkspaceBytes(const StepMaxima& maxima) const noexcept override;
  OpCode Reserve(const StepMaxima& maxima) noexcept override;
  OpCode UseTuning(const char* text) noexcept override { return weights_.UseTuning(text); }
  OpCode Tune() noexcept override { return weights_.Tune(); }
  const char* Tuning() noexcept override {
    tuning_ = weights_.Tuning();
    return tuning_.c_str();
  }

  // ---- a step
  OpCode Embed(const EmbedParams& params) noexcept override;
  OpCode RopeTable(const RopeTableParams& params) noexcept override;
  OpCode Linear(const LinearParams& params) noexcept override { return linear_.Run(params); }
  OpCode Moe(const MoeParams& params) noexcept override { return moe_.Run(params); }
  OpCode RopeAppend(const RopeAppendParams& params) noexcept override;
  OpCode Attention(const AttentionParams& params) noexcept override { return attention_.Run(params); }
  OpCode Sample(const SampleParams& params) noexcept override;
  OpCode Advance(const AdvanceParams& params) noexcept override;
  OpCode Scatter(const ScatterParams& params) noexcept override;
  OpCode CopyPages(const CopyPagesParams& params) noexcept override;
  OpCode GatherKv(const GatherKvParams& params) noexcept override;

  // ---- recorded steps
  OpCode BeginRecording() noexcept override;
  OpCode EndRecording(RecordingHandle* out) noexcept override;
  OpCode Replay(RecordingHandle recording) noexcept override;
  void FreeRecording(RecordingHandle recording) noexcept override {
    context_.runtime().FreeRecording(recording.impl);
  }

  void Destroy() noexcept override { delete this; }

 private:
  ~CudaBackend() = default;

  static int EventOf(uint64_t fence) { return static_cast<int>(fence % Runtime::kEvents); }
  void CheckFence(uint64_t fence) const;

  CudaContext context_;
  CudaWeights weights_;
  CudaLinear linear_{context_};
  CudaMoe moe_{context_};
  CudaAttention attention_{context_};  // an upload, a recording or the rotary table begins its next step
  BackendInfo info_;
  std::string tuning_;               // as Tuning said last
  mutable std::string all_remarks_;  // as remarks said last

  uint64_t last_fence_ = 0;
  int fence_error_ = 0;     // of RecordFence, told by the next WaitFence
  bool has_moves_ = false;  // that nothing awaits yet

  int64_t recordings_ = 0;         // made so far
  int64_t recorded_launches_ = 0;  // of all of them
  int64_t recordings_bytes_ = 0;   // that all of them took
  int64_t free_before_ = 0;        // bytes of device memory, before the one that is made
};

const char* CudaBackend::remarks() const noexcept {
  all_remarks_ = weights_.Remarks();
  if (recordings_ > 0) {
    all_remarks_ += std::to_string(recordings_) + " recordings of " + std::to_string(recorded_launches_) +
                    " launches take " + std::to_string(recordings_bytes_) + " bytes of device memory\n";
  }
  return all_remarks_.c_str();
}

// ---- memory -------------------------------------------------------------------------------------

OpCode CudaBackend::Upload(void* device, const void* host, int64_t bytes) noexcept {
  attention_.BeginStep();  // page tables may have changed
  if (bytes == 0) return OpCode::kOk;
  return context_.Queued(context_.runtime().CopyToDevice(device, host, bytes, WhichStream::kSteps),
                         "an upload");
}

OpCode CudaBackend::Download(void* host, const void* device, int64_t bytes) noexcept {
  if (bytes == 0) return OpCode::kOk;
  return context_.Queued(context_.runtime().CopyToHost(host, device, bytes, WhichStream::kSteps),
                         "a download");
}

void CudaBackend::CheckFence(uint64_t fence) const {
  TM_CHECK(fence <= last_fence_, "fence %llu of %llu", static_cast<unsigned long long>(fence),
           static_cast<unsigned long long>(last_fence_));
}

uint64_t CudaBackend::RecordFence() noexcept {
  ++last_fence_;
  const int error = context_.runtime().RecordEvent(EventOf(last_fence_));
  if (error != 0) fence_error_ = error;
  return last_fence_;
}

// An event is recorded anew for every kEvents-th fence; waiting for the later one is waiting for both.
OpCode CudaBackend::WaitFence(uint64_t fence) noexcept {
  CheckFence(fence);
  if (const int error = std::exchange(fence_error_, 0)) return context_.Queued(error, "a fence");
  if (fence == 0) return OpCode::kOk;
  return context_.Queued(context_.runtime().WaitEvent(EventOf(fence)), "the device");
}

OpCode CudaBackend::MovePages(const MovePagesParams& p) noexcept {
  CheckFence(p.after);
  if (p.count == 0) return OpCode::kOk;
  has_moves_ = true;
  int error = p.after == 0 ? 0 : context_.runtime().HoldMoves(EventOf(p.after));
  for (int32_t i = 0; i < p.count && error == 0; ++i) {
    const PageMove& move = p.moves[i];
    std::byte* const page = p.pool + move.page * p.page_bytes;
    error = move.way == PageMove::Way::kOut
                ? context_.runtime().CopyToHost(move.image, page, p.page_bytes, WhichStream::kMoves)
                : context_.runtime().CopyToDevice(page, move.image, p.page_bytes, WhichStream::kMoves);
  }
  return context_.Queued(error, "moving pages");
}

OpCode CudaBackend::AwaitMoves() noexcept {
  if (!std::exchange(has_moves_, false)) return OpCode::kOk;
  return context_.Queued(context_.runtime().AwaitMoves(), "waiting for moved pages");
}

// ---- workspace ----------------------------------------------------------------------------------

int64_t CudaBackend::WorkspaceBytes(const StepMaxima& maxima) const noexcept {
  return MapWorkspace(maxima, context_.device(), context_.forms()).bytes;
}

OpCode CudaBackend::Reserve(const StepMaxima& maxima) noexcept {
  if (const OpCode code = attention_.CheckHeads(maxima); code != OpCode::kOk) return code;
  if (const OpCode code = moe_.CheckExperts(maxima); code != OpCode::kOk) return code;
  if (const OpCode code = context_.Reserve(maxima); code != OpCode::kOk) return code;
  attention_.Reserve();
  weights_.Reserve();
  return OpCode::kOk;
}

// ---- a step -------------------------------------------------------------------------------------

OpCode CudaBackend::Embed(const EmbedParams& p) noexcept {
  const PackedWeight& table = PackedWeightOf(p.table);
  TM_CHECK(p.out.dtype == DType::kBf16 && p.out.columns == table.in_features,
           "out [.., %lld] %s of a table of %lld", static_cast<long long>(p.out.columns),
           DTypeName(p.out.dtype), static_cast<long long>(table.in_features));
  TM_CHECK(table.alone() != nullptr, "a table of parts in several forms");
  CheckPieces(p.out, "out");
  if (p.tokens == 0) return OpCode::kOk;
  const EmbedKernelParams kernel = {.token_ids = p.token_ids,
                                    .table = table.alone()->data,
                                    .out = p.out.data,
                                    .out_stride = p.out.row_stride,
                                    .tokens = p.tokens,
                                    .width = static_cast<int32_t>(table.in_features),
                                    .table_format = table.alone()->format,
                                    .column_order = table.alone()->column_order};
  return context_.Queued(LaunchEmbed(kernel, context_.stream()), "the embedding");
}

OpCode CudaBackend::RopeTable(const RopeTableParams& p) noexcept {
  attention_.BeginStep();
  if (p.tokens == 0) return OpCode::kOk;
  return context_.Queued(LaunchRopeTable(p, context_.stream()), "the rotary table");
}

OpCode CudaBackend::RopeAppend(const RopeAppendParams& p) noexcept {
  TM_CHECK(p.qkv.dtype == DType::kBf16, "qkv is %s", DTypeName(p.qkv.dtype));
  if (const OpCode code = attention_.CheckPages(p.kv); code != OpCode::kOk) return code;
  if (p.qkv.rows == 0) return OpCode::kOk;
  if (p.kv.format.element != DType::kBf16) CheckPieces(p.qkv, "qkv");
  if (p.sink_cos_sin != nullptr) {  // before the rows' queries are turned where they lie
    TM_CHECK(p.sink_query.dtype == DType::kBf16, "queries for sinks are %s", DTypeName(p.sink_query.dtype));
    if (const OpCode code = context_.Queued(LaunchRopeSinkQuery(p, context_.stream()), "queries for sinks");
        code != OpCode::kOk)
      return code;
  }
  const int error = p.kv.format.element == DType::kBf16 ? LaunchRopeAppend(p, context_.stream())
                                                        : LaunchRopeAppendQuantised(p, context_.stream());
  return context_.Queued(error, "the rotary embedding");
}

OpCode CudaBackend::Scatter(const ScatterParams& p) noexcept {
  if (p.count == 0) return OpCode::kOk;
  return context_.Queued(LaunchScatter(p, context_.stream()), "changing what stays from step to step");
}

OpCode CudaBackend::CopyPages(const CopyPagesParams& p) noexcept {
  if (p.count == 0) return OpCode::kOk;
  return context_.Queued(LaunchCopyPages(p, context_.stream()), "copying pages");
}

OpCode CudaBackend::GatherKv(const GatherKvParams& p) noexcept {
  const KvFormat& format = p.kv.format;
  const int64_t heads = int64_t{format.kv_heads} * p.repeat;
  TM_CHECK(IsKvElement(format.element) && Format(p.key.dtype).plain() && Format(p.value.dtype).plain(),
           "gathering %s as %s", FormatName(format.element).c_str(), DTypeName(p.key.dtype));
  TM_CHECK(p.key.columns == heads * format.head_dim && p.value.columns == heads * format.ValueDim(),
           "rows of %lld and %lld numbers for %lld heads", static_cast<long long>(p.key.columns),
           static_cast<long long>(p.value.columns), static_cast<long long>(heads));
  if (p.batch == 0) return OpCode::kOk;
  return context_.Queued(LaunchGatherKv(p, context_.stream()), "gathering keys and values");
}

OpCode CudaBackend::Sample(const SampleParams& p) noexcept {
  TM_CHECK(p.logits.dtype == DType::kF32, "logits are %s", DTypeName(p.logits.dtype));
  TM_CHECK(p.logits.rows <= context_.maxima().logit_rows && p.logits.columns <= context_.maxima().vocab,
           "logits [%lld, %lld], beyond what was reserved", static_cast<long long>(p.logits.rows),
           static_cast<long long>(p.logits.columns));
  if (p.logits.rows == 0) return OpCode::kOk;
  const SampleKernelParams kernel = {
      .call = p,
      .adjusted = context_.At<float>(&WorkspaceMap::adjusted),
      .blocks = SampleBlocks(p.logits.rows, p.logits.columns, context_.device().multiprocessors),
      .split = context_.At(&WorkspaceMap::split)};
  return context_.Queued(LaunchSample(kernel, context_.stream()), "sampling");
}

OpCode CudaBackend::Advance(const AdvanceParams& p) noexcept {
  if (p.count == 0) return OpCode::kOk;
  return context_.Queued(LaunchAdvance(p, context_.stream()), "handing tokens to the next step");
}

// ---- recorded steps: the work lists that a recording reads are made inside it -------------------

OpCode CudaBackend::BeginRecording() noexcept {
  attention_.BeginStep();
  free_before_ = context_.runtime().FreeBytes();
  const OpCode code = context_.Queued(context_.runtime().BeginRecording(), "recording a step");
  context_.set_recording(code == OpCode::kOk);
  return code;
}

OpCode CudaBackend::EndRecording(RecordingHandle* out) noexcept {
  attention_.BeginStep();
  context_.set_recording(false);
  int64_t launches = 0;
  const OpCode code =
      context_.Queued(context_.runtime().EndRecording(&out->impl, &launches), "recording a step");
  if (code != OpCode::kOk) return code;
  ++recordings_;
  recorded_launches_ += launches;
  recordings_bytes_ += free_before_ - context_.runtime().FreeBytes();
  return code;
}

OpCode CudaBackend::Replay(RecordingHandle recording) noexcept {
  attention_.BeginStep();
  return context_.Queued(context_.runtime().Replay(recording.impl), "a recorded step");
}

}  // namespace

BackendPtr MakeCudaBackend(std::unique_ptr<Runtime> runtime, const CudaBackendOptions& options) {
  return BackendPtr(new CudaBackend(std::move(runtime), options));
}

}  // namespace tramontane::cuda

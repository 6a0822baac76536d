#include "kernels/backends/cpu_backend.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <optional>
#include <unordered_set>
#include <utility>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/memory.h"
#include "kernels/cpu/ops.h"

namespace tramontane {
namespace {

// Of the machine, or of the control group this process is bounded by.
int64_t MemoryBytes() {
  int64_t bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  int64_t group_limit = 0;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> group_limit) bytes = std::min(bytes, group_limit);
  return bytes;
}

class CpuBackend final : public Backend {
 public:
  CpuBackend(const CpuKernels& kernels, int32_t threads, LinearMode linear)
      : kernels_(kernels), linear_(linear), pool_(threads) {
    info_.name = "cpu";
    info_.variant = kernels.name;
    info_.activation_dtype = DType::kF32;
    info_.threads = threads;
    info_.memory_bytes = MemoryBytes();
  }

  const BackendInfo& info() const override { return info_; }
  const char* last_error() const override { return last_error_.c_str(); }
  const char* remarks() const override { return ""; }

  // ---- memory: host memory is device memory, every op is done when it returns, so fences have always passed
  void* Allocate(int64_t bytes) override { return AllocateZeroed(bytes); }
  void Free(void* memory) override { FreeZeroed(memory); }
  void* AllocateHost(int64_t bytes) override { return AllocateZeroed(bytes); }
  void FreeHost(void* memory) override { FreeZeroed(memory); }
  OpCode Upload(void* device, const void* host, int64_t bytes) override {
    if (bytes > 0) std::memcpy(device, host, static_cast<size_t>(bytes));
    return OpCode::kOk;
  }
  OpCode Download(void* host, const void* device, int64_t bytes) override {
    if (bytes > 0) std::memcpy(host, device, static_cast<size_t>(bytes));
    return OpCode::kOk;
  }
  uint64_t RecordFence() override { return ++last_fence_; }
  OpCode WaitFence(uint64_t fence) override {
    TM_CHECK(fence <= last_fence_, "fence %llu of %llu", static_cast<unsigned long long>(fence),
             static_cast<unsigned long long>(last_fence_));
    return OpCode::kOk;
  }
  OpCode MovePages(const MovePagesParams& params) override { return Done(RunMovePages, params); }
  OpCode AwaitMoves() override { return OpCode::kOk; }

  // ---- before the first step
  int64_t PackedBytes(const LinearSource& source) const override {
    return PackedLinearBytes(source, kernels_);
  }
  OpCode PackLinear(const LinearSource& source, WeightHandle* out) override;
  void FreeWeight(WeightHandle weight) override;
  int64_t WorkspaceBytes(const StepMaxima& maxima) const override;
  OpCode Reserve(const StepMaxima& maxima) override;

  // ---- a step
  OpCode Embed(const EmbedParams& params) override { return Done(RunEmbed, params); }
  OpCode RopeTable(const RopeTableParams& params) override { return Done(RunRopeTable, params); }
  OpCode Linear(const LinearParams& params) override { return Done(RunLinear, params); }
  OpCode Moe(const MoeParams& params) override { return Done(RunMoe, params); }
  OpCode RopeAppend(const RopeAppendParams& params) override { return Done(RunRopeAppend, params); }
  OpCode Attention(const AttentionParams& params) override { return Done(RunAttention, params); }
  OpCode Sample(const SampleParams& params) override { return Done(RunSample, params); }
  OpCode Advance(const AdvanceParams& params) override { return Done(RunAdvance, params); }
  OpCode Scatter(const ScatterParams& params) override { return Done(RunScatter, params); }
  OpCode CopyPages(const CopyPagesParams& params) override { return Done(RunCopyPages, params); }
  OpCode GatherKv(const GatherKvParams& params) override { return Done(RunGatherKv, params); }

  void Destroy() override { delete this; }

 private:
  ~CpuBackend() {
    while (!weights_.empty()) FreeWeight({*weights_.begin()});
    FreeZeroed(workspace_.data);
  }

  template <typename Params>
  OpCode Done(void (*run)(const Params&, const CpuContext&), const Params& params) {
    run(params, {kernels_, pool_, workspace_, shared_prefixes_, linear_});
    return OpCode::kOk;
  }
  // Of all but what is remembered from op to op.
  int64_t OpWorkspaceBytes(const StepMaxima& maxima) const;
  OpCode Fail(OpCode code, std::string reason) {
    last_error_ = std::move(reason);
    return code;
  }

  const CpuKernels& kernels_;
  const LinearMode linear_;
  ThreadPool pool_;
  BackendInfo info_;
  std::string last_error_;
  uint64_t last_fence_ = 0;
  CpuWorkspace workspace_;
  SharedPrefixMemo shared_prefixes_;  // its memory stands behind the workspace
  WeightArena weight_arena_;
  std::unordered_set<PackedWeight*> weights_;  // live handles
};

OpCode CpuBackend::PackLinear(const LinearSource& source, WeightHandle* out) {
  if (std::string reason = WhyNotPackable(source, kCpuPackingLimits); !reason.empty()) {
    return Fail(OpCode::kUnsupported, std::move(reason));
  }
  const int64_t bytes = PackedBytes(source);
  void* panels = weight_arena_.Allocate(bytes);
  if (panels == nullptr) {
    return Fail(OpCode::kOutOfMemory, "no memory for a packed weight of " + std::to_string(bytes) + " bytes");
  }
  const std::optional<PackedWeight> packed =
      PackLinearInto(source, kernels_, pool_, static_cast<std::byte*>(panels));
  if (!packed) {
    weight_arena_.Free(panels);
    return Fail(OpCode::kUnsupported, "its rows cannot be had");
  }
  auto* weight = new PackedWeight(*packed);
  weights_.insert(weight);
  out->impl = weight;
  return OpCode::kOk;
}

void CpuBackend::FreeWeight(WeightHandle weight) {
  auto* packed = static_cast<PackedWeight*>(weight.impl);
  TM_CHECK(weights_.erase(packed) == 1, "a weight handle that is not live");
  weight_arena_.Free(packed->panels);
  delete packed;
}

int64_t CpuBackend::OpWorkspaceBytes(const StepMaxima& maxima) const {
  const int64_t most = std::max(
      {LinearWorkspaceBytes(maxima, kernels_, info_.threads), AttentionWorkspaceBytes(maxima, info_.threads),
       MoeWorkspaceBytes(maxima, kernels_, info_.threads), SampleWorkspaceBytes(maxima, info_.threads)});
  return (most + 63) / 64 * 64;
}

int64_t CpuBackend::WorkspaceBytes(const StepMaxima& maxima) const {
  return OpWorkspaceBytes(maxima) + SharedPrefixMemo::Bytes(maxima.sequences);
}

OpCode CpuBackend::Reserve(const StepMaxima& maxima) {
  const int64_t bytes = WorkspaceBytes(maxima);
  FreeZeroed(std::exchange(workspace_, {}).data);
  shared_prefixes_.Reset(nullptr, 0);
  void* data = AllocateZeroed(bytes);
  if (data == nullptr) {
    return Fail(OpCode::kOutOfMemory, "no memory for a workspace of " + std::to_string(bytes) + " bytes");
  }
  workspace_ = {static_cast<std::byte*>(data), OpWorkspaceBytes(maxima)};
  shared_prefixes_.Reset(workspace_.data + workspace_.bytes, maxima.sequences);
  return OpCode::kOk;
}

const CpuKernels* FindVariant(const std::string& name) {
  for (const CpuKernels* kernels : BuiltVariants()) {
    if (MachineRuns(*kernels) && (name.empty() || name == kernels->name)) return kernels;
  }
  return nullptr;
}

}  // namespace

StatusOr<BackendPtr> MakeCpuBackend(const CpuBackendOptions& options) {
  const CpuKernels* kernels = FindVariant(options.variant);
  if (kernels == nullptr) {
    std::string known;
    for (const std::string& name : CpuVariants()) known += (known.empty() ? "" : ", ") + name;
    return InvalidArgument(
        "cpu variant '" + options.variant + "' is not available; for this machine this build has " +
        (known.empty() ? "none" : known) + " (-DTRAMONTANE_CPU_VARIANTS=all builds every variant)");
  }
  constexpr int32_t kMaxThreads = 1024;
  if (options.threads < 0 || options.threads > kMaxThreads) {
    return InvalidArgument("threads is " + std::to_string(options.threads) +
                           ", allowed are 0 (one per core) to " + std::to_string(kMaxThreads));
  }
  const int32_t threads = options.threads == 0 ? UsableCores() : options.threads;
  return BackendPtr(new CpuBackend(*kernels, threads, options.linear));
}

}  // namespace tramontane

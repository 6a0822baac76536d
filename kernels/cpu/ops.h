// The ops of the CPU backend but Linear (linear.h), as CpuBackend calls them. Definitions in embed, rope,
// attention, moe, sampling, copy and gather.
// Engine thread. Params are checked by TM_CHECK: a wrong one is our own bug. No op allocates.
#pragma once

#include <cstdint>

#include "kernels/backend.h"
#include "kernels/cpu/context.h"

namespace tramontane {

// Scratch that an op needs for the largest of such steps; the others need none. Pure.
int64_t AttentionWorkspaceBytes(const StepMaxima& maxima, int32_t threads);
int64_t MoeWorkspaceBytes(const StepMaxima& maxima, const CpuKernels& kernels, int32_t threads);
int64_t SampleWorkspaceBytes(const StepMaxima& maxima, int32_t threads);

void RunEmbed(const EmbedParams& params, const CpuContext& context);
// That vectors are stored in a way that RunRopeAppend and RunAttention know.
void CheckKvView(const KvLayerView& kv);
void RunRopeTable(const RopeTableParams& params, const CpuContext& context);
void RunMoe(const MoeParams& params, const CpuContext& context);
void RunRopeAppend(const RopeAppendParams& params, const CpuContext& context);
void RunAttention(const AttentionParams& params, const CpuContext& context);
void RunSample(const SampleParams& params, const CpuContext& context);
void RunAdvance(const AdvanceParams& params, const CpuContext& context);
void RunScatter(const ScatterParams& params, const CpuContext& context);
void RunCopyPages(const CopyPagesParams& params, const CpuContext& context);
void RunMovePages(const MovePagesParams& params, const CpuContext& context);
void RunGatherKv(const GatherKvParams& params, const CpuContext& context);

}  // namespace tramontane

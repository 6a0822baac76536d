// The ops of the CPU backend but Linear (linear.h), as CpuBackend calls them. Definitions in embed, rope,
// attention, sampling and copy.
// Engine thread. Params are checked by TM_CHECK: a wrong one is our own bug. No op allocates.
#pragma once

#include <cstdint>

#include "kernels/backend.h"
#include "kernels/cpu/context.h"

namespace tramontane {

// Scratch that the largest of these ops needs for such steps. Pure.
int64_t OpsWorkspaceBytes(const StepMaxima& maxima, int32_t threads);

void RunEmbed(const EmbedParams& params, const CpuContext& context);
void RunRopeTable(const RopeTableParams& params, const CpuContext& context);
void RunRopeAppend(const RopeAppendParams& params, const CpuContext& context);
void RunAttention(const AttentionParams& params, const CpuContext& context);
void RunSample(const SampleParams& params, const CpuContext& context);
void RunCopyPages(const CopyPagesParams& params, const CpuContext& context);

}  // namespace tramontane

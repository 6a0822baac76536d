// Which variants this build has and which of them this machine can run.
// Any thread; pure.
#pragma once

#include <vector>

#include "kernels/cpu/variant.h"

namespace tramontane {

// Every variant in this library, best first; which they are was settled when it was configured
// (variants.cmake).
const std::vector<const CpuKernels*>& BuiltVariants();

// Whether processor and operating system provide the instructions that `kernels` was compiled for.
bool MachineRuns(const CpuKernels& kernels);

}  // namespace tramontane

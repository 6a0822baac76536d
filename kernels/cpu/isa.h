// Which variants there are and which of them this machine can run.
// Any thread; pure.
#pragma once

#include <vector>

#include "kernels/cpu/variant.h"

namespace tramontane {

// Every variant in this library, best first.
const std::vector<const CpuKernels*>& AllVariants();

// Whether processor and operating system provide the instructions that `kernels` was compiled for.
bool MachineRuns(const CpuKernels& kernels);

}  // namespace tramontane

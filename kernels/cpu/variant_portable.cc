// Any machine: vectors of four floats as the compiler sees fit. No fused multiply-add.
#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>
#include <utility>

#include "kernels/core/dtype.h"
#include "kernels/cpu/variant.h"

#define TM_SIMD_WIDTH 4
#include "kernels/cpu/attention_impl.h"
#include "kernels/cpu/linear_impl.h"
#include "kernels/cpu/moe_impl.h"
#include "kernels/cpu/sampling_impl.h"

namespace tramontane {

const CpuKernels kPortableKernels = {
    .name = "portable",
    .linear = kLinearKernels,
    .attention = kAttentionKernels,
    .moe = kMoeKernels,
    .sampling = kSamplingKernels,
};

}  // namespace tramontane

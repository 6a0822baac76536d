// AVX2 with FMA and F16C: x86-64-v3, any server or desktop since about 2015.
#if defined(__x86_64__)
#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>
#include <utility>

#include "kernels/core/dtype.h"
#include "kernels/cpu/intrinsics.h"
#include "kernels/cpu/variant.h"

#define TM_SIMD_WIDTH 8
TM_TARGET_BEGIN("avx2,fma,f16c")
#include "kernels/cpu/attention_impl.h"
#include "kernels/cpu/linear_impl.h"
#include "kernels/cpu/moe_impl.h"
#include "kernels/cpu/sampling_impl.h"
TM_TARGET_END

namespace tramontane {

const CpuKernels kAvx2Kernels = {
    .name = "avx2",
    .linear = kLinearKernels,
    .attention = kAttentionKernels,
    .moe = kMoeKernels,
    .sampling = kSamplingKernels,
};

}  // namespace tramontane
#endif

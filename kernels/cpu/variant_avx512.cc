// AVX-512 (F, BW, VL, DQ): x86-64-v4.
#if defined(__x86_64__)
#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>
#include <utility>

#include "kernels/core/dtype.h"
#include "kernels/cpu/intrinsics.h"
#include "kernels/cpu/variant.h"

#define TM_SIMD_WIDTH 16
TM_TARGET_BEGIN("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")
#include "kernels/cpu/linear_impl.h"
TM_TARGET_END

namespace tramontane {

constinit const CpuKernels kAvx512Kernels = Avx512Kernels("avx512", kLinearKernels);

}  // namespace tramontane
#endif

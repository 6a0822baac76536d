// AVX-512 with VNNI: products of four bytes in one step, for weights in blocks.
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
#define TM_VNNI
TM_TARGET_BEGIN("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")
#include "kernels/cpu/linear_impl.h"
TM_TARGET_END

namespace tramontane {

constinit const CpuKernels kAvx512VnniKernels = Avx512Kernels("avx512_vnni", kLinearKernels);

}  // namespace tramontane
#endif

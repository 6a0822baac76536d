// AVX-512 with BF16 dot products: the rows of x that meet a bf16 weight are rounded to bf16.
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
#define TM_BF16_PRODUCTS
TM_TARGET_BEGIN("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16")
#include "kernels/cpu/linear_impl.h"
TM_TARGET_END

namespace tramontane {

constinit const CpuKernels kAvx512Bf16Kernels = Avx512Kernels("avx512_bf16", kLinearKernels);

}  // namespace tramontane
#endif

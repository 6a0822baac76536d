// AVX-512 with AMX tiles of bf16 and of bytes: the rows of x that meet a bf16 weight are rounded to bf16.
#if defined(__x86_64__)
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/core/dtype.h"
#include "kernels/cpu/intrinsics.h"
#include "kernels/cpu/variant.h"

#define TM_SIMD_WIDTH 16
#define TM_BF16_PRODUCTS
#define TM_AMX
TM_TARGET_BEGIN(
    "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,amx-tile,amx-bf16,amx-int8")
#include "kernels/cpu/linear_impl.h"
// After the bodies that it builds on.
#include "kernels/cpu/linear_amx_impl.h"
#include "kernels/cpu/linear_blocks_amx_impl.h"
TM_TARGET_END

namespace tramontane {

constinit const CpuKernels kAmxBf16Kernels = Avx512Kernels("amx_bf16", AmxLinearKernels());

}  // namespace tramontane
#endif

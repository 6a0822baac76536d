// Any machine: vectors of four floats as the compiler sees fit. No fused multiply-add.
#include "kernels/core/dtype.h"
#include "kernels/cpu/variant.h"

#define TM_SIMD_WIDTH 4
#include "kernels/cpu/simd.h"

namespace tramontane {

const CpuKernels kPortableKernels = {
    .name = "portable",
    .linear = {.panel_width = 2 * kWidth, .tile_rows = 6},
};

}  // namespace tramontane

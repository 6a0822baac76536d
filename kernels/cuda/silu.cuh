// x * sigmoid(x), by the one formula of all kernels that finish a SwiGLU. Device code.
#pragma once

#include "kernels/cuda/primitives.cuh"

namespace tramontane::cuda {

TM_DEVICE float Silu(float x) { return x / (1.0f + Exp2(-1.4426950408889634f * x)); }

}  // namespace tramontane::cuda

// The CUDA backend: kernels/backend.h over the kernels of this folder and a Runtime, which is a GPU or the
// emulator. Threads as backend.h says. Nothing throws across it.
//
// Activations are bf16; weights are packed as bf16 or keep the blocks that they come in; keys and values are
// bf16, or as their pages say. Where each rounding happens: kernels/README.md.
#pragma once

#include <memory>

#include "kernels/backend.h"
#include "kernels/backends/cuda_library.h"
#include "kernels/cuda/runtime.h"

namespace tramontane::cuda {

BackendPtr MakeCudaBackend(std::unique_ptr<Runtime> runtime, const CudaBackendOptions& options = {});

}  // namespace tramontane::cuda

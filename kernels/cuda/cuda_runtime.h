// The Runtime of a real device: the CUDA runtime and cuBLASLt. Only cuda_runtime.cc sees their headers.
#pragma once

#include <memory>
#include <string>

#include "kernels/cuda/runtime.h"

namespace tramontane::cuda {

// On the first device that the driver shows. Null where none can be used, and in `why_not` what is missing.
std::unique_ptr<Runtime> MakeCudaRuntime(std::string* why_not);

}  // namespace tramontane::cuda

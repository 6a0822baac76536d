// Opens the CUDA backend's library where it is there. The server itself links nothing of CUDA, so it starts
// on any machine. Main thread.
#pragma once

#include <string>

#include "kernels/backend.h"
#include "kernels/backends/cuda_library.h"
#include "kernels/core/status.h"

namespace tramontane {

// The library that belongs to this program: ../lib/libtramontane_cuda.so beside the folder of the binary.
std::string CudaLibraryPath();

// The backend of the first GPU. UNAVAILABLE says what is missing: the library, one that it needs
// (libcublasLt), the driver, a GPU, or the right version. The library stays open until the process ends.
StatusOr<BackendPtr> OpenCudaBackend(const std::string& library_path, const CudaBackendOptions& options = {});

}  // namespace tramontane

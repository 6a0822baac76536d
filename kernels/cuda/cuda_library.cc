#include "kernels/backends/cuda_library.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_runtime.h"

namespace tramontane {
namespace {

void Say(const std::string& sentence, char* reason, int64_t reason_bytes) {
  if (reason_bytes <= 0) return;
  const size_t length = std::min(sentence.size(), static_cast<size_t>(reason_bytes) - 1);
  std::memcpy(reason, sentence.data(), length);
  reason[length] = '\0';
}

int32_t Make(uint32_t abi_version, Backend** backend, char* reason, int64_t reason_bytes,
             const CudaBackendOptions* options) {
  if (abi_version != kBackendAbiVersion) {
    Say("it speaks version " + std::to_string(kBackendAbiVersion) +
            " of the backend's interface, this server " + std::to_string(abi_version),
        reason, reason_bytes);
    return kCudaLibraryOtherAbi;
  }
  std::string why_not;
  std::unique_ptr<cuda::Runtime> runtime = cuda::MakeCudaRuntime(&why_not);
  if (runtime == nullptr) {
    Say(why_not, reason, reason_bytes);
    return kCudaLibraryNoDevice;
  }
  *backend = cuda::MakeCudaBackend(std::move(runtime), *options).release();
  return kCudaLibraryOk;
}

}  // namespace
}  // namespace tramontane

extern "C" __attribute__((visibility("default"))) int32_t
TramontaneMakeCudaBackend(uint32_t abi_version, tramontane::Backend** backend, char* reason,
                          int64_t reason_bytes, const tramontane::CudaBackendOptions* options) {
  try {
    return tramontane::Make(abi_version, backend, reason, reason_bytes, options);
  } catch (const std::exception& error) {
    tramontane::Say(error.what(), reason, reason_bytes);
    return tramontane::kCudaLibraryNoDevice;
  }
}

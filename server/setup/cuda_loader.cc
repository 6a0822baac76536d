#include "server/setup/cuda_loader.h"

#include <dlfcn.h>

#include <array>
#include <filesystem>
#include <memory>

namespace tramontane {
namespace {

// What the dynamic linker said, and what to do about it where that is known.
std::string WhyNotOpened() {
  const char* said = dlerror();
  std::string reason = said == nullptr ? "no reason given" : said;
  if (reason.find("libcublas") != std::string::npos) reason += "; install cuBLAS of CUDA 13";
  return reason;
}

}  // namespace

std::string CudaLibraryPath() {
  std::error_code failed;
  const std::filesystem::path binary = std::filesystem::read_symlink("/proc/self/exe", failed);
  return (binary.parent_path().parent_path() / "lib" / "libtramontane_cuda.so").string();
}

StatusOr<BackendPtr> OpenCudaBackend(const std::string& library_path, const CudaBackendOptions& options) {
  std::error_code failed;
  if (!std::filesystem::exists(library_path, failed)) {
    return Unavailable("there is no " + library_path +
                       ": this build was made without a driver for NVIDIA GPUs or without a CUDA toolkit "
                       "(ninja -C build/release cuda_library makes it)");
  }
  // Closed again where it gives no backend: cuBLAS alone takes 150 MB.
  struct Closer {
    void operator()(void* opened) const { dlclose(opened); }
  };
  std::unique_ptr<void, Closer> library(dlopen(library_path.c_str(), RTLD_NOW | RTLD_LOCAL));
  if (library == nullptr) return Unavailable("the CUDA library cannot be opened: " + WhyNotOpened());
  auto* make = reinterpret_cast<MakeCudaBackendEntry>(dlsym(library.get(), kCudaLibraryEntry));
  if (make == nullptr) return Unavailable(library_path + " is no CUDA library of Tramontane");
  Backend* backend = nullptr;
  std::array<char, 512> reason{};
  const int32_t result = make(kBackendAbiVersion, &backend, reason.data(), reason.size(), &options);
  if (result == kCudaLibraryOtherAbi) {
    return Unavailable(library_path + " is of another release: " + reason.data());
  }
  if (result != kCudaLibraryOk) return Unavailable(std::string("there is no usable GPU: ") + reason.data());
  library.release();  // the backend's code, until the process ends
  return BackendPtr(backend);
}

}  // namespace tramontane

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>

#include "server/setup/cuda_loader.h"
#include "tests/support/cuda_device.h"

namespace tramontane {
namespace {

void Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

BackendPtr Opened(const CudaBackendOptions& options) {
  auto backend = OpenCudaBackend(CudaLibraryPath(), options);
  if (backend.ok()) return *std::move(backend);
  std::fprintf(stderr, "%s\n", backend.status().ToString().c_str());
  std::exit(1);
}

}  // namespace

void* AllocateOnDevice(size_t bytes) {
  void* memory = nullptr;
  Check(cudaMalloc(&memory, bytes > 0 ? bytes : 1), "cudaMalloc");
  return memory;
}
void FreeOnDevice(void* memory) { Check(cudaFree(memory), "cudaFree"); }
void CopyToDevice(void* device, const void* host, size_t bytes) {
  Check(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice), "copy to the device");
  // It may have returned before the bytes landed, and a backend's stream waits for no other.
  Check(cudaDeviceSynchronize(), "copy to the device");
}
void CopyFromDevice(void* host, const void* device, size_t bytes) {
  Check(cudaDeviceSynchronize(), "a kernel");
  Check(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost), "copy from the device");
}

std::vector<ThreadOrder> ThreadOrders() { return {ThreadOrder::kForward}; }
void UseThreadOrder(ThreadOrder) {}

bool DeviceIsHopper() {
  int major = 0;
  Check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), "the compute capability");
  return major == 9;
}

BackendPtr MakeCudaTestBackend(MovesRun) { return Opened({}); }
BackendPtr MakeDecodingCudaTestBackend(int32_t least_rows, int64_t slice_bytes) {
  return Opened({.least_decoded_rows = least_rows, .decoded_slice_bytes = slice_bytes});
}

BackendPtr MakeLargeCudaTestBackend() { return MakeCudaTestBackend(MovesRun::kLate); }
BackendPtr MakeHopperCudaTestBackend(int32_t) { return MakeCudaTestBackend(MovesRun::kLate); }

BackendPtr MakeFp8CudaTestBackend(Fp8Library library) {
  if (!DeviceIsHopper() || library == Fp8Library::kRefuses) return nullptr;
  auto backend = OpenCudaBackend(CudaLibraryPath(), {.fp8_products = 1});
  return backend.ok() ? *std::move(backend) : nullptr;
}

bool ProductsAreRoundedBeforeTheyAreAdded() { return true; }

std::optional<int64_t> BoxesCopied() { return std::nullopt; }
std::optional<int64_t> PartsJoined() { return std::nullopt; }

}  // namespace tramontane

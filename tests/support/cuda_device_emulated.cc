#include <cstdlib>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/emulator/emulated_runtime.h"
#include "kernels/cuda/emulator/emulator.h"
#include "tests/support/cuda_device.h"

namespace tramontane {

// The exact size, so that an address sanitizer sees what lies beyond; 16-byte accesses need no more
// alignment.
void* AllocateOnDevice(size_t bytes) { return std::malloc(bytes > 0 ? bytes : 1); }
void FreeOnDevice(void* memory) { std::free(memory); }
void CopyToDevice(void* device, const void* host, size_t bytes) {
  if (bytes > 0) std::memcpy(device, host, bytes);
}
void CopyFromDevice(void* host, const void* device, size_t bytes) {
  if (bytes > 0) std::memcpy(host, device, bytes);
}

std::vector<ThreadOrder> ThreadOrders() {
  return {ThreadOrder::kForward, ThreadOrder::kReverse, ThreadOrder::kRandom};
}

void UseThreadOrder(ThreadOrder order) {
  emulator::CurrentSettings() = {.order = order == ThreadOrder::kForward   ? emulator::LaneOrder::kForward
                                          : order == ThreadOrder::kReverse ? emulator::LaneOrder::kReverse
                                                                           : emulator::LaneOrder::kRandom,
                                 .seed = 11,
                                 .blocks = order == ThreadOrder::kForward ? emulator::BlockOrder::kAscending
                                           : order == ThreadOrder::kReverse
                                               ? emulator::BlockOrder::kLaterHalfFirst
                                               : emulator::BlockOrder::kRandom};
}

bool DeviceIsHopper() { return true; }

BackendPtr MakeCudaTestBackend(MovesRun moves) {
  using Moves = emulator::EmulatedRuntime::Moves;
  auto runtime = std::make_unique<emulator::EmulatedRuntime>();
  runtime->set_moves(moves == MovesRun::kLate ? Moves::kLate : Moves::kEarly);
  return cuda::MakeCudaBackend(std::move(runtime));
}

BackendPtr MakeLargeCudaTestBackend() {
  auto runtime = std::make_unique<emulator::EmulatedRuntime>();
  runtime->set_multiprocessors(132);
  return cuda::MakeCudaBackend(std::move(runtime));
}

BackendPtr MakeHopperCudaTestBackend(int32_t multiprocessors) {
  auto runtime = std::make_unique<emulator::EmulatedRuntime>();
  runtime->set_multiprocessors(multiprocessors);
  runtime->set_hopper(true);
  return cuda::MakeCudaBackend(std::move(runtime));
}

BackendPtr MakeDecodingCudaTestBackend(int32_t least_rows, int64_t slice_bytes) {
  return cuda::MakeCudaBackend(std::make_unique<emulator::EmulatedRuntime>(),
                               {.least_decoded_rows = least_rows, .decoded_slice_bytes = slice_bytes});
}

BackendPtr MakeFp8CudaTestBackend(Fp8Library library) {
  auto runtime = std::make_unique<emulator::EmulatedRuntime>();
  if (library == Fp8Library::kRefuses) {
    runtime->RefuseMatmuls(
        [](const cuda::MatmulShape& shape, int32_t) { return shape.in == cuda::MatmulIn::kFp8; });
  }
  return cuda::MakeCudaBackend(std::move(runtime), {.fp8_products = 1});
}

bool ProductsAreRoundedBeforeTheyAreAdded() { return false; }

std::optional<int64_t> BoxesCopied() { return emulator::TotalStats().boxes; }
std::optional<int64_t> PartsJoined() { return emulator::TotalStats().joined_parts; }

}  // namespace tramontane

// Where tests of the CUDA kernels put their data and run their launches: the emulator, or a GPU. The same
// tests are linked with cuda_device_emulated.cc in every build, and with cuda_device_gpu.cc for
// bench/gpu_check. Launches go to the null stream. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/backend.h"

namespace tramontane {

// Uninitialised memory that kernels can address, of the exact size. A device that fails ends the program.
void* AllocateOnDevice(size_t bytes);
void FreeOnDevice(void* memory);
void CopyToDevice(void* device, const void* host, size_t bytes);
// After everything launched before has run.
void CopyFromDevice(void* host, const void* device, size_t bytes);

// The orders in which the emulator runs a block's threads. A GPU has its own: there kForward alone stands for
// it.
enum class ThreadOrder { kForward, kReverse, kRandom };
std::vector<ThreadOrder> ThreadOrders();
void UseThreadOrder(ThreadOrder order);

// Whether the device has what hopper_*.cu are made of: compute capability 9.0, or the emulator.
bool DeviceIsHopper();

// When the emulator moves pages (emulator::EmulatedRuntime::Moves); a real device does when it can.
enum class MovesRun { kLate, kEarly };

// The CUDA backend on that device.
BackendPtr MakeCudaTestBackend(MovesRun moves = MovesRun::kLate);
// The same on a device of 132 multiprocessors, as an H200 has them; a real one is what it is.
BackendPtr MakeLargeCudaTestBackend();
// The same on a device of compute capability 9.0, whose kernels attend over pages that they serve; a real one
// is what it is. With so many multiprocessors.
BackendPtr MakeHopperCudaTestBackend(int32_t multiprocessors = 4);

// The same, which decodes weights in blocks for so many rows of x and more, in slices of up to so many bytes
// of bf16.
BackendPtr MakeDecodingCudaTestBackend(int32_t least_rows, int64_t slice_bytes);

// The same, asked for products of fp8 by fp8, where there is such a device; else null. A library that refuses
// them has none when it is asked.
enum class Fp8Library { kHasProducts, kRefuses };
BackendPtr MakeFp8CudaTestBackend(Fp8Library library);

// Whether what multiplies many rows rounds a product to bf16 before it adds it to what stands there, and the
// sum once more: cuBLASLt on a GPU does, the emulator's products do not.
bool ProductsAreRoundedBeforeTheyAreAdded();

// Boxes that the TMA unit has copied until now, in all launches of this thread; none where nobody counts.
std::optional<int64_t> BoxesCopied();
// The same of parts of attention that were joined, since keys had been split.
std::optional<int64_t> PartsJoined();

// Device memory with a copy of host values.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<T>& values)
      : size_(values.size()), data_(static_cast<T*>(AllocateOnDevice(size_ * sizeof(T)))) {
    CopyToDevice(data_, values.data(), size_ * sizeof(T));
  }
  ~DeviceArray() { FreeOnDevice(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() const { return data_; }
  std::vector<T> Get() const {
    std::vector<T> values(size_);
    CopyFromDevice(values.data(), data_, size_ * sizeof(T));
    return values;
  }

 private:
  size_t size_;
  T* data_;
};

}  // namespace tramontane

// What a problem to be measured needs of its device: the GPU (device.h), or in tests the emulator. A call
// that fails ends the program. One thread.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/runtime.h"

namespace tramontane::gpu {

class ProblemDevice {
 public:
  virtual ~ProblemDevice() = default;

  // Without its memory_bytes.
  virtual const cuda::DeviceProperties& properties() const = 0;
  virtual void* stream() const = 0;  // a cudaStream_t
  // How many copies of `bytes` together are several times the L2 cache, so that none is found there again.
  virtual int CopiesBeyondCache(int64_t bytes) const = 0;

  // Freed with the device. Random: bf16 numbers of a standard normal distribution, scaled, drawn on the
  // device; the same each time, and there for whatever is queued on its stream.
  virtual void* Allocate(int64_t bytes) = 0;
  void* AllocateRandom(int64_t bytes, float scale = 1.0f);
  template <typename T>
  T* Upload(const std::vector<T>& values) {
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
    void* memory = Allocate(bytes);
    CopyToDevice(memory, values.data(), bytes);
    return static_cast<T*>(memory);
  }

 private:
  virtual void CopyToDevice(void* device, const void* host, int64_t bytes) = 0;
};

}  // namespace tramontane::gpu

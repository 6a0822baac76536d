// The GPU of this program: what it is, what it does at most, memory with random contents, and how long calls
// take on it. A CUDA call that fails ends the program and says which. One thread.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench/gpu/fill_normal.h"
#include "bench/gpu/problem_device.h"

namespace tramontane::gpu {

void Check(int error, const char* what);

class Device final : public ProblemDevice {
 public:
  // Null where there is none, and in `why_not` what the driver says.
  static std::unique_ptr<Device> Open(std::string* why_not);
  ~Device() override;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const cuda::DeviceProperties& properties() const override { return properties_; }
  void* stream() const override { return stream_; }
  // Name, driver, clocks and the peaks that follow from the device's attributes.
  const std::map<std::string, std::string>& facts() const { return facts_; }

  // Bytes a second, read by a kernel that does nothing else, or read plus written by a large copy, whichever
  // are more: the bound of everything that memory limits. Measured once.
  double memory_bytes_per_second() const { return memory_bytes_per_second_; }
  // Dense bf16 products with f32 sums: multiprocessors * clock * what one does a clock.
  double peak_flops() const { return peak_flops_; }

  void* Allocate(int64_t bytes) override;
  void FreeAll();
  int CopiesBeyondCache(int64_t bytes) const override;
  // LaunchFillNormal, and waits for it.
  void FillNormal(const FillNormalParams& params);

  // Median seconds of one call: `calls` of them are captured in a graph, one behind the other, which is
  // replayed. call(i) queues the i-th on the stream given.
  using Call = std::function<int(int i, cudaStream_t stream)>;
  double MedianSeconds(int calls, const Call& call);

 private:
  Device() = default;
  void ReadFacts();
  void CopyToDevice(void* device, const void* host, int64_t bytes) override;

  cudaStream_t stream_ = nullptr;
  cuda::DeviceProperties properties_;
  int64_t l2_bytes_ = 0;
  double memory_bytes_per_second_ = 0;
  double peak_flops_ = 0;
  std::map<std::string, std::string> facts_;
  std::vector<void*> memory_;
};

}  // namespace tramontane::gpu

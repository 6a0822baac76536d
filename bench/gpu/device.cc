#include "bench/gpu/device.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "bench/gpu/read_memory.h"

namespace tramontane::gpu {
namespace {

constexpr int kReplays = 25;
constexpr int kWarmUps = 3;
constexpr int64_t kYardstickBytes = int64_t{2} << 30;

int Attribute(cudaDeviceAttr attribute) {
  int value = 0;
  Check(cudaDeviceGetAttribute(&value, attribute, 0), "cudaDeviceGetAttribute");
  return value;
}

// Dense bf16 operations of one multiprocessor a clock, from the architectures' white papers; 0 where unknown.
int TensorFlopsPerClock(int capability) {
  switch (capability) {
    case 80:
      return 2048;
    case 86:
    case 89:
      return 1024;
    case 90:
    case 100:
      return capability == 90 ? 4096 : 8192;
    default:
      return 0;
  }
}

std::string Megahertz(int kilohertz) { return std::to_string(kilohertz / 1000) + " MHz"; }

}  // namespace

void Check(int error, const char* what) {
  if (error == 0) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(static_cast<cudaError_t>(error)));
  std::exit(1);
}

std::unique_ptr<Device> Device::Open(std::string* why_not) {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess || count == 0) {
    *why_not = error == cudaSuccess ? "the driver shows none" : cudaGetErrorString(error);
    return nullptr;
  }
  std::unique_ptr<Device> device(new Device);
  Check(cudaSetDevice(0), "cudaSetDevice");
  Check(cudaStreamCreateWithFlags(&device->stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  device->ReadFacts();
  return device;
}

Device::~Device() {
  FreeAll();
  cudaStreamDestroy(stream_);
}

void Device::ReadFacts() {
  cudaDeviceProp properties;
  Check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  properties_.name = properties.name;
  properties_.multiprocessors = properties.multiProcessorCount;
  properties_.shared_bytes = static_cast<int64_t>(properties.sharedMemPerMultiprocessor);
  properties_.shared_bytes_reserved = static_cast<int64_t>(properties.reservedSharedMemPerBlock);
  properties_.hopper = properties.major == 9 && properties.minor == 0;
  l2_bytes_ = properties.l2CacheSize;
  int driver = 0, runtime = 0;
  Check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  Check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  const int clock_khz = Attribute(cudaDevAttrClockRate), memory_khz = Attribute(cudaDevAttrMemoryClockRate);
  const int bus_bits = Attribute(cudaDevAttrGlobalMemoryBusWidth);
  const int capability = properties.major * 10 + properties.minor;
  peak_flops_ = double{1e3} * clock_khz * properties_.multiprocessors * TensorFlopsPerClock(capability);
  const double peak_bytes = 2.0 * 1e3 * memory_khz * bus_bits / 8;  // two transfers a clock

  // The yardstick of everything that memory bounds: what this device really does, today.
  const int64_t bytes = std::min(kYardstickBytes, static_cast<int64_t>(properties.totalGlobalMem / 8));
  void* from = AllocateRandom(bytes);
  void* to = Allocate(bytes);
  const double copy_seconds = MedianSeconds(1, [&](int, cudaStream_t stream) {
    return cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream);
  });
  ReadMemoryParams read = {.from = from, .bytes = bytes / 16 * 16};
  read.out = static_cast<uint32_t*>(Allocate(int64_t{read.blocks} * kReadThreads * 4));
  const double read_seconds =
      MedianSeconds(1, [&](int, cudaStream_t stream) { return LaunchReadMemory(read, stream); });
  const double copy_rate = 2.0 * static_cast<double>(bytes) / copy_seconds,
               read_rate = static_cast<double>(read.bytes) / read_seconds;
  memory_bytes_per_second_ = std::max(copy_rate, read_rate);
  FreeAll();

  auto number = [](double value, const char* unit) {
    char text[64];
    std::snprintf(text, sizeof(text), "%.0f %s", value, unit);
    return std::string(text);
  };
  facts_ = {{"device", properties.name},
            {"compute capability", std::to_string(properties.major) + "." + std::to_string(properties.minor)},
            {"multiprocessors", std::to_string(properties_.multiprocessors)},
            {"memory", number(static_cast<double>(properties.totalGlobalMem) / (1 << 20), "MiB")},
            {"L2 cache", number(static_cast<double>(l2_bytes_) / (1 << 20), "MiB")},
            {"CUDA of the driver", std::to_string(driver / 1000) + "." + std::to_string(driver % 1000 / 10)},
            {"CUDA runtime", std::to_string(runtime / 1000) + "." + std::to_string(runtime % 1000 / 10)},
            {"highest clock", Megahertz(clock_khz)},
            {"memory clock", Megahertz(memory_khz)},
            {"peak of memory, by its attributes", number(peak_bytes / 1e9, "GB/s")},
            {"copy within the device, measured", number(copy_rate / 1e9, "GB/s")},
            {"read of memory, measured", number(read_rate / 1e9, "GB/s")},
            {"peak of dense bf16, by its attributes", number(peak_flops_ / 1e12, "TFLOP/s")}};
}

void* Device::Allocate(int64_t bytes) {
  void* memory = nullptr;
  Check(cudaMalloc(&memory, static_cast<size_t>(std::max<int64_t>(bytes, 16))), "cudaMalloc");
  memory_.push_back(memory);
  return memory;
}

void Device::CopyToDevice(void* device, const void* host, int64_t bytes) {
  // From memory that is not pinned a copy may return before it has landed, and no other stream waits for it.
  Check(cudaMemcpyAsync(device, host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream_),
        "an upload");
  Check(cudaStreamSynchronize(stream_), "an upload");
}

void Device::FillNormal(const FillNormalParams& params) {
  Check(LaunchFillNormal(params, stream_), "a launch that fills memory");
  Check(cudaStreamSynchronize(stream_), "filling memory");
}

void Device::FreeAll() {
  for (void* memory : memory_) Check(cudaFree(memory), "cudaFree");
  memory_.clear();
}

int Device::CopiesBeyondCache(int64_t bytes) const {
  return static_cast<int>(std::clamp<int64_t>(4 * l2_bytes_ / std::max<int64_t>(bytes, 1) + 1, 1, 64));
}

double Device::MedianSeconds(int calls, const Call& call) {
  // Not captured: the first call of a kernel loads it, which a capture may not.
  for (int i = 0; i < calls; ++i) Check(call(i, stream_), "a call before it is measured");
  Check(cudaStreamSynchronize(stream_), "calls before they are measured");
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  Check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  for (int i = 0; i < calls; ++i) Check(call(i, stream_), "a measured call");
  Check(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
  Check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  cudaEvent_t begin = nullptr, end = nullptr;
  Check(cudaEventCreate(&begin), "cudaEventCreate");
  Check(cudaEventCreate(&end), "cudaEventCreate");
  std::vector<double> seconds;
  for (int replay = 0; replay < kWarmUps + kReplays; ++replay) {
    Check(cudaEventRecord(begin, stream_), "cudaEventRecord");
    Check(cudaGraphLaunch(executable, stream_), "cudaGraphLaunch");
    Check(cudaEventRecord(end, stream_), "cudaEventRecord");
    Check(cudaEventSynchronize(end), "a replay");
    float milliseconds = 0;
    Check(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
    if (replay >= kWarmUps) seconds.push_back(milliseconds * 1e-3 / calls);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  std::nth_element(seconds.begin(), seconds.begin() + kReplays / 2, seconds.end());
  return seconds[kReplays / 2];
}

}  // namespace tramontane::gpu

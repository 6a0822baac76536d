// libgpu_calls.so: the attention calls of attention_tables.cc for peers.py, which times them in turn with
// PyTorch's in one process, by the kernels that the backend goes by on this device. C functions; one thread.
#include <memory>
#include <string>

#include "bench/gpu/attention_problem.h"
#include "bench/gpu/device.h"

namespace {

using tramontane::gpu::AttentionProblem;
using tramontane::gpu::AttentionShape;
using tramontane::gpu::Device;

struct Calls {
  std::unique_ptr<Device> device;
  std::unique_ptr<AttentionProblem> problem;
};

}  // namespace

extern "C" {

// Null where there is no device.
__attribute__((visibility("default"))) void* OpenAttention(int batch, int context, int queries, int window) {
  std::string why_not;
  auto calls = std::make_unique<Calls>();
  calls->device = Device::Open(&why_not);
  if (calls->device == nullptr) return nullptr;
  calls->problem =
      std::make_unique<AttentionProblem>(*calls->device, AttentionShape{batch, context, queries, window});
  tramontane::gpu::Check(cudaStreamSynchronize(static_cast<cudaStream_t>(calls->device->stream())),
                         "the work list");
  return calls.release();
}

// How many pools there are to call over in turn.
__attribute__((visibility("default"))) int AttentionCopies(void* calls) {
  return static_cast<Calls*>(calls)->problem->copies();
}

// Queues the call over a pool on a stream of the caller's; 0, or the device's error.
__attribute__((visibility("default"))) int RunAttentionCall(void* calls, int copy, void* stream) {
  return static_cast<Calls*>(calls)->problem->Run(copy, stream);
}

__attribute__((visibility("default"))) void CloseAttention(void* calls) { delete static_cast<Calls*>(calls); }

}  // extern "C"

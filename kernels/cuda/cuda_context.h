// CudaContext: what the parts of the CUDA backend share: the device, the room that a step works in, and what
// went wrong last. Engine thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "kernels/backend.h"
#include "kernels/backends/cuda_library.h"
#include "kernels/cuda/runtime.h"
#include "kernels/cuda/workspace.h"

namespace tramontane::cuda {

class CudaContext {
 public:
  CudaContext(std::unique_ptr<Runtime> runtime, const CudaBackendOptions& options);
  ~CudaContext();

  Runtime& runtime() const { return *runtime_; }
  const DeviceProperties& device() const { return runtime_->properties(); }
  void* stream() const { return runtime_->stream(); }
  const ProductForms& forms() const { return forms_; }

  // ---- the room: made, or made anew, for steps up to these
  OpCode Reserve(const StepMaxima& maxima);
  bool reserved() const { return workspace_ != nullptr; }
  const StepMaxima& maxima() const { return maxima_; }
  const WorkspaceMap& map() const { return map_; }
  // A buffer of it.
  template <typename T = std::byte>
  T* At(int64_t WorkspaceMap::* buffer) const {
    return reinterpret_cast<T*>(workspace_ + map_.*buffer);
  }

  // ---- what went wrong
  OpCode Fail(OpCode code, std::string reason);
  // What a launch or another call of the runtime said: 0, or its error.
  OpCode Queued(int error, const char* what);
  const char* last_error() const { return last_error_.c_str(); }

  // Every op is waited for, so that a fault is told with the name of the op that it is of, but while a step
  // is recorded.
  bool waits_for_every_op() const { return waits_for_every_op_; }
  void set_recording(bool recording) { recording_ = recording; }
  bool recording() const { return recording_; }

 private:
  const std::unique_ptr<Runtime> runtime_;
  const ProductForms forms_;
  const bool waits_for_every_op_;
  bool recording_ = false;
  std::string last_error_;

  StepMaxima maxima_;
  WorkspaceMap map_;
  std::byte* workspace_ = nullptr;
};

}  // namespace tramontane::cuda

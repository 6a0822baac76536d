#include "kernels/cuda/cuda_context.h"

#include <cstdlib>
#include <utility>

namespace tramontane::cuda {

namespace {

// Whether TRAMONTANE_CUDA_SYNC=1 stands in the environment: every op is waited for, so that a fault is told
// with the name of the op that it is of, and no step is recorded.
bool WaitsForEveryOp() {
  const char* asked = std::getenv("TRAMONTANE_CUDA_SYNC");
  return asked != nullptr && asked[0] == '1';
}

}  // namespace

CudaContext::CudaContext(std::unique_ptr<Runtime> runtime, const CudaBackendOptions& options)
    : runtime_(std::move(runtime)),
      forms_(options, runtime_->properties()),
      waits_for_every_op_(WaitsForEveryOp()) {}

CudaContext::~CudaContext() { runtime_->Free(workspace_); }

OpCode CudaContext::Reserve(const StepMaxima& maxima) {
  runtime_->Free(std::exchange(workspace_, nullptr));
  maxima_ = maxima;
  map_ = MapWorkspace(maxima, runtime_->properties(), forms_);
  workspace_ = static_cast<std::byte*>(runtime_->Allocate(map_.bytes));
  if (workspace_ != nullptr) return OpCode::kOk;
  return Fail(OpCode::kOutOfMemory,
              "no device memory for a workspace of " + std::to_string(map_.bytes) + " bytes");
}

OpCode CudaContext::Fail(OpCode code, std::string reason) {
  last_error_ = std::move(reason);
  return code;
}

OpCode CudaContext::Queued(int error, const char* what) {
  const char* where = "";
  if (error == 0 && waits_for_every_op_ && !recording_) {
    error = runtime_->Synchronize();
    where = " (found by waiting for it)";
  }
  if (error == 0) return OpCode::kOk;
  return Fail(OpCode::kDeviceFault, std::string(what) + where + ": " + runtime_->ErrorText(error));
}

}  // namespace tramontane::cuda

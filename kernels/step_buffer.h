// StepBuffer: memory that steps are packed into on the host, and lie in on the device; given back with it.
// Engine thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/backend.h"
#include "kernels/core/status.h"

namespace tramontane {

class StepBuffer {
 public:
  StepBuffer() = default;
  StepBuffer(const StepBuffer&) = delete;
  ~StepBuffer() {
    if (backend_ == nullptr) return;
    backend_->FreeHost(host_);
    backend_->Free(device_);
  }

  // Once. 0 bytes: none on that side.
  Status Allocate(Backend& backend, int64_t host_bytes, int64_t device_bytes) {
    backend_ = &backend;
    if (host_bytes > 0) host_ = static_cast<std::byte*>(backend.AllocateHost(host_bytes));
    if (device_bytes > 0) device_ = static_cast<std::byte*>(backend.Allocate(device_bytes));
    if ((host_bytes == 0 || host_ != nullptr) && (device_bytes == 0 || device_ != nullptr)) return {};
    return ResourceExhausted("no memory for " + std::to_string(host_bytes + device_bytes) +
                             " bytes of step buffers");
  }

  std::byte* host() const { return host_; }
  std::byte* device() const { return device_; }

 private:
  Backend* backend_ = nullptr;
  std::byte* host_ = nullptr;
  std::byte* device_ = nullptr;
};

}  // namespace tramontane

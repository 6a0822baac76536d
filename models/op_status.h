// What a backend's OpCode means to a user. Loading and engine threads.
#pragma once

#include <string>

#include "kernels/backend.h"
#include "kernels/core/status.h"

namespace tramontane {

// `what` was being done: "packing layers.0.attention.wq.weight".
inline Status OpStatus(OpCode code, const Backend& backend, const std::string& what) {
  if (code == OpCode::kOk) return Status::Ok();
  const std::string message = what + ": " + backend.last_error();
  if (code == OpCode::kOutOfMemory) return ResourceExhausted(message);
  if (code == OpCode::kUnsupported) return Unimplemented(message);
  return Internal(message);
}

}  // namespace tramontane

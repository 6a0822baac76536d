// What a backend's OpCode means to a user. Loading and engine threads.
#pragma once

#include <string>

#include "kernels/backend.h"
#include "kernels/core/status.h"

// A step ends at the first op that fails.
#define TM_RETURN_IF_FAILED(op)                                                                 \
  do {                                                                                          \
    if (const ::tramontane::OpCode code = (op); code != ::tramontane::OpCode::kOk) return code; \
  } while (false)

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

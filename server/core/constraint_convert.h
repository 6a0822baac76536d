// A request's constraint as the engine takes it: checked, and compiled for the served model.
//
// Any thread; compiling takes milliseconds to seconds, so it belongs on a worker.
#pragma once

#include <functional>
#include <string>

#include "engine/request.h"
#include "server/core/rpc_error.h"
#include "server/core/served_model.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {

// `path` names the constraint in errors: "constraint". UNIMPLEMENTED: this server has no structured output.
// CANCELLED: `wanted` said that nobody waits any more.
RpcError ConvertConstraint(const ServedModel& model, const std::string& path, const v1::Constraint& proto,
                           const std::function<bool()>& wanted, ConstraintParams* constraint);

}  // namespace tramontane

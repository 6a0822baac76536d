// A request's constraint as the engine takes it: checked, and compiled for the served model.
//
// Any thread; compiling takes milliseconds to seconds, so it belongs on a worker.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/request/request.h"
#include "server/call/rpc_error.h"
#include "server/call/served_model.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {

// Where a request says what is in a constraint: its faults are named so.
struct ConstraintSource {
  std::string path;  // of the whole: "constraint"
  // A schema that was put together: what lies at a path in it, and which field of the request it came from.
  struct Part {
    std::string schema_path;    // ".items.properties.arguments.$ref"
    std::string path;           // "chat.tools[1].parameters"
    std::string moved_to = {};  // where its references lead now instead of to "#"; "": they were not moved
  };
  std::vector<Part> parts = {};
};

// UNIMPLEMENTED: this server has no structured output. CANCELLED: `wanted` said that nobody waits any more.
RpcError ConvertConstraint(const ServedModel& model, const ConstraintSource& source,
                           const v1::Constraint& proto, const std::function<bool()>& wanted,
                           ConstraintParams* constraint);

// UNIMPLEMENTED, of the field at `path`.
RpcError NoStructuredOutput(const std::string& path);

// A fault of the constraint of kind `path`, as a fault of the field of the request that it is in.
RpcError ConstraintFault(const ConstraintSource& source, const std::string& path, const Status& status);

}  // namespace tramontane

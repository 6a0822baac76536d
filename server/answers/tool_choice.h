// tool_choice of a chat: checked, and as a constraint on the output.
// Pure functions; any thread.
#pragma once

#include "models/tokenizer/tokenizer.h"
#include "server/answers/constraint_convert.h"
#include "server/answers/must_call.h"
#include "server/call/rpc_error.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {

// A mode that there is, with a `name` where it wants one, and the tools that it needs.
RpcError CheckToolChoice(const v1::Chat& chat);

// What an output is that calls as it must: [TOOL_CALLS], then a list of calls whose arguments are valid under
// the schemas of their tools. REQUIRES: MustCallTools(chat), and the chat was rendered, so each schema is
// JSON. `source` says which field each part of it came from: "chat.tools[1].parameters".
RpcError ToolCallConstraint(const v1::Chat& chat, const Tokenizer& tokenizer, v1::Constraint* constraint,
                            ConstraintSource* source);

}  // namespace tramontane

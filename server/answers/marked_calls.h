// tool_choice in the formats that mark each call with control tokens, v11 and later: the output is
// [TOOL_CALLS], a tool's name, [ARGS] and arguments valid under its schema; once, or again and again. Pure
// functions; any thread. Compiling takes milliseconds to seconds, so it belongs on a worker.
#pragma once

#include <functional>

#include "engine/request/request.h"
#include "models/chat/answer_syntax.h"
#include "server/call/rpc_error.h"
#include "server/call/served_model.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {

// A fault of a schema is that of its tool: "chat.tools[1].parameters". `wanted`: as of ConvertConstraint.
// REQUIRES: MustCallTools(chat), which was rendered; calls of `syntax` are kNameAndArguments.
RpcError ConstrainMarkedCalls(const ServedModel& model, const AnswerSyntax& syntax, const v1::Chat& chat,
                              const std::function<bool()>& wanted, ConstraintParams* constraint);

}  // namespace tramontane

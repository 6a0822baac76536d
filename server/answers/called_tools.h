// Which of its tools a chat's answer may call: its tool_choice, checked. Any thread.
#pragma once

#include "server/answers/must_call.h"
#include "server/call/rpc_error.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {

// A mode that there is, with a `name` or `allowed` tools where they go, and the tools that it needs.
RpcError CheckToolChoice(const v1::Chat& chat);

// Whether the answer may call anything. REQUIRES for this and the next two: CheckToolChoice(chat) is OK.
bool MayCallTools(const v1::Chat& chat);
bool MayCallTool(const v1::Chat& chat, const v1::Tool& tool);
bool MayCallOnce(const v1::Chat& chat);  // and not again

}  // namespace tramontane

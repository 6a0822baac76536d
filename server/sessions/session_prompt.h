// What of a request goes with a session, and the prompt that goes on from it. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "server/call/rpc_error.h"
#include "server/sessions/session_store.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {

// INVALID_ARGUMENT: the name, or a field that does not go with a session. REQUIRES: the request names one.
RpcError CheckSessionFields(const v1::GenerateRequest& request);

// FAILED_PRECONDITION: the session is a chat and the prompt is not, or the other way round, or it was begun
// with another cache_salt.
RpcError CheckSessionKind(const SessionState& session, const v1::GenerateRequest& request);
// FAILED_PRECONDITION: the session was begun under another policy, with which its rows saw something else.
// `policy`: with nothing left open.
RpcError CheckSessionPolicy(const SessionState& session, const ContextPolicy& policy);

// FAILED_PRECONDITION, with the first index at which `prompt` is not what the session holds. `path`: the
// prompt's field.
RpcError CheckGoesOn(const SessionState& session, const std::string& path,
                     const std::vector<int32_t>& prompt);

// The session's ids, and behind them the chat's messages that the session does not have. A format may put the
// system's messages and the tools in front of the last question; the session's own stay in front of the one
// that they came with. FAILED_PRECONDITION, with the index of the first message that is not the session's;
// and where the format renders the session's other messages differently once others follow, so that nothing
// can be put behind what there is. `end`: the id that ends an answer in the chat format; -1: none does.
using RenderIds = std::function<RpcError(const v1::Chat& chat, std::vector<int32_t>* ids)>;
RpcError GoOnWithChat(const SessionState& session, const v1::Chat& chat, int32_t end, const RenderIds& render,
                      std::vector<int32_t>* ids);

}  // namespace tramontane

// The chat of a message in the .proto as models/chat/ has it, and rendered. Pure functions; any thread. They
// take time in proportion to the chat: on a WorkerPool.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/chat/chat.h"
#include "models/chat/chat_format.h"
#include "server/call/rpc_error.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {

// A fault is that of the field within "chat".
RpcError RenderChatProto(const ChatFormat& format, const v1::Chat& proto, RenderedChat* rendered);

// The fields of `proto` that the format leaves out of the prompt, as Started.ignored has them: the first 16.
std::vector<std::string> LeftOutFields(const ChatFormat& format, const v1::Chat& proto);

// What a format surely renders of a chat: blanks around a text may go, and text beside calls.
int64_t LeastTextBytes(const v1::Chat& chat);

}  // namespace tramontane

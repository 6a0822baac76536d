// Remedy: what mends an error, by its reason. One list for both who ask: OpenAI's clients, which by
// themselves try each 409 and 429 again, and `tramontane gateway`, which may ask another server. Pure; any
// thread.
#pragma once

#include "server/call/rpc_error.h"

namespace tramontane {

enum class Remedy {
  kNone,         // the same request fails in the same way, here and now as there and later
  kTime,         // the same server, later
  kRoom,         // likewise, or at once a server that has room
  kOtherServer,  // likewise, or at once any other server
};

// Of a reason that is not listed, by its code.
Remedy RemedyOf(const RpcError& error);

}  // namespace tramontane

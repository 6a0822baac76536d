// Caller: who asks. Either door makes one for each of its requests, and every call of an InferenceClient has
// it. A plain value.
#pragma once

#include <string>

namespace tramontane {

struct Caller {
  enum class Door { kGrpc, kHttp, kProgram };

  // What limits, sessions and request ids go by: the share of the address (AddressShare). Two callers of one
  // identity are one.
  std::string identity;
  std::string address;  // of the peer, without a port; "unix"
  Door door = Door::kProgram;
};

}  // namespace tramontane

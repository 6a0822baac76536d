// Caller: who asks. Either door makes one for each of its requests, and every call of an InferenceClient has
// it. A plain value.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "server/call/trace_context.h"

namespace tramontane {

// Metadata and header with which a gateway says whose call it is: an identity.
inline constexpr char kTramontaneCallerKey[] = "x-tramontane-caller";
// And of which weight that is (Caller::weight).
inline constexpr char kCallerWeightKey[] = "x-tramontane-caller-weight";

// What a client calls a request of its: header and metadata, both ways.
inline constexpr char kRequestIdKey[] = "x-request-id";

struct ApiKey;

struct Caller {
  enum class Door { kGrpc, kHttp, kProgram };

  // What limits, sessions and request ids go by: the key's name, else the share of the address
  // (AddressShare), or what a gateway says of its own callers. Two callers of one identity are one.
  std::string identity;
  std::string address = {};  // of the peer, without a port; "unix"
  Door door = Door::kProgram;
  std::shared_ptr<const ApiKey> key = {};  // null: none are configured
  // The name of its key, here or at the gateway that says whose call it is; "": it has none.
  std::string key_name = {};
  std::string key_salt = {};    // its key's; its texts share no cached pages with those of others; "": any
  int32_t weight = 1;           // parts of the machine are shared between callers in proportion to it
  bool is_exempt = false;       // its requests take no caller's part: those of a gateway itself
  std::string request_id = {};  // what it calls this request (kRequestIdKey), as far as the door has that
  TraceContext trace = {};      // that the request is part of
};

// The salt of the cached pages of a caller's text, of the one that its request gives.
inline std::string PageSalt(const Caller& caller, const std::string& cache_salt) {
  return caller.key_salt.empty() ? cache_salt : caller.key_salt + '\n' + cache_salt;
}

}  // namespace tramontane

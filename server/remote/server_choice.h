// ServerChoice: which server a call of the gateway is made to, and which one next after a refusal. One thread
// at a time.
//
// The first one is the server that keeps the call's session; without a session it is the least busy of those
// that are up, of those with room where some have. Another one is tried by why the last one refused (Remedy):
// any that was not tried where another server mends it; where room does, one more at most, and only if it had
// room when last heard of.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "server/call/rpc_error.h"
#include "server/remote/remote_server.h"

namespace tramontane {

class ServerChoice {
 public:
  ServerChoice(RemoteServers& servers, std::string session)
      : servers_(servers), session_(std::move(session)) {}

  // Null: there is none.
  RemoteServer* First();
  RemoteServer* NextAfter(const RpcError& refusal);
  // Why First was null.
  RpcError NoneError() const;

 private:
  RemoteServer* Note(RemoteServer* server);

  RemoteServers& servers_;
  const std::string session_;  // "": none
  std::vector<RemoteServer*> tried_;
  bool has_looked_for_room_ = false;
};

}  // namespace tramontane

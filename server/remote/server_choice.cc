#include "server/remote/server_choice.h"

#include <utility>

#include "server/call/remedy.h"
#include "server/remote/backend_outcome.h"

namespace tramontane {

RemoteServer* ServerChoice::First() {
  return Note(session_.empty() ? servers_.Choose(tried_) : servers_.HomeOf(session_));
}

RemoteServer* ServerChoice::NextAfter(const RpcError& refusal) {
  const Remedy remedy = RemedyOf(refusal);
  if (remedy == Remedy::kRoom) tried_.back()->NoteFull();
  const bool may_look = remedy == Remedy::kRoom && !std::exchange(has_looked_for_room_, true);
  if (!session_.empty() || (remedy != Remedy::kOtherServer && !may_look)) return nullptr;
  RemoteServer* next = servers_.Choose(tried_);
  return next != nullptr && may_look && next->full() ? nullptr : Note(next);
}

RpcError ServerChoice::NoneError() const {
  RpcError error = NoBackendError();
  if (!session_.empty()) error.sentence = "the server that keeps the session is down";
  return error;
}

RemoteServer* ServerChoice::Note(RemoteServer* server) {
  if (server != nullptr) tried_.push_back(server);
  return server;
}

}  // namespace tramontane

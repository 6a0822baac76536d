// SessionCalls: what callers ask of their sessions besides going on with them: a list, an end, a file of one,
// and one of a file. A caller's own alone; and what was begun with a cache_salt is there for who gives it.
//
// Any thread. Saving and restoring wait for the disk and for the engine's thread; of all pages of a session
// the host has a copy meanwhile, so one thread does that for all.
#pragma once

#include <memory>
#include <string>

#include "server/call/caller.h"
#include "server/call/rpc_error.h"
#include "server/call/served_model.h"
#include "server/sessions/session_files.h"
#include "server/sessions/session_store.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {

class SessionCalls {
 public:
  // files: null: none are saved.
  SessionCalls(const SessionStoreOptions& options, std::shared_ptr<SessionFiles> files)
      : store_(options), files_(std::move(files)) {}

  // Before any call. The model outlives this.
  void Serve(const ServedModel& model);

  SessionStore& store() { return store_; }

  RpcError List(const Caller& caller, v1::ListSessionsResponse* response);
  RpcError Delete(const Caller& caller, const v1::DeleteSessionRequest& request);
  RpcError Save(const Caller& caller, const v1::SaveSessionRequest& request,
                v1::SaveSessionResponse* response);
  RpcError Restore(const Caller& caller, const v1::RestoreSessionRequest& request,
                   v1::RestoreSessionResponse* response);

 private:
  SavedSessionModel SavedModel() const;
  // Null: no pages are kept, or there is no copying them now; a session is saved and restored all the same.
  std::shared_ptr<KvTransfer> Copied(std::shared_ptr<KvTransfer> transfer) const;

  SessionStore store_;
  const std::shared_ptr<SessionFiles> files_;
  const ServedModel* model_ = nullptr;
  std::string fingerprint_;  // of the model
  std::string weights_fingerprint_;
};

}  // namespace tramontane

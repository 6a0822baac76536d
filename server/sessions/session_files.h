// SessionFiles: sessions in files of one folder, each under the hashes of its name and of whoever saved it. A
// file holds what a session holds, ids and messages, and the keys and values of its first tokens where they
// were cached (session_file.h). A caller has its own file of a name; what was saved with a key is there for
// that key's callers alone, wherever the file is; what was saved without any may be restored by everybody
// else who has no key either, and knows the salt.
//
// Any thread; one file at a time is written, and whoever reads meanwhile reads the one before. Links are
// never followed. A file is written aside, synced and renamed, so that under its name there is what was saved
// before, or all of what was saved last.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "engine/transfer/kv_transfer.h"
#include "models/kv_layout.h"
#include "server/call/caller.h"
#include "server/call/rpc_error.h"
#include "server/call/served_model.h"
#include "server/sessions/session_file.h"
#include "server/sessions/session_folder.h"
#include "server/sessions/session_store.h"

namespace tramontane {

// Of what makes ids mean the same: the architecture's numbers, the vocabulary, the chat format. Not of the
// weights.
std::string ModelFingerprint(const ServedModel& model);
// Of its weights, by a sample of them: keys and values are of no use to others.
std::string WeightsFingerprint(const ServedModel& model);

// What is saved of a session, and of which model.
struct SavedSessionModel {
  std::string name;
  std::string fingerprint;
  int32_t vocab_size = 0;
  const KvLayout* layout = nullptr;  // null: no pages are kept
  std::string weights = {};          // WeightsFingerprint
};

class SessionFiles {
 public:
  // INVALID_ARGUMENT: the folder is not there, or is none.
  static StatusOr<std::unique_ptr<SessionFiles>> Open(const std::string& folder,
                                                      const SessionDirLimits& limits = {});
  SessionFiles(const SessionFiles&) = delete;
  SessionFiles& operator=(const SessionFiles&) = delete;

  // pages: of the first tokens; null, or of no token: none. FAILED_PRECONDITION: larger than all files may
  // be. INTERNAL: what the system says, a full disk. `bytes`: the file has. REQUIRES: the name has no fault.
  RpcError Save(const Caller& caller, const std::string& name, const SessionState& state,
                const SavedSessionModel& model, const KvPages* pages, int64_t* bytes);
  // pages: as they fit model.layout; of no token where the file has none. NOT_FOUND, also where it was saved
  // with another cache_salt or key; FAILED_PRECONDITION: it is a link, no file of ours, cut, damaged, of
  // another version, or of another model, KV type or name.
  RpcError Restore(const Caller& caller, const std::string& name, const std::string& cache_salt,
                   const SavedSessionModel& model, SessionState* state, KvPages* pages) const;

 private:
  struct Wanted;

  explicit SessionFiles(std::unique_ptr<SessionFolder> folder) : folder_(std::move(folder)) {}

  RpcError Write(const std::string& file_name, const std::function<bool(int file)>& fill);
  RpcError Read(const std::string& file_name, const Wanted& wanted, SessionState* state,
                KvPages* pages) const;

  const std::unique_ptr<SessionFolder> folder_;
  std::mutex mutex_;  // one is written at a time
};

}  // namespace tramontane

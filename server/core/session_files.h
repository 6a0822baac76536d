// SessionFiles: sessions in files of one folder, each under the hash of its name. A file holds what a session
// holds: ids and messages, no pages; they are computed again.
//
// Any thread; one file at a time is written, and whoever reads meanwhile reads the one before. Links are
// never followed. A file is written aside, synced and renamed, so that under its name there is what was saved
// before, or all of what was saved last.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "server/core/rpc_error.h"
#include "server/core/served_model.h"
#include "server/core/session_store.h"

namespace tramontane {

// Of what makes ids mean the same: the architecture's numbers, the vocabulary, the chat format. Not of the
// weights.
std::string ModelFingerprint(const ServedModel& model);

// What is saved of a session, and of which model.
struct SavedSessionModel {
  std::string name;
  std::string fingerprint;
  int32_t vocab_size = 0;
};

class SessionFiles {
 public:
  // INVALID_ARGUMENT: the folder is not there, or is none.
  static StatusOr<std::unique_ptr<SessionFiles>> Open(const std::string& folder);
  ~SessionFiles();
  SessionFiles(const SessionFiles&) = delete;
  SessionFiles& operator=(const SessionFiles&) = delete;

  // INTERNAL: what the system says, a full disk. `bytes`: the file has. REQUIRES: the name has no fault.
  RpcError Save(const std::string& name, const SessionState& state, const SavedSessionModel& model,
                int64_t* bytes);
  // NOT_FOUND; FAILED_PRECONDITION: it is a link, no file of ours, cut, damaged, of a later version, or of
  // another model or name.
  RpcError Restore(const std::string& name, const SavedSessionModel& model, SessionState* state) const;

  // "9f86d081884c7d65....session"
  static std::string FileName(std::string_view name);

 private:
  explicit SessionFiles(int folder) : folder_(folder) {}

  RpcError Write(const std::string& file_name, const std::string& bytes);
  RpcError Read(const std::string& name, std::string* bytes) const;

  const int folder_;  // a descriptor
  std::mutex mutex_;  // of what is written aside
};

}  // namespace tramontane

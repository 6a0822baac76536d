// SessionFiles: sessions in files of one folder, each under the hash of its name. A file holds what a session
// holds, ids and messages, and the keys and values of its first tokens where they were cached
// (session_file.h).
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

#include "engine/kv_transfer.h"
#include "models/kv_layout.h"
#include "server/call/rpc_error.h"
#include "server/call/served_model.h"
#include "server/sessions/session_file.h"
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
  static StatusOr<std::unique_ptr<SessionFiles>> Open(const std::string& folder);
  ~SessionFiles();
  SessionFiles(const SessionFiles&) = delete;
  SessionFiles& operator=(const SessionFiles&) = delete;

  // pages: of the first tokens; null, or of no token: none. INTERNAL: what the system says, a full disk.
  // `bytes`: the file has. REQUIRES: the name has no fault.
  RpcError Save(const std::string& name, const SessionState& state, const SavedSessionModel& model,
                const KvPages* pages, int64_t* bytes);
  // pages: as they fit model.layout; of no token where the file has none. NOT_FOUND; FAILED_PRECONDITION: it
  // is a link, no file of ours, cut, damaged, of another version, or of another model, KV type or name.
  RpcError Restore(const std::string& name, const SavedSessionModel& model, SessionState* state,
                   KvPages* pages) const;

  // "9f86d081884c7d65....session"
  static std::string FileName(std::string_view name);

 private:
  explicit SessionFiles(int folder) : folder_(folder) {}

  RpcError Write(const std::string& file_name, const std::function<bool(int file)>& fill);
  static RpcError ReadPages(const std::string& name, const SavedSessionModel& model,
                            SessionFileReader& reader, KvPages* pages);

  const int folder_;  // a descriptor
  std::mutex mutex_;  // of what is written aside
};

}  // namespace tramontane

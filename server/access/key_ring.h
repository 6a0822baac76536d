// KeyRing: the API keys of one file, as they are now; the file is read again when it has changed.
//
// Any thread. Always: a request sees one state of the file; a file with a fault changes nothing. Keys are
// compared by digest, in a time that does not depend on them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/core/status.h"
#include "server/access/api_key.h"
#include "server/access/key_use.h"
#include "server/base/reloaded.h"

namespace tramontane {

class KeyRing {
 public:
  // INVALID_ARGUMENT, or NOT_FOUND: what is wrong with the file. `warnings`: a sentence each.
  static StatusOr<std::unique_ptr<KeyRing>> Open(const std::string& path, std::vector<std::string>* warnings,
                                                 KeyUse::NowNs now_ns = SteadyNowNs);

  // The key that is valid now; null: none is.
  std::shared_ptr<const ApiKey> Find(std::string_view key) const;

  // The key of this name, valid or not; null: there is none.
  std::shared_ptr<const ApiKey> Named(const std::string& name) const;

  // Looks whether the file has changed, by its content. `fault`: why it was not taken, told once of a
  // content.
  Reloaded LookAgain(std::string* fault);

  // Some key may see /debug/* from elsewhere.
  bool has_admin() const;
  size_t size() const;

 private:
  struct Table {
    std::unordered_multimap<uint64_t, std::shared_ptr<const ApiKey>> keys;  // by the digest's first bytes
    std::unordered_map<std::string, std::shared_ptr<const ApiKey>> named;
    bool has_admin = false;
  };

  KeyRing(std::string path, KeyUse::NowNs now_ns) : path_(std::move(path)), now_ns_(std::move(now_ns)) {}
  // OK: the file's content is in force. What was used of a key's bounds stays used.
  Status Take(const std::string& content);
  std::shared_ptr<const Table> table() const;

  const std::string path_;
  const KeyUse::NowNs now_ns_;
  mutable std::mutex mutex_;  // guards what follows
  std::shared_ptr<const Table> table_ = std::make_shared<const Table>();
  std::string looked_at_;  // the content, whether it was taken or not
};

}  // namespace tramontane

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
#include <vector>

#include "kernels/core/status.h"
#include "server/access/api_key.h"
#include "server/base/reloaded.h"

namespace tramontane {

class KeyRing {
 public:
  // INVALID_ARGUMENT, or NOT_FOUND: what is wrong with the file. `warnings`: a sentence each.
  static StatusOr<std::unique_ptr<KeyRing>> Open(const std::string& path, std::vector<std::string>* warnings);

  // The key that is valid now; null: none is.
  std::shared_ptr<const ApiKey> Find(std::string_view key) const;

  // Looks whether the file has changed, by its content. `fault`: why it was not taken, told once of a
  // content.
  Reloaded LookAgain(std::string* fault);

  // Some key may see /debug/* from elsewhere.
  bool has_admin() const;
  size_t size() const;

 private:
  struct Table {
    std::unordered_multimap<uint64_t, std::shared_ptr<const ApiKey>> keys;  // by the digest's first bytes
    bool has_admin = false;
  };

  explicit KeyRing(std::string path) : path_(std::move(path)) {}
  // OK: the file's content is in force.
  Status Take(const std::string& content, std::vector<std::string>* warnings);
  std::shared_ptr<const Table> table() const;

  const std::string path_;
  mutable std::mutex mutex_;  // guards what follows
  std::shared_ptr<const Table> table_;
  std::string looked_at_;  // the content, whether it was taken or not
};

}  // namespace tramontane

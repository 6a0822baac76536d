// TlsFiles: a server's certificate, its key, and the authorities of its clients' certificates, as they are
// now; the files are read again when they have changed.
//
// Any thread. Always: what is in force parses and matches; files with a fault change nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "kernels/core/status.h"
#include "server/access/tls_pair.h"
#include "server/base/file_descriptor.h"
#include "server/base/reloaded.h"

namespace tramontane {

class TlsFiles {
 public:
  // INVALID_ARGUMENT or NOT_FOUND names the setting, the file and what is wrong. RESOURCE_EXHAUSTED: the
  // system has no file for the copies.
  static StatusOr<std::unique_ptr<TlsFiles>> Open(const TlsTexts& paths);

  // Looks whether a file has changed, by its content. `fault`: why they were not taken, told once of a
  // content.
  Reloaded LookAgain(std::string* fault);

  // For connections of HTTP that begin now.
  std::shared_ptr<ssl_ctx_st> context() const;

  // Where others in this process read what is in force: memory that has a path, changed in one step, each
  // time with a modification time a second later than the last one.
  const std::string& pair_path() const { return pair_path_; }            // key and certificates
  const std::string& client_ca_path() const { return client_ca_path_; }  // "": clients need no certificate

 private:
  explicit TlsFiles(TlsTexts paths) : paths_(std::move(paths)) {}
  StatusOr<TlsTexts> ReadFiles() const;
  // OK: the content is in force.
  Status Take(const TlsTexts& texts);

  const TlsTexts paths_;
  std::unique_ptr<FileDescriptor> pair_;  // these keep their numbers
  std::unique_ptr<FileDescriptor> client_ca_;
  std::string pair_path_;
  std::string client_ca_path_;
  mutable std::mutex mutex_;  // guards what follows
  std::shared_ptr<ssl_ctx_st> context_;
  int64_t modified_s_ = 1'000'000'000;
  std::string looked_at_;  // a digest of the content, whether it was taken or not
};

}  // namespace tramontane

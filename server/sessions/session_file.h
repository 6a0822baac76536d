// One saved session as a file: what stands where in it.
//
//   "tramontane session 4\n"
//   bytes of the head, 8, little-endian
//   SHA-256 of those 8 and of the head
//   the head: a SavedSession
//   of each layer, where the head has a SavedKv: its rows (FormatOfRows), then the SHA-256 of the layer's
//   number, 8 bytes, and of them
//
// So no byte is without a checksum but for those of the first line, and the head says how long the file is.
// Version 3, which is still read, had what is in the head's identity in fields of the head, and nobody's key.
// The checksums keep accidents out, not forgers. Any thread, one at a time; descriptors are borrowed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/status.h"
#include "server/sessions/session_identity.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {

std::string Sha256Digest(std::string_view bytes);

// Whether it begins as one of any version. REQUIRES: a plain file, at its beginning.
bool IsSessionFile(int file);
// Of the whole file, what follows the head included. REQUIRES: of each layer there is such a format.
int64_t SessionFileBytes(const v1::SavedSession& head);

class SessionFileWriter {
 public:
  explicit SessionFileWriter(int file) : file_(file) {}

  // False: the system's errno says why.
  bool WriteHead(const v1::SavedSession& head);
  bool WriteLayer(int32_t layer, std::span<const std::byte> rows);

  int64_t bytes() const { return bytes_; }

 private:
  bool Write(std::string_view bytes);

  const int file_;
  int64_t bytes_ = 0;
};

class SessionFileReader {
 public:
  // Reads the head. An error's message goes on from "the file": "is cut off: it has 7 bytes".
  static StatusOr<SessionFileReader> Open(int file);

  v1::SavedSession& head() { return head_; }
  StatusOr<SessionIdentity> Identity() const;  // errors as above
  char version() const { return version_; }
  int64_t bytes() const { return bytes_; }  // of the file

  // The rows of the next layer: 0, 1, ..
  Status ReadLayer(int32_t layer, std::vector<std::byte>* rows);

 private:
  SessionFileReader(int file, int64_t bytes) : file_(file), bytes_(bytes) {}

  Status ReadHead();
  Status CheckLength() const;

  int file_ = -1;
  int64_t bytes_ = 0;
  char version_ = 0;        // '3' or '4'
  int64_t head_bytes_ = 0;  // up to the first layer
  v1::SavedSession head_;
};

}  // namespace tramontane

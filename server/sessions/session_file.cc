#include "server/sessions/session_file.h"

#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "kernels/core/check.h"
#include "kernels/kv_rows.h"
#include "server/sessions/kv_snapshot.h"

namespace tramontane {
namespace {

constexpr std::string_view kKind = "tramontane session ";
constexpr std::string_view kVersion = "4\n";
constexpr std::string_view kVersionBefore = "3\n";
constexpr size_t kNumberBytes = 8;
constexpr size_t kDigestBytes = 32;
constexpr size_t kFrontBytes = kKind.size() + kVersion.size() + kNumberBytes + kDigestBytes;
constexpr uint64_t kMaxSavedHeadBytes = uint64_t{1} << 30;  // far above what a session may hold

// SHA-256 of several pieces, one after another.
std::string DigestOf(std::initializer_list<std::string_view> pieces) {
  const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  bool done = context != nullptr && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1;
  for (const std::string_view piece : pieces) {
    done = done && EVP_DigestUpdate(context.get(), piece.data(), piece.size()) == 1;
  }
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  done = done && EVP_DigestFinal_ex(context.get(), digest, &size) == 1;
  TM_CHECK(done && size == kDigestBytes, "OpenSSL has no SHA-256");
  return {reinterpret_cast<const char*>(digest), size};
}

std::string NumberText(uint64_t number) {
  std::string bytes;
  for (size_t i = 0; i < kNumberBytes; ++i) bytes += static_cast<char>(number >> (8 * i) & 0xff);
  return bytes;
}

uint64_t NumberOf(std::string_view bytes) {
  uint64_t number = 0;
  for (size_t i = 0; i < kNumberBytes; ++i) {
    number |= uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  }
  return number;
}

std::string_view TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Fewer than asked for: the file was cut meanwhile, or cannot be read.
size_t ReadUpTo(int file, char* bytes, size_t wanted) {
  size_t done = 0;
  while (done < wanted) {
    const ssize_t got = read(file, bytes + done, wanted - done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    done += static_cast<size_t>(got);
  }
  return done;
}

// Of a whole file, whose front and head have so many.
StatusOr<int64_t> WholeBytes(int64_t head_bytes, const v1::SavedKv& kv) {
  int64_t bytes = head_bytes;
  for (int32_t layer = 0; layer < kv.layers_size(); ++layer) {
    TM_ASSIGN_OR_RETURN(const KvFormat rows, RowFormatOf(kv, layer));
    if (__builtin_add_overflow(bytes, RowBytes(rows) + static_cast<int64_t>(kDigestBytes), &bytes)) {
      return FailedPrecondition("layers are more than a file can hold");
    }
  }
  return bytes;
}

std::string HasBytes(int64_t bytes) { return "it has " + std::to_string(bytes) + " bytes"; }

}  // namespace

std::string Sha256Digest(std::string_view bytes) { return DigestOf({bytes}); }

bool IsSessionFile(int file) {
  std::array<char, kKind.size()> front;
  return std::string_view(front.data(), ReadUpTo(file, front.data(), front.size())) == kKind;
}

int64_t SessionFileBytes(const v1::SavedSession& head) {
  const StatusOr<int64_t> bytes =
      WholeBytes(static_cast<int64_t>(kFrontBytes + head.ByteSizeLong()), head.kv());
  TM_CHECK(bytes.ok(), "a session's layers: %s", bytes.status().message().c_str());
  return *bytes;
}

// ---- SessionFileWriter --------------------------------------------------------------------------

bool SessionFileWriter::Write(std::string_view bytes) {
  bytes_ += static_cast<int64_t>(bytes.size());
  while (!bytes.empty()) {
    const ssize_t written = write(file_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

bool SessionFileWriter::WriteHead(const v1::SavedSession& head) {
  const std::string content = head.SerializeAsString();
  const std::string size = NumberText(content.size());
  std::string file;
  file.append(kKind).append(kVersion).append(size).append(DigestOf({size, content})).append(content);
  return Write(file);
}

bool SessionFileWriter::WriteLayer(int32_t layer, std::span<const std::byte> rows) {
  const std::string number = NumberText(static_cast<uint64_t>(layer));
  return Write(TextOf(rows)) && Write(DigestOf({number, TextOf(rows)}));
}

// ---- SessionFileReader --------------------------------------------------------------------------

StatusOr<SessionFileReader> SessionFileReader::Open(int file) {
  struct stat about = {};
  if (fstat(file, &about) != 0) {
    return Internal(std::string("cannot be read: ") + std::strerror(errno));
  }
  if (!S_ISREG(about.st_mode)) return FailedPrecondition("is no plain file");
  SessionFileReader reader(file, about.st_size);
  TM_RETURN_IF_ERROR(reader.ReadHead());
  TM_RETURN_IF_ERROR(reader.CheckLength());
  return reader;
}

Status SessionFileReader::ReadHead() {
  std::array<char, kFrontBytes> front;
  const std::string_view bytes(front.data(), ReadUpTo(file_, front.data(), front.size()));
  if (!bytes.starts_with(kKind.substr(0, std::min(bytes.size(), kKind.size())))) {
    return FailedPrecondition("is no saved session");
  }
  if (bytes.size() < kFrontBytes) return FailedPrecondition("is cut off: " + HasBytes(bytes_));
  const std::string_view version = bytes.substr(kKind.size(), kVersion.size());
  if (version != kVersion && version != kVersionBefore) {
    return FailedPrecondition("is of another version, or damaged; this server reads versions 3 and 4");
  }
  version_ = version[0];
  const std::string_view size = bytes.substr(kKind.size() + kVersion.size(), kNumberBytes);
  const uint64_t content_bytes = NumberOf(size);
  const auto left = static_cast<uint64_t>(bytes_) - kFrontBytes;
  if (content_bytes > left || content_bytes > kMaxSavedHeadBytes) {
    return FailedPrecondition("is cut off or damaged: " + HasBytes(bytes_) + ", and its head would have " +
                              std::to_string(content_bytes));
  }
  std::string content(static_cast<size_t>(content_bytes), '\0');
  content.resize(ReadUpTo(file_, content.data(), content.size()));
  if (DigestOf({size, content}) != bytes.substr(kFrontBytes - kDigestBytes)) {
    return FailedPrecondition("is cut off or damaged: the checksum of its head is not that of its " +
                              std::to_string(content.size()) + " bytes");
  }
  if (!head_.ParseFromArray(content.data(), static_cast<int>(content.size()))) {
    return FailedPrecondition("has a checksum that is right, but is no saved session");
  }
  head_bytes_ = static_cast<int64_t>(kFrontBytes + content_bytes);
  return {};
}

StatusOr<SessionIdentity> SessionFileReader::Identity() const {
  return version_ == kVersion[0] ? ParseSessionIdentity(head_.identity()) : IdentityOfVersion3(head_);
}

// Before anything is allocated for what follows.
Status SessionFileReader::CheckLength() const {
  const StatusOr<int64_t> expected = WholeBytes(head_bytes_, head_.kv());
  if (!expected.ok()) {
    return FailedPrecondition("has a checksum that is right, but its kv." + expected.status().message());
  }
  if (*expected == bytes_) return {};
  return FailedPrecondition("is cut off or damaged: " + HasBytes(bytes_) + ", and its head says " +
                            std::to_string(*expected));
}

Status SessionFileReader::ReadLayer(int32_t layer, std::vector<std::byte>* rows) {
  TM_ASSIGN_OR_RETURN(const KvFormat format, RowFormatOf(head_.kv(), layer));
  rows->resize(static_cast<size_t>(RowBytes(format)));
  const size_t got = ReadUpTo(file_, reinterpret_cast<char*>(rows->data()), rows->size());
  std::array<char, kDigestBytes> digest;
  const size_t digest_bytes = ReadUpTo(file_, digest.data(), digest.size());
  const std::string number = NumberText(static_cast<uint64_t>(layer));
  const bool whole = got == rows->size() && digest_bytes == digest.size();
  if (whole && DigestOf({number, TextOf(*rows)}) == std::string_view(digest.data(), digest.size())) return {};
  return FailedPrecondition("is cut off or damaged: the checksum of layer " + std::to_string(layer) +
                            " is not that of its " + std::to_string(rows->size()) + " bytes");
}

}  // namespace tramontane

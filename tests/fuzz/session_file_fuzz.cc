// Fuzzes what is read of a saved session's file: a file as it is (its first byte is 'f'), the head of one
// with a checksum that is right (any other first byte), and an identity (a '{').
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "server/base/file_descriptor.h"
#include "server/sessions/session_file.h"

using namespace tramontane;

namespace {

void ReadIdentity(std::string_view json) {
  const StatusOr<SessionIdentity> identity = ParseSessionIdentity(json);
  if (!identity.ok()) return;
  const StatusOr<SessionIdentity> again = ParseSessionIdentity(ToJson(*identity));
  if (!again.ok() || *again != *identity) std::abort();
}

void ReadFile(std::string_view bytes) {
  const FileDescriptor file(memfd_create("session", MFD_CLOEXEC));
  if (write(file.get(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) std::abort();
  if (lseek(file.get(), 0, SEEK_SET) != 0) std::abort();
  StatusOr<SessionFileReader> reader = SessionFileReader::Open(file.get());
  if (!reader.ok()) return;
  static_cast<void>(reader->Identity().ok());
  std::vector<std::byte> rows;
  for (int32_t layer = 0; layer < reader->head().kv().layers_size(); ++layer) {
    if (!reader->ReadLayer(layer, &rows).ok()) return;
    if (rows.size() > bytes.size()) std::abort();
  }
}

// With the front that goes with it.
std::string FileOfHead(char version, std::string_view head) {
  std::string size;
  for (size_t i = 0; i < 8; ++i) size += static_cast<char>(head.size() >> 8 * i & 0xff);
  const std::string content(head);
  return std::string("tramontane session ") + version + '\n' + size + Sha256Digest(size + content) + content;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (text.starts_with('{')) {
    ReadIdentity(text);
  } else if (text.starts_with('f')) {
    ReadFile(text.substr(1));
  } else if (!text.empty()) {
    ReadFile(FileOfHead(text[0], text.substr(1)));
  }
  return 0;
}

#include "server/core/session_files.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "kernels/core/check.h"

namespace tramontane {
namespace {

// A file: this line, the SHA-256 of the rest, the rest: a SavedSession.
constexpr std::string_view kKind = "tramontane session ";
constexpr std::string_view kVersion = "1\n";
constexpr size_t kDigestBytes = 32;
constexpr size_t kHeadBytes = kKind.size() + kVersion.size() + kDigestBytes;
constexpr int64_t kMaxFileBytes = int64_t{1} << 30;  // far above what a session may hold
constexpr mode_t kOwnerOnly = 0600;

std::string Digest(std::string_view bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  const int done = EVP_Digest(bytes.data(), bytes.size(), digest, &size, EVP_sha256(), nullptr);
  TM_CHECK(done == 1 && size == kDigestBytes, "OpenSSL has no SHA-256");
  return {reinterpret_cast<const char*>(digest), size};
}

std::string Hex(std::string_view bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    text += kDigits[static_cast<unsigned char>(c) >> 4];
    text += kDigits[static_cast<unsigned char>(c) & 15];
  }
  return text;
}

// A descriptor that closes itself.
class OpenFile {
 public:
  explicit OpenFile(int descriptor) : descriptor_(descriptor) {}
  ~OpenFile() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int get() const { return descriptor_; }

 private:
  const int descriptor_;
};

RpcError SystemError(const std::string& what) {
  return ToRpcError(Status(StatusCode::kInternal, what + ": " + std::strerror(errno)));
}

RpcError FileError(const std::string& name, const std::string& fault) {
  RpcError error =
      ToRpcError(Status(StatusCode::kFailedPrecondition, "the file of session \"" + name + "\" " + fault));
  error.reason = "SESSION_FILE_UNUSABLE";
  return error;
}

bool WriteAll(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

bool ReadAll(int file, std::string* bytes) {
  size_t done = 0;
  while (done < bytes->size()) {
    const ssize_t got = read(file, bytes->data() + done, bytes->size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return false;
    if (got == 0) break;  // it was cut meanwhile
    done += static_cast<size_t>(got);
  }
  bytes->resize(done);
  return true;
}

// "" or what is wrong with what a file says, whose digest is right.
std::string StateFault(const v1::SavedSession& saved, const SavedSessionModel& model) {
  const auto is_id = [&](int32_t id) { return id >= 0 && id < model.vocab_size; };
  if (saved.ids().empty() || !std::all_of(saved.ids().begin(), saved.ids().end(), is_id)) {
    return "holds ids that the vocabulary does not have, or none";
  }
  const int messages = saved.chat().messages_size();
  const bool ends_with_answer =
      messages > 1 && saved.chat().messages(messages - 1).role() == v1::ROLE_ASSISTANT;
  return saved.has_chat() && !ends_with_answer ? "holds a chat that does not end with an answer" : "";
}

// Of the bytes of a whole file.
RpcError ParseFile(const std::string& name, std::string_view bytes, v1::SavedSession* saved) {
  if (!bytes.starts_with(kKind.substr(0, std::min(bytes.size(), kKind.size())))) {
    return FileError(name, "is no saved session");
  }
  if (bytes.size() < kHeadBytes) {
    return FileError(name, "is cut off: it has " + std::to_string(bytes.size()) + " bytes");
  }
  if (bytes.substr(kKind.size(), kVersion.size()) != kVersion) {
    return FileError(name, "is of another version, or damaged; this server reads version 1");
  }
  const std::string_view content = bytes.substr(kHeadBytes);
  if (Digest(content) != bytes.substr(kKind.size() + kVersion.size(), kDigestBytes)) {
    return FileError(name, "is cut off or damaged: its checksum is not that of its " +
                               std::to_string(content.size()) + " bytes");
  }
  if (!saved->ParseFromArray(content.data(), static_cast<int>(content.size()))) {
    return FileError(name, "has a checksum that is right, but is no saved session");
  }
  return {};
}

}  // namespace

std::string ModelFingerprint(const ServedModel& model) {
  const ModelConfig& config = model.config;
  const Tokenizer& tokenizer = *model.tokenizer;
  std::string said = config.architecture + "/" + model.chat_format->name() + "/" + tokenizer.family();
  for (const int64_t number :
       {int64_t{config.vocab_size}, int64_t{config.layers}, int64_t{config.hidden_size},
        int64_t{config.heads}, int64_t{config.kv_heads}, int64_t{config.head_dim}}) {
    said += "/" + std::to_string(number);
  }
  for (const auto window : config.window) said += "," + std::to_string(window);
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string_view piece = tokenizer.Piece(id);
    said += "\n" + std::to_string(piece.size()) + (tokenizer.IsControl(id) ? "c" : "t");
    said += piece;
  }
  return Digest(said);
}

StatusOr<std::unique_ptr<SessionFiles>> SessionFiles::Open(const std::string& folder) {
  const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) {
    return InvalidArgument("is \"" + folder + "\", which is no folder to save in: " + std::strerror(errno))
        .WithField("session_dir", FieldForm::kSubject);
  }
  return std::unique_ptr<SessionFiles>(new SessionFiles(descriptor));
}

SessionFiles::~SessionFiles() { close(folder_); }

std::string SessionFiles::FileName(std::string_view name) { return Hex(Digest(name)) + ".session"; }

RpcError SessionFiles::Save(const std::string& name, const SessionState& state,
                            const SavedSessionModel& model, int64_t* bytes) {
  v1::SavedSession saved;
  saved.set_name(name);
  saved.set_model(model.name);
  saved.set_fingerprint(model.fingerprint);
  saved.mutable_ids()->Add(state.ids.begin(), state.ids.end());
  if (state.is_chat) *saved.mutable_chat() = state.chat;
  saved.set_cache_salt(state.cache_salt);
  const std::string content = saved.SerializeAsString();
  std::string file;
  file.append(kKind).append(kVersion).append(Digest(content)).append(content);
  *bytes = static_cast<int64_t>(file.size());
  std::lock_guard lock(mutex_);
  return Write(FileName(name), file);
}

RpcError SessionFiles::Write(const std::string& file_name, const std::string& bytes) {
  const std::string aside = file_name + "." + std::to_string(getpid()) + ".tmp";
  unlinkat(folder_, aside.c_str(), 0);  // of a process of this id that ended while it wrote
  {
    const OpenFile file(
        openat(folder_, aside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kOwnerOnly));
    if (file.get() < 0) return SystemError("the session cannot be saved");
    if (!WriteAll(file.get(), bytes) || fsync(file.get()) != 0) {
      RpcError error = SystemError("the session cannot be saved");
      unlinkat(folder_, aside.c_str(), 0);
      return error;
    }
  }
  if (renameat(folder_, aside.c_str(), folder_, file_name.c_str()) != 0) {
    RpcError error = SystemError("the session cannot be saved");
    unlinkat(folder_, aside.c_str(), 0);
    return error;
  }
  return fsync(folder_) == 0 ? RpcError() : SystemError("the session was saved, its folder cannot be synced");
}

RpcError SessionFiles::Restore(const std::string& name, const SavedSessionModel& model,
                               SessionState* state) const {
  std::string bytes;
  if (RpcError error = Read(name, &bytes); !error.ok()) return error;
  v1::SavedSession saved;
  if (RpcError error = ParseFile(name, bytes, &saved); !error.ok()) return error;
  if (saved.name() != name) return FileError(name, "holds the session \"" + saved.name() + "\"");
  if (saved.fingerprint() != model.fingerprint) {
    return FileError(name, "is of another model: \"" + saved.model() + "\" was served, \"" + model.name +
                               "\" is now, and their dimensions, vocabularies or chat formats differ");
  }
  if (const std::string fault = StateFault(saved, model); !fault.empty()) return FileError(name, fault);
  state->ids.assign(saved.ids().begin(), saved.ids().end());
  state->is_chat = saved.has_chat();
  state->chat = std::move(*saved.mutable_chat());
  state->cache_salt = saved.cache_salt();
  return {};
}

RpcError SessionFiles::Read(const std::string& name, std::string* bytes) const {
  // Not blocked by what is no file: a pipe.
  const OpenFile file(
      openat(folder_, FileName(name).c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (file.get() < 0 && errno == ENOENT) {
    RpcError error = ToRpcError(Status(StatusCode::kNotFound, "no session \"" + name + "\" was saved"));
    error.reason = "SESSION_NOT_FOUND";
    return error;
  }
  if (file.get() < 0 && errno == ELOOP) return FileError(name, "is a link, which is not followed");
  if (file.get() < 0) return SystemError("the session cannot be restored");
  struct stat about = {};
  if (fstat(file.get(), &about) != 0) return SystemError("the session cannot be restored");
  if (!S_ISREG(about.st_mode)) return FileError(name, "is no plain file");
  if (about.st_size > kMaxFileBytes) {
    return FileError(name, "has " + std::to_string(about.st_size) + " bytes, the most is " +
                               std::to_string(kMaxFileBytes));
  }
  bytes->resize(static_cast<size_t>(about.st_size));
  return ReadAll(file.get(), bytes) ? RpcError() : SystemError("the session cannot be restored");
}

}  // namespace tramontane

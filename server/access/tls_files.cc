#include "server/access/tls_files.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "kernels/core/check.h"
#include "server/access/whole_file.h"

namespace tramontane {
namespace {

constexpr int64_t kMostPemBytes = int64_t{1} << 20;  // of a file

std::string DigestOfAll(const TlsTexts& texts) {
  const std::string all = texts.cert + '\0' + texts.key + '\0' + texts.client_ca;
  std::string digest(EVP_MAX_MD_SIZE, '\0');
  unsigned size = 0;
  const int done = EVP_Digest(all.data(), all.size(), reinterpret_cast<unsigned char*>(digest.data()), &size,
                              EVP_sha256(), nullptr);
  TM_CHECK(done == 1, "no SHA-256");
  digest.resize(size);
  return digest;
}

StatusOr<std::string> ReadPem(const char* setting, const std::string& path) {
  if (path.empty()) return std::string();
  StatusOr<std::string> text = ReadWholeFile(path, kMostPemBytes);
  if (text.ok()) return text;
  return Status(text.status().code(), std::string(setting) + ": " + path + " " + text.status().message());
}

std::string PathOf(const FileDescriptor& file) { return "/proc/self/fd/" + std::to_string(file.get()); }

// A file in memory that changes no more.
StatusOr<std::unique_ptr<FileDescriptor>> MemoryFile(const std::string& text, int64_t modified_s) {
  auto file = std::make_unique<FileDescriptor>(memfd_create("tls", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const timespec time = {.tv_sec = static_cast<time_t>(modified_s), .tv_nsec = 0};
  const timespec times[2] = {time, time};
  const bool is_made = file->get() >= 0 && fchmod(file->get(), S_IRUSR | S_IWUSR) == 0 &&
                       write(file->get(), text.data(), text.size()) == std::ssize(text) &&
                       futimens(file->get(), times) == 0 &&
                       fcntl(file->get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK) == 0;
  if (is_made) return file;
  return ResourceExhausted(std::string("tls_cert: no file in memory for a copy: ") + std::strerror(errno));
}

// Whoever opens `file`'s path from here on gets `content`.
Status Replace(std::unique_ptr<FileDescriptor> content, std::unique_ptr<FileDescriptor>* file) {
  if (*file == nullptr) {
    *file = std::move(content);
  } else if (dup3(content->get(), (*file)->get(), O_CLOEXEC) < 0) {
    return ResourceExhausted(std::string("tls_cert: the copy cannot be replaced: ") + std::strerror(errno));
  }
  return {};
}

}  // namespace

StatusOr<std::unique_ptr<TlsFiles>> TlsFiles::Open(const TlsTexts& paths) {
  std::unique_ptr<TlsFiles> files(new TlsFiles(paths));
  TM_ASSIGN_OR_RETURN(const TlsTexts texts, files->ReadFiles());
  TM_RETURN_IF_ERROR(files->Take(texts));
  files->looked_at_ = DigestOfAll(texts);
  files->pair_path_ = PathOf(*files->pair_);
  if (!paths.client_ca.empty()) files->client_ca_path_ = PathOf(*files->client_ca_);
  return files;
}

StatusOr<TlsTexts> TlsFiles::ReadFiles() const {
  TlsTexts texts;
  TM_ASSIGN_OR_RETURN(texts.cert, ReadPem("tls_cert", paths_.cert));
  TM_ASSIGN_OR_RETURN(texts.key, ReadPem("tls_key", paths_.key));
  TM_ASSIGN_OR_RETURN(texts.client_ca, ReadPem("tls_client_ca", paths_.client_ca));
  return texts;
}

Status TlsFiles::Take(const TlsTexts& texts) {
  TM_ASSIGN_OR_RETURN(CheckedTls checked, CheckTls(paths_, texts));
  const std::lock_guard lock(mutex_);
  ++modified_s_;
  TM_ASSIGN_OR_RETURN(auto pair, MemoryFile(checked.pair, modified_s_));
  TM_ASSIGN_OR_RETURN(auto client_ca, MemoryFile(checked.client_ca, modified_s_));
  TM_RETURN_IF_ERROR(Replace(std::move(pair), &pair_));
  TM_RETURN_IF_ERROR(Replace(std::move(client_ca), &client_ca_));
  context_ = std::move(checked.context);
  return {};
}

Reloaded TlsFiles::LookAgain(std::string* fault) {
  const StatusOr<TlsTexts> texts = ReadFiles();
  const std::string seen = texts.ok() ? DigestOfAll(*texts) : texts.status().message();
  {
    const std::lock_guard lock(mutex_);
    if (seen == looked_at_) return Reloaded::kUnchanged;
    looked_at_ = seen;
  }
  const Status status = texts.ok() ? Take(*texts) : texts.status();
  if (status.ok()) return Reloaded::kTaken;
  *fault = status.message();
  return Reloaded::kFailed;
}

std::shared_ptr<ssl_ctx_st> TlsFiles::context() const {
  const std::lock_guard lock(mutex_);
  return context_;
}

}  // namespace tramontane

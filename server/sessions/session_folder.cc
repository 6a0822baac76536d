#include "server/sessions/session_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <tuple>
#include <utility>

#include "server/base/file_descriptor.h"
#include "server/base/request_id.h"
#include "server/base/text.h"
#include "server/sessions/session_file.h"

namespace tramontane {
namespace {

constexpr std::string_view kEnding = ".session";
constexpr std::string_view kAsideEnding = ".tmp";
constexpr size_t kHashDigits = 64;
constexpr size_t kOwnerDigits = 32;

bool IsHex(std::string_view text) {
  return text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

bool IsName(std::string_view file_name) {
  if (!file_name.ends_with(kEnding)) return false;
  file_name.remove_suffix(kEnding.size());
  const std::string_view owner = file_name.substr(std::min(kHashDigits, file_name.size()));
  const bool is_owner = owner.size() == 1 + kOwnerDigits && owner[0] == '-' && IsHex(owner.substr(1));
  return file_name.size() >= kHashDigits && IsHex(file_name.substr(0, kHashDigits)) &&
         (owner.empty() || is_owner);
}

// As its hash stands in a name of ours; "" for nobody.
std::string OwnerOf(const std::string& file_name) {
  return file_name.substr(kHashDigits, file_name.size() - kHashDigits - kEnding.size());
}

bool IsAsideName(std::string_view file_name) {
  const size_t end = file_name.rfind(kEnding);
  return end != std::string_view::npos && file_name.ends_with(kAsideEnding) &&
         IsName(file_name.substr(0, end + kEnding.size()));
}

// Links are not followed, and nothing blocks.
FileDescriptor OpenIn(int folder, const std::string& name, int access) {
  return FileDescriptor(openat(folder, name.c_str(), access | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
}

void ForEachName(int folder, const std::function<void(const std::string& name)>& use) {
  DIR* const list = fdopendir(openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (list == nullptr) return;
  while (const dirent* entry = readdir(list)) use(entry->d_name);
  closedir(list);
}

RpcError TooLargeError(int64_t bytes, int64_t max_bytes) {
  RpcError error = ToRpcError(
      Status(StatusCode::kFailedPrecondition, "the session's file would have " + std::to_string(bytes) +
                                                  " bytes, and all together may have " +
                                                  std::to_string(max_bytes) + " (session_dir_size)"));
  error.reason = "SESSION_TOO_LARGE";
  return error;
}

}  // namespace

std::string SessionFileName(std::string_view name, std::string_view cache_salt, std::string_view owner) {
  std::string hashed(name);
  if (!cache_salt.empty()) hashed.append(1, '\0').append(cache_salt);
  std::string file_name = HexText(Sha256Digest(hashed));
  if (!owner.empty()) file_name += "-" + HexText(Sha256Digest(owner)).substr(0, kOwnerDigits);
  return file_name.append(kEnding);
}

StatusOr<std::unique_ptr<SessionFolder>> SessionFolder::Open(const std::string& path,
                                                             const SessionDirLimits& limits) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) {
    return InvalidArgument("is \"" + path + "\", which is no folder to save in: " + std::strerror(errno))
        .WithField("session_dir", FieldForm::kSubject);
  }
  std::unique_ptr<SessionFolder> folder(new SessionFolder(descriptor, limits));
  folder->RemoveStrays();
  return folder;
}

SessionFolder::~SessionFolder() { close(descriptor_); }

std::string SessionFolder::AsideName(const std::string& file_name) {
  return file_name + "." + DrawRequestId() + std::string(kAsideEnding);
}

void SessionFolder::RemoveStrays() const {
  ForEachName(descriptor_, [&](const std::string& name) {
    if (!IsAsideName(name)) return;
    const FileDescriptor file = OpenIn(descriptor_, name, O_RDWR);
    const bool is_stray = file.get() >= 0 && flock(file.get(), LOCK_EX | LOCK_NB) == 0;
    if (is_stray) unlinkat(descriptor_, name.c_str(), 0);
  });
}

std::vector<SessionFolder::File> SessionFolder::Files(std::string_view prefix) const {
  std::vector<File> files;
  ForEachName(descriptor_, [&](const std::string& name) {
    if (!name.starts_with(prefix) || !IsName(name)) return;
    const FileDescriptor file = OpenIn(descriptor_, name, O_RDONLY);
    struct stat about = {};
    if (file.get() < 0 || fstat(file.get(), &about) != 0 || !S_ISREG(about.st_mode)) return;
    if (!IsSessionFile(file.get())) return;
    files.push_back({name, about.st_size, about.st_mtim.tv_sec * 1'000'000'000 + about.st_mtim.tv_nsec});
  });
  std::sort(files.begin(), files.end(), [](const File& a, const File& b) {
    return std::pair(a.modified_ns, a.name) < std::pair(b.modified_ns, b.name);
  });
  return files;
}

// What would be there, with another file.
class SessionFolder::Room {
 public:
  Room(const SessionDirLimits& limits, const std::string& new_file, int64_t new_bytes)
      : limits_(limits), own_(OwnerOf(new_file)) {
    Count(shares_[own_], new_bytes, 1);
  }
  void Add(File file) {
    Share& share = shares_[OwnerOf(file.name)];
    Count(share, file.bytes, 1);
    share.oldest.push_back(std::move(file));
  }

  bool IsTooSmall() const {
    return HasTooManyBytes() || (limits_.max_files > 0 && all_.files > limits_.max_files);
  }
  // REQUIRES: it is too small.
  File TakeOldestOfMost() {
    const auto weight = [this, by_bytes = HasTooManyBytes()](const auto& share) {
      const int64_t amount = by_bytes ? share.second.bytes : share.second.files;
      return std::tuple(!share.second.oldest.empty(), amount, share.first == own_);
    };
    Share& most = std::max_element(shares_.begin(), shares_.end(), [&](const auto& a, const auto& b) {
                    return weight(a) < weight(b);
                  })->second;
    File oldest = std::move(most.oldest.front());
    most.oldest.pop_front();
    Count(most, -oldest.bytes, -1);
    return oldest;
  }

 private:
  struct Share {
    int64_t bytes = 0;
    int64_t files = 0;
    std::deque<File> oldest = {};  // first
  };

  bool HasTooManyBytes() const { return limits_.max_bytes > 0 && all_.bytes > limits_.max_bytes; }
  void Count(Share& share, int64_t bytes, int64_t files) {
    for (Share* of : {&share, &all_}) {
      of->bytes += bytes;
      of->files += files;
    }
  }

  const SessionDirLimits limits_;
  const std::string own_;
  std::map<std::string, Share> shares_;  // by owner
  Share all_;
};

RpcError SessionFolder::MakeRoom(const std::string& file_name, int64_t bytes) const {
  if (limits_.max_bytes > 0 && bytes > limits_.max_bytes) return TooLargeError(bytes, limits_.max_bytes);
  if (limits_.max_bytes == 0 && limits_.max_files == 0) return {};
  Room room(limits_, file_name, bytes);
  for (File& file : Files("")) {
    if (file.name != file_name) room.Add(std::move(file));  // or else it makes room itself
  }
  int64_t removed = 0;
  for (; room.IsTooSmall(); ++removed) {
    if (unlinkat(descriptor_, room.TakeOldestOfMost().name.c_str(), 0) == 0 || errno == ENOENT) continue;
    return ToRpcError(Status(StatusCode::kInternal, std::string("an old session's file cannot be removed: ") +
                                                        std::strerror(errno)));
  }
  if (removed > 0) spdlog::info("session_dir: {} of the oldest files removed for another one", removed);
  return {};
}

std::vector<std::string> SessionFolder::FilesBesideOwn(std::string_view name, std::string_view cache_salt,
                                                       OthersFiles others) const {
  std::vector<std::string> names;
  if (others == OthersFiles::kRestored) {
    std::vector<File> files = Files(SessionFileName(name, cache_salt, "").substr(0, kHashDigits));
    for (auto file = files.rbegin(); file != files.rend(); ++file) names.push_back(std::move(file->name));
  }
  // Of a version that left the salt out of the name; or of nobody's.
  names.push_back(SessionFileName(name, "", ""));
  return names;
}

}  // namespace tramontane

// SessionFolder: the files of saved sessions in one folder: which of what is there is ours, and room for
// another one. Ours is a plain file with such a name and the first line of a saved session; what else is
// there is neither counted nor removed.
//
// Any thread, one at a time; other processes may use the same folder.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/status.h"
#include "server/call/rpc_error.h"

namespace tramontane {

// 0: no bound
struct SessionDirLimits {
  int64_t max_bytes = int64_t{4} << 30;
  int64_t max_files = 4096;
};

// Files that a caller may restore besides its own and those that have no owner.
enum class OthersFiles { kRestored, kNotThere };

// "9f86d081884c7d65...-12ca17b49af22894....session"; without an owner the part from the dash on is left out.
// Two sessions of one name and owner that differ in their salt have different files.
std::string SessionFileName(std::string_view name, std::string_view cache_salt, std::string_view owner);

class SessionFolder {
 public:
  // INVALID_ARGUMENT: it is not there, or is none. Removes what was written aside by processes that are gone.
  static StatusOr<std::unique_ptr<SessionFolder>> Open(const std::string& path,
                                                       const SessionDirLimits& limits);
  ~SessionFolder();
  SessionFolder(const SessionFolder&) = delete;
  SessionFolder& operator=(const SessionFolder&) = delete;

  int descriptor() const { return descriptor_; }

  // So that a file of that name, and of so many bytes, can be there as well: the oldest go of whoever has
  // most of it, the new one counted in, and its owner's before those of others who have as much.
  // FAILED_PRECONDITION: it is too large by itself. INTERNAL: what the system says.
  RpcError MakeRoom(const std::string& file_name, int64_t bytes) const;

  // What of that name and salt may be restored by who has none of its own, in that order: what anybody saved,
  // the last one first; nobody's. They need not be there.
  std::vector<std::string> FilesBesideOwn(std::string_view name, std::string_view cache_salt,
                                          OthersFiles others) const;

  // What is written aside before it is renamed; while a process writes it, it holds a lock on it.
  static std::string AsideName(const std::string& file_name);

 private:
  struct File {
    std::string name;
    int64_t bytes = 0;
    int64_t modified_ns = 0;  // since 1970
  };

  class Room;

  SessionFolder(int descriptor, const SessionDirLimits& limits) : descriptor_(descriptor), limits_(limits) {}

  // Of those that are ours the ones whose name begins so, the oldest first.
  std::vector<File> Files(std::string_view prefix) const;
  void RemoveStrays() const;

  const int descriptor_;
  const SessionDirLimits limits_;
};

}  // namespace tramontane

// A file as bytes in memory: one that is part of the program, or one on disk, mapped.
//
// Any thread; the owner alone moves it. Views into it die with it, and survive a move. A file that is
// truncated by somebody else while it is mapped ends the process with SIGBUS, as with any mapped file:
// replace files, do not rewrite them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/core/status.h"

namespace tramontane {

class MappedFile {
 public:
  // What cannot be opened, is empty or is no regular file is an error that names it.
  static StatusOr<MappedFile> Open(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();

  const std::string& path() const { return path_; }
  std::string_view bytes() const { return {data_, bytes_}; }

  // Announces bytes [begin, end) to the kernel, so that they are read ahead in one go.
  void WillNeed(int64_t begin, int64_t end) const;
  // The pages of [begin, end) need not stay in memory. They can be read again.
  void DontNeed(int64_t begin, int64_t end) const;

 private:
  MappedFile() = default;
  Status Map();
  void Advise(int64_t begin, int64_t end, int advice) const;

  std::string path_;
  const char* data_ = nullptr;
  size_t bytes_ = 0;
  bool mapped_ = false;  // by this object
};

}  // namespace tramontane

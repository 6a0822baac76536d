// A descriptor of an open file that closes itself. One owner at a time.
#pragma once

#include <unistd.h>

namespace tramontane {

class FileDescriptor {
 public:
  // Negative: the file could not be opened.
  explicit FileDescriptor(int descriptor) : descriptor_(descriptor) {}
  ~FileDescriptor() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;

  int get() const { return descriptor_; }

 private:
  const int descriptor_;
};

}  // namespace tramontane

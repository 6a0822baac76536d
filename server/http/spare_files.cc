#include "server/http/spare_files.h"

#include <fcntl.h>
#include <unistd.h>

namespace tramontane {

SpareFiles::SpareFiles(int count) : count_(count) {
  const int file = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  files_.push_back(file);
  RefillLocked();
}

SpareFiles::~SpareFiles() {
  for (const int file : files_) close(file);
}

bool SpareFiles::GiveOne() {
  std::lock_guard lock(mutex_);
  if (files_.size() < 2) return false;
  close(files_.back());
  files_.pop_back();
  return true;
}

void SpareFiles::Take(int file) {
  std::lock_guard lock(mutex_);
  const bool is_missing = !files_.empty() && files_.size() <= static_cast<size_t>(count_);
  if (is_missing && dup3(files_.front(), file, O_CLOEXEC) == file) {
    files_.push_back(file);
  } else {
    close(file);
  }
}

void SpareFiles::Refill() {
  std::lock_guard lock(mutex_);
  RefillLocked();
}

void SpareFiles::RefillLocked() {
  while (!files_.empty() && files_.size() <= static_cast<size_t>(count_)) {
    const int file = fcntl(files_.front(), F_DUPFD_CLOEXEC, 0);
    if (file < 0) return;
    files_.push_back(file);
  }
}

}  // namespace tramontane

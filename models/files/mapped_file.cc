#include "models/files/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "models/files/built_in_files.h"

namespace tramontane {

StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  MappedFile file;
  file.path_ = path;
  if (const BuiltInFile* built_in = FindBuiltInFile(path)) {
    file.data_ = built_in->bytes.data();
    file.bytes_ = built_in->bytes.size();
  } else {
    TM_RETURN_IF_ERROR(file.Map());
  }
  return file;
}

Status MappedFile::Map() {
  const std::string& path = path_;
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return NotFound(path + ": cannot be opened: " + std::strerror(errno));
  struct stat info{};
  const bool regular = fstat(descriptor, &info) == 0 && S_ISREG(info.st_mode);
  void* mapping = MAP_FAILED;
  if (regular && info.st_size > 0) {
    mapping = mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_PRIVATE, descriptor, 0);
  }
  const int mmap_error = errno;
  close(descriptor);
  if (!regular) return InvalidArgument(path + ": not a regular file");
  if (info.st_size == 0) return DataLoss(path + ": the file is empty: is it truncated?");
  if (mapping == MAP_FAILED)
    return ResourceExhausted(path + ": cannot be mapped: " + std::strerror(mmap_error));

  data_ = static_cast<const char*>(mapping);
  bytes_ = static_cast<size_t>(info.st_size);
  mapped_ = true;
  return {};
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      mapped_(std::exchange(other.mapped_, false)) {}

MappedFile::~MappedFile() {
  if (mapped_) munmap(const_cast<char*>(data_), bytes_);
}

void MappedFile::WillNeed(int64_t begin, int64_t end) const { Advise(begin, end, MADV_WILLNEED); }
void MappedFile::DontNeed(int64_t begin, int64_t end) const { Advise(begin, end, MADV_DONTNEED); }

// Only a hint, so its failure means nothing.
void MappedFile::Advise(int64_t begin, int64_t end, int advice) const {
  const auto page = static_cast<int64_t>(sysconf(_SC_PAGESIZE));
  const int64_t first = begin / page * page;
  if (mapped_ && end > first)
    (void)madvise(const_cast<char*>(data_) + first, static_cast<size_t>(end - first), advice);
}

}  // namespace tramontane

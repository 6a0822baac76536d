#include "engine/kv/tier/kv_disk.h"

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "kernels/core/check.h"

namespace tramontane {
namespace {

constexpr mode_t kOwnerOnlyFile = 0600;

// Four sums side by side, since each of their products waits for the one before. Seeded by the place: an
// image that lies where another one should is a fault, too.
uint64_t ChecksumOf(const std::byte* bytes, int64_t count, uint64_t seed) {
  constexpr uint64_t kFactor = 0x9fb21c651e98df25ull;
  std::array<uint64_t, 4> sums = {seed + 1, seed + 2, seed + 3, seed + 4};
  const auto add = [](uint64_t sum, uint64_t word) {
    sum = (sum ^ word) * kFactor;
    return sum ^ (sum >> 29);
  };
  constexpr int64_t kBlock = sizeof(sums);
  int64_t at = 0;
  for (; at + kBlock <= count; at += kBlock) {
    std::array<uint64_t, 4> words{};
    std::memcpy(words.data(), bytes + at, kBlock);
    for (size_t i = 0; i < sums.size(); ++i) sums[i] = add(sums[i], words[i]);
  }
  for (; at < count; ++at) sums[0] = add(sums[0], static_cast<uint64_t>(bytes[at]));
  return add(add(add(sums[0], sums[1]), sums[2]), sums[3]);
}

std::string FaultOf(const char* what) {
  return std::string("its file cannot be ") + what + ": " + std::strerror(errno);
}

// A file without a name, or one whose name is taken away at once, where the file system knows no such thing.
int OpenNamelessFile(int folder) {
  const int file = openat(folder, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, kOwnerOnlyFile);
  if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return file;
  const std::string name = ".tramontane-kv-" + std::to_string(getpid());
  unlinkat(folder, name.c_str(), 0);  // of a process of this id that ended between these two calls
  const int named =
      openat(folder, name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kOwnerOnlyFile);
  if (named >= 0) unlinkat(folder, name.c_str(), 0);
  return named;
}

}  // namespace

StatusOr<std::unique_ptr<KvDisk>> KvDisk::Open(const std::string& folder, int64_t page_bytes, int64_t places,
                                               size_t most_jobs) {
  const auto refuse = [&](const char* what) {
    return InvalidArgument("is \"" + folder + "\", which is no folder to keep pages in: " + what)
        .WithField("disk_kv", FieldForm::kSubject);
  };
  const int opened = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (opened < 0) return refuse(std::strerror(errno));
  const int file = OpenNamelessFile(opened);
  const int error = errno;
  close(opened);
  if (file < 0) return refuse(std::strerror(error));
  return std::unique_ptr<KvDisk>(new KvDisk(file, page_bytes, places, most_jobs));
}

KvDisk::KvDisk(int file, int64_t page_bytes, int64_t places, size_t most_jobs)
    : file_(file),
      page_bytes_(page_bytes),
      jobs_(most_jobs),
      done_(most_jobs),
      checksums_(static_cast<size_t>(places)),
      thread_([this] { Run(); }) {}

KvDisk::~KvDisk() {
  stopping_.store(true, std::memory_order_release);
  asked_.Notify();
  thread_.join();
  close(file_);
}

void KvDisk::Ask(const Job& job) {
  Job* slot = jobs_.Back();
  TM_CHECK(slot != nullptr, "the disk is asked for more than it was made for");
  *slot = job;
  undone_.fetch_add(1, std::memory_order_relaxed);
  jobs_.Push();
  asked_.Notify();
}

void KvDisk::Run() {
  using Clock = std::chrono::steady_clock;
  while (!stopping_.load(std::memory_order_acquire)) {
    const Job* job = jobs_.Front();
    if (job == nullptr) {
      asked_.Wait(Signal::kForever);
      continue;
    }
    const Clock::time_point begin = Clock::now();
    Done* done = done_.Back();
    TM_CHECK(done != nullptr, "more is done than was asked for");
    done->job = *job;
    done->fault = Do(*job);
    done->ns = std::chrono::nanoseconds(Clock::now() - begin).count();
    jobs_.Pop();
    done_.Push();
    undone_.fetch_sub(1, std::memory_order_release);
    if (wake_) wake_();
  }
}

std::string KvDisk::Do(const Job& job) { return job.reads ? Read(job) : Write(job); }

std::string KvDisk::Write(const Job& job) {
  for (int64_t at = 0; at < page_bytes_;) {
    const ssize_t count = pwrite(file_, job.image + at, static_cast<size_t>(page_bytes_ - at),
                                 static_cast<off_t>(job.place * page_bytes_ + at));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return FaultOf("written");
    at += count;
  }
  checksums_[static_cast<size_t>(job.place)] =
      ChecksumOf(job.image, page_bytes_, static_cast<uint64_t>(job.place));
  return {};
}

std::string KvDisk::Read(const Job& job) {
  for (int64_t at = 0; at < page_bytes_;) {
    const ssize_t count = pread(file_, job.image + at, static_cast<size_t>(page_bytes_ - at),
                                static_cast<off_t>(job.place * page_bytes_ + at));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return FaultOf("read");
    if (count == 0) return "its file was cut";
    at += count;
  }
  const uint64_t checksum = ChecksumOf(job.image, page_bytes_, static_cast<uint64_t>(job.place));
  if (checksum != checksums_[static_cast<size_t>(job.place)]) return "its file was damaged";
  return {};
}

}  // namespace tramontane

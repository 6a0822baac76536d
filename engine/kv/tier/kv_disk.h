// KvDisk: images of pages in one file, written and read by a thread of its own. The disk of a KvTier.
//
// The file has no name in its folder: nobody else can open, cut or follow it, and it is gone with the
// process, however that ends. Nothing of an earlier process is ever read. What comes back is the image that
// was written, by a checksum that never leaves this process, or it is a failure.
//
// Threads: one owner, who asks and takes what is done; the file's thread. Images that a job names are the
// job's until it is done.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/threads/signal.h"
#include "engine/threads/spsc_ring.h"
#include "kernels/core/status.h"

namespace tramontane {

class KvDisk {
 public:
  struct Job {
    bool reads = false;
    int32_t place = 0;           // of `places`
    std::byte* image = nullptr;  // [page_bytes]
    int32_t tag = 0;             // whose it is
  };
  struct Done {
    Job job;
    std::string fault;  // "": none
    int64_t ns = 0;     // it took
  };

  // INVALID_ARGUMENT: the folder is none, or no file can be made in it. most_jobs: asked and not yet taken.
  static StatusOr<std::unique_ptr<KvDisk>> Open(const std::string& folder, int64_t page_bytes, int64_t places,
                                                size_t most_jobs);
  // Waits for the job that the thread is at; the others are dropped.
  ~KvDisk();
  KvDisk(const KvDisk&) = delete;
  KvDisk& operator=(const KvDisk&) = delete;

  // `wake` is called by the file's thread whenever a job is done. Before the first job.
  void set_wake(std::function<void()> wake) { wake_ = std::move(wake); }

  // REQUIRES: fewer than most_jobs are asked and not taken.
  void Ask(const Job& job);
  // The oldest that is done; null when there is none. Pop hands its place back.
  Done* Front() { return done_.Front(); }
  void Pop() { done_.Pop(); }

  int64_t places() const { return static_cast<int64_t>(checksums_.size()); }
  // For tests: that damage it, or wait until all is done that was asked.
  int descriptor() const { return file_; }
  bool is_idle() const { return undone_.load(std::memory_order_acquire) == 0; }

 private:
  KvDisk(int file, int64_t page_bytes, int64_t places, size_t most_jobs);

  void Run();
  std::string Do(const Job& job);
  std::string Write(const Job& job);
  std::string Read(const Job& job);

  const int file_;
  const int64_t page_bytes_;
  std::function<void()> wake_;
  SpscRing<Job> jobs_;
  SpscRing<Done> done_;
  Signal asked_;
  std::atomic<bool> stopping_{false};
  std::atomic<int64_t> undone_{0};   // jobs
  std::vector<uint64_t> checksums_;  // [places] of what was written there; the thread's
  std::thread thread_;
};

}  // namespace tramontane

// A KvTier of a few pages for tests.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "engine/kv/tier/kv_disk.h"
#include "engine/kv/tier/kv_tier.h"
#include "kernels/backend.h"
#include "kernels/core/check.h"

namespace tramontane {

struct TestTier {
  int64_t host_pages = 0;  // 0: no tier
  int64_t disk_pages = 0;  // 0: no disk
  std::string folder = {};
  std::function<void(const std::string&)> warn = nullptr;
  double copy_ns = 0;       // of a page; 0: not known
  KvDisk** disk = nullptr;  // out, where it is not null: for a test that damages it
};

// A disk that does not answer any more: its thread comes to a stop where it would wake the engine. The disk
// ends before this does, or after Release.
class StuckDisk {
 public:
  ~StuckDisk() { Release(); }
  std::function<void()> wake() {
    return [this] {
      if (!sticks_.load()) return;
      is_stuck_.store(true);
      sticks_.wait(true);
    };
  }
  void Stick() { sticks_.store(true); }
  bool is_stuck() const { return is_stuck_.load(); }
  void Release() {
    sticks_.store(false);
    sticks_.notify_all();
  }

 private:
  std::atomic<bool> sticks_{false};
  std::atomic<bool> is_stuck_{false};
};

// `backend`: whose memory it has, and which is done with it before it goes; null: the heap's.
inline std::unique_ptr<KvTier> MakeTestTier(const TestTier& sizes, int64_t page_bytes,
                                            Backend* backend = nullptr) {
  if (sizes.host_pages == 0) return nullptr;
  KvTier::Options options;
  options.page_bytes = page_bytes;
  options.host_pages = sizes.host_pages;
  const int64_t bytes = sizes.host_pages * page_bytes;
  if (backend == nullptr) {
    options.host = {new std::byte[static_cast<size_t>(bytes)], [](std::byte* memory) { delete[] memory; }};
  } else {
    options.host = {static_cast<std::byte*>(backend->AllocateHost(bytes)), [backend](std::byte* memory) {
                      backend->AwaitMoves();
                      backend->WaitFence(backend->RecordFence());
                      backend->FreeHost(memory);
                    }};
  }
  TM_CHECK(options.host != nullptr, "no memory for %lld bytes of images", static_cast<long long>(bytes));
  options.warn = sizes.warn;
  options.copy_ns = sizes.copy_ns;
  if (sizes.disk_pages > 0) {
    auto disk = KvDisk::Open(sizes.folder, page_bytes, sizes.disk_pages, KvTier::MostJobs(sizes.host_pages));
    TM_CHECK(disk.ok(), "%s", disk.status().ToString().c_str());
    if (sizes.disk != nullptr) *sizes.disk = disk->get();
    options.disk = *std::move(disk);
  }
  return std::make_unique<KvTier>(std::move(options));
}

}  // namespace tramontane

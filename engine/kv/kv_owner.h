// KvOwner: the identity of a session in the KV store; compared by address. While a shared_ptr to it lives,
// its next request may reuse the pages that its last one left (KvStore::LeaveIdle). Any thread.
#pragma once

#include <atomic>
#include <cstdint>

namespace tramontane {

struct KvOwner {
  KvOwner() = default;
  ~KvOwner() { gone.fetch_add(1, std::memory_order_release); }
  KvOwner(const KvOwner&) = delete;
  KvOwner& operator=(const KvOwner&) = delete;

  // Owners that nobody shares any more, in this process: stores look for theirs after it has changed.
  static inline std::atomic<uint64_t> gone{0};
};

}  // namespace tramontane

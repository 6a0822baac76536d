// SpscRing: a bounded queue from one thread to one other, lock-free. Slots are filled and read in place and
// used again, so that a T which owns memory (a vector) keeps it. Producer: Back, Push. Consumer: Front, Pop.
#pragma once

#include <atomic>
#include <cstddef>
#include <vector>

namespace tramontane {

template <typename T>
class SpscRing {
 public:
  explicit SpscRing(size_t capacity) : slots_(capacity) {}

  // ---- producer ---------------------------------------------------------------------------------
  // The slot that the next Push will hand over, as the consumer left it; null when the ring is full.
  T* Back() {
    const size_t pushed = pushed_.load(std::memory_order_relaxed);
    if (pushed - popped_.load(std::memory_order_acquire) == slots_.size()) return nullptr;
    return &slots_[pushed % slots_.size()];
  }
  // REQUIRES: Back() is not null.
  void Push() { pushed_.store(pushed_.load(std::memory_order_relaxed) + 1, std::memory_order_release); }

  // ---- consumer ---------------------------------------------------------------------------------
  // The oldest slot handed over; null when there is none.
  T* Front() {
    const size_t popped = popped_.load(std::memory_order_relaxed);
    if (pushed_.load(std::memory_order_acquire) == popped) return nullptr;
    return &slots_[popped % slots_.size()];
  }
  // REQUIRES: Front() is not null.
  void Pop() { popped_.store(popped_.load(std::memory_order_relaxed) + 1, std::memory_order_release); }

 private:
  std::vector<T> slots_;
  alignas(64) std::atomic<size_t> pushed_{0};
  alignas(64) std::atomic<size_t> popped_{0};
};

}  // namespace tramontane

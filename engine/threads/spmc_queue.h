// SpmcQueue: a bounded queue from one thread to several, without a mutex. TryPush: one thread; TryPop: any.
// Always: each value is popped once, oldest first.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace tramontane {

template <typename T>
class SpmcQueue {
 public:
  explicit SpmcQueue(size_t capacity) : slots_(capacity) {
    for (size_t i = 0; i < capacity; ++i) slots_[i].turn.store(i, std::memory_order_relaxed);
  }

  // False when it is full; then `value` is as it was.
  bool TryPush(T&& value) {
    Slot& slot = slots_[pushed_ % slots_.size()];
    if (slot.turn.load(std::memory_order_acquire) != pushed_) return false;
    slot.value = std::move(value);
    slot.turn.store(++pushed_, std::memory_order_release);
    return true;
  }

  // False when it is empty.
  bool TryPop(T* value) {
    uint64_t popped = popped_.load(std::memory_order_relaxed);
    while (true) {
      Slot& slot = slots_[popped % slots_.size()];
      const uint64_t turn = slot.turn.load(std::memory_order_acquire);
      if (turn == popped) return false;
      const bool is_filled = turn == popped + 1;
      if (is_filled && popped_.compare_exchange_weak(popped, popped + 1, std::memory_order_relaxed)) {
        *value = std::exchange(slot.value, T());
        slot.turn.store(popped + slots_.size(), std::memory_order_release);
        return true;
      }
      if (!is_filled) popped = popped_.load(std::memory_order_relaxed);
    }
  }

 private:
  // turn: n where push number n may fill it, n + 1 once it has, n + capacity once that is popped.
  struct Slot {
    std::atomic<uint64_t> turn{0};
    T value{};
  };
  std::vector<Slot> slots_;
  uint64_t pushed_ = 0;
  alignas(64) std::atomic<uint64_t> popped_{0};
};

}  // namespace tramontane

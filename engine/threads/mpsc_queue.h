// MpscQueue: values from any thread to the one that pops them, without a mutex and without a bound: who
// pushes counts. Always: each value is popped once, and what one thread pushed in its order. A push and a pop
// cost the same however many there are.
#pragma once

#include <atomic>
#include <optional>
#include <utility>

namespace tramontane {

template <typename T>
class MpscQueue {
 public:
  MpscQueue() = default;
  ~MpscQueue() {
    while (Pop()) {
    }
    delete popped_;
  }
  MpscQueue(const MpscQueue&) = delete;
  MpscQueue& operator=(const MpscQueue&) = delete;

  // Any thread.
  void Push(T value) {
    Node* const node = new Node{std::move(value)};
    newest_.exchange(node, std::memory_order_acq_rel)->behind.store(node, std::memory_order_release);
  }

  // ---- one thread ----
  // One that is being pushed, and those behind it, may be missed until its push has returned.
  bool empty() const { return popped_->behind.load(std::memory_order_acquire) == nullptr; }
  // The oldest; nothing where it is empty.
  std::optional<T> Pop() {
    Node* const oldest = popped_->behind.load(std::memory_order_acquire);
    if (oldest == nullptr) return std::nullopt;
    delete std::exchange(popped_, oldest);
    return std::exchange(oldest->value, T());
  }

 private:
  struct Node {
    T value = {};
    std::atomic<Node*> behind{nullptr};  // pushed just after this one
  };

  Node* popped_ = new Node;  // the last one that was popped, whose value is gone
  std::atomic<Node*> newest_{popped_};
};

}  // namespace tramontane

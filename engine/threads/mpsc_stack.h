// MpscStack: values from any thread to the one that takes all of them away, without a mutex and without a
// bound: who pushes counts. Always: each value is taken once, and what one thread pushed in its order.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

namespace tramontane {

template <typename T>
class MpscStack {
 public:
  MpscStack() = default;
  ~MpscStack() { TakeAll(); }
  MpscStack(const MpscStack&) = delete;
  MpscStack& operator=(const MpscStack&) = delete;

  // Any thread.
  void Push(T value) {
    Node* const node = new Node{std::move(value), top_.load(std::memory_order_relaxed)};
    while (!top_.compare_exchange_weak(node->below, node, std::memory_order_release,
                                       std::memory_order_relaxed)) {
    }
  }

  // Any thread. A value that is being pushed may be missed.
  bool empty() const { return top_.load(std::memory_order_relaxed) == nullptr; }

  // One thread. Everything pushed since the last call, oldest first; one load where that is nothing.
  std::vector<T> TakeAll() {
    std::vector<T> values;
    if (empty()) return values;
    Node* node = top_.exchange(nullptr, std::memory_order_acquire);
    while (node != nullptr) {
      const std::unique_ptr<Node> owned(node);
      node = owned->below;
      values.push_back(std::move(owned->value));
    }
    std::reverse(values.begin(), values.end());
    return values;
  }

 private:
  struct Node {
    T value;
    Node* below = nullptr;  // pushed just before this one
  };

  std::atomic<Node*> top_{nullptr};  // the newest
};

}  // namespace tramontane

#include "engine/inbox.h"

#include <algorithm>
#include <utility>

namespace tramontane {

Inbox::~Inbox() { TakeAll(); }

bool Inbox::Push(std::shared_ptr<LiveRequest> request) {
  if (!ReservePlace()) return false;
  Node* node = new Node{std::move(request), top_.load(std::memory_order_relaxed)};
  while (
      !top_.compare_exchange_weak(node->below, node, std::memory_order_release, std::memory_order_relaxed)) {
  }
  return true;
}

std::vector<std::shared_ptr<LiveRequest>> Inbox::TakeAll() {
  std::vector<std::shared_ptr<LiveRequest>> requests;
  if (top_.load(std::memory_order_relaxed) == nullptr) return requests;  // the usual case costs one load
  Node* node = top_.exchange(nullptr, std::memory_order_acquire);
  while (node != nullptr) {
    const std::unique_ptr<Node> owned(node);
    node = owned->below;
    requests.push_back(std::move(owned->request));
  }
  std::reverse(requests.begin(), requests.end());
  return requests;
}

bool Inbox::ReservePlace() {
  int32_t queued = queued_.load(std::memory_order_relaxed);
  do {
    if (queued >= capacity_) return false;
  } while (!queued_.compare_exchange_weak(queued, queued + 1, std::memory_order_relaxed));
  return true;
}

}  // namespace tramontane

#include "engine/life/inbox.h"

#include <utility>

namespace tramontane {
namespace {

// What grows with the request's size while it waits; the choices share one prompt.
int64_t QueuedBytesOf(const LiveRequest& live) {
  const Request& request = live.request;
  const auto copies = static_cast<size_t>(request.choices) + 1;
  size_t bytes = request.prompt.size() * sizeof(int32_t);
  for (const std::vector<int32_t>& candidate : request.candidates)
    bytes += sizeof(candidate) + candidate.size() * sizeof(int32_t);
  for (const std::string& stop : request.stopping.stop) bytes += stop.size() * copies;
  bytes += request.stopping.stop_token_ids.size() * sizeof(int32_t);
  bytes += static_cast<size_t>(live.history_after_prompt.bytes()) * copies;
  bytes += static_cast<size_t>(live.path.bytes());
  return static_cast<int64_t>(bytes);
}

}  // namespace

bool Inbox::Push(std::shared_ptr<LiveRequest> request) {
  const int64_t bytes = QueuedBytesOf(*request);
  if (!ReserveBytes(bytes)) return false;
  if (!ReservePlace()) {
    queued_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
    return false;
  }
  pushed_.Push(std::move(request));
  return true;
}

void Inbox::LeaveQueue(const LiveRequest& request) {
  queued_bytes_.fetch_sub(QueuedBytesOf(request), std::memory_order_relaxed);
  queued_.fetch_sub(1, std::memory_order_relaxed);
}

bool Inbox::ReserveBytes(int64_t bytes) {
  int64_t held = queued_bytes_.load(std::memory_order_relaxed);
  do {
    if (held > 0 && held + bytes > max_bytes_) return false;
  } while (!queued_bytes_.compare_exchange_weak(held, held + bytes, std::memory_order_relaxed));
  return true;
}

bool Inbox::ReservePlace() {
  int32_t queued = queued_.load(std::memory_order_relaxed);
  do {
    if (queued >= max_requests_) return false;
  } while (!queued_.compare_exchange_weak(queued, queued + 1, std::memory_order_relaxed));
  return true;
}

}  // namespace tramontane

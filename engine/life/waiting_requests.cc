#include "engine/life/waiting_requests.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "kernels/core/check.h"

namespace tramontane {

// Beside so many more deadlines than twice the requests, sweeping costs less than what made them.
constexpr size_t kFewDeadlines = 64;

void WaitingRequests::Add(std::shared_ptr<LiveRequest> request, int64_t end_ns) {
  const int64_t arrival = ArrivalOf(*request);
  const TokenStream* const stream = request->output.stream.get();
  if (end_ns != kNever) {
    deadlines_.push_back({.end_ns = end_ns, .arrival = arrival});
    std::push_heap(deadlines_.begin(), deadlines_.end(), std::greater<>());
  }
  arrivals_[stream] = arrival;
  requests_[arrival] = std::move(request);
  if (stream->cancelled()) cancelled_.Push(stream);  // it said so before it was here to be known
}

std::shared_ptr<LiveRequest> WaitingRequests::Take(const LiveRequest& request) {
  const auto at = requests_.find(ArrivalOf(request));
  TM_CHECK(at != requests_.end(), "request %s does not wait", request.request.id.c_str());
  return Remove(at);
}

std::shared_ptr<LiveRequest> WaitingRequests::Remove(Requests::iterator at) {
  std::shared_ptr<LiveRequest> request = std::move(at->second);
  requests_.erase(at);
  arrivals_.erase(request->output.stream.get());
  DropOldDeadlines();
  return request;
}

int64_t WaitingRequests::PopDeadline() {
  std::pop_heap(deadlines_.begin(), deadlines_.end(), std::greater<>());
  const int64_t arrival = deadlines_.back().arrival;
  deadlines_.pop_back();
  return arrival;
}

void WaitingRequests::DropOldDeadlines() {
  if (deadlines_.size() <= 2 * requests_.size() + kFewDeadlines) return;
  std::erase_if(deadlines_, [this](const Deadline& d) { return requests_.count(d.arrival) == 0; });
  std::make_heap(deadlines_.begin(), deadlines_.end(), std::greater<>());
}

}  // namespace tramontane

#include "engine/life/waiting_requests.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "kernels/core/check.h"

namespace tramontane {
namespace {

constexpr int64_t kNever = INT64_MAX;

// When its deadline or its limit of time ends the request, whichever is first; kNever where it has
// neither.
int64_t OutOfTimeNs(const Request& request) {
  const int64_t deadline_ns = request.deadline_ns > 0 ? request.deadline_ns : kNever;
  const int64_t limit_ns = request.stopping.time_limit_ns;
  return std::min(deadline_ns, limit_ns > 0 && request.received_ns <= kNever - limit_ns
                                   ? request.received_ns + limit_ns
                                   : kNever);
}

}  // namespace

// Beside so many more deadlines than twice the requests, sweeping costs less than what made them.
constexpr size_t kFewDeadlines = 64;

void WaitingRequests::Add(std::shared_ptr<LiveRequest> request) {
  const int64_t end_ns = OutOfTimeNs(request->request);
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

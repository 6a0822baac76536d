// WaitingRequests: what has been in no plan yet. However many they are, a step visits those only that a
// reader has cancelled since the last one, and those whose time is up.
//
// Engine thread; streams put themselves into CancelledStreams from any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/life/live_request.h"
#include "engine/output/token_stream.h"
#include "engine/request/step_bounds.h"
#include "kernels/core/check.h"

namespace tramontane {

class WaitingRequests {
 public:
  // `cancelled`: where the streams of all requests say so, of those that wait and of others. Borrowed.
  explicit WaitingRequests(CancelledStreams& cancelled) : cancelled_(cancelled) {}

  void Add(std::shared_ptr<LiveRequest> request) {
    const int64_t arrival = ArrivalOf(*request);
    const TokenStream* const stream = request->output.stream.get();
    if (const int64_t end_ns = request->request.OutOfTimeNs(); end_ns != INT64_MAX) {
      deadlines_.push_back({.end_ns = end_ns, .arrival = arrival});
      std::push_heap(deadlines_.begin(), deadlines_.end(), std::greater<>());
    }
    arrivals_[stream] = arrival;
    requests_[arrival] = std::move(request);
    if (stream->cancelled()) cancelled_.Push(stream);  // it said so before it was here to be known
  }
  // REQUIRES: it is here.
  std::shared_ptr<LiveRequest> Take(const LiveRequest& request) {
    const auto at = requests_.find(ArrivalOf(request));
    TM_CHECK(at != requests_.end(), "request %s does not wait", request.request.id.c_str());
    return Remove(at);
  }

  // Calls end(request) for those that were cancelled or are out of time, and lets go of them; as many as a
  // step may end or look up (step_bounds.h). Cancelled before it was added counts, too.
  template <typename End>
  void EndDue(int64_t now_ns, const End& end);
  // There are more than EndDue has ended.
  bool has_due() const { return has_due_; }
  // The same for all, oldest first.
  template <typename End>
  void EndAll(const End& end) {
    while (!requests_.empty()) end(*Remove(requests_.begin()));
  }

  size_t size() const { return requests_.size(); }
  int64_t visits() const { return visits_; }  // requests that EndDue looked at, since the beginning

 private:
  using Requests = std::map<int64_t, std::shared_ptr<LiveRequest>>;  // by arrival
  struct Deadline {
    int64_t end_ns = 0;
    int64_t arrival = 0;
    bool operator>(const Deadline& other) const { return end_ns > other.end_ns; }
  };

  static int64_t ArrivalOf(const LiveRequest& request) { return request.choices[0].arrival(); }
  template <typename End>
  void EndOne(Requests::iterator at, const End& end) {
    ++visits_;
    end(*Remove(at));
  }
  std::shared_ptr<LiveRequest> Remove(Requests::iterator at) {
    std::shared_ptr<LiveRequest> request = std::move(at->second);
    requests_.erase(at);
    arrivals_.erase(request->output.stream.get());
    DropOldDeadlines();
    return request;
  }
  void DropOldDeadlines() {
    constexpr size_t kFewDeadlines = 64;  // beside so many sweeping costs less than what made them
    if (deadlines_.size() <= 2 * requests_.size() + kFewDeadlines) return;
    std::erase_if(deadlines_, [this](const Deadline& d) { return requests_.count(d.arrival) == 0; });
    std::make_heap(deadlines_.begin(), deadlines_.end(), std::greater<>());
  }

  CancelledStreams& cancelled_;
  Requests requests_;
  std::unordered_map<const TokenStream*, int64_t> arrivals_;  // of each of them
  // A heap, the earliest in front; at most about twice as many as requests, since those that have left stay
  // in it until their time or until it is swept.
  std::vector<Deadline> deadlines_;
  bool has_due_ = false;
  int64_t visits_ = 0;
};

template <typename End>
void WaitingRequests::EndDue(int64_t now_ns, const End& end) {
  // A stream is a name here and no more: one that is not known has left, or is yet to come (Add), and another
  // one may have got its name since.
  const int64_t most_visits = visits_ + kWaitingEnded.most;
  int64_t names = 0;
  for (; names < kCancelsLookedUp.most && visits_ < most_visits; ++names) {
    const auto stream = cancelled_.Pop();
    if (!stream) break;
    const auto known = arrivals_.find(*stream);
    if (known == arrivals_.end() || !known->first->cancelled()) continue;
    EndOne(requests_.find(known->second), end);
  }
  while (!deadlines_.empty() && deadlines_.front().end_ns <= now_ns && visits_ < most_visits) {
    std::pop_heap(deadlines_.begin(), deadlines_.end(), std::greater<>());
    const auto at = requests_.find(deadlines_.back().arrival);
    deadlines_.pop_back();
    if (at != requests_.end()) EndOne(at, end);
  }
  has_due_ = visits_ == most_visits || names == kCancelsLookedUp.most;
}

}  // namespace tramontane

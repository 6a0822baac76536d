// RequestTrace: which requests ended lately, and where their time went, for whoever wants to look, while
// somebody does. Any thread. Bounded: the last kRequests are kept.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "server/watch/ttft_stages.h"

namespace tramontane {

struct RequestRecord {
  std::string id;
  TtftStages stages;   // on the engine's clock; those that have ended
  int64_t end_ns = 0;  // of the request
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;  // of all choices
  int32_t chunks = 0;
  int32_t preemptions = 0;
  std::string reasons;  // by choice, as they ended
};

class RequestTrace {
 public:
  static constexpr size_t kRequests = 4096;

  bool on() const { return readers_.load(std::memory_order_relaxed) > 0; }
  void Add(RequestRecord record) {
    const std::lock_guard lock(mutex_);
    records_.push_back(std::move(record));
    ++added_;
    if (records_.size() > kRequests) records_.pop_front();
  }

  // One reader more, and one less. Requests are added while there is any.
  void Start() { readers_.fetch_add(1, std::memory_order_relaxed); }
  void Stop() { readers_.fetch_sub(1, std::memory_order_relaxed); }
  int64_t added() const {
    const std::lock_guard lock(mutex_);
    return added_;
  }
  // Those from number `*next` on that are still kept; `*next` is then the number of the one to come. Returns
  // how many are lost.
  int64_t Read(int64_t* next, std::vector<RequestRecord>* records) const {
    const std::lock_guard lock(mutex_);
    const int64_t first = added_ - static_cast<int64_t>(records_.size());
    const int64_t lost = first > *next ? first - *next : 0;
    records->assign(records_.begin() + static_cast<std::ptrdiff_t>(*next + lost - first), records_.end());
    *next = added_;
    return lost;
  }

 private:
  std::atomic<int32_t> readers_{0};
  mutable std::mutex mutex_;  // guards what follows
  std::deque<RequestRecord> records_;
  int64_t added_ = 0;
};

}  // namespace tramontane

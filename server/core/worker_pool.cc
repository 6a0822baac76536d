#include "server/core/worker_pool.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "kernels/core/check.h"

namespace tramontane {

WorkerPool::WorkerPool(const WorkerPoolOptions& options)
    : options_(options), max_running_long_(std::max(1, options.threads - 1)) {
  TM_CHECK(options.threads >= 1, "a pool of %d threads", options.threads);
  for (int32_t i = 0; i < options.threads; ++i) threads_.emplace_back([this] { Loop(); });
}

WorkerPool::~WorkerPool() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_ready_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

// ---- what comes ---------------------------------------------------------------------------------

bool WorkerPool::TrySubmit(int64_t input_bytes, const std::string& caller, Work work, Work give_way) {
  std::vector<Item> given_way;
  {
    std::lock_guard lock(mutex_);
    Member& own = *members_.try_emplace(caller).first;
    LeaveTurns(own);
    Share& share = own.second;
    const bool has_room = MakeRoom(input_bytes, share, &given_way);
    if (has_room) {
      if (share.waiting_items == 0 && share.running == 0) share.since = ++moment_;
      const Length length = input_bytes >= options_.long_bytes ? kLong : kShort;
      share.waiting[length].push_back({input_bytes, ++moment_, std::move(work), std::move(give_way)});
      CountWaiting(share, 1, input_bytes);
      pending_bytes_ += input_bytes;
    }
    JoinTurns(own);
    if (!has_room) return false;
  }
  work_ready_.notify_one();
  for (const Item& item : given_way) item.give_way();
  return true;
}

// Where another's bytes give way there is room for one more piece, too: nothing gives way in vain.
bool WorkerPool::MakeRoom(int64_t input_bytes, const Share& share, std::vector<Item>* given_way) {
  if (IsBeyondHalf(input_bytes, share)) return false;
  const auto make = [&](int64_t Share::* amount, int64_t own, const auto& is_full) {
    if (!is_full()) return true;
    Member* const most = MemberWithMost(amount);
    if (most == nullptr || most->second.*amount <= own) return false;
    while (is_full()) given_way->push_back(TakeNewest(*most));
    return true;
  };
  return make(&Share::waiting_bytes, share.waiting_bytes + input_bytes,
              [&] { return pending_bytes_ + input_bytes > options_.max_queued_bytes; }) &&
         make(&Share::waiting_items, share.waiting_items + 1,
              [&] { return waiting_ >= options_.max_queued; });
}

bool WorkerPool::IsBeyondHalf(int64_t input_bytes, const Share& share) const {
  const bool others_wait = waiting_ > share.waiting_items;
  return others_wait && (share.waiting_items + 1 > std::max(1, options_.max_queued / 2) ||
                         share.waiting_bytes + input_bytes > options_.max_queued_bytes / 2);
}

WorkerPool::Member* WorkerPool::MemberWithMost(int64_t Share::* amount) {
  const auto most = std::max_element(members_.begin(), members_.end(), [&](const Member& a, const Member& b) {
    return a.second.*amount < b.second.*amount;
  });
  return most == members_.end() ? nullptr : &*most;
}

WorkerPool::Item WorkerPool::TakeNewest(Member& member) {
  LeaveTurns(member);
  Share& share = member.second;
  const auto order = [&](Length length) {
    return share.waiting[length].empty() ? 0 : share.waiting[length].back().order;
  };
  std::deque<Item>& queue = share.waiting[order(kLong) > order(kShort) ? kLong : kShort];
  Item item = std::move(queue.back());
  queue.pop_back();
  CountWaiting(share, -1, -item.input_bytes);
  pending_bytes_ -= item.input_bytes;
  JoinTurns(member);
  return item;
}

// ---- whose turn it is ---------------------------------------------------------------------------

void WorkerPool::CountWaiting(Share& share, int64_t items, int64_t bytes) {
  share.waiting_items += items;
  share.waiting_bytes += bytes;
  waiting_ += items;
}

void WorkerPool::LeaveTurns(Member& member) {
  for (const Length length : kLengths) turns_[length].erase(&member);
}

void WorkerPool::JoinTurns(Member& member) {
  const Share& share = member.second;
  for (const Length length : kLengths) {
    if (!share.waiting[length].empty()) turns_[length].insert(&member);
  }
  if (share.waiting_items == 0 && share.running == 0) members_.erase(members_.find(member.first));
}

WorkerPool::Next WorkerPool::FindNext() const {
  Next next;
  for (const Length length : kLengths) {
    if (turns_[length].empty() || (length == kLong && running_long_ >= max_running_long_)) continue;
    Member* const first = *turns_[length].begin();
    if (first->second.running >= options_.max_running_of_caller) continue;
    const Share& share = first->second;
    const bool is_sooner =
        next.member == nullptr ||
        (next.member == first ? share.waiting[kLong].front().order < share.waiting[kShort].front().order
                              : TurnOrder()(first, next.member));
    if (is_sooner) next = {first, length};
  }
  return next;
}

WorkerPool::Item WorkerPool::Begin(const Next& next) {
  LeaveTurns(*next.member);
  Share& share = next.member->second;
  std::deque<Item>& queue = share.waiting[next.length];
  Item item = std::move(queue.front());
  queue.pop_front();
  CountWaiting(share, -1, -item.input_bytes);
  CountRunning(next, 1);
  JoinTurns(*next.member);
  return item;
}

void WorkerPool::End(const Next& begun, int64_t input_bytes) {
  LeaveTurns(*begun.member);
  CountRunning(begun, -1);
  pending_bytes_ -= input_bytes;
  JoinTurns(*begun.member);
}

void WorkerPool::CountRunning(const Next& next, int32_t change) {
  next.member->second.running += change;
  next.member->second.since = ++moment_;
  running_ += change;
  if (next.length == kLong) running_long_ += change;
}

void WorkerPool::Loop() {
  const bool holds_callers_back = options_.max_running_of_caller < options_.threads;
  std::unique_lock lock(mutex_);
  while (true) {
    const Next next = FindNext();
    if (next.member == nullptr) {
      if (stopping_ && waiting_ == 0) return;
      work_ready_.wait(lock);
      continue;
    }
    Item item = Begin(next);

    lock.unlock();
    item.work();
    item = {.input_bytes = item.input_bytes};  // what it captured goes before it counts as done
    lock.lock();

    End(next, item.input_bytes);
    // What waited for this one's end may start now, or the end is near.
    if (next.length == kLong || holds_callers_back || stopping_) work_ready_.notify_all();
    if (running_ == 0 && waiting_ == 0) idle_.notify_all();
  }
}

void WorkerPool::WaitIdle() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return running_ == 0 && waiting_ == 0; });
}

int64_t WorkerPool::pending() const {
  std::lock_guard lock(mutex_);
  return running_ + waiting_;
}

}  // namespace tramontane

// WorkerPool: a bounded queue of work and the few threads that do it, so that nothing slow ever runs on
// gRPC's threads or on the engine's.
//
// Any thread may call TrySubmit, WaitIdle and the counters.
// Always: at most `max_queued` pieces of work wait, and what waits and runs holds at most `max_queued_bytes`
// of input; TrySubmit never blocks. Callers share it:
//   - The next piece is that of the caller with the fewest running; of several, of the one that has been
//     without for longest. Pieces of one caller start in the order of submission.
//   - While others wait, one caller has at most half of the queue. Where the queue is full, the newest pieces
//     of the caller with most of it give way to those of one that has less.
// At most `threads` - 1 pieces of `long_bytes` or more run at once, and short ones pass those that wait; with
// one thread a short piece waits for the long one that runs.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tramontane {

struct WorkerPoolOptions {
  int32_t threads = 2;
  int32_t max_queued = 2048;                      // waiting, not running; one more is refused
  int64_t max_queued_bytes = int64_t{256} << 20;  // waiting and running together; more is refused
  int64_t long_bytes = 64 << 10;
  int32_t max_running_of_caller = INT32_MAX;  // its next one lets others pass
};

class WorkerPool {
 public:
  using Work = std::function<void()>;

  explicit WorkerPool(const WorkerPoolOptions& options);
  ~WorkerPool();  // does what is queued, then joins
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // False when the pool is full; then nothing was taken. `caller`: whose work it is. Once taken either `work`
  // is called, on a thread of the pool, or `give_way`, on a thread that submits another caller's. Neither may
  // throw, and the second one must be quick.
  [[nodiscard]] bool TrySubmit(int64_t input_bytes, const std::string& caller, Work work, Work give_way);
  // For a pool that has no callers.
  [[nodiscard]] bool TrySubmit(int64_t input_bytes, Work work) {
    return TrySubmit(input_bytes, "", std::move(work), nullptr);
  }

  // Returns once everything submitted before is done.
  void WaitIdle();

  int64_t pending() const;  // waiting and running
  const WorkerPoolOptions& options() const { return options_; }

 private:
  enum Length : uint8_t { kShort, kLong };
  static constexpr std::array kLengths = {kShort, kLong};

  struct Item {
    int64_t input_bytes = 0;
    uint64_t order = 0;
    Work work = {};
    Work give_way = {};
  };
  // What a caller has here.
  struct Share {
    std::array<std::deque<Item>, kLengths.size()> waiting;
    int64_t waiting_items = 0;
    int64_t waiting_bytes = 0;
    int32_t running = 0;
    uint64_t since = 0;  // when it came, or last began or ended a piece; of each share another
  };
  using Members = std::unordered_map<std::string, Share>;
  using Member = Members::value_type;
  struct TurnOrder {
    bool operator()(const Member* a, const Member* b) const {
      return std::pair(a->second.running, a->second.since) < std::pair(b->second.running, b->second.since);
    }
  };
  struct Next {
    Member* member = nullptr;  // null: nobody's may run
    Length length = kShort;
  };

  // These hold mutex_.
  // False: there is no room to be had. `given_way`: what made it.
  bool MakeRoom(int64_t input_bytes, const Share& share, std::vector<Item>* given_way);
  bool IsBeyondHalf(int64_t input_bytes, const Share& share) const;
  Member* MemberWithMost(int64_t Share::* amount);
  Item TakeNewest(Member& member);
  void CountWaiting(Share& share, int64_t items, int64_t bytes);
  // A share changes between the two. The second one lets go of a member that has nothing here.
  void LeaveTurns(Member& member);
  void JoinTurns(Member& member);
  Next FindNext() const;
  Item Begin(const Next& next);
  void End(const Next& begun, int64_t input_bytes);
  void CountRunning(const Next& next, int32_t change);
  void Loop();

  const WorkerPoolOptions options_;
  const int32_t max_running_long_;

  mutable std::mutex mutex_;  // guards everything below
  std::condition_variable work_ready_;
  std::condition_variable idle_;
  Members members_;  // by caller: those with something waiting or running
  std::array<std::set<Member*, TurnOrder>, kLengths.size()> turns_;  // of those with such a piece waiting
  uint64_t moment_ = 0;
  int64_t waiting_ = 0;
  int64_t pending_bytes_ = 0;
  int32_t running_ = 0;
  int32_t running_long_ = 0;
  bool stopping_ = false;

  std::vector<std::thread> threads_;
};

}  // namespace tramontane

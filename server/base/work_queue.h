// WorkQueue: work that waits for the threads of a pool, and which piece of it is next. One thread at a time.
//
// Always, so that nobody waits for what another one brings in masses:
//   - Next is a piece of the caller with the fewest running; of several, of the one that has been without for
//     longest or, `by_time`, that has used the threads for the shortest time; one that had nothing here
//     begins where the others are. Pieces of one caller begin in the order in which they came.
//   - While others wait, one caller has at most half of the queue. Alone it has all of it; then its newest
//     pieces give way to those of one that has less. Or, `keeps_room`, none ever gives way, and it has seven
//     eighths (FitsShare).
//   - Long pieces stand in lines of their own: where none may run, short ones pass them.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tramontane {

inline constexpr int64_t kLongWorkBytes = 64 << 10;

struct WorkerPoolOptions {
  int32_t threads = 2;
  int32_t max_queued = 2048;                      // waiting, not running; one more is refused
  int64_t max_queued_bytes = int64_t{256} << 20;  // waiting and running together; more is refused
  int64_t long_bytes = kLongWorkBytes;
  int32_t max_running_of_caller = INT32_MAX;  // its next one lets others pass
  bool by_time = false;
  bool keeps_room = false;  // of pieces; their bytes have no bound here
};

struct WorkPiece {
  std::string caller;  // whose share it takes; "": all of a pool that has no callers
  int64_t bytes = 0;   // of input
  std::function<void()> run;
  std::function<void()> give_way = nullptr;  // instead of `run`
};

class WorkQueue {
 public:
  explicit WorkQueue(const WorkerPoolOptions& options) : options_(options) {}

  // False, and nothing taken: there is no room for it. `given_way`: pieces that have left, to make some.
  [[nodiscard]] bool Push(WorkPiece piece, std::vector<WorkPiece>* given_way);
  // What is to run now, until End; nothing: none waits that may.
  std::optional<WorkPiece> Begin(bool may_be_long);
  void End(const WorkPiece& begun, int64_t took_ns);

  bool IsLong(const WorkPiece& piece) const { return piece.bytes >= options_.long_bytes; }
  int64_t waiting() const { return waiting_; }
  int64_t running() const { return running_; }
  int64_t pending_bytes() const { return pending_bytes_; }  // waiting and running
  const WorkerPoolOptions& options() const { return options_; }

 private:
  enum Length : uint8_t { kShort, kLong };
  static constexpr std::array kLengths = {kShort, kLong};

  struct Waiting {
    uint64_t order = 0;
    WorkPiece piece;
  };
  // What a caller has here.
  struct Share {
    std::array<std::deque<Waiting>, kLengths.size()> lines;
    int64_t waiting = 0;
    int64_t waiting_bytes = 0;
    int32_t running = 0;
    int64_t used_ns = 0;
    uint64_t since = 0;  // when it came, or last began or ended a piece; of each share another
  };
  using Members = std::unordered_map<std::string, Share>;
  using Member = Members::value_type;
  struct ComesBefore {
    bool operator()(const Member* a, const Member* b) const;
  };

  // change(Share&), after which a member that has nothing here is gone.
  template <typename Change>
  void Update(Member& member, const Change& change);
  bool MakeRoom(int64_t bytes, const Share& share, std::vector<WorkPiece>* given_way);
  bool IsBeyondHalf(int64_t bytes, const Share& share) const;
  Member* MemberWithMost(int64_t Share::* amount);
  WorkPiece TakeNewest(Member& member);
  WorkPiece Take(Share& share, Length length, bool newest);

  const WorkerPoolOptions options_;
  Members members_;  // by caller: those with something waiting or running
  std::array<std::set<Member*, ComesBefore>, kLengths.size()> turns_;  // of those with such a piece waiting
  uint64_t moment_ = 0;
  int64_t least_used_ns_ = 0;  // of whoever was next last
  int64_t waiting_ = 0;
  int64_t pending_bytes_ = 0;  // waiting and running
  int64_t running_ = 0;
};

}  // namespace tramontane

// Callers: who has requests alive, how many slots each holds, and how much prefill each has been given.
// engine/schedule/README.md has the formulas.
//
// Virtual times count tokens by weight: of two callers whose times are equal each has had its part. A request
// gets a tag, its caller's time, with its slots, and the time goes on by what the request will compute. A
// caller is known as long as a sequence of it is alive, and as long as it has had more than others, so that
// nobody is better off by asking for one thing after another.
//
// Engine thread only; the scheduler's. Always: a sequence that is alive points to its caller, which has not
// moved.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "engine/request/limits.h"
#include "engine/request/sequence.h"

namespace tramontane {

// Of a token with weight 1, in virtual time, and of a slot, where slots are compared by weight. Weights up to
// 16 divide it.
inline constexpr int64_t kShareScale = 720'720;

// Where the oldest request of a caller stands among those of its priority: the least goes first.
struct Standing {
  int64_t slots = 0;  // with the next one, by weight
  int64_t virtual_time = 0;
  int64_t arrival = 0;
  int32_t choice = 0;  // of a request whose choices were set aside
  CallerShare* caller = nullptr;
  auto operator<=>(const Standing&) const = default;
};

struct ArrivedBefore {
  bool operator()(const Sequence* a, const Sequence* b) const {
    return a->arrival() != b->arrival() ? a->arrival() < b->arrival() : a->choice < b->choice;
  }
};

struct CallerShare {
  struct Line {
    std::set<Sequence*, ArrivedBefore> waiting;
    Standing standing;
  };

  std::string name;  // "": of those that nobody's part bounds
  int32_t weight = 1;
  int64_t alive = 0;  // sequences
  int32_t slots = 0;  // that they hold
  int64_t virtual_time = 0;
  int64_t last_tag = 0;
  // Discards that came while others of it were waiting, by arrival: (arrival, tag).
  std::deque<std::pair<int64_t, int64_t>> discards;
  std::map<int32_t, Line> lines;  // FairQueue's, by priority

  bool is_exempt() const { return name.empty(); }
  int64_t Scaled(int64_t count) const { return count * kShareScale / weight; }
};

class Callers {
 public:
  // Callers of which nothing is alive, and that are known for what they have had: of more the one that has
  // had least is forgotten.
  static constexpr size_t kMostIdle = 1024;

  explicit Callers(const EngineLimits& limits) : limits_(limits) {}

  // It is alive until Leave.
  void Enter(Sequence* sequence);
  void Leave(Sequence* sequence);
  void CountSlots(CallerShare& caller, int32_t change);

  // More than one caller, or more than one priority.
  bool several() const { return alive_ > 1 || priorities_.size() > 1; }
  bool has_priorities() const { return priorities_.size() > 1; }
  // REQUIRES: a sequence is alive.
  int32_t best_priority() const { return priorities_.begin()->first; }
  int64_t virtual_now() const { return virtual_now_; }
  size_t known() const { return callers_.size(); }

  // ---- ranks --------------------------------------------------------------------------------------
  // `first`: the oldest with prefill to do; null where there is none, and then nobody owes anything.
  void Advance(const Sequence* first);
  // Of one that gets its slots and will compute so many tokens.
  void GiveRank(Sequence* sequence, int64_t tokens, int64_t now_ns);
  // Of one that is as if it arrived now, behind all that wait.
  void GiveRankAnew(Sequence* sequence, int64_t tokens, int64_t now_ns);
  // It begins, and computes so many tokens.
  void Correct(Sequence* sequence, int64_t tokens);
  // Raises the level of one that waits by one for each period; whether it did.
  bool Age(Sequence* sequence, int64_t now_ns);

  // ---- slots --------------------------------------------------------------------------------------
  bool IsBelowItsShare(const CallerShare& caller) const;
  // That with most slots by weight; null: nobody that has a share has one.
  CallerShare* WithMostSlots() const { return by_slots_.empty() ? nullptr : by_slots_.rbegin()->second; }
  // That it can lose and still hold its share.
  int32_t SpareSlots(const CallerShare& caller) const;

 private:
  void SetWeight(CallerShare& caller, int32_t weight);
  void DropIdle();
  int64_t Take(CallerShare& caller, int64_t tokens);

  const EngineLimits& limits_;
  std::unordered_map<std::string, CallerShare> callers_;
  std::map<int32_t, int64_t> priorities_;                // sequences alive of each
  std::set<std::pair<int64_t, CallerShare*>> by_slots_;  // by weight; those that hold some
  std::set<std::pair<int64_t, CallerShare*>> idle_;      // by virtual time
  int64_t alive_ = 0;                                    // callers
  int64_t weights_ = 0;                                  // of those that have a share
  int64_t virtual_now_ = 0;                              // never goes back
  int64_t latest_ = 0;                                   // of all virtual times
};

}  // namespace tramontane

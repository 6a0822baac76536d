// FairQueue: sequences that wait for slots. Of each priority callers go in turn, by the slots that they hold;
// of each caller the oldest. Between priorities waiting counts: ageing_ns of it make up for one, and who has
// made up for all that it lacks is an equal of the best.
//
// Engine thread only; the scheduler's. Adding, removing and choosing are logarithmic in what waits.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "engine/schedule/callers.h"

namespace tramontane {

class FairQueue {
 public:
  explicit FairQueue(int64_t ageing_ns) : ageing_ns_(ageing_ns) {}

  // REQUIRES: its caller is set.
  void Add(Sequence* sequence);
  // Whether it was here.
  bool Remove(Sequence* sequence);
  // The slots or the virtual time of the caller have changed.
  void Update(CallerShare& caller);

  // Null: nobody waits. `best`: the best priority of all that are alive.
  Sequence* Next(int64_t now_ns, int32_t best) const;
  // Nobody passes it from now on: slots that are free are kept for it.
  void SaveFor(Sequence* sequence) { saved_for_ = sequence; }
  int64_t size() const { return size_; }

 private:
  struct Class {
    std::set<Standing> callers;
    int64_t due_ns = 0;  // as in heads_
  };

  void Stand(int32_t priority, CallerShare& caller, CallerShare::Line& line);
  void UpdateHead(int32_t priority, Class& of);
  static const Standing& FirstOf(const Class& of) { return *of.callers.begin(); }
  static Sequence* FirstOf(int32_t priority, const Class& of);

  const int64_t ageing_ns_;
  std::map<int32_t, Class> classes_;             // by priority; none empty
  std::set<std::pair<int64_t, int32_t>> heads_;  // (due, priority) of each class
  Sequence* saved_for_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace tramontane

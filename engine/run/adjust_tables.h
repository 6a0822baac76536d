// AdjustTables: the changed logits (LogitAdjust) that the device keeps, by slot (Sequence::slot), and what a
// step must change in them. Engine thread only; the entries themselves are on the device, and nobody reads
// them back.
//
//   of one slot:   | SamplingHistory::adjusts(), in its order | room for more ...
//
// A token that a choice accepts changes one entry, so a decode step uploads 32 bytes a row with penalties,
// whatever its context. All of a history is uploaded once: when it comes to a slot. A sequence keeps its slot
// when it is preempted, and a slot's entries are those of the sequence that was last updated there; a history
// says by its id and its version whether they still are as it has them. Not by when it came: of several
// engines that one runner has had, as a server's for its warm-up, each counts anew.
//
// A history of more than kMostEntries tokens has no room here: it goes up whole in every step.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/request/limits.h"
#include "engine/request/sampling_history.h"
#include "engine/request/sequence.h"
#include "kernels/core/check.h"
#include "kernels/sampling.h"

namespace tramontane {

class AdjustTables {
 public:
  // Of one slot: 128 KiB. Texts of a hundred thousand tokens name fewer different ones.
  static constexpr int64_t kMostEntries = 8192;

  AdjustTables(const EngineLimits& limits, int32_t vocab_size)
      : width_(std::min<int64_t>(vocab_size, kMostEntries)),
        held_(static_cast<size_t>(limits.max_sequences)) {}

  // Of all slots, rounded up to whole 64 bytes.
  int64_t entries() const { return (width_ * static_cast<int64_t>(held_.size()) + 3) / 4 * 4; }
  int64_t bytes() const { return entries() * static_cast<int64_t>(sizeof(LogitAdjust)); }
  int32_t FirstEntry(int32_t slot) const { return static_cast<int32_t>(slot * width_); }

  bool HasRoom(const SamplingHistory& history) const { return std::ssize(history.adjusts()) <= width_; }

  enum class Change {
    kNone,      // the slot has the history as it is
    kOneEntry,  // all but SamplingHistory::last_change
    kAll,
    kNoRoom,  // it has none of it
  };
  // What a sequence's slot lacks of its history.
  Change ChangeFor(const Sequence& sequence, const SamplingHistory& history) const {
    if (!HasRoom(history)) return Change::kNoRoom;
    TM_CHECK(sequence.slot() >= 0 && sequence.slot() < std::ssize(held_), "request %s: slot %d of %zu",
             sequence.request->id.c_str(), sequence.slot(), held_.size());
    const Held& held = held_[static_cast<size_t>(sequence.slot())];
    if (held.history != history.id() || held.choice != sequence.choice) return Change::kAll;
    if (held.version == history.version()) return Change::kNone;
    const bool is_next = held.version + 1 == history.version();
    return is_next && history.last_change() >= 0 ? Change::kOneEntry : Change::kAll;
  }
  // The same, and takes it for done.
  Change Update(const Sequence& sequence, const SamplingHistory& history) {
    const Change change = ChangeFor(sequence, history);
    Held& held = held_[static_cast<size_t>(sequence.slot())];
    held = {.history = history.id(), .choice = sequence.choice, .version = history.version()};
    if (change == Change::kNoRoom) held = {};
    return change;
  }

 private:
  // Whose history a slot has: a sequence is known by its request's, and its choice.
  struct Held {
    uint64_t history = 0;
    int32_t choice = 0;
    int64_t version = 0;
  };

  const int64_t width_;
  std::vector<Held> held_;  // [slots]
};

}  // namespace tramontane

#include "engine/run/adjust_tables.h"

#include <iterator>

#include "kernels/core/check.h"

namespace tramontane {

const AdjustTables::Held& AdjustTables::HeldFor(const Sequence& sequence) const {
  TM_CHECK(sequence.slot() >= 0 && sequence.slot() < std::ssize(held_), "request %s: slot %d of %zu",
           sequence.request->id.c_str(), sequence.slot(), held_.size());
  return held_[static_cast<size_t>(sequence.slot())];
}

AdjustTables::Change AdjustTables::ChangeFor(const Sequence& sequence, const SamplingHistory& history) const {
  if (!HasRoom(history)) return Change::kNoRoom;
  const Held& held = HeldFor(sequence);
  if (held.history != history.id() || held.choice != sequence.choice) return Change::kAll;
  if (held.version == history.version()) return Change::kNone;
  const bool is_next = held.version + 1 == history.version();
  return is_next && history.last_change() >= 0 ? Change::kOneEntry : Change::kAll;
}

AdjustTables::Change AdjustTables::Update(const Sequence& sequence, const SamplingHistory& history) {
  const Change change = ChangeFor(sequence, history);
  held_[static_cast<size_t>(sequence.slot())] =
      change == Change::kNoRoom
          ? Held()
          : Held{.history = history.id(), .choice = sequence.choice, .version = history.version()};
  return change;
}

}  // namespace tramontane

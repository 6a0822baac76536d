#include "engine/schedule/fair_queue.h"

#include <algorithm>
#include <iterator>

namespace tramontane {
namespace {

constexpr int kMostCompared = 64;  // priorities whose first are equals: those beyond wait for a later look

}  // namespace

void FairQueue::Add(Sequence* sequence) {
  const int32_t priority = sequence->request->share.priority;
  CallerShare& caller = *sequence->caller_;
  CallerShare::Line& line = caller.lines[priority];
  line.waiting.insert(line.waiting.end(), sequence);
  ++size_;
  Stand(priority, caller, line);
}

bool FairQueue::Remove(Sequence* sequence) {
  if (sequence->caller_ == nullptr) return false;  // a choice that was never forked
  const int32_t priority = sequence->request->share.priority;
  CallerShare& caller = *sequence->caller_;
  const auto line = caller.lines.find(priority);
  if (line == caller.lines.end() || line->second.waiting.erase(sequence) == 0) return false;
  --size_;
  if (saved_for_ == sequence) saved_for_ = nullptr;
  Stand(priority, caller, line->second);
  if (line->second.waiting.empty()) caller.lines.erase(line);
  return true;
}

void FairQueue::Update(CallerShare& caller) {
  for (auto& [priority, line] : caller.lines) Stand(priority, caller, line);
}

// One more slot is what is compared, whatever the request asks for: one of many choices is not passed for
// ever. The first slot of a caller is before all others' next, however little its weight is.
void FairQueue::Stand(int32_t priority, CallerShare& caller, CallerShare::Line& line) {
  Standing standing;
  if (!line.waiting.empty()) {
    const Sequence& first = **line.waiting.begin();
    standing = {.arrival = first.arrival(), .choice = first.choice, .caller = &caller};
    if (!caller.is_exempt()) {
      standing.slots = caller.slots == 0 ? 0 : caller.Scaled(int64_t{caller.slots} + 1);
      standing.virtual_time = caller.virtual_time;
    }
  }
  if (standing == line.standing) return;
  Class& of = classes_[priority];
  if (line.standing.caller != nullptr) of.callers.erase(line.standing);
  line.standing = standing;
  if (standing.caller != nullptr) of.callers.insert(standing);
  UpdateHead(priority, of);
}

void FairQueue::UpdateHead(int32_t priority, Class& of) {
  if (of.callers.empty()) {
    heads_.erase({of.due_ns, priority});
    classes_.erase(priority);
    return;
  }
  const int64_t due_ns = FirstOf(priority, of)->request->received_ns + priority * ageing_ns_;
  if (due_ns != of.due_ns) heads_.erase({of.due_ns, priority});
  heads_.insert({due_ns, priority});
  of.due_ns = due_ns;
}

Sequence* FairQueue::FirstOf(int32_t priority, const Class& of) {
  return *of.callers.begin()->caller->lines.at(priority).waiting.begin();
}

Sequence* FairQueue::Next(int64_t now_ns, int32_t best) const {
  if (saved_for_ != nullptr || heads_.empty()) return saved_for_;
  const int64_t equals_until_ns = now_ns + best * ageing_ns_;
  int32_t priority = heads_.begin()->second;
  const Class* first = &classes_.at(priority);
  int compared = 0;
  for (auto head = std::next(heads_.begin());
       head != heads_.end() && head->first <= equals_until_ns && ++compared < kMostCompared; ++head) {
    const Class& of = classes_.at(head->second);
    if (!(FirstOf(of) < FirstOf(*first))) continue;
    priority = head->second;
    first = &of;
  }
  return FirstOf(priority, *first);
}

}  // namespace tramontane

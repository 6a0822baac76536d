#include "engine/life/constrain/mask_waits.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "engine/threads/clock.h"

namespace tramontane {
namespace {

// Pieces of work for the mask workers that may wait at once, for each sequence that may run: its own, and of
// choices that have ended meanwhile.
constexpr size_t kMasksPerSequence = 4;

}  // namespace

MaskWaits::MaskWaits(const EngineLimits& limits, Scheduler& scheduler, Signal& wake, EngineLoad& counters)
    : max_wait_ns_(limits.max_constraint_step_ns),
      scheduler_(scheduler),
      wake_(wake),
      counters_(counters),
      workers_(limits.mask_workers, kMasksPerSequence * static_cast<size_t>(limits.max_sequences), wake) {}

MaskWaits::Failures MaskWaits::Wait(const StepPlan& plan) {
  const SteadyClock clock;  // real time: workers have no other
  const int64_t until_ns = clock.NowNs() + max_wait_ns_;
  while (IsWorthWaiting(plan)) {
    const int64_t left_ns = until_ns - clock.NowNs();
    if (left_ns <= 0) break;
    if (!workers_.HelpOnce()) wake_.Wait(left_ns);
  }
  return HoldLateRows(plan);
}

bool MaskWaits::IsWorthWaiting(const StepPlan& plan) {
  return std::any_of(plan.rows.begin(), plan.rows.end(), [](const StepRow& row) {
    const LiveChoice& choice = ChoiceOf(row);
    const bool waits = choice.constraint != nullptr && !choice.ended && !choice.constraint->ready();
    return waits && !choice.held() && !choice.constraint->must_prepare();
  });
}

MaskWaits::Failures MaskWaits::HoldLateRows(const StepPlan& plan) {
  Failures failures;
  for (const StepRow& row : plan.rows) {
    LiveChoice& choice = ChoiceOf(row);
    if (choice.constraint == nullptr || choice.ended || plan.Draws(row) == 0) continue;
    choice.late = !choice.constraint->ready();
    if (choice.late) Hold(choice);
    if (Status fault = choice.late ? Prepare(choice) : Settle(choice); !fault.ok()) {
      failures.push_back({&choice, std::move(fault)});
    }
  }
  return failures;
}

MaskWaits::Failures MaskWaits::ResumeWhatIsReady() {
  Failures failures;
  for (size_t i = held_.size(); i-- > 0;) {
    LiveChoice& choice = *held_[i];
    if (Status fault = Prepare(choice); !fault.ok()) {
      failures.push_back({&choice, std::move(fault)});
      continue;
    }
    if (!choice.constraint->ready() || choice.late) continue;
    held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i));
    if (Status fault = Settle(choice); !fault.ok()) {
      failures.push_back({&choice, std::move(fault)});
    } else {
      scheduler_.Resume(&choice);
    }
  }
  return failures;
}

void MaskWaits::Note(LiveChoice& choice) {
  const bool noted = std::find(held_.begin(), held_.end(), &choice) != held_.end();
  if (choice.held() && !choice.ended && !noted) held_.push_back(&choice);
}

void MaskWaits::Hold(LiveChoice& choice) {
  if (choice.held()) return;
  scheduler_.Hold(&choice);
  held_.push_back(&choice);
}

// Has a grammar compiled that the choice cannot go on without.
Status MaskWaits::Prepare(LiveChoice& choice) {
  if (!choice.constraint->must_prepare()) return {};
  choice.constraint->BeginToPrepare();
  return Post(choice);
}

Status MaskWaits::Post(const LiveChoice& choice) {
  if (workers_.Post(choice.constraint)) return {};
  return ResourceExhausted("too many constraints are being followed at once");
}

// What the workers found out. REQUIRES: the constraint is ready.
Status MaskWaits::Settle(LiveChoice& choice) {
  choice.undecided = false;
  counters_.constraint_ns += choice.constraint->TakeSpentNs();
  return choice.constraint->fault();
}

// A choice that was slow before is not planned until its mask is there: it would only be computed in vain.
Status MaskWaits::Follow(LiveChoice& choice, int32_t token) {
  const bool slow = choice.constraint->slow();
  if (!choice.constraint->Follow(token)) return {};
  ++counters_.constrained_tokens;
  choice.undecided = true;
  TM_RETURN_IF_ERROR(Post(choice));
  if (slow) Hold(choice);
  return {};
}

// What a matcher has gathered may be large: a worker frees it.
void MaskWaits::Abandon(LiveChoice& choice) {
  std::erase(held_, &choice);
  if (choice.constraint == nullptr) return;
  choice.constraint->Abandon();
  if (choice.constraint->ready() || choice.constraint->must_prepare())
    workers_.Post(std::move(choice.constraint));
  choice.constraint = nullptr;
}

}  // namespace tramontane

// Admission: requests that hold no pages: first in the queue for slots, then ready, which is waiting for a
// prefill turn and for pages. What the store knows of those that are ready is looked up here, and who is in
// front of whom is settled (Callers).
//
// Engine thread only; the scheduler's. Always: a sequence has slots if it is ready, and none in the queue.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "engine/schedule/callers.h"
#include "engine/schedule/fair_queue.h"
#include "engine/schedule/part_way.h"
#include "engine/schedule/prefill_share.h"

namespace tramontane {

class Admission {
 public:
  // All are borrowed.
  Admission(const EngineLimits& limits, KvStore& store, const PrefillShare& share, PartWay& prompts);

  // As Scheduler::Admit.
  void Add(Sequence* sequence, int64_t arrival);
  // What has come from the tier since the last plan; levels that waiting has raised; then slots, as FairQueue
  // has those that wait, and never around a request that needs more than are free: so nothing starves it. Of
  // texts it walks as much as a plan may (step_bounds.h); those behind wait for the next one.
  void BeginPlan(int64_t now_ns);
  // A choice of the parent's request, which has slots for it.
  void Fork(Sequence& parent, Sequence* sequence);
  // A branch of the prompt waits for a slot of its own, at the prompt's rank.
  void AddBranch(const Sequence& prompt, Sequence* branch);
  // It has ended: its slots go back.
  void End(Sequence* sequence);

  // ---- slots of others ----------------------------------------------------------------------------
  // The next that waits for slots, where its caller has less than its part and they are not free; or null.
  Sequence* LacksSlots() const;
  // Goes back to the queue, without slots; that of one that is held comes with Resume. REQUIRES: it holds no
  // pages.
  void GiveUpSlots(Sequence* sequence);
  // Nobody passes it; it has them at once, or with the next plan where this one has walked enough.
  void KeepSlotsFor(Sequence* sequence);

  // By age: what was preempted comes before everything that arrived later. Of one without slots: it waits for
  // those.
  void MakeReady(Sequence* sequence);
  // It is as if it arrived now.
  void RankAnew(Sequence* sequence, int64_t arrival);
  // It has started, or ended while it waited.
  void Remove(Sequence* sequence);
  // What the store knows of it may have changed.
  void Expect(Sequence* sequence, KvStore::Beyond beyond = KvStore::Beyond::kAsItWas);
  // Whether the plan has walked so much that what could begin otherwise begins with the next.
  bool PutsOffBegins();
  // Some wait for nothing but the next plan.
  bool has_put_off() const { return has_put_off_; }

  // Leases what the store knows of the tokens: there the sequence begins. Or gives it back.
  void Begin(Sequence* sequence);
  // What it begins with was computed for others: its caller is not charged for it.
  void Charge(Sequence* sequence);
  void GiveBack(Sequence* sequence);

  const std::deque<Sequence*>& ready() const { return ready_; }  // oldest first
  // The oldest that is ready, but for its pages, or the oldest that does not fit one chunk; null: there is
  // none.
  Sequence* FirstReady() const;
  Sequence* FirstLongPrompt() const;
  bool awaits_pages() const;
  int64_t waiting() const { return queue_.size() + std::ssize(ready_); }
  int32_t free_slots() const { return free_slots_; }
  const Callers& callers() const { return callers_; }

 private:
  void LookAtTier(int64_t now_ns);
  void GiveSlots();
  Sequence* Next() const;
  void GiveSlotsTo(Sequence* sequence);
  void Age();
  void Advance();
  void CountSlots(Sequence* sequence, int32_t change);
  void TakeSlot(Sequence* sequence);
  void ReturnSlots(Sequence* sequence);
  bool PutsOff();
  static PrefixQuery QueryFor(const Sequence& sequence);

  const EngineLimits& limits_;
  KvStore& store_;
  const PrefillShare& share_;
  PartWay& prompts_;

  Callers callers_;
  FairQueue queue_;  // no slots yet; the engine bounds it
  std::deque<Sequence*> ready_;
  int64_t last_arrival_ = -1;
  int64_t now_ns_ = 0;   // of the plan
  int64_t aged_ns_ = 0;  // levels were looked at
  int32_t free_slots_;
  std::vector<int32_t> idle_slots_;  // no sequence runs in them; some may be promised to choices to come
  int64_t tier_reads_ = 0;           // looks at the tier that found something read
  int64_t disk_answered_ns_ = 0;     // the disk has read something, or was not asked to
  int64_t walk_end_ = 0;             // of this plan: KvStore::walked_blocks
  int64_t walked_before_begin_ = 0;  // the same, of whoever began last
  bool puts_off_begins_ = false;
  bool has_put_off_ = false;
};

}  // namespace tramontane

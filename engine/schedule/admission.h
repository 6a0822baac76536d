// Admission: requests that hold no pages: first in the queue for slots, then ready, which is waiting for a
// prefill turn and for pages. What the store knows of those that are ready is looked up here.
//
// Engine thread only; the scheduler's. Always: a sequence has slots if it is ready, and none in the queue.
#pragma once

#include <cstdint>
#include <deque>
#include <set>
#include <vector>

#include "engine/schedule/prefill_share.h"

namespace tramontane {

class Admission {
 public:
  // All are borrowed.
  Admission(const EngineLimits& limits, KvStore& store, const PrefillShare& share);

  // As Scheduler::Admit.
  void Add(Sequence* sequence, int64_t arrival);
  // What has come from the tier since the last plan; then slots, in order of arrival and never around a
  // request that needs more than are free: so nothing starves it. Of texts it walks as much as a plan may
  // (step_bounds.h); those behind wait for the next one.
  void BeginPlan(int64_t now_ns);
  // Of those that it or its parent has been given.
  void TakeSlot(Sequence* sequence);
  void ReturnSlots(Sequence* sequence);

  // By age: what was preempted comes before everything that arrived later.
  void MakeReady(Sequence* sequence);
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
  void GiveBack(Sequence* sequence);

  const std::deque<Sequence*>& ready() const { return ready_; }  // oldest first
  // The oldest that is ready, but for its pages, or the oldest that does not fit one chunk; null: there is
  // none.
  Sequence* FirstReady() const;
  Sequence* FirstLongPrompt() const;
  bool awaits_pages() const;
  int64_t waiting() const { return std::ssize(queue_) + std::ssize(ready_); }
  int32_t free_slots() const { return free_slots_; }

 private:
  void LookAtTier(int64_t now_ns);
  void GiveSlots(int64_t now_ns);
  bool PutsOff();
  static PrefixQuery QueryFor(const Sequence& sequence);

  const EngineLimits& limits_;
  KvStore& store_;
  const PrefillShare& share_;

  std::set<Sequence*, IsOlder> queue_;  // no slots yet; the engine bounds it
  std::deque<Sequence*> ready_;
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

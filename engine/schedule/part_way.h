// PartWay: the prompts in prefill, oldest first, with what they need together kept as sums, so that who may
// start costs the same however many have started in the step.
//
// Engine thread only; the scheduler's. Always: the sums are those of the sequences as they were when they
// were added or last updated.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/kv/kv_store.h"
#include "engine/request/sequence.h"

namespace tramontane {

class PartWay {
 public:
  // `ahead`: tokens that a chunk writes beyond a window at most. The store is borrowed.
  PartWay(const KvStore& store, int64_t ahead) : store_(store), ahead_(ahead) {}

  bool empty() const { return prompts_.empty(); }
  const std::vector<Sequence*>& all() const { return prompts_; }  // oldest first

  void Add(Sequence* sequence) {
    InsertByAge(prompts_, sequence);
    Update(sequence);
  }
  void Remove(Sequence* sequence) {
    RemoveFrom(prompts_, sequence);
    Count(sequence, {});
  }
  // It was given pages, or positions of it were planned. REQUIRES: it is here.
  void Update(Sequence* sequence) {
    const bool is_unplanned = sequence->prefill_left() > 0;
    Count(sequence, {.pages = PagesToStart(sequence->lease(), sequence->prefill_len()),
                     .unplanned = is_unplanned ? 1 : 0,
                     .long_unplanned = is_unplanned && !sequence->fits_one_chunk() ? 1 : 0});
  }
  // Windows have let pages go since the last plan.
  void UpdateAll() {
    for (Sequence* sequence : prompts_) Update(sequence);
  }
  // Ranks have changed.
  void Sort() { std::sort(prompts_.begin(), prompts_.end(), IsOlder()); }
  // Those of which every position is planned leave, and are appended.
  void TakePlanned(std::vector<Sequence*>* planned) {
    const auto is_planned = [](const Sequence* sequence) { return sequence->prefill_left() == 0; };
    for (Sequence* sequence : prompts_) {
      if (!is_planned(sequence)) continue;
      Count(sequence, {});
      planned->push_back(sequence);
    }
    std::erase_if(prompts_, is_planned);
  }

  // Prompts with positions left to plan, and those of them that do not fit one chunk.
  int32_t unplanned() const { return unplanned_; }
  int32_t long_unplanned() const { return long_unplanned_; }
  // Pages that all of them still lack on the way to their ends, and those that older ones than this do; those
  // that one which has not started lacks.
  int64_t pages() const { return pages_; }
  int64_t PagesOfOlder(const Sequence& sequence) const {
    int64_t pages = pages_;  // from the youngest: who asks is mostly one of those
    for (size_t end = prompts_.size(); end > 0 && !Older(*prompts_[end - 1], sequence); --end)
      pages -= prompts_[end - 1]->needs_.pages;
    return pages;
  }
  int64_t PagesToStart(const Lease& lease, int64_t end) const {
    return store_.PagesToReach(lease, end, ahead_);
  }

 private:
  // What it needed when it was counted last counts no more.
  void Count(Sequence* sequence, const Sequence::PrefillNeeds& needs) {
    pages_ += needs.pages - sequence->needs_.pages;
    unplanned_ += needs.unplanned - sequence->needs_.unplanned;
    long_unplanned_ += needs.long_unplanned - sequence->needs_.long_unplanned;
    sequence->needs_ = needs;
  }

  const KvStore& store_;
  const int64_t ahead_;
  std::vector<Sequence*> prompts_;
  int64_t pages_ = 0;
  int32_t unplanned_ = 0;
  int32_t long_unplanned_ = 0;
};

}  // namespace tramontane

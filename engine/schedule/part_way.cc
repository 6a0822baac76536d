#include "engine/schedule/part_way.h"

#include <algorithm>
#include <cstddef>

#include "kernels/core/check.h"

namespace tramontane {

void PartWay::Add(Sequence* sequence) {
  const auto at = std::upper_bound(prompts_.begin(), prompts_.end(), sequence, IsOlder());
  needs_.insert(needs_.begin() + (at - prompts_.begin()), NeedsOf(*sequence));
  prompts_.insert(at, sequence);
  Count(NeedsOf(*sequence), 1);
}

void PartWay::Remove(const Sequence* sequence) {
  const auto index = static_cast<std::ptrdiff_t>(IndexOf(sequence));
  Count(needs_[static_cast<size_t>(index)], -1);
  prompts_.erase(prompts_.begin() + index);
  needs_.erase(needs_.begin() + index);
}

void PartWay::Update(const Sequence* sequence) {
  Needs& needs = needs_[IndexOf(sequence)];
  Count(needs, -1);
  needs = NeedsOf(*sequence);
  Count(needs, 1);
}

void PartWay::UpdateAll() {
  for (const Sequence* sequence : prompts_) Update(sequence);
}

void PartWay::TakePlanned(std::vector<Sequence*>* planned) {
  size_t kept = 0;
  for (size_t i = 0; i < prompts_.size(); ++i) {
    if (needs_[i].unplanned == 0) {
      Count(needs_[i], -1);
      planned->push_back(prompts_[i]);
      continue;
    }
    prompts_[kept] = prompts_[i];
    needs_[kept++] = needs_[i];
  }
  prompts_.resize(kept);
  needs_.resize(kept);
}

// From the youngest: who asks is mostly one of those.
int64_t PartWay::PagesOfOlder(const Sequence& sequence) const {
  int64_t pages = pages_;
  for (size_t end = prompts_.size(); end > 0 && !Older(*prompts_[end - 1], sequence); --end)
    pages -= needs_[end - 1].pages;
  return pages;
}

size_t PartWay::IndexOf(const Sequence* sequence) const {
  const auto at = std::lower_bound(prompts_.begin(), prompts_.end(), sequence, IsOlder());
  TM_CHECK(at != prompts_.end() && *at == sequence, "choice %d of request %s is not in prefill",
           sequence->choice, sequence->request->id.c_str());
  return static_cast<size_t>(at - prompts_.begin());
}

PartWay::Needs PartWay::NeedsOf(const Sequence& sequence) const {
  const bool is_unplanned = sequence.scheduled_len() < sequence.prefill_len();
  return {.pages = store_.PagesToReach(sequence.lease(), sequence.prefill_len(), ahead_),
          .unplanned = is_unplanned ? 1 : 0,
          .long_unplanned = is_unplanned && !sequence.fits_one_chunk() ? 1 : 0};
}

void PartWay::Count(const Needs& needs, int32_t sign) {
  pages_ += sign * needs.pages;
  unplanned_ += sign * needs.unplanned;
  long_unplanned_ += sign * needs.long_unplanned;
}

}  // namespace tramontane

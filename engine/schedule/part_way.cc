#include "engine/schedule/part_way.h"

namespace tramontane {

void PartWay::Add(Sequence* sequence) {
  InsertByAge(prompts_, sequence);
  Update(sequence);
}

void PartWay::Remove(Sequence* sequence) {
  RemoveFrom(prompts_, sequence);
  Count(sequence, {});
}

void PartWay::Update(Sequence* sequence) {
  const bool is_unplanned = sequence->prefill_left() > 0;
  Count(sequence, {.pages = PagesToStart(sequence->lease(), sequence->prefill_len()),
                   .unplanned = is_unplanned ? 1 : 0,
                   .long_unplanned = is_unplanned && !sequence->fits_one_chunk() ? 1 : 0});
}

void PartWay::UpdateAll() {
  for (Sequence* sequence : prompts_) Update(sequence);
}

void PartWay::TakePlanned(std::vector<Sequence*>* planned) {
  const auto is_planned = [](const Sequence* sequence) { return sequence->prefill_left() == 0; };
  for (Sequence* sequence : prompts_) {
    if (!is_planned(sequence)) continue;
    Count(sequence, {});
    planned->push_back(sequence);
  }
  std::erase_if(prompts_, is_planned);
}

// From the youngest: who asks is mostly one of those.
int64_t PartWay::PagesOfOlder(const Sequence& sequence) const {
  int64_t pages = pages_;
  for (size_t end = prompts_.size(); end > 0 && !Older(*prompts_[end - 1], sequence); --end)
    pages -= prompts_[end - 1]->needs_.pages;
  return pages;
}

// What it needed when it was counted last counts no more.
void PartWay::Count(Sequence* sequence, const Sequence::PrefillNeeds& needs) {
  pages_ += needs.pages - sequence->needs_.pages;
  unplanned_ += needs.unplanned - sequence->needs_.unplanned;
  long_unplanned_ += needs.long_unplanned - sequence->needs_.long_unplanned;
  sequence->needs_ = needs;
}

}  // namespace tramontane

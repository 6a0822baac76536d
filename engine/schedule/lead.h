// Lead: which prompts are so far ahead of other callers' that they wait for what those leave of a step. A
// value, good for one look at the prompts. Engine thread only; the scheduler's.
//
// A prompt stands at its tag and what has been computed of it by its caller's weight. Prompts of one caller
// and one level are never ahead of each other.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <vector>

#include "engine/schedule/callers.h"

namespace tramontane {

class Lead {
 public:
  // `slack`: tokens that a caller may be ahead.
  Lead(const std::vector<Sequence*>& part_way, const std::deque<Sequence*>& ready, int64_t slack)
      : slack_(slack) {
    for (const Sequence* sequence : part_way) {
      if (sequence->prefill_left() > 0) See(PlaceOf(*sequence));
    }
    // Oldest first, so behind two callers nobody is further behind.
    int groups = 0;
    const Sequence* first = nullptr;
    for (const Sequence* sequence : ready) {
      if (sequence->awaits_pages()) continue;
      const bool is_other = first == nullptr || !IsOneGroup(PlaceOf(*first), PlaceOf(*sequence));
      if (!is_other) continue;
      See(PlaceOf(*sequence));
      first = sequence;
      if (++groups == 2) return;
    }
  }

  bool IsAhead(const Sequence& sequence) const {
    const Place place = PlaceOf(sequence);
    const Place& other = IsOneGroup(place, least_) ? least_of_others_ : least_;
    if (other.caller == nullptr) return false;
    if (place.level != other.level) return place.level > other.level;
    return !place.caller->is_exempt() && place.progress > other.progress + place.caller->Scaled(slack_);
  }

 private:
  struct Place {
    int32_t level = 0;
    int64_t progress = 0;
    const CallerShare* caller = nullptr;  // null: nobody
  };

  static bool IsOneGroup(const Place& a, const Place& b) {
    return a.caller == b.caller && a.level == b.level;
  }
  static bool IsLess(const Place& a, const Place& b) {
    if (b.caller == nullptr) return true;
    return a.level != b.level ? a.level < b.level : a.progress < b.progress;
  }
  static Place PlaceOf(const Sequence& sequence) {
    const CallerShare* caller = sequence.caller();
    const int64_t left = sequence.prefill_len() - sequence.next_position();
    const int64_t tag = sequence.rank().tag;
    return {sequence.rank().level, std::max(tag, sequence.tag_end_ - caller->Scaled(left)), caller};
  }
  void See(const Place& place) {
    if (least_.caller == nullptr || IsOneGroup(place, least_)) {
      if (IsLess(place, least_)) least_ = place;
    } else if (IsLess(place, least_)) {
      least_of_others_ = least_;
      least_ = place;
    } else if (IsLess(place, least_of_others_)) {
      least_of_others_ = place;
    }
  }

  const int64_t slack_;
  Place least_;
  Place least_of_others_;  // of other callers or levels than that
};

}  // namespace tramontane

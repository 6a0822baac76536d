#include "engine/schedule/callers.h"

#include <algorithm>
#include <utility>

namespace tramontane {

// ---- who is there ---------------------------------------------------------------------------------

void Callers::Enter(Sequence* sequence) {
  const ShareParams& share = sequence->request->share;
  const auto [at, is_new] = callers_.try_emplace(share.caller);
  CallerShare& caller = at->second;
  if (is_new) caller.name = share.caller;
  if (caller.alive++ == 0) {
    idle_.erase({caller.virtual_time, &caller});
    ++alive_;
    caller.weight = share.weight;
    if (!caller.is_exempt()) weights_ += caller.weight;
  } else if (caller.weight != share.weight) {
    SetWeight(caller, share.weight);
  }
  ++priorities_[share.priority];
  sequence->caller_ = &caller;
}

void Callers::Leave(Sequence* sequence) {
  if (sequence->caller_ == nullptr) return;  // a choice that was never forked
  CallerShare& caller = *std::exchange(sequence->caller_, nullptr);
  const auto priority = priorities_.find(sequence->request->share.priority);
  if (--priority->second == 0) priorities_.erase(priority);
  if (--caller.alive > 0) return;
  --alive_;
  if (!caller.is_exempt()) weights_ -= caller.weight;
  caller.discards.clear();
  idle_.insert({caller.virtual_time, &caller});
  DropIdle();
}

void Callers::SetWeight(CallerShare& caller, int32_t weight) {
  const int32_t slots = caller.slots;
  CountSlots(caller, -slots);
  if (!caller.is_exempt()) weights_ += weight - caller.weight;
  caller.weight = weight;
  CountSlots(caller, slots);
}

void Callers::DropIdle() {
  while (!idle_.empty() && (idle_.begin()->first <= virtual_now_ || idle_.size() > kMostIdle)) {
    const CallerShare& caller = *idle_.begin()->second;
    idle_.erase(idle_.begin());
    callers_.erase(callers_.find(caller.name));
  }
}

void Callers::CountSlots(CallerShare& caller, int32_t change) {
  if (change == 0) return;
  const bool counts = !caller.is_exempt();
  if (counts && caller.slots > 0) by_slots_.erase({caller.Scaled(caller.slots), &caller});
  caller.slots += change;
  if (counts && caller.slots > 0) by_slots_.insert({caller.Scaled(caller.slots), &caller});
}

// ---- ranks ----------------------------------------------------------------------------------------

void Callers::Advance(const Sequence* first) {
  const int64_t now = first == nullptr ? latest_ : first->rank_.tag;
  if (now <= virtual_now_) return;
  virtual_now_ = now;
  DropIdle();
}

// So many tokens of the caller's part; from where on.
int64_t Callers::Take(CallerShare& caller, int64_t tokens) {
  const int64_t begin = std::max({caller.virtual_time, virtual_now_, caller.last_tag});
  if (caller.is_exempt()) return begin;
  caller.virtual_time = begin + caller.Scaled(tokens);
  latest_ = std::max(latest_, caller.virtual_time);
  return begin;
}

// Those of one caller go by arrival. So one that arrived before another's discard is ranked in front of that,
// too, however late it gets its slots.
void Callers::GiveRank(Sequence* sequence, int64_t tokens, int64_t now_ns) {
  const Request& request = *sequence->request;
  const int64_t periods = std::max<int64_t>(0, now_ns - request.received_ns) / limits_.priority_ageing_ns;
  sequence->rank_.level =
      static_cast<int32_t>(std::max<int64_t>(best_priority(), request.share.priority - periods));
  sequence->level_since_ns_ = request.received_ns + periods * limits_.priority_ageing_ns;

  CallerShare& caller = *sequence->caller_;
  int64_t tag = Take(caller, tokens);
  auto& discards = caller.discards;
  while (!discards.empty() && discards.front().first < sequence->arrival_) discards.pop_front();
  if (!discards.empty()) tag = std::min(tag, discards.front().second);
  caller.last_tag = std::max(caller.last_tag, tag);
  sequence->rank_.tag = tag;
  sequence->expected_tokens_ = tokens;
  sequence->tag_end_ = tag + caller.Scaled(tokens);
}

void Callers::GiveRankAnew(Sequence* sequence, int64_t tokens, int64_t now_ns) {
  CallerShare& caller = *sequence->caller_;
  const int32_t priority = sequence->request->share.priority;
  sequence->level_since_ns_ = now_ns;
  const int64_t tag = caller.last_tag = Take(caller, tokens);
  sequence->rank_ = {.level = priority, .tag = tag};
  sequence->expected_tokens_ = tokens;
  sequence->tag_end_ = tag + caller.Scaled(tokens);
  const auto line = caller.lines.find(priority);
  if (line == caller.lines.end()) return;
  auto& discards = caller.discards;
  const int64_t last_waiting = (*line->second.waiting.rbegin())->arrival_;
  if (discards.empty() || discards.back().first < last_waiting) discards.push_back({sequence->arrival_, tag});
}

void Callers::Correct(Sequence* sequence, int64_t tokens) {
  if (sequence->expected_tokens_ < 0) return;  // it began before
  CallerShare& caller = *sequence->caller_;
  const int64_t more = caller.Scaled(tokens) - caller.Scaled(sequence->expected_tokens_);
  sequence->expected_tokens_ = -1;
  sequence->tag_end_ = sequence->rank_.tag + caller.Scaled(tokens);
  if (caller.is_exempt()) return;
  caller.virtual_time = std::max(caller.virtual_time + more, caller.last_tag);
  latest_ = std::max(latest_, caller.virtual_time);
}

// No better than what is alive was given: so levels end somewhere, and what goes in front of what is settled.
// What others have had meanwhile is not made up for.
bool Callers::Age(Sequence* sequence, int64_t now_ns) {
  const int64_t periods = (now_ns - sequence->level_since_ns_) / limits_.priority_ageing_ns;
  if (periods <= 0) return false;
  sequence->level_since_ns_ += periods * limits_.priority_ageing_ns;
  Rank& rank = sequence->rank_;
  const auto level = static_cast<int32_t>(std::max<int64_t>(best_priority(), rank.level - periods));
  if (level >= rank.level) return false;
  rank.level = level;
  if (rank.tag >= virtual_now_) return true;
  CallerShare& caller = *sequence->caller_;
  const int64_t left = sequence->prefill_len_ - sequence->next_position();
  rank.tag = caller.last_tag = Take(caller, left);
  sequence->tag_end_ = rank.tag + caller.Scaled(left);
  return true;
}

// ---- slots ----------------------------------------------------------------------------------------

bool Callers::IsBelowItsShare(const CallerShare& caller) const {
  return !caller.is_exempt() && caller.slots * weights_ < int64_t{limits_.max_sequences} * caller.weight;
}

int32_t Callers::SpareSlots(const CallerShare& caller) const {
  const int64_t share = (int64_t{limits_.max_sequences} * caller.weight + weights_ - 1) / weights_;
  return static_cast<int32_t>(caller.slots - share);
}

}  // namespace tramontane

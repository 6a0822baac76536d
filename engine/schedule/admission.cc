#include "engine/schedule/admission.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/request/step_bounds.h"
#include "kernels/core/check.h"

namespace tramontane {
namespace {

// A disk that is asked for something and reads nothing for so long is used no more.
constexpr int64_t kDiskPatienceNs = 10'000'000'000;

// Levels are looked at so often in the time that raises them by one.
constexpr int64_t kLooksALevel = 10;

}  // namespace

Admission::Admission(const EngineLimits& limits, KvStore& store, const PrefillShare& share, PartWay& prompts)
    : limits_(limits),
      store_(store),
      share_(share),
      prompts_(prompts),
      callers_(limits),
      queue_(limits.priority_ageing_ns),
      free_slots_(limits.max_sequences) {
  for (int32_t slot = limits.max_sequences - 1; slot >= 0; --slot) idle_slots_.push_back(slot);
}

void Admission::Add(Sequence* sequence, int64_t arrival) {
  const Request& request = *sequence->request;
  TM_CHECK(sequence->state_ == SequenceState::kWaiting && sequence->slots_ == 0,
           "request %s is admitted twice", request.id.c_str());
  TM_CHECK(request.choices <= limits_.max_sequences, "%d choices", request.choices);
  const bool endless = sequence->policy().type != ContextPolicyType::kNone;
  TM_CHECK(sequence->max_len <= (endless ? kMaxEndlessText : limits_.context) && !sequence->tokens.empty(),
           "a sequence of %lld tokens", static_cast<long long>(sequence->max_len));
  TM_CHECK(sequence->is_branch() || arrival > std::exchange(last_arrival_, arrival),
           "request %s is admitted out of order", request.id.c_str());
  sequence->arrival_ = arrival;
  sequence->wanted_slots_ = request.choices;
  sequence->lease_ = store_.NewLease(MaskPolicyOf(sequence->policy()));
  sequence->lease_.prefers_cache = request.prefers_cache;
  callers_.Enter(sequence);
  queue_.Add(sequence);
}

void Admission::AddBranch(const Sequence& prompt, Sequence* branch) {
  branch->rank_ = prompt.rank_;
  branch->tag_end_ = prompt.rank_.tag;
  branch->expected_tokens_ = 0;
  branch->is_ranked_ = true;
  Add(branch, prompt.arrival_);
}

void Admission::Fork(Sequence& parent, Sequence* sequence) {
  --parent.slots_;
  sequence->slots_ = 1;
  TakeSlot(sequence);
  sequence->arrival_ = parent.arrival_;
  sequence->rank_ = parent.rank_;
  sequence->tag_end_ = parent.tag_end_;
  sequence->is_ranked_ = true;
  callers_.Enter(sequence);
}

// Who has been put off begins first: a plan looks up a long text, or has one begin.
void Admission::BeginPlan(int64_t now_ns) {
  walk_end_ = store_.walked_blocks() + kBlocksWalked.most;
  has_put_off_ = std::exchange(puts_off_begins_, false);
  const bool begins_first = has_put_off_;
  now_ns_ = now_ns;
  if (store_.has_tier()) LookAtTier(now_ns);
  if (callers_.has_priorities()) Age();
  if (!begins_first) GiveSlots();
}

// Those that are part-way, too: better ones could otherwise hold them up for ever.
void Admission::Age() {
  if (now_ns_ - aged_ns_ < limits_.priority_ageing_ns / kLooksALevel) return;
  aged_ns_ = now_ns_;
  bool any = false;
  for (Sequence* sequence : ready_) any = callers_.Age(sequence, now_ns_) || any;
  for (Sequence* sequence : prompts_.all()) any = callers_.Age(sequence, now_ns_) || any;
  if (!any) return;
  std::sort(ready_.begin(), ready_.end(), IsOlder());
  prompts_.Sort();
}

bool Admission::PutsOff() {
  const bool has_walked_enough = store_.walked_blocks() >= walk_end_;
  has_put_off_ = has_put_off_ || has_walked_enough;
  return has_walked_enough;
}

bool Admission::PutsOffBegins() { return puts_off_begins_ = PutsOff(); }

void Admission::GiveSlots() {
  while (Sequence* next = Next()) {
    if (next->wanted_slots_ > free_slots_) {
      if (free_slots_ > 0) queue_.SaveFor(next);
      return;
    }
    if (PutsOff()) return;
    GiveSlotsTo(next);
  }
}

void Admission::KeepSlotsFor(Sequence* sequence) {
  queue_.SaveFor(sequence);
  GiveSlots();
}

void Admission::GiveSlotsTo(Sequence* sequence) {
  queue_.Remove(sequence);
  CountSlots(sequence, sequence->wanted_slots_);
  TakeSlot(sequence);
  // (It may have come since the step began.)
  const Request& request = *sequence->request;
  if (sequence->timings_.admitted_ns == 0)
    sequence->timings_.admitted_ns = std::max({now_ns_, request.received_ns, request.tokenized_ns});
  MakeReady(sequence);
}

Sequence* Admission::Next() const {
  return queue_.size() == 0 ? nullptr : queue_.Next(now_ns_, callers_.best_priority());
}

Sequence* Admission::LacksSlots() const {
  Sequence* next = Next();
  const bool lacks = next != nullptr && next->wanted_slots_ > free_slots_;
  return lacks && callers_.IsBelowItsShare(*next->caller_) ? next : nullptr;
}

void Admission::GiveUpSlots(Sequence* sequence) {
  RemoveFrom(ready_, sequence);
  sequence->wanted_slots_ = sequence->slots_;
  ReturnSlots(sequence);
  if (!sequence->held_) queue_.Add(sequence);
}

void Admission::CountSlots(Sequence* sequence, int32_t change) {
  sequence->slots_ += change;
  free_slots_ -= change;
  if (change == 0) return;
  callers_.CountSlots(*sequence->caller_, change);
  queue_.Update(*sequence->caller_);
}

void Admission::TakeSlot(Sequence* sequence) {
  sequence->slot_ = idle_slots_.back();
  idle_slots_.pop_back();
}

void Admission::ReturnSlots(Sequence* sequence) {
  CountSlots(sequence, -sequence->slots_);
  if (sequence->slot_ >= 0) idle_slots_.push_back(std::exchange(sequence->slot_, -1));
}

void Admission::End(Sequence* sequence) {
  ReturnSlots(sequence);
  callers_.Leave(sequence);
}

void Admission::MakeReady(Sequence* sequence) {
  if (sequence->slots_ == 0) return queue_.Add(sequence);
  sequence->prefill_len_ = static_cast<int64_t>(sequence->tokens.size());
  Expect(sequence, KvStore::Beyond::kFetch);
  if (std::exchange(sequence->is_ranked_, true)) {
    sequence->level_since_ns_ = now_ns_;
  } else {
    Advance();
    callers_.GiveRank(sequence, sequence->prefill_len_ - sequence->expected_hit(), now_ns_);
    queue_.Update(*sequence->caller_);
  }
  InsertByAge(ready_, sequence);
}

// Virtual time is that of the oldest with prefill to do.
void Admission::Advance() {
  const Sequence* first = FirstReady();
  const Sequence* part_way = prompts_.empty() ? nullptr : prompts_.all().front();
  if (first == nullptr || (part_way != nullptr && Older(*part_way, *first))) first = part_way;
  callers_.Advance(first);
}

void Admission::RankAnew(Sequence* sequence, int64_t arrival) {
  last_arrival_ = std::max(last_arrival_, arrival);
  sequence->arrival_ = arrival;
  Advance();
  callers_.GiveRankAnew(sequence, std::ssize(sequence->tokens) - sequence->kept_len(), now_ns_);
  queue_.Update(*sequence->caller_);
}

void Admission::Charge(Sequence* sequence) {
  callers_.Correct(sequence, sequence->prefill_len_ - sequence->accepted_len_);
  queue_.Update(*sequence->caller_);
}

void Admission::Remove(Sequence* sequence) {
  if (!queue_.Remove(sequence)) RemoveFrom(ready_, sequence);
}

// Its plans are made as if it began there. Behind what is kept for a branch nothing has a name.
void Admission::Expect(Sequence* sequence, KvStore::Beyond beyond) {
  const int64_t kept = sequence->kept_len();
  if (sequence->is_branch() && kept > 0) {
    sequence->lease_.expected = {.tokens = kept, .ends_within_page = store_.paging().OffsetOf(kept) != 0};
  } else {
    store_.Expect(sequence->lease_, QueryFor(*sequence), beyond, kept);
  }
  sequence->fits_one_chunk_ = share_.FitsOneChunk(*sequence);
}

// What a prompt waits for was asked for when it was made ready, once: what makes room for it may be another
// one's. What is set aside is asked for again and again, of the oldest alone.
void Admission::LookAtTier(int64_t now_ns) {
  const bool has_read = store_.PollTier();
  if (has_read || !store_.tier_reads()) disk_answered_ns_ = now_ns;
  if (now_ns - disk_answered_ns_ > kDiskPatienceNs) {
    store_.TurnDiskOff("it has read nothing for " + std::to_string(kDiskPatienceNs / 1'000'000'000) + " s");
  }
  if (has_read) ++tier_reads_;
  bool is_oldest = true;
  for (Sequence* sequence : ready_) {
    const bool is_set_aside = sequence->lease_.is_set_aside();
    const bool is_asked_for = is_set_aside && std::exchange(is_oldest, false);
    const bool has_news = sequence->seen_reads_ != tier_reads_ || !store_.tier_reads();
    if (!is_asked_for && !(has_news && (is_set_aside || sequence->awaits_pages()))) continue;
    if (PutsOff()) return;  // the others have news in the next step, too
    sequence->seen_reads_ = tier_reads_;
    Expect(sequence, is_asked_for ? KvStore::Beyond::kFetch : KvStore::Beyond::kLook);
  }
}

// Its first position to compute is the first that no known page has, and where positions are to be scored,
// the first of those at most. After a discard more than the sinks may be known, from others that discarded
// the same.
void Admission::Begin(Sequence* sequence) {
  walked_before_begin_ = store_.walked_blocks();
  ExpectedHit expected = sequence->lease_.expected;  // for when it is given back
  int64_t hit = sequence->kept_len();
  if (hit > 0 && (sequence->is_branch() || hit > store_.KnownPrefix(sequence->lease_, QueryFor(*sequence)))) {
    sequence->lease_ = store_.Fork(sequence->kept(), hit);
  } else {
    hit = store_.Acquire(sequence->lease_, QueryFor(*sequence));
  }
  expected.tokens = sequence->scheduled_len_ = sequence->accepted_len_ = hit;
  sequence->lease_.expected = expected;
}

// What was walked for one that does not begin after all does not count: it may be tried again.
void Admission::GiveBack(Sequence* sequence) {
  if (sequence->state_ == SequenceState::kWaiting) walk_end_ += store_.walked_blocks() - walked_before_begin_;
  FoundNames found = std::move(sequence->lease_.found);
  store_.SetAside(sequence->lease_, sequence->accepted_len_);
  sequence->lease_.found = std::move(found);
  sequence->scheduled_len_ = sequence->accepted_len_ = 0;
}

PrefixQuery Admission::QueryFor(const Sequence& sequence) {
  const bool scores = sequence.scored_len_ < sequence.ScoresBefore(sequence.prompt_len());
  return {.tokens = TokenView(sequence.tokens).First(sequence.prefill_len_),
          .identity = sequence.identity,
          .most_tokens = scores ? sequence.ToScore(sequence.scored_len_).position : INT64_MAX,
          .owner = sequence.request->kv_owner.get(),
          .path = &sequence.path};
}

Sequence* Admission::FirstReady() const {
  const auto first = std::find_if(ready_.begin(), ready_.end(),
                                  [](const Sequence* sequence) { return !sequence->awaits_pages(); });
  return first == ready_.end() ? nullptr : *first;
}

Sequence* Admission::FirstLongPrompt() const {
  const auto first = std::find_if(ready_.begin(), ready_.end(), [](const Sequence* sequence) {
    return !sequence->fits_one_chunk_ && !sequence->awaits_pages();
  });
  return first == ready_.end() ? nullptr : *first;
}

bool Admission::awaits_pages() const {
  return std::any_of(ready_.begin(), ready_.end(), [](const Sequence* s) { return s->awaits_pages(); });
}

}  // namespace tramontane

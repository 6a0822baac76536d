#include "engine/schedule/scheduler.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <string>
#include <utility>

#include "kernels/core/check.h"

namespace tramontane {
namespace {

template <typename List>
void InsertByAge(List& list, Sequence* sequence) {
  const auto older = [](const Sequence* a, const Sequence* b) { return Older(*a, *b); };
  list.insert(std::upper_bound(list.begin(), list.end(), sequence, older), sequence);
}

template <typename List>
bool Remove(List& list, const Sequence* sequence) {
  const auto at = std::find(list.begin(), list.end(), sequence);
  if (at == list.end()) return false;
  list.erase(at);
  return true;
}

// A disk that is asked for something and reads nothing for so long is used no more.
constexpr int64_t kDiskPatienceNs = 10'000'000'000;

// Tokens of prompts that a step makes ready, for each of which it looks at what the store knows; one prompt
// at least. The others come with the next step.
constexpr int64_t kMostTokensReady = 1 << 17;

int64_t PrefillLeft(const Sequence& sequence) { return sequence.prefill_len() - sequence.scheduled_len(); }

// The token at max_len - 1 is the last one, and it is never fed back. Before a discard nothing is computed at
// positions that will be others'.
bool HasDecodeLeft(const Sequence& sequence) {
  return sequence.scheduled_len() < std::min(sequence.max_len - 1, sequence.computed_before_discard());
}

// Keys that a row of the sequence sees at most.
int64_t MostKeys(const Sequence& sequence) {
  return std::min(sequence.lease().plain_len == INT64_MAX ? kMaxContext : sequence.lease().policy.n_ctx,
                  kMaxContext);
}

// The first positions whose pages are kept for what is computed after a discard.
int64_t PrefixToKeep(const Sequence& sequence) {
  const ContextPolicy policy = sequence.request->context_policy.value_or(ContextPolicy());
  return policy.type == ContextPolicyType::kReevaluate ? policy.n_keep : 0;
}

bool HasKept(const Sequence& sequence) { return !sequence.kept().tables.empty(); }

// Of a sequence that waits.
int64_t KeptPrefix(const Sequence& sequence) { return HasKept(sequence) ? PrefixToKeep(sequence) : 0; }

StepRow* FindRow(StepPlan* plan, const Sequence* sequence) {
  for (StepRow& row : plan->rows) {
    if (row.sequence == sequence) return &row;
  }
  return nullptr;
}

// Who shares a prefix stays beside each other. Where all are of one kind nothing is moved.
void PutPlainRowsFirst(std::vector<StepRow>* rows) {
  if (std::is_partitioned(rows->begin(), rows->end(), IsPlain)) return;
  std::stable_partition(rows->begin(), rows->end(), IsPlain);
}

}  // namespace

Scheduler::Scheduler(const EngineLimits& limits, const KvLayout& layout, const StepCosts& costs, KvTier* tier)
    : limits_(limits),
      cost_(layout, limits.attended_keys_per_token),
      least_chunk_(LeastChunk(layout, limits.max_step_tokens)),
      has_window_(std::any_of(layout.groups.begin(), layout.groups.end(),
                              [](const auto& group) { return group.window > 0; })),
      store_(layout, limits.pool_pages, limits.prefix_cache ? PrefixCache::kOn : PrefixCache::kOff,
             ChainedHash, tier, KvStore::LiveBlocks(layout, limits.max_sequences, limits.context)),
      costs_(costs),
      prefill_(store_, least_chunk_),
      free_slots_(limits.max_sequences) {
  for (int32_t slot = limits.max_sequences - 1; slot >= 0; --slot) idle_slots_.push_back(slot);
  TM_CHECK(limits.context <= ContextThatFits(layout, limits.pool_pages, limits.max_step_tokens),
           "a context of %lld tokens does not fit %lld pages", static_cast<long long>(limits.context),
           static_cast<long long>(limits.pool_pages));
  if (tier != nullptr && costs_.prefill.known()) store_.SetTokenNs(costs_.prefill.token_ns());
}

void Scheduler::Admit(Sequence* sequence, int64_t arrival) {
  TM_CHECK(sequence->state_ == SequenceState::kWaiting && sequence->slots_ == 0 && sequence->choice == 0,
           "request %s is admitted twice", sequence->request->id.c_str());
  TM_CHECK(sequence->request->choices <= limits_.max_sequences, "%d choices", sequence->request->choices);
  const bool endless =
      sequence->request->context_policy.value_or(ContextPolicy()).type != ContextPolicyType::kNone;
  TM_CHECK(sequence->max_len <= (endless ? kMaxEndlessText : limits_.context) && !sequence->tokens.empty(),
           "a sequence of %lld tokens", static_cast<long long>(sequence->max_len));
  sequence->arrival_ = arrival;
  TM_CHECK(queue_.empty() || Older(**queue_.rbegin(), *sequence), "request %s is admitted out of order",
           sequence->request->id.c_str());
  sequence->lease_ =
      store_.NewLease(MaskPolicyOf(sequence->request->context_policy.value_or(ContextPolicy())),
                      sequence->tree != nullptr ? sequence->tree->trunk_len : INT64_MAX);
  sequence->lease_.prefers_cache = sequence->request->prefers_cache;
  queue_.insert(queue_.end(), sequence);
}

// ---- lanes --------------------------------------------------------------------------------------

StepPlan Scheduler::Plan(int64_t now_ns) {
  TM_CHECK(steps_in_flight() < limits_.steps_in_flight, "%d steps are in flight", steps_in_flight());
  store_.ForgetOrphans();
  if (store_.has_tier()) LookAtTier(now_ns);
  GiveSlots(now_ns);
  victim_in_flight_ = nullptr;
  tree_bytes_left_ = MaxTreeBytes(store_.layout(), limits_.context);
  StepPlan plan;
  plan.step = planned_steps_ + 1;
  const bool decode_waits = DecodeWaits();
  const bool decode_due = decode_waits && DecodeIsDue();
  if (decode_due) PlanDecode(&plan);
  if (plan.rows.empty()) PlanPrefill(&plan, now_ns);
  if (plan.rows.empty() && decode_waits && !decode_due) PlanDecode(&plan);
  store_.EndPlan();
  if (plan.rows.empty()) {
    TM_CHECK(steps_in_flight() > 0 || AnyHeld() || awaits_pages() ||
                 (prefill_.empty() && !decode_waits && (ready_.empty() || !decode_.empty())),
             "gridlock: %zu part-way, %zu in decode, %zu ready, %lld pages available", prefill_.size(),
             decode_.size(), ready_.size(), static_cast<long long>(store_.available()));
    return {};
  }
  PutPlainRowsFirst(&plan.rows);
  prefill_run_ = plan.lane == Lane::kPrefill && decode_waits ? prefill_run_ + 1 : 0;
  ++planned_steps_;
  for (const StepRow& row : plan.rows) {
    ++row.sequence->steps_in_flight_;
    plan.tokens += row.count;
  }
  return plan;
}

// ---- pages that come back ------------------------------------------------------------------------

// What a prompt waits for was asked for when it was made ready, once: what makes room for it may be another
// one's. What is parked is asked for again and again, of the oldest alone.
void Scheduler::LookAtTier(int64_t now_ns) {
  const bool has_read = store_.PollTier();
  if (has_read || !store_.tier_reads()) disk_answered_ns_ = now_ns;
  if (now_ns - disk_answered_ns_ > kDiskPatienceNs) {
    store_.TurnDiskOff("it has read nothing for " + std::to_string(kDiskPatienceNs / 1'000'000'000) + " s");
  }
  if (has_read) ++tier_reads_;
  bool is_oldest = true;
  int64_t tokens = 0;
  for (Sequence* sequence : ready_) {
    const bool is_parked = sequence->lease_.is_parked();
    const bool is_asked_for = is_parked && std::exchange(is_oldest, false);
    const bool has_news = sequence->seen_reads_ != tier_reads_ || !store_.tier_reads();
    if (!is_asked_for && !(has_news && (is_parked || sequence->awaits_pages_))) continue;
    if (tokens > kMostTokensReady) return;  // the others have news in the next step, too
    tokens += static_cast<int64_t>(sequence->tokens.size());
    sequence->seen_reads_ = tier_reads_;
    sequence->awaits_pages_ = is_asked_for ? store_.Fetch(sequence->lease_, QueryFor(*sequence))
                                           : store_.IsComing(sequence->lease_, QueryFor(*sequence));
    Expect(sequence);
  }
}

bool Scheduler::awaits_pages() const {
  return std::any_of(ready_.begin(), ready_.end(), [](const Sequence* s) { return s->awaits_pages_; });
}

// In order of arrival and never around a request that needs more slots than are free: so nothing starves it.
void Scheduler::GiveSlots(int64_t now_ns) {
  int64_t tokens = 0;
  while (!queue_.empty() && (*queue_.begin())->request->choices <= free_slots_ && tokens < kMostTokensReady) {
    Sequence* sequence = *queue_.begin();
    queue_.erase(queue_.begin());
    tokens += static_cast<int64_t>(sequence->tokens.size());
    sequence->slots_ = sequence->request->choices;
    free_slots_ -= sequence->slots_;
    TakeSlot(sequence);
    sequence->timings_.admitted_ns = now_ns;
    MakeReady(sequence);
  }
}

// Of those that it or its parent has been given.
void Scheduler::TakeSlot(Sequence* sequence) {
  sequence->slot_ = idle_slots_.back();
  idle_slots_.pop_back();
}

bool Scheduler::DecodeWaits() const {
  return std::any_of(decode_.begin(), decode_.end(),
                     [](const Sequence* s) { return HasDecodeLeft(*s) && !s->held_; });
}

// Whether decode comes before prefill in this step, where both could go.
bool Scheduler::DecodeIsDue() const {
  switch (limits_.lane_policy) {
    case LanePolicy::kFair:
      return prefill_run_ >= limits_.max_prefill_steps;
    case LanePolicy::kPrefillFirst:
      return false;
    case LanePolicy::kDecodeFirst:
      return true;
  }
  return true;
}

bool Scheduler::AnyHeld() const {
  return std::any_of(decode_.begin(), decode_.end(), [](const Sequence* s) { return s->held_; });
}

// Held ones too: they go on as soon as their masks are there.
bool Scheduler::AnyDecodes() const {
  return std::any_of(decode_.begin(), decode_.end(), [](const Sequence* s) { return HasDecodeLeft(*s); });
}

// One token for every sequence in decode, oldest first. Who goes is settled before any page is taken, so that
// no page given back by preemption becomes the target of a copy in the same step that copies from it.
void Scheduler::PlanDecode(StepPlan* plan) {
  plan->rows.reserve(decode_.size());
  int64_t promised = 0;
  rows_ = decode_;  // preemption shortens the list
  for (Sequence* sequence : rows_) {
    const bool is_preempted = sequence->state_ != SequenceState::kDecode;
    if (is_preempted || !HasDecodeLeft(*sequence) || SitsOut(*sequence)) continue;
    const int64_t position = sequence->scheduled_len_;
    const auto needed = [&] { return store_.PagesNeeded(sequence->lease_, position, position + 1); };
    int64_t pages = needed();
    while (promised + pages > store_.available() && MakeRoomFor(*sequence)) {
      pages = needed();  // less, when the preempted one shared the page to be written
    }
    if (promised + pages > store_.available()) continue;
    promised += pages;
    plan->rows.push_back({.sequence = sequence, .start = position, .count = 1, .ask = {.samples = 1}});
  }
  if (plan->rows.empty()) return;
  plan->lane = Lane::kDecode;
  plan->cost = static_cast<int64_t>(plan->rows.size());
  for (const StepRow& row : plan->rows) {
    store_.Extend(row.sequence->lease_, row.start, row.start + 1, &plan->copies);
    plan->attended_keys += cost_.AttendedKeys(row.start, row.start + 1, MostKeys(*row.sequence));
    ++row.sequence->scheduled_len_;
  }
}

// The sharing rule: half of the budget for the oldest prompt; the rest for prompts that fit into it whole, in
// order; what they leave goes to the shortest remaining, the oldest among them.
void Scheduler::PlanPrefill(StepPlan* plan, int64_t now_ns) {
  if (prefill_.empty() && ready_.empty()) return;
  prefill_.UpdateAll();
  if (!ready_.empty()) LetGoOfWhatIsInTheWay(ready_.front());
  const Budget budget = PrefillBudget();
  Budget left = budget;
  GiveOldest(&left, plan);
  GiveShortPrompts(&left, plan);
  GiveShortestRemaining(&left, plan);
  if (plan->rows.empty()) return;
  plan->lane = Lane::kPrefill;
  plan->cost = cost_.TokenEquivalents(budget.parts - left.parts);
  FinishPrefillRows(plan, now_ns);
}

// ---- prefill: how much --------------------------------------------------------------------------

// Beside decode a step takes what fits between two decode steps, but never fewer tokens than
// least_step_tokens. As long as no step was timed it takes those.
Scheduler::Budget Scheduler::PrefillBudget() const {
  Budget budget = {limits_.max_step_tokens, limits_.step_cost() * cost_.parts_per_token(),
                   std::numeric_limits<double>::infinity()};
  const bool is_timed = limits_.decode_gap_ns > 0 && limits_.lane_policy == LanePolicy::kFair;
  if (!is_timed || !AnyDecodes()) return budget;
  if (!costs_.prefill.known()) {
    budget.tokens = std::clamp<int64_t>(limits_.least_step_tokens, 1, budget.tokens);
    return budget;
  }
  const double between_ns = static_cast<double>(limits_.decode_gap_ns) - DecodeStepNs();
  budget.ns = std::max(between_ns / limits_.max_prefill_steps - costs_.prefill.fixed_ns(), LeastStepNs());
  return budget;
}

double Scheduler::DecodeStepNs() const {
  StepWork work;
  for (const Sequence* sequence : decode_) {
    if (!HasDecodeLeft(*sequence)) continue;
    ++work.tokens;
    work.attended_keys +=
        cost_.AttendedKeys(sequence->scheduled_len_, sequence->scheduled_len_ + 1, MostKeys(*sequence));
  }
  return costs_.decode.Ns(work);
}

// The time of least_step_tokens tokens of whichever prompt they take longest in, and a shade more, so that
// sharing it out in fractions loses none of them.
double Scheduler::LeastStepNs() const {
  const int64_t tokens = std::clamp<int64_t>(limits_.least_step_tokens, 1, limits_.max_step_tokens);
  double most_ns = ChunkNs(0, tokens, kMaxContext);
  for (const Sequence* sequence : prefill_.all()) {
    const int64_t begin = sequence->scheduled_len_;
    most_ns = std::max(most_ns, ChunkNs(begin, begin + tokens, MostKeys(*sequence)));
  }
  return most_ns * (1 + 1e-9);
}

double Scheduler::ChunkNs(int64_t begin, int64_t end, int64_t most_keys) const {
  const double keys_ns =
      costs_.prefill.key_ns() * static_cast<double>(cost_.AttendedKeys(begin, end, most_keys));
  return costs_.prefill.token_ns() * static_cast<double>(end - begin) + keys_ns;
}

// ---- prefill: who gets how much -----------------------------------------------------------------

// Half of the budget, rounded up, and at least one token, whatever it costs. For want of pages the oldest
// preempts.
void Scheduler::GiveOldest(Budget* left, StepPlan* plan) {
  const Budget half = {left->tokens - left->tokens / 2, left->parts - left->parts / 2, left->ns / 2};
  Sequence* oldest = OldestPrompt(half);
  if (oldest == nullptr || SitsOut(*oldest)) return;
  const auto may_go = [&] { return oldest->state_ != SequenceState::kWaiting || MayStart(*oldest, half); };
  while (Give(oldest, half, Least::kOneToken, left, plan) == 0 && may_go() && MakeRoomFor(*oldest)) {
  }
}

// The oldest of all prompts that are part-way or may start with this share; null when there is none.
Sequence* Scheduler::OldestPrompt(const Budget& share) const {
  Sequence* part_way = prefill_.empty() ? nullptr : prefill_.all().front();
  Sequence* waiting = FirstReady();
  const bool waiting_is_older = waiting != nullptr && (part_way == nullptr || Older(*waiting, *part_way));
  return waiting_is_older && MayStart(*waiting, share) ? waiting : part_way;
}

// In order of age: those that have begun, then those that wait. Each is done in this step unless the budget
// or the pages end, so at most one of them is left part-way.
void Scheduler::GiveShortPrompts(Budget* left, StepPlan* plan) {
  for (Sequence* sequence : prefill_.all()) {
    if (sequence->fits_one_chunk_) Give(sequence, *left, Least::kNothing, left, plan);
  }
  for (size_t i = 0; i < ready_.size() && left->tokens > 0;) {
    Sequence* sequence = ready_[i];
    if (!sequence->fits_one_chunk_ || sequence->awaits_pages_) {
      ++i;
      continue;
    }
    if (!MayStart(*sequence, *left) || Give(sequence, *left, Least::kNothing, left, plan) == 0)
      return;  // leaves ready_ otherwise
  }
}

// Among those part-way and the first that waits, then those behind it: they start in order of age.
void Scheduler::GiveShortestRemaining(Budget* left, StepPlan* plan) {
  if (left->tokens == 0) return;
  shares_.clear();
  std::copy_if(prefill_.all().begin(), prefill_.all().end(), std::back_inserter(shares_),
               [](const Sequence* sequence) { return PrefillLeft(*sequence) > 0; });
  if (Sequence* waiting = FirstLongPrompt()) shares_.push_back(waiting);
  std::sort(shares_.begin(), shares_.end(), [this](const Sequence* a, const Sequence* b) {
    const int64_t a_left = RemainingParts(*a);
    const int64_t b_left = RemainingParts(*b);
    return a_left != b_left ? a_left < b_left : Older(*a, *b);
  });
  for (Sequence* sequence : shares_) {
    if (sequence->state_ == SequenceState::kWaiting && !MayStart(*sequence, *left)) continue;
    Give(sequence, *left, Least::kNothing, left, plan);
  }
  while (left->tokens > 0) {
    Sequence* waiting = FirstLongPrompt();
    if (waiting == nullptr || !MayStart(*waiting, *left) ||
        Give(waiting, *left, Least::kNothing, left, plan) == 0)
      return;
  }
}

// The oldest that waits, but for its pages; null when there is none.
Sequence* Scheduler::FirstReady() const {
  const auto first = std::find_if(ready_.begin(), ready_.end(),
                                  [](const Sequence* sequence) { return !sequence->awaits_pages_; });
  return first == ready_.end() ? nullptr : *first;
}

// The oldest of those that does not fit one chunk; null when there is none.
Sequence* Scheduler::FirstLongPrompt() const {
  const auto first = std::find_if(ready_.begin(), ready_.end(), [](const Sequence* sequence) {
    return !sequence->fits_one_chunk_ && !sequence->awaits_pages_;
  });
  return first == ready_.end() ? nullptr : *first;
}

// As much of the share as the sequence can use, with the pages for it; returns the tokens. A waiting sequence
// begins behind what the store knows of its tokens, and has started if it gets any.
int64_t Scheduler::Give(Sequence* sequence, Budget share, Least least, Budget* left, StepPlan* plan) {
  if (SitsOut(*sequence)) return 0;
  const bool waits = sequence->state_ == SequenceState::kWaiting;
  if (waits) Begin(sequence);
  const int64_t start = sequence->scheduled_len_;
  const int64_t most_keys = MostKeys(*sequence);
  if (least == Least::kOneToken) {
    share.parts = std::max(share.parts, cost_.Parts(start, start + 1, most_keys));
    share.ns = std::max(share.ns, ChunkNs(start, start + 1, most_keys));
  }
  StepRow* row = waits ? nullptr : FindRow(plan, sequence);
  const int64_t count = ChunkThatFits(*sequence, share, row);
  // Less may be known than when it was made ready, and then it is not done at once.
  const bool lacks_place = waits && start + count < sequence->prefill_len_ && !HasPlace(*sequence);
  if (count == 0 || lacks_place) {
    if (waits) GiveBack(sequence);
    if (lacks_place) Expect(sequence);
    return 0;
  }
  store_.Extend(sequence->lease_, start, start + count, &plan->copies);
  sequence->scheduled_len_ += count;
  left->tokens -= count;
  left->parts -= cost_.Parts(start, start + count, most_keys);
  left->ns -= ChunkNs(start, start + count, most_keys);
  tree_bytes_left_ -= TreeBytesOf(*sequence, start, start + count);
  if (row != nullptr) {
    row->count += static_cast<int32_t>(count);
  } else {
    plan->rows.push_back(
        {.sequence = sequence, .start = start, .count = static_cast<int32_t>(count), .ask = {}});
  }
  if (waits)
    Start(sequence);
  else
    prefill_.Update(sequence);
  return count;
}

// Its first position to compute is the first that no known page has, and where positions are to be scored,
// the first of those at most. After a discard more than the sinks may be known, from others that discarded
// the same.
void Scheduler::Begin(Sequence* sequence) {
  int64_t hit = KeptPrefix(*sequence);
  if (hit > 0 && hit > store_.KnownPrefix(sequence->lease_, QueryFor(*sequence))) {
    sequence->lease_ = store_.Fork(sequence->kept_, hit);
  } else {
    hit = store_.Acquire(sequence->lease_, QueryFor(*sequence));
  }
  sequence->expected_hit_ = hit;
  sequence->scheduled_len_ = hit;
  sequence->accepted_len_ = hit;
}

PrefixQuery Scheduler::QueryFor(const Sequence& sequence) {
  if (sequence.tree != nullptr) {  // its branches stand behind the trunk, and hold what is scored
    return {.tokens = TokenView(sequence.tokens).First(sequence.tree->trunk_len + 1),
            .identity = sequence.identity,
            .path = &sequence.path};
  }
  const bool scores = sequence.wants_scores() && sequence.scored_len_ < sequence.prompt_len() - 1;
  return {.tokens = TokenView(sequence.tokens).First(sequence.prefill_len_),
          .identity = sequence.identity,
          .most_tokens = scores ? sequence.scored_len_ : INT64_MAX,
          .owner = sequence.request->kv_owner.get(),
          .path = &sequence.path};
}

// The first position that a plan computes; of one that waits, as far as is known.
int64_t Scheduler::StartOf(const Sequence& sequence) {
  return sequence.state_ == SequenceState::kWaiting ? sequence.expected_hit_ : sequence.scheduled_len_;
}

void Scheduler::GiveBack(Sequence* sequence) {
  store_.SetAside(sequence->lease_, sequence->accepted_len_);
  sequence->scheduled_len_ = 0;
  sequence->accepted_len_ = 0;
}

void Scheduler::Start(Sequence* sequence) {
  Remove(ready_, sequence);
  sequence->state_ = SequenceState::kPrefill;
  prefill_.Add(sequence);
  if (sequence->usage_.prefill_chunks > 0) return;  // it begins again
  sequence->usage_.cached_tokens = sequence->accepted_len_;
  prefix_queries_ += static_cast<int64_t>(sequence->request->prompt.size());
  prefix_hits_ += sequence->accepted_len_;
}

// The longest next chunk within the share and the pages at hand: where pages are short the chunk shrinks. One
// that joins a row which the plan has already adds no branch to it, since its mask would be another one.
int64_t Scheduler::ChunkThatFits(const Sequence& sequence, const Budget& share, const StepRow* row) const {
  const int64_t start = StartOf(sequence);
  const int64_t pages = PagesAvailable(sequence);
  const int64_t most_keys = MostKeys(sequence);
  const auto fits = [&](int64_t count) {
    return cost_.Parts(start, start + count, most_keys) <= share.parts &&
           ChunkNs(start, start + count, most_keys) <= share.ns &&
           store_.PagesNeeded(sequence.lease_, start, start + count) <= pages &&
           TreeBytesOf(sequence, start, start + count) <= tree_bytes_left_;
  };
  const bool joins = row != nullptr && sequence.tree != nullptr;
  const int64_t end = joins ? sequence.tree->plain_len() : sequence.prefill_len_;
  int64_t most = std::min(end - start, share.tokens);
  if (most <= 0 || fits(most)) return std::max<int64_t>(most, 0);
  int64_t count = 0;
  while (most - count > 1) {
    const int64_t middle = count + (most - count) / 2;
    (fits(middle) ? count : most) = middle;
  }
  return count;
}

int64_t Scheduler::TreeBytesOf(const Sequence& sequence, int64_t start, int64_t end) const {
  return sequence.tree == nullptr ? 0
                                  : TreeBytes(*sequence.tree, store_.layout(), sequence.lease_, start, end);
}

void Scheduler::FinishPrefillRows(StepPlan* plan, int64_t now_ns) {
  for (StepRow& row : plan->rows) {
    Sequence* sequence = row.sequence;
    row.ask = AskOf(*sequence, row.start, row.start + row.count);
    plan->attended_keys += cost_.AttendedKeys(row.start, row.start + row.count, MostKeys(*sequence));
    sequence->scored_len_ = std::max(sequence->scored_len_, row.ask.score_end);
    ++sequence->usage_.prefill_chunks;
    if (sequence->timings_.first_chunk_ns == 0) sequence->timings_.first_chunk_ns = now_ns;
    if (PrefillLeft(*sequence) > 0) continue;
    if (sequence->output_tokens() == 0) sequence->timings_.last_chunk_ns = now_ns;
    sequence->state_ = SequenceState::kDecode;
  }
  const auto decoded = std::ssize(decode_);
  prefill_.TakePlanned(&decode_);
  std::inplace_merge(decode_.begin(), decode_.begin() + decoded, decode_.end(),
                     [](const Sequence* a, const Sequence* b) { return Older(*a, *b); });
}

RowAsk Scheduler::AskOf(const Sequence& sequence, int64_t start, int64_t end) {
  RowAsk ask;
  if (end == sequence.prefill_len_ && end < sequence.max_len)
    ask.samples = sequence.output_tokens() == 0 ? sequence.request->choices : 1;
  if (!sequence.wants_scores()) return ask;
  // Each token is scored once: not again after preemption, nor for the choices that share the prompt.
  const int64_t score_begin = std::max(sequence.ScoresBefore(start), sequence.scored_len_);
  const int64_t score_end = sequence.ScoresBefore(end);
  if (score_begin < score_end) {
    ask.score_begin = score_begin;
    ask.score_end = score_end;
  }
  return ask;
}

// ---- prefill: who may start ---------------------------------------------------------------------

// Where the pool is too small for the oldest that waits, nobody starts in front of it.
bool Scheduler::MayStart(const Sequence& sequence, const Budget& share) const {
  const bool done_at_once = StartOf(sequence) + ChunkThatFits(sequence, share) == sequence.prefill_len_;
  if (!done_at_once && !HasPlace(sequence)) return false;
  return HasPagesToStart(*ready_.front()) && (&sequence == ready_.front() || HasPagesToStart(sequence));
}

// One place is kept for prompts that fit one chunk. Where there is only one it goes by age, so that they
// cannot hold it for ever.
bool Scheduler::HasPlace(const Sequence& sequence) const {
  const int32_t places = limits_.max_partial_prefills;
  if (prefill_.unplanned() >= places) return false;
  if (places == 1) return &sequence == FirstReady();
  return sequence.fits_one_chunk_ || prefill_.long_unplanned() < places - 1;
}

// The pool holds what every prompt part-way still needs, one more page per group for every sequence in
// decode, and this sequence's whole prefill. What it keeps counts as its own, though windows do not give it
// back: it is the first to be let go where that is missed.
bool Scheduler::HasPagesToStart(const Sequence& sequence) const {
  return PagesToStart(sequence) <= store_.available();
}

int64_t Scheduler::PagesToStart(const Sequence& sequence) const {
  const auto groups = static_cast<int64_t>(store_.layout().groups.size());
  const Lease& start = HasKept(sequence) ? sequence.kept_ : sequence.lease_;
  int64_t pages = store_.PagesToReach(start, sequence.prefill_len_, least_chunk_);
  if (sequence.expects_copy_) pages += groups;
  pages += prefill_.pages() + static_cast<int64_t>(decode_.size()) * groups;
  return pages;
}

int64_t Scheduler::RemainingParts(const Sequence& sequence) const {
  return cost_.Parts(StartOf(sequence), sequence.prefill_len_, MostKeys(sequence));
}

// ---- pages --------------------------------------------------------------------------------------

// Available pages that no older prompt part-way still needs.
int64_t Scheduler::PagesAvailable(const Sequence& sequence) const {
  return store_.available() - prefill_.PagesOfOlder(sequence);
}

bool Scheduler::SitsOut(const Sequence& sequence) const {
  return sequence.held_ || victim_in_flight_ == &sequence;
}

// Of those not in flight; null when there is none.
Sequence* Scheduler::HeldWithPages() const {
  const auto found = std::find_if(decode_.begin(), decode_.end(),
                                  [](const Sequence* s) { return s->held_ && s->steps_in_flight_ == 0; });
  return found == decode_.end() ? nullptr : *found;
}

// Lets go of what is kept for discards; else preempts a held sequence with pages, or else the youngest one,
// if it is younger than this one. False when there is none, or when it is in flight: then it sits this plan
// out, and is preempted once its steps are applied.
bool Scheduler::MakeRoomFor(const Sequence& sequence) {
  if (LetGoOfSomeKept()) return true;
  if (Sequence* held = HeldWithPages()) {
    Preempt(held);
    return true;
  }
  Sequence* youngest = nullptr;
  for (const auto* list : {&prefill_.all(), &std::as_const(decode_)}) {
    if (!list->empty() && (youngest == nullptr || Older(*youngest, *list->back()))) youngest = list->back();
  }
  if (youngest == nullptr || !Older(sequence, *youngest)) return false;
  if (youngest->steps_in_flight_ > 0) {
    victim_in_flight_ = youngest;
    return false;
  }
  Preempt(youngest);
  return true;
}

void Scheduler::Preempt(Sequence* sequence) {
  ++sequence->usage_.preemptions;
  ++preemptions_;
  LetGoOfKept(sequence);
  SendBack(sequence);
}

void Scheduler::Reevaluate(Sequence* sequence, int64_t arrival) {
  TM_CHECK(sequence->state_ == SequenceState::kDecode && sequence->steps_in_flight_ == 0,
           "choice %d of request %s is to be computed again while it is computed", sequence->choice,
           sequence->request->id.c_str());
  KeepPrefix(sequence);
  sequence->arrival_ = arrival;
  if (HasKept(*sequence) && Remove(keepers_, sequence)) InsertByAge(keepers_, sequence);
  SendBack(sequence);
}

void Scheduler::LeaveLane(Sequence* sequence) {
  if (sequence->state_ == SequenceState::kPrefill) prefill_.Remove(sequence);
  if (sequence->state_ == SequenceState::kDecode) Remove(decode_, sequence);
}

void Scheduler::SendBack(Sequence* sequence) {
  LeaveLane(sequence);
  GiveBack(sequence);
  sequence->state_ = SequenceState::kWaiting;
  sequence->held_ = sequence->held_ || sequence->undecided;
  if (!sequence->held_) MakeReady(sequence);
}

// By age: what was preempted comes before everything that arrived later.
void Scheduler::MakeReady(Sequence* sequence) {
  sequence->prefill_len_ = static_cast<int64_t>(sequence->tokens.size());
  sequence->awaits_pages_ = store_.Fetch(sequence->lease_, QueryFor(*sequence));
  Expect(sequence);
  InsertByAge(ready_, sequence);
}

void Scheduler::Expect(Sequence* sequence) {
  sequence->expected_hit_ =
      std::max(store_.KnownPrefix(sequence->lease_, QueryFor(*sequence)), KeptPrefix(*sequence));
  sequence->expects_copy_ =
      !sequence->lease_.is_parked() && OffsetInPage(sequence->expected_hit_, store_.page_size()) != 0;
  sequence->fits_one_chunk_ =
      sequence->prefill_len_ - sequence->expected_hit_ <= limits_.max_step_tokens / 2 &&
      RemainingParts(*sequence) <= limits_.step_cost() * cost_.parts_per_token() / 2;
}

// ---- prefixes that discards keep --------------------------------------------------------------------

// Unless a window has let go of some already, or a hit began behind them: what comes after the discard then
// begins with what the cache knows.
void Scheduler::KeepPrefix(Sequence* sequence) {
  const int64_t prefix = PrefixToKeep(*sequence);
  if (prefix == 0 || HasKept(*sequence)) return;
  for (size_t group = 0; group < sequence->lease_.tables.size(); ++group) {
    const bool has_hole = !sequence->lease_.begins.empty() && sequence->lease_.begins[group] > 0;
    if (sequence->lease_.tables[group].kv_base > 0 || has_hole) return;
  }
  sequence->kept_ = store_.Fork(sequence->lease_, prefix);
  InsertByAge(keepers_, sequence);
}

// Before a window rolls over them, and not before their pages are full: a sequence that shares one that it
// goes on in would have to copy it. Without windows they are the lease's own until the discard.
void Scheduler::KeepPrefixOnceFull(Sequence* sequence) {
  const int64_t prefix = has_window_ ? PrefixToKeep(*sequence) : 0;
  if (prefix == 0 || HasKept(*sequence)) return;
  const int64_t pages = PagesFor(prefix, store_.page_size());
  if (sequence->accepted_len_ >= pages * store_.page_size()) KeepPrefix(sequence);
}

void Scheduler::ForkKept(const Sequence& parent, Sequence* sequence) {
  if (!HasKept(parent)) return KeepPrefixOnceFull(sequence);
  sequence->kept_ = store_.Fork(parent.kept_, PrefixToKeep(parent));
  InsertByAge(keepers_, sequence);
}

void Scheduler::LetGoOfKept(Sequence* sequence) {
  if (!HasKept(*sequence)) return;
  Remove(keepers_, sequence);
  store_.Release(sequence->kept_);
  sequence->kept_ = {};
}

// They save computing and are no condition for anything, so they go before anybody is preempted or waits: the
// youngest sequence's first, until some page is available again. (In a group without a window they are its
// lease's pages, too.)
bool Scheduler::LetGoOfSomeKept() {
  const int64_t available = store_.available();
  while (!keepers_.empty() && store_.available() == available) {
    Sequence* sequence = keepers_.back();
    LetGoOfKept(sequence);
    if (sequence->state_ == SequenceState::kWaiting && !sequence->held_)
      Expect(sequence);  // less than before
  }
  return store_.available() > available;
}

// So that the oldest that waits does not wait for these; nor for room to copy a page of what its owner left,
// which goes then.
void Scheduler::LetGoOfWhatIsInTheWay(Sequence* first) {
  while (!keepers_.empty() && !HasPagesToStart(*first) && LetGoOfSomeKept()) {
  }
  const auto groups = static_cast<int64_t>(store_.layout().groups.size());
  const bool lacks_copies = first->expects_copy_ && !HasKept(*first) && !HasPagesToStart(*first) &&
                            PagesToStart(*first) - groups <= store_.available();
  if (!lacks_copies) return;
  store_.ForgetIdle(first->request->kv_owner.get());
  Expect(first);
}

// ---- results ------------------------------------------------------------------------------------

void Scheduler::Fork(Sequence& parent, Sequence* sequence) {
  TM_CHECK(parent.slots_ > 1 && sequence->state_ == SequenceState::kWaiting && sequence->slots_ == 0,
           "choice %d of request %s has no slot, or is there already", sequence->choice,
           parent.request->id.c_str());
  --parent.slots_;
  sequence->slots_ = 1;
  TakeSlot(sequence);
  sequence->state_ = SequenceState::kDecode;
  sequence->prefill_len_ = parent.prompt_len();
  sequence->scheduled_len_ = sequence->prefill_len_;
  sequence->accepted_len_ = sequence->prefill_len_;
  sequence->lease_ = store_.Fork(parent.lease_, sequence->prefill_len_);
  ForkKept(parent, sequence);
  store_.Roll(sequence->lease_, sequence->accepted_len_);
  sequence->arrival_ = parent.arrival_;
  sequence->timings_ = parent.timings_;
  sequence->usage_ = parent.usage_;
  InsertByAge(decode_, sequence);
}

void Scheduler::Hold(Sequence* sequence) {
  TM_CHECK(sequence->state_ == SequenceState::kDecode,
           "choice %d of request %s is held, and is not in decode", sequence->choice,
           sequence->request->id.c_str());
  sequence->held_ = true;
}

void Scheduler::Resume(Sequence* sequence) {
  TM_CHECK(sequence->held_, "choice %d of request %s is not held", sequence->choice,
           sequence->request->id.c_str());
  sequence->held_ = false;
  if (sequence->state_ == SequenceState::kWaiting) MakeReady(sequence);
}

void Scheduler::Forget(Sequence* sequence) {
  store_.Forget(sequence->lease_);
  store_.ForgetIdle(sequence->request->kv_owner.get());
}

void Scheduler::Finish(Sequence* sequence) {
  const SequenceState state = sequence->state_;
  if (state == SequenceState::kFinished) return;
  LeaveLane(sequence);
  sequence->state_ = SequenceState::kFinished;
  if (state == SequenceState::kWaiting && queue_.erase(sequence) == 0) Remove(ready_, sequence);
  if (sequence->steps_in_flight_ == 0) Release(sequence);
}

void Scheduler::Apply(const StepPlan& plan, const std::vector<RowOutcome>& outcomes) {
  TM_CHECK(plan.step == applied_steps_ + 1, "step %lld is applied after step %lld",
           static_cast<long long>(plan.step), static_cast<long long>(applied_steps_));
  TM_CHECK(outcomes.size() == plan.rows.size(), "%zu outcomes for %zu rows", outcomes.size(),
           plan.rows.size());
  ++applied_steps_;
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const StepRow& row = plan.rows[i];
    Sequence* sequence = row.sequence;
    --sequence->steps_in_flight_;
    if (sequence->state_ == SequenceState::kFinished) {
      sequence->accepted_len_ += outcomes[i].accepted;
      store_.Seal(sequence->lease_, sequence->tokens, sequence->accepted_len_, &sequence->path);
      if (sequence->steps_in_flight_ == 0) Release(sequence);
      continue;
    }
    const int32_t refused = row.count - outcomes[i].accepted;
    TM_CHECK(refused == 0 || (refused > 0 && sequence->steps_in_flight_ == 0 && plan.lane == Lane::kDecode),
             "step %lld: %d of %d positions are accepted", static_cast<long long>(plan.step),
             outcomes[i].accepted, row.count);
    sequence->scheduled_len_ -= refused;
    sequence->accepted_len_ += outcomes[i].accepted;
    store_.Seal(sequence->lease_, sequence->tokens, sequence->accepted_len_, &sequence->path);
    KeepPrefixOnceFull(sequence);
    store_.Roll(sequence->lease_, sequence->accepted_len_);
  }
}

void Scheduler::Learn(const StepPlan& plan, int64_t ns) {
  StepCostModel& model = plan.lane == Lane::kPrefill ? costs_.prefill : costs_.decode;
  model.Learn({plan.tokens, plan.attended_keys}, ns);
  if (store_.has_tier() && plan.lane == Lane::kPrefill) store_.SetTokenNs(model.token_ns());
}

// The one place where a finished sequence's pages and slots go back.
void Scheduler::Release(Sequence* sequence) {
  LetGoOfKept(sequence);
  if (sequence->leaves_idle) {
    store_.LeaveIdle(sequence->lease_, sequence->tokens, sequence->accepted_len_,
                     sequence->request->kv_owner);
  } else {
    store_.Release(sequence->lease_);
  }
  free_slots_ += sequence->slots_;
  sequence->slots_ = 0;
  if (sequence->slot_ >= 0) idle_slots_.push_back(sequence->slot_);
  sequence->slot_ = -1;
}

}  // namespace tramontane

#include "tests/engine/fake_serving.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "kernels/paged_kv.h"

namespace tramontane {
namespace {

std::string Range(int64_t begin, int64_t end) {
  return "[" + std::to_string(begin) + "," + std::to_string(end) + ")";
}

std::string RowToString(const StepPlan& plan, const StepRow& row) {
  std::string text = row.sequence->request->id + "." + std::to_string(row.sequence->choice) +
                     Range(row.start, row.start + row.count);
  const int64_t draws = plan.Draws(row);
  const auto scores = plan.WantsOf(row).first(plan.WantsOf(row).size() - static_cast<size_t>(draws));
  if (!scores.empty()) text += "?" + Range(scores.front().position, scores.back().position + 1);
  if (draws > 0) text += "*";
  if (draws > 1) text += std::to_string(draws);
  return text;
}

}  // namespace

std::string ToString(const StepPlan& plan) {
  if (plan.lane == Lane::kIdle) return "idle";
  std::string text =
      "step " + std::to_string(plan.step) + " " + LaneName(plan.lane) + " cost " + std::to_string(plan.cost);
  if (!plan.copies.empty()) text += " copies " + std::to_string(plan.copies.size());
  text += ":";
  for (const StepRow& row : plan.rows) text += " " + RowToString(plan, row);
  return text;
}

KvLayout TestLayout(const std::vector<int32_t>& windows, int32_t page_size) {
  return MakeKvLayout(windows, {.kv_heads = 1, .head_dim = 8, .page_size = page_size});
}

EngineLimits TestLimits(const KvLayout& layout, int64_t pool_pages) {
  EngineLimits limits;
  limits.page_size = layout.format.page_size;
  limits.pool_pages = pool_pages;
  limits.max_choices = 1;
  limits.prefix_cache = false;
  limits.attended_keys_per_token = 1 << 24;
  limits.context = ContextThatFits(layout, pool_pages, limits.max_step_tokens);
  return limits;
}

StepCostModel TaughtModel(double fixed_ns, double token_ns, double key_ns) {
  StepCostModel model;
  for (int64_t i = 0; i < 300; ++i) {
    const StepWork work = {.tokens = 1 + i % 7 * 50, .attended_keys = (1 + i % 7 * 50) * (i % 11 * 300)};
    model.Learn(work, static_cast<int64_t>(fixed_ns + token_ns * static_cast<double>(work.tokens) +
                                           key_ns * static_cast<double>(work.attended_keys)));
  }
  return model;
}

namespace {

uint64_t Mix(uint64_t a, uint64_t b) {
  a = (a ^ b) * 0xbf58476d1ce4e5b9ull;
  return a ^ (a >> 31);
}

// Of texts below 0, of one request each; and of others, that prompts may share.
int32_t TokenOf(int64_t text, int32_t choice, int64_t position) {
  const uint64_t of_text = Mix(static_cast<uint64_t>(text) + 1, static_cast<uint64_t>(choice) + 1);
  return static_cast<int32_t>(Mix(of_text, static_cast<uint64_t>(position) + 1) >> 33);
}

}  // namespace

FakeServing::FakeServing(const EngineLimits& limits, const KvLayout& layout, const StepCosts& costs)
    : limits_(limits),
      layout_(layout),
      cost_(layout, limits.attended_keys_per_token),
      scheduler_(limits, layout, costs),
      memory_(static_cast<size_t>(limits.pool_pages * layout.format.page_size)) {
  EXPECT_EQ(limits.Validate(), Status::Ok());
}

void FakeServing::Submit(const Ask& ask) {
  auto live = std::make_unique<Live>();
  live->request.id = ask.id;
  for (int64_t p = 0; p < ask.prompt_tokens; ++p) {
    live->request.prompt.push_back(p < ask.same_tokens ? TokenOf(ask.same_text, 0, p)
                                                       : TokenOf(-1 - requests_, 0, p));
  }
  live->request.choices = ask.choices;
  live->request.share = ask.share;
  live->request.received_ns = clock_.NowNs();
  live->request.stopping.max_tokens = ask.max_tokens;
  if (ask.prompt_logprobs) live->request.output.prompt_logprobs = 0;
  live->stops_after = ask.stops_after;
  live->number = requests_++;
  live->choices.resize(static_cast<size_t>(ask.choices));
  live->first_token_ns.resize(static_cast<size_t>(ask.choices));
  live->forked.resize(static_cast<size_t>(ask.choices));
  live->contents.resize(static_cast<size_t>(ask.choices));
  for (int32_t c = 0; c < ask.choices; ++c) {
    Sequence& sequence = live->choices[c];
    sequence.request = &live->request;
    sequence.choice = c;
    sequence.tokens = SequenceTokens(live->request.prompt);
    sequence.max_len = ask.prompt_tokens + ask.max_tokens;
    live_of_[&sequence] = live.get();
  }
  ASSERT_LE(live->choices[0].max_len, limits_.context) << "request " << ask.id;
  live->forked[0] = true;
  scheduler_.Admit(&live->choices[0], live->number);
  live_.push_back(std::move(live));
}

void FakeServing::Cancel(const std::string& id) {
  for (auto& live : live_) {
    if (live->request.id != id) continue;
    live->cancelled = true;
    for (Sequence& sequence : live->choices) scheduler_.Finish(&sequence);
  }
}

bool FakeServing::Step() {
  last_plan_.clear();
  if (static_cast<int32_t>(in_flight_.size()) < limits_.steps_in_flight) {
    StepPlan plan = PlanAndWatchPreemption();
    if (plan.lane != Lane::kIdle) {
      last_plan_ = ToString(plan);
      if (on_plan) on_plan(plan);
      CheckPlan(plan);
      Run(plan);
      clock_.Advance(step_ns ? step_ns(plan) : plan.cost);
      in_flight_.push_back(std::move(plan));
    }
  }
  CheckPages();
  const bool full = static_cast<int32_t>(in_flight_.size()) == limits_.steps_in_flight;
  if (!in_flight_.empty() && (full || last_plan_.empty())) {
    Collect(in_flight_.front());
    in_flight_.pop_front();
    CheckPages();
    Retire();
    return true;
  }
  Retire();
  return !last_plan_.empty() || scheduler_.has_put_off();
}

void FakeServing::RunUntilIdle(int64_t most_steps) {
  for (int64_t step = 0; Step(); ++step) {
    ASSERT_LT(step, most_steps) << "still running: " << last_plan_;
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_TRUE(live_.empty()) << live_.size() << " requests never finished";
  EXPECT_EQ(scheduler_.store().available(), limits_.pool_pages);
  if (!limits_.prefix_cache) {
    EXPECT_EQ(scheduler_.store().cached_pages(), 0);
  }
  EXPECT_EQ(scheduler_.free_slots(), limits_.max_sequences);
}

std::vector<std::string> FakeServing::Steps(int count) {
  std::vector<std::string> plans;
  for (int i = 0; i < count; ++i) {
    Step();
    plans.push_back(last_plan_);
  }
  return plans;
}

const Sequence& FakeServing::sequence(const std::string& id, int32_t choice) const {
  for (const auto& live : live_) {
    if (live->request.id == id) return live->choices[choice];
  }
  ADD_FAILURE() << "request " << id << " has ended";
  std::abort();
}

StepPlan FakeServing::PlanAndWatchPreemption() {
  struct Before {
    const Sequence* sequence;
    int32_t preemptions;
  };
  std::vector<Before> holders;  // of pages
  for (const auto& live : live_) {
    for (const Sequence& sequence : live->choices) {
      if (sequence.state() == SequenceState::kPrefill || sequence.state() == SequenceState::kDecode) {
        holders.push_back({&sequence, sequence.usage().preemptions});
      }
    }
  }
  StepPlan plan = scheduler_.Plan(clock_.NowNs());
  // By what waiting has made of their ranks at the beginning of the plan.
  std::sort(holders.begin(), holders.end(),
            [](const Before& a, const Before& b) { return Older(*a.sequence, *b.sequence); });
  bool preempted_younger = true;
  for (size_t i = holders.size(); i-- > 0;) {
    const Sequence& sequence = *holders[i].sequence;
    const bool preempted = sequence.usage().preemptions > holders[i].preemptions;
    if (!preempted) {
      preempted_younger = false;
      continue;
    }
    const std::string name = sequence.request->id + "." + std::to_string(sequence.choice);
    const bool for_its_slot = sequence.slots() == 0;
    EXPECT_TRUE(preempted_younger || for_its_slot) << name << " is preempted before a younger one";
    EXPECT_GT(i, 0u) << name << " is the oldest, and preempted";
    for (const StepPlan& in_flight : in_flight_) {
      for (const StepRow& row : in_flight.rows) EXPECT_NE(row.sequence, &sequence) << name << " is in flight";
    }
  }
  return plan;
}

FakeServing::Live& FakeServing::LiveOf(const Sequence* sequence) { return *live_of_.at(sequence); }

int32_t FakeServing::TokenAt(const Live& live, const Sequence& sequence, int64_t position) {
  return position < sequence.prompt_tokens() ? live.request.prompt[static_cast<size_t>(position)]
                                             : TokenOf(-1 - live.number, sequence.choice + 1, position);
}

FakeServing::Key FakeServing::KeyAt(Live& live, const Sequence& sequence, int64_t position) {
  std::vector<uint64_t>& contents = live.contents[static_cast<size_t>(sequence.choice)];
  for (auto p = static_cast<int64_t>(contents.size()); p <= position; ++p) {
    const auto token = static_cast<uint64_t>(TokenAt(live, sequence, p));
    contents.push_back(Mix(p == 0 ? 1 : contents.back(), token + 1));
  }
  return {contents[static_cast<size_t>(position)], position};
}

// Copies first, then what the rows write, then what their queries see.
void FakeServing::Run(const StepPlan& plan) {
  const int32_t page_size = layout_.format.page_size;
  std::set<PageId> sources;
  for (const PageCopy& copy : plan.copies) sources.insert(copy.from);
  for (const PageCopy& copy : plan.copies) {
    EXPECT_EQ(sources.count(copy.to), 0u) << "page " << copy.to << " is copied from and to in " << last_plan_;
    std::copy_n(memory_.begin() + int64_t{copy.from} * page_size, page_size,
                memory_.begin() + int64_t{copy.to} * page_size);
  }
  const auto key = [&](const PageTable& table, int64_t position) -> Key& {
    const PageId page = table.pages.at(static_cast<size_t>(PageOf(position, table.kv_base, page_size)));
    return memory_[SlotOf(page, position, page_size)];
  };
  for (const StepRow& row : plan.rows) {
    Live& live = LiveOf(row.sequence);
    for (const PageTable& table : row.sequence->lease().tables) {
      for (int64_t p = row.start; p < row.start + row.count; ++p)
        key(table, p) = KeyAt(live, *row.sequence, p);
    }
  }
  for (const StepRow& row : plan.rows) {
    Live& live = LiveOf(row.sequence);
    for (size_t group = 0; group < layout_.groups.size(); ++group) {
      const PageTable& table = row.sequence->lease().tables[group];
      int64_t first = FirstVisible(row.start, layout_.groups[group].window);
      ASSERT_LE(table.kv_base, first) << "a visible page is gone: " << last_plan_;
      if (row.start % 64 != 0) first = std::max(first, row.start - always_check_keys);
      for (int64_t p = first; p < row.start + row.count; ++p) {
        const Key& found = key(table, p);
        ASSERT_EQ(found, KeyAt(live, *row.sequence, p))
            << "group " << group << " position " << p << " holds another text's position " << found.position
            << " in " << last_plan_;
      }
    }
  }
}

void FakeServing::CheckPlan(const StepPlan& plan) const {
  ASSERT_FALSE(plan.rows.empty());
  int64_t tokens = 0;
  int64_t parts = 0;
  std::set<const Sequence*> seen;
  for (const StepRow& row : plan.rows) {
    const Sequence& sequence = *row.sequence;
    EXPECT_TRUE(seen.insert(&sequence).second) << "twice in " << last_plan_;
    EXPECT_GT(row.count, 0) << last_plan_;
    EXPECT_EQ(sequence.scheduled_len(), row.start + row.count) << last_plan_;
    EXPECT_LT(row.start + row.count, sequence.max_len + (sequence.request->stopping.max_tokens == 0 ? 1 : 0));
    if (plan.lane == Lane::kDecode) {
      EXPECT_EQ(row.count, 1) << last_plan_;
      EXPECT_GE(row.start, sequence.prefill_len()) << last_plan_;
    } else {
      EXPECT_LE(row.start + row.count, sequence.prefill_len()) << last_plan_;
      // Before it is in flight a prompt's tokens are all known, also after preemption.
      EXPECT_LE(sequence.prefill_len(), static_cast<int64_t>(sequence.tokens.size())) << last_plan_;
    }
    tokens += row.count;
    parts += cost_.Parts(row.start, row.start + row.count);
  }
  EXPECT_EQ(plan.tokens, tokens) << last_plan_;
  if (plan.lane != Lane::kPrefill) return;
  EXPECT_LE(tokens, limits_.max_step_tokens) << last_plan_;
  EXPECT_EQ(plan.cost, cost_.TokenEquivalents(parts)) << last_plan_;
  if (tokens > 1) {
    EXPECT_LE(plan.cost, limits_.step_cost()) << last_plan_;
  }
  int32_t part_way = 0;
  for (const auto& live : live_) {
    for (const Sequence& sequence : live->choices) part_way += sequence.state() == SequenceState::kPrefill;
  }
  EXPECT_LE(part_way, limits_.max_partial_prefills) << last_plan_;
}

void FakeServing::CheckPages() {
  // Each check reads every page: with large pools at every 64th only.
  if (limits_.pool_pages > 2000 && ++page_checks_ % 64 != 0) return;
  const KvStore& store = scheduler_.store();
  const int32_t page_size = layout_.format.page_size;
  store.CheckAccounting();
  EXPECT_EQ(store.free_pages() + store.held_pages() + store.cached_pages(), store.total_pages());
  std::vector<int32_t> owners(static_cast<size_t>(store.total_pages()), 0);
  for (const auto& live : live_) {
    for (const Sequence& sequence : live->choices) {
      EXPECT_LE(sequence.accepted_len(), sequence.scheduled_len());
      for (size_t group = 0; group < sequence.lease().tables.size(); ++group) {
        const PageTable& table = sequence.lease().tables[group];
        for (PageId page : table.pages) ++owners[page];
        EXPECT_EQ(table.kv_base % page_size, 0);
        const int32_t window = layout_.groups[group].window;
        const int64_t held = static_cast<int64_t>(table.pages.size());
        if (window > 0) {
          const int64_t ahead = int64_t{limits_.max_step_tokens} * limits_.steps_in_flight;
          EXPECT_LE(held, PagesFor(window - 1 + ahead, page_size) + 1) << live->request.id;
          // Sharper: by what really is ahead. (Finished sequences roll no more.)
          if (sequence.state() != SequenceState::kFinished) {
            EXPECT_LE(
                held,
                PagesFor(window - 1 + sequence.scheduled_len() - sequence.accepted_len(), page_size) + 1)
                << live->request.id;
          }
        } else {
          EXPECT_LE(held, PagesFor(sequence.scheduled_len(), page_size));
        }
      }
    }
  }
  for (PageId page = 0; page < store.total_pages(); ++page) {
    ASSERT_EQ(store.references(page), owners[page]) << "page " << page << " after " << last_plan_;
  }
}

void FakeServing::Collect(const StepPlan& plan) {
  if (step_ns) scheduler_.Learn(plan, step_ns(plan));
  std::vector<RowOutcome> outcomes;
  for (const StepRow& row : plan.rows) {
    Live& live = LiveOf(row.sequence);
    const bool counts = row.sequence->state() != SequenceState::kFinished;
    outcomes.push_back({.accepted = counts ? row.count : 0});
    if (!counts) continue;
    const auto draws = static_cast<int32_t>(plan.Draws(row));
    live.scored_tokens += std::ssize(plan.WantsOf(row)) - draws;
    for (int32_t s = 1; s < draws; ++s) {
      scheduler_.Fork(*row.sequence, &live.choices[s]);
      live.forked[s] = true;
    }
    for (int32_t s = 0; s < draws; ++s) AcceptToken(live, live.choices[row.sequence->choice + s]);
    if (draws == 0 && row.start + row.count == row.sequence->max_len) {
      for (Sequence& sequence : live.choices) scheduler_.Finish(&sequence);
    }
  }
  scheduler_.Apply(plan, outcomes);
}

void FakeServing::AcceptToken(Live& live, Sequence& sequence) {
  int64_t& first_token_ns = live.first_token_ns[static_cast<size_t>(sequence.choice)];
  if (first_token_ns == 0) first_token_ns = clock_.NowNs();
  sequence.tokens.push_back(TokenAt(live, sequence, static_cast<int64_t>(sequence.tokens.size())));
  const bool stops = live.stops_after >= 0 && sequence.output_tokens() >= live.stops_after;
  if (stops || static_cast<int64_t>(sequence.tokens.size()) == sequence.max_len) scheduler_.Finish(&sequence);
}

void FakeServing::Retire() {
  std::erase_if(live_, [this](const std::unique_ptr<Live>& live) {
    for (Sequence& sequence : live->choices) {
      if (!sequence.releasable()) return false;
    }
    Ended& ended = ended_[live->request.id];
    for (const Sequence& sequence : live->choices) {
      ended.completion_tokens.push_back(sequence.output_tokens());
      ended.usage.push_back(sequence.usage());
      ended.timings.push_back(sequence.timings());
      ended.timings.back().first_token_ns = live->first_token_ns[static_cast<size_t>(sequence.choice)];
      live_of_.erase(&sequence);
      EXPECT_EQ(sequence.slots(), 0);
    }
    if (live->request.output.prompt_logprobs >= 0 && !live->cancelled) {
      EXPECT_EQ(live->scored_tokens, live->choices[0].prompt_tokens() - 1) << live->request.id;
    }
    ended.scored_tokens = live->scored_tokens;
    ended.cancelled = live->cancelled;
    return true;
  });
}

}  // namespace tramontane

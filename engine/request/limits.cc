#include "engine/request/limits.h"

#include <algorithm>
#include <iterator>

#include "engine/request/step_bounds.h"
#include "models/kv_layout.h"

namespace tramontane {
namespace {

struct Bound {
  const char* name;
  int64_t value;
  int64_t least;
  int64_t most;
  const char* when_reached;
  int64_t engine_ns = 0;  // that it may take of the engine thread in one step, at most
};

const char* WhenBothLanesCouldGo(LanePolicy policy) {
  constexpr const char* kWords[] = {"after max_prefill_steps prefill steps comes a decode step",
                                    "decode waits while a prompt can go on",
                                    "prompts wait while something can decode"};
  return kWords[static_cast<size_t>(policy)];
}

// A text is walked whole, behind others of not quite as much as a step walks.
int64_t WalkedNs(const EngineLimits& limits) {
  return (kBlocksWalked.most + PagesFor(limits.context, limits.page_size)) * kBlocksWalked.ns;
}

int64_t PromptRowsNs(const EngineLimits& limits) {
  return std::min(limits.max_step_tokens, limits.max_sequences) * kPromptRowNs;
}

// The table behind Validate and ToString.
std::vector<Bound> Bounds(const EngineLimits& limits) {
  return {
      {"max_queued_requests", limits.max_queued_requests, 1, 1 << 20,
       "one more is refused, RESOURCE_EXHAUSTED",
       1000 * (kChoicesBegun.us() + kWaitingEnded.us() + kCancelsLookedUp.us())},
      {"max_queued_bytes", limits.max_queued_bytes, 1, int64_t{1} << 40,
       "a request that waits beside so much is refused, RESOURCE_EXHAUSTED"},
      {"context", limits.context, 1, kMaxContext, "a longer prompt is refused; output ends with `length`",
       limits.prefix_cache ? WalkedNs(limits) : 0},
      {"max_choices", limits.max_choices, 1, 1 << 10, "a larger n is refused, INVALID_ARGUMENT"},
      {"max_stop_strings", limits.max_stop_strings, 0, 1 << 10, "more are refused, INVALID_ARGUMENT"},
      {"max_stop_bytes", limits.max_stop_bytes, 1, 1 << 16,
       "a longer stop string is refused, INVALID_ARGUMENT"},
      {"max_stop_token_ids", limits.max_stop_token_ids, 0, 1 << 20, "more are refused, INVALID_ARGUMENT"},
      {"max_logit_bias", limits.max_logit_bias, 0, 1 << 20, "more entries are refused, INVALID_ARGUMENT"},
      {"max_forced_prefix_ids", limits.max_forced_prefix_ids, 0, 1 << 10,
       "more are refused, INVALID_ARGUMENT"},
      {"max_sequences", limits.max_sequences, 1, 1 << 16, "later requests wait in order",
       limits.max_sequences * kRowNs},
      {"priority_ageing_ns", limits.priority_ageing_ns, 1, int64_t{1} << 50,
       "so much waiting makes up for one of priority", limits.max_sequences * kRankNs},
      {"page_size", limits.page_size, 1, kMaxPageSize, "a sequence takes another page"},
      {"pool_pages", limits.pool_pages, 1, INT32_MAX, "the youngest sequence is preempted and recomputed",
       std::min(kPagesLetGo.most, limits.pool_pages) * kPagesLetGo.ns},
      {"host_kv_bytes", limits.host_kv_bytes, 0, int64_t{1} << 50,
       "of the evicted pages kept there that used longest ago goes to the disk, or away (0: none is kept)"},
      {"disk_kv_bytes", limits.disk_kv_bytes, 0, int64_t{1} << 50,
       "of the evicted pages kept there that used longest ago goes (0: none is kept)",
       limits.disk_kv_bytes > 0 ? WalkedNs(limits) : 0},
      {"steps_in_flight", limits.steps_in_flight, 1, kMaxStepsInFlight,
       "the next plan waits for the oldest step"},
      {"max_step_tokens", limits.max_step_tokens, 1, 1 << 20, "the rest of a prompt waits for the next step",
       PromptRowsNs(limits)},
      {"max_step_cost", limits.max_step_cost, 0, 1 << 30,
       "the rest of a prompt waits for the next step (0: twice max_step_tokens)"},
      {"attended_keys_per_token", limits.attended_keys_per_token, 1, 1 << 24,
       "that many attended keys cost as much as a token"},
      {"max_partial_prefills", limits.max_partial_prefills, 1, 1 << 10,
       "later prompts wait, one place is kept for prompts that fit one chunk"},
      {"max_prefill_steps", limits.max_prefill_steps, 1, 1 << 10,
       "a decode step comes next (lane_policy fair)"},
      {"decode_gap_ns", limits.decode_gap_ns, 0, int64_t{1} << 50,
       "a prefill step beside decode takes no more than fits (0: as much as any; lane_policy fair)"},
      {"least_step_tokens", limits.least_step_tokens, 0, 1 << 20,
       "a prefill step beside decode is not cut further, whatever decode_gap_ns says"},
      {"max_constraint_step_ns", limits.max_constraint_step_ns, 1, int64_t{1} << 40,
       "the masks of a step that take longer are not waited for; a choice that spends more than its "
       "request's share of it ends with an error"},
      {"mask_workers", limits.mask_workers, 1, 1 << 6,
       "masks wait for each other, and their rows sit steps out"},
      {"max_recording_bytes", limits.max_recording_bytes, 0, int64_t{1} << 50,
       "fewer decode steps are recorded (0: an eighth of what weights and workspace leave)"},
      {"max_recorded_steps", limits.max_recorded_steps, 0, kMaxRecordedSteps,
       "steps of fewer rows are padded to those of more, or are queued op by op"},
      {"max_logit_rows", limits.logit_rows(), 1, 1 << 16, "prompts are scored in slices of it"},
      {"output_queue_steps", limits.output_queue_steps, 1, 1 << 16, "the engine waits for the output thread"},
      {"max_unread_tokens", limits.unread_tokens(), 1, int64_t{1} << 40,
       "a request whose reader is further behind, with any of its choices, ends: RESOURCE_EXHAUSTED"},
      {"max_unread_bytes", limits.max_unread_bytes, 1, int64_t{1} << 40,
       "where readers are behind by more together, those of 64 KiB or more end: RESOURCE_EXHAUSTED"},
  };
}

// 1, 2, 4 and so on below the stride, then its multiples, and the last one.
std::vector<int32_t> PowersThenEvery(int32_t stride, int32_t last) {
  std::vector<int32_t> rows;
  for (int32_t at = 1; at < last; at += std::min(at, stride)) rows.push_back(at);
  rows.push_back(last);
  return rows;
}

std::string ListOf(const std::vector<int32_t>& numbers) {
  std::string text;
  for (const int32_t number : numbers) text += " " + std::to_string(number);
  return numbers.empty() ? " none" : text;
}

}  // namespace

Status EngineLimits::Validate() const {
  std::string problems;
  const auto add = [&](const std::string& problem) { problems += (problems.empty() ? "" : "\n") + problem; };
  for (const Bound& bound : Bounds(*this)) {
    if (bound.value >= bound.least && bound.value <= bound.most) continue;
    add(std::string(bound.name) + " is " + std::to_string(bound.value) + ", the limits are " +
        std::to_string(bound.least) + " to " + std::to_string(bound.most));
  }
  if (max_choices > max_sequences) {
    add("max_choices is " + std::to_string(max_choices) + ", more than max_sequences, which is " +
        std::to_string(max_sequences) + ": such a request would wait for ever");
  }
  for (size_t i = 0; i < recorded_rows.size(); ++i) {
    const int32_t above = i == 0 ? 0 : recorded_rows[i - 1];
    if (recorded_rows[i] > above && recorded_rows[i] <= max_sequences) continue;
    add("recorded_rows[" + std::to_string(i) + "] is " + std::to_string(recorded_rows[i]) +
        ", the limits are " + std::to_string(above + 1) + " to max_sequences, which is " +
        std::to_string(max_sequences));
  }
  if (std::ssize(recorded_rows) > kMaxRecordedSteps) {
    add("recorded_rows has " + std::to_string(recorded_rows.size()) + " entries, the limit is " +
        std::to_string(kMaxRecordedSteps));
  }
  return problems.empty() ? Status::Ok() : InvalidArgument(std::move(problems));
}

std::vector<int32_t> EngineLimits::RowsToRecord() const {
  const auto most = static_cast<size_t>(max_recorded_steps);
  std::vector<int32_t> rows = recorded_rows.empty() ? PowersThenEvery(8, max_sequences) : recorded_rows;
  for (int32_t stride = 16; recorded_rows.empty() && rows.size() > most && stride <= max_sequences;
       stride *= 2)
    rows = PowersThenEvery(stride, max_sequences);
  // What is queued op by op costs a step the more of its time the narrower it is.
  rows.resize(std::min(rows.size(), most));
  return rows;
}

std::vector<int32_t> EngineLimits::RowsLeftOut() const {
  EngineLimits unbounded = *this;
  unbounded.max_recorded_steps = kMaxRecordedSteps;
  const std::vector<int32_t> all = unbounded.RowsToRecord(), recorded = RowsToRecord();
  std::vector<int32_t> left_out;
  std::set_difference(all.begin(), all.end(), recorded.begin(), recorded.end(), std::back_inserter(left_out));
  return left_out;
}

void EngineLimits::BoundRecordings(int32_t most) {
  while (recorded_steps() > most) --max_recorded_steps;
}

// Each is at most twice the one before it, where there is such a one, and the widest is among them.
std::vector<int32_t> EngineLimits::RowsToRecordWithSinks() const {
  const std::vector<int32_t> all = RowsToRecord();
  std::vector<int32_t> rows;
  for (size_t i = 0; i < all.size(); ++i) {
    if (rows.empty() || i + 1 == all.size() || all[i + 1] > 2 * rows.back()) rows.push_back(all[i]);
  }
  return rows;
}

std::string EngineLimits::ToString() const {
  std::string text;
  for (const Bound& bound : Bounds(*this)) {
    text += std::string(bound.name) + " = " + std::to_string(bound.value) + ": " + bound.when_reached +
            "; of a step " +
            (bound.engine_ns == 0 ? "nothing" : std::to_string(bound.engine_ns / 1000) + " us") + "\n";
  }
  text += "recorded_rows =" + ListOf(RowsToRecord()) +
          ": a wider decode step is queued op by op, as all are on a device that records none\n";
  if (const std::vector<int32_t> left_out = RowsLeftOut(); !left_out.empty()) {
    text += "recorded_rows left out =" + ListOf(left_out) +
            ": for more than max_recorded_steps there is no memory set aside\n";
  }
  text += "recorded_rows with sinks =" + ListOf(RowsToRecordWithSinks()) + ": likewise\n";
  text += std::string("prefix_cache = ") +
          (prefix_cache ? "on: pages are kept for later prompts that begin alike, until they are needed\n"
                        : "off: a page is free as soon as no sequence and no idle session has it\n");
  text += std::string("context_policy = ") + ContextPolicyName(context_policy.type) + ": " +
          (context_policy.type == ContextPolicyType::kNone
               ? "a text ends with the context, unless its request "
                 "says otherwise\n"
               : "texts go on, unless their requests say otherwise\n");
  return text + "lane_policy = " + LanePolicyName(lane_policy) + ": " + WhenBothLanesCouldGo(lane_policy) +
         "\n";
}

}  // namespace tramontane

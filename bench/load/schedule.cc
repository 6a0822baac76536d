#include "bench/load/schedule.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "bench/load/parse.h"

namespace tramontane::load {
namespace {

// Stamps of a trace as they are to be replayed, in order.
std::vector<std::pair<int64_t, size_t>> Replayed(const std::vector<TraceRow>& rows,
                                                 const ScheduleOptions& options) {
  Random random(options.seed, RandomUse::kSpread);
  std::vector<std::pair<int64_t, size_t>> order;
  order.reserve(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    double ns = static_cast<double>(rows[i].at_ns);
    if (options.spread_seconds > 0) ns += 1e9 * options.spread_seconds * random.Uniform();
    order.emplace_back(options.rate_scale == 1 && options.spread_seconds == 0
                           ? rows[i].at_ns
                           : std::llround(std::min(ns / options.rate_scale, kMaxArrivalNs)),
                       i);
  }
  std::sort(order.begin(), order.end());
  return order;
}

}  // namespace

Scheduler::Scheduler(ScheduleOptions options)
    : options_(std::move(options)),
      class_random_(options_.seed, RandomUse::kClass),
      input_random_(options_.seed, RandomUse::kInputTokens),
      output_random_(options_.seed, RandomUse::kOutputTokens),
      prefix_random_(options_.seed, RandomUse::kPrefix),
      class_states_(options_.classes.size()) {
  if (options_.trace != nullptr) {
    trace_order_ = Replayed(*options_.trace, options_);
  } else if (options_.arrivals) {
    arrivals_.emplace(*options_.arrivals, options_.seed);
  }
  for (ClassState& state : class_states_) state.history_tokens.resize(kOpenConversations);
}

std::optional<ScheduledRequest> Scheduler::Next() {
  // A load of which nothing fits would be looked through for ever.
  constexpr int64_t kMaxLeftOutInARow = 1'000'000;
  for (int64_t tries = 0; tries < kMaxLeftOutInARow; ++tries) {
    ScheduledRequest request;
    if (!Draw(&request)) return std::nullopt;
    const int64_t context = int64_t{request.plan.input_tokens} + request.plan.output_tokens;
    if (options_.max_context > 0 && context > options_.max_context) {
      ++left_out_;
      continue;
    }
    request.plan.index = index_++;
    return request;
  }
  return std::nullopt;
}

bool Scheduler::Draw(ScheduledRequest* request) {
  request->prompt.own = index_ + left_out_;
  if (options_.trace != nullptr) {
    if (trace_at_ == trace_order_.size()) return false;
    const auto [intended_ns, row] = trace_order_[trace_at_++];
    request->plan.intended_ns = intended_ns;
    DrawFromTrace((*options_.trace)[row], request);
    return true;
  }
  if (arrivals_) request->plan.intended_ns = arrivals_->NextNs();
  DrawLengths(request);
  return true;
}

void Scheduler::DrawFromTrace(const TraceRow& row, ScheduledRequest* request) const {
  request->plan.input_tokens = Scaled(row.input_tokens);
  request->plan.output_tokens = Scaled(row.output_tokens);
  request->prompt.blocks = row.blocks;
  request->prompt.block_tokens = Scaled(kTraceBlockTokens);
}

void Scheduler::DrawLengths(ScheduledRequest* request) {
  const int32_t class_index = DrawClass();
  const WorkClass& work = options_.classes[static_cast<size_t>(class_index)];
  ClassState& state = class_states_[static_cast<size_t>(class_index)];
  const int32_t input = Scaled(work.prompt_tokens.Draw(input_random_));
  const int32_t output = Scaled(work.output_tokens.Draw(output_random_));
  request->plan.class_index = class_index;
  request->plan.output_tokens = output;
  int64_t history = 0;
  const int64_t number = state.drawn++;
  if (work.turns > 1) {
    const int64_t place = number % kOpenConversations, round = number / kOpenConversations;
    int64_t& at_place = state.history_tokens[static_cast<size_t>(place)];
    if (round % work.turns == 0) at_place = 0;
    history = at_place;
    at_place += input + output;
    // Of the class, and unlike the keys of single requests, which count up from 0.
    request->prompt.own = -1 - ((round / work.turns * kOpenConversations + place) *
                                    static_cast<int64_t>(options_.classes.size()) +
                                class_index);
  }
  if (work.shared_prefix.tokens > 0) {
    request->prompt.prefix = prefix_random_.Whole(0, work.shared_prefix.count - 1) *
                                 static_cast<int64_t>(options_.classes.size()) +
                             class_index;
    request->prompt.prefix_tokens = work.shared_prefix.tokens;
  }
  const int64_t tokens = history + input + request->prompt.prefix_tokens;
  request->plan.input_tokens = static_cast<int32_t>(std::min<int64_t>(tokens, kMaxTokens));
}

int32_t Scheduler::DrawClass() {
  double sum = 0;
  for (const WorkClass& work : options_.classes) sum += work.weight;
  double at = class_random_.Uniform() * sum;
  int32_t last = 0;  // of those with a weight
  for (size_t i = 0; i < options_.classes.size(); ++i) {
    if (options_.classes[i].weight <= 0) continue;
    last = static_cast<int32_t>(i);
    at -= options_.classes[i].weight;
    if (at < 0) break;
  }
  return last;
}

int32_t Scheduler::Scaled(int32_t tokens) const {
  if (options_.length_scale == 1) return tokens;
  const double scaled = std::round(options_.length_scale * tokens);
  return static_cast<int32_t>(std::clamp(scaled, 1.0, static_cast<double>(kMaxTokens)));
}

Status CheckSize(const ScheduleOptions& options, int64_t max_requests, int64_t end_ns) {
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  const double infinity = std::numeric_limits<double>::infinity();
  const double end_s = end_ns == kNever ? infinity : static_cast<double>(end_ns) * 1e-9;
  double requests = max_requests == kNever ? infinity : static_cast<double>(max_requests);
  double seconds = 0;
  if (options.trace != nullptr) {
    const double last_s = static_cast<double>(options.trace->back().at_ns) * 1e-9;
    requests = std::min(requests, static_cast<double>(options.trace->size()));
    seconds = std::min(end_s, (last_s + options.spread_seconds) / options.rate_scale);
  } else if (options.arrivals) {
    const ArrivalOptions& arrivals = *options.arrivals;
    const double rate =
        arrivals.ramp_to_rate > 0 ? 0.5 * (arrivals.rate + arrivals.ramp_to_rate) : arrivals.rate;
    requests = std::min(requests, rate * end_s);
    seconds = std::min(end_s, requests / rate);
  } else if (max_requests == kNever) {
    return Status::Ok();
  }
  if (requests > static_cast<double>(kMaxScheduledRequests)) {
    return InvalidArgument("the load is " + NumberText(std::round(requests)) +
                           " requests; it must be at most " + std::to_string(kMaxScheduledRequests) +
                           ": that is --requests, what --rate and --duration make, or a row of a trace each");
  }
  if (seconds > kMaxScheduleSeconds) {
    return InvalidArgument("the load takes " + NumberText(std::round(seconds)) +
                           " seconds; it must take at most " + NumberText(kMaxScheduleSeconds) +
                           ": that is --requests at --rate, or a trace with --spread and --rate-scale");
  }
  return Status::Ok();
}

Schedule DrawSchedule(const ScheduleOptions& options, int64_t max_requests, int64_t end_ns) {
  Scheduler scheduler(options);
  Schedule schedule;
  while (static_cast<int64_t>(schedule.requests.size()) < max_requests) {
    auto request = scheduler.Next();
    if (!request || request->plan.intended_ns >= end_ns) break;
    schedule.requests.push_back(*std::move(request));
  }
  schedule.left_out = scheduler.left_out();
  return schedule;
}

}  // namespace tramontane::load

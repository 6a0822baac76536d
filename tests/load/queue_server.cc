#include "tests/load/queue_server.h"

#include <algorithm>

namespace tramontane::load {

void EventClock::WaitUntil(int64_t ns) {
  while (!woken_ && !events_.empty() && events_.begin()->first <= ns) {
    const auto event = events_.extract(events_.begin());
    now_ = std::max(now_, event.key());
    event.mapped()();
  }
  if (!woken_) now_ = std::max(now_, ns);
  woken_ = false;
}

void QueueServer::Send(OutgoingRequest request, Done done) {
  Call call{{}, std::move(done)};
  RequestRecord& record = call.record;
  record.index = request.index;
  record.class_index = request.class_index;
  record.request_id = request.request_id;
  record.intended_ns = request.intended_ns;
  record.sent_ns = clock_.Now() + options_.send_lag_ns;
  record.input_tokens =
      request.ids.empty() ? 0 : static_cast<int32_t>(request.ids.size()) + options_.more_input_tokens;
  record.output_tokens = request.output_tokens;
  record.output_tokens_from = TokenCountFrom::kUsage;
  const int64_t number = next_call_++;
  const int64_t timeout = record.sent_ns + request.deadline_ns;
  clock_.At(timeout, [this, number] { End(number, Outcome::kTimeout); });
  if (!options_.silent) {
    const int64_t first = TurnOf(record.sent_ns, options_.service_ns(request));
    record.connected_ns = record.sent_ns;
    record.headers_ns = first;
    record.first_any_ns = first;
    for (int32_t i = 0; i < request.output_tokens; ++i)
      record.content_ns.push_back(first + i * options_.gap_ns);
    record.done_ns = record.content_ns.back();
    if (options_.without_content(request)) {
      record.content_ns.clear();
      record.output_tokens = 0;
    }
    record.status = 200;
    const Outcome outcome = options_.outcome(request);
    clock_.At(*record.done_ns, [this, number, outcome] { End(number, outcome); });
  }
  calls_.emplace(number, std::move(call));
  most_in_flight = std::max(most_in_flight, static_cast<int64_t>(calls_.size()));
  seen.push_back(std::move(request));
}

// When the request's first content comes.
int64_t QueueServer::TurnOf(int64_t arrival_ns, int64_t service_ns) {
  int64_t begin = arrival_ns;
  const bool all_busy = options_.servers > 0 && static_cast<int32_t>(free_ns_.size()) == options_.servers;
  if (all_busy) {
    begin = std::max(begin, *free_ns_.begin());
    free_ns_.erase(free_ns_.begin());
  }
  if (begin >= options_.stop_ns && begin < options_.resume_ns) begin = options_.resume_ns;
  if (options_.servers > 0) free_ns_.insert(begin + service_ns);
  return begin + service_ns;
}

void QueueServer::End(int64_t number, Outcome outcome) {
  auto call = calls_.extract(number);
  if (call.empty()) return;
  RequestRecord& record = call.mapped().record;
  record.outcome = outcome;
  const auto later = [&](int64_t ns) { return ns > clock_.Now(); };
  std::erase_if(record.content_ns, later);
  if (outcome != Outcome::kOk) {
    record.error = options_.error;
    record.status = outcome == Outcome::kHttpError ? 429 : 0;
    for (auto* stamp : {&record.headers_ns, &record.first_any_ns, &record.done_ns}) {
      if (*stamp && later(**stamp)) stamp->reset();
    }
  }
  call.mapped().done(std::move(record));
}

void QueueServer::Abort() {
  ++aborts;
  while (!calls_.empty()) End(calls_.begin()->first, Outcome::kUnfinished);
}

}  // namespace tramontane::load

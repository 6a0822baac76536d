// A fake clock whose time is an event queue's, and on it a server with a queue: runs of hours take no time,
// and their truth is arithmetic. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bench/load/clock.h"
#include "bench/load/transport.h"

namespace tramontane::load {

class EventClock final : public Clock {
 public:
  int64_t Now() override { return now_; }
  void WaitUntil(int64_t ns) override;
  void Wake() override { woken_ = true; }

  void At(int64_t ns, std::function<void()> event) { events_.emplace(ns, std::move(event)); }

 private:
  int64_t now_ = 1'000'000'000'000;  // far from 0, which no stamp is
  bool woken_ = false;
  std::multimap<int64_t, std::function<void()>> events_;
};

struct QueueServerOptions {
  int32_t servers = 1;  // at work at a time; 0: as many as there are requests
  // From its turn to the first content event.
  std::function<int64_t(const OutgoingRequest&)> service_ns = [](const OutgoingRequest&) {
    return 1'000'000;
  };
  int64_t gap_ns = 0;  // between content events; the server is free again at the first
  // Nothing begins from `stop_ns` to `resume_ns`, on the clock.
  int64_t stop_ns = 0;
  int64_t resume_ns = 0;
  // How a request ends; the default is well.
  std::function<Outcome(const OutgoingRequest&)> outcome = [](const OutgoingRequest&) {
    return Outcome::kOk;
  };
  // Whether it answers without a token.
  std::function<bool(const OutgoingRequest&)> without_content = [](const OutgoingRequest&) { return false; };
  bool silent = false;                       // answers nothing
  std::string error = "as the test has it";  // of what does not end well
  int32_t more_input_tokens = 0;             // by usage, than there were ids
  int64_t send_lag_ns = 0;                   // of a client that is late
};

// First come, first served.
class QueueServer final : public Transport {
 public:
  QueueServer(EventClock& clock, QueueServerOptions options) : clock_(clock), options_(std::move(options)) {}

  void Send(OutgoingRequest request, Done done) override;
  void Abort() override;
  ClientLoad Load() override { return {1'000'000, 0.25}; }

  std::vector<OutgoingRequest> seen;  // in the order of sending
  int64_t most_in_flight = 0;
  int64_t aborts = 0;

 private:
  struct Call {
    RequestRecord record;
    Done done;
  };

  int64_t TurnOf(int64_t arrival_ns, int64_t service_ns);
  void End(int64_t index, Outcome outcome);

  EventClock& clock_;
  QueueServerOptions options_;
  std::multiset<int64_t> free_ns_;  // when each server is free again
  std::map<int64_t, Call> calls_;   // under way, by number
  int64_t next_call_ = 0;
};

}  // namespace tramontane::load

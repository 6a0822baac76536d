// Sends the requests of one run and gathers what became of them.
// One thread calls; answers come on threads of the transport.
//
// Open loop: each request at its intended time, whatever became of those before. With a cap on what is in
// flight a request waits for a free place, and its intended time stays what it was, so the wait counts.
// Closed loop: as many slots as `concurrency`; a request is intended when its slot fell free.
// A run ends at the latest `drain_s` after its last request was to be sent, whatever the server does.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "bench/load/clock.h"
#include "bench/load/record.h"
#include "bench/load/schedule.h"
#include "bench/load/transport.h"

namespace tramontane::load {

struct RunLimits {
  bool closed_loop = false;
  int32_t concurrency = 0;                                     // slots; in an open loop the cap, 0 for none
  int64_t max_requests = std::numeric_limits<int64_t>::max();  // closed loop
  // Of sending, INT64_MAX for no limit. An open loop's is its last intended time + 1 at the most, so that the
  // time to drain counts from there.
  int64_t duration_ns = std::numeric_limits<int64_t>::max();
  int64_t drain_ns = 30'000'000'000;
  int64_t timeout_ns = 600'000'000'000;
};

// What a run looks like while it goes on.
struct RunProgress {
  int64_t elapsed_ns = 0;
  int64_t sent = 0;
  int64_t in_flight = 0;
  int64_t ended = 0;
  int64_t failed = 0;
  int64_t waiting = 0;  // due and not sent: the cap keeps them back (as far as they are written)
};

struct RunHooks {
  // The next request: a schedule's, or drawn as slots fall free. Nothing: no more.
  std::function<std::optional<ScheduledRequest>()> next;
  // Its ids or text. Called ahead of time where there is time.
  std::function<OutgoingRequest(const ScheduledRequest&)> write;
  std::function<void(const RunProgress&)> progress;  // a few times a second; may be empty
  const std::atomic<bool>* stop = nullptr;           // set: sending ends, and what is under way is aborted
};

struct RunResult {
  int64_t start_ns = 0;  // intended times count from here
  int64_t end_ns = 0;
  std::vector<RequestRecord> records;  // by index; every request that was due has one
  // Requests that no place fell free for until the end have the outcome kUnfinished and sent_ns 0.
  double busiest_thread_share = 0;  // of a core
  int64_t cpu_ns = 0;               // of the client: transport and sender
  bool stopped = false;
};

RunResult Run(const RunLimits& limits, const RunHooks& hooks, Transport& transport, Clock& clock);

}  // namespace tramontane::load

// The schedule of a run: what is sent when, drawn beforehand from the seed alone. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "bench/load/arrivals.h"
#include "bench/load/record.h"
#include "bench/load/trace.h"
#include "bench/load/work.h"
#include "kernels/core/status.h"

namespace tramontane::load {

// What the ids of a prompt are made of, in this order; each part is a stream of ids with a key of its own, so
// that two prompts share what has one key.
struct PromptParts {
  int64_t prefix = -1;  // a shared prefix of the class; -1: none
  int32_t prefix_tokens = 0;
  std::vector<int64_t> blocks;  // shared blocks of a trace
  int32_t block_tokens = 0;
  int64_t own = 0;  // the request's index, or its conversation's: a later turn is longer, and begins alike
};

struct ScheduledRequest {
  PlannedRequest plan;
  PromptParts prompt;
};

struct ScheduleOptions {
  uint64_t seed = 0;
  std::vector<WorkClass> classes = std::vector<WorkClass>(1);
  // Open loop by arrivals, or by a trace, which says lengths too; closed loop: neither.
  std::optional<ArrivalOptions> arrivals;
  std::shared_ptr<const std::vector<TraceRow>> trace;
  double rate_scale = 1;      // of a trace: 2 is twice as fast
  double length_scale = 1;    // of lengths, whoever says them
  double spread_seconds = 0;  // of a trace: each stamp moves later by up to this, before rate_scale
  int64_t max_context = 0;    // prompt and answer together; longer requests are left out; 0: any
};

// Conversations (turns above 1) under way at a time: a turn follows this many requests of its class after the
// one before.
inline constexpr int64_t kOpenConversations = 32;

// Draws one request after the other. The same options give the same requests, however many are drawn.
class Scheduler {
 public:
  explicit Scheduler(ScheduleOptions options);

  // In the order of intended_ns; nothing when the trace has ended.
  std::optional<ScheduledRequest> Next();
  // Requests that max_context kept out of those drawn so far.
  int64_t left_out() const { return left_out_; }

 private:
  struct ClassState {
    int64_t drawn = 0;
    std::vector<int64_t> history_tokens;  // [kOpenConversations] of the conversation at each place
  };

  bool Draw(ScheduledRequest* request);
  void DrawFromTrace(const TraceRow& row, ScheduledRequest* request) const;
  void DrawLengths(ScheduledRequest* request);
  int32_t DrawClass();
  int32_t Scaled(int32_t tokens) const;

  ScheduleOptions options_;
  std::vector<std::pair<int64_t, size_t>> trace_order_;  // intended_ns, row
  std::optional<Arrivals> arrivals_;
  Random class_random_, input_random_, output_random_, prefix_random_;
  std::vector<ClassState> class_states_;
  size_t trace_at_ = 0;
  int64_t index_ = 0, left_out_ = 0;
};

// Of one run: each request is held until its end, and its time is to fit into an int64_t of ns.
inline constexpr int64_t kMaxScheduledRequests = 5'000'000;
inline constexpr double kMaxScheduleSeconds = 1e9;
// INVALID_ARGUMENT where a schedule would have more of either, by the mean of its arrivals or by its trace.
// In a closed loop only max_requests is known beforehand. Draws nothing.
Status CheckSize(const ScheduleOptions& options, int64_t max_requests, int64_t end_ns);

// All requests of an open loop: up to `max_requests`, and intended before `end_ns`.
struct Schedule {
  std::vector<ScheduledRequest> requests;
  int64_t left_out = 0;
};
Schedule DrawSchedule(const ScheduleOptions& options, int64_t max_requests, int64_t end_ns);

}  // namespace tramontane::load

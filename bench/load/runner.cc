#include "bench/load/runner.h"

#include <time.h>

#include <algorithm>
#include <deque>
#include <mutex>
#include <utility>

namespace tramontane::load {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
constexpr int64_t kLeadNs = 20'000'000;  // from the first prompt's being ready to the start of the run
constexpr int64_t kLongestWaitNs = 100'000'000;  // so that a stop and the live line are not late
constexpr size_t kMaxReady = 256;                // requests written ahead of time
constexpr int64_t kMaxReadyIds = 4'000'000;      // of all of them
constexpr int64_t kWritingNs =
    2'000'000;  // a prompt is written only where there is this long to the next send

int64_t ThreadCpuNs() {
  timespec spent{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
  return spent.tv_sec * 1'000'000'000LL + spent.tv_nsec;
}

// Ends of requests, from the transport's threads to the runner's.
class Ends {
 public:
  explicit Ends(Clock& clock) : clock_(clock) {}

  void Add(RequestRecord record) {
    const int64_t now = clock_.Now();
    {
      const std::scoped_lock lock(mutex_);
      ended_.emplace_back(std::move(record), now);
    }
    clock_.Wake();
  }

  std::vector<std::pair<RequestRecord, int64_t>> Take() {
    const std::scoped_lock lock(mutex_);
    return std::exchange(ended_, {});
  }

 private:
  Clock& clock_;
  std::mutex mutex_;
  std::vector<std::pair<RequestRecord, int64_t>> ended_;  // with the time of the end; under mutex_
};

struct Ready {
  ScheduledRequest scheduled;
  OutgoingRequest outgoing;
};

class Runner {
 public:
  Runner(const RunLimits& limits, const RunHooks& hooks, Transport& transport, Clock& clock)
      : limits_(limits), hooks_(hooks), transport_(transport), clock_(clock), ends_(clock) {}

  RunResult Run();

 private:
  void SendAll();
  void Drain();
  void Finish();

  // When the next request is to be sent, kNever without one; closed loop without a free slot: any past time.
  int64_t NextDue();
  bool HasPlace() const {
    if (limits_.closed_loop) return !free_slots_ns_.empty();
    return limits_.concurrency == 0 || in_flight_ < limits_.concurrency;
  }
  bool Stopped() const { return hooks_.stop != nullptr && hooks_.stop->load(std::memory_order_relaxed); }
  int64_t SendingEnd() const {
    return limits_.duration_ns == kNever ? kNever : result_.start_ns + limits_.duration_ns;
  }
  void SendNext();
  void Wait(int64_t until);
  void TakeEnds();
  void WriteAhead();
  bool WriteOne();
  void Tell();

  const RunLimits& limits_;
  const RunHooks& hooks_;
  Transport& transport_;
  Clock& clock_;
  Ends ends_;
  RunResult result_;
  std::deque<Ready> ready_;
  std::deque<int64_t> free_slots_ns_;  // closed loop: when each fell free
  int64_t ready_ids_ = 0, sent_ = 0, in_flight_ = 0, failed_ = 0, last_due_ns_ = 0, told_ns_ = 0;
  bool no_more_ = false;
};

RunResult Runner::Run() {
  transport_.Load();  // shares count from here
  const int64_t cpu_before = ThreadCpuNs();
  WriteAhead();
  result_.start_ns = clock_.Now() + kLeadNs;
  last_due_ns_ = result_.start_ns;
  if (limits_.closed_loop) free_slots_ns_.assign(static_cast<size_t>(limits_.concurrency), result_.start_ns);
  SendAll();
  Drain();
  Finish();
  const int64_t sender_cpu = ThreadCpuNs() - cpu_before;
  const ClientLoad load = transport_.Load();
  const double elapsed = static_cast<double>(std::max<int64_t>(1, result_.end_ns - result_.start_ns));
  result_.cpu_ns = load.cpu_ns + sender_cpu;
  result_.busiest_thread_share =
      std::max(load.busiest_thread_share, std::min(1.0, static_cast<double>(sender_cpu) / elapsed));
  return std::move(result_);
}

void Runner::SendAll() {
  while (!Stopped()) {
    TakeEnds();
    Tell();
    const int64_t due = NextDue();
    // Open loop: who was due within the time is sent, however late its place falls free (Drain).
    if (due == kNever || due >= SendingEnd()) return;
    const int64_t now = clock_.Now();
    if (HasPlace() && now >= due) {
      SendNext();
    } else if (now >= SendingEnd()) {
      return;
    } else {
      WriteAhead();
      Wait(HasPlace() ? due : SendingEnd());
    }
  }
}

// Waits for what is under way; what the cap kept back still goes out.
void Runner::Drain() {
  int64_t last_due = last_due_ns_;
  if (SendingEnd() != kNever) last_due = std::max(last_due, std::min(SendingEnd(), clock_.Now()));
  const int64_t end = last_due + limits_.drain_ns;
  while (!Stopped() && clock_.Now() < end) {
    TakeEnds();
    Tell();
    const int64_t due = limits_.closed_loop ? kNever : NextDue();
    const bool kept_back = due < SendingEnd() && due <= clock_.Now();
    if (kept_back && HasPlace()) {
      SendNext();
    } else if (in_flight_ == 0) {
      return;
    } else {
      Wait(end);
    }
  }
}

void Runner::Finish() {
  result_.stopped = Stopped();
  transport_.Abort();
  TakeEnds();
  result_.end_ns = clock_.Now();
  // Those that were due and never had a place.
  while (!limits_.closed_loop) {
    const int64_t due = NextDue();
    if (due >= SendingEnd() || due > result_.end_ns) break;
    RequestRecord record;
    record.index = ready_.front().scheduled.plan.index;
    record.class_index = ready_.front().scheduled.plan.class_index;
    record.request_id = ready_.front().outgoing.request_id;
    record.intended_ns = due;
    record.input_tokens = ready_.front().scheduled.plan.input_tokens;
    record.outcome = Outcome::kUnfinished;
    record.error = "no place fell free before the end of the run";
    result_.records.push_back(std::move(record));
    ready_.pop_front();
  }
  const auto by_index = [](const RequestRecord& a, const RequestRecord& b) { return a.index < b.index; };
  std::sort(result_.records.begin(), result_.records.end(), by_index);
}

int64_t Runner::NextDue() {
  if (limits_.closed_loop && sent_ >= limits_.max_requests) return kNever;
  if (ready_.empty() && !WriteOne()) return kNever;
  if (!limits_.closed_loop) return result_.start_ns + ready_.front().scheduled.plan.intended_ns;
  return free_slots_ns_.empty() ? last_due_ns_ : free_slots_ns_.front();
}

void Runner::SendNext() {
  const int64_t due = NextDue();
  Ready next = std::move(ready_.front());
  ready_.pop_front();
  ready_ids_ -= static_cast<int64_t>(next.outgoing.ids.size());
  if (limits_.closed_loop) free_slots_ns_.pop_front();
  last_due_ns_ = due;
  next.outgoing.intended_ns = due;
  next.outgoing.deadline_ns = limits_.timeout_ns;
  ++sent_;
  ++in_flight_;
  const int32_t asked = next.scheduled.plan.input_tokens;
  transport_.Send(std::move(next.outgoing), [this, asked](RequestRecord record) {
    if (record.input_tokens == 0) record.input_tokens = asked;
    ends_.Add(std::move(record));
  });
}

void Runner::Wait(int64_t until) {
  // A wait that is cut short for the live line is not precise, and need not be.
  clock_.WaitUntil(std::min(until, clock_.Now() + kLongestWaitNs));
}

void Runner::TakeEnds() {
  for (auto& [record, ended_ns] : ends_.Take()) {
    --in_flight_;
    if (record.outcome != Outcome::kOk) ++failed_;
    if (limits_.closed_loop) free_slots_ns_.push_back(ended_ns);
    result_.records.push_back(std::move(record));
  }
}

void Runner::WriteAhead() {
  while (ready_.size() < kMaxReady && ready_ids_ < kMaxReadyIds) {
    const bool begun = result_.start_ns > 0;
    const bool hurries = begun && !ready_.empty() && !limits_.closed_loop && HasPlace() &&
                         NextDue() - clock_.Now() < kWritingNs;
    if (hurries || !WriteOne()) return;
  }
}

bool Runner::WriteOne() {
  if (no_more_) return false;
  auto scheduled = hooks_.next();
  if (!scheduled) {
    no_more_ = true;
    return false;
  }
  OutgoingRequest outgoing = hooks_.write(*scheduled);
  ready_ids_ += static_cast<int64_t>(outgoing.ids.size());
  ready_.push_back({*std::move(scheduled), std::move(outgoing)});
  return true;
}

void Runner::Tell() {
  constexpr int64_t kTellEveryNs = 200'000'000;
  if (!hooks_.progress || clock_.Now() - told_ns_ < kTellEveryNs) return;
  told_ns_ = clock_.Now();
  const int64_t elapsed = std::max<int64_t>(0, told_ns_ - result_.start_ns);
  const auto is_due = [&](const Ready& ready) { return ready.scheduled.plan.intended_ns <= elapsed; };
  const auto due = limits_.closed_loop ? 0 : std::count_if(ready_.begin(), ready_.end(), is_due);
  hooks_.progress({elapsed, sent_, in_flight_, static_cast<int64_t>(result_.records.size()), failed_, due});
}

}  // namespace

RunResult Run(const RunLimits& limits, const RunHooks& hooks, Transport& transport, Clock& clock) {
  return Runner(limits, hooks, transport, clock).Run();
}

}  // namespace tramontane::load

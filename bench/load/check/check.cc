#include "bench/load/check/check.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <queue>
#include <thread>
#include <utility>

#include "bench/load/check/grpc_check.h"
#include "bench/load/check/scripted_target.h"
#include "bench/load/check/scripts.h"
#include "bench/load/clock.h"
#include "bench/load/connect.h"
#include "bench/load/latencies.h"
#include "bench/load/runner.h"
#include "bench/load/statistics.h"
#include "bench/load/wire/stamp.h"

namespace tramontane::load {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr double kMedianBoundMs = 0.3;
constexpr double kP99BoundMs = 1;
constexpr int64_t kSleepNs = 5 * kMs;  // of the thread that only sleeps
constexpr int kAttempts = 3;

double Ms(int64_t ns) { return static_cast<double>(ns) / 1e6; }

std::string Fixed(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3f", value);
  return text.data();
}

// ---- a run --------------------------------------------------------------------------------------

struct SteadyLoad {
  int64_t requests = 0;
  int64_t interval_ns = 0;
  int32_t cap = 0;
  int64_t timeout_ns = 20'000 * kMs;
};

TargetOptions OptionsOf(const std::string& url) {
  TargetOptions options;
  options.url = url;
  options.model = "scripted";
  return options;
}

// Sends at a constant rate; request ids are the indices.
StatusOr<RunResult> RunSteady(const std::string& url, const SteadyLoad& load) {
  TM_ASSIGN_OR_RETURN(const std::unique_ptr<Transport> transport, Connect(OptionsOf(url)));
  RunLimits limits;
  limits.concurrency = load.cap;
  limits.timeout_ns = load.timeout_ns;
  RunHooks hooks;
  int64_t next = 0;
  hooks.next = [&]() -> std::optional<ScheduledRequest> {
    if (next == load.requests) return std::nullopt;
    ScheduledRequest request;
    request.plan.index = next;
    request.plan.intended_ns = next * load.interval_ns;
    ++next;
    return request;
  };
  hooks.write = [](const ScheduledRequest& request) {
    OutgoingRequest outgoing;
    outgoing.index = request.plan.index;
    outgoing.request_id = std::to_string(request.plan.index);
    outgoing.ids = {1300, 1301, 1302, 1303, 1304, 1305, 1306};
    outgoing.output_tokens = 8;
    return outgoing;
  };
  MonotonicClock clock;
  return Run(limits, hooks, *transport, clock);
}

// ---- times --------------------------------------------------------------------------------------

// A thread that only sleeps, and how late it woke each time.
class Sleeper {
 public:
  Sleeper() : thread_([this] { Run(); }) {}
  ~Sleeper() {
    if (thread_.joinable()) Stop();
  }

  std::vector<double> Stop() {
    stops_ = true;
    thread_.join();
    return late_ms_;
  }

 private:
  void Run() {
    for (int64_t due_ns = NowNs() + kSleepNs; !stops_; due_ns += kSleepNs) {
      const timespec due{due_ns / kNsPerSecond, due_ns % kNsPerSecond};
      if (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, nullptr) != 0) continue;
      late_ms_.push_back(Ms(NowNs() - due_ns));
    }
  }

  std::atomic<bool> stops_ = false;
  std::vector<double> late_ms_;  // the thread's own until it has ended
  std::thread thread_;
};

struct Quantiles {
  double median = 0;
  double p99 = 0;
};

Quantiles QuantilesOf(std::vector<double> samples) {
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  return {Percentile(samples, 50), Percentile(samples, 99)};
}

// Samples of one metric: what the server's log says, what the tool says, and how far they are apart.
struct Compared {
  std::string metric;
  int ends = 1;  // of what is timed that a late waking may move: a gap has two
  std::vector<double> truth, measured, error;

  void Add(double true_ms, double measured_ms) {
    truth.push_back(true_ms);
    measured.push_back(measured_ms);
    error.push_back(std::abs(measured_ms - true_ms));
  }
};

// When each content event was really written; an event of one write shares its time.
std::vector<int64_t> WrittenNs(const ScriptLog& log) {
  std::vector<int64_t> written;
  for (const ScriptLog::Write& write : log.writes) {
    written.insert(written.end(), static_cast<size_t>(write.content_events), write.wrote_ns);
  }
  return written;
}

std::vector<Compared> Compare(const RunResult& run, const std::map<std::string, ScriptLog>& logs) {
  Compared ttft{"ttft", 1, {}, {}, {}}, e2el{"e2el", 1, {}, {}, {}}, itl{"itl", 2, {}, {}, {}};
  for (const RequestRecord& record : run.records) {
    const auto log = logs.find(record.request_id);
    if (log == logs.end() || record.outcome != Outcome::kOk) continue;
    const std::vector<int64_t> written = WrittenNs(log->second);
    const Latencies latencies = LatenciesOf(record);
    if (written.empty() || written.size() != record.content_ns.size()) continue;
    ttft.Add(Ms(written.front() - record.intended_ns), latencies.ttft.value_or(0));
    e2el.Add(Ms(written.back() - record.intended_ns), latencies.e2el.value_or(0));
    for (size_t i = 0; i + 1 < written.size(); ++i)
      itl.Add(Ms(written[i + 1] - written[i]), latencies.itl[i]);
  }
  return {ttft, e2el, itl};
}

void AddTimes(const std::string& where, const std::vector<Compared>& all, const Quantiles& sleeper,
              bool has_bound, CheckReport* report) {
  for (const Compared& one : all) {
    const Quantiles truth = QuantilesOf(one.truth), measured = QuantilesOf(one.measured),
                    error = QuantilesOf(one.error);
    const bool within = error.median <= one.ends * sleeper.median + kMedianBoundMs &&
                        error.p99 <= one.ends * sleeper.p99 + kP99BoundMs;
    report->lines.push_back(
        {where + " " + one.metric + "_ms, " + std::to_string(one.error.size()) + " samples",
         Fixed(truth.median) + " p99 " + Fixed(truth.p99),
         Fixed(measured.median) + " p99 " + Fixed(measured.p99),
         Fixed(error.median) + " p99 " + Fixed(error.p99), !one.error.empty() && (within || !has_bound)});
  }
}

void AddSleeper(const std::string& where, const Quantiles& sleeper, CheckReport* report) {
  report->lines.push_back({where + " a thread that only sleeps, ms late", "0", "-",
                           Fixed(sleeper.median) + " p99 " + Fixed(sleeper.p99), true});
}

StreamScript TimedStream() {
  StreamScript stream;
  stream.ttft_ns = 20 * kMs;
  stream.gap_ns = 10 * kMs;
  stream.events = 8;
  return stream;
}

Status CheckHttpTimes(CheckReport* report) {
  TM_ASSIGN_OR_RETURN(const std::unique_ptr<ScriptedTarget> target,
                      ScriptedTarget::Start([](const ScriptedRequest&) { return Stream(TimedStream()); }));
  Sleeper sleeper;
  TM_ASSIGN_OR_RETURN(const RunResult run, RunSteady(target->url(), {200, 25 * kMs, 0}));
  const Quantiles late = QuantilesOf(sleeper.Stop());
  const auto logs = target->Logs();
  std::vector<double> server_late;
  for (const auto& [id, log] : logs) {
    for (const ScriptLog::Write& write : log.writes) server_late.push_back(Ms(write.wrote_ns - write.due_ns));
  }
  AddTimes("http", Compare(run, logs), late, true, report);
  AddSleeper("http", late, report);
  const Quantiles server = QuantilesOf(server_late);
  report->lines.push_back({"http the server's own writes, ms late", "0", "-",
                           Fixed(server.median) + " p99 " + Fixed(server.p99), true});
  return Status::Ok();
}

// No bound: its stamps are those of callbacks, and how much later they are is what these lines say.
Status CheckGrpcTimes(CheckReport* report) {
  const StreamScript stream = TimedStream();
  auto target = StartGrpcTarget({stream.ttft_ns, stream.gap_ns, stream.events});
  if (target.status().code() == StatusCode::kUnimplemented) return Status::Ok();
  if (!target.ok()) return target.status();
  Sleeper sleeper;
  TM_ASSIGN_OR_RETURN(const RunResult run, RunSteady((*target)->url(), {80, 25 * kMs, 0}));
  const Quantiles late = QuantilesOf(sleeper.Stop());
  AddTimes("grpc", Compare(run, (*target)->Logs()), late, false, report);
  AddSleeper("grpc", late, report);
  return Status::Ok();
}

// ---- what is exact ------------------------------------------------------------------------------

void AddCount(const std::string& metric, int64_t truth, int64_t measured, CheckReport* report) {
  report->lines.push_back({metric, std::to_string(truth), std::to_string(measured),
                           std::to_string(measured - truth), truth == measured});
}

Status CheckTokens(CheckReport* report) {
  constexpr int64_t kRequests = 10;
  StreamScript stream;
  stream.events = 12;
  stream.tokens_per_event = 4;
  stream.events_per_write = 3;
  stream.gap_ns = 2 * kMs;
  stream.stall_after = 6;
  stream.stall_ns = 200 * kMs;
  TM_ASSIGN_OR_RETURN(const std::unique_ptr<ScriptedTarget> target,
                      ScriptedTarget::Start([&](const auto& request) {
                        StreamScript one = stream;
                        one.with_usage = request.request_id.back() % 2 == 0;  // the others count ids
                        return Stream(one);
                      }));
  TM_ASSIGN_OR_RETURN(const RunResult run, RunSteady(target->url(), {kRequests, 10 * kMs, 0}));
  int64_t tokens = 0, events = 0, stalls = 0, by_usage = 0;
  for (const RequestRecord& record : run.records) {
    tokens += record.output_tokens;
    events += static_cast<int64_t>(record.content_ns.size());
    by_usage += record.output_tokens_from == TokenCountFrom::kUsage ? 1 : 0;
    for (const double gap : LatenciesOf(record).itl) stalls += gap > 150 ? 1 : 0;
  }
  AddCount("tokens, 4 an event", kRequests * stream.events * stream.tokens_per_event, tokens, report);
  AddCount("content events, 3 a write", kRequests * stream.events, events, report);
  AddCount("requests counted by usage, the others by ids", kRequests / 2, by_usage, report);
  AddCount("gaps above 150 ms, one stall of 200 ms each", kRequests, stalls, report);
  return Status::Ok();
}

// A port that nothing listens on.
std::string DeadUrl() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* any = reinterpret_cast<sockaddr*>(&address);
  if (fd >= 0 && bind(fd, any, size) == 0) getsockname(fd, any, &size);
  if (fd >= 0) close(fd);
  return "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
}

void CountOutcomes(const RunResult& run, std::map<std::string, int64_t>* counts) {
  for (const RequestRecord& record : run.records) ++(*counts)[OutcomeName(record.outcome, record.status)];
}

Status CheckOutcomes(CheckReport* report) {
  StreamScript stream;
  stream.events = 3;
  std::vector<std::pair<std::string, Script>> scripts = {
      {"ok", Stream(stream)},
      {"http_429", StatusAnswer(429, "2", "scripted")},
      {"http_503", StatusAnswer(503, "", "scripted")},
      {"stream_error", ErrorEventAfter(stream)},
      {"closed_early", BrokenOff(stream, ScriptEnd::kClose)},
      {"closed_early", BrokenOff(stream, ScriptEnd::kReset)},
      {"ok", NoTokens()},
      {"no_content", NothingButDone()},
      {"timeout", SilentFromTheBegin()},
      {"timeout", Silent()},
      {"timeout", SlowHead(50 * kMs)},
  };
  for (const NamedScript& garbage : GarbageScripts()) scripts.emplace_back("garbage", garbage.script);
  std::map<std::string, int64_t> truth, measured;
  for (const auto& [outcome, script] : scripts) ++truth[outcome];
  TM_ASSIGN_OR_RETURN(const std::unique_ptr<ScriptedTarget> target,
                      ScriptedTarget::Start([&](const auto& request) {
                        return scripts[std::stoul(request.request_id)].second;
                      }));
  const SteadyLoad load{static_cast<int64_t>(scripts.size()), 5 * kMs, 0, 1000 * kMs};
  TM_ASSIGN_OR_RETURN(const RunResult run, RunSteady(target->url(), load));
  CountOutcomes(run, &measured);
  TM_ASSIGN_OR_RETURN(const RunResult dead, RunSteady(DeadUrl(), {3, kMs, 0}));
  truth["refused"] = 3;
  CountOutcomes(dead, &measured);
  for (const auto& [outcome, count] : truth) measured.emplace(outcome, 0);
  for (const auto& [outcome, count] : measured) AddCount("outcome " + outcome, truth[outcome], count, report);
  return Status::Ok();
}

Status CheckStop(int32_t cap, CheckReport* report) {
  StopCase stop;
  stop.cap = cap;
  ScriptedTarget* running = nullptr;
  StreamScript stream;
  stream.ttft_ns = stop.service_ms * kMs;
  TM_ASSIGN_OR_RETURN(const std::unique_ptr<ScriptedTarget> target,
                      ScriptedTarget::Start([&](const auto& request) {
                        if (request.request_id == "0") {
                          const int64_t begin_ns = request.received_ns + stop.stop_begin_ms * kMs;
                          running->StopBetween(begin_ns, begin_ns + stop.stop_ms * kMs);
                        }
                        return Stream(stream);
                      }));
  running = target.get();
  TM_ASSIGN_OR_RETURN(const RunResult run,
                      RunSteady(target->url(), {stop.requests, stop.interval_ms * kMs, stop.cap}));
  int64_t late = 0;
  for (const RequestRecord& record : run.records) {
    late += LatenciesOf(record).ttft.value_or(0) > static_cast<double>(stop.threshold_ms) ? 1 : 0;
  }
  AddCount("late of " + std::to_string(stop.requests) + " while the server stops for 1 s, " +
               (cap == 0 ? "no cap" : std::to_string(cap) + " in flight"),
           LateRequests(stop), late, report);
  return Status::Ok();
}

// A fault of the tool is in every attempt, what else the machine did is not: the last one counts, which is
// the first that holds.
Status UntilItHolds(const std::function<Status(CheckReport*)>& check, CheckReport* report) {
  for (int attempt = 1;; ++attempt) {
    CheckReport one;
    TM_RETURN_IF_ERROR(check(&one));
    if (!one.holds() && attempt < kAttempts) continue;
    report->lines.insert(report->lines.end(), one.lines.begin(), one.lines.end());
    return Status::Ok();
  }
}

}  // namespace

int64_t LateRequests(const StopCase& stop) {
  const int64_t end_ms = stop.stop_begin_ms + stop.stop_ms;
  const auto after_stop = [&](int64_t at_ms) {
    return at_ms >= stop.stop_begin_ms && at_ms < end_ms ? end_ms : at_ms;
  };
  std::priority_queue<int64_t, std::vector<int64_t>, std::greater<>> in_flight;  // when each ends
  int64_t late = 0;
  for (int64_t i = 0; i < stop.requests; ++i) {
    const int64_t intended_ms = i * stop.interval_ms;
    int64_t sent_ms = intended_ms;
    if (stop.cap > 0 && static_cast<int32_t>(in_flight.size()) == stop.cap) {
      sent_ms = std::max(sent_ms, in_flight.top());
      in_flight.pop();
    }
    const int64_t ends_ms = after_stop(after_stop(sent_ms) + stop.service_ms);
    in_flight.push(ends_ms);
    late += ends_ms - intended_ms > stop.threshold_ms ? 1 : 0;
  }
  return late;
}

bool CheckReport::holds() const {
  return std::all_of(lines.begin(), lines.end(), [](const CheckLine& line) { return line.holds; });
}

std::string CheckReport::Table() const {
  std::vector<std::array<std::string, 5>> rows = {{"metric", "truth", "measured", "error", ""}};
  for (const CheckLine& line : lines) {
    rows.push_back({line.metric, line.truth, line.measured, line.error, line.holds ? "" : "EXCEEDED"});
  }
  std::array<size_t, 5> widths{};
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string table;
  for (const auto& row : rows) {
    std::string text;
    for (size_t i = 0; i < row.size(); ++i) text += row[i] + std::string(widths[i] - row[i].size() + 2, ' ');
    table += text.substr(0, text.find_last_not_of(' ') + 1) + "\n";
  }
  return table;
}

StatusOr<CheckReport> RunCheck() {
  CheckReport report;
  TM_RETURN_IF_ERROR(UntilItHolds(CheckHttpTimes, &report));
  TM_RETURN_IF_ERROR(CheckGrpcTimes(&report));
  TM_RETURN_IF_ERROR(UntilItHolds(CheckTokens, &report));
  TM_RETURN_IF_ERROR(CheckOutcomes(&report));
  for (const int32_t cap : {0, 2}) {
    TM_RETURN_IF_ERROR(UntilItHolds([cap](CheckReport* one) { return CheckStop(cap, one); }, &report));
  }
  return report;
}

}  // namespace tramontane::load

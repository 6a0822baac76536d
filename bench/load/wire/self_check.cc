#include "bench/load/wire/self_check.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "bench/load/connect.h"
#include "bench/load/latencies.h"
#include "bench/load/runner.h"
#include "bench/load/statistics.h"
#include "bench/load/wire/stamp.h"

namespace tramontane::load {
namespace {

constexpr double kMedianBoundMs = 0.3;
constexpr double kP99BoundMs = 1;
constexpr int kAttempts = 3;
constexpr int64_t kIntervalNs = 13 * kNsPerMs;  // between requests
constexpr int64_t kEventNs = 5 * kNsPerMs;      // between events, and to the first
constexpr size_t kEvents = 4;                   // of an answer

double Ms(int64_t ns) { return static_cast<double>(ns) / 1e6; }

void SleepUntil(int64_t ns) {
  const timespec until{ns / kNsPerSecond, ns % kNsPerSecond};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
  }
}

// Streams kEvents content events to each request on a port of the loopback, and notes when it wrote them. A
// thread for each connection, and one that accepts.
class NotingServer {
 public:
  // By request id.
  using Notes = std::map<std::string, std::vector<int64_t>>;

  NotingServer() {
    address_.sin_family = AF_INET;
    address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* any = reinterpret_cast<sockaddr*>(&address_);
    socklen_t size = sizeof(address_);
    listens_ = listener_ >= 0 && bind(listener_, any, size) == 0 && listen(listener_, SOMAXCONN) == 0 &&
               getsockname(listener_, any, &size) == 0;
    if (listens_) accepts_ = std::thread([this] { Accept(); });
  }
  // Its clients have closed their connections.
  ~NotingServer() {
    shutdown(listener_, SHUT_RDWR);
    if (accepts_.joinable()) accepts_.join();
    for (std::thread& thread : connections_) thread.join();
    if (listener_ >= 0) close(listener_);
  }
  NotingServer(const NotingServer&) = delete;
  NotingServer& operator=(const NotingServer&) = delete;

  bool listens() const { return listens_; }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(ntohs(address_.sin_port)); }
  Notes notes() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return notes_;
  }

 private:
  void Accept() {
    for (int fd = 0; (fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;)
      connections_.emplace_back([this, fd] { Serve(fd); });
  }

  void Serve(int fd) {
    prctl(PR_SET_TIMERSLACK, 1);  // ns; 50,000 otherwise
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    std::string bytes;
    std::array<char, 4096> piece{};
    for (ssize_t count = 0; (count = recv(fd, piece.data(), piece.size(), 0)) > 0;) {
      bytes.append(piece.data(), static_cast<size_t>(count));
      const size_t head_end = bytes.find("\r\n\r\n");
      if (head_end == std::string::npos) continue;
      const size_t body = std::strtoul(After("Content-Length: ", bytes).c_str(), nullptr, 10);
      if (bytes.size() < head_end + 4 + body) continue;
      Answer(fd, After("x-request-id: ", bytes));
      bytes.clear();  // one request at a time
    }
    close(fd);
  }

  static std::string After(const std::string& name, const std::string& head) {
    const size_t begin = head.find(name) + name.size();
    return head.substr(begin, head.find('\r', begin) - begin);
  }

  void Answer(int fd, const std::string& id) {
    static const std::string event = R"(data: {"choices":[{"index":0,"text":" word","finish_reason":null}]})"
                                     "\n\n";
    static const std::string end = "data: [DONE]\n\n";
    std::string out = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: " +
                      std::to_string(kEvents * event.size() + end.size()) + "\r\n\r\n";
    int64_t due_ns = NowNs();
    for (size_t i = 0; i < kEvents; ++i) {
      out += event;
      if (i + 1 == kEvents) out += end;
      SleepUntil(due_ns += kEventNs);
      {
        // Before its send: who has the bytes finds them noted.
        const std::lock_guard<std::mutex> lock(mutex_);
        notes_[id].push_back(NowNs());
      }
      if (send(fd, out.data(), out.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(out.size())) return;
      out.clear();
    }
  }

  const int listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address_{};
  bool listens_ = false;
  std::vector<std::thread> connections_;  // of the accepting thread, until it has ended
  mutable std::mutex mutex_;
  Notes notes_;  // under mutex_
  std::thread accepts_;
};

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
    for (int64_t due_ns = NowNs() + kEventNs; !stops_; due_ns += kEventNs) {
      SleepUntil(due_ns);
      late_ms_.push_back(Ms(NowNs() - due_ns));
    }
  }

  std::atomic<bool> stops_ = false;
  std::vector<double> late_ms_;  // the thread's own until it has ended
  std::thread thread_;
};

struct Quantiles {
  explicit Quantiles(std::vector<double> samples) {
    if (samples.empty()) return;
    std::sort(samples.begin(), samples.end());
    median = Percentile(samples, 50);
    p99 = Percentile(samples, 99);
  }
  std::string Text() const {
    std::array<char, 48> text{};
    std::snprintf(text.data(), text.size(), "%.3f p99 %.3f", median, p99);
    return text.data();
  }
  double median = 0;
  double p99 = 0;
};

// Samples of one metric: what is true, what the tool says, and how far they are apart.
struct Compared {
  std::vector<double> truth, measured, error;

  void Add(double true_ms, double measured_ms) {
    truth.push_back(true_ms);
    measured.push_back(measured_ms);
    error.push_back(std::abs(measured_ms - true_ms));
  }
  // `ends` of what is timed may be moved by a late waking.
  CheckLine Line(const std::string& metric, int ends, const Quantiles& sleeper) const {
    const Quantiles apart(error);
    return {metric + ", " + std::to_string(error.size()) + " samples", Quantiles(truth).Text(),
            Quantiles(measured).Text(), apart.Text(),
            apart.median <= ends * sleeper.median + kMedianBoundMs &&
                apart.p99 <= ends * sleeper.p99 + kP99BoundMs};
  }
};

RunResult SendSteadily(int64_t requests, Transport& transport) {
  RunHooks hooks;
  int64_t next = 0;
  hooks.next = [&]() -> std::optional<ScheduledRequest> {
    if (next == requests) return std::nullopt;
    ScheduledRequest request;
    request.plan.index = next;
    request.plan.intended_ns = next++ * kIntervalNs;
    return request;
  };
  hooks.write = [](const ScheduledRequest& request) {
    OutgoingRequest outgoing;
    outgoing.index = request.plan.index;
    outgoing.request_id = std::to_string(request.plan.index);
    outgoing.ids = {1300};
    outgoing.output_tokens = kEvents;
    return outgoing;
  };
  MonotonicClock clock;
  RunLimits limits;
  limits.timeout_ns = 5 * kNsPerSecond;
  return Run(limits, hooks, transport, clock);
}

StatusOr<CheckReport> Attempt(int64_t requests) {
  NotingServer server;
  if (!server.listens()) return Unavailable("no port of the loopback can be listened on");
  TargetOptions options;
  options.url = server.url();
  options.model = "noting";
  TM_ASSIGN_OR_RETURN(const std::unique_ptr<Transport> transport, Connect(options));
  Sleeper sleeper;
  const RunResult run = SendSteadily(requests, *transport);
  const Quantiles late(sleeper.Stop());
  const NotingServer::Notes notes = server.notes();
  Compared sent, ttft, itl;
  int64_t whole = 0;
  for (const RequestRecord& record : run.records) {
    const auto noted = notes.find(record.request_id);
    const bool is_whole = record.outcome == Outcome::kOk && record.content_ns.size() == kEvents &&
                          noted != notes.end() && noted->second.size() == kEvents;
    if (!is_whole) continue;
    ++whole;
    const std::vector<int64_t>& written = noted->second;
    const Latencies latencies = LatenciesOf(record);
    sent.Add(0, latencies.client_lag.value_or(0));
    ttft.Add(Ms(written[0] - record.intended_ns), latencies.ttft.value_or(0));
    for (size_t i = 0; i + 1 < kEvents; ++i) itl.Add(Ms(written[i + 1] - written[i]), latencies.itl[i]);
  }
  const std::string all = std::to_string(requests);
  return CheckReport{{
      {"whole answers", all, std::to_string(whole), std::to_string(whole - requests), whole == requests},
      sent.Line("sent after the intended time, ms", 1, late),
      ttft.Line("ttft_ms", 1, late),
      itl.Line("itl_ms", 2, late),
      {"a thread that only sleeps, ms late", "0", "-", late.Text(), true},
      {"its receiving threads' processor time, us an answer", "-",
       std::to_string(transport->Load().cpu_ns / 1000 / std::max<int64_t>(1, whole)), "-", true},
  }};
}

}  // namespace

bool CheckReport::holds() const {
  return std::all_of(lines.begin(), lines.end(), [](const CheckLine& line) { return line.holds; });
}

std::string CheckReport::Table() const {
  const auto row = [](const auto&... cells) {
    std::array<char, 256> text{};
    std::snprintf(text.data(), text.size(), "%-52s  %-17s  %-17s  %-17s  %s", cells...);
    std::string line = text.data();
    return line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  };
  std::string table = row("metric", "truth", "measured", "error", "");
  for (const CheckLine& line : lines) {
    table += row(line.metric.c_str(), line.truth.c_str(), line.measured.c_str(), line.error.c_str(),
                 line.holds ? "" : "EXCEEDED");
  }
  return table;
}

// A fault of the tool is in every attempt, what else the machine did is not.
StatusOr<CheckReport> RunCheck(int64_t requests) {
  for (int attempt = 1;; ++attempt) {
    TM_ASSIGN_OR_RETURN(CheckReport report, Attempt(requests));
    if (report.holds() || attempt == kAttempts) return report;
  }
}

}  // namespace tramontane::load

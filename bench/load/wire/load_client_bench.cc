// What an event costs the load tool: streams at once from a scripted server in this process, all given an
// event in each step. CPU is that of the transport's threads alone. Beside it stands the bound: what the
// system takes to poll for and read as many bytes over loopback, one read an event.
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <mutex>
#include <string>

#include "bench/load/connect.h"
#include "bench/load/wire/stamp.h"
#include "tests/load/scripted/scripted_target.h"
#include "tests/load/scripted/scripts.h"

namespace tramontane::load {
namespace {

// CPU of one wait and one read of an event's bytes, the sending not counted.
double ReadUs(size_t bytes) {
  constexpr int kReads = 100'000;
  std::array<int, 2> pair{};
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair.data()) != 0) return 0;
  const int poll = epoll_create1(EPOLL_CLOEXEC);
  epoll_event interest{};
  interest.events = EPOLLIN;
  epoll_ctl(poll, EPOLL_CTL_ADD, pair[1], &interest);
  const std::string event(bytes, 'x');
  std::string sink(16384, '\0');
  int64_t spent_ns = 0;
  for (int i = 0; i < kReads; ++i) {
    if (send(pair[0], event.data(), event.size(), 0) < 0) break;
    timespec before{}, after{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
    epoll_wait(poll, &interest, 1, -1);
    // NOLINTNEXTLINE(clang-analyzer-unix.BlockInCriticalSection): nobody holds a lock here
    if (recv(pair[1], sink.data(), sink.size(), 0) < 0) break;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
    spent_ns += ToNs(after) - ToNs(before);
  }
  for (const int fd : {pair[0], pair[1], poll}) close(fd);
  return static_cast<double>(spent_ns) / kReads / 1000;
}

int Bench(int streams, int events) {
  StreamScript stream;
  stream.ttft_ns = 1'000'000'000;
  stream.gap_ns = 50'000'000;
  stream.events = events;
  stream.chat = true;
  Script script = Stream(stream);
  auto target = ScriptedTarget::Start([&](const ScriptedRequest&) { return script; });
  TargetOptions options;
  options.model = "scripted";
  if (target.ok()) options.url = (*target)->url();
  auto transport = target.ok() ? Connect(options) : target.status();
  if (!transport.ok()) {
    std::fprintf(stderr, "%s\n", transport.status().ToString().c_str());
    return 1;
  }
  std::mutex mutex;
  std::condition_variable all_ended;
  int left = streams;
  int64_t content_events = 0, failed = 0;
  for (int i = 0; i < streams; ++i) {
    OutgoingRequest request;
    request.request_id = std::to_string(i);
    request.text = "scripted";
    request.output_tokens = events;
    request.intended_ns = NowNs();
    request.deadline_ns = 120'000'000'000;
    (*transport)->Send(std::move(request), [&](const RequestRecord& record) {
      const std::lock_guard<std::mutex> lock(mutex);
      content_events += static_cast<int64_t>(record.content_ns.size());
      failed += record.outcome == Outcome::kOk ? 0 : 1;
      if (--left == 0) all_ended.notify_all();
    });
  }
  std::unique_lock<std::mutex> lock(mutex);
  all_ended.wait(lock, [&] { return left == 0; });
  const double cpu_ns = static_cast<double>((*transport)->Load().cpu_ns);
  std::printf("%d streams, %d events each: %lld events, %lld streams failed\n", streams, events,
              static_cast<long long>(content_events), static_cast<long long>(failed));
  std::printf("client CPU: %.2f us an event, of %zu bytes, connects and requests included\n",
              cpu_ns / static_cast<double>(content_events) / 1000, script.writes[1].bytes.size());
  std::printf("bound: %.2f us, one wait and one read of as many bytes\n",
              ReadUs(script.writes[1].bytes.size()));
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tramontane::load

int main(int argc, char** argv) {
  const int streams = argc > 1 ? std::atoi(argv[1]) : 2000;
  const int events = argc > 2 ? std::atoi(argv[2]) : 100;
  if (argc > 3 || streams <= 0 || events <= 0) {
    std::fprintf(stderr, "usage: load_client_bench [STREAMS [EVENTS]]\n");
    return 2;
  }
  return tramontane::load::Bench(streams, events);
}

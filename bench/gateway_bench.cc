// The gateway's own cost of an event: chat streams on loopback over a model that takes no time, all of them
// given a token in each step. CPU of the gateway is that of the process without the thread that reads and the
// one that steps. The bound beside it is what the system takes to send as many bytes over loopback.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

#include "server/api/gateway.h"
#include "tests/support/fake_inference_client.h"
#include "tests/support/http_test_client.h"

namespace tramontane {
namespace {

struct Arguments {
  int64_t streams = 2000;
  int64_t tokens = 40;
  int64_t step_us = 50'000;
  int32_t io_threads = 1;
};

bool Parse(int argc, char** argv, Arguments* arguments) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const int64_t value = std::atoll(argv[i + 1]);
    if (std::strcmp(argv[i], "--streams") == 0) {
      arguments->streams = value;
    } else if (std::strcmp(argv[i], "--tokens") == 0) {
      arguments->tokens = value;
    } else if (std::strcmp(argv[i], "--step-us") == 0) {
      arguments->step_us = value;
    } else if (std::strcmp(argv[i], "--io-threads") == 0) {
      arguments->io_threads = static_cast<int32_t>(value);
    } else {
      return false;
    }
  }
  return argc % 2 == 1;
}

int64_t CpuNs(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec;
}

std::string ChatRequest(int64_t max_tokens) {
  return HttpPost(
      "/v1/chat/completions",
      R"({"model":"fake","messages":[{"role":"user","content":"hi"}],"stream":true,"max_tokens":)" +
          std::to_string(max_tokens) + "}");
}

// Two ends of a TCP connection over loopback.
struct Pair {
  int near = -1;
  int far = -1;
};

Pair Connect() {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* any = reinterpret_cast<sockaddr*>(&address);
  Pair pair;
  if (listener < 0) return pair;
  if (bind(listener, any, size) == 0 && listen(listener, 1) == 0 && getsockname(listener, any, &size) == 0) {
    pair.near = socket(AF_INET, SOCK_STREAM, 0);
    if (pair.near >= 0 && connect(pair.near, any, size) == 0) pair.far = accept(listener, nullptr, nullptr);
    const int on = 1;
    setsockopt(pair.near, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }
  close(listener);
  return pair;
}

// CPU of one send of `bytes`, the reading at the other end not counted.
double SendUs(int64_t bytes) {
  constexpr int64_t kSends = 100'000;
  const Pair pair = Connect();
  const std::string piece(static_cast<size_t>(bytes), 'x');
  std::vector<char> sink(piece.size());
  int64_t spent_ns = 0;
  for (int64_t i = 0; i < kSends; ++i) {
    const int64_t before = CpuNs(CLOCK_THREAD_CPUTIME_ID);
    if (send(pair.near, piece.data(), piece.size(), 0) < 0) break;
    spent_ns += CpuNs(CLOCK_THREAD_CPUTIME_ID) - before;
    if (recv(pair.far, sink.data(), sink.size(), MSG_WAITALL) < 0) break;
  }
  close(pair.near);
  close(pair.far);
  return static_cast<double>(spent_ns) / kSends / 1000;
}

int Run(const Arguments& arguments) {
  FakeInferenceClient client;
  GatewayOptions options;
  options.address = "127.0.0.1:0";
  options.io_threads = arguments.io_threads;
  auto gateway = Gateway::Start(options, client);
  if (!gateway.ok()) {
    std::fprintf(stderr, "%s\n", gateway.status().ToString().c_str());
    return 1;
  }
  const int64_t process_before = CpuNs(CLOCK_PROCESS_CPUTIME_ID);
  FakeStepLoop loop(client, arguments.step_us);
  const SwarmResult swarm = RunSwarm({.address = (*gateway)->address(),
                                      .streams = arguments.streams,
                                      .request = ChatRequest(arguments.tokens)});
  loop.Stop();
  const int64_t gateway_ns = CpuNs(CLOCK_PROCESS_CPUTIME_ID) - process_before - swarm.cpu_ns - loop.cpu_ns();

  int64_t bytes = 0, writes = 0, cut = 0;
  for (const std::string& reply : swarm.replies) {
    const HttpReply parsed = ParseReply(reply);
    bytes += static_cast<int64_t>(reply.size());
    writes += parsed.chunks;
    if (parsed.status != 200 || !parsed.body.ends_with("data: [DONE]\n\n")) ++cut;
  }
  const double events = static_cast<double>(loop.events());
  std::printf("%lld streams, %lld tokens each, a step each %lld us, %d io threads\n",
              static_cast<long long>(arguments.streams), static_cast<long long>(arguments.tokens),
              static_cast<long long>(arguments.step_us), arguments.io_threads);
  std::printf("%.0f events, %.2f writes an event, %.0f bytes a write, %lld streams cut short\n", events,
              static_cast<double>(writes) / events, static_cast<double>(bytes) / static_cast<double>(writes),
              static_cast<long long>(cut));
  std::printf("gateway CPU: %.1f us an event\n", static_cast<double>(gateway_ns) / events / 1000);
  std::printf("bound: %.1f us, one send of as many bytes\n", SendUs(bytes / writes));
  return cut == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tramontane

int main(int argc, char** argv) {
  tramontane::Arguments arguments;
  if (!tramontane::Parse(argc, argv, &arguments)) {
    std::fprintf(stderr, "usage: gateway_bench [--streams N] [--tokens N] [--step-us N] [--io-threads N]\n");
    return 2;
  }
  return tramontane::Run(arguments);
}

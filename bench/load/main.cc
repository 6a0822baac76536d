// tramontane_bench: what `tramontane bench` runs.
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <iostream>
#include <random>

#include "bench/load/bench_main.h"
#include "bench/load/stop_signals.h"
#include "bench/load/wire/self_check.h"

namespace {

std::string UtcDate() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y%m%d-%H%M%S", &parts);
  return text;
}

// Exit status 1 where an error exceeds its bound.
int Check(std::ostream& out, std::ostream& err) {
  const auto report = tramontane::load::RunCheck();
  if (!report.ok()) {
    err << "tramontane bench: " << report.status().message() << "\n";
    return 1;
  }
  out << report->Table();
  return report->holds() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);
  tramontane::load::MonotonicClock clock;
  const tramontane::load::BenchWorld world = {
      .connect = tramontane::load::Connect,
      .first_served_model = tramontane::load::FirstServedModel,
      .ask = tramontane::load::Ask,
      .check = Check,
      .options = {.environment = [](const char* name) -> const char* { return std::getenv(name); },
                  .draw_nonce = [] { return uint64_t{std::random_device{}()}; }},
      .clock = clock,
      .out = std::cout,
      .err = std::cerr,
      .err_is_terminal = isatty(STDERR_FILENO) != 0,
      .date = UtcDate,
      .stop = tramontane::load::StopOnSignals(),
  };
  return tramontane::load::RunBench(argc, argv, world);
}

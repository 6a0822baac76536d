// tramontane_simulate: what `tramontane simulate` runs.
#include <signal.h>
#include <unistd.h>

#include <iostream>

#include "bench/simulate/simulate_main.h"

namespace {

std::atomic<bool> stop = false;
static_assert(std::atomic<bool>::is_always_lock_free);

// The first signal ends the run early, with a report; the second ends the program.
void OnSignal(int number) {
  if (stop.exchange(true)) {
    signal(number, SIG_DFL);
    raise(number);
  }
}

}  // namespace

int main(int argc, char** argv) {
  signal(SIGINT, OnSignal);
  signal(SIGTERM, OnSignal);
  return tramontane::simulate::RunSimulate(
      argc, argv,
      {.out = std::cout, .err = std::cerr, .err_is_terminal = isatty(STDERR_FILENO) != 0, .stop = &stop});
}

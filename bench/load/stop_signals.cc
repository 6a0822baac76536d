#include "bench/load/stop_signals.h"

#include <signal.h>

namespace tramontane::load {
namespace {

std::atomic<bool> stop = false;
static_assert(std::atomic<bool>::is_always_lock_free);

void OnSignal(int number) {
  if (stop.exchange(true)) {
    signal(number, SIG_DFL);
    raise(number);
  }
}

}  // namespace

const std::atomic<bool>* StopOnSignals() {
  signal(SIGINT, OnSignal);
  signal(SIGTERM, OnSignal);
  return &stop;
}

}  // namespace tramontane::load

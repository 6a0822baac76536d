#include "engine/threads/signal.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace tramontane {

static_assert(sizeof(std::atomic<int32_t>) == 4 && std::atomic<int32_t>::is_always_lock_free,
              "a futex is a plain 32-bit word");

void Signal::Notify() {
  if (state_.exchange(kNotified, std::memory_order_acq_rel) != kSleeping) return;
  syscall(SYS_futex, reinterpret_cast<int32_t*>(&state_), FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

void Signal::Wait(int64_t timeout_ns) {
  int32_t quiet = kQuiet;
  if (state_.compare_exchange_strong(quiet, kSleeping, std::memory_order_acq_rel)) {
    const timespec time{timeout_ns / 1'000'000'000, timeout_ns % 1'000'000'000};
    // Returns at once when a Notify came in between: the word is no longer kSleeping.
    syscall(SYS_futex, reinterpret_cast<int32_t*>(&state_), FUTEX_WAIT_PRIVATE, kSleeping,
            timeout_ns < 0 ? nullptr : &time, nullptr, 0);
  }
  state_.exchange(kQuiet, std::memory_order_acq_rel);
}

}  // namespace tramontane

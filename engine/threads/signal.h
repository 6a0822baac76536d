// Signal: one thread sleeps until another wakes it. A wake-up that comes before the sleep is kept.
// Notify from any thread, never blocking and without a mutex; Wait from one thread.
#pragma once

#include <atomic>
#include <cstdint>

namespace tramontane {

class Signal {
 public:
  static constexpr int64_t kForever = -1;

  void Notify();

  // Sleeps until notified or until the time is over (kForever: no limit); may also return early. Forgets the
  // notification. The caller looks for work by itself, whatever woke it.
  void Wait(int64_t timeout_ns);

 private:
  static constexpr int32_t kQuiet = 0, kNotified = 1, kSleeping = 2;
  std::atomic<int32_t> state_{kQuiet};
};

}  // namespace tramontane

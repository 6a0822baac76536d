// QueueDrain: how fast a queue has been emptying, and so when one that finds it full may come again. Times
// are nanoseconds on one clock, the caller's. Any thread.
#pragma once

#include <cstdint>
#include <mutex>

namespace tramontane {

class QueueDrain {
 public:
  // One waits from now on; one waits no longer, for whatever reason.
  void Came(int64_t now_ns);
  void Left(int64_t now_ns);
  int64_t waiting() const;

  // For one that has found no room: how long until one more has left than were told of before. At most until
  // all have left that wait now, and a minute. Above 0.
  int64_t TellNextNs(int64_t now_ns);

 private:
  void Advance(int64_t now_ns);

  mutable std::mutex mutex_;  // guards what follows
  int64_t waiting_ = 0;
  int64_t at_ns_ = 0;    // until then busy_ns_ is counted
  double busy_ns_ = 0;   // while some waited; of late counts more
  double left_ = 0;      // in that time
  int64_t told_ns_ = 0;  // when the last one that was told may come
};

}  // namespace tramontane

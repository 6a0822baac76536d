// Requests sent over a transport, and their records once all have ended. Any thread may end them.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "bench/load/connect.h"
#include "bench/load/transport.h"
#include "bench/load/wire/stamp.h"

namespace tramontane::load {

inline constexpr int64_t kLongDeadlineNs = 60'000'000'000;

inline std::unique_ptr<Transport> MustConnect(const TargetOptions& options) {
  auto transport = Connect(options);
  EXPECT_TRUE(transport.ok()) << transport.status();
  return std::move(*transport);
}

class RecordedRequests {
 public:
  explicit RecordedRequests(Transport& transport) : transport_(transport) {}

  void Send(const std::string& id, int64_t deadline_ns = kLongDeadlineNs) {
    OutgoingRequest request;
    request.ids = {1300, 1301, 1302};
    request.output_tokens = 4;
    request.request_id = id;
    request.deadline_ns = deadline_ns;
    Send(std::move(request));
  }

  void Send(OutgoingRequest request) {
    request.intended_ns = NowNs();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ++sent_;
    }
    transport_.Send(std::move(request), [this](RequestRecord record) {
      const std::lock_guard<std::mutex> lock(mutex_);
      ++ended_;
      records_.emplace(record.request_id, std::move(record));
      all_.notify_all();
    });
  }

  // Waits for all; how often `done` was called for each is ended() against their number.
  std::map<std::string, RequestRecord> Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    all_.wait(lock, [this] { return ended_ >= sent_; });
    return records_;
  }

  RequestRecord WaitFor(const std::string& id) { return Wait().at(id); }

  size_t ended() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return ended_;
  }

 private:
  Transport& transport_;
  std::mutex mutex_;
  std::condition_variable all_;
  // Under mutex_.
  size_t sent_ = 0;
  size_t ended_ = 0;
  std::map<std::string, RequestRecord> records_;
};

}  // namespace tramontane::load

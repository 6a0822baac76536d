#include "bench/load/wire/http_transport.h"

#include <sys/resource.h>

#include <algorithm>
#include <utility>

#include "bench/load/wire/stamp.h"

namespace tramontane::load {
namespace {

// A stream is a descriptor, and the usual soft limit is 1,024.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

HttpTransport::HttpTransport(const std::shared_ptr<const WireTarget>& target) : load_before_ns_(NowNs()) {
  RaiseDescriptorLimit();
  const int32_t threads = std::max(1, target->options().threads);
  for (int32_t i = 0; i < threads; ++i) loops_.push_back(std::make_unique<HttpLoop>(target));
  cpu_before_ns_.resize(loops_.size(), 0);
}

void HttpTransport::Send(OutgoingRequest request, Done done) {
  loops_[next_++ % loops_.size()]->Send(std::move(request), std::move(done));
}

void HttpTransport::Abort() {
  for (const auto& loop : loops_) loop->Abort();
}

ClientLoad HttpTransport::Load() {
  const std::lock_guard<std::mutex> lock(load_mutex_);
  const int64_t now_ns = NowNs();
  ClientLoad load;
  for (size_t i = 0; i < loops_.size(); ++i) {
    const int64_t cpu_ns = loops_[i]->CpuNs();
    const double share = static_cast<double>(cpu_ns - cpu_before_ns_[i]) /
                         static_cast<double>(std::max<int64_t>(1, now_ns - load_before_ns_));
    load.busiest_thread_share = std::max(load.busiest_thread_share, std::min(1.0, share));
    load.cpu_ns += cpu_ns;
    cpu_before_ns_[i] = cpu_ns;
  }
  load_before_ns_ = now_ns;
  return load;
}

}  // namespace tramontane::load

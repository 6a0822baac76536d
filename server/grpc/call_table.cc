#include "server/grpc/call_table.h"

#include "server/grpc/raw_call.h"

namespace tramontane {
namespace {

constexpr int32_t kMostRefused = 256;     // of an address, that gRPC is not done with
constexpr int64_t kFreeBytes = 16 << 10;  // of a call: as much as gRPC holds for it anyhow

}  // namespace

RpcError CallTable::Add(RawCall* call) {
  bool is_over = false;
  bool is_beyond = false;
  {
    std::lock_guard lock(mutex_);
    const int64_t taken = static_cast<int64_t>(calls_.size());
    calls_.insert(call);
    Share& share = shares_[call->share()];
    const int32_t of_share = share.calls++ - share.refused;
    is_over = of_share >= options_.max_of_address || taken >= int64_t{2} * options_.max_of_address;
    if (is_over) {
      call->refused_ = true;
      is_beyond = ++share.refused > kMostRefused;
    }
  }
  if (is_beyond && call->connection() != nullptr) call->connection()->Close();
  if (!is_over) return {};
  const std::string most = std::to_string(options_.max_of_address);
  return BusyError("TOO_MANY_CALLS", "too many calls are open: an address may have " + most +
                                         " (max_streams and 256 more), all together twice as many");
}

void CallTable::Remove(RawCall* call) {
  std::lock_guard lock(mutex_);
  if (calls_.erase(call) == 0) return;
  const auto share = shares_.find(call->share());
  call->held_.Set(0);
  if (call->refused_) --share->second.refused;
  if (--share->second.calls == 0) shares_.erase(share);
}

bool CallTable::TryHold(RawCall* call, int64_t bytes) {
  std::lock_guard lock(mutex_);
  return calls_.contains(call) && call->held_.TrySet(bytes <= kFreeBytes ? 0 : bytes);
}

RpcError CallTable::NoRoomError() const {
  return BusyError(
      "UNREAD_ANSWERS",
      "clients have yet to take the answers that they were sent: " + std::to_string(unread_.max_bytes()) +
          " bytes together (max_unread_answer_bytes), of which one address has a share");
}

// Under the lock, which keeps the calls: gRPC tells a call of its end on threads of its own.
void CallTable::Sweep() {
  const int64_t now_ns = RawCall::NowNs();
  std::lock_guard lock(mutex_);
  for (RawCall* call : calls_) {
    const int64_t due_ns = call->due_ns_;
    if (due_ns != 0 && now_ns >= due_ns) call->EndLate();
  }
}

}  // namespace tramontane

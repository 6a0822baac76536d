// DelayedBackend: an asynchronous backend made of another one. The ops of a step are queued, and run later:
// on a thread of its own, or as late as the contract of kernels/backend.h allows, when somebody waits for a
// fence. Moves of pages have a queue of their own: on the thread they run before all steps that they need not
// be behind, else as late as what awaits them allows.
//
// What breaks that contract fails: the target of a download or of a page that is moved out holds 0xFF until
// the copy has run, and a source of an upload or of a page that is moved in must not change before. One
// thread, as every backend; owns the other one. Memory and weights are the other backend's, with nothing
// queued.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/check.h"

namespace tramontane {

class DelayedBackend final : public Backend {
 public:
  enum class Runs { kWhenWaitedFor, kOnItsOwnThread };

  DelayedBackend(BackendPtr inner, Runs runs)
      : owned_(std::move(inner)), inner_(*owned_), info_(inner_.info()), runs_(runs) {
    info_.asynchronous = 1;
    info_.records_steps = 1;
    if (runs == Runs::kOnItsOwnThread) thread_ = std::thread([this] { RunThread(); });
  }
  int64_t replays = 0;  // so far

  const BackendInfo& info() const override { return info_; }
  const char* last_error() const override { return inner_.last_error(); }
  const char* remarks() const override { return inner_.remarks(); }

  void* Allocate(int64_t bytes) override { return Idle().Allocate(bytes); }
  void Free(void* memory) override { Idle().Free(memory); }
  void* AllocateHost(int64_t bytes) override { return Idle().AllocateHost(bytes); }
  void FreeHost(void* memory) override { Idle().FreeHost(memory); }

  OpCode Upload(void* device, const void* host, int64_t bytes) override {
    const auto* from = static_cast<const std::byte*>(host);
    return Queue([this, device, from, bytes, seen = std::vector<std::byte>(from, from + bytes)] {
      TM_CHECK(std::memcmp(from, seen.data(), seen.size()) == 0, "an upload of %lld bytes was changed",
               static_cast<long long>(bytes));
      return inner_.Upload(device, from, bytes);
    });
  }
  OpCode Download(void* host, const void* device, int64_t bytes) override {
    std::memset(host, 0xFF, static_cast<size_t>(bytes));
    return Queue([this, host, device, bytes] { return inner_.Download(host, device, bytes); });
  }
  uint64_t RecordFence() override {
    Queue([this] {
      const OpCode code = inner_.WaitFence(inner_.RecordFence());
      const std::lock_guard lock(mutex_);
      ++passed_fence_;
      return code;
    });
    return ++last_fence_;
  }
  OpCode WaitFence(uint64_t fence) override {
    CheckFence(fence);
    std::unique_lock lock(mutex_);
    while (passed_fence_ < fence) {
      if (runs_ == Runs::kOnItsOwnThread) {
        changed_.wait(lock);
      } else {
        RunOldest(lock);
      }
    }
    return OpCode::kOk;
  }
  OpCode MovePages(const MovePagesParams& params) override {
    CheckFence(params.after);
    for (int32_t i = 0; i < params.count; ++i) {
      const PageMove move = params.moves[i];
      const auto bytes = static_cast<size_t>(params.page_bytes);
      std::vector<std::byte> seen;
      if (move.way == PageMove::Way::kOut) {
        std::memset(move.image, 0xFF, bytes);
      } else {
        seen.assign(move.image, move.image + bytes);
      }
      Op run = [this, move, params, seen = std::move(seen)] {
        TM_CHECK(std::equal(seen.begin(), seen.end(), move.image), "the image of page %d was changed",
                 move.page);
        return inner_.MovePages(
            {.pool = params.pool, .page_bytes = params.page_bytes, .moves = &move, .count = 1});
      };
      const std::lock_guard lock(mutex_);
      moves_.push_back({params.after, std::move(run)});
      ++queued_moves_;
    }
    changed_.notify_all();
    return OpCode::kOk;
  }
  OpCode AwaitMoves() override {
    return Queue([this, last = queued_moves_] {
      std::unique_lock lock(mutex_);
      while (done_moves_ < last) {
        TM_CHECK(HasMove(), "a move waits for fence %llu, which is behind what awaits it",
                 static_cast<unsigned long long>(moves_.front().after));
        RunOldestMove(lock);
      }
      return OpCode::kOk;
    });
  }

  int64_t PackedBytes(const LinearSource& source) const override { return inner_.PackedBytes(source); }
  OpCode PackLinear(const LinearSource& source, WeightHandle* out) override {
    return Idle().PackLinear(source, out);
  }
  void FreeWeight(WeightHandle weight) override { Idle().FreeWeight(weight); }
  int64_t WorkspaceBytes(const StepMaxima& maxima) const override { return inner_.WorkspaceBytes(maxima); }
  OpCode Reserve(const StepMaxima& maxima) override { return Idle().Reserve(maxima); }

  OpCode Embed(const EmbedParams& params) override { return QueueOp(&Backend::Embed, params); }
  OpCode RopeTable(const RopeTableParams& params) override { return QueueOp(&Backend::RopeTable, params); }
  OpCode Linear(const LinearParams& params) override { return QueueOp(&Backend::Linear, params); }
  OpCode Moe(const MoeParams& params) override { return QueueOp(&Backend::Moe, params); }
  OpCode RopeAppend(const RopeAppendParams& params) override { return QueueOp(&Backend::RopeAppend, params); }
  OpCode Attention(const AttentionParams& params) override { return QueueOp(&Backend::Attention, params); }
  OpCode Sample(const SampleParams& params) override { return QueueOp(&Backend::Sample, params); }
  OpCode Advance(const AdvanceParams& params) override { return QueueOp(&Backend::Advance, params); }
  OpCode Scatter(const ScatterParams& params) override { return QueueOp(&Backend::Scatter, params); }
  OpCode CopyPages(const CopyPagesParams& params) override { return QueueOp(&Backend::CopyPages, params); }

  OpCode BeginRecording() override {
    recording_ = std::make_unique<Recording>();
    return OpCode::kOk;
  }
  OpCode EndRecording(RecordingHandle* out) override {
    out->impl = recording_.release();
    return OpCode::kOk;
  }
  OpCode Replay(RecordingHandle recording) override {
    ++replays;
    for (const Op& op : *static_cast<Recording*>(recording.impl)) Queue(op);
    return OpCode::kOk;
  }
  void FreeRecording(RecordingHandle recording) override { delete static_cast<Recording*>(recording.impl); }

  void Destroy() override { delete this; }

 private:
  ~DelayedBackend() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  using Op = std::function<OpCode()>;
  using Recording = std::vector<Op>;
  struct Move {
    uint64_t after = 0;  // it runs when this fence has passed
    Op run;
  };

  template <typename Params>
  OpCode QueueOp(OpCode (Backend::*op)(const Params&), const Params& params) {
    Op run = [this, op, params] { return (inner_.*op)(params); };
    if (recording_ == nullptr) return Queue(std::move(run));
    recording_->push_back(std::move(run));
    return OpCode::kOk;
  }
  OpCode Queue(Op op) {
    TM_CHECK(recording_ == nullptr, "a copy or a fence is recorded");
    {
      const std::lock_guard lock(mutex_);
      ops_.push_back(std::move(op));
    }
    changed_.notify_all();
    return OpCode::kOk;
  }
  void CheckFence(uint64_t fence) const {
    TM_CHECK(fence <= last_fence_, "fence %llu was never recorded", static_cast<unsigned long long>(fence));
  }
  // The other backend, with nothing queued.
  Backend& Idle() {
    AwaitMoves();
    WaitFence(RecordFence());
    return inner_;
  }
  void RunThread() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return stopping_ || !ops_.empty() || HasMove(); });
      if (HasMove()) {
        RunOldestMove(lock);
      } else if (ops_.empty()) {
        return;
      } else {
        RunOldest(lock);
      }
      changed_.notify_all();
    }
  }
  // One that may run.
  bool HasMove() const { return !moves_.empty() && moves_.front().after <= passed_fence_; }
  void RunOldestMove(std::unique_lock<std::mutex>& lock) {
    const Op run = std::move(moves_.front().run);
    moves_.pop_front();
    lock.unlock();
    TM_CHECK(run() == OpCode::kOk, "%s", inner_.last_error());
    lock.lock();
    ++done_moves_;
  }
  void RunOldest(std::unique_lock<std::mutex>& lock) {
    const Op op = std::move(ops_.front());
    ops_.pop_front();
    lock.unlock();
    TM_CHECK(op() == OpCode::kOk, "%s", inner_.last_error());
    lock.lock();
  }

  const BackendPtr owned_;
  Backend& inner_;
  BackendInfo info_;
  const Runs runs_;
  uint64_t last_fence_ = 0;
  uint64_t queued_moves_ = 0;             // so far
  std::unique_ptr<Recording> recording_;  // between BeginRecording and EndRecording

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Op> ops_;
  std::deque<Move> moves_;
  uint64_t done_moves_ = 0;
  uint64_t passed_fence_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

inline BackendPtr MakeDelayedBackend(BackendPtr inner, DelayedBackend::Runs runs) {
  return BackendPtr(new DelayedBackend(std::move(inner), runs));
}

}  // namespace tramontane

// MaskWorkers: the threads that follow constraints and fill masks, beside the forward pass.
//
// Post and HelpOnce from the engine thread; Post never blocks. Always: what is posted is worked on once, in
// order within its lane; the engine does light pieces only; the slow lane has one worker at most, so that
// slow texts do not wait in front of quick ones, and grammars are compiled by a worker of their own.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>
#include <utility>

#include "engine/life/constrain/output_constraint.h"
#include "engine/threads/signal.h"
#include "engine/threads/spmc_queue.h"
#include "kernels/core/check.h"

namespace tramontane {

class MaskWorkers {
 public:
  // `threads` beside the one that compiles; `capacity` of each lane. `done` is notified after each piece of
  // work; borrowed, outlives it.
  MaskWorkers(int32_t threads, size_t capacity, Signal& done)
      : done_(done), light_(capacity), quick_(capacity), slow_(capacity), compiling_(capacity) {
    TM_CHECK(threads >= 1, "%d mask workers", threads);
    workers_.resize(static_cast<size_t>(threads) + 1);
    for (Worker& worker : workers_) {
      const Takes takes = &worker == &workers_.front()  ? Takes::kCompiling
                          : &worker == &workers_.back() ? Takes::kQuickAndSlow
                                                        : Takes::kQuick;
      worker.thread = std::thread([this, &worker, takes] { Loop(worker, takes); });
    }
  }
  ~MaskWorkers() {  // abandons what waits
    stopping_.store(true, std::memory_order_release);
    for (Worker& worker : workers_) worker.work.Notify();
    for (Worker& worker : workers_) worker.thread.join();
  }

  // Works on one light piece that no worker has taken yet; false: there is none.
  bool HelpOnce() {
    std::shared_ptr<OutputConstraint> constraint;
    if (!light_.TryPop(&constraint)) return false;
    constraint->Work();
    return true;
  }

  // Once it has been worked on, or is abandoned, it is let go of, possibly as the last to hold it. False: as
  // many wait as may.
  bool Post(std::shared_ptr<OutputConstraint> constraint) {
    Lane& lane = constraint->prepares() ? compiling_
                 : constraint->light()  ? light_
                 : constraint->slow()   ? slow_
                                        : quick_;
    if (!lane.TryPush(std::move(constraint))) return false;
    for (Worker& worker : workers_) worker.work.Notify();
    return true;
  }

 private:
  using Lane = SpmcQueue<std::shared_ptr<OutputConstraint>>;
  enum class Takes { kQuick, kQuickAndSlow, kCompiling };
  struct Worker {
    Signal work;
    std::thread thread;
  };

  void Loop(Worker& worker, Takes takes) {
    std::shared_ptr<OutputConstraint> constraint;
    while (!stopping_.load(std::memory_order_acquire)) {
      if (!TryPop(takes, &constraint)) {
        worker.work.Wait(Signal::kForever);
        continue;
      }
      constraint->Work();
      constraint.reset();
      done_.Notify();
    }
  }
  bool TryPop(Takes takes, std::shared_ptr<OutputConstraint>* constraint) {
    if (takes == Takes::kCompiling) return compiling_.TryPop(constraint);
    return light_.TryPop(constraint) || quick_.TryPop(constraint) ||
           (takes == Takes::kQuickAndSlow && slow_.TryPop(constraint));
  }

  Signal& done_;
  Lane light_;
  Lane quick_;
  Lane slow_;
  Lane compiling_;
  std::atomic<bool> stopping_{false};
  std::deque<Worker> workers_;  // never resized once they run
};

}  // namespace tramontane

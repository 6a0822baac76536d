// StepTrace: what the engine's last steps were, for whoever wants to look, while somebody does.
//
// Threads: on, Add from the engine thread; the rest from any. No lock and no allocation in Add.
// Bounded: the last kSteps steps are kept; a reader that comes later than that has lost some, and can count
// them.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "engine/schedule/step_plan.h"
#include "engine/threads/published.h"

namespace tramontane {

struct StepRecord {
  int64_t number = 0;  // of this record, from 0; set by Add
  int64_t step = 0;    // as StepPlan::step
  int64_t begin_ns =
      0;               // on the engine's clock: its plan, or the end of the step before it, if that is later
  int64_t end_ns = 0;  // its results were there
  Lane lane = Lane::kIdle;
  int32_t rows = 0;
  int64_t tokens = 0;
  int64_t held_pages = 0;  // of the pool, while the step was computed
};

class StepTrace {
 public:
  static constexpr size_t kSteps = size_t{1} << 16;  // 5 MB, from the first Start on

  // ---- engine thread ----------------------------------------------------------------------------
  bool on() const { return readers_.load(std::memory_order_acquire) > 0; }
  void Add(StepRecord record) {  // REQUIRES: on()
    record.number = added_.load(std::memory_order_relaxed);
    (*steps_)[static_cast<size_t>(record.number) % kSteps].Set(record);
    added_.store(record.number + 1, std::memory_order_release);
  }

  // ---- any thread -------------------------------------------------------------------------------
  // One reader more, and one less. Steps are added while there is any.
  void Start() {
    std::call_once(made_, [this] { steps_ = std::make_unique<Steps>(); });
    readers_.fetch_add(1, std::memory_order_release);
  }
  void Stop() { readers_.fetch_sub(1, std::memory_order_relaxed); }

  int64_t added() const { return added_.load(std::memory_order_acquire); }
  // False: it was overwritten. REQUIRES: number < added(), and this thread has called Start.
  bool Get(int64_t number, StepRecord* record) const {
    *record = (*steps_)[static_cast<size_t>(number) % kSteps].Get();
    return record->number == number;
  }

 private:
  using Steps = std::array<Published<StepRecord>, kSteps>;

  std::once_flag made_;
  std::unique_ptr<Steps> steps_;
  std::atomic<int32_t> readers_{0};
  std::atomic<int64_t> added_{0};
};

}  // namespace tramontane

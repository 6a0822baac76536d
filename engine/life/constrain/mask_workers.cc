#include "engine/life/constrain/mask_workers.h"

#include <utility>

#include "kernels/core/check.h"

namespace tramontane {

MaskWorkers::MaskWorkers(int32_t threads, size_t capacity, Signal& done)
    : done_(done), quick_(capacity), slow_(capacity) {
  TM_CHECK(threads >= 1, "%d mask workers", threads);
  workers_.resize(static_cast<size_t>(threads));
  for (Worker& worker : workers_) {
    const Takes takes = &worker == &workers_.front() ? Takes::kAll : Takes::kQuick;
    worker.thread = std::thread([this, &worker, takes] { Loop(worker, takes); });
  }
}

MaskWorkers::~MaskWorkers() {
  stopping_.store(true, std::memory_order_release);
  for (Worker& worker : workers_) worker.work.Notify();
  for (Worker& worker : workers_) worker.thread.join();
}

bool MaskWorkers::Post(std::shared_ptr<OutputConstraint> constraint) {
  Lane& lane = constraint->slow() ? slow_ : quick_;
  if (!lane.TryPush(std::move(constraint))) return false;
  for (Worker& worker : workers_) worker.work.Notify();
  return true;
}

void MaskWorkers::Loop(Worker& worker, Takes takes) {
  std::shared_ptr<OutputConstraint> constraint;
  while (!stopping_.load(std::memory_order_acquire)) {
    if (!quick_.TryPop(&constraint) && !(takes == Takes::kAll && slow_.TryPop(&constraint))) {
      worker.work.Wait(Signal::kForever);
      continue;
    }
    constraint->Work();
    constraint.reset();
    done_.Notify();
  }
}

}  // namespace tramontane

// Question: what any thread asks of the one that pops, and its answer; Questions: those that wait for it.
//
// Threads: Ask, and a question's answer, from any; the rest from one. No lock: one load where nobody asks.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "engine/threads/mpsc_queue.h"

namespace tramontane {

// Shared by who asks and who answers.
template <typename Report>
class Question {
 public:
  // Null: not yet.
  const Report* answer() const { return answered_.load(std::memory_order_acquire) ? report_.get() : nullptr; }

 private:
  template <typename>
  friend class Questions;

  std::shared_ptr<const Report> report_;  // written before answered_
  std::atomic<bool> answered_{false};
};

template <typename Report>
class Questions {
 public:
  static constexpr int32_t kMost = 64;  // that wait at once

  // Null: kMost wait already.
  std::shared_ptr<Question<Report>> Ask() {
    if (waiting_.fetch_add(1, std::memory_order_relaxed) >= kMost) {
      waiting_.fetch_sub(1, std::memory_order_relaxed);
      return nullptr;
    }
    auto question = std::make_shared<Question<Report>>();
    asked_.Push(question);
    return question;
  }

  bool any() const { return !asked_.empty(); }
  void AnswerAll(const std::shared_ptr<const Report>& report) {
    while (const auto question = asked_.Pop()) {
      (*question)->report_ = report;
      (*question)->answered_.store(true, std::memory_order_release);
      waiting_.fetch_sub(1, std::memory_order_relaxed);
    }
  }

 private:
  std::atomic<int32_t> waiting_{0};
  MpscQueue<std::shared_ptr<Question<Report>>> asked_;  // those still in it at the end stay without an answer
};

}  // namespace tramontane

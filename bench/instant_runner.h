// InstantRunner: a model that answers every row with the same token, and copies pages, at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "engine/run/model_runner.h"

namespace tramontane {

class InstantRunner final : public ModelRunner {
 public:
  Status MovePages(std::span<const PageMove>) override { return {}; }
  bool copies_pages() const override { return true; }
  Status ReadPages(std::span<const PageImage>) override { return {}; }
  Status WritePages(std::span<const PageImage>) override { return {}; }
  StatusOr<StepTicket> Forward(const StepPlan& plan) override {
    result_.wants.clear();
    result_.wants.reserve(plan.wants.size());
    for (const Want& want : plan.wants)
      result_.wants.push_back({.kind = want.kind, .token = {.token = 7, .logprob = -1.0f}, .rank = 1});
    return StepTicket{plan.step};
  }
  Status Sample(StepTicket, const SampleInputs&) override { return {}; }
  StatusOr<StepResult> Collect(StepTicket) override { return std::move(result_); }

 private:
  StepResult result_;
};

}  // namespace tramontane

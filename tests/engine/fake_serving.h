// FakeServing: the engine's side of the scheduler, over a fake model and a fake clock.
//
// The fake model has no arithmetic but a perfect memory: for every slot of every page it keeps which token
// was written there, behind which others; it runs plans in the order they are made, and at each row it checks
// that every key the row's queries may see, in every group, is the right one. So a page that is released too
// early, shared without a copy, copied too late, never extended or found for another text is a failed test,
// not a wrong number.
//
// Checked at each plan, besides: the pages' accounting and reference counts against all tables, the bound of
// windowed tables, the step's budget, one lane a step, places, and that nobody is preempted in flight.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/schedule/scheduler.h"
#include "tests/support/fake_clock.h"

namespace tramontane {

// "step 7 prefill cost 97: r1.0[0,64) r2.0[0,32)*": request id, choice, positions. * draws, *3 draws for
// three choices, ?[0,31) scores what follows those positions; "copies 2" after the cost when pages are
// copied.
std::string ToString(const StepPlan& plan);

KvLayout TestLayout(const std::vector<int32_t>& windows, int32_t page_size);

// What a test asks for; `id` names the request in plans.
struct Ask {
  std::string id;
  int64_t prompt_tokens = 1;
  int64_t max_tokens = 1;
  int32_t choices = 1;
  bool prompt_logprobs = false;
  int64_t stops_after = -1;  // output tokens after which the model says stop; -1: never
  int64_t same_tokens = 0;   // the prompt begins with so many of the text of that number;
  int64_t same_text = 0;     // all its other tokens are its own
  ShareParams share = {};
};

class FakeServing {
 public:
  // steps_in_flight plans are made before the first is applied. `costs`: what the scheduler knows beforehand.
  FakeServing(const EngineLimits& limits, const KvLayout& layout, const StepCosts& costs = {});

  void Submit(const Ask& ask);
  void Cancel(const std::string& id);

  // Plans one step if that is allowed, then applies the oldest in flight if as many as allowed are in flight
  // or nothing could be planned. False when there was nothing to plan or apply. The clock advances by the
  // plan's cost.
  bool Step();
  // Steps until nothing is left; fails the test after `most_steps`.
  void RunUntilIdle(int64_t most_steps);

  // A choice of a request that has not ended.
  const Sequence& sequence(const std::string& id, int32_t choice = 0) const;

  const std::string& last_plan() const { return last_plan_; }  // "" when the last Step planned nothing
  std::vector<std::string> Steps(int count);                   // plans of that many Steps
  FakeClock& clock() { return clock_; }
  const Scheduler& scheduler() const { return scheduler_; }
  int64_t unfinished() const { return static_cast<int64_t>(live_.size()); }

  // What is left of a request that ended.
  struct Ended {
    std::vector<int64_t> completion_tokens;  // [choices]
    std::vector<Usage> usage;
    std::vector<Timings> timings;
    int64_t scored_tokens = 0;
    bool cancelled = false;
  };
  const Ended& ended(const std::string& id) const { return ended_.at(id); }
  bool has_ended(const std::string& id) const { return ended_.count(id) > 0; }

  // Called with each plan before it runs.
  std::function<void(const StepPlan&)> on_plan;
  // How long a plan takes, in place of its cost; the scheduler learns it.
  std::function<int64_t(const StepPlan&)> step_ns;
  // Keys further back than this are checked at every 64th position only; for very long runs.
  int64_t always_check_keys = INT64_MAX;

 private:
  struct Live {
    Request request;
    int64_t stops_after = -1;
    int64_t number = 0;
    std::vector<Sequence> choices;        // never resized
    std::vector<int64_t> first_token_ns;  // [choices]
    std::vector<bool> forked;
    std::vector<std::vector<uint64_t>> contents;  // [choices][position] what Key holds, as far as was needed
    int64_t scored_tokens = 0;
    bool cancelled = false;
  };
  // The token that a slot of a page holds.
  struct Key {
    uint64_t content = 0;  // of it and all tokens in front of it
    int64_t position = -1;
    bool operator==(const Key&) const = default;
  };

  void Run(const StepPlan& plan);
  StepPlan PlanAndWatchPreemption();
  void CheckPlan(const StepPlan& plan) const;
  void CheckPages();
  void Collect(const StepPlan& plan);
  void AcceptToken(Live& live, Sequence& sequence);
  void Retire();
  Live& LiveOf(const Sequence* sequence);
  // Known before the model gives it.
  static int32_t TokenAt(const Live& live, const Sequence& sequence, int64_t position);
  static Key KeyAt(Live& live, const Sequence& sequence, int64_t position);

  const EngineLimits limits_;
  const KvLayout layout_;
  const PrefillCost cost_;
  FakeClock clock_;
  Scheduler scheduler_;
  std::vector<std::unique_ptr<Live>> live_;
  std::map<const Sequence*, Live*> live_of_;
  std::map<std::string, Ended> ended_;
  std::deque<StepPlan> in_flight_;
  std::vector<Key> memory_;  // [pages, page_size]
  int64_t requests_ = 0;
  int64_t page_checks_ = 0;
  std::string last_plan_;
};

// What a model knows of a machine of such terms after a few hundred steps of it.
StepCostModel TaughtModel(double fixed_ns, double token_ns, double key_ns);

// Limits that tests start from: one step in flight, plenty of everything, no prefix cache, cost = tokens as
// near as can be.
EngineLimits TestLimits(const KvLayout& layout, int64_t pool_pages);

}  // namespace tramontane

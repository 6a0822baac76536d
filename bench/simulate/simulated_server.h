// SimulatedServer: the engine on a device that is not there, as a target of the load tool. One thread.
//
// The load runs on a SimulatedClock; the server tells it when its next event is and is told when that is due.
// The engine's own clock runs ahead of the load's by one step at most: a step is simulated when it begins,
// and what it gave is told when it ends. A request that is sent meanwhile waits in the engine's inbox, as it
// would while a device computes. Of events at one moment ends come first, so that what they set free is sent
// before the engine looks for requests.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "bench/load/clock.h"
#include "bench/load/transport.h"
#include "bench/simulate/roofline.h"
#include "bench/simulate/simulated_runner.h"
#include "engine/engine.h"
#include "engine/request/limits.h"
#include "models/kv_layout.h"

namespace tramontane::simulate {

inline constexpr int64_t kNever = INT64_MAX;

// What happens on a SimulatedClock.
class SimulatedEvents {
 public:
  virtual ~SimulatedEvents() = default;
  virtual int64_t NextNs() const = 0;       // when the next one is due; kNever without any
  virtual void Happen(int64_t now_ns) = 0;  // the next one
};

// The load's clock: goes to the next event, or to what is waited for. No event comes after what was waited
// for.
class SimulatedClock final : public load::Clock {
 public:
  int64_t Now() override { return now_ns_; }
  void WaitUntil(int64_t ns) override;
  void Wake() override { woken_ = true; }

  void Attach(SimulatedEvents* events) { events_ = events; }  // null: nothing happens

 private:
  int64_t now_ns_ = 1'000'000'000;  // no stamp is 0
  bool woken_ = false;
  SimulatedEvents* events_ = nullptr;
};

// What is simulated. `limits` are sound and their pages fit the device's memory.
struct Simulation {
  ModelWork work;
  KvLayout kv_layout;
  DeviceRoofline device;
  EngineLimits limits;
  StepCosts costs;  // that the engine knows beforehand
};

class SimulatedServer final : public load::Transport, private SimulatedEvents {
 public:
  SimulatedServer(const Simulation& simulation, SimulatedClock& clock);
  ~SimulatedServer() override;

  // A request that the engine's door refuses ends as the server would end it: status 429 where the queue is
  // full, 400 where a field is beyond its limit.
  void Send(load::OutgoingRequest request, Done done) override;
  // The next request meets a new engine, so that runs do not know of each other.
  void Abort() override;
  load::ClientLoad Load() override { return {}; }  // the client costs nothing here

  // Of the engine that runs, or of the last one.
  EngineLoad engine_load() const;

 private:
  struct Session;
  struct Call {
    load::RequestRecord record;
    Done done;
    int32_t tokens_to_go = 0;
    int64_t deadline_ns = 0;
    std::shared_ptr<TokenStream> stream;  // null: refused
  };

  int64_t NextNs() const override;
  void Happen(int64_t now_ns) override;

  void Submit(int64_t number, std::vector<int32_t> prompt, Call* call);
  void TakeToken(const StepRow& row, int64_t now_ns);
  bool EndWhatIsDue(int64_t now_ns);
  void End(int64_t number, load::Outcome outcome);
  void StepEngine();

  const Simulation simulation_;
  SimulatedClock& clock_;
  const PrefillCost keys_;
  std::unique_ptr<Session> session_;  // null: no request since the last Abort
  bool engine_works_ = false;
  std::map<int64_t, Call> calls_;  // under way, by number
  int64_t next_call_ = 0;
  std::deque<std::pair<int64_t, int64_t>> ends_;    // when, call; ascending: what the engine has decided
  std::set<std::pair<int64_t, int64_t>> timeouts_;  // when, call
  EngineLoad last_load_;
};

}  // namespace tramontane::simulate

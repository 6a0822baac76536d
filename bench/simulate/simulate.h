// A run of the engine on a device that is not there: the engine itself, its scheduler and its KV accounting,
// over a SimulatedRunner. The thread that calls it; a run of its own each time.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/simulate/roofline.h"
#include "engine/engine.h"
#include "engine/limits.h"
#include "kernels/core/status.h"
#include "models/kv_layout.h"

namespace tramontane::simulate {

struct SimulatedRequest {
  int64_t arrival_ns = 0;  // from the start of the run
  int32_t input_tokens = 1;
  int32_t output_tokens = 1;
};

struct SimulatedRecord {
  int64_t arrival_ns = 0;
  std::vector<int64_t> token_ns;  // when each token was there, from the start of the run; empty: refused
};

struct SimulatedRun {
  std::vector<SimulatedRecord> records;  // in the order of the requests
  EngineLoad load;                       // at the end
};

struct SimulatedModel {
  ModelWork work;
  KvLayout kv_layout;
};

// REQUIRES: limits.Validate() is OK, their pages fit the device's memory, and requests ascend by arrival. A
// request that the engine's door refuses (queue full, longer than the context) has a record without tokens.
StatusOr<SimulatedRun> Simulate(const SimulatedModel& model, const DeviceRoofline& device,
                                const EngineLimits& limits, const std::vector<SimulatedRequest>& requests);

}  // namespace tramontane::simulate

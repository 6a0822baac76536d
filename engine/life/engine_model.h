// EngineModel: what the engine must know of the model. A plain value.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/schedule/costs.h"
#include "models/kv_layout.h"

namespace tramontane {

struct EngineModel {
  int32_t vocab_size = 0;
  std::vector<int32_t> eos_ids;
  KvLayout kv_layout;
  StepCosts costs = {};  // what is known of its steps' times beforehand; the engine learns on
};

}  // namespace tramontane

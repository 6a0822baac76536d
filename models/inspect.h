// A model folder and its memory plan in words, for `tramontane inspect` and the log at start.
// Any thread; pure.
#pragma once

#include <string>
#include <vector>

#include "models/kv_layout.h"
#include "models/memory_plan.h"
#include "models/opened_model.h"

namespace tramontane {

// "256 on all 6 layers", "none", or "none on 9 layers (0, 4, ...), 32768 on 27 layers (1-3, 5-7, ...)".
std::string WindowText(const std::vector<int32_t>& window);

// Architecture, dimensions, windows, files and warnings: one "name  value" line each.
std::string DescribeModel(const OpenedModel& model);

// Where `memory_bytes` go, what a token costs in each layer group, and how much fits.
std::string DescribePlan(const KvLayout& layout, const MemoryPlan& plan, int64_t memory_bytes);

}  // namespace tramontane

// A model folder and its memory plan in words, for `tramontane inspect` and the log at start.
// Any thread; pure but for listing the folder.
#pragma once

#include <string>
#include <vector>

#include "kernels/core/status.h"
#include "models/kv_layout.h"
#include "models/memory_plan.h"
#include "models/model_config.h"

namespace tramontane {

// "256 on all 6 layers", "none", or "none on 9 layers (0, 4, ...), 32768 on 27 layers (1-3, 5-7, ...)".
std::string WindowText(const std::vector<int32_t>& window);

// Architecture, dimensions, windows, files and warnings: one "name  value" line each.
StatusOr<std::string> DescribeModel(const std::string& folder, const ModelConfig& config);

// Where `memory_bytes` go, what a token costs in each layer group, and how much fits.
std::string DescribePlan(const KvLayout& layout, const MemoryPlan& plan, int64_t memory_bytes);

}  // namespace tramontane

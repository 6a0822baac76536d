// How long a device takes for a step by its roofline: the longer of reading what must be read and of
// computing what must be computed. Plain values; any thread.
//
//   step = overhead + tokens drawn * sample + products + attention
//   products  = max(weights read / bandwidth, 2 * weights * rows / arithmetic)
//   attention = max(keys and values read / bandwidth, its multiplications / arithmetic)
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/run/row_speeds.h"
#include "engine/schedule/costs.h"
#include "engine/schedule/step_plan.h"
#include "kernels/core/status.h"
#include "models/model_config.h"

namespace tramontane::simulate {

// A device as JSON tells it (configs/devices/): the peaks, and which share of them kernels reach.
struct DeviceRoofline {
  std::string name;
  double memory_bytes = 0;   // that it has; 0: not said
  double bytes_per_s = 0;    // of its memory
  double flops_per_s = 0;    // dense, in the type of the activations
  double memory_share = 1;   // of bytes_per_s that kernels reach
  double product_share = 1;  // of flops_per_s that the products of many rows reach
  double attention_share = 1;
  int64_t step_overhead_ns = 0;  // what a step takes besides
  int64_t sample_ns = 0;         // what each token that a step draws takes besides, where that is not hidden
};

// Errors name the key, the value and the limit; `file` names the source in them.
StatusOr<DeviceRoofline> ParseDeviceRoofline(std::string_view json, const std::string& file);

// What of a model's config a roofline needs.
struct ModelWork {
  double layer_weights = 0;       // that a token is multiplied by, in all layers
  double read_layer_weights = 0;  // that a step of many tokens reads: all experts
  double head_weights = 0;
  double bytes_per_weight = 2;
  double key_bytes = 0;  // of one position in one layer: its keys and its values
  double key_flops = 0;  // of one query row and one position in one layer, all heads
};
ModelWork WorkOf(const ModelConfig& config, const KvFormat& format);

// The whole step, in nanoseconds; at least 1. `keys` counts attended keys over the model's layers.
int64_t StepNs(const StepPlan& plan, const ModelWork& work, const PrefillCost& keys,
               const DeviceRoofline& device);

// A forward pass of 32, 64, ... 512 rows, at most `most_rows`, alone through all layers: what EngineHost
// measures before its first step.
std::vector<RowSpeed> RowSpeedsOf(const ModelWork& work, const PrefillCost& keys,
                                  const DeviceRoofline& device, int32_t most_rows);

}  // namespace tramontane::simulate

// A device's roofline from what was measured on it. Pure; any thread.
#pragma once

#include <string>
#include <string_view>

#include "bench/simulate/roofline.h"
#include "kernels/core/status.h"

namespace tramontane::simulate {

struct FittedDevice {
  DeviceRoofline device;
  std::string source;      // device, driver and commit of the measurement
  double worst_error = 0;  // of a row that was fitted to, as a share of its time
};

// From gpu_check.json, which bench/gpu_check writes. All terms are least squares of relative errors:
//
//   table Mistral 7B           decode rows that bytes alone bound:
//                              time = step overhead + bytes / (copy rate * memory_share)
//                              prefill row: time = step overhead + FLOP / (peak * product_share); of its FLOP
//                              4 % are attention's, and are counted as products
//   table Prefill attention    time = FLOP / (peak * attention_share)
//
// A share above 1 (reading alone may be quicker than copying) raises the peak instead. Errors name `file` and
// what is missing in it.
StatusOr<FittedDevice> FitDevice(std::string_view json, const std::string& file);

// As configs/devices/ has it.
std::string DeviceJson(const FittedDevice& fitted);

}  // namespace tramontane::simulate

// A model of which only the config is read: its work, its KV layout, and what of a device's memory it takes.
// Any thread; plain values.
#pragma once

#include <cstdint>
#include <string>

#include "bench/simulate/roofline.h"
#include "engine/request/limits.h"
#include "engine/schedule/costs.h"
#include "kernels/core/status.h"
#include "models/kv_layout.h"
#include "models/model_config.h"
#include "models/opened_model.h"

namespace tramontane::simulate {

struct SimulatedModel {
  std::string name;  // of its folder
  ModelConfig config;
  KvLayout kv_layout;
  ModelWork work;
  int64_t weight_count = 0;  // a tied embedding counts once
  int64_t weight_bytes = 0;
};

// Of DIR/config.json, else DIR/params.json; no other file is opened. Errors name the file and the key.
// Weights that the config says are quantised are refused: their sizes stand in other files.
StatusOr<SimulatedModel> ReadSimulatedModel(const std::string& folder, const KvOptions& kv);
// The same of a config that is there.
SimulatedModel SimulatedModelOf(const std::string& name, const ModelConfig& config, const KvOptions& kv);

// How `memory_bytes` are shared out, as the server does it but for what a backend reserves for itself.
struct SimulatedMemory {
  int64_t weight_bytes = 0;
  int64_t workspace_bytes = 0;  // activations, logits, step buffers, recorded steps
  int64_t page_bytes = 0;
};

// Decides what `limits` leaves open: page_size, pool_pages, context, steps in flight. Too little memory is
// RESOURCE_EXHAUSTED, and says what takes how much.
StatusOr<SimulatedMemory> FitIntoMemory(const SimulatedModel& model, int64_t memory_bytes,
                                        EngineLimits* limits);

// What EngineHost measures before the first step, of a device that is not there: what least_step_tokens is,
// where `limits` cuts steps and leaves it open; and what the engine knows of steps' times.
StepCosts KnownCosts(const SimulatedModel& model, const DeviceRoofline& device, EngineLimits* limits);

}  // namespace tramontane::simulate

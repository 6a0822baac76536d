// From the settings of `serve` to a backend and an engine host: shared by serve, generate --local and
// inspect. Main thread.
#pragma once

#include <cstdint>
#include <string>

#include "engine/engine_host.h"
#include "kernels/backends/cpu_backend.h"
#include "models/grammar/constraint.h"
#include "server/call/field_limits.h"
#include "server/setup/config.h"

namespace tramontane {

struct Device {
  BackendPtr backend;
  std::string why_not_cuda;  // with device "auto" on the CPU, a sentence; else empty
};

// The backend that `device`, `cpu_variant`, `threads`, `linear` and `kv_dtype` ask for. "auto" takes the GPU
// where there is one.
StatusOr<Device> MakeDevice(const ServeConfig& config);

// "cpu (avx512, 2 threads)", "cuda (NVIDIA H200)"
std::string DescribeDevice(const BackendInfo& info);

// How keys and values are kept: what a model is opened with.
KvOptions KvOptionsOf(const ServeConfig& config);

// Which files of the model's folder are meant, and where the tokenizer lies.
FileChoice FileChoiceOf(const ServeConfig& config);

// The engine's limits and memory. With `memory` 0: what max_sequences sequences of the full context need, at
// most 70 % of the memory that is free now, or 90 % of a GPU's.
StatusOr<EngineHostOptions> MakeHostOptions(const ServeConfig& config, const OpenedModel& model,
                                            const Backend& backend);

ConstraintLimits ConstraintLimitsOf(const ServeConfig& config);

// What of these limits a request body is checked against.
FieldLimits FieldLimitsOf(const EngineLimits& engine, const ConstraintLimits& constraints);

// Bytes that the machine could still give to this process (MemAvailable, or the control group's limit if
// less).
int64_t FreeMemoryBytes();

// "1.25 GiB", "10.1 MiB", "512 B"
std::string FormatBytes(int64_t bytes);

}  // namespace tramontane

// From the settings of `serve` to a backend and an engine host: shared by serve, generate --local and
// inspect. Main thread.
#pragma once

#include <cstdint>
#include <string>

#include "engine/engine_host.h"
#include "kernels/cpu/cpu_backend.h"
#include "server/config.h"

namespace tramontane {

// The backend that `device`, `cpu_variant` and `threads` ask for.
StatusOr<BackendPtr> MakeBackend(const ServeConfig& config);

// "cpu (avx512, 2 threads)"
std::string DescribeDevice(const BackendInfo& info);

// The engine's limits and memory. With `memory` 0: what max_sequences sequences of the full context need, at
// most 70 % of the memory that is free now.
StatusOr<EngineHostOptions> MakeHostOptions(const ServeConfig& config, const std::string& folder,
                                            const ModelConfig& model, const Backend& backend);

// Bytes that the machine could still give to this process (MemAvailable, or the control group's limit if
// less).
int64_t FreeMemoryBytes();

// "1.25 GiB", "10.1 MiB", "512 B"
std::string FormatBytes(int64_t bytes);

}  // namespace tramontane

// MemoryBound: what one bound lets clients hold in this process, in bytes, beside the plan of weights,
// workspace and pages. A table of them: a new bound is one row. Plain values; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/request/limits.h"
#include "server/server.h"
#include "server/setup/config.h"

namespace tramontane {

// What gRPC has been seen to hold beyond its bounds, by the worst way of docs/operations.md: it reads ahead
// of the calls that it has announced.
inline constexpr int64_t kGrpcOvershootBytes = int64_t{2} << 30;

struct MemoryBound {
  std::string name;              // of the setting, where there is one, or of what is held
  std::optional<int64_t> bytes;  // nothing: no bound, for the setting is 0
};

// Of `serve`. `options`: as they are in force. `grammar_cache_bytes`: 0 where no grammar is compiled.
std::vector<MemoryBound> ServeMemoryBounds(const ServerOptions& options, const EngineLimits& engine,
                                           int64_t grammar_cache_bytes);
// Of `gateway`, with so many servers behind it.
std::vector<MemoryBound> GatewayMemoryBounds(const ServeConfig& config, int64_t servers);

// "at most 2.10 GiB = NAME 256.0 MiB + ..", or which of them is no bound.
std::string SumOf(const std::vector<MemoryBound>& bounds);

}  // namespace tramontane

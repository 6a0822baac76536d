// The text of GET /metrics of the separate gateway: its servers as it sees them. (metrics.h is a server's.)
// Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/remote/remote_client.h"
#include "server/watch/process_counts.h"
#include "server/watch/request_counts.h"

namespace tramontane {

// `unsent`: prompts of completions that wait for room at a server.
std::string GatewayMetricsText(const std::vector<BackendState>& backends, int64_t unsent,
                               const RequestCounts& requests, const ProcessCounts& process);

}  // namespace tramontane

// The text of GET /metrics of the separate gateway: its servers as it sees them. (metrics.h is a server's.)
// Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/remote/remote_client.h"

namespace tramontane {

std::string GatewayMetricsText(const std::vector<BackendState>& backends, int64_t dropped_log_lines);

}  // namespace tramontane

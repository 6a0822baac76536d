// The texts of GET /metrics, in Prometheus' format (text/plain; version=0.0.4).
// Any thread. They only read: EngineLoad is published once a step and OutputMetrics is written by the output
// thread, so a scrape costs the engine thread nothing, and no token takes a lock for it.
#pragma once

#include <string>
#include <vector>

#include "server/remote_client.h"
#include "server/served_model.h"

namespace tramontane {

// Of a server: under the names that vLLM's dashboards and routers read, each with `model_name`, and our own
// (tramontane_*). It counts what the engine did, so requests of both doors are in it.
std::string ServerMetricsText(const ServedModel& model);

// Of the separate gateway: its servers as it sees them.
std::string GatewayMetricsText(const std::vector<BackendState>& backends);

}  // namespace tramontane

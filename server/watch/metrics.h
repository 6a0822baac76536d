// The text of GET /metrics of a server, in Prometheus' format (text/plain; version=0.0.4).
// Any thread. They only read: EngineLoad is published once a step and OutputMetrics is written by the output
// thread, so a scrape costs the engine thread nothing, and no token takes a lock for it.
#pragma once

#include <cstdint>
#include <string>

#include "server/call/served_model.h"
#include "server/watch/process_counts.h"

namespace tramontane {

// Under the names that vLLM's dashboards and routers read, each with `model_name`, and our own
// (tramontane_*). It counts what the engine did, so requests of both doors are in it.
// `waiting_at_doors`: requests that have not reached the engine.
std::string ServerMetricsText(const ServedModel& model, const ProcessCounts& process,
                              int64_t waiting_at_doors = 0);

}  // namespace tramontane

// The text of GET /metrics of a server, in Prometheus' format (text/plain; version=0.0.4).
// Any thread. They only read: EngineLoad is published once a step and OutputMetrics is written by the output
// thread, so a scrape costs the engine thread nothing, and no token takes a lock for it.
#pragma once

#include <cstdint>
#include <string>

#include "server/call/served_model.h"
#include "server/watch/process_counts.h"
#include "server/watch/request_counts.h"

namespace tramontane {

struct ServerMetrics {
  const ServedModel* model = nullptr;  // null: it is still loading, and the engine's families are not there
  const RequestCounts* requests = nullptr;
  ProcessCounts process = {};    // without the engine's part of what is held
  int64_t waiting_at_doors = 0;  // requests that have not reached the engine
  bool legacy_names = false;     // three more, which vLLM has renamed since
};

// The families of metric_families.h, but for those that HttpCounts has.
std::string ServerMetricsText(ServerMetrics metrics);

}  // namespace tramontane

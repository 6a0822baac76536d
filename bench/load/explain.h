// Where the time to the first content went, of single requests, by the stages that the server itself tells
// (docs/ttft.md). Pure; any thread.
#pragma once

#include <iosfwd>
#include <string>
#include <utility>
#include <vector>

#include "bench/load/record.h"

namespace tramontane::load {

// A request whose ttft is the one nearest to a percentile.
struct ExplainedRequest {
  double percentile = 0;
  std::string request_id;
  double ttft_ms = 0;
  // In the order of time, adding up to ttft_ms: "client" (from the intended time to the send), the server's
  // stages by their names, and "network+client", what no one told of; below 0 where the server's own account
  // is longer than what the client saw.
  std::vector<std::pair<std::string, double>> parts;
};

// The requests nearest to p50, p95 and p99 among those that succeeded and brought the server's `timing`; the
// earlier of two that are as near. Empty: none brought it.
std::vector<ExplainedRequest> Explain(const std::vector<RequestRecord>& records);

void WriteExplained(const std::vector<ExplainedRequest>& explained, std::ostream& out);

}  // namespace tramontane::load

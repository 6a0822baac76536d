#include "server/remote/gateway_metrics.h"

#include "server/watch/metrics_page.h"

namespace tramontane {

std::string GatewayMetricsText(const std::vector<BackendState>& backends, int64_t unsent,
                               const ProcessCounts& process) {
  MetricsPage page({});
  const auto add = [&](MetricsPage::Type type, const char* name, const char* help, const auto& value) {
    page.Family(type, name, help);
    for (const BackendState& backend : backends) {
      page.Value(int64_t{value(backend)}, {{"backend", backend.address}});
    }
  };
  add(MetricsPage::Type::Gauge, "tramontane_backend_up", "1: connected and serving.",
      [](const BackendState& backend) { return backend.up; });
  add(MetricsPage::Type::Gauge, "tramontane_backend_open_calls", "Generate calls of this gateway.",
      [](const BackendState& backend) { return backend.open_calls; });
  add(MetricsPage::Type::Gauge, "tramontane_backend_others_calls",
      "Generate calls of others, when last asked.",
      [](const BackendState& backend) { return backend.others_calls; });
  add(MetricsPage::Type::Counter, "tramontane_backend_started_calls_total",
      "Generate calls of this gateway so far.",
      [](const BackendState& backend) { return backend.started_calls; });
  add(MetricsPage::Type::Counter, "tramontane_backend_lost_calls_total",
      "Generate calls that ended because the server went away or took none.",
      [](const BackendState& backend) { return backend.lost_calls; });
  page.Family(MetricsPage::Type::Gauge, "tramontane_gateway_unsent_prompts",
              "Prompts of completions that wait for room at a server.");
  page.Value(unsent);
  AddProcess(process, &page);
  return page.Text();
}

}  // namespace tramontane

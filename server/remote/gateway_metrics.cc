#include "server/remote/gateway_metrics.h"

#include "server/watch/metrics_page.h"

namespace tramontane {

std::string GatewayMetricsText(const std::vector<BackendState>& backends, int64_t unsent,
                               const RequestCounts& requests, const ProcessCounts& process) {
  MetricsPage page;
  for (const BackendState& backend : backends) {
    const std::string_view address = backend.address;
    page.Set("tramontane_backend_up", int64_t{backend.up ? 1 : 0}, {address});
    page.Set("tramontane_backend_open_calls", backend.open_calls, {address});
    page.Set("tramontane_backend_others_calls", backend.others_calls, {address});
    page.Set("tramontane_backend_started_calls_total", backend.started_calls, {address});
    page.Set("tramontane_backend_lost_calls_total", backend.lost_calls, {address});
  }
  page.Set("tramontane_gateway_unsent_prompts", unsent);
  requests.AddTo(&page);
  requests.AddStagesTo(TtftStage::kReceive, &page);
  AddProcess(process, &page);
  return page.Text();
}

}  // namespace tramontane

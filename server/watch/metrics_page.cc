#include "server/watch/metrics_page.h"

#include <prometheus/text_serializer.h>

#include <cstddef>
#include <iterator>
#include <sstream>

namespace tramontane {

void MetricsPage::Family(Type type, std::string name, std::string help) {
  families_.push_back({std::move(name), std::move(help), type, {}});
}

void MetricsPage::Value(double value, Labels labels) {
  prometheus::ClientMetric& metric = Add(std::move(labels));
  (families_.back().type == Type::Counter ? metric.counter.value : metric.gauge.value) = value;
}

void MetricsPage::Histogram(const LatencyHistogram& latencies) {
  prometheus::ClientMetric::Histogram& histogram = Add({}).histogram;
  const std::vector<int64_t> counts = latencies.Counts();
  for (size_t i = 0; i < counts.size(); ++i) {
    histogram.sample_count += static_cast<uint64_t>(counts[i]);
    if (i + 1 < counts.size()) {  // the serializer adds the bucket of all
      histogram.bucket.push_back({histogram.sample_count, latencies.bounds_seconds()[i]});
    }
  }
  histogram.sample_sum = latencies.sum_seconds();
}

std::string MetricsPage::Text() const {
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, families_);
  return std::move(text).str();
}

prometheus::ClientMetric& MetricsPage::Add(Labels labels) {
  prometheus::ClientMetric& metric = families_.back().metric.emplace_back();
  metric.label = common_;
  std::move(labels.begin(), labels.end(), std::back_inserter(metric.label));
  return metric;
}

void AddProcess(const ProcessCounts& counts, MetricsPage* page) {
  page->Family(MetricsPage::Type::Counter, "tramontane_dropped_log_lines_total",
               "Log lines that standard error did not take in time.");
  page->Value(counts.dropped_log_lines);
  if (counts.reloads.empty()) return;
  page->Family(MetricsPage::Type::Counter, "tramontane_reload_total",
               "Files that had changed, by whether their new content is in force.");
  for (const ReloadCount& reload : counts.reloads) {
    page->Value(reload.taken, {{"what", reload.what}, {"outcome", "taken"}});
    page->Value(reload.failed, {{"what", reload.what}, {"outcome", "failed"}});
  }
}

}  // namespace tramontane

// MetricsPage: families of metrics in the making, and their text in Prometheus' format.
// One thread.
#pragma once

#include <prometheus/metric_family.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/output/output_metrics.h"
#include "server/watch/process_counts.h"

namespace tramontane {

class MetricsPage {
 public:
  using Type = prometheus::MetricType;
  using Labels = std::vector<prometheus::ClientMetric::Label>;

  // Every metric carries the labels that all have in common.
  explicit MetricsPage(Labels common) : common_(std::move(common)) {}

  // Opens a family; metrics go into the last one opened.
  void Family(Type type, std::string name, std::string help);
  void Value(int64_t value, Labels labels = {}) { Value(static_cast<double>(value), std::move(labels)); }
  void Value(double value, Labels labels = {});
  void Histogram(const LatencyHistogram& latencies);

  std::string Text() const;

 private:
  prometheus::ClientMetric& Add(Labels labels);

  const Labels common_;
  std::vector<prometheus::MetricFamily> families_;
};

// What both pages tell of this process.
void AddProcess(const ProcessCounts& counts, MetricsPage* page);

}  // namespace tramontane

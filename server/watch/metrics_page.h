// MetricsPage: a page of /metrics in the making, in Prometheus' text format (text/plain; version=0.0.4).
// One thread.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "engine/output/histogram.h"
#include "server/watch/process_counts.h"

namespace tramontane {

class MetricsPage {
 public:
  using Values = std::initializer_list<std::string_view>;

  // Families of the engine carry these two as well; "": they do not.
  explicit MetricsPage(std::string_view model_name = {}, std::string_view engine = {});

  // A row of a family of metric_families.h. `values`: of its labels, in their order.
  void Set(std::string_view family, int64_t value, Values values = {});
  void Set(std::string_view family, double value, Values values = {});
  void Set(std::string_view family, const Histogram& histogram, Values values = {});

  // The families that have rows, in the table's order.
  std::string Text() const;

 private:
  // Where its rows go; `labels`: what stands between the braces.
  std::string& Begin(std::string_view family, Values values, std::string* labels);
  template <typename Number>
  void SetNumber(std::string_view family, Number value, Values values);

  std::string engine_labels_;
  std::vector<std::string> rows_;  // [families]
};

// What both pages tell of this process.
void AddProcess(const ProcessCounts& counts, MetricsPage* page);

}  // namespace tramontane

// MetricFamilies: every family of /metrics, each declared once: pages, docs/metrics.md and tests take from
// here. Constant; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tramontane {

enum class MetricKind : uint8_t { kCounter, kGauge, kHistogram };
std::string_view MetricKindName(MetricKind kind);  // as the text format has it

struct MetricLabel {
  std::string_view name;
  std::vector<std::string_view> values = {};  // all there are, each on the page from the first; none: open
};

struct MetricFamily {
  enum Page : uint8_t {
    kServer = 1,
    kGateway = 2,
    kBoth = 3,
    kLegacy = 4
  };  // kLegacy: where it is asked for

  std::string_view name;
  MetricKind kind = MetricKind::kCounter;
  uint8_t pages = kServer;
  bool of_engine = false;  // of a server it has the labels model_name and engine, too
  std::string_view help;   // a sentence; no line break, no backslash
  std::vector<MetricLabel> labels = {};
};

const std::vector<MetricFamily>& MetricFamilies();
// Its index. REQUIRES: there is one of that name.
size_t MetricFamilyIndex(std::string_view name);
// Its row in docs/metrics.md: "| `name{label}` | counter | help |".
std::string MetricDocRow(const MetricFamily& family);

}  // namespace tramontane

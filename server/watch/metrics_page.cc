#include "server/watch/metrics_page.h"

#include <array>
#include <charconv>
#include <cstddef>

#include "kernels/core/check.h"
#include "kernels/core/utf8.h"
#include "server/watch/metric_families.h"
#include "server/watch/process_stats.h"

namespace tramontane {
namespace {

void AppendNumber(int64_t value, std::string* text) {
  std::array<char, 24> digits;
  text->append(digits.data(), std::to_chars(digits.begin(), digits.end(), value).ptr);
}

// The shortest that is read as the same.
void AppendNumber(double value, std::string* text) {
  std::array<char, 400> digits;
  text->append(digits.data(),
               std::to_chars(digits.begin(), digits.end(), value, std::chars_format::fixed).ptr);
}

void AppendLabel(std::string_view name, std::string_view value, std::string* labels) {
  if (!labels->empty()) *labels += ',';
  labels->append(name).append("=\"");
  for (const char c : ReplaceInvalidUtf8(value)) {
    if (c == '\n') {
      *labels += "\\n";
      continue;
    }
    if (c == '\\' || c == '"') *labels += '\\';
    *labels += c;
  }
  *labels += '"';
}

}  // namespace

MetricsPage::MetricsPage(std::string_view model_name, std::string_view engine)
    : rows_(MetricFamilies().size()) {
  if (engine.empty()) return;
  AppendLabel("model_name", model_name, &engine_labels_);
  AppendLabel("engine", engine, &engine_labels_);
}

std::string& MetricsPage::Begin(std::string_view family, Values values, std::string* labels) {
  const size_t index = MetricFamilyIndex(family);
  const MetricFamily& row = MetricFamilies()[index];
  TM_CHECK(values.size() == row.labels.size(), "%zu labels of a family that has %zu", values.size(),
           row.labels.size());
  if (row.of_engine) *labels = engine_labels_;
  for (size_t i = 0; i < values.size(); ++i) AppendLabel(row.labels[i].name, values.begin()[i], labels);
  return rows_[index];
}

template <typename Number>
void MetricsPage::SetNumber(std::string_view family, Number value, Values values) {
  std::string labels;
  std::string& text = Begin(family, values, &labels);
  text.append(family);
  if (!labels.empty()) text.append("{").append(labels).append("}");
  text += ' ';
  AppendNumber(value, &text);
  text += '\n';
}

void MetricsPage::Set(std::string_view family, int64_t value, Values values) {
  SetNumber(family, value, values);
}

void MetricsPage::Set(std::string_view family, double value, Values values) {
  SetNumber(family, value, values);
}

void MetricsPage::Set(std::string_view family, const Histogram& histogram, Values values) {
  std::string labels;
  std::string& text = Begin(family, values, &labels);
  const std::string bucket =
      std::string(family) + "_bucket{" + labels + (labels.empty() ? "le=\"" : ",le=\"");
  const std::string end = (labels.empty() ? "" : "{" + labels + "}") + " ";
  const std::vector<int64_t> counts = histogram.Counts();
  int64_t count = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    count += counts[i];
    text += bucket;
    if (i < histogram.bounds().size()) {
      AppendNumber(histogram.bounds()[i], &text);
    } else {
      text += "+Inf";
    }
    text += "\"} ";
    AppendNumber(count, &text);
    text += '\n';
  }
  text.append(family).append("_sum").append(end);
  AppendNumber(histogram.sum(), &text);
  text.append("\n").append(family).append("_count").append(end);
  AppendNumber(count, &text);
  text += '\n';
}

std::string MetricsPage::Text() const {
  std::string text;
  size_t bytes = 0;
  for (const std::string& rows : rows_) bytes += rows.size() + 512;
  text.reserve(bytes);
  for (size_t i = 0; i < rows_.size(); ++i) {
    const MetricFamily& family = MetricFamilies()[i];
    if (rows_[i].empty()) continue;
    text.append("# HELP ").append(family.name).append(" ").append(family.help);
    text.append("\n# TYPE ").append(family.name).append(" ").append(MetricKindName(family.kind)).append("\n");
    text += rows_[i];
  }
  return text;
}

void AddProcess(const ProcessCounts& counts, MetricsPage* page) {
  page->Set("tramontane_dropped_log_lines_total", counts.dropped_log_lines);
  for (const std::string_view what : {"tls", "keys"}) {
    ReloadCount count;
    for (const ReloadCount& reload : counts.reloads) {
      if (reload.what == what) count = reload;
    }
    page->Set("tramontane_reload_total", count.taken, {what, "ok"});
    page->Set("tramontane_reload_total", count.failed, {what, "failed"});
  }
  page->Set("tramontane_draining", int64_t{counts.draining ? 1 : 0});
  page->Set("tramontane_build_info", int64_t{1}, {counts.version});
  page->Set("tramontane_connections", counts.connections.grpc, {"grpc"});
  page->Set("tramontane_connections", counts.connections.http, {"http"});
  page->Set("tramontane_connections", counts.connections.admin, {"admin"});
  page->Set("tramontane_held_bytes", counts.held.request_bodies, {"request_bodies"});
  page->Set("tramontane_held_bytes", counts.held.queued_input, {"queued_input"});
  page->Set("tramontane_held_bytes", counts.held.queued_requests, {"queued_requests"});
  page->Set("tramontane_held_bytes", counts.held.unread_output, {"unread_output"});
  page->Set("tramontane_held_bytes", counts.held.unread_answers, {"unread_answers"});
  page->Set("tramontane_held_bytes", counts.held.sessions, {"sessions"});
  const ProcessStats stats = ReadProcessStats();
  page->Set("process_cpu_seconds_total", stats.cpu_seconds);
  page->Set("process_resident_memory_bytes", stats.resident_bytes);
  page->Set("process_virtual_memory_bytes", stats.virtual_bytes);
  page->Set("process_open_fds", stats.open_files);
  page->Set("process_max_fds", stats.max_files);
  page->Set("process_threads", stats.threads);
  page->Set("process_start_time_seconds", stats.start_time_s);
}

}  // namespace tramontane

#include "server/api/shared/http_counts.h"

#include <algorithm>

namespace tramontane {
namespace {

constexpr size_t kFirstClass = 1;  // of kStatuses: 1xx

// Of a list that ends with what all others are.
template <typename List>
size_t IndexOf(const List& list, std::string_view value) {
  return static_cast<size_t>(std::find(list.begin(), list.end() - 1, value) - list.begin());
}

}  // namespace

HttpCounts::HttpCounts(const std::vector<Handler>& handlers) {
  for (const Handler& handler : handlers) {
    const auto has_path = [&handler](const Row& row) { return row.path == handler.path; };
    auto row = std::find_if(rows_.begin(), rows_.end(), has_path);
    if (row == rows_.end()) {
      rows_.emplace_back();
      row = rows_.end() - 1;
      row->path = handler.path;
      row->name = handler.name;
    }
    row->has_method[IndexOf(kMethods, handler.method)] = true;
  }
  rows_.emplace_back().name = "none";
}

HttpCounts::Row& HttpCounts::RowOf(std::string_view path) {
  return *std::find_if(rows_.begin(), rows_.end() - 1, [path](const Row& row) { return row.path == path; });
}

void HttpCounts::Count(std::string_view path, std::string_view method, int status) {
  const auto status_class = static_cast<size_t>(std::clamp(status / 100, 1, 5)) - kFirstClass;
  RowOf(path).counts[IndexOf(kMethods, method)][status_class].fetch_add(1, std::memory_order_relaxed);
}

void HttpCounts::ObserveDuration(std::string_view path, int64_t ns) {
  const std::lock_guard lock(mutex_);
  RowOf(path).durations.ObserveNs(ns);
}

std::string HttpCounts::Text() const {
  MetricsPage page;
  for (const Row& row : rows_) {
    const bool is_none = &row == &rows_.back();
    for (size_t m = 0; m < kMethods.size(); ++m) {
      for (size_t s = 0; s < kStatuses.size(); ++s) {
        const int64_t count = row.counts[m][s].load(std::memory_order_relaxed);
        const bool is_there =
            is_none ? kMethods[m] == "GET" && s == 3 : row.has_method[m] && (s == 1 || s == 3 || s == 4);
        if (is_there || count > 0)
          page.Set("http_requests_total", count, {row.name, kMethods[m], kStatuses[s]});
      }
    }
    if (!is_none) page.Set("http_request_duration_seconds", row.durations, {row.name});
  }
  return page.Text();
}

}  // namespace tramontane

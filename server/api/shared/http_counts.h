// HttpCounts: how many requests were answered, by route, method and status, and how long that took. Any
// thread; counts take no lock.
// Always: handlers are those of the route table, methods and statuses of closed sets, so what clients make up
// adds no label; a path of no route counts as "none".
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "server/watch/metrics_page.h"

namespace tramontane {

class HttpCounts {
 public:
  // A route, as it is found and as the label has it: "/models/*" and "/v1/models/*". Their memory outlives
  // this.
  struct Handler {
    std::string_view method, path;
    std::string name;
  };
  // Those that are on the page from the first: of each, 2xx, 4xx and 5xx.
  explicit HttpCounts(const std::vector<Handler>& handlers = {});

  // `path`: of the route, also where its method was another; "": none.
  void Count(std::string_view path, std::string_view method, int status);
  // An answer to it has ended.
  void ObserveDuration(std::string_view path, int64_t ns);

  // Prometheus' text of its two families.
  std::string Text() const;

 private:
  static constexpr std::array<std::string_view, 6> kMethods = {"GET",    "HEAD",    "POST",
                                                               "DELETE", "OPTIONS", "other"};
  static constexpr std::array<std::string_view, 5> kStatuses = {"1xx", "2xx", "3xx", "4xx", "5xx"};
  using OfMethod = std::array<std::atomic<int64_t>, kStatuses.size()>;
  struct Row {
    std::string_view path;  // "": none
    std::string name;
    std::array<bool, kMethods.size()> has_method{};
    std::array<OfMethod, kMethods.size()> counts{};
    Histogram durations{{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 600}};
  };

  Row& RowOf(std::string_view path);

  std::deque<Row> rows_;      // the last is of no route
  mutable std::mutex mutex_;  // guards what of them is `durations`
};

}  // namespace tramontane

// HttpCounts: how many requests were answered, by route and status. Any thread.
// Always: paths are those of the route table, so what clients make up adds no label; it counts as "other".
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

namespace tramontane {

class HttpCounts {
 public:
  // `route`: the path of the endpoint, also where its method was another, in the table's memory; "": none.
  void Count(std::string_view route, int status);

  // Prometheus' text: one family, tramontane_http_requests_total{path,status}.
  std::string Text() const;

 private:
  mutable std::mutex mutex_;  // guards counts_
  std::map<std::pair<std::string_view, int>, int64_t> counts_;
};

}  // namespace tramontane

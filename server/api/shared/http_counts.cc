#include "server/api/shared/http_counts.h"

namespace tramontane {

void HttpCounts::Count(std::string_view route, int status) {
  const std::lock_guard lock(mutex_);
  ++counts_[{route.empty() ? "other" : route, status}];
}

std::string HttpCounts::Text() const {
  std::string text =
      "# HELP tramontane_http_requests_total HTTP requests by the path of their endpoint and their status.\n"
      "# TYPE tramontane_http_requests_total counter\n";
  const std::lock_guard lock(mutex_);
  for (const auto& [key, count] : counts_) {
    text += "tramontane_http_requests_total{path=\"" + std::string(key.first) + "\",status=\"" +
            std::to_string(key.second) + "\"} " + std::to_string(count) + "\n";
  }
  return text;
}

}  // namespace tramontane

#include "server/api/access_log.h"

#include <spdlog/spdlog.h>

#include <string_view>

namespace tramontane {
namespace {

constexpr size_t kMaxLoggedPathBytes = 200;

}  // namespace

void LogAnswer(const HttpRequest& request, int status) {
  const bool is_known = !request.method.empty();
  const std::string_view path = std::string_view(request.path).substr(0, kMaxLoggedPathBytes);
  spdlog::log(status < 400 ? spdlog::level::debug : spdlog::level::info, "http {}: {} {} {}",
              request.request_id, is_known ? request.method : "-", is_known ? path : "-", status);
}

}  // namespace tramontane

#include "server/grpc/library_logs.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <spdlog/spdlog.h>

#include <mutex>
#include <string>
#include <string_view>

namespace tramontane {
namespace {

// A line for each client that begins no TLS is theirs to write: it is no fault of the server's.
bool IsOfAHandshake(std::string_view message) {
  return message.starts_with("Handshake failed") ||
         message.starts_with("TlsServerSecurityConnector::cancel_check_peer");
}

}  // namespace

void RouteLibraryLogs() {
  static std::once_flag once;
  std::call_once(once, [] {
    gpr_set_log_function([](gpr_log_func_args* args) {
      const bool is_fault = args->severity == GPR_LOG_SEVERITY_ERROR && !IsOfAHandshake(args->message);
      const auto level = is_fault ? spdlog::level::warn : spdlog::level::debug;
      spdlog::log(level, "grpc: {}", args->message);
    });
    // protobuf reports here what a caller sent; the caller gets the error, the log need not.
    google::protobuf::SetLogHandler([](google::protobuf::LogLevel level, const char*, int,
                                       const std::string& text) {
      spdlog::log(level == google::protobuf::LOGLEVEL_FATAL ? spdlog::level::critical : spdlog::level::debug,
                  "protobuf: {}", text);
    });
  });
}

}  // namespace tramontane

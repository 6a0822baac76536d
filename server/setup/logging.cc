#include "server/setup/logging.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "server/setup/log_writer.h"

namespace tramontane {

namespace {

constexpr int64_t kMostFlushMs = 1000;

// The message as a JSON string, whatever bytes it holds.
class JsonMessage final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    const std::string text(message.payload.data(), message.payload.size());
    const std::string quoted =
        nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    out.append(quoted.data(), quoted.data() + quoted.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<JsonMessage>(); }
};

std::unique_ptr<spdlog::formatter> MakeFormatter(const std::string& format) {
  if (format != "json") {
    return std::make_unique<spdlog::pattern_formatter>("%Y-%m-%d %H:%M:%S.%e %l: %v");
  }
  auto formatter = std::make_unique<spdlog::pattern_formatter>(spdlog::pattern_time_type::utc);
  formatter->add_flag<JsonMessage>('*').set_pattern(
      R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%l","message":%*})");
  return formatter;
}

std::string Line(spdlog::formatter& formatter, const spdlog::details::log_msg& message) {
  spdlog::memory_buf_t line;
  formatter.format(message, line);
  return {line.data(), line.size()};
}

// As long as the process: other threads may log until its end.
LogWriter* writer = nullptr;

class WriterSink final : public spdlog::sinks::base_sink<std::mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    writer->Write(Line(*formatter_, message));
  }
  void flush_() override {}
};

}  // namespace

Status SetUpLogging(const std::string& level, const std::string& format) {
  const std::shared_ptr<spdlog::formatter> formatter = MakeFormatter(format);
  LogWriterOptions options;
  options.tell_dropped = [formatter](int64_t dropped) {
    const std::string text =
        std::to_string(dropped) + " log lines were dropped: standard error was not read in time";
    return Line(*formatter, {"", spdlog::level::warn, text});
  };
  TM_ASSIGN_OR_RETURN(std::unique_ptr<LogWriter> started, LogWriter::Start(std::move(options)));
  writer = started.release();

  auto logger = std::make_shared<spdlog::logger>("tramontane", std::make_shared<WriterSink>());
  logger->set_level(spdlog::level::from_str(level == "warn" ? "warning" : level));
  logger->set_formatter(formatter->clone());
  spdlog::set_default_logger(std::move(logger));
  return {};
}

void FlushLogs() {
  if (writer != nullptr) writer->Flush(kMostFlushMs);
}

int64_t DroppedLogLines() { return writer == nullptr ? 0 : writer->dropped(); }

}  // namespace tramontane

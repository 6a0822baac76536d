#include "server/setup/logging.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <mutex>
#include <string_view>
#include <utility>

#include "server/base/text.h"
#include "server/setup/log_writer.h"

namespace tramontane {

namespace {

constexpr int64_t kMostFlushMs = 1000;

// Messages under this name are fields already, in the format that the log has.
constexpr char kFields[] = "fields";

bool is_json = false;  // set before anything is logged

// The message as it may stand in a line, whatever bytes it holds: as text, or as a field of an object.
class OneLine final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    const std::string_view text(message.payload.data(), message.payload.size());
    const bool is_fields =
        std::string_view(message.logger_name.data(), message.logger_name.size()) == kFields;
    const std::string line = is_fields ? std::string(text)
                             : is_json ? "\"message\":" + QuotedText(text)
                                       : PrintableText(text);
    out.append(line.data(), line.data() + line.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<OneLine>(); }
};

std::unique_ptr<spdlog::formatter> MakeFormatter() {
  auto formatter = std::make_unique<spdlog::pattern_formatter>(is_json ? spdlog::pattern_time_type::utc
                                                                       : spdlog::pattern_time_type::local);
  formatter->add_flag<OneLine>('*').set_pattern(
      is_json ? R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%l",%*})" : "%Y-%m-%d %H:%M:%S.%e %l: %*");
  return formatter;
}

std::string Line(spdlog::formatter& formatter, const spdlog::details::log_msg& message) {
  spdlog::memory_buf_t line;
  formatter.format(message, line);
  return {line.data(), line.size()};
}

// As long as the process: other threads may log until its end.
LogWriter* writer = nullptr;
std::shared_ptr<spdlog::logger> fields;  // null: nothing is logged yet

class WriterSink final : public spdlog::sinks::base_sink<std::mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    writer->Write(Line(*formatter_, message));
  }
  void flush_() override {}
};

// Fields of a line, one after the other.
class LineFields {
 public:
  explicit LineFields(bool as_json) : as_json_(as_json) {}

  // "": not known.
  void Text(const char* name, std::string_view value, size_t most_bytes = kMaxLoggedFieldBytes) {
    value = value.substr(0, most_bytes);
    const bool is_bare = value != "-" && value.find_first_not_of(kBare) == std::string_view::npos;
    if (value.empty()) return Unknown(name);
    Add(name, as_json_ || !is_bare ? QuotedText(value) : std::string(value));
  }
  void Count(const char* name, int64_t value) {
    value < 0 ? Unknown(name) : Add(name, std::to_string(value));
  }
  void Milliseconds(const char* name, double value) {
    value < 0 ? Unknown(name) : Add(name, fmt::format("{:.3f}", value));
  }
  const std::string& text() const { return text_; }

 private:
  static constexpr std::string_view kBare =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.,:;/+@%~*-";

  void Unknown(const char* name) { Add(name, as_json_ ? "null" : "-"); }
  void Add(const char* name, std::string_view value) {
    if (!text_.empty()) text_ += as_json_ ? ',' : ' ';
    const char* const quote = as_json_ ? "\"" : "";
    ((((text_ += quote) += name) += quote) += as_json_ ? ':' : '=') += value;
  }

  const bool as_json_;
  std::string text_;
};

}  // namespace

Status SetUpLogging(const std::string& level, const std::string& format) {
  is_json = format == "json";
  const std::shared_ptr<spdlog::formatter> formatter = MakeFormatter();
  LogWriterOptions options;
  options.tell_dropped = [formatter](int64_t dropped) {
    const std::string text =
        std::to_string(dropped) + " log lines were dropped: standard error was not read in time";
    return Line(*formatter, {"", spdlog::level::warn, text});
  };
  TM_ASSIGN_OR_RETURN(std::unique_ptr<LogWriter> started, LogWriter::Start(std::move(options)));
  writer = started.release();

  const auto sink = std::make_shared<WriterSink>();
  auto logger = std::make_shared<spdlog::logger>("tramontane", sink);
  fields = std::make_shared<spdlog::logger>(kFields, sink);
  for (spdlog::logger* each : {logger.get(), fields.get()}) {
    each->set_level(spdlog::level::from_str(level == "warn" ? "warning" : level));
  }
  logger->set_formatter(formatter->clone());
  spdlog::set_default_logger(std::move(logger));
  return {};
}

std::string RequestLineText(const RequestLine& line, bool as_json) {
  LineFields out(as_json);
  out.Text("event", "request");
  out.Text("id", line.id);
  out.Text("key", line.key);
  out.Text("route", line.route);
  out.Text("model", line.model);
  out.Count("prompt_tokens", line.prompt_tokens);
  out.Count("output_tokens", line.output_tokens);
  out.Milliseconds("ttft_ms", line.ttft_ms);
  out.Milliseconds("e2el_ms", line.e2el_ms);
  out.Text("status", line.status);
  out.Text("outcome", kRequestOutcomes[static_cast<size_t>(line.outcome)]);
  out.Text("trace_id", line.trace_id);
  if (line.cached_tokens >= 0) out.Count("cached_tokens", line.cached_tokens);
  if (line.queue_ms >= 0) out.Milliseconds("queue_ms", line.queue_ms);
  if (!line.reason.empty()) out.Text("reason", line.reason);
  if (!line.correlation_id.empty()) out.Text("correlation_id", line.correlation_id);
  if (!line.error.empty()) out.Text("error", line.error);
  if (!line.message.empty()) out.Text("message", line.message);
  if (!line.prompt.empty()) out.Text("prompt", line.prompt, kMaxLoggedPromptBytes);
  return out.text();
}

void LogRequest(const RequestLine& line) {
  const bool is_news =
      line.generates || line.outcome == RequestOutcome::kRefused || line.outcome == RequestOutcome::kError;
  const auto level = is_news ? spdlog::level::info : spdlog::level::debug;
  if (fields == nullptr || !fields->should_log(level)) return;
  fields->log(level, spdlog::string_view_t(RequestLineText(line, is_json)));
}

RequestLog RequestLogOf(const std::string& log_requests, bool log_prompts) {
  if (log_requests != "on") return {};
  if (log_prompts) spdlog::warn("log_prompts: what is asked of this server is in its log");
  return {.tell = LogRequest, .prompts = log_prompts};
}

void FlushLogs() {
  if (writer != nullptr) writer->Flush(kMostFlushMs);
}

int64_t DroppedLogLines() { return writer == nullptr ? 0 : writer->dropped(); }

}  // namespace tramontane

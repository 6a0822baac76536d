#include "server/openai/debug_endpoints.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "server/openai/api_error.h"

namespace tramontane {
namespace {

// The value of `name` in the query of a target, with nothing decoded; nothing where it is not there.
std::optional<std::string_view> QueryValue(std::string_view target, std::string_view name) {
  const size_t question = target.find('?');
  std::string_view query = question == std::string_view::npos ? "" : target.substr(question + 1);
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    if (pair.starts_with(name) && pair.substr(name.size()).starts_with('=')) {
      return pair.substr(name.size() + 1);
    }
  }
  return std::nullopt;
}

ApiError SecondsFault(const std::string& is) {
  ApiError error;
  error.status = 400;
  error.param = "seconds";
  error.message = "seconds " + is + "; it must be above 0, and at most " + std::to_string(kMostTraceSeconds);
  return error;
}

// Sends what has been recorded each time the connection's clock ticks. On the connection's thread.
class TraceExchange final : public HttpListener {
 public:
  TraceExchange(std::shared_ptr<HttpExchange> exchange, std::unique_ptr<TraceText> text, int64_t end_ns)
      : exchange_(std::move(exchange)), text_(std::move(text)), end_ns_(end_ns) {}

  void OnHangUp() override { End(); }
  void OnStop() override {
    if (exchange_ != nullptr) Finish();
  }
  void OnWritten() override { writing_ = false; }
  void OnTick() override {
    if (exchange_ == nullptr) return;
    if (exchange_->NowNs() >= end_ns_) return Finish();
    if (writing_) return;  // what a slow reader leaves stays in its bounded place
    std::string text = text_->Next();
    writing_ = !text.empty();
    if (writing_) exchange_->Write(std::move(text));
  }

 private:
  void Finish() {
    const auto exchange = exchange_;
    std::string text = text_->End();
    End();
    exchange->End(std::move(text));
  }
  void End() {
    exchange_ = nullptr;
    text_ = nullptr;
  }

  std::shared_ptr<HttpExchange> exchange_;  // null: the answer has ended
  std::unique_ptr<TraceText> text_;
  const int64_t end_ns_;
  bool writing_ = false;
};

}  // namespace

void AnswerTrace(const GatewayContext& context, const std::shared_ptr<HttpExchange>& exchange) {
  const auto value = QueryValue(exchange->request().target, "seconds");
  if (!value) return exchange->Respond(ErrorResponse(SecondsFault("is missing")));
  double seconds = 0;
  const auto [end, fault] = std::from_chars(value->data(), value->data() + value->size(), seconds);
  const bool is_number = fault == std::errc() && end == value->data() + value->size();
  if (!is_number || !(seconds > 0) || seconds > kMostTraceSeconds) {
    return exchange->Respond(ErrorResponse(SecondsFault("is \"" + std::string(*value) + "\"")));
  }
  std::unique_ptr<TraceText> text = context.options.trace();
  if (text == nullptr) return exchange->Respond(ErrorResponse(ToApiError(context.client.health())));
  const int64_t end_ns = exchange->NowNs() + static_cast<int64_t>(seconds * 1e9);
  HttpResponse head;
  head.headers.emplace_back("cache-control", "no-store");
  exchange->StartStream(std::move(head));
  exchange->Listen(std::make_shared<TraceExchange>(exchange, std::move(text), end_ns));
}

}  // namespace tramontane

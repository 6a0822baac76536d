#include "server/api/admin/debug_endpoints.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "server/api/shared/api_error.h"

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
  TraceExchange(std::shared_ptr<GatewayExchange> exchange, std::unique_ptr<TraceText> text, int64_t end_ns)
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

  std::shared_ptr<GatewayExchange> exchange_;  // null: the answer has ended
  std::unique_ptr<TraceText> text_;
  const int64_t end_ns_;
  bool writing_ = false;
};

// Answers with the text once it is there. On the connection's thread.
class PendingExchange final : public HttpListener {
 public:
  PendingExchange(std::shared_ptr<GatewayExchange> exchange, std::unique_ptr<PendingText> text,
                  int64_t end_ns)
      : exchange_(std::move(exchange)), text_(std::move(text)), end_ns_(end_ns) {}

  void OnHangUp() override { exchange_ = nullptr; }
  void OnStop() override { Refuse("the server stops"); }
  void OnTick() override {
    if (exchange_ == nullptr) return;
    std::optional<std::string> text = text_->Take();
    if (text) {
      HttpResponse response = {.headers = {{"cache-control", "no-store"}}, .body = *std::move(text)};
      return std::exchange(exchange_, nullptr)->Respond(std::move(response));
    }
    if (exchange_->NowNs() < end_ns_) return;
    Refuse("the engine has begun no step for " + std::to_string(kMostPendingSeconds) + " seconds");
  }

 private:
  void Refuse(const std::string& why) {
    ApiError error;
    error.status = 503;
    error.message = why;
    if (const auto exchange = std::exchange(exchange_, nullptr)) exchange->Fail(error);
  }

  std::shared_ptr<GatewayExchange> exchange_;  // null: the answer has ended
  const std::unique_ptr<PendingText> text_;
  const int64_t end_ns_;
};

// `ask`: null where there is nobody to ask, as `why_not` says.
void AnswerWhenTold(const std::function<std::unique_ptr<PendingText>(RpcError* refusal)>& ask,
                    const char* why_not, const std::shared_ptr<GatewayExchange>& exchange) {
  if (ask == nullptr) {
    ApiError error;
    error.status = 404;
    error.message = why_not;
    return exchange->Fail(error);
  }
  RpcError refusal;
  std::unique_ptr<PendingText> text = ask(&refusal);
  if (text == nullptr) return exchange->Fail(ToApiError(refusal));
  const int64_t end_ns = exchange->NowNs() + kMostPendingSeconds * 1'000'000'000;
  exchange->Listen(std::make_shared<PendingExchange>(exchange, std::move(text), end_ns));
}

}  // namespace

void AnswerTrace(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange) {
  const auto value = QueryValue(exchange->request().target, "seconds");
  if (!value) return exchange->Fail(SecondsFault("is missing"));
  double seconds = 0;
  const auto [end, fault] = std::from_chars(value->data(), value->data() + value->size(), seconds);
  const bool is_number = fault == std::errc() && end == value->data() + value->size();
  if (!is_number || !(seconds > 0) || seconds > kMostTraceSeconds) {
    return exchange->Fail(SecondsFault("is \"" + std::string(*value) + "\""));
  }
  std::unique_ptr<TraceText> text = context.options.trace();
  if (text == nullptr) return exchange->Fail(ToApiError(context.client.health()));
  const int64_t end_ns = exchange->NowNs() + static_cast<int64_t>(seconds * 1e9);
  HttpResponse head;
  head.headers.emplace_back("cache-control", "no-store");
  exchange->StartStream(std::move(head));
  exchange->Listen(std::make_shared<TraceExchange>(exchange, std::move(text), end_ns));
}

void AnswerKvTables(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange) {
  AnswerWhenTold(context.options.kv_tables, "this server has no KV cache to show", exchange);
}

void AnswerLiveRequests(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange) {
  AnswerWhenTold(context.options.live_requests, "this server has no engine whose requests it could show",
                 exchange);
}

}  // namespace tramontane

// GatewayExchange: an exchange as endpoints are given it: it says errors in its route's dialect, the gateway
// adds to each of its answers, and is told of their begin and their end. Any thread, as HttpExchange.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "server/api/shared/answer_record.h"
#include "server/api/shared/answer_watch.h"
#include "server/api/shared/api_error.h"
#include "server/api/shared/dialect.h"
#include "server/http/http.h"

namespace tramontane {

class GatewayExchange final : public HttpExchange {
 public:
  // `headers`, as they are when the answer begins, go into whatever it is.
  GatewayExchange(std::shared_ptr<HttpExchange> inner, const Dialect& dialect,
                  std::function<HttpHeaders()> headers, AnswerWatch watch = {})
      : inner_(std::move(inner)), dialect_(dialect), headers_(std::move(headers)), watch_(std::move(watch)) {}
  // Let go of before its answer has ended: the client has hung up.
  ~GatewayExchange() override { watch_.OnHangUp(); }
  GatewayExchange(const GatewayExchange&) = delete;
  GatewayExchange& operator=(const GatewayExchange&) = delete;

  // The whole answer: there is none.
  void Fail(const ApiError& error) { Respond(ErrorResponse(dialect_, error, request())); }
  // The rest of a stream: its last bytes say why it has failed.
  void EndFailed(const ApiError& error, std::string last_bytes) {
    watch_.OnEnd(error.status, inner_->NowNs());
    inner_->End(std::move(last_bytes));
  }

  const HttpRequest& request() const override { return inner_->request(); }
  int64_t NowNs() const override { return inner_->NowNs(); }
  void Respond(HttpResponse response) override {
    AddHeaders(&response);
    watch_.OnWhole(response, inner_->NowNs());
    inner_->Respond(std::move(response));
  }
  void StartStream(HttpResponse head) override {
    if (const auto record = RecordOf(request())) record->NoteHead();
    AddHeaders(&head);
    watch_.OnBegin(head.status);
    inner_->StartStream(std::move(head));
  }
  void Write(std::string bytes) override { inner_->Write(std::move(bytes)); }
  void End(std::string last_bytes) override {
    watch_.OnEnd(/*status=*/200, inner_->NowNs());
    inner_->End(std::move(last_bytes));
  }
  void Listen(std::shared_ptr<HttpListener> listener) override { inner_->Listen(std::move(listener)); }
  void Post(std::function<void()> work) override { inner_->Post(std::move(work)); }
  void RunOnHandler(std::function<void()> work) override { inner_->RunOnHandler(std::move(work)); }
  bool TryOnHandler(std::function<void()> work) override { return inner_->TryOnHandler(std::move(work)); }
  HeldBytes NewShare() override { return inner_->NewShare(); }

 private:
  void AddHeaders(HttpResponse* response) const {
    for (auto& header : headers_()) response->headers.push_back(std::move(header));
  }

  const std::shared_ptr<HttpExchange> inner_;
  const Dialect& dialect_;
  const std::function<HttpHeaders()> headers_;
  AnswerWatch watch_;
};

}  // namespace tramontane

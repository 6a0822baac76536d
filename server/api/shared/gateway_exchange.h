// GatewayExchange: an exchange as endpoints are given it: it says errors in its route's dialect, the gateway
// adds to each of its answers, and keeps an eye on it. Any thread, as HttpExchange.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "server/api/shared/answer_record.h"
#include "server/api/shared/api_error.h"
#include "server/api/shared/dialect.h"
#include "server/http/http.h"

namespace tramontane {

class GatewayExchange final : public HttpExchange {
 public:
  // `headers`, as they are when the answer begins, go into whatever it is; `on_answer` is told its status
  // then.
  GatewayExchange(std::shared_ptr<HttpExchange> inner, const Dialect& dialect,
                  std::function<HttpHeaders()> headers, std::function<void(int status)> on_answer)
      : inner_(std::move(inner)),
        dialect_(dialect),
        headers_(std::move(headers)),
        on_answer_(std::move(on_answer)) {}

  // The whole answer: there is none.
  void Fail(const ApiError& error) { Respond(ErrorResponse(dialect_, error, request())); }

  const HttpRequest& request() const override { return inner_->request(); }
  int64_t NowNs() const override { return inner_->NowNs(); }
  void Respond(HttpResponse response) override { inner_->Respond(Completed(std::move(response))); }
  void StartStream(HttpResponse head) override {
    if (const auto record = RecordOf(request())) record->NoteHead();
    inner_->StartStream(Completed(std::move(head)));
  }
  void Write(std::string bytes) override { inner_->Write(std::move(bytes)); }
  void End(std::string last_bytes) override { inner_->End(std::move(last_bytes)); }
  void Listen(std::shared_ptr<HttpListener> listener) override { inner_->Listen(std::move(listener)); }
  void Post(std::function<void()> work) override { inner_->Post(std::move(work)); }
  void RunOnHandler(std::function<void()> work) override { inner_->RunOnHandler(std::move(work)); }
  bool TryOnHandler(std::function<void()> work) override { return inner_->TryOnHandler(std::move(work)); }
  HeldBytes NewShare() override { return inner_->NewShare(); }

 private:
  HttpResponse Completed(HttpResponse response) const {
    for (auto& header : headers_()) response.headers.push_back(std::move(header));
    on_answer_(response.status);
    return response;
  }

  const std::shared_ptr<HttpExchange> inner_;
  const Dialect& dialect_;
  const std::function<HttpHeaders()> headers_;
  const std::function<void(int status)> on_answer_;
};

}  // namespace tramontane

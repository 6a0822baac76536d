// ConnectionExchange: the face of a connection towards endpoints; one request of it, and its body.
// As HttpExchange: any thread, but for RunOnHandler, which is the connection's.
// Always: the bytes of its body are held until the work on the handler thread has returned, for by then they
// are parsed, or else until it is let go; those of its header until then.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "server/base/held_bytes.h"
#include "server/http/connection.h"
#include "server/http/http.h"
#include "server/http/request_input.h"

namespace tramontane {

class ConnectionExchange final : public HttpExchange,
                                 public std::enable_shared_from_this<ConnectionExchange> {
 public:
  // `number`: of this exchange on its connection.
  ConnectionExchange(std::shared_ptr<Connection> connection, int64_t number, ArrivedRequest arrived);
  ~ConnectionExchange() override;

  const HttpRequest& request() const override { return request_; }
  int64_t NowNs() const override { return connection_->thread().NowNs(); }
  void Respond(HttpResponse response) override;
  void StartStream(HttpResponse head) override;
  void Write(std::string bytes) override;
  void End(std::string last_bytes) override;
  void Listen(std::shared_ptr<HttpListener> listener) override;
  void Post(std::function<void()> work) override { connection_->thread().Post(std::move(work)); }
  void RunOnHandler(std::function<void()> work) override;
  bool TryOnHandler(std::function<void()> work) override;
  HeldBytes NewShare() override { return held_body_.Split(0); }

  // Answers in the place of whoever was to, and has not.
  void Refuse(const HttpRefusal& refusal);

 private:
  enum class State { kOpen, kStreaming, kAnswered };

  void Handle(const std::function<void()>& work);
  int64_t WorkBytes() const;
  bool DecodeBody();
  void FreeBody();
  template <typename Work>
  bool Do(Work work);

  const std::shared_ptr<Connection> connection_;
  const int64_t number_;
  HttpRequest request_;  // constant while the handler has it
  HeldBytes held_header_;
  HeldBytes held_body_;
  std::atomic<State> state_{State::kOpen};
};

}  // namespace tramontane

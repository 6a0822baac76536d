// HTTP as the endpoints see it: a request, a response, and the exchange that joins them. No socket in here.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/base/held_bytes.h"

namespace tramontane {

// A field: name in lower case, value without the blanks around it.
using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;        // "POST"
  std::string target;        // as sent: "/v1/models?a=b", or "http://host/v1/models"
  std::string path;          // of it, nothing decoded: "/v1/models"
  std::string peer;          // the client's address: PlainAddress, without a port
  bool on_loopback = false;  // it came to an address that only this machine reaches
  HttpHeaders headers;
  std::string body;                // decoded, while RunOnHandler's work runs; then freed
  std::string id;                  // drawn: no other request of this process has it
  std::shared_ptr<void> attached;  // by HttpServerOptions::on_header
  std::string request_id;          // x-request-id, which clients may use again; else `id`
  // On HttpExchange's clock. A request that came while the one before it was answered begins when that has
  // ended.
  int64_t first_byte_ns = 0;
  int64_t whole_ns = 0;  // its last byte was there

  // The first of that name (in lower case); null: none.
  const std::string* Header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  HttpHeaders headers = {};  // besides those that the connection writes itself
  std::string body = {};
  std::string error_code = {};  // not sent: for what counts answers
};

// Told what happens to a body that is sent as it comes. On the connection's thread; must not block.
class HttpListener {
 public:
  virtual ~HttpListener() = default;
  // The client has hung up: nothing that is written from now on arrives. At most once, and never after the
  // end of the answer.
  virtual void OnHangUp() = 0;
  // Everything written so far has been handed to the system: room for the next write.
  virtual void OnWritten() {}
  // Nothing has been written for HttpLimits::silence_ms.
  virtual void OnSilence() {}
  // The server stops: what there is to say is said now.
  virtual void OnStop() {}
  // About twice a second.
  virtual void OnTick() {}
};

// One request and the way to answer it: either Respond, or StartStream, Writes and End.
// Any thread, also after the client hung up (then they do nothing). What one thread calls happens in its
// order. Letting go of an exchange without an answer answers 500.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;

  virtual const HttpRequest& request() const = 0;

  // Monotonic, nanoseconds since some start.
  virtual int64_t NowNs() const = 0;

  virtual void Respond(HttpResponse response) = 0;

  // The header, and `head.body`, leave in one write.
  virtual void StartStream(HttpResponse head) = 0;
  // One write to the socket. While the one before is still on its way, bytes are kept and joined into the
  // next: who wants that bounded waits for OnWritten.
  virtual void Write(std::string bytes) = 0;
  virtual void End(std::string last_bytes) = 0;

  // Who is told. At most once per exchange; kept until the answer has ended or the client has hung up.
  virtual void Listen(std::shared_ptr<HttpListener> listener) = 0;

  // Runs `work` on the connection's thread, where listeners are called, soon.
  virtual void Post(std::function<void()> work) = 0;

  // Runs `work` on a handler thread, where it may take its time, with the body decoded. A body that cannot be
  // is answered instead. When `work` returns, the body is freed. Before anybody else is given the exchange.
  virtual void RunOnHandler(std::function<void()> work) = 0;
  // And what of an answer takes long, later, whether or not the client is still there. False: too much waits,
  // and nothing happens.
  virtual bool TryOnHandler(std::function<void()> work) = 0;

  // A share of what all requests may hold (HttpLimits::max_held_body_bytes), empty yet: for what stays of a
  // body when that is freed. Not to outlive the exchange.
  virtual HeldBytes NewShare() = 0;
};

}  // namespace tramontane

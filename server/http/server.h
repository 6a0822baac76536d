// HttpServer: sockets. Accepts connections, reads requests, hands each to the handler as an HttpExchange and
// writes its answer. Boost.Asio is behind this page. What is asked for, and by whom it is answered, is
// the handler's matter.
//
// Threads: one acceptor; each connection belongs to one of the io threads for life, and everything that
// happens to it happens there. What takes time runs on the handler threads (HttpExchange::RunOnHandler).
// Always: a connection answers one request at a time, in order; what a client sends meanwhile is read ahead
// up to a bound and kept. Where connections or the system's files run out, the connection that waits longest
// for a request makes room for a new one, and a client that has more than half of all makes it first; where
// none waits, the new one is answered what the io thread answers by itself, and nothing else.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "kernels/core/status.h"
#include "server/base/held_bytes.h"
#include "server/http/http.h"
#include "server/http/limits.h"
#include "server/http/refusal.h"

struct ssl_ctx_st;

namespace tramontane {

struct HttpServerOptions {
  std::string address = "127.0.0.1:0";  // HOST:PORT
  int32_t io_threads = 1;
  int32_t handler_threads = 1;
  HttpLimits limits = {};
  RefusalWriter write_refusal = PlainRefusal;
  // Looks at a request once its header is whole, before its body is waited for, and may answer it or attach
  // something to it. On its connection's io thread. Null: nobody looks.
  std::function<std::optional<HttpResponse>(HttpRequest* header)> on_header = {};
  // Told of each answer that is complete, before its last bytes leave, with its status; of a request whose
  // client has gone before, never. On its connection's io thread. Null: nobody is told.
  std::function<void(const HttpRequest& request, int status)> on_answered = {};
  // Of all answers that clients have not taken yet; outlives the server. Null: one of its own.
  ByteBudget* unread_answers = nullptr;
  // What connections that begin now are shown: a server's context of OpenSSL. Any thread. Null: no TLS.
  std::function<std::shared_ptr<ssl_ctx_st>()> tls_context = {};
};

class HttpServer {
 public:
  // Told of each request, on its connection's io thread: must not block.
  using Handler = std::function<void(std::shared_ptr<HttpExchange>)>;

  static StatusOr<std::unique_ptr<HttpServer>> Start(const HttpServerOptions& options, Handler handler);
  ~HttpServer();  // as Stop

  const std::string& address() const;

  // Connections close when they have answered what they have begun to read; new ones too.
  void CloseWhenAnswered();
  int64_t open_exchanges() const;
  int64_t connections() const;      // that are open
  int64_t held_body_bytes() const;  // of requests that are not yet parsed
  // False when some are still open after the time.
  bool WaitForAnswers(int64_t timeout_ns) const;

  // Tells every open exchange (HttpListener::OnStop, else 503), lets last words leave for last_words_ms, then
  // closes every connection and waits for the threads.
  void Stop();

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tramontane

// Connection: one client and its requests, one after the other; and what all connections share. No socket and
// no clock of the system in here: byte_socket.h, connection_thread.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "server/base/held_bytes.h"
#include "server/base/work_queue.h"
#include "server/http/byte_socket.h"
#include "server/http/connection_shares.h"
#include "server/http/connection_thread.h"
#include "server/http/output_buffer.h"
#include "server/http/refusal.h"
#include "server/http/request_input.h"
#include "server/http/response_framing.h"
#include "server/http/server.h"

namespace tramontane {

class ConnectionExchange;

inline constexpr int64_t kLingerMs = 2000;  // for a client to read the last words of its connection

// What all connections share. Any thread.
struct HttpServerState {
  HttpServerState(const HttpServerOptions& options, HttpServer::Handler handler,
                  std::function<bool(WorkPiece)> run_handler)
      : options(options),
        handler(std::move(handler)),
        run_handler(std::move(run_handler)),
        connections(options.limits.max_connections),
        held_bytes(options.limits.max_held_body_bytes),
        own_unread_answers(kDefaultUnreadAnswerBytes),
        unread_answers(options.unread_answers != nullptr ? *options.unread_answers : own_unread_answers) {}

  HttpResponse Refused(const HttpRefusal& refusal, const HttpRequest& request) const {
    return options.write_refusal(refusal, request);
  }
  void Answered(const HttpRequest& request, int status) const {
    if (options.on_answered != nullptr) options.on_answered(request, status);
  }

  const HttpServerOptions options;
  const HttpServer::Handler handler;
  const std::function<bool(WorkPiece)> run_handler;  // soon, on a handler thread; false: too much waits
  bool on_loopback = false;                          // before the first connection: as HttpRequest's
  std::atomic<bool> closing{false};                  // connections end after their answer
  std::atomic<bool> stopping{false};                 // at once
  std::atomic<int64_t> open_exchanges{0};
  ConnectionShares connections;
  ByteBudget held_bytes;          // of requests: headers of open ones, and bodies that are not yet parsed
  ByteBudget own_unread_answers;  // where the options have none
  ByteBudget& unread_answers;
};

// On its thread only, but for server(), thread(), client() and closed().
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::shared_ptr<HttpServerState> shared, std::shared_ptr<ConnectionThread> thread,
             std::unique_ptr<ByteSocket> socket);
  ~Connection() { shared_->connections.Remove(client_); }

  HttpServerState& server() const { return *shared_; }
  ConnectionThread& thread() const { return *thread_; }
  const std::string& client() const { return client_; }  // whose shares it takes: AddressShare of the peer
  bool closed() const { return closed_; }                // nothing reaches the client any more

  void Begin();
  // One connection too many: it is asked for its request at once, gets the answer that the io thread has by
  // itself, or is refused, and ends.
  void BeginOverLimit();
  bool is_over_limit() const { return is_over_limit_; }
  void Sweep();  // looks at its clocks
  void Stop();   // the server stops: what is open is told so, and may say its last words
  void Close();

  int64_t held_bytes() const { return input_.held_bytes(); }

  // ---- from the exchange in progress, by its number; of others nothing is done ----
  // `request`: whose answer it is.
  void Respond(int64_t number, HttpResponse response, const HttpRequest& request);
  void StartStream(int64_t number, HttpResponse head);
  void Write(int64_t number, std::string bytes);
  void End(int64_t number, std::string last_bytes, const HttpRequest& request);
  void Listen(int64_t number, std::shared_ptr<HttpListener> listener);
  // Nobody will end its stream.
  void Abandon(int64_t number);

 private:
  enum class Phase {
    kIdle,       // between requests
    kReading,    // part of a request is here
    kAnswering,  // an exchange is open
    kLingering,  // the last words are out; what comes is thrown away
    kClosed,     // or not begun
  };

  // The exchange in progress, else the last one.
  struct Answer {
    enum class State { kNone, kStreaming, kWhole };  // of what was said; whole: all of it is in the output

    int64_t number = 0;
    State state = State::kNone;
    ResponseFraming framing = {};
    int status = 0;  // of a stream
    std::weak_ptr<ConnectionExchange> exchange = {};
    std::shared_ptr<HttpListener> listener = nullptr;
  };

  const HttpLimits& limits() const { return shared_->options.limits; }

  void Enter(Phase phase);
  void StandInLine();

  void WaitForInput();
  void OnReadable();
  void OnInput(std::string_view bytes);
  void OnInputEnd();
  void ParseInput(std::string_view bytes);
  void Dispatch();
  bool AnswersHeader();
  void Refuse(const HttpRefusal& refusal);
  void Name(HttpRequest* request) const;

  bool IsAnswering(int64_t number, Answer::State state) const;
  bool HoldOrClose(size_t bytes);
  void Flush();
  void WriteOutput();
  void OnFlushed();
  void EndAnswer();
  void OnReadAhead();
  void Linger();

  int64_t read_timeout_ms() const;
  void SweepIdle(int64_t waited_ms);
  void SweepReading(int64_t waited_ms);
  void SweepAnswer(int64_t now_ms);

  const std::shared_ptr<HttpServerState> shared_;
  const std::shared_ptr<ConnectionThread> thread_;
  const std::unique_ptr<ByteSocket> socket_;
  const std::string client_;
  bool is_over_limit_ = false;
  Phase phase_ = Phase::kClosed;
  std::atomic<bool> closed_{false};
  int64_t since_ms_ = 0;                          // the phase began, or, answering: all was written
  std::optional<ConnectionThread::Place> place_;  // among those that can make room

  RequestInput input_;
  std::shared_ptr<void> attached_;  // to the request that comes, by its header
  bool waiting_for_input_ = false;
  bool input_ended_ = false;  // the client has shut down its side

  Answer answer_;
  OutputBuffer output_;
};

}  // namespace tramontane

#include "server/http/exchange.h"

#include <strings.h>

#include <algorithm>
#include <optional>

#include "server/http/gzip.h"
#include "server/http/refusal.h"

namespace tramontane {
namespace {

bool IsEncoding(const std::string& encoding, const char* name) {
  return strcasecmp(encoding.c_str(), name) == 0;
}

HttpRefusal UnknownEncoding(const std::string& encoding) {
  return {.status = 415,
          .message = "Content-Encoding: \"" + encoding + "\" is not understood, only gzip and identity"};
}

// `status`: 499, which nobody reads, where the client has gone.
HttpRefusal GivenUp(bool client_has_gone) {
  return {.status = client_has_gone ? 499 : 500, .message = "this request was given up"};
}

}  // namespace

ConnectionExchange::ConnectionExchange(std::shared_ptr<Connection> connection, int64_t number,
                                       ArrivedRequest arrived)
    : connection_(std::move(connection)),
      number_(number),
      request_(std::move(arrived.request)),
      held_header_(std::move(arrived.held_header)),
      held_body_(std::move(arrived.held_body)) {}

// The last to let go may be the connection's thread, while what another thread wrote is still on its way
// there: this comes behind it.
ConnectionExchange::~ConnectionExchange() {
  if (state_ == State::kAnswered) return;
  if (state_ == State::kStreaming) {
    Post([connection = connection_, number = number_] { connection->Abandon(number); });
    return;
  }
  Post([connection = connection_, number = number_, request = std::move(request_)] {
    connection->Respond(number, connection->server().Refused(GivenUp(connection->closed()), request),
                        request);
  });
}

void ConnectionExchange::RunOnHandler(std::function<void()> work) {
  if (connection_->is_over_limit()) return Refuse(TooManyConnections());
  const bool has_room = connection_->server().run_handler(
      {.caller = connection_->client(),
       .bytes = WorkBytes(),
       .run = [self = shared_from_this(), work = std::move(work)] { self->Handle(work); }});
  if (!has_room) Refuse(TooManyWaiting());
}

bool ConnectionExchange::TryOnHandler(std::function<void()> work) {
  return connection_->server().run_handler(
      {.caller = connection_->client(),
       .bytes = kLongWorkBytes,
       .run = [self = shared_from_this(), work = std::move(work)] { work(); }});
}

// What the work is measured by: a compressed body by what comes out of it.
int64_t ConnectionExchange::WorkBytes() const {
  const auto sent = static_cast<int64_t>(request_.body.size());
  const std::string* encoding = request_.Header("content-encoding");
  const bool is_gzip = encoding != nullptr && IsEncoding(*encoding, "gzip");
  return is_gzip ? std::max(sent, GunzippedBytes(request_.body)) : sent;
}

void ConnectionExchange::Handle(const std::function<void()>& work) {
  if (connection_->closed()) return;
  if (DecodeBody()) work();
  FreeBody();
}

// False: refused.
bool ConnectionExchange::DecodeBody() {
  const std::string* encoding = request_.Header("content-encoding");
  if (encoding == nullptr || request_.body.empty() || IsEncoding(*encoding, "identity")) return true;
  const int64_t max_bytes = connection_->server().options.limits.max_body_bytes;
  HeldBytes held_decoded = held_body_.Split(0);
  std::string decoded;
  const std::optional<HttpRefusal> fault = IsEncoding(*encoding, "gzip")
                                               ? Gunzip(request_.body, max_bytes, held_decoded, &decoded)
                                               : UnknownEncoding(*encoding);
  if (fault) {
    Refuse(*fault);
    return false;
  }
  request_.body = std::move(decoded);
  held_body_ = std::move(held_decoded);
  return true;
}

void ConnectionExchange::FreeBody() {
  std::string().swap(request_.body);
  held_body_.Set(0);
}

// At once where this is the connection's thread.
template <typename Work>
bool ConnectionExchange::Do(Work work) {
  if (connection_->thread().is_current()) {
    work();
    return true;
  }
  return connection_->thread().Post(std::move(work));
}

void ConnectionExchange::Refuse(const HttpRefusal& refusal) {
  if (state_ == State::kOpen) Respond(connection_->server().Refused(refusal, request_));
}

void ConnectionExchange::Respond(HttpResponse response) {
  state_ = State::kAnswered;
  Do([self = shared_from_this(), response = std::move(response)]() mutable {
    self->connection_->Respond(self->number_, std::move(response), self->request_);
  });
}

void ConnectionExchange::StartStream(HttpResponse head) {
  state_ = State::kStreaming;
  Do([connection = connection_, number = number_, head = std::move(head)]() mutable {
    connection->StartStream(number, std::move(head));
  });
}

void ConnectionExchange::Write(std::string bytes) {
  Do([connection = connection_, number = number_, bytes = std::move(bytes)]() mutable {
    connection->Write(number, std::move(bytes));
  });
}

void ConnectionExchange::End(std::string last_bytes) {
  state_ = State::kAnswered;
  Do([self = shared_from_this(), bytes = std::move(last_bytes)]() mutable {
    self->connection_->End(self->number_, std::move(bytes), self->request_);
  });
}

void ConnectionExchange::Listen(std::shared_ptr<HttpListener> listener) {
  const bool there = Do([connection = connection_, number = number_, listener]() mutable {
    connection->Listen(number, std::move(listener));
  });
  if (!there) listener->OnHangUp();  // the server has stopped, and its threads with it
}

}  // namespace tramontane

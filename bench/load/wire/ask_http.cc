#include "bench/load/wire/ask_http.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "bench/load/clock.h"
#include "bench/load/wire/http_reply_parser.h"
#include "bench/load/wire/stamp.h"
#include "bench/load/wire/tls_session.h"

namespace tramontane::load {
namespace {

Status NoConnection(const WireTarget& target, const std::string& why) {
  return Unavailable(target.authority() + ": " + why);
}

// On a connection that was there.
Status Broken(const WireTarget& target, const std::string& why) {
  return Status(StatusCode::kAborted, target.authority() + ": " + ServerText(why, target.options().api_key));
}

// A socket that is waited for, never longer than its deadline.
class WaitingSocket {
 public:
  explicit WaitingSocket(int64_t deadline_ns) : deadline_ns_(deadline_ns) {}
  ~WaitingSocket() { Close(); }
  WaitingSocket(const WaitingSocket&) = delete;
  WaitingSocket& operator=(const WaitingSocket&) = delete;

  // "" or what went wrong, as all below.
  std::string Connect(const SocketAddress& address) {
    Close();
    fd_ = socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd_ < 0) return std::strerror(errno);
    if (connect(fd_, reinterpret_cast<const sockaddr*>(&address.storage), address.size) == 0) return "";
    if (errno != EINPROGRESS) return std::strerror(errno);
    if (!Wait(POLLOUT)) return "no connection in time";
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size);
    return error == 0 ? "" : std::strerror(error);
  }

  std::string Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t count = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count >= 0) {
        bytes.remove_prefix(static_cast<size_t>(count));
      } else if (errno != EAGAIN) {
        return std::strerror(errno);
      } else if (!Wait(POLLOUT)) {
        return "the request was not taken in time";
      }
    }
    return "";
  }

  // Appends what one read brings; nothing at the end.
  std::string Receive(std::string* bytes) {
    std::array<char, 65536> read;
    for (;;) {
      const ssize_t count = recv(fd_, read.data(), read.size(), 0);
      if (count >= 0) {
        bytes->append(read.data(), static_cast<size_t>(count));
        return "";
      }
      if (errno != EAGAIN) return std::strerror(errno);
      if (!Wait(POLLIN)) return "no answer in time";
    }
  }

 private:
  bool Wait(int16_t events) const {
    pollfd one{fd_, events, 0};
    const int64_t left_ms = (deadline_ns_ - NowNs()) / kNsPerMs;
    return left_ms > 0 && poll(&one, 1, static_cast<int>(std::min<int64_t>(left_ms, 1'000'000'000))) > 0;
  }

  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

  const int64_t deadline_ns_;
  int fd_ = -1;
};

// The socket, or TLS over it.
class Channel {
 public:
  Channel(const WireTarget& target, WaitingSocket* socket) : socket_(socket) {
    if (target.has_tls()) tls_ = std::make_unique<TlsSession>(target.tls(), target.host());
  }

  std::string Handshake() {
    while (tls_ != nullptr && !tls_->established()) {
      const bool went_on = tls_->Handshake();
      if (std::string fault = SendTls(); !fault.empty()) return fault;
      if (!went_on) return "TLS: " + tls_->error();
      if (tls_->established()) break;
      std::string encrypted;
      if (std::string fault = socket_->Receive(&encrypted); !fault.empty()) return fault;
      if (encrypted.empty()) return "TLS: the server closed the connection";
      tls_->Receive(encrypted);
    }
    return "";
  }

  std::string Send(std::string_view plain) {
    if (tls_ == nullptr) return socket_->Send(plain);
    tls_->Encrypt(plain);
    return SendTls();
  }

  // `at_end`: the server closed.
  std::string Receive(std::string* plain, bool* at_end) {
    std::string bytes;
    if (std::string fault = socket_->Receive(&bytes); !fault.empty()) return fault;
    *at_end = bytes.empty();
    if (tls_ == nullptr) {
      *plain = std::move(bytes);
      return "";
    }
    plain->clear();
    tls_->Receive(bytes);
    if (!tls_->Decrypt(plain)) *at_end = true;
    return "";
  }

 private:
  std::string SendTls() {
    std::string output;
    tls_->TakeOutput(&output);
    return socket_->Send(output);
  }

  WaitingSocket* socket_;
  std::unique_ptr<TlsSession> tls_;
};

StatusOr<PlainAnswer> ReadAnswer(const WireTarget& target, Channel* channel) {
  HttpReplyParser parser;
  PlainAnswer answer;
  bool at_end = false;
  while (!parser.ended() && !at_end) {
    std::string bytes;
    if (const std::string fault = channel->Receive(&bytes, &at_end); !fault.empty())
      return Broken(target, fault);
    std::string_view left = bytes;
    std::string_view piece;
    while (parser.Next(&left, &piece)) answer.body.append(piece);
    if (!parser.fault().empty()) return Broken(target, parser.fault());
    if (answer.body.size() > kMaxPlainAnswerBytes)
      return Broken(target, "an answer of more than " + std::to_string(kMaxPlainAnswerBytes) + " bytes");
  }
  if (at_end && !parser.Close()) return Broken(target, "closed the connection before the end of its answer");
  answer.status = parser.head().status;
  return answer;
}

}  // namespace

StatusOr<PlainAnswer> AskHttp(const WireTarget& target, const PlainQuestion& question) {
  WaitingSocket socket(NowNs() + static_cast<int64_t>(target.options().timeout_s * 1e9));
  std::string fault = target.resolve_error();
  for (const SocketAddress& address : target.addresses()) {
    fault = socket.Connect(address);
    if (fault.empty()) break;
  }
  if (!fault.empty()) return NoConnection(target, fault);
  Channel channel(target, &socket);
  fault = channel.Handshake();
  if (!fault.empty()) return NoConnection(target, fault);
  fault = channel.Send(target.QuestionBytes(question.method, question.path, question.body));
  if (!fault.empty()) return Broken(target, fault);
  return ReadAnswer(target, &channel);
}

}  // namespace tramontane::load

#include "server/http/tls_socket.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <utility>

#include "kernels/core/check.h"

namespace tramontane {

// Hands bytes from and to the socket below. OpenSSL's own would write as to a file, and a client that has
// gone would send a signal.
struct TlsWire {
  using State = ByteSocket::State;

  static TlsSocket& Of(BIO* bio) { return *static_cast<TlsSocket*>(BIO_get_data(bio)); }

  static int Read(BIO* bio, char* bytes, size_t size, size_t* got) {
    BIO_clear_retry_flags(bio);
    const auto [read, state] = Of(bio).socket_->Read({bytes, size});
    *got = read;
    if (state == State::kLater) BIO_set_retry_read(bio);
    if (state == State::kEnded) Of(bio).input_ended_ = true;
    return read > 0 ? 1 : 0;
  }

  static int Write(BIO* bio, const char* bytes, size_t size, size_t* sent) {
    BIO_clear_retry_flags(bio);
    const std::string_view text(bytes, size);
    const auto [written, state] = Of(bio).socket_->Write({&text, 1});
    *sent = written;
    if (written == 0 && state == State::kLater) BIO_set_retry_write(bio);
    return written > 0 ? 1 : 0;
  }

  static long Control(BIO* bio, int what, long, void*) {
    if (what == BIO_CTRL_EOF) return Of(bio).input_ended_ ? 1 : 0;
    return what == BIO_CTRL_FLUSH ? 1 : 0;
  }

  static BIO* New(TlsSocket* socket) {
    static BIO_METHOD* const method = [] {
      BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "connection");
      TM_CHECK(made != nullptr, "no BIO method");
      BIO_meth_set_read_ex(made, Read);
      BIO_meth_set_write_ex(made, Write);
      BIO_meth_set_ctrl(made, Control);
      return made;
    }();
    BIO* bio = BIO_new(method);
    TM_CHECK(bio != nullptr, "no BIO");
    BIO_set_data(bio, socket);
    BIO_set_init(bio, 1);
    return bio;
  }
};

TlsSocket::TlsSocket(ssl_ctx_st* context, std::unique_ptr<ByteSocket> socket,
                     std::shared_ptr<ConnectionThread> thread)
    : socket_(std::move(socket)), thread_(std::move(thread)), session_(SSL_new(context)) {
  TM_CHECK(session_ != nullptr, "no TLS session");
  BIO* wire = TlsWire::New(this);
  SSL_set_bio(session_, wire, wire);
  SSL_set_accept_state(session_);
}

TlsSocket::~TlsSocket() { SSL_free(session_); }

TlsSocket::Handshaking TlsSocket::Handshake() {
  ERR_clear_error();
  const int result = SSL_do_handshake(session_);
  is_established_ = result == 1;
  if (is_established_) {
    can_read_now_ = SSL_pending(session_) > 0;
    return Handshaking::kDone;
  }
  switch (SSL_get_error(session_, result)) {
    case SSL_ERROR_WANT_READ:
      return Handshaking::kReads;
    case SSL_ERROR_WANT_WRITE:
      return Handshaking::kWrites;
    default:
      return Handshaking::kFailed;
  }
}

ByteSocket::State TlsSocket::StateAfter(int result) const {
  switch (SSL_get_error(session_, result)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
      return State::kLater;
    case SSL_ERROR_ZERO_RETURN:
      return State::kEnded;
    default:
      return State::kBroken;
  }
}

ByteSocket::Progress TlsSocket::Read(std::span<char> room) {
  Progress progress;
  while (progress.bytes < room.size() && progress.state == State::kOpen) {
    ERR_clear_error();
    size_t got = 0;
    const std::span<char> rest = room.subspan(progress.bytes);
    const int result = SSL_read_ex(session_, rest.data(), rest.size(), &got);
    progress.bytes += got;
    if (result != 1) progress.state = StateAfter(result);
  }
  read_wants_write_ = progress.state == State::kLater && SSL_want_write(session_);
  is_established_ = is_established_ && progress.state != State::kBroken;
  const bool is_over = progress.state == State::kEnded || progress.state == State::kBroken;
  // The end is told by a Read of its own.
  can_read_now_ = progress.bytes > 0 && (is_over || SSL_pending(session_) > 0);
  if (progress.bytes > 0) progress.state = State::kOpen;
  return progress;
}

ByteSocket::Progress TlsSocket::Write(std::span<const std::string_view> texts) {
  Progress progress;
  for (std::string_view text : texts) {
    while (!text.empty()) {
      ERR_clear_error();
      size_t written = 0;
      const int result = SSL_write_ex(session_, text.data(), text.size(), &written);
      if (result != 1) {
        progress.state = SSL_want_write(session_) ? State::kLater : State::kBroken;
        is_established_ = is_established_ && progress.state != State::kBroken;
        return progress;
      }
      progress.bytes += written;
      text.remove_prefix(written);
    }
  }
  return progress;
}

void TlsSocket::WhenReadable(std::function<void()> call) {
  if (can_read_now_) {
    thread_->Post(std::move(call));
  } else if (read_wants_write_) {
    socket_->WhenWritable(std::move(call));
  } else {
    socket_->WhenReadable(std::move(call));
  }
}

// As far as it can be sent now.
void TlsSocket::SayGoodbye() {
  if (!is_established_) return;
  ERR_clear_error();
  SSL_shutdown(session_);
}

void TlsSocket::ShutdownSend() {
  SayGoodbye();
  socket_->ShutdownSend();
}

void TlsSocket::Close() {
  SayGoodbye();
  is_established_ = false;
  socket_->Close();
}

}  // namespace tramontane

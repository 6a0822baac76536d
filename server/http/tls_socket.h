// TlsSocket: a ByteSocket over another one that carries TLS, the server's side.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "server/http/byte_socket.h"
#include "server/http/connection_thread.h"

struct bio_st;
struct ssl_ctx_st;
struct ssl_st;

namespace tramontane {

class TlsSocket final : public ByteSocket {
 public:
  enum class Handshaking {
    kDone,
    kReads,   // needs more from the client
    kWrites,  // needs room to send
    kFailed,
  };

  // `thread`: the connection's. `context` is not needed afterwards.
  TlsSocket(ssl_ctx_st* context, std::unique_ptr<ByteSocket> socket,
            std::shared_ptr<ConnectionThread> thread);
  ~TlsSocket() override;
  TlsSocket(const TlsSocket&) = delete;
  TlsSocket& operator=(const TlsSocket&) = delete;

  // Goes on as far as the bytes reach. Until it is done, on any one thread, and nothing else is called.
  Handshaking Handshake();

  const std::string& peer() const override { return socket_->peer(); }

  Progress Read(std::span<char> room) override;
  // REQUIRES: after kLater, texts that begin with the bytes that were not taken.
  Progress Write(std::span<const std::string_view> texts) override;
  void WhenReadable(std::function<void()> call) override;
  void WhenWritable(std::function<void()> call) override { socket_->WhenWritable(std::move(call)); }
  bool HasHungUp() override { return socket_->HasHungUp(); }
  void ShutdownSend() override;
  void Close() override;

 private:
  friend struct TlsWire;  // OpenSSL's way to the socket
  State StateAfter(int result) const;
  void SayGoodbye();

  const std::unique_ptr<ByteSocket> socket_;
  const std::shared_ptr<ConnectionThread> thread_;
  ssl_st* const session_;
  bool input_ended_ = false;       // of the socket below
  bool is_established_ = false;    // and can still be used
  bool can_read_now_ = false;      // without a byte of the socket
  bool read_wants_write_ = false;  // a Read has something to send first
};

}  // namespace tramontane

// The transport over TLS.
#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "server/access/tls_pair.h"
#include "server/http/server.h"
#include "server/http/tls_socket.h"
#include "tests/support/http_test_client.h"
#include "tests/support/tls_test_client.h"

namespace tramontane {
namespace {

// Opens once, for all.
class Gate {
 public:
  void Open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  void Wait() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(60), [this] { return is_open_; }));
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
};

class HungUpListener : public HttpListener {
 public:
  void OnHangUp() override { hung_up.Open(); }
  void OnWritten() override {}
  Gate hung_up;
};

class TlsServerTest : public ::testing::Test {
 protected:
  // Answers with the body that came, and as many more bytes as the path says.
  void StartServer() {
    StartServer([](const std::shared_ptr<HttpExchange>& exchange) {
      exchange->RunOnHandler([exchange] {
        const HttpRequest& request = exchange->request();
        HttpResponse response;
        response.body = request.body + std::string(std::stoul(request.path.substr(1)), 'x');
        exchange->Respond(std::move(response));
      });
    });
  }
  void StartServer(HttpServer::Handler handler) {
    if (context_ == nullptr) Use(authority_.Issue("first"));
    options_.tls_context = [this] {
      const std::lock_guard lock(mutex_);
      return context_;
    };
    auto server = HttpServer::Start(options_, std::move(handler));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  void Use(const TestPair& pair, const std::string& client_ca = "") {
    const auto checked =
        CheckTls({"cert", "key", client_ca.empty() ? "" : "ca"}, {pair.cert, pair.key, client_ca});
    ASSERT_TRUE(checked.ok()) << checked.status();
    const std::lock_guard lock(mutex_);
    context_ = checked->context;
  }
  const std::string& address() const { return server_->address(); }
  static std::string LastPost(const std::string& path, const std::string& body) {
    return HttpPost(path, body, {"connection: close"});
  }
  std::string Echo(const TlsTestClient::Options& options) {
    return TlsTestClient(address(), options).Ask(LastPost("/0", "echo")).body;
  }

  const TestAuthority authority_{"an authority"};
  std::mutex mutex_;
  std::shared_ptr<SSL_CTX> context_;
  HttpServerOptions options_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(TlsServerTest, AnswersInBothVersionsAndAgreesOnHttp) {
  StartServer();
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    TlsTestClient client(address(), {.ca = authority_.pem(), .version = version});
    ASSERT_TRUE(client.established());
    EXPECT_EQ(client.version(), version);
    EXPECT_EQ(client.alpn(), "http/1.1");
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(client.Send(HttpPost("/0", "hello")));
      EXPECT_NE(client.ReadUntil("hello").find("200 OK"), std::string::npos);
    }
  }
  EXPECT_TRUE(TlsTestClient(address(), {.alpn = "\x02h2\x08http/1.1"}).established());
  EXPECT_FALSE(TlsTestClient(address(), {.alpn = "\x02h2"}).established());
  EXPECT_FALSE(TlsTestClient(address(), {.ca = TestAuthority("another").pem()}).established());
}

// Longer than any buffer on the way, in both directions, to a client that reads slowly.
TEST_F(TlsServerTest, LosesNothingOfWhatIsLong) {
  StartServer();
  const std::string body(3'000'000, 'a');
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    TlsTestClient client(address(), {.version = version, .socket = {.receive_buffer_bytes = 4096}});
    const HttpReply reply = client.Ask(LastPost("/4000000", body));
    EXPECT_EQ(reply.status, 200);
    EXPECT_TRUE(reply.body == body + std::string(4'000'000, 'x')) << reply.body.size();
    EXPECT_TRUE(client.has_heard_goodbye());
  }
}

TEST_F(TlsServerTest, ClientsNeedACertificateOfTheAuthority) {
  Use(authority_.Issue("first"), authority_.pem());
  StartServer();
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    EXPECT_EQ(Echo({.version = version}), "");
    EXPECT_EQ(Echo({.pair = TestAuthority("an authority").Issue("eve"), .version = version}), "");
    EXPECT_EQ(Echo({.pair = authority_.Issue("alice"), .version = version}), "echo");
  }
}

TEST_F(TlsServerTest, NewConnectionsSeeANewCertificateAndOpenOnesLoseNothing) {
  StartServer();
  TlsTestClient open(address(), {});
  EXPECT_EQ(open.server_name(), "first");
  Use(authority_.Issue("second"));
  EXPECT_EQ(TlsTestClient(address(), {.ca = authority_.pem()}).server_name(), "second");
  EXPECT_EQ(open.Ask(LastPost("/0", "echo")).body, "echo");
}

TEST_F(TlsServerTest, WhatIsNoTlsIsClosedUnanswered) {
  StartServer();
  HttpTestClient plain(address());
  plain.Send(HttpGet("/0"));
  EXPECT_EQ(plain.ReadToEnd().find("HTTP/"), std::string::npos);
  EXPECT_EQ(Echo({}), "echo");
}

// One that is being computed keeps no connection from its answer.
TEST_F(TlsServerTest, HandshakesKeepNoIoThread) {
  static Gate* begun;
  static Gate* goes_on;
  static std::atomic<bool> waits;
  Gate first_gate, second_gate;
  begun = &first_gate;
  goes_on = &second_gate;
  waits = false;
  Use(authority_.Issue("first"));
  SSL_CTX_set_client_hello_cb(
      context_.get(),
      [](SSL*, int*, void*) {
        if (waits) {
          begun->Open();
          goes_on->Wait();
        }
        return SSL_CLIENT_HELLO_SUCCESS;
      },
      nullptr);
  options_.io_threads = 1;
  StartServer();
  TlsTestClient open(address(), {});
  waits = true;
  std::thread other([this] { EXPECT_EQ(Echo({}), "echo"); });
  begun->Wait();
  EXPECT_EQ(open.Ask(LastPost("/0", "echo")).body, "echo");
  goes_on->Open();
  other.join();
}

TEST_F(TlsServerTest, OfTooManyHandshakesTheOldestOfWhoeverHasMostEnds) {
  options_.limits.max_handshakes = 4;
  StartServer();
  HttpTestClient of_another(address(), {.from = "127.0.0.3"});
  std::vector<std::unique_ptr<HttpTestClient>> silent;
  for (int i = 0; i < 5; ++i) {
    silent.push_back(
        std::make_unique<HttpTestClient>(address(), HttpTestClient::Options{.from = "127.0.0.2"}));
  }
  EXPECT_EQ(silent[0]->ReadToEnd(), "");
  EXPECT_EQ(silent[1]->ReadToEnd(), "");
  EXPECT_EQ(Echo({}), "echo");
  EXPECT_EQ(silent[2]->ReadToEnd(), "");
  // Nobody has hung up on those that are left.
  for (HttpTestClient* client : {&of_another, silent[4].get()}) {
    char byte = 0;
    EXPECT_EQ(recv(client->fd(), &byte, 1, MSG_DONTWAIT), -1);
  }
}

TEST_F(TlsServerTest, AHandshakeHasATime) {
  options_.limits.handshake_timeout_ms = 30;
  StartServer();
  HttpTestClient silent(address());
  EXPECT_EQ(silent.ReadToEnd(), "");
  options_.limits.handshake_timeout_ms = 60'000;
  options_.limits.read_timeout_ms = 30;
  StartServer();
  EXPECT_EQ(HttpTestClient(address()).ReadToEnd(), "");
}

TEST_F(TlsServerTest, AServerThatStopsWaitsForNoHandshake) {
  StartServer();
  HttpTestClient silent(address());
  TlsTestClient idle(address(), {});
  ASSERT_TRUE(idle.established());
  server_->Stop();
  EXPECT_EQ(silent.ReadToEnd(), "");
  EXPECT_EQ(idle.ReadToEnd(), "");
}

TEST_F(TlsServerTest, AClientThatSaysItSendsNoMoreHasHungUp) {
  const auto listener = std::make_shared<HungUpListener>();
  std::shared_ptr<HttpExchange> held;
  StartServer([&](const std::shared_ptr<HttpExchange>& exchange) {
    held = exchange;
    exchange->Listen(listener);
    exchange->StartStream({});
    exchange->Write("begun");
  });
  TlsTestClient client(address(), {});
  ASSERT_TRUE(client.Send(HttpGet("/0")));
  client.ReadUntil("begun");
  client.ShutdownSend();
  listener->hung_up.Wait();
}

// ---- the socket alone ---------------------------------------------------------------------------

class MemorySocket final : public ByteSocket {
 public:
  struct Bytes {
    std::string to_server, to_client;
    int waits = 0;
  };
  explicit MemorySocket(Bytes* bytes) : bytes_(bytes) {}

  const std::string& peer() const override { return peer_; }
  Progress Read(std::span<char> room) override {
    const size_t count = bytes_->to_server.copy(room.data(), room.size());
    bytes_->to_server.erase(0, count);
    return {count, count > 0 ? State::kOpen : State::kLater};
  }
  Progress Write(std::span<const std::string_view> texts) override {
    bytes_->to_client += texts[0];
    return {texts[0].size(), State::kOpen};
  }
  void WhenReadable(std::function<void()>) override { ++bytes_->waits; }
  void WhenWritable(std::function<void()>) override {}
  bool HasHungUp() override { return false; }
  void ShutdownSend() override {}
  void Close() override {}

 private:
  Bytes* const bytes_;
  const std::string peer_ = "127.0.0.1";
};

class CountingThread final : public ConnectionThread {
 public:
  bool Post(std::function<void()>) override { return ++posted > 0; }
  bool is_current() const override { return true; }
  int64_t NowNs() const override { return 0; }
  int posted = 0;
};

// No byte of the socket below announces what is already decrypted.
TEST(TlsSocketTest, TheRestOfARecordIsReadWithoutWaiting) {
  const TestPair pair = TestAuthority("an authority").Issue("first");
  const auto checked = CheckTls({"cert", "key", ""}, {pair.cert, pair.key, ""});
  ASSERT_TRUE(checked.ok());
  MemorySocket::Bytes bytes;
  const auto thread = std::make_shared<CountingThread>();
  TlsSocket socket(checked->context.get(), std::make_unique<MemorySocket>(&bytes), thread);
  const std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
  const std::unique_ptr<SSL, void (*)(SSL*)> client(SSL_new(context.get()), SSL_free);
  SSL_set_bio(client.get(), BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
  const auto send = [&] {
    char sent[4096];
    const int count = BIO_read(SSL_get_wbio(client.get()), sent, sizeof sent);
    if (count > 0) bytes.to_server.append(sent, static_cast<size_t>(count));
  };
  for (int i = 0; i < 4; ++i) {
    SSL_connect(client.get());
    send();
    socket.Handshake();
    BIO_write(SSL_get_rbio(client.get()), bytes.to_client.data(), static_cast<int>(bytes.to_client.size()));
    bytes.to_client.clear();
  }
  ASSERT_EQ(SSL_write(client.get(), std::string(1000, 'a').data(), 1000), 1000);
  send();

  char room[600];
  EXPECT_EQ(socket.Read(room).bytes, 600u);
  socket.WhenReadable([] {});
  EXPECT_EQ(thread->posted, 1);
  EXPECT_EQ(bytes.waits, 0);
  EXPECT_EQ(socket.Read(room).bytes, 400u);
  socket.WhenReadable([] {});
  EXPECT_EQ(thread->posted, 1);
  EXPECT_EQ(bytes.waits, 1);
}

}  // namespace
}  // namespace tramontane

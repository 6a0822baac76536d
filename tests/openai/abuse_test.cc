// Clients that do everything wrong. After each of them the next honest request is answered and no call is
// left open.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>

#include "server/api/gateway.h"
#include "tests/support/fake_inference_client.h"
#include "tests/support/http_test_client.h"
#include "tests/support/test_scale.h"
#include "tests/support/test_seed.h"

namespace tramontane {
namespace {

constexpr char kHonest[] = R"({"prompt": "honest", "max_tokens": 2})";
constexpr char kStream[] = R"({"prompt": "x", "max_tokens": 1000, "stream": true})";

class Abuse : public ::testing::Test {
 protected:
  Abuse() {
    GatewayOptions options;
    options.address = "127.0.0.1:0";
    options.limits.max_body_bytes = 1 << 20;
    // Calls of abusers go on until they are cancelled.
    client_.on_generate = [](FakeInferenceCall& call) {
      if (call.request().text() == "honest") return SayTokens(call, 2);
      call.Put(StartedEvent(1));
      call.Put(DeltaEvent(0, "text", 1));
    };
    auto started = Gateway::Start(options, client_);
    EXPECT_TRUE(started.ok()) << started.status();
    gateway_ = std::move(*started);
  }
  ~Abuse() override {
    const HttpReply reply = Fetch(gateway_->address(), HttpPost("/v1/completions", kHonest));
    EXPECT_EQ(reply.status, 200);
    EXPECT_NE(reply.body.find("\"text\":\"t0 t1 \""), std::string::npos) << reply.body;
    // What was read before a hang-up may still be on its way to a call: nothing is open in the end.
    EXPECT_TRUE(gateway_->Drain(int64_t{60} * 1'000'000'000));
    gateway_->Stop();
    EXPECT_EQ(client_.open_calls(), 0);
  }

  FakeInferenceClient client_;
  std::unique_ptr<Gateway> gateway_;
};

TEST_F(Abuse, RequestsCutAnywhere) {
  const std::string request = HttpPost("/v1/completions", kStream);
  for (size_t length = 0; length <= request.size(); ++length) {
    HttpTestClient client(gateway_->address());
    client.Send(request.substr(0, length));
    if (length % 2 == 0) client.Reset();
  }
}

TEST_F(Abuse, AHeaderOf100Megabytes) {
  HttpTestClient client(gateway_->address());
  client.Send("GET /health HTTP/1.1\r\nHost: localhost\r\nA: ");
  const std::string megabyte(1 << 20, 'a');
  int64_t sent = 0;
  while (sent < 100 && client.Send(megabyte)) ++sent;
  EXPECT_EQ(client.Read().status, 431);
}

TEST_F(Abuse, ABodyWithoutEnd) {
  HttpTestClient client(gateway_->address());
  client.Send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
  const std::string chunk = "10000\r\n" + std::string(0x10000, ' ') + "\r\n";
  for (int i = 0; i < 1000 && client.Send(chunk); ++i) {
  }
  EXPECT_EQ(client.Read().status, 413);
}

TEST_F(Abuse, ABodyThatIsOnlyAnnounced) {
  HttpTestClient client(gateway_->address());
  client.Send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 18446744073709551615\r\n\r\n");
  const int status = client.Read().status;
  EXPECT_TRUE(status == 413 || status == 400) << status;
}

TEST_F(Abuse, HeadersByTheThousand) {
  std::string request = "GET /health HTTP/1.1\r\nHost: localhost\r\n";
  for (int i = 0; i < 100'000; ++i) request += "a:b\r\n";
  HttpTestClient client(gateway_->address());
  client.Send(request + "\r\n");
  EXPECT_EQ(client.Read().status, 431);
}

TEST_F(Abuse, PipelinesThatNobodyReads) {
  std::string requests;
  for (int i = 0; i < 20'000; ++i) requests += HttpGet("/health");
  for (int i = 0; i < 10; ++i) {
    HttpTestClient client(gateway_->address());
    std::thread sender([&] { client.Send(requests); });
    client.ReadUntil("200 OK");
    client.ShutdownSend();
    sender.join();
  }
}

TEST_F(Abuse, PipelinedGenerationsAreMadeOneByOne) {
  {
    HttpTestClient client(gateway_->address());
    std::string requests;
    for (int i = 0; i < 100; ++i) requests += HttpPost("/v1/completions", kStream);
    client.Send(requests);
    client.ReadUntil("text");
    EXPECT_EQ(client_.calls_made(), 1u);
  }
  EXPECT_TRUE(client_.WaitForCall(0)->WaitUntilCancelled());
}

TEST_F(Abuse, ConnectAndHangUpTenThousandTimes) {
  const std::string request = HttpPost("/v1/completions", kStream);
  const int64_t times = ScaledCount(10'000, 500);
  for (int64_t i = 0; i < times; ++i) {
    HttpTestClient client(gateway_->address());
    ASSERT_TRUE(client.connected()) << i;
    switch (i % 5) {
      case 0:
        break;  // not a byte
      case 1:
        client.Send(request.substr(0, 20));
        break;
      case 2:
        client.Send(request.substr(0, request.size() - 1));
        break;
      case 3:
        client.Send(request);
        break;
      case 4:
        client.Send(request);
        client.ReadUntil("text");
        break;
    }
    if (i % 3 != 0) client.Reset();  // the others close
  }
  EXPECT_GE(static_cast<int64_t>(client_.calls_made()), times / 5);
}

TEST_F(Abuse, BytesAtRandomAndRequestsWithBytesChanged) {
  const uint64_t seed = TestSeed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const std::string request = HttpPost("/v1/completions", kHonest);
  for (int64_t i = 0; i < ScaledCount(2000, 200); ++i) {
    std::string bytes = request;
    if (i % 4 == 0) {
      bytes.resize(random() % 500);
      for (char& c : bytes) c = static_cast<char>(random());
    } else {
      for (uint64_t changes = 1 + random() % 4; changes > 0; --changes) {
        bytes[random() % bytes.size()] = static_cast<char>(random());
      }
    }
    HttpTestClient client(gateway_->address());
    client.Send(bytes);
    client.ShutdownSend();
    client.ReadToEnd();
  }
}

}  // namespace
}  // namespace tramontane

// The separate gateway in front of servers that are none: what its clients get, and what it tries.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/api/gateway.h"
#include "server/remote/remote_client.h"
#include "tests/server/call_reader.h"
#include "tests/server/fake_backend.h"
#include "tests/server/scripted_server.h"
#include "tests/support/http_test_client.h"
#include "tests/support/wait_for.h"

namespace tramontane {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kLongMs = 60'000;

std::string StartedBytes() {
  v1::GenerateResponse event;
  event.mutable_started()->set_model("m");
  event.mutable_started()->set_prompt_tokens(1);
  return event.SerializeAsString();
}

std::string DeltaBytes(int32_t choice, const std::string& text, int64_t tokens = 1) {
  v1::GenerateResponse event;
  event.mutable_delta()->set_choice(choice);
  event.mutable_delta()->set_text(text);
  event.mutable_delta()->set_completion_tokens(tokens);
  return event.SerializeAsString();
}

std::string FinishedBytes() {
  v1::GenerateResponse event;
  event.mutable_finished()->set_reason(v1::FINISH_REASON_STOP);
  event.mutable_finished()->mutable_usage()->set_prompt_tokens(1);
  event.mutable_finished()->mutable_usage()->set_completion_tokens(1);
  return event.SerializeAsString();
}

FakeBackend::Answer ModelAnswer() {
  v1::GetModelResponse model;
  model.set_name("m");
  model.add_names("m");
  model.set_context(100);
  model.set_vocab_size(100);
  return {.messages = {model.SerializeAsString()}};
}

constexpr char kStream[] = R"({"prompt": "a", "max_tokens": 5, "stream": true})";
constexpr char kWhole[] = R"({"prompt": "a", "max_tokens": 5})";

class LyingBackend : public ::testing::Test {
 protected:
  void SetUp() override {
    QuietLogs();
    ASSERT_TRUE(client_.WaitUntilReady(kLongMs));
    GatewayOptions options;
    options.address = "127.0.0.1:0";
    auto gateway = Gateway::Start(options, client_);
    ASSERT_TRUE(gateway.ok()) << gateway.status();
    gateway_ = std::move(*gateway);
  }
  HttpReply Post(const std::string& path, const std::string& body) {
    return Fetch(gateway_->address(), HttpPost(path, body));
  }
  // In all of what its clients are told.
  void ExpectUnnamed(const std::string& text) {
    EXPECT_THAT(text, Not(HasSubstr(backend_.address())));
    EXPECT_THAT(text, Not(HasSubstr("127.0.0.1")));
  }
  void ExpectBadGateway(const HttpReply& reply) {
    EXPECT_EQ(reply.status, 502) << reply.body;
    EXPECT_THAT(reply.body, HasSubstr(R"("code":"bad_gateway")"));
    ExpectUnnamed(reply.body);
  }

  FakeBackend::Answer says_;  // to all but GetLoad
  FakeBackend backend_{[this](const std::string& method, const std::string&) {
    return method == "GetLoad" ? FakeBackend::Answer{.messages = {""}} : says_;
  }};
  RemoteClient client_{{.backends = {backend_.address()}}};
  std::unique_ptr<Gateway> gateway_;
};

TEST_F(LyingBackend, WhoSaysTheTruthIsBelieved) {
  says_.messages = {StartedBytes(), DeltaBytes(0, "hi"), FinishedBytes()};
  const HttpReply whole = Post("/v1/completions", kWhole);
  EXPECT_EQ(whole.status, 200) << whole.body;
  EXPECT_THAT(whole.body, HasSubstr(R"("text":"hi")"));
  EXPECT_THAT(Post("/v1/completions", kStream).body, HasSubstr("data: [DONE]"));
}

// Each is told as a fault, whole and streamed, and the gateway lives.
TEST_F(LyingBackend, AnEventThatIsNoneEndsTheAnswer) {
  const std::vector<std::vector<std::string>> lies = {
      {StartedBytes(), DeltaBytes(7, "x"), FinishedBytes()},
      {StartedBytes(), DeltaBytes(-1, "x"), FinishedBytes()},
      {StartedBytes(), DeltaBytes(0, "x")},  // torn
      {},
      {StartedBytes(), DeltaBytes(0, "\xff\xfe"), FinishedBytes()},  // not UTF-8
      {StartedBytes(), "\xff\xff\xff", FinishedBytes()},
      {StartedBytes(), DeltaBytes(0, std::string(5 << 20, 'x')), FinishedBytes()},
  };
  for (size_t i = 0; i < lies.size(); ++i) {
    SCOPED_TRACE(i);
    says_.messages = lies[i];
    ExpectBadGateway(Post("/v1/completions", kWhole));
    const HttpReply stream = Post("/v1/completions", kStream);
    if (stream.status == 200) {
      EXPECT_THAT(stream.body, HasSubstr(R"("code":"bad_gateway"}})"
                                         "\n\ndata: [DONE]\n\n"));
      EXPECT_THAT(stream.body, Not(HasSubstr(R"("finish_reason":"stop")")));
      ExpectUnnamed(stream.body);
    } else {
      ExpectBadGateway(stream);
    }
  }
}

TEST_F(LyingBackend, WhoGoesOnForeverIsCutOff) {
  for (const std::string& last :
       {DeltaBytes(0, std::string(60'000, 'x')), DeltaBytes(0, ""), std::string("\xff")}) {
    const int64_t before = backend_.cancelled();
    says_ = {.messages = {StartedBytes(), last}, .endless = true};
    ExpectBadGateway(Post("/v1/completions", kWhole));
    WaitFor([&] { return backend_.cancelled() > before; });
  }
}

// gRPC alone would wait for more: it does not say that a message was none.
TEST_F(LyingBackend, WhoIsSilentBehindALieIsNotWaitedFor) {
  says_ = {.messages = {StartedBytes(), "\xff\xff\xff"}, .hangs = true};
  ExpectBadGateway(Post("/v1/completions", kWhole));
}

TEST_F(LyingBackend, AnAnswerThatIsNoneIsNotGivenOn) {
  v1::TokenizeResponse tokens;
  tokens.mutable_token_ids()->Resize(2 << 20, 7);
  says_.messages = {tokens.SerializeAsString()};  // short on the wire, long when it is parsed
  ExpectBadGateway(Post("/tokenize", R"({"prompt": "hi"})"));
  says_.messages = {"\xff\xff"};
  ExpectBadGateway(Post("/detokenize", R"({"tokens": [1]})"));
  says_.messages = {};
  ExpectBadGateway(Post("/detokenize", R"({"tokens": [1]})"));
  says_.messages = {""};
  ExpectBadGateway(Fetch(gateway_->address(), HttpGet("/v1/models")));
  says_.messages = {std::string(5 << 20, '\0')};
  ExpectBadGateway(Fetch(gateway_->address(), HttpGet("/v1/models")));
  says_ = ModelAnswer();
  EXPECT_EQ(Fetch(gateway_->address(), HttpGet("/v1/models")).status, 200);
}

TEST_F(LyingBackend, WhatGrpcSaysOfAServerIsNotTold) {
  says_.bare_status = "failed to connect to " + backend_.address();
  for (const char* body : {kWhole, kStream}) {
    const HttpReply lost = Post("/v1/completions", body);
    EXPECT_EQ(lost.status, 503);
    EXPECT_THAT(lost.body, HasSubstr(R"("code":"backend_lost")"));
    ExpectUnnamed(lost.body);
  }
  says_.messages = {StartedBytes(), DeltaBytes(0, "hi")};
  const HttpReply torn = Post("/v1/completions", kStream);
  EXPECT_THAT(torn.body, HasSubstr(R"("code":"backend_lost")"));
  ExpectUnnamed(torn.body);
}

TEST_F(LyingBackend, WhenToComeAgainIsPassedOn) {
  says_.status = BusyError("KEY_TOKENS", "later");
  says_.status.retry_after_ms = 1234;
  for (const char* body : {kWhole, kStream}) {
    const HttpReply reply = Post("/v1/completions", body);
    EXPECT_EQ(reply.status, 429);
    EXPECT_THAT(reply.body, HasSubstr(R"("code":"key_tokens")"));
    EXPECT_EQ(reply.Header("retry-after"), "2");
    EXPECT_EQ(reply.Header("retry-after-ms"), "1234");
  }
}

TEST_F(LyingBackend, ADelayOfYearsIsAnHour) {
  says_.status = BusyError("QUEUE_FULL", "later");
  says_.status.retry_after_ms = INT64_MAX;
  const HttpReply reply = Post("/v1/completions", kWhole);
  EXPECT_EQ(reply.status, 429);
  EXPECT_EQ(reply.Header("retry-after"), "3601");
}

// ---- several ------------------------------------------------------------------------------------

class Fleet : public ::testing::Test {
 protected:
  static constexpr size_t kServers = 4;

  void SetUp() override {
    QuietLogs();
    RemoteClientOptions options;
    options.poll_interval_ms = 20;
    for (size_t i = 0; i < kServers; ++i) {
      backends_.push_back(
          std::make_unique<FakeBackend>([this, i](const std::string& method, const std::string&) {
            if (method == "GetLoad") return FakeBackend::Answer{.messages = {loads_[i].SerializeAsString()}};
            return FakeBackend::Answer{.status = refusal_};
          }));
      options.backends.push_back(backends_.back()->address());
    }
    client_ = std::make_unique<RemoteClient>(options);
    WaitUntilUp(*client_);
    options_ = options;
  }
  static void WaitUntilUp(const RemoteClient& client) {
    WaitFor([&client] {
      const std::vector<BackendState> states = client.backends();
      return std::all_of(states.begin(), states.end(), [](const auto& state) { return state.up; });
    });
  }
  // How many servers one request asks.
  int64_t Tries() { return Tries(*client_); }
  int64_t Tries(RemoteClient& client) {
    const int64_t before = Calls();
    v1::GenerateRequest request;
    request.set_text("t");
    CallReader call(client, request);
    EXPECT_EQ(call.ReadAll().reason, refusal_.reason);
    return Calls() - before;
  }
  int64_t Calls() const {
    int64_t calls = 0;
    for (const auto& backend : backends_) calls += backend->calls("Generate");
    return calls;
  }
  // Until the gateway has heard from each.
  void WaitForLoads() {
    std::vector<int64_t> before;
    for (const auto& backend : backends_) before.push_back(backend->calls("GetLoad"));
    for (size_t i = 0; i < kServers; ++i) {
      WaitFor([&] { return backends_[i]->calls("GetLoad") >= before[i] + 2; });  // the one before is answered
    }
  }

  std::vector<v1::GetLoadResponse> loads_{kServers};  // before a server is asked
  RpcError refusal_;
  RemoteClientOptions options_;
  std::vector<std::unique_ptr<FakeBackend>> backends_;
  std::unique_ptr<RemoteClient> client_;
};

TEST_F(Fleet, WhatAnotherServerMendsIsTriedAtEach) {
  refusal_ = UnavailableError("DRAINING", "no more");
  EXPECT_EQ(Tries(), 4);
  refusal_ = UnavailableError("LOADING", "not yet");
  EXPECT_EQ(Tries(), 4);
}

TEST_F(Fleet, WhatTheRequestIsIsTriedOnce) {
  refusal_ = ToOutcome(ResourceExhausted("it took too much"));
  EXPECT_EQ(Tries(), 1);
  refusal_ = ToRpcError(Internal("a fault of ours"));
  EXPECT_EQ(Tries(), 1);
}

TEST_F(Fleet, RoomIsLookedForOnceMoreAtAServerThatHasNotRefused) {
  refusal_ = BusyError("QUEUE_FULL", "come again");
  options_.poll_interval_ms = kLongMs;
  RemoteClient hears_nothing(options_);
  WaitUntilUp(hears_nothing);
  EXPECT_EQ(Tries(hears_nothing), 2);
  EXPECT_EQ(Tries(hears_nothing), 2) << "at the others";
  EXPECT_EQ(Tries(hears_nothing), 1);
}

TEST_F(Fleet, AServerThatTellsOfRoomHasSomeAgain) {
  refusal_ = BusyError("QUEUE_FULL", "come again");
  for (int i = 0; i < 2; ++i) Tries();
  WaitForLoads();
  EXPECT_EQ(Tries(), 2);
}

class OddLoads : public Fleet {
 protected:
  OddLoads() {
    loads_[0].set_open_streams(3);
    loads_[1].set_open_streams(INT64_MAX);
  }
};

TEST_F(OddLoads, ALoadThatIsNoneIsNotBelieved) {
  WaitForLoads();
  EXPECT_EQ(client_->backends()[0].others_calls, 3);
  EXPECT_EQ(client_->backends()[1].others_calls, 0);
}

class FullFleet : public Fleet {
 protected:
  FullFleet() {
    for (v1::GetLoadResponse& load : loads_) {
      load.set_waiting_requests(1);
      load.set_max_waiting_requests(1);
    }
  }
};

TEST_F(FullFleet, OfAFullFleetOneServerIsAsked) {
  refusal_ = BusyError("QUEUE_FULL", "come again");
  WaitForLoads();
  for (int i = 0; i < 10; ++i) EXPECT_EQ(Tries(), 1);
}

class OneWithRoom : public FullFleet {
 protected:
  OneWithRoom() {
    loads_[2].set_waiting_requests(0);
    loads_[2].set_open_streams(7);  // and yet it is the busiest
  }
};

TEST_F(OneWithRoom, ItIsAskedAndNoOther) {
  refusal_ = BusyError("QUEUE_FULL", "come again");
  WaitForLoads();
  EXPECT_EQ(Tries(), 1);
  EXPECT_EQ(backends_[2]->calls("Generate"), 1);
}

}  // namespace
}  // namespace tramontane

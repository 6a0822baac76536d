// From a request to the calls of an InferenceClient and back, through real sockets.
#include "server/api/shared/generation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/api/openai/dialect.h"
#include "server/api/shared/api_error.h"
#include "server/api/shared/request_timeout.h"
#include "server/http/server.h"
#include "tests/support/fake_inference_client.h"
#include "tests/support/http_test_client.h"

namespace tramontane {
namespace {

// What a writer of a test looks at.
struct WriterTest {
  std::atomic<std::thread::id> thread;  // that it was told events on
  std::atomic<bool> waits{false};       // OnEvents, until it is false
  std::atomic<int64_t> held_bytes{0};
};

// The texts of its calls, each behind the call's index: "0:a 1:b ". The end is "end".
class TextWriter : public ResponseWriter {
 public:
  TextWriter(bool stream, WriterTest& test) : stream_(stream), test_(test) {}

  std::string OnEvents(size_t call, std::vector<v1::GenerateResponse> events) override {
    std::string text;
    test_.thread = std::this_thread::get_id();
    while (test_.waits) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    for (const auto& event : events) {
      if (event.delta().text() == "throw") throw std::runtime_error("not to be written");
      if (event.has_delta()) text += std::to_string(call) + ":" + event.delta().text() + " ";
    }
    body_ += text;
    return stream_ ? text : "";
  }
  std::string Finish() override { return stream_ ? "end" : body_ + "end"; }
  int64_t held_bytes() const override { return test_.held_bytes; }
  ApiError Explain(size_t call, const RpcError& error) const override {
    ApiError explained = ToApiError(error);
    explained.message = "call " + std::to_string(call) + ": " + explained.message;
    return explained;
  }
  std::string Fail(const ApiError& error) override { return "fault " + error.message; }

 private:
  const bool stream_;
  WriterTest& test_;
  std::string body_;
};

// POST /stream/N and /whole/N answer with the texts of N calls.
class GenerationTest : public ::testing::Test {
 protected:
  void StartServer() {
    auto server = HttpServer::Start(options_, [this](const std::shared_ptr<HttpExchange>& exchange) {
      exchange->RunOnHandler([this, exchange] { Answer(exchange); });
    });
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = std::move(*server);
    http_ = std::make_unique<HttpTestClient>(server_->address());
  }
  void Answer(const std::shared_ptr<HttpExchange>& exchange) {
    const std::string& path = exchange->request().path;
    GenerationPlan plan;
    plan.stream = path.starts_with("/stream");
    plan.requests.resize(static_cast<size_t>(std::stoi(path.substr(path.rfind('/') + 1))), request_);
    plan.room = room_;
    plan.writer = std::make_unique<TextWriter>(plan.stream, writer_);
    exchange->Post([this] { io_thread_ = std::this_thread::get_id(); });
    RunGeneration(client_, std::move(plan),
                  std::make_shared<GatewayExchange>(exchange, kOpenAi, [] { return HttpHeaders(); }));
  }
  void Post(const std::string& path, const std::vector<std::string>& headers = {}) {
    ASSERT_TRUE(http_->Send(HttpPost(path, "{}", headers)));
  }
  // Waits for call `n` of the test and lets it say `texts`.
  std::shared_ptr<FakeInferenceCall> Say(size_t n, const std::vector<std::string>& texts) {
    auto call = client_.WaitForCall(n);
    for (const std::string& text : texts) call->Put(DeltaEvent(0, text, ++tokens_));
    return call;
  }

  HttpServerOptions options_;
  v1::GenerateRequest request_;  // each of a plan
  AnswerRoomOptions room_;
  WriterTest writer_;
  std::atomic<std::thread::id> io_thread_;
  FakeInferenceClient client_;
  std::unique_ptr<HttpServer> server_;
  std::unique_ptr<HttpTestClient> http_;
  int64_t tokens_ = 0;
};

RpcError Fault(StatusCode code) { return ToRpcError(Status(code, "as it happens")); }

TEST_F(GenerationTest, ARequestsTimeIsItsCallsDeadline) {
  StartServer();
  const auto before = std::chrono::steady_clock::now();
  Post("/whole/1", {"grpc-timeout: 2H"});
  const auto call = Say(0, {"a"});
  ASSERT_TRUE(call->options().deadline.has_value());
  EXPECT_GE(*call->options().deadline, before + std::chrono::hours(2));
  EXPECT_LE(*call->options().deadline, std::chrono::steady_clock::now() + std::chrono::hours(2));
  call->End(Fault(StatusCode::kDeadlineExceeded));
  EXPECT_EQ(http_->Read().status, 504);
}

TEST(ParseTimeout, ReadsWhatGrpcReads) {
  using std::chrono::nanoseconds;
  EXPECT_EQ(ParseTimeout("1500m"), nanoseconds(1'500'000'000));
  EXPECT_EQ(ParseTimeout("99999999S"), nanoseconds(std::chrono::seconds(99'999'999)));
  EXPECT_EQ(ParseTimeout("0n"), nanoseconds(0));
  EXPECT_GT(*ParseTimeout("99999999H"), std::chrono::hours(24 * 365));
  for (const char* wrong : {"", "S", "1", "1s", "-1S", "+1S", "1.5S", " 1S", "1 S", "123456789S", "1SS"}) {
    EXPECT_FALSE(ParseTimeout(wrong)) << wrong;
  }
}

TEST_F(GenerationTest, AWholeAnswerComesWhenItsCallHasEnded) {
  StartServer();
  Post("/whole/1", {"X-Request-Id: mine"});
  const auto call = Say(0, {"a", "b"});
  EXPECT_EQ(call->options().correlation_id, "mine");
  call->End();
  const HttpReply reply = http_->Read();
  EXPECT_EQ(reply.status, 200);
  EXPECT_TRUE(reply.body == "0:a 0:b end" || reply.body == "0:ab end") << reply.body;
  EXPECT_EQ(reply.Header("content-type"), "application/json");
  EXPECT_FALSE(call->cancelled());
}

TEST_F(GenerationTest, AStreamSendsWhatItHasAtOnce) {
  StartServer();
  Post("/stream/1");
  const auto call = Say(0, {"a"});
  const std::string head = http_->ReadUntil("0:a ");
  EXPECT_NE(head.find("content-type: text/event-stream; charset=utf-8\r\n"), std::string::npos) << head;
  EXPECT_NE(head.find("cache-control: no-cache\r\n"), std::string::npos);
  EXPECT_NE(head.find("x-accel-buffering: no\r\n"), std::string::npos);
  call->Put(DeltaEvent(0, "b", 2));
  http_->ReadUntil("0:b ");
  call->End();
  http_->ReadUntil("end\r\n0\r\n\r\n");
}

TEST_F(GenerationTest, WhatACallSaysInsideGenerateIsNotLost) {
  client_.on_generate = [](FakeInferenceCall& call) { SayTokens(call, 20); };
  StartServer();
  for (const char* path : {"/stream/1", "/whole/1"}) {
    Post(path);
    EXPECT_EQ(http_->Read().body, "0:" + TokensText(20) + " end") << path;
  }
}

TEST_F(GenerationTest, ACallThatIsReadyOnceTooOftenEndsItsAnswerOnce) {
  client_.on_generate = [](FakeInferenceCall& call) {
    SayTokens(call, 20);
    call.SayReady();
  };
  StartServer();
  for (const char* path : {"/stream/1", "/whole/1"}) {
    Post(path);
    EXPECT_EQ(http_->Read().body, "0:" + TokensText(20) + " end") << path;
  }
}

TEST_F(GenerationTest, SeveralCallsShareAnAnswer) {
  StartServer();
  Post("/stream/3");
  Say(1, {"x"});
  http_->ReadUntil("1:x ");
  Say(0, {"y"})->End();
  http_->ReadUntil("0:y ");
  Say(1, {})->End();
  Say(2, {"z"})->End();
  EXPECT_EQ(http_->ReadUntil("0\r\n\r\n").find("fault"), std::string::npos);
}

// ---- faults -------------------------------------------------------------------------------------

TEST_F(GenerationTest, ARefusedCallGivesItsStatusAndEndsTheOthers) {
  client_.refuse = [n = 0](const v1::GenerateRequest&) mutable {
    return ++n == 3 ? UnavailableError("DRAINING", "come again") : RpcError{};
  };
  StartServer();
  Post("/stream/5");
  const HttpReply reply = http_->Read();
  EXPECT_EQ(reply.status, 503);
  EXPECT_NE(reply.body.find("call 2: come again"), std::string::npos) << reply.body;
  EXPECT_EQ(client_.calls_made(), 2u);
  EXPECT_TRUE(client_.WaitForCall(0)->WaitUntilCancelled());
  EXPECT_TRUE(client_.WaitForCall(1)->WaitUntilCancelled());
}

TEST_F(GenerationTest, ACallThatFailsBeforeItsFirstEventGivesItsStatusToAStreamToo) {
  StartServer();
  Post("/stream/2");
  client_.WaitForCall(1)->End(Fault(StatusCode::kInvalidArgument));
  const HttpReply reply = http_->Read();
  EXPECT_EQ(reply.status, 400);
  EXPECT_NE(reply.body.find("call 1: as it happens"), std::string::npos) << reply.body;
  EXPECT_TRUE(client_.WaitForCall(0)->WaitUntilCancelled());
}

TEST_F(GenerationTest, ACallThatFailsLaterEndsItsStreamWithTheFault) {
  StartServer();
  Post("/stream/2");
  const auto call = Say(0, {"a"});
  http_->ReadUntil("0:a ");
  call->Put(DeltaEvent(0, "b", 2));
  call->End(Fault(StatusCode::kUnavailable));
  const std::string rest = http_->ReadUntil("0\r\n\r\n");
  EXPECT_NE(rest.find("0:b "), std::string::npos) << "what came before the fault is sent: " << rest;
  EXPECT_NE(rest.find("fault call 0: as it happens"), std::string::npos) << rest;
  EXPECT_TRUE(client_.WaitForCall(1)->WaitUntilCancelled());
  Post("/whole/1");
  client_.WaitForCall(2)->End();
  EXPECT_EQ(http_->Read().status, 200) << "the connection goes on";
}

TEST_F(GenerationTest, AWriterThatThrowsEndsTheRequestAndNothingElse) {
  StartServer();
  Post("/whole/1");
  EXPECT_TRUE(Say(0, {"throw"})->WaitUntilCancelled());
  EXPECT_EQ(http_->Read().status, 500);
  Post("/stream/1");
  const auto call = Say(1, {"a"});
  http_->ReadUntil("0:a ");
  call->Put(DeltaEvent(0, "throw", 2));
  EXPECT_TRUE(call->WaitUntilCancelled());
  EXPECT_NE(http_->ReadUntil("0\r\n\r\n").find("fault"), std::string::npos);
}

// ---- many calls ---------------------------------------------------------------------------------

RpcError Full() { return BusyError("QUEUE_FULL", "come again"); }

TEST_F(GenerationTest, WithoutRoomForTheFirstCallTheAnswerIsThatRefusal) {
  client_.refuse = [](const v1::GenerateRequest&) { return Full(); };
  StartServer();
  for (const char* path : {"/stream/5", "/whole/1"}) {
    Post(path);
    const HttpReply reply = http_->Read();
    EXPECT_EQ(reply.status, 429) << path;
    EXPECT_NE(reply.body.find("call 0: come again"), std::string::npos) << reply.body;
    EXPECT_EQ(reply.Header("retry-after-ms"), "500");
    EXPECT_EQ(reply.Header("retry-after"), "1") << "never 0: that is at once";
  }
  EXPECT_EQ(client_.calls_made(), 0u);
}

TEST_F(GenerationTest, WhereEveryCallIsAcceptedFirstAndThenFindsNoRoomTheAnswerIsThatRefusal) {
  client_.on_generate = [](FakeInferenceCall& call) { call.End(Full()); };
  StartServer();
  Post("/whole/5");
  EXPECT_EQ(http_->Read().status, 429);
}

TEST_F(GenerationTest, ACallThatWouldTakeTooMuchAgainIsNotTriedAgain) {
  StartServer();
  Post("/whole/2");
  Say(0, {"a"});
  client_.WaitForCall(1)->End(ToOutcome(ResourceExhausted("it took too much")));
  const HttpReply reply = http_->Read();
  EXPECT_EQ(reply.status, 429);
  EXPECT_EQ(reply.Header("x-should-retry"), "false");
  EXPECT_EQ(client_.calls_made(), 2u);
}

TEST_F(GenerationTest, OnlySoManyCallsWaitForTheirFirstEventAtOnce) {
  StartServer();
  Post("/whole/" + std::to_string(kMaxWaitingCalls + 2));
  ASSERT_NE(client_.WaitForCall(kMaxWaitingCalls - 1), nullptr);
  EXPECT_EQ(client_.calls_made(), kMaxWaitingCalls);
  Say(0, {"a"});  // one place is free
  ASSERT_NE(client_.WaitForCall(kMaxWaitingCalls), nullptr);
  Say(1, {})->End();
  ASSERT_NE(client_.WaitForCall(kMaxWaitingCalls + 1), nullptr);
  Say(0, {})->End();
  for (size_t i = 2; i < kMaxWaitingCalls + 2; ++i) client_.WaitForCall(i)->End();
  EXPECT_EQ(http_->Read().body, "0:a end");
}

// Room for `places` calls that have not ended, whoever asks.
std::function<RpcError(const v1::GenerateRequest&)> RoomFor(int64_t places,
                                                            const FakeInferenceClient& client) {
  return [&client, places](const v1::GenerateRequest&) {
    return client.open_calls() < places ? RpcError{} : Full();
  };
}

TEST_F(GenerationTest, CallsThatFindNoRoomAreMadeWhenOthersOfTheirAnswerAreOver) {
  client_.refuse = RoomFor(2, client_);
  StartServer();
  Post("/whole/6");
  for (size_t i = 0; i < 6; ++i) {
    ASSERT_NE(client_.WaitForCall(i), nullptr) << i;
    EXPECT_LE(client_.open_calls(), 2);
    Say(i, {"x"})->End();
  }
  EXPECT_EQ(http_->Read().body, "0:x 1:x 2:x 3:x 4:x 5:x end");
  EXPECT_FALSE(client_.WaitForCall(0)->options().continues);
  for (size_t i = 1; i < 6; ++i) EXPECT_TRUE(client_.WaitForCall(i)->options().continues) << i;
}

TEST_F(GenerationTest, ACallThatFindsNoRoomAfterItWasMadeIsMadeAgain) {
  StartServer();
  Post("/whole/3");
  client_.WaitForCall(2)->End(Full());
  client_.WaitForCall(1)->End(Full());
  Say(0, {"a"})->End();
  Say(3, {"b"})->End();  // the second, then the third
  Say(4, {"c"})->End();
  EXPECT_EQ(http_->Read().body, "0:a 1:b 2:c end");
}

TEST_F(GenerationTest, WhereStrangersTakeEveryPlaceTheRestWaitsForTheirs) {
  options_.limits.silence_ms = 20;  // looks around every 5 ms
  std::atomic<bool> is_full{false};
  std::atomic<int> refusals{0};
  client_.refuse = [&](const v1::GenerateRequest&) {
    if (!is_full) return RpcError{};
    ++refusals;
    return Full();
  };
  client_.on_generate = [&](FakeInferenceCall&) { is_full = true; };
  StartServer();
  Post("/whole/2");
  Say(0, {"a"})->End();
  // At first, when its own call is under way and when that is over: after those only the clock can be the
  // reason.
  constexpr int kOfItsOwn = 3;
  while (refusals < kOfItsOwn + 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  is_full = false;
  Say(1, {"b"})->End();
  EXPECT_EQ(http_->Read().body, "0:a 1:b end");
}

TEST_F(GenerationTest, AHangUpEndsWhatWaitsForRoomToo) {
  client_.refuse = RoomFor(1, client_);
  StartServer();
  Post("/whole/3");
  const auto call = client_.WaitForCall(0);
  http_->Close();
  EXPECT_TRUE(call->WaitUntilCancelled());
  call->End();
  EXPECT_EQ(client_.calls_made(), 1u);
}

// ---- hang-ups and slow readers ------------------------------------------------------------------

TEST_F(GenerationTest, AHangUpCancelsEveryCall) {
  for (const std::string path : {"/stream/3", "/whole/3"}) {
    for (const bool has_begun : {false, true}) {
      StartServer();
      const size_t first = client_.calls_made();
      Post(path);
      const auto call = client_.WaitForCall(first + 2);
      if (has_begun) call->Put(DeltaEvent(0, "a", 1));
      http_->Close();
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_TRUE(client_.WaitForCall(first + i)->WaitUntilCancelled()) << path << " begun: " << has_begun;
      }
    }
  }
}

TEST_F(GenerationTest, AHangUpWhileCallsAreMadeCancelsThemAll) {
  client_.on_generate = [this](FakeInferenceCall&) {
    if (client_.calls_made() == 2) {
      http_->Close();
      // The hang-up is heard before the last call is made.
      while (server_->open_exchanges() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  };
  StartServer();
  Post("/stream/3");
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(client_.WaitForCall(i)->WaitUntilCancelled()) << i;
}

TEST_F(GenerationTest, StoppingTheServerCancelsWhatRuns) {
  StartServer();
  Post("/stream/2");
  const auto call = client_.WaitForCall(1);
  server_->Stop();
  EXPECT_TRUE(call->cancelled());
  EXPECT_TRUE(client_.WaitForCall(0)->cancelled());
  call->Put(DeltaEvent(0, "late", 1));
}

TEST_F(GenerationTest, ASlowReaderLosesNothingAndItsEventsWaitJoined) {
  constexpr int64_t kTokens = 3000;
  StartServer();
  HttpTestClient slow(server_->address(), {.receive_buffer_bytes = 4096});
  slow.Send(HttpPost("/stream/1", "{}"));
  const auto call = client_.WaitForCall(0);
  const std::string text(10'000, 'x');  // 30 MB in all: more than any socket holds
  int64_t most_pending = 0;
  for (int64_t i = 0; i < kTokens; ++i) {
    call->Put(DeltaEvent(0, text, i + 1));
    most_pending = std::max(most_pending, call->pending_events());
  }
  call->End();
  EXPECT_LE(most_pending, 1);
  const HttpReply reply = slow.Read();
  EXPECT_LT(reply.chunks, kTokens) << "what waited was joined";
  EXPECT_EQ(std::count(reply.body.begin(), reply.body.end(), 'x'), kTokens * 10'000);
  EXPECT_TRUE(reply.body.ends_with(" end"));
}

TEST_F(GenerationTest, AQuietStreamIsKeptOpenByComments) {
  options_.limits.silence_ms = 30;
  StartServer();
  Post("/stream/1");
  const auto call = client_.WaitForCall(0);
  // In the queue: before the first event. What does not come ends the read after a minute.
  EXPECT_TRUE(http_->ReadUntil(": keep-alive\n\n").ends_with(": keep-alive\n\n"));
  call->Put(DeltaEvent(0, "a", 1));
  http_->ReadUntil("0:a ");
  EXPECT_TRUE(http_->ReadUntil(": keep-alive\n\n").ends_with(": keep-alive\n\n"));
  call->End(Fault(StatusCode::kInternal));
  EXPECT_NE(http_->ReadUntil("0\r\n\r\n").find("fault"), std::string::npos);
}

TEST_F(GenerationTest, ATalkingStreamHasNoComments) {
  options_.limits.silence_ms = 60'000;
  StartServer();
  Post("/stream/1");
  const auto call = client_.WaitForCall(0);
  for (int i = 0; i < 50; ++i) call->Put(DeltaEvent(0, "a", i + 1));
  call->End();
  EXPECT_EQ(http_->Read().body.find("keep-alive"), std::string::npos);
}

TEST_F(GenerationTest, AWholeAnswerIsNotDisturbedBySilence) {
  options_.limits.silence_ms = 10;
  StartServer();
  Post("/whole/1");
  const auto call = client_.WaitForCall(0);
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  call->End();
  EXPECT_EQ(http_->Read().body, "end");
}

// ---- long answers -------------------------------------------------------------------------------

// Log probabilities of a prompt that is long.
void AskForMany(v1::GenerateRequest* request) {
  request->mutable_token_ids()->mutable_ids()->Resize(5000, 7);
  request->mutable_output()->set_prompt_logprobs(0);
}

TEST_F(GenerationTest, WhatTakesLongToPrintIsNotPrintedOnTheConnectionsThread) {
  StartServer();
  Post("/whole/1");
  Say(0, {"a"})->End();
  EXPECT_EQ(http_->Read().status, 200);
  EXPECT_EQ(writer_.thread.load(), io_thread_.load()) << "what is short is";
  Post("/whole/1");
  const auto begun = Say(1, {"a"});
  writer_.held_bytes = 2 << 20;
  while (begun->pending_events() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  Say(1, {"b"})->End();
  EXPECT_EQ(http_->Read().body, "0:a 0:b end");
  EXPECT_NE(writer_.thread.load(), io_thread_.load());
  writer_.held_bytes = 0;
  AskForMany(&request_);
  for (const size_t n : {2, 3}) {
    writer_.thread = io_thread_.load();
    Post(n == 2 ? "/whole/1" : "/stream/1");
    Say(n, {"a"})->End();
    EXPECT_EQ(http_->Read().body, "0:a end") << n;
    EXPECT_NE(writer_.thread.load(), io_thread_.load()) << n;
  }
}

TEST_F(GenerationTest, AHangUpWhileAHandlerPrintsCancelsTheCall) {
  AskForMany(&request_);
  StartServer();
  writer_.waits = true;
  Post("/whole/1");
  const auto call = Say(0, {"a"});
  while (call->pending_events() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  http_->Close();
  while (server_->open_exchanges() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  writer_.waits = false;
  EXPECT_TRUE(call->WaitUntilCancelled());
}

TEST_F(GenerationTest, AnAnswerThatGrowsBeyondItsBoundEndsWithItsName) {
  room_.max_bytes = 1000;
  StartServer();
  writer_.held_bytes = 1000;
  Post("/whole/1");
  Say(0, {"a"})->End();
  EXPECT_EQ(http_->Read().status, 200);
  writer_.held_bytes = 1001;
  Post("/whole/1");
  EXPECT_TRUE(Say(1, {"a"})->WaitUntilCancelled());
  const HttpReply reply = http_->Read();
  EXPECT_EQ(reply.status, 429);
  EXPECT_NE(reply.body.find("at most 1000 are allowed (max_answer_bytes)"), std::string::npos) << reply.body;
  EXPECT_EQ(reply.Header("retry-after"), "") << "it would grow as large again";
}

TEST_F(GenerationTest, WhatAnswersHoldTogetherIsBoundedAndGivenBack) {
  ByteBudget budget(1500);
  room_.budget = &budget;
  StartServer();
  writer_.held_bytes = 1000;
  Post("/whole/1");
  const auto first = Say(0, {"a"});
  while (budget.bytes() != 1000) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  HttpTestClient other(server_->address());
  ASSERT_TRUE(other.Send(HttpPost("/whole/1", "{}")));
  EXPECT_TRUE(Say(1, {"b"})->WaitUntilCancelled());
  const HttpReply reply = other.Read();
  EXPECT_EQ(reply.status, 503);
  EXPECT_NE(reply.body.find("1500 bytes together (max_unread_answer_bytes)"), std::string::npos)
      << reply.body;
  first->End();
  EXPECT_EQ(http_->Read().status, 200);
  EXPECT_EQ(budget.bytes(), 0);
}

// ---- requests that wait -------------------------------------------------------------------------

TEST_F(GenerationTest, PromptsThatWaitCountAsWaitingUntilTheyAreSent) {
  StartServer();
  Post("/whole/" + std::to_string(kMaxWaitingCalls + 3));
  ASSERT_NE(client_.WaitForCall(kMaxWaitingCalls - 1), nullptr);
  while (client_.unsent() != 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  Say(0, {"a"});
  while (client_.unsent() != 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  http_->Close();
  while (client_.unsent() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST_F(GenerationTest, PromptsThatWaitAreChargedAsBodiesAreUntilTheirCallsAreUnderWay) {
  constexpr int64_t kPromptBytes = 100'000;
  options_.limits.max_held_body_bytes = 7 * kPromptBytes;
  request_.set_text(std::string(kPromptBytes, 'x'));
  StartServer();
  HttpTestClient other(server_->address());
  const auto ask_other = [&] { ASSERT_TRUE(other.Send(HttpPost("/whole/2", "{}"))); };
  Post("/whole/8");
  const HttpReply reply = http_->Read();
  EXPECT_EQ(reply.status, 503);
  EXPECT_NE(reply.body.find("too_many_body_bytes"), std::string::npos) << reply.body;
  EXPECT_EQ(client_.calls_made(), 0u);

  Post("/whole/6");
  ASSERT_NE(client_.WaitForCall(5), nullptr);
  ask_other();
  EXPECT_EQ(other.Read().status, 503);
  for (size_t i = 0; i < 6; ++i) {
    const auto call = Say(i, {"a"});
    while (call->pending_events() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ask_other();
  Say(6, {"b"})->End();
  Say(7, {"b"})->End();
  EXPECT_EQ(other.Read().body, "0:b 1:b end") << "what is under way holds nothing";
  for (size_t i = 0; i < 6; ++i) Say(i, {})->End();
  EXPECT_EQ(http_->Read().body, "0:a 1:a 2:a 3:a 4:a 5:a end");
}

}  // namespace
}  // namespace tramontane

// The gateway as a client meets it: paths, methods, media types, the endpoints about the server itself.
#include "server/api/gateway.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <latch>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <semaphore>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/access/doorkeeper.h"
#include "server/watch/metrics_page.h"
#include "server/watch/request_counts.h"
#include "tests/support/fake_inference_client.h"
#include "tests/support/http_test_client.h"
#include "tests/support/metrics_text.h"
#include "tests/support/temp_folder.h"
#include "tests/support/wait_for.h"

namespace tramontane {
namespace {

using ReplyJson = nlohmann::json;

constexpr char kCompletion[] = R"({"prompt": "hi", "max_tokens": 2})";

class GatewayTest : public ::testing::Test {
 protected:
  GatewayTest() {
    options_.address = "127.0.0.1:0";
    options_.version = "1.2.3";
    client_.on_generate = [](FakeInferenceCall& call) { SayTokens(call, 2); };
  }

  HttpReply Ask(const std::string& request) {
    if (gateway_ == nullptr) {
      auto started = Gateway::Start(options_, client_, routes_);
      EXPECT_TRUE(started.ok()) << started.status();
      gateway_ = std::move(*started);
    }
    return Fetch(gateway_->address(), request);
  }
  // What an OpenAI client would make of a refusal.
  ReplyJson ErrorOf(const HttpReply& reply) {
    const ReplyJson body = ReplyJson::parse(reply.body, nullptr, false);
    for (const char* key : {"message", "type", "param", "code"}) {
      EXPECT_TRUE(body.contains("error") && body["error"].contains(key)) << reply.body;
    }
    return body.value("error", ReplyJson::object());
  }

  GatewayOptions options_;
  FakeInferenceClient client_;
  std::vector<Route> routes_ = Routes();
  std::unique_ptr<Gateway> gateway_;
};

TEST_F(GatewayTest, EverySpellingOfABaseUrlFindsAnEndpoint) {
  for (const char* path : {"/v1/completions", "/completions", "/v1/completions/", "//v1//completions",
                           "/v1/completions?timeout=5", "http://localhost/v1/completions"}) {
    EXPECT_EQ(Ask(HttpPost(path, kCompletion)).status, 200) << path;
  }
}

TEST_F(GatewayTest, AnUnknownPathIsNamedAsItWasSent) {
  for (const char* path :
       {"/v1/embeddings", "/v1/v1/completions", "/v1/metrics", "/%6detrics", "/v1/%62?a=b"}) {
    const HttpReply reply = Ask(HttpPost(path, "{}"));
    EXPECT_EQ(reply.status, 404) << path;
    const ReplyJson error = ErrorOf(reply);
    EXPECT_EQ(error["code"], "unknown_url");
    const std::string sent(path);
    EXPECT_EQ(error["message"], "unknown path " + sent.substr(0, sent.find('?')));
  }
  const ReplyJson error = ErrorOf(Ask(HttpGet("/v1//completions/")));
  EXPECT_EQ(error["message"], "/v1//completions/ is for POST, not GET");
}

// What the transport refuses by itself reads, counts and is told of like every other answer.
TEST_F(GatewayTest, WhatTheTransportRefusesPassesWhatEveryAnswerPasses) {
  std::vector<RequestLine> told;
  std::mutex mutex;
  options_.limits.max_body_bytes = 100;
  options_.limits.read_timeout_ms = 50;
  options_.cors_origins = {"https://page.example"};
  options_.metrics = [] { return std::string(); };
  options_.request_log.tell = [&](const RequestLine& line) {
    const std::lock_guard lock(mutex);
    told.push_back(line);
  };
  const std::string head =
      "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\norigin: https://page.example\r\nx-request-id: "
      "mine\r\n"
      "content-type: application/json\r\n";
  const HttpReply too_long = Ask(head + "content-length: 101\r\n\r\n" + std::string(101, 'a'));
  EXPECT_EQ(too_long.status, 413);
  EXPECT_EQ(ErrorOf(too_long)["type"], "invalid_request_error");
  EXPECT_EQ(too_long.Header("access-control-allow-origin"), "https://page.example");
  EXPECT_EQ(too_long.Header("x-request-id"), "mine");
  const HttpReply no_gzip = Ask(head + "content-encoding: gzip\r\ncontent-length: 4\r\n\r\nabcd");
  EXPECT_EQ(no_gzip.status, 400);
  EXPECT_EQ(no_gzip.Header("access-control-allow-origin"), "https://page.example");
  EXPECT_EQ(Ask(head + "content-length: 4\r\n\r\n").status, 408);
  EXPECT_EQ(Ask("nonsense\r\n\r\n").status, 400);

  const std::string metrics = Ask(HttpGet("/metrics")).body;
  const MetricSeries series = SeriesOf(metrics);
  EXPECT_EQ(series.at(R"(http_requests_total{handler="/v1/completions",method="POST",status="4xx"})"), 3);
  EXPECT_EQ(series.at(R"(http_requests_total{handler="none",method="other",status="4xx"})"), 1);
  const std::lock_guard lock(mutex);
  ASSERT_EQ(told.size(), 5U);  // /metrics is the last
  for (const RequestLine& line : told) {
    EXPECT_EQ(line.outcome, line.status == "200" ? RequestOutcome::kOk : RequestOutcome::kRefused)
        << line.status;
  }
  EXPECT_EQ(told[0].status, "413");
  EXPECT_EQ(told[0].route, "/v1/completions");
  EXPECT_EQ(told[0].id, "mine");
  EXPECT_EQ(told[2].status, "408");
  EXPECT_EQ(told[2].id, "mine");
  EXPECT_EQ(told[3].route, "");
  EXPECT_NE(told[3].id, "");
}

// ---- dialects -----------------------------------------------------------------------------------

constexpr Dialect kToy = {.error_body = [](const ApiError& error, const HttpRequest& request) {
  return "toy " + std::to_string(error.status) + " " + error.code + " " + request.request_id;
}};

// POST /toy: its body says how it is answered.
void AnswerToy(const GatewayContext&, const std::shared_ptr<GatewayExchange>& exchange) {
  const std::string& body = exchange->request().body;
  if (body == "throw") throw std::runtime_error("thrown");
  if (body == "fail") return exchange->Fail(BadRequest("x", "at fault"));
  if (body == "let go") return;
  exchange->Respond({.body = std::string(body == "much" ? 100'000 : 1, 'a')});
}

class DialectTest : public GatewayTest {
 protected:
  DialectTest() {
    routes_.push_back({.method = "POST", .path = "/toy", .endpoint = AnswerToy, .dialect = &kToy});
    options_.limits.max_body_bytes = 2000;
    options_.limits.max_held_body_bytes = 2000;
    options_.limits.read_timeout_ms = 50;
  }

  // A request behind the toy's path: more of its header, and what follows that.
  HttpReply AskToy(const std::string& fields, const std::string& rest, const std::string& method = "POST") {
    return Ask(method + " /v1/toy HTTP/1.1\r\nhost: localhost\r\nx-request-id: mine\r\n" + fields + "\r\n" +
               rest);
  }
  HttpReply PostToy(const std::string& body, const std::string& fields = "") {
    return AskToy(
        "content-type: application/json\r\ncontent-length: " + std::to_string(body.size()) + "\r\n" + fields,
        body);
  }
};

TEST_F(DialectTest, WhateverIsRefusedBehindAPathIsSaidByTheDialectOfItsRoute) {
  constexpr char kChunked[] = "content-type: application/json\r\ntransfer-encoding: chunked\r\n";
  EXPECT_EQ(PostToy("{}").status, 200);
  // By the transport, of a body and what comes with it.
  EXPECT_EQ(PostToy(std::string(2001, 'a')).body, "toy 413  mine");
  EXPECT_EQ(AskToy(kChunked, "7d1\r\n" + std::string(2001, 'a')).body, "toy 413  mine");
  EXPECT_EQ(AskToy(kChunked, "no chunk\r\n\r\n").body, "toy 400  mine");
  EXPECT_EQ(AskToy(kChunked, "2\r\n{}\r\n0\r\nx: " + std::string(40'000, 'a')).body, "toy 431  mine");
  EXPECT_EQ(AskToy("content-length: 4\r\n", "").body, "toy 408  mine");
  EXPECT_EQ(AskToy("transfer-encoding: br\r\n", "").body, "toy 501  mine");
  EXPECT_EQ(AskToy("expect: more\r\n", "").body, "toy 417  mine");
  EXPECT_EQ(Ask("POST /v1/toy HTTP/1.1\r\nx-request-id: mine\r\n\r\n").body, "toy 400  mine") << "no Host";
  EXPECT_EQ(PostToy("{}", "content-encoding: br\r\n").body, "toy 415  mine");
  EXPECT_EQ(PostToy("{}", "content-encoding: gzip\r\n").body, "toy 400  mine");
  EXPECT_EQ(PostToy(std::string(1900, 'a')).body, "toy 503 too_many_body_bytes mine");
  EXPECT_EQ(PostToy("let go").body, "toy 500  mine");
  // By the stages.
  EXPECT_EQ(AskToy("", "", "GET").body, "toy 405 method_not_allowed mine");
  EXPECT_EQ(AskToy("content-length: 2\r\n", "{}").body, "toy 415 unsupported_media_type mine");
  EXPECT_EQ(PostToy("{}", "origin: http://evil.example\r\n").body, "toy 403 origin_not_allowed mine");
  EXPECT_EQ(PostToy("{}", "grpc-timeout: soon\r\n").body, "toy 400 invalid_timeout mine");
  // By its endpoint.
  EXPECT_EQ(PostToy("fail").body, "toy 400  mine");
  EXPECT_EQ(PostToy("throw").body, "toy 500 internal mine");

  gateway_->Drain(0);
  EXPECT_EQ(PostToy("{}").body, "toy 503 draining mine");
}

TEST_F(DialectTest, ARefusalBeforeThePathIsKnownIsOpenAis) {
  options_.limits.max_header_bytes = 1000;
  EXPECT_EQ(ErrorOf(AskToy("x: " + std::string(1000, 'a') + "\r\n", ""))["type"], "invalid_request_error");
  EXPECT_EQ(ErrorOf(Ask("POST /v1/toy HTTP/1.1\r\n"))["type"], "invalid_request_error") << "408";
  EXPECT_EQ(ErrorOf(Ask("POST /v1/toy HTTP/3.0\r\n\r\n"))["type"], "invalid_request_error");
  EXPECT_EQ(ErrorOf(Ask(HttpPost("/v1/toys", "{}")))["code"], "unknown_url");
  EXPECT_EQ(ErrorOf(Ask(HttpPost("/v1/completions", std::string(2001, 'a'))))["type"],
            "invalid_request_error");
}

TEST_F(DialectTest, AMissingKeyIsToldInTheRoutesDialect) {
  const TempFolder folder;
  folder.Write("keys.json", R"({"keys":[{"name":"alice","key":"a-key-of-alice-0123456789"}]})");
  std::vector<std::string> warnings;
  auto ring = KeyRing::Open(folder.PathOf("keys.json"), &warnings);
  ASSERT_TRUE(ring.ok()) << ring.status();
  options_.doorkeeper = std::make_shared<const Doorkeeper>(*std::move(ring));
  const HttpReply reply = PostToy("{}");
  EXPECT_EQ(reply.body, "toy 401 invalid_api_key mine");
  EXPECT_EQ(reply.Header("www-authenticate"), "Bearer");
}

TEST_F(DialectTest, WhereThereIsNoRoomItIsTheRoutesDialectThatSaysSo) {
  ByteBudget unread(500);
  options_.unread_answers = &unread;
  EXPECT_EQ(PostToy("much").body, "toy 503 too_many_unread_answer_bytes mine");

  gateway_ = nullptr;
  options_.limits.max_connections = 2;
  client_.on_generate = nullptr;
  Ask(HttpGet("/ping"));
  HttpTestClient one(gateway_->address()), two(gateway_->address());
  one.Send(HttpPost("/v1/completions", kCompletion));
  client_.WaitForCall(0);
  two.Send(HttpPost("/v1/completions", kCompletion));
  client_.WaitForCall(1);
  EXPECT_EQ(PostToy("{}").body, "toy 503 too_many_connections mine");
}

// ---- paths and types ----------------------------------------------------------------------------

TEST_F(GatewayTest, APathThatIsNotUtf8IsRefusedInUtf8) {
  const HttpReply reply = Ask(HttpGet("/%ff%00%0d%0a"));
  EXPECT_EQ(reply.status, 404);
  ErrorOf(reply);
}

TEST_F(GatewayTest, AWrongMethodIsToldTheRightOnes) {
  const HttpReply reply = Ask(HttpGet("/v1/completions"));
  EXPECT_EQ(reply.status, 405);
  EXPECT_EQ(reply.Header("allow"), "POST");
  EXPECT_EQ(ErrorOf(reply)["code"], "method_not_allowed");
  EXPECT_EQ(Ask(HttpPost("/health", "{}")).status, 405);
  EXPECT_EQ(Ask("BREW /health HTTP/1.1\r\nHost: localhost\r\n\r\n").status, 405);
}

TEST_F(GatewayTest, OnlyJsonIsRead) {
  for (const char* type : {"application/json", "application/json; charset=utf-8", "Application/JSON"}) {
    EXPECT_EQ(Ask(HttpPost("/v1/completions", kCompletion, {std::string("Content-Type: ") + type})).status,
              200)
        << type;
  }
  EXPECT_EQ(Ask("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}").status,
            415)
      << "a page of another site can send this without asking";
  EXPECT_EQ(Ask("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n").status, 400)
      << "no body needs no type";
  for (const char* type :
       {"text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "",
        "application/jsonx", "text/plain; application/json"}) {
    const HttpReply reply =
        Ask(HttpPost("/v1/completions", kCompletion, {std::string("Content-Type: ") + type}));
    EXPECT_EQ(reply.status, 415) << type;
    EXPECT_EQ(ErrorOf(reply)["code"], "unsupported_media_type");
  }
  EXPECT_EQ(Ask(HttpPost("/v1/completions", kCompletion, {"Content-Encoding: br"})).status, 415);
  EXPECT_EQ(Ask(HttpPost("/v1/completions", kCompletion, {"Content-Encoding: identity"})).status, 200);
}

TEST_F(GatewayTest, BodiesThatAreNoJsonAre400) {
  std::string deep(200'000, '[');
  for (const std::string& body :
       {std::string(""), std::string("{"), std::string("\xff\xfe{}"),
        std::string("{\"prompt\": \"\xc3\x28\"}"), deep, deep + std::string(200'000, ']'),
        std::string("{\"prompt\":") + deep, std::string(1, '\0'), std::string("[1,2]"), std::string("nul"),
        std::string("{\"prompt\": 1e999}")}) {
    const HttpReply reply = Ask(HttpPost("/v1/completions", body));
    EXPECT_EQ(reply.status, 400) << body.substr(0, 30);
    ErrorOf(reply);
  }
}

TEST_F(GatewayTest, HealthAndReadyAreTheClientsAndPingIsTheProcess) {
  EXPECT_EQ(Ask(HttpGet("/health")).status, 200);
  EXPECT_EQ(Ask(HttpGet("/health")).body, "");
  EXPECT_EQ(Ask("HEAD /health HTTP/1.1\r\nHost: localhost\r\n\r\n").status, 200);
  EXPECT_EQ(Ask(HttpGet("/ready")).status, 200);
  EXPECT_EQ(Ask(HttpGet("/ping")).status, 200);
  EXPECT_EQ(Ask(HttpPost("/ping", "")).status, 200);
  client_.is_ready = false;
  EXPECT_EQ(Ask(HttpGet("/health")).status, 200);
  EXPECT_EQ(Ask(HttpGet("/ready")).status, 503);
  for (const RpcError& fault : {UnavailableError("LOADING", "the model is still loading"),
                                ToRpcError(Internal("the device is lost"))}) {
    client_.health_fault = fault;
    const HttpReply reply = Ask(HttpGet("/health"));
    EXPECT_EQ(reply.status, 503);
    EXPECT_EQ(ErrorOf(reply)["message"], fault.message());
    EXPECT_EQ(Ask(HttpGet("/ping")).status, 200);
  }
}

// Every handler thread is inside an endpoint that does not return.
TEST_F(GatewayTest, ProbesAreAnsweredWhileEveryHandlerIsBusy) {
  std::latch all_busy(options_.handler_threads), release(1);
  client_.on_generate = [&](FakeInferenceCall& call) {
    all_busy.count_down();
    release.wait();
    SayTokens(call, 2);
  };
  options_.metrics = [] { return std::string("a_metric 1\n"); };
  Ask(HttpGet("/ping"));
  std::vector<std::unique_ptr<HttpTestClient>> busy;
  for (int i = 0; i < 2 * options_.handler_threads; ++i) {
    busy.push_back(std::make_unique<HttpTestClient>(gateway_->address()));
    busy.back()->Send(HttpPost("/v1/completions", kCompletion));
  }
  all_busy.wait();
  for (const char* path : {"/health", "/ready", "/ping", "/metrics", "/version", "/load"}) {
    EXPECT_EQ(Ask(HttpGet(path)).status, 200) << path;
  }
  EXPECT_EQ(Ask(HttpPost("/nowhere", "{}")).status, 404) << "and what is refused is told so";
  release.count_down();
  for (const auto& client : busy) EXPECT_EQ(client->Read().status, 200);
}

TEST_F(GatewayTest, VersionLoadAndMetricsAreTold) {
  client_.load.set_open_streams(17);
  options_.metrics = [] { return std::string("a_metric 1\n"); };
  EXPECT_EQ(ReplyJson::parse(Ask(HttpGet("/version")).body), ReplyJson({{"version", "1.2.3"}}));
  EXPECT_EQ(ReplyJson::parse(Ask(HttpGet("/load")).body), ReplyJson({{"server_load", 17}}));
  const HttpReply metrics = Ask(HttpGet("/metrics"));
  EXPECT_EQ(metrics.body.find("a_metric 1\n"), 0u);
  EXPECT_EQ(metrics.Header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
  client_.unary_error = UnavailableError("DRAINING", "no");
  EXPECT_EQ(Ask(HttpGet("/load")).status, 503);
}

TEST_F(GatewayTest, AnswersAreCountedByRouteAndTold) {
  std::vector<std::string> told;  // on the one io thread
  options_.request_log.tell = [&told](const RequestLine& line) {
    told.push_back(line.id + " " + line.route + " " + line.status + " " + line.error);
  };
  options_.metrics = [] { return std::string(); };
  Ask(HttpGet("/v1/models", {"X-Request-Id: one"}));
  Ask(HttpGet("/models/fake?a=b", {"X-Request-Id: two"}));
  Ask(HttpGet("/made%20up", {"X-Request-Id: three"}));
  Ask(HttpGet("/made/up/too", {"X-Request-Id: four"}));
  Ask(HttpPost("/v1/completions", kCompletion, {"X-Request-Id: five", "Origin: http://evil.example"}));
  Ask(HttpGet("/v1/completions", {"X-Request-Id: wrong"}));
  Ask("OPTIONS /v1/models HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: before\r\n\r\n");
  const std::string text = Ask(HttpGet("/metrics", {"X-Request-Id: six"})).body;
  for (const char* line : {R"({handler="/v1/models",method="GET",status="2xx"} 1)",
                           R"({handler="/v1/models/*",method="GET",status="2xx"} 1)",
                           R"({handler="none",method="GET",status="4xx"} 2)",
                           R"({handler="/v1/completions",method="POST",status="4xx"} 1)",
                           R"({handler="/v1/completions",method="GET",status="4xx"} 1)",
                           R"({handler="/v1/models",method="OPTIONS",status="2xx"} 1)",
                           R"({handler="/v1/score",method="POST",status="5xx"} 0)"}) {
    EXPECT_NE(text.find(std::string("\nhttp_requests_total") + line + "\n"), std::string::npos)
        << line << text;
  }
  EXPECT_NE(text.find("http_request_duration_seconds_count{handler=\"/v1/models\"} 2\n"), std::string::npos)
      << "and the OPTIONS";
  EXPECT_EQ(text.find("made"), std::string::npos) << "what clients make up is no label";
  gateway_->Stop();
  EXPECT_EQ(told, (std::vector<std::string>{
                      "one /v1/models 200 ", "two /v1/models/* 200 ", "three /made%20up 404 unknown_url",
                      "four /made/up/too 404 unknown_url", "five /v1/completions 403 origin_not_allowed",
                      "wrong /v1/completions 405 method_not_allowed", "before /v1/models 204 ",
                      "six /metrics 200 "}));
}

// ---- the line of a request ----------------------------------------------------------------------

class RequestLineTest : public GatewayTest {
 protected:
  RequestLineTest() {
    options_.request_log.tell = [this](const RequestLine& line) {
      const std::lock_guard lock(mutex_);
      lines_.push_back(line);
    };
  }
  // Once the gateway has stopped: all of them.
  const std::vector<RequestLine>& Lines() {
    gateway_->Stop();
    return lines_;
  }

  std::mutex mutex_;
  std::vector<RequestLine> lines_;
};

TEST_F(RequestLineTest, AnAnswerHasOneWithWhatItTook) {
  Ask(HttpPost("/v1/completions", kCompletion, {"X-Request-Id: whole"}));
  Ask(HttpPost("/v1/chat/completions", R"({"messages": [{"role": "user", "content": "hi"}], "stream": true})",
               {"X-Request-Id: streamed"}));
  Ask(HttpPost("/v1/completions", R"({"prompt": ["a", "b", "c"], "n": 1, "max_tokens": 2})"));
  const std::vector<RequestLine>& lines = Lines();
  ASSERT_EQ(lines.size(), 3u);
  for (const RequestLine& line : lines) {
    EXPECT_TRUE(line.generates);
    EXPECT_EQ(line.status, "200");
    EXPECT_EQ(line.outcome, RequestOutcome::kOk);
    EXPECT_EQ(line.model, "fake");
    EXPECT_GE(line.ttft_ms, 0);
    EXPECT_GE(line.e2el_ms, line.ttft_ms);
    EXPECT_EQ(line.key + line.error + line.message + line.prompt, "");
  }
  EXPECT_EQ(lines[0].id, "whole");
  EXPECT_EQ(lines[0].route, "/v1/completions");
  EXPECT_EQ(lines[0].output_tokens, 2);
  EXPECT_EQ(lines[0].reason, "length");
  EXPECT_EQ(lines[1].id, "streamed");
  EXPECT_EQ(lines[1].route, "/v1/chat/completions");
  EXPECT_EQ(lines[1].prompt_tokens, lines[0].prompt_tokens);
  EXPECT_EQ(lines[2].prompt_tokens, 3 * lines[0].prompt_tokens) << "of all its prompts";
  EXPECT_EQ(lines[2].output_tokens, 6);
  EXPECT_EQ(lines[2].reason, "length,length,length");
}

TEST_F(RequestLineTest, WhatGoesWrongHasOneThatSaysHow) {
  client_.on_generate = nullptr;
  Ask(HttpGet("/ping"));
  {
    HttpTestClient client(gateway_->address());  // that goes in the midst of its answer
    client.Send(HttpPost("/v1/completions", R"({"prompt": "hi", "stream": true})", {"X-Request-Id: gone"}));
    const auto call = client_.WaitForCall(0);
    call->Put(StartedEvent(4));
    call->Put(DeltaEvent(0, "words", 3));
    client.ReadUntil("words");
  }
  EXPECT_TRUE(client_.WaitForCall(0)->WaitUntilCancelled());
  {
    HttpTestClient client(gateway_->address());  // before anything was said
    client.Send(HttpPost("/v1/completions", kCompletion, {"X-Request-Id: early"}));
    client_.WaitForCall(1);
  }
  EXPECT_TRUE(client_.WaitForCall(1)->WaitUntilCancelled());
  HttpTestClient client(gateway_->address());
  client.Send(HttpPost("/v1/completions", R"({"prompt": "hi", "stream": true})", {"X-Request-Id: midway"}));
  const auto midway = client_.WaitForCall(2);
  midway->Put(StartedEvent(1));
  midway->Put(DeltaEvent(0, "words", 1));
  client.ReadUntil("words");
  midway->End(ToRpcError(Internal("the logits are not finite")));
  client.ReadUntil("\r\n0\r\n\r\n");
  Ask(HttpPost("/v1/completions", R"({"prompt": "secret words", "n": "x"})", {"X-Request-Id: bad"}));
  client_.on_generate = [](FakeInferenceCall& call) {
    call.Put(StartedEvent(1));
    call.End(ToOutcome(InvalidArgument("the constraint \"secret\" allows no token")));
  };
  Ask(HttpPost("/v1/completions", kCompletion, {"X-Request-Id: begun"}));

  const std::vector<RequestLine>& lines = Lines();
  std::map<std::string, RequestLine> by_id;
  for (const RequestLine& line : lines) {
    if (line.route == "/ping") continue;
    EXPECT_TRUE(by_id.emplace(line.id, line).second) << line.id << " is told of twice";
  }
  ASSERT_EQ(by_id.size(), 5u);
  EXPECT_EQ(by_id["gone"].outcome, RequestOutcome::kCancelled);
  EXPECT_EQ(by_id["gone"].status, "200");
  EXPECT_EQ(by_id["gone"].prompt_tokens, 4);
  EXPECT_EQ(by_id["gone"].output_tokens, 3) << "as far as it came";
  EXPECT_EQ(by_id["early"].outcome, RequestOutcome::kCancelled);
  EXPECT_EQ(by_id["early"].status, "499");
  EXPECT_EQ(by_id["midway"].outcome, RequestOutcome::kError);
  EXPECT_EQ(by_id["midway"].status, "200");
  EXPECT_NE(by_id["midway"].message.find("not finite"), std::string::npos) << by_id["midway"].message;
  EXPECT_EQ(by_id["bad"].outcome, RequestOutcome::kRefused);
  EXPECT_EQ(by_id["bad"].status, "400");
  EXPECT_NE(by_id["bad"].error, "");
  EXPECT_EQ(by_id["begun"].outcome, RequestOutcome::kError);
  EXPECT_EQ(by_id["begun"].status, "400");
  for (const auto& [id, line] : by_id) {
    EXPECT_TRUE(line.generates) << id;
    EXPECT_EQ((line.message + line.error + line.prompt).find("secret"), std::string::npos) << id;
  }
}

TEST_F(RequestLineTest, HasTheBeginningOfThePromptWhereThatIsWanted) {
  options_.request_log.prompts = true;
  Ask(HttpPost(
      "/v1/chat/completions",
      R"({"messages": [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi\nyou"}]})"));
  Ask(HttpPost("/v1/completions", R"({"prompt": [[5, 6]]})"));
  std::string text;
  for (int i = 0; i < 1000; ++i) text += "\u00e9";
  Ask(HttpPost("/v1/completions", "{\"prompt\": \"x" + text + "\"}"));
  const std::vector<RequestLine>& lines = Lines();
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0].prompt, "SYSTEM: be kind\nUSER: hi\nyou\n");
  EXPECT_EQ(lines[1].prompt, "[5,6]");
  EXPECT_EQ(lines[2].prompt.size(), kMaxLoggedPromptBytes - 1) << "cut between characters";
}

TEST_F(RequestLineTest, ATraceIsKeptEchoedAndPassedOn) {
  const std::string trace_id = "0af7651916cd43dd8448eb211c80319c";
  const std::string parent = "00-" + trace_id + "-b7ad6b7169203331-01";
  const HttpReply reply = Ask(HttpPost("/v1/completions", kCompletion,
                                       {"TraceParent: " + parent, "tracestate: a=1", "tracestate: b=2"}));
  EXPECT_EQ(reply.Header("traceparent"), parent);
  const Caller caller = client_.WaitForCall(0)->caller();
  EXPECT_EQ(caller.trace.parent, parent);
  EXPECT_EQ(caller.trace.state, "a=1,b=2");
  EXPECT_EQ(caller.request_id, reply.Header("x-request-id"));
  const HttpReply refused = Ask(HttpPost("/v1/nowhere", "{}", {"traceparent: " + parent}));
  EXPECT_EQ(refused.Header("traceparent"), parent);
  for (const std::string& wrong : {"00-" + std::string(32, '0') + "-b7ad6b7169203331-01", parent + "0"}) {
    const HttpReply other = Ask(HttpPost("/v1/completions", kCompletion, {"traceparent: " + wrong}));
    EXPECT_EQ(other.status, 200);
    EXPECT_EQ(other.Header("traceparent"), "");
  }
  EXPECT_EQ(client_.WaitForCall(1)->caller().trace.parent, "");
  const std::vector<RequestLine>& lines = Lines();
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0].trace_id, trace_id);
  EXPECT_EQ(lines[1].trace_id, trace_id);
  EXPECT_EQ(lines[2].trace_id + lines[3].trace_id, "");
}

TEST_F(RequestLineTest, AnIdThatCannotBeOneIsReplaced) {
  const HttpReply reply = Ask(HttpPost("/v1/completions", kCompletion, {"X-Request-Id: two words"}));
  EXPECT_TRUE(reply.Header("x-request-id").starts_with("req-")) << reply.Header("x-request-id");
  const std::vector<RequestLine>& lines = Lines();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].id, reply.Header("x-request-id"));
}

// As the separate gateway does, which has no engine.
TEST_F(GatewayTest, RequestsAndTokensAreCountedByWhatIsAnswered) {
  const auto counts = std::make_shared<RequestCounts>();
  options_.request_counts = counts;
  options_.counts_events = true;
  const auto counted = [&counts] {
    MetricsPage page;
    counts->AddTo(&page);
    MetricSeries series = NotZero(SeriesOf(page.Text()), "tramontane_");
    return series;
  };
  const std::string requests = "tramontane_requests_total{key=\"-\",outcome=";
  const std::string tokens = "tramontane_key_tokens_total{key=\"-\",kind=";
  EXPECT_EQ(Ask(HttpPost("/v1/completions", R"({"prompt": ["a", "b"], "max_tokens": 2})")).status, 200);
  EXPECT_EQ(Ask(HttpPost("/v1/completions", R"({"prompt": "a", "max_tokens": 2, "stream": true})")).status,
            200);
  MetricSeries expected = {
      {requests + "\"ok\"}", 2}, {tokens + "\"prompt\"}", 3}, {tokens + "\"generation\"}", 6}};
  EXPECT_EQ(counted(), expected);

  client_.on_generate = [](FakeInferenceCall& call) {
    call.Put(StartedEvent(1));
    call.Put(DeltaEvent(0, "words", 5));
    const bool is_aborted = call.request().stopping().max_tokens() == 1;
    call.End(is_aborted ? ToRpcError(Status(StatusCode::kCancelled, "aborted"))
                        : UnavailableError("STOPPED", "the server stopped"));
  };
  Ask(HttpPost("/v1/completions", R"({"prompt": "a", "max_tokens": 1, "stream": true})"));
  Ask(HttpPost("/v1/completions", R"({"prompt": "a", "max_tokens": 2, "stream": true})"));
  Ask(HttpPost("/v1/completions", R"({"prompt": "a", "max_tokens": 2})"));
  expected[requests + "\"cancelled\"}"] = 1;
  expected[requests + "\"error\"}"] = 2;
  expected[tokens + "\"prompt\"}"] += 3;
  expected[tokens + "\"generation\"}"] += 15;
  EXPECT_EQ(counted(), expected);

  client_.refuse = [](const auto&) { return BusyError("QUEUE_FULL", "no room"); };
  EXPECT_EQ(Ask(HttpPost("/v1/completions", kCompletion)).status, 429);
  expected[requests + "\"refused\"}"] = 1;
  expected["tramontane_refused_total{reason=\"queue_full\"}"] = 1;
  EXPECT_EQ(counted(), expected);

  client_.refuse = nullptr;
  client_.on_generate = nullptr;
  HttpTestClient hangs_up(gateway_->address());
  const size_t made = client_.calls_made();
  hangs_up.Send(HttpPost("/v1/completions", R"({"prompt": "a", "max_tokens": 9, "stream": true})"));
  const auto call = client_.WaitForCall(made);
  call->Put(StartedEvent(1));
  call->Put(DeltaEvent(0, "words", 2));
  hangs_up.ReadUntil("words");
  call->Put(DeltaEvent(0, "more", 5));
  hangs_up.ReadUntil("more");
  hangs_up.Reset();
  expected[requests + "\"cancelled\"}"] = 2;
  expected[tokens + "\"prompt\"}"] += 1;
  expected[tokens + "\"generation\"}"] += 5;
  WaitFor([&] { return counted() == expected; });
  // What could not be unpacked is answered in the exchange's stead, and is one refusal.
  const std::string no_gzip = "content-encoding: gzip\r\ncontent-length: 4\r\n\r\nabcd";
  EXPECT_EQ(
      Ask("POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n" + no_gzip)
          .status,
      400);
  expected[requests + "\"refused\"}"] = 2;
  expected["tramontane_refused_total{reason=\"invalid\"}"] = 1;
  EXPECT_EQ(counted(), expected);
  gateway_->Stop();
  EXPECT_EQ(counted(), expected) << "each once";
}

TEST_F(GatewayTest, StagesAreCountedByWhatServersSayOfThem) {
  const auto counts = std::make_shared<RequestCounts>();
  options_.request_counts = counts;
  options_.counts_events = true;
  client_.on_generate = [](FakeInferenceCall& call) {
    call.Put(StartedEvent(200));
    call.Put(DeltaEvent(0, "words", 1));
    v1::GenerateResponse end = FinishedEvent(0, v1::FINISH_REASON_LENGTH, 200, 1);
    v1::Timings& timings = *end.mutable_finished()->mutable_timings();
    timings.set_tokenize_ms(1);
    timings.set_queue_ms(2);
    timings.set_prefill_run_ms(4);
    timings.set_prefill_wait_ms(0);
    timings.set_sample_ms(8);
    timings.set_hold_ms(16);
    call.Put(std::move(end));
    call.End();
  };
  EXPECT_EQ(Ask(HttpPost("/v1/completions", R"({"prompt": "a", "stream": true})")).status, 200);
  EXPECT_EQ(Ask(HttpPost("/v1/completions", R"({"prompt": "a"})")).status, 200);
  MetricsPage page;
  counts->AddStagesTo(TtftStage::kReceive, &page);
  const MetricSeries series = SeriesOf(page.Text());
  EXPECT_EQ(SumOf(series, "tramontane_ttft_stage_seconds_count", R"(prompt="le1k")"), 2 * TtftStages::kCount);
  EXPECT_EQ(SumOf(series, "tramontane_ttft_stage_seconds_count"), 2 * TtftStages::kCount);
  for (const auto& [stage, seconds] : {std::pair("queue", 0.004), std::pair("sample", 0.016)}) {
    const std::string labels = std::string("{stage=\"") + stage + "\",prompt=\"le1k\"}";
    EXPECT_NEAR(series.at("tramontane_ttft_stage_seconds_sum" + labels), seconds, 1e-9);
  }
}

TEST_F(GatewayTest, AStreamWhoseCallIsEndedSaysSoOnce) {
  client_.on_generate = nullptr;
  Ask(HttpGet("/ping"));
  size_t calls = 0;
  for (const char* request :
       {"/v1/completions {\"prompt\": \"hi\", \"stream\": true}",
        "/v1/chat/completions {\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}], "
        "\"stream\": true}"}) {
    const std::string text(request);
    HttpTestClient client(gateway_->address());
    client.Send(HttpPost(text.substr(0, text.find(' ')), text.substr(text.find(' ') + 1)));
    const auto call = client_.WaitForCall(calls++);
    call->Put(StartedEvent(1));
    call->Put(DeltaEvent(0, "words", 1));
    client.ReadUntil("words");
    call->Put(FinishedEvent(0, v1::FINISH_REASON_CANCELLED, 1, 1));
    call->End(UnavailableError("STOPPED", "the server stopped"));
    const std::string rest = client.ReadUntil("\r\n0\r\n\r\n");
    const size_t error = rest.find("data: {\"error\"");
    EXPECT_NE(error, std::string::npos) << rest;
    EXPECT_EQ(rest.find("data: {\"error\"", error + 1), std::string::npos) << rest;
    EXPECT_TRUE(rest.ends_with("\"code\":\"stopped\"}}\n\ndata: [DONE]\n\n\r\n0\r\n\r\n")) << rest;
  }
}

TEST_F(GatewayTest, RequestsThatShareAnXRequestIdDoNotMeet) {
  client_.on_generate = nullptr;
  Ask(HttpGet("/health"));
  HttpTestClient one(gateway_->address()), two(gateway_->address());
  one.Send(HttpPost("/v1/completions", kCompletion, {"X-Request-Id: same"}));
  two.Send(HttpPost("/v1/completions", kCompletion, {"X-Request-Id: same"}));
  const auto first = client_.WaitForCall(0), second = client_.WaitForCall(1);
  EXPECT_NE(first->request().request_id(), second->request().request_id());
  EXPECT_EQ(first->options().correlation_id, "same");
  EXPECT_EQ(second->options().correlation_id, "same");
  SayTokens(*first, 2);
  SayTokens(*second, 2);
  EXPECT_EQ(one.Read().Header("x-request-id"), "same");
  EXPECT_EQ(two.Read().Header("x-request-id"), "same");
}

TEST_F(GatewayTest, BrowsersOfOtherSitesAreLetInWhereThatIsWanted) {
  const auto preflight = [](const std::string& origin) {
    return "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: " + origin +
           "\r\nAccess-Control-Request-Method: POST\r\n"
           "Access-Control-Request-Headers: authorization,x-stainless-os\r\n\r\n";
  };
  HttpReply reply = Ask(preflight("http://a"));
  EXPECT_EQ(reply.status, 403) << "off by default";
  EXPECT_EQ(ErrorOf(reply)["code"], "origin_not_allowed");
  reply = Ask(preflight("http://localhost:3000"));
  EXPECT_EQ(reply.status, 204);
  EXPECT_EQ(reply.Header("allow"), "POST, OPTIONS");
  EXPECT_EQ(reply.Header("access-control-allow-origin"), "");

  gateway_ = nullptr;
  options_.cors_origins = {"http://a", "http://b"};
  for (const char* origin : {"http://a", "http://b"}) {
    reply = Ask(HttpGet("/health", {std::string("Origin: ") + origin}));
    EXPECT_EQ(reply.Header("access-control-allow-origin"), origin);
    EXPECT_EQ(reply.Header("vary"), "origin");
  }
  EXPECT_EQ(Ask(HttpGet("/health")).Header("access-control-allow-origin"), "");
  EXPECT_EQ(Ask(preflight("http://c")).status, 403);

  gateway_ = nullptr;
  options_.cors_origins = {"*"};
  reply = Ask(preflight("http://c"));
  EXPECT_EQ(reply.status, 204);
  EXPECT_EQ(reply.Header("access-control-allow-origin"), "*");
  EXPECT_EQ(reply.Header("access-control-allow-methods"), "POST, OPTIONS");
  EXPECT_EQ(reply.Header("access-control-allow-headers"), "authorization,x-stainless-os");
  EXPECT_EQ(Ask(HttpGet("/health")).Header("access-control-allow-origin"), "*");
  for (const char* exposed : {"x-should-retry", "x-tramontane-unenforced", "x-ratelimit-reset-tokens"}) {
    EXPECT_NE(reply.Header("access-control-expose-headers").find(exposed), std::string::npos) << exposed;
  }
  EXPECT_EQ(Ask(HttpGet("/nowhere")).Header("access-control-allow-origin"), "*")
      << "so that a page can read why";
}

TEST_F(GatewayTest, OneThatLeavesSaysSoAndTakesRequestsAllTheSame) {
  Ask(HttpGet("/health"));  // starts it
  gateway_->Leave();
  EXPECT_EQ(Ask(HttpGet("/ready")).status, 503);
  EXPECT_EQ(Ask(HttpGet("/health")).status, 200);
  const HttpReply taken = Ask(HttpPost("/v1/completions", kCompletion));
  EXPECT_EQ(taken.status, 200);
  EXPECT_EQ(taken.Header("connection"), "close");
}

TEST_F(GatewayTest, DrainingRefusesNewWorkAndWaitsForWhatRuns) {
  client_.on_generate = nullptr;
  Ask(HttpGet("/health"));
  HttpTestClient running(gateway_->address());
  running.Send(HttpPost("/v1/completions", kCompletion));
  const auto call = client_.WaitForCall(0);
  EXPECT_FALSE(gateway_->Drain(0));
  const HttpReply refused = Ask(HttpPost("/v1/completions", kCompletion));
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(ErrorOf(refused)["code"], "draining");
  EXPECT_EQ(refused.Header("connection"), "close");
  EXPECT_EQ(refused.Header("retry-after"), "2");
  EXPECT_EQ(Ask(HttpGet("/health")).status, 200) << "probes are answered";
  EXPECT_EQ(Ask(HttpGet("/ready")).status, 503) << "nothing is taken here, whoever is behind";
  SayTokens(*call, 2);
  EXPECT_TRUE(gateway_->Drain(int64_t{60} * 1'000'000'000));
  const HttpReply reply = running.Read();
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.Header("connection"), "close");
  gateway_->Stop();
}

TEST_F(GatewayTest, AStopTellsWhatIsOpenWhyItEnds) {
  constexpr char kStream[] = R"({"messages": [{"role": "user", "content": "hi"}], "stream": true})";
  std::counting_semaphore<> busy(0);
  std::latch release(1);
  client_.on_generate = [&](FakeInferenceCall& call) {
    if (call.request().text() != "busy") return;
    busy.release();
    release.wait();
  };
  Ask(HttpGet("/ping"));
  HttpTestClient stream(gateway_->address()), waiting(gateway_->address()), whole(gateway_->address());
  stream.Send(HttpPost("/v1/chat/completions", kStream));
  const auto streaming = client_.WaitForCall(0);
  streaming->Put(StartedEvent(1));
  streaming->Put(DeltaEvent(0, "words", 1));
  EXPECT_NE(stream.ReadUntil("words").find("words"), std::string::npos);
  waiting.Send(HttpPost("/v1/chat/completions", kStream));
  whole.Send(HttpPost("/v1/completions", kCompletion));
  const auto second = client_.WaitForCall(1), third = client_.WaitForCall(2);
  std::vector<std::unique_ptr<HttpTestClient>> others;  // inside a handler, and waiting for one
  for (int i = 0; i < options_.handler_threads + 1; ++i) {
    others.push_back(std::make_unique<HttpTestClient>(gateway_->address()));
    others.back()->Send(HttpPost("/v1/completions", R"({"prompt": "busy"})"));
  }
  for (int i = 0; i < options_.handler_threads; ++i) busy.acquire();
  others.push_back(std::make_unique<HttpTestClient>(gateway_->address()));  // half sent
  others.back()->Send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n"
      "Expect: 100-continue\r\n\r\n");
  EXPECT_EQ(others.back()->Read().status, 100);

  std::thread stop([&] { gateway_->Stop(); });
  const std::string rest = stream.ReadToEnd();
  EXPECT_NE(rest.find("shutting down"), std::string::npos) << rest;
  EXPECT_TRUE(rest.ends_with("data: [DONE]\n\n\r\n0\r\n\r\n")) << rest;
  for (HttpTestClient* client : {&waiting, &whole}) {
    const HttpReply reply = client->Read();
    EXPECT_EQ(reply.status, 503);
    EXPECT_EQ(ErrorOf(reply)["code"], "draining");
    EXPECT_NE(reply.Header("retry-after"), "");
  }
  for (const auto& client : others) EXPECT_EQ(client->Read().status, 503);
  release.count_down();
  stop.join();
  for (const auto& call : client_.calls()) EXPECT_TRUE(call->cancelled());
}

}  // namespace
}  // namespace tramontane

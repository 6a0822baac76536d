// The header x-tramontane-timing, without sockets and on a clock that only the test moves: what a client is
// told of the time to its first content, and that without the header nothing is told.
#include "server/api/shared/timing.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/admin/debug_endpoints.h"
#include "server/api/gateway.h"
#include "server/api/openai/chat.h"
#include "server/api/openai/completions.h"
#include "server/api/openai/dialect.h"
#include "server/api/openai/responses.h"
#include "server/api/shared/http_counts.h"
#include "tests/support/connection_stage.h"
#include "tests/support/fake_inference_client.h"
#include "tests/support/http_test_client.h"

namespace tramontane {
namespace {

constexpr char kAsks[] = "x-tramontane-timing: 1";
constexpr char kStreamed[] = R"({"prompt":"hi","stream":true})";

// The stages that a call's server tells of: 40, 50, 60, 70, 80 and 90 ms.
void AddTimings(v1::GenerateResponse* event) {
  v1::Timings* timings = event->mutable_finished()->mutable_timings();
  timings->set_tokenized_us(1000);
  timings->set_admitted_us(3000);
  timings->set_first_token_us(11000);
  timings->set_finished_us(19000);
  timings->set_tokenize_ms(40);
  timings->set_queue_ms(50);
  timings->set_prefill_run_ms(60);
  timings->set_prefill_wait_ms(70);
  timings->set_sample_ms(80);
  timings->set_hold_ms(90);
  timings->set_chunks(3);
  timings->set_preemptions(1);
}

class TimingTest : public ::testing::Test {
 protected:
  TimingTest() {
    limits_.silence_ms = 0;
    stage_ =
        std::make_unique<ConnectionStage>(limits_, [this](const std::shared_ptr<HttpExchange>& exchange) {
          exchange->RunOnHandler([this, exchange] {
            endpoint_({client_, options_, draining_},
                      std::make_shared<GatewayExchange>(exchange, kOpenAi, [] { return HttpHeaders(); }));
          });
        });
  }

  std::shared_ptr<FakeInferenceCall> Call(size_t n = 0) { return client_.WaitForCall(n); }
  void Say(const std::string& text, int64_t tokens, size_t n = 0) {
    if (tokens == 1) Call(n)->Put(StartedEvent(7));
    Call(n)->Put(DeltaEvent(0, text, tokens));
    stage_->Run();
  }
  void Finish(size_t n = 0) {
    v1::GenerateResponse end = FinishedEvent(0, v1::FINISH_REASON_LENGTH, 7, 2);
    AddTimings(&end);
    Call(n)->Put(end);
    Call(n)->End();
    stage_->Run();
  }
  // The JSON of the events of a stream, in their order.
  static std::vector<Json> EventsOf(const HttpReply& reply) {
    std::vector<Json> events;
    const std::string& body = reply.body;
    for (size_t at = body.find("data: {"); at != std::string::npos; at = body.find("data: {", at + 1)) {
      events.push_back(*ParseJson(std::string_view(body).substr(at + 6, body.find('\n', at) - at - 6)));
    }
    return events;
  }
  static int64_t SumNs(const Json& timing) {
    int64_t sum = 0;
    for (const auto& [key, value] : timing.items()) {
      if (key.ends_with("_ms") && key != "ttft_ms") sum += std::llround(value.get<double>() * 1e6);
    }
    return sum;
  }

  HttpLimits limits_;
  GatewayOptions options_;
  FakeInferenceClient client_;
  const std::atomic<bool> draining_{false};
  Endpoint endpoint_ = AnswerCompletions;
  std::unique_ptr<ConnectionStage> stage_;
};

TEST_F(TimingTest, EachStageOfAStreamIsWhatItsCauseTook) {
  StagePeer& peer = stage_->Connect(/*room=*/0);
  const std::string request = HttpPost("/v1/completions", kStreamed, {kAsks});
  stage_->handlers_run = false;
  peer.Send(request.substr(0, 20));
  stage_->Advance(1000);
  peer.Send(request.substr(20));
  stage_->Advance(500);
  stage_->handlers_run = true;
  stage_->Run();
  EXPECT_EQ(Call()->options().receive_ns, 1'000'000'000);
  EXPECT_EQ(Call()->options().parse_ns, 500'000'000);
  stage_->Advance(1000);  // of which the server accounts for 390 ms
  Say("a", 1);
  Finish();
  stage_->Advance(2000);  // for the client takes nothing
  EXPECT_EQ(peer.received(), "");
  peer.MakeRoom(1 << 20);
  stage_->Run();

  const std::vector<Json> events = EventsOf(ParseReply(peer.received()));
  ASSERT_EQ(events.size(), 3u);
  EXPECT_FALSE(events[1].contains("timing"));
  const Json& timing = events.back()["timing"];
  EXPECT_EQ(events.back()["choices"], Json::array());
  EXPECT_EQ(
      PrintJson(timing),
      R"({"receive_ms":1000.0,"parse_ms":500.0,"tokenize_ms":40.0,"queue_ms":50.0,"prefill_run_ms":60.0,)"
      R"("prefill_wait_ms":70.0,"sample_ms":80.0,"hold_ms":90.0,"deliver_ms":2610.0,"ttft_ms":4500.0,)"
      R"("chunks":3,"cached_tokens":0,"preemptions":1})");
  EXPECT_EQ(SumNs(timing), 4'500'000'000);
}

TEST_F(TimingTest, TheTimingStandsInTheLastJsonWithTheUsage) {
  StagePeer& peer = stage_->Connect();
  peer.Send(HttpPost("/v1/completions",
                     R"({"prompt":"hi","stream":true,"stream_options":{"include_usage":true}})", {kAsks}));
  stage_->Run();
  Say("a", 1);
  Say("b", 2);
  Finish();
  const std::vector<Json> events = EventsOf(ParseReply(peer.received()));
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.back()["usage"]["prompt_tokens"], 7);
  EXPECT_EQ(events.back()["timing"]["chunks"], 3);
  EXPECT_TRUE(ParseReply(peer.received()).body.ends_with("}\n\ndata: [DONE]\n\n"));
}

// Of two tokens: one gap of 8 ms, and 16 ms from where the queue was left.
TEST_F(TimingTest, TheMetricsOfOneChoiceStandBesideTheTimingOrWhereTheServerTellsAll) {
  constexpr char kMetrics[] =
      R"({"time_to_first_token_ms":8,"queue_time_ms":2,"generation_time_ms":8,"mean_itl_ms":8,)"
      R"("tokens_per_second":125,"speculative_decoding":null})";
  size_t n = 0;
  const auto last = [&](const std::string& body, const std::vector<std::string>& headers) {
    StagePeer& peer = stage_->Connect();
    peer.Send(HttpPost("/v1/completions", body, headers));
    stage_->Run();
    Say("a", 1, n);
    Say("b", 2, n);
    Finish(n++);
    const HttpReply reply = ParseReply(peer.received());
    if (reply.body.starts_with("{")) return *ParseJson(reply.body);
    return EventsOf(reply).back();
  };
  const std::string whole = R"({"prompt":"hi"})";
  const std::string usage = R"({"prompt":"hi","stream":true,"stream_options":{"include_usage":true}})";
  EXPECT_EQ(PrintJson(last(whole, {kAsks})["metrics"]), kMetrics);
  EXPECT_EQ(PrintJson(last(kStreamed, {kAsks})["metrics"]), kMetrics);
  EXPECT_FALSE(last(whole, {}).contains("metrics"));
  options_.per_request_metrics = true;
  EXPECT_EQ(PrintJson(last(whole, {})["metrics"]), kMetrics);
  EXPECT_EQ(PrintJson(last(usage, {})["metrics"]), kMetrics);
  EXPECT_FALSE(last(kStreamed, {}).contains("metrics")) << "no chunk is added for it";
  v1::Finished of_one_token;
  EXPECT_TRUE(MetricsJson(of_one_token)["time_to_first_token_ms"].is_null());
  EXPECT_FALSE(FindFault(MetricsShape(), MetricsJson(of_one_token), ""));
}

TEST_F(TimingTest, AWholeAnswersTimeEndsWhereItsFirstTextIsThere) {
  StagePeer& peer = stage_->Connect();
  peer.Send(HttpPost("/v1/completions", R"({"prompt":"hi"})", {kAsks}));
  stage_->Run();
  Say("a", 1);
  stage_->Advance(3000);  // to the last text
  Say("b", 2);
  Finish();
  const HttpReply reply = ParseReply(peer.received());
  const Json timing = (*ParseJson(reply.body))["timing"];
  EXPECT_EQ(timing["deliver_ms"], 0.0);
  EXPECT_EQ(timing["ttft_ms"], 390.0);
  EXPECT_EQ(reply.Header("server-timing"),
            "receive;dur=0.0, parse;dur=0.0, tokenize;dur=40.0, queue;dur=50.0, prefill_run;dur=60.0, "
            "prefill_wait;dur=70.0, sample;dur=80.0, hold;dur=90.0, deliver;dur=0.0, ttft;dur=390.0");
}

// The end of a stream whose content has left long before goes with its last text, as ever.
TEST_F(TimingTest, WithoutTheHeaderNothingDiffers) {
  const auto answer = [this](size_t n, const std::vector<std::string>& headers) {
    StagePeer& peer = stage_->Connect();
    peer.Send(HttpPost("/v1/completions", kStreamed, headers));
    stage_->Run();
    Call(n)->Put(StartedEvent(7));
    Call(n)->Put(DeltaEvent(0, "a", 1));
    Finish(n);
    std::string body = ParseReply(peer.received()).body;
    for (const char* key : {"\"id\":\"", "\"created\":"}) {  // of which every answer has its own
      for (size_t at = body.find(key); at != std::string::npos; at = body.find(key, at + 1)) {
        body.erase(at, body.find(',', at) - at);
      }
    }
    return std::pair(body, ParseReply(peer.received()).chunks);
  };
  const auto [plain, plain_chunks] = answer(0, {});
  EXPECT_EQ(answer(1, {"x-tramontane-timing: 0"}), std::pair(plain, plain_chunks));
  EXPECT_EQ(plain.find("timing"), std::string::npos);
  EXPECT_EQ(plain_chunks, 1) << "content and end in one write";
  auto [asked, asked_chunks] = answer(2, {kAsks});
  EXPECT_EQ(asked_chunks, 2) << "the end waits until the content has left";
  const size_t event = asked.rfind("data: {");
  EXPECT_EQ(asked.erase(event, asked.find("data: [DONE]") - event), plain);
}

TEST_F(TimingTest, AnAnswerWithoutContentHasNoTime) {
  for (const char* body : {kStreamed, R"({"prompt":"hi"})"}) {
    const size_t n = client_.calls_made();
    StagePeer& peer = stage_->Connect();
    peer.Send(HttpPost("/v1/completions", body, {kAsks}));
    stage_->Run();
    Call(n)->Put(StartedEvent(7));
    Finish(n);
    const HttpReply reply = ParseReply(peer.received());
    const Json json = n == 0 ? EventsOf(reply).back() : *ParseJson(reply.body);
    EXPECT_EQ(
        PrintJson(json["timing"]),
        R"({"receive_ms":null,"parse_ms":null,"tokenize_ms":null,"queue_ms":null,"prefill_run_ms":null,)"
        R"("prefill_wait_ms":null,"sample_ms":null,"hold_ms":null,"deliver_ms":null,"ttft_ms":null,)"
        R"("chunks":3,"cached_tokens":0,"preemptions":1})");
    EXPECT_EQ(reply.Header("server-timing"), "");
  }
}

// A call of a tool is told when its name is known.
TEST_F(TimingTest, WhatADialectKeepsBackIsHeld) {
  endpoint_ = AnswerChatCompletions;
  StagePeer& peer = stage_->Connect();
  peer.Send(HttpPost("/v1/chat/completions",
                     R"({"messages":[{"role":"user","content":"hi"}],"stream":true,
                         "tools":[{"type":"function","function":{"name":"f"}}]})",
                     {kAsks}));
  stage_->Run();
  v1::GenerateResponse marked = DeltaEvent(0, "[{\"name\": ", 1);
  marked.mutable_delta()->set_tool_calls_at(0);
  Call()->Put(StartedEvent(7));
  Call()->Put(marked);
  stage_->Run();
  EXPECT_EQ(peer.received(), "");
  stage_->Advance(2000);
  Say("\"f\"}]", 2);
  Finish();
  const std::vector<Json> events = EventsOf(ParseReply(peer.received()));
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.back()["timing"]["hold_ms"], 2090.0);
  EXPECT_EQ(SumNs(events.back()["timing"]),
            std::llround(events.back()["timing"]["ttft_ms"].get<double>() * 1e6));
}

TEST_F(TimingTest, ResponsesHaveItToo) {
  endpoint_ = AnswerResponses;
  for (const char* body : {R"({"input":"hi","stream":true})", R"({"input":"hi"})"}) {
    const size_t n = client_.calls_made();
    StagePeer& peer = stage_->Connect();
    peer.Send(HttpPost("/v1/responses", body, {kAsks}));
    stage_->Run();
    Say("a", 1, n);
    Finish(n);
    const HttpReply reply = ParseReply(peer.received());
    const Json json = n == 0 ? EventsOf(reply).back()["response"] : *ParseJson(reply.body);
    EXPECT_EQ(json["timing"]["ttft_ms"], 390.0) << reply.body;
    EXPECT_FALSE(FindFault(ResponsesAnswerShape(), json, ""));
  }
}

// The call whose content comes first, of several.
TEST_F(TimingTest, OfSeveralPromptsTheFirstContentCounts) {
  StagePeer& peer = stage_->Connect();
  peer.Send(HttpPost("/v1/completions", R"({"prompt":["a","b"],"stream":true})", {kAsks}));
  stage_->Run();
  Say("b", 1, 1);
  Finish(1);
  Call(0)->Put(StartedEvent(7));
  Call(0)->Put(DeltaEvent(0, "a", 1));
  Call(0)->Put(FinishedEvent(0, v1::FINISH_REASON_LENGTH, 7, 1));  // tells of no stages
  Call(0)->End();
  stage_->Run();
  EXPECT_EQ(EventsOf(ParseReply(peer.received())).back()["timing"]["ttft_ms"], 390.0);
}

// ---- /debug/trace ---------------------------------------------------------------------------------

// Counts how often it was asked.
class CountingTrace final : public TraceText {
 public:
  explicit CountingTrace(int64_t* open) : open_(*open) { ++open_; }
  ~CountingTrace() override { --open_; }
  std::string Next() override {
    const std::string text = (asked_ == 0 ? "[" : ",") + std::to_string(asked_ + 1);
    ++asked_;
    return text;
  }
  std::string End() override { return Next() + "]"; }

 private:
  int64_t& open_;
  int64_t asked_ = 0;
};

class DebugTrace : public TimingTest {
 protected:
  DebugTrace() {
    endpoint_ = AnswerTrace;
    options_.trace = [this] { return std::make_unique<CountingTrace>(&open_); };
  }
  HttpReply Ask(const std::string& query) {
    StagePeer& peer = stage_->Connect();
    peer.Send(HttpGet("/debug/trace" + query));
    stage_->Run();
    return ParseReply(peer.received());
  }
  int64_t open_ = 0;
};

TEST_F(DebugTrace, IsSentAsItComesAndEndsWhenItsTimeIsOver) {
  StagePeer& peer = stage_->Connect();
  peer.Send(HttpGet("/debug/trace?a=b&seconds=1.5"));
  stage_->Advance(1000);
  EXPECT_EQ(open_, 1);
  EXPECT_FALSE(peer.received().ends_with("0\r\n\r\n"));
  stage_->Advance(500);
  EXPECT_EQ(open_, 0);
  EXPECT_EQ(ParseReply(peer.received()).body, "[1,2,3]");
}

TEST_F(DebugTrace, AReaderThatDoesNotReadHoldsNothing) {
  StagePeer& peer = stage_->Connect(/*room=*/0);
  peer.Send(HttpGet("/debug/trace?seconds=5"));
  stage_->Advance(5000);
  EXPECT_EQ(open_, 0);
  peer.MakeRoom(1 << 20);
  stage_->Run();
  EXPECT_EQ(ParseReply(peer.received()).body, "[1,2]");
}

TEST_F(DebugTrace, AReaderThatHangsUpEndsIt) {
  StagePeer& peer = stage_->Connect();
  peer.Send(HttpGet("/debug/trace?seconds=60"));
  stage_->Advance(500);
  EXPECT_EQ(open_, 1);
  peer.Reset();
  stage_->Advance(500);
  EXPECT_EQ(open_, 0);
}

TEST_F(DebugTrace, SecondsOutOfRangeAreRefusedWithTheLimit) {
  for (const char* query : {"", "?seconds=", "?seconds=0", "?seconds=-1", "?seconds=60.5", "?seconds=nan",
                            "?seconds=1x", "?second=1"}) {
    const HttpReply reply = Ask(query);
    EXPECT_EQ(reply.status, 400) << query;
    const Json error = (*ParseJson(reply.body))["error"];
    EXPECT_EQ(error["param"], "seconds");
    EXPECT_NE(error["message"].get<std::string>().find("at most 60"), std::string::npos) << reply.body;
  }
  EXPECT_EQ(open_, 0);
}

// ---- /debug/kv ------------------------------------------------------------------------------------

// There once `ready` says so.
class TextWhenReady final : public PendingText {
 public:
  TextWhenReady(const bool* ready, int64_t* open) : ready_(*ready), open_(*open) { ++open_; }
  ~TextWhenReady() override { --open_; }
  std::optional<std::string> Take() override {
    return ready_ ? std::optional<std::string>("{\"page_size\":16}") : std::nullopt;
  }

 private:
  const bool& ready_;
  int64_t& open_;
};

class DebugKv : public TimingTest {
 protected:
  DebugKv() {
    endpoint_ = AnswerKvTables;
    options_.kv_tables = [this](RpcError* refusal) -> std::unique_ptr<PendingText> {
      if (refused_) *refusal = UnavailableError("LOADING", "the model is loading");
      if (refused_) return nullptr;
      return std::make_unique<TextWhenReady>(&ready_, &open_);
    };
  }
  bool ready_ = false;
  bool refused_ = false;
  int64_t open_ = 0;
};

TEST_F(DebugKv, IsAnsweredWhenTheEngineHasTold) {
  StagePeer& peer = stage_->Connect();
  peer.Send(HttpGet("/debug/kv"));
  stage_->Advance(5000);
  EXPECT_EQ(peer.received(), "");
  EXPECT_EQ(open_, 1);
  ready_ = true;
  stage_->Advance(500);
  const HttpReply reply = ParseReply(peer.received());
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.body, "{\"page_size\":16}");
  EXPECT_EQ(open_, 0);
}

TEST_F(DebugKv, AnEngineThatDoesNotStepIsA503AfterAMinute) {
  StagePeer& peer = stage_->Connect();
  peer.Send(HttpGet("/debug/kv"));
  stage_->Advance(59'000);
  EXPECT_EQ(peer.received(), "");
  stage_->Advance(1500);
  const HttpReply reply = ParseReply(peer.received());
  EXPECT_EQ(reply.status, 503);
  EXPECT_NE(reply.body.find("no step for 60 seconds"), std::string::npos) << reply.body;
  EXPECT_EQ(open_, 0);
}

TEST_F(DebugKv, AReaderThatHangsUpAsksNoMore) {
  StagePeer& peer = stage_->Connect();
  peer.Send(HttpGet("/debug/kv"));
  stage_->Advance(500);
  EXPECT_EQ(open_, 1);
  peer.Reset();
  stage_->Advance(500);
  EXPECT_EQ(open_, 0);
}

TEST_F(DebugKv, WhatCannotBeAskedSaysWhy) {
  refused_ = true;
  StagePeer& peer = stage_->Connect();
  peer.Send(HttpGet("/debug/kv"));
  stage_->Run();
  EXPECT_EQ(ParseReply(peer.received()).status, 503);
  EXPECT_NE(peer.received().find("the model is loading"), std::string::npos) << peer.received();
}

}  // namespace
}  // namespace tramontane

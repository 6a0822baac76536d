// The HTTP transport against a server that answers by script: outcomes, counts and order, never the clock.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench/load/connect.h"
#include "bench/load/wire/self_check.h"
#include "tests/load/scripted/scripted_target.h"
#include "tests/load/scripted/scripts.h"
#include "tests/load/wire/recorded_requests.h"

namespace tramontane::load {
namespace {

using ::testing::AllOf;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Le;
using ::testing::Not;

constexpr int64_t kMs = 1'000'000;

std::unique_ptr<ScriptedTarget> StartTarget(ScriptedTarget::Choose choose) {
  auto target = ScriptedTarget::Start(std::move(choose));
  EXPECT_TRUE(target.ok()) << target.status();
  return std::move(*target);
}

TargetOptions OptionsFor(const std::string& url) {
  TargetOptions options;
  options.url = url;
  options.model = "scripted";
  options.timeout_s = 10;
  return options;
}

// One request to a server that answers each with `script`.
RequestRecord RecordOf(const Script& script, int64_t deadline_ns = kLongDeadlineNs) {
  const auto target = StartTarget([&](const ScriptedRequest&) { return script; });
  const auto transport = MustConnect(OptionsFor(target->url()));
  RecordedRequests requests(*transport);
  requests.Send("one", deadline_ns);
  return requests.WaitFor("one");
}

// A port that nothing listens on.
std::string DeadUrl() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  close(fd);
  return "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
}

TEST(HttpTransport, EachEventHasTheStampOfTheReadThatBroughtIt) {
  StreamScript stream;
  stream.ttft_ns = 20 * kMs;
  stream.gap_ns = 5 * kMs;
  stream.events = 6;
  stream.tokens_per_event = 2;
  const auto target = StartTarget([&](const ScriptedRequest&) { return Stream(stream); });
  const auto transport = MustConnect(OptionsFor(target->url()));
  RecordedRequests requests(*transport);
  requests.Send("one");
  const RequestRecord record = requests.WaitFor("one");
  EXPECT_EQ(record.outcome, Outcome::kOk) << record.error;
  EXPECT_EQ(record.output_tokens, 12);
  EXPECT_EQ(record.input_tokens, 7);
  EXPECT_EQ(record.output_tokens_from, TokenCountFrom::kUsage);
  EXPECT_EQ(record.status, 200);
  EXPECT_EQ(record.reconnects, 0);
  ASSERT_EQ(record.content_ns.size(), 6u);
  EXPECT_TRUE(std::is_sorted(record.content_ns.begin(), record.content_ns.end()));
  const ScriptLog log = target->Logs().at("one");
  ASSERT_EQ(log.writes.size(), 7u);  // the head, then an event each
  for (size_t i = 0; i < 6; ++i) EXPECT_THAT(record.content_ns[i], Ge(log.writes[i + 1].wrote_ns));
  EXPECT_THAT(record.intended_ns, Le(record.sent_ns));
  EXPECT_THAT(record.connected_ns.value(), AllOf(Ge(record.sent_ns), Le(record.headers_ns.value())));
  EXPECT_THAT(record.headers_ns.value(), Ge(log.writes[0].wrote_ns));
  EXPECT_EQ(record.first_any_ns, record.content_ns.front());
  EXPECT_THAT(record.done_ns.value(), Ge(record.content_ns.back()));
}

TEST(HttpTransport, EventsThatCameTogetherShareAStamp) {
  StreamScript stream;
  stream.events = 6;
  stream.events_per_write = 3;
  stream.gap_ns = 50 * kMs;
  const RequestRecord record = RecordOf(Stream(stream));
  ASSERT_EQ(record.content_ns.size(), 6u);
  EXPECT_EQ(record.content_ns[0], record.content_ns[2]);
  EXPECT_LT(record.content_ns[2], record.content_ns[3]);
  EXPECT_EQ(record.content_ns[3], record.content_ns[5]);
}

TEST(HttpTransport, EveryKindOfEndHasItsOutcome) {
  StreamScript stream;
  stream.events = 3;
  stream.gap_ns = kMs;
  struct Row {
    std::string name;
    Script script;
    size_t content_events;
  };
  const std::vector<Row> rows = {
      {"ok", Stream(stream), 3},
      {"http_429", StatusAnswer(429, "7", "queue full"), 0},
      {"http_500", StatusAnswer(500, "", "oh"), 0},
      {"http_404", StatusAnswer(404, "", "no such model"), 0},
      {"stream_error", ErrorEventAfter(stream), 3},
      {"closed_early", BrokenOff(stream, ScriptEnd::kClose), 3},
      {"closed_early", BrokenOff(stream, ScriptEnd::kReset), 3},
      {"closed_early", ClosedWithoutAByte(), 0},
      {"ok", NoTokens(), 0},
      {"no_content", NothingButDone(), 0},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    const RequestRecord record = RecordOf(row.script);
    EXPECT_EQ(OutcomeName(record.outcome, record.status), row.name) << record.error;
    EXPECT_EQ(record.content_ns.size(), row.content_events);
    EXPECT_EQ(record.error.empty(), record.outcome == Outcome::kOk);
  }
}

TEST(HttpTransport, ARefusalSaysWhyAndWhenToTryAgain) {
  const RequestRecord record = RecordOf(StatusAnswer(429, "7", "queue full"));
  EXPECT_EQ(record.retry_after_s, 7.0);
  EXPECT_EQ(record.error, "HTTP 429: queue full");
}

TEST(HttpTransport, WhatIsNoAnswerIsGarbage) {
  for (const NamedScript& garbage : GarbageScripts()) {
    const RequestRecord record = RecordOf(garbage.script);
    EXPECT_EQ(record.outcome, Outcome::kGarbage) << garbage.name << ": " << record.error;
    EXPECT_NE(record.error, "") << garbage.name;
  }
}

TEST(HttpTransport, DeadlinesHoldWhateverTheServerDoes) {
  StreamScript stalls;
  stalls.events = 2;
  stalls.gap_ns = kLongDeadlineNs;
  for (const Script& script : {SilentFromTheBegin(), Silent(), SlowHead(20 * kMs), Stream(stalls)}) {
    const RequestRecord record = RecordOf(script, 300 * kMs);
    EXPECT_EQ(record.outcome, Outcome::kTimeout) << record.error;
    EXPECT_THAT(record.error, HasSubstr("300 ms"));
    EXPECT_FALSE(record.done_ns.has_value());
  }
}

TEST(HttpTransport, ADeadTargetRefusesEveryRequest) {
  const auto transport = MustConnect(OptionsFor(DeadUrl()));
  RecordedRequests requests(*transport);
  for (int i = 0; i < 20; ++i) requests.Send(std::to_string(i));
  for (const auto& [id, record] : requests.Wait()) {
    EXPECT_EQ(record.outcome, Outcome::kRefused) << id;
    EXPECT_NE(record.error, "");
    EXPECT_EQ(record.status, 0);
    EXPECT_FALSE(record.connected_ns.has_value());
    EXPECT_GT(record.sent_ns, 0);
  }
  EXPECT_EQ(requests.ended(), 20u);
}

TEST(HttpTransport, AHostThatNobodyKnowsRefusesEveryRequest) {
  const auto transport = MustConnect(OptionsFor("http://no-such-host.invalid:8000"));
  RecordedRequests requests(*transport);
  requests.Send("one");
  EXPECT_EQ(requests.WaitFor("one").outcome, Outcome::kRefused);
}

TEST(HttpTransport, ConnectionsAreKept) {
  const auto target = StartTarget([](const ScriptedRequest&) { return Stream({}); });
  const auto transport = MustConnect(OptionsFor(target->url()));
  RecordedRequests requests(*transport);
  for (int i = 0; i < 5; ++i) {
    requests.Send(std::to_string(i));
    requests.Wait();
  }
  EXPECT_EQ(target->accepted(), 1);
  const auto records = requests.Wait();
  EXPECT_TRUE(records.at("0").connected_ns.has_value());
  EXPECT_FALSE(records.at("4").connected_ns.has_value());  // it was
  for (const auto& [id, record] : records) EXPECT_EQ(record.outcome, Outcome::kOk) << id << record.error;
}

TEST(HttpTransport, AKeptConnectionThatClosesWithoutAByteIsOpenedOnceAgain) {
  std::atomic<bool> always = false;
  const auto target = StartTarget([&](const ScriptedRequest& request) {
    const bool closes = request.on_connection > 1 || (always && request.request_id == "third");
    return closes ? ClosedWithoutAByte() : Stream({});
  });
  const auto transport = MustConnect(OptionsFor(target->url()));
  RecordedRequests requests(*transport);
  requests.Send("first");
  requests.Wait();
  requests.Send("second");
  const RequestRecord second = requests.WaitFor("second");
  EXPECT_EQ(second.outcome, Outcome::kOk) << second.error;
  EXPECT_EQ(second.reconnects, 1);
  EXPECT_TRUE(second.connected_ns.has_value());
  EXPECT_EQ(target->accepted(), 2);
  always = true;
  requests.Send("third");
  const RequestRecord third = requests.WaitFor("third");
  EXPECT_EQ(third.outcome, Outcome::kClosedEarly);
  EXPECT_EQ(third.reconnects, 1);
  EXPECT_EQ(target->accepted(), 3);
}

TEST(HttpTransport, AbortEndsEachRequestOnceAsUnfinished) {
  const auto target = StartTarget([](const ScriptedRequest&) { return Silent(); });
  const auto transport = MustConnect(OptionsFor(target->url()));
  RecordedRequests requests(*transport);
  for (int i = 0; i < 30; ++i) requests.Send(std::to_string(i));
  transport->Abort();
  EXPECT_EQ(requests.ended(), 30u);
  for (const auto& [id, record] : requests.Wait()) EXPECT_EQ(record.outcome, Outcome::kUnfinished) << id;
  requests.Send("late", 200 * kMs);  // a transport goes on behind an abort
  EXPECT_EQ(requests.WaitFor("late").outcome, Outcome::kTimeout);
}

TEST(HttpTransport, SeveralThreadsShareTheRequests) {
  StreamScript stream;
  stream.events = 10;
  stream.gap_ns = kMs;
  const auto target = StartTarget([&](const ScriptedRequest&) { return Stream(stream); });
  TargetOptions options = OptionsFor(target->url());
  options.threads = 3;
  const auto transport = MustConnect(options);
  RecordedRequests requests(*transport);
  for (int i = 0; i < 200; ++i) requests.Send(std::to_string(i));
  const auto records = requests.Wait();
  ASSERT_EQ(records.size(), 200u);
  EXPECT_EQ(requests.ended(), 200u);
  for (const auto& [id, record] : records) {
    EXPECT_EQ(record.outcome, Outcome::kOk) << id << ": " << record.error;
    EXPECT_EQ(record.content_ns.size(), 10u);
  }
  EXPECT_GT(transport->Load().cpu_ns, 0);
}

TEST(HttpTransport, AnswersMayOrderTheNextRequests) {
  const auto target = StartTarget([](const ScriptedRequest&) { return Stream({}); });
  const auto transport = MustConnect(OptionsFor(target->url()));
  std::mutex mutex;
  std::condition_variable ended;
  int left = 20;
  std::function<void()> send = [&] {
    OutgoingRequest request;
    request.request_id = "r";
    request.ids = {1};
    request.deadline_ns = kLongDeadlineNs;
    transport->Send(request, [&](const RequestRecord& record) {
      EXPECT_EQ(record.outcome, Outcome::kOk);
      const std::lock_guard<std::mutex> lock(mutex);
      if (--left > 0) send();
      ended.notify_all();
    });
  };
  send();
  std::unique_lock<std::mutex> lock(mutex);
  ended.wait(lock, [&] { return left == 0; });
}

// ---- what is sent -------------------------------------------------------------------------------

// The one request that a server sees.
ScriptedRequest Seen(TargetOptions options, OutgoingRequest outgoing) {
  ScriptedRequest seen;
  std::mutex mutex;
  const auto target = StartTarget([&](const ScriptedRequest& request) {
    const std::lock_guard<std::mutex> lock(mutex);
    seen = request;
    return Stream({});
  });
  options.url = target->url() + options.url;  // the path in front
  const auto transport = MustConnect(options);
  outgoing.request_id = "req-1";
  outgoing.deadline_ns = kLongDeadlineNs;
  RecordedRequests requests(*transport);
  requests.Send(outgoing);
  EXPECT_EQ(requests.WaitFor("req-1").outcome, Outcome::kOk);
  const std::lock_guard<std::mutex> lock(mutex);
  return seen;
}

TEST(HttpRequest, ACompletionCarriesIdsAndAsksForUsage) {
  OutgoingRequest outgoing;
  outgoing.ids = {1300, 1999, 7};
  outgoing.output_tokens = 12;
  const ScriptedRequest seen = Seen(OptionsFor(""), outgoing);
  EXPECT_EQ(seen.method, "POST");
  EXPECT_EQ(seen.path, "/v1/completions");
  EXPECT_EQ(nlohmann::json::parse(seen.body), nlohmann::json::parse(R"({"model":"scripted","stream":true,
      "stream_options":{"include_usage":true},"ignore_eos":true,"prompt":[1300,1999,7],"max_tokens":12})"));
  EXPECT_THAT(seen.head, HasSubstr("\r\nx-request-id: req-1\r\n"));
  EXPECT_THAT(seen.head, HasSubstr("\r\nHost: 127.0.0.1:"));
  EXPECT_THAT(seen.head, Not(HasSubstr("uthorization")));
  EXPECT_THAT(seen.head, Not(HasSubstr("x-tramontane-timing")));
}

TEST(HttpRequest, AChatCarriesText) {
  TargetOptions options = OptionsFor("/deployed/v1/");
  options.endpoint = Endpoint::kChat;
  options.ignore_eos = false;
  options.timing = true;
  options.api_key = "sk-secret";
  options.headers = {{"X-Team", "blue"}};
  OutgoingRequest outgoing;
  outgoing.text = "say \"\u00e9\"\n";
  outgoing.output_tokens = 3;
  const ScriptedRequest seen = Seen(options, outgoing);
  EXPECT_EQ(seen.path, "/deployed/v1/chat/completions");
  EXPECT_EQ(nlohmann::json::parse(seen.body), nlohmann::json::parse(R"({"model":"scripted","stream":true,
      "stream_options":{"include_usage":true},"messages":[{"role":"user","content":"say \"\u00e9\"\n"}],
      "max_tokens":3})"));
  EXPECT_THAT(seen.head, HasSubstr("\r\nX-Team: blue\r\n"));
  EXPECT_THAT(seen.head, HasSubstr("\r\nAuthorization: Bearer sk-secret\r\n"));
  EXPECT_THAT(seen.head, HasSubstr("\r\nx-tramontane-timing: 1\r\n"));
}

TEST(HttpRequest, TheExtraBodyJoins) {
  TargetOptions options = OptionsFor("");
  options.extra_body = R"({"temperature":0,"ignore_eos":null,"max_tokens":null,"max_completion_tokens":9,
                           "stream_options":{"continuous_usage_stats":true}})";
  OutgoingRequest outgoing;
  outgoing.text = "x";
  const ScriptedRequest seen = Seen(options, outgoing);
  EXPECT_EQ(nlohmann::json::parse(seen.body), nlohmann::json::parse(R"({"model":"scripted","stream":true,
      "stream_options":{"include_usage":true,"continuous_usage_stats":true},"temperature":0,
      "max_completion_tokens":9,"prompt":"x"})"));
}

TEST(HttpRequest, OptionsThatCannotBeAreRefusedByName) {
  struct Row {
    const char* url;
    const char* extra_body;
    const char* header;
    const char* says;
  };
  const std::vector<Row> rows = {
      {"localhost:8000", "", "", "--target"},
      {"ftp://localhost:8000", "", "", "http, https, grpc or grpcs"},
      {"http://", "", "", "--target"},
      {"http://h:99999", "", "", "--target"},
      {"http://h:0", "", "", "--target"},
      {"grpc://h", "", "", "HOST:PORT"},
      {"grpc://h:1/v1", "", "", "no path"},
      {"http://h:1/a?b", "", "", "path"},
      {"http://h:1", "[1]", "", "--extra-body"},
      {"http://h:1", "{", "", "--extra-body"},
      {"http://h:1", "{\"prompt\":1}", "", "prompt"},
      {"http://h:1", "{\"stream\":false}", "", "stream"},
      {"http://h:1", "{\"max_tokens\":1}", "", "--output-tokens"},
      {"grpc://h:1", "{\"top_k\":1}", "", "--extra-body"},
      {"http://h:1", "", "bad name", "--header"},
      {"http://h:1", "", "Content-Length", "--header"},
      {"https://h:1", "", "ca", "--ca"},
  };
  for (const Row& row : rows) {
    TargetOptions options = OptionsFor(row.url);
    options.extra_body = row.extra_body;
    const bool is_ca = std::string(row.header) == "ca";
    if (is_ca) options.ca_file = "/no/such/file.pem";
    if (!is_ca && *row.header != '\0') options.headers = {{row.header, "x"}};
    const auto transport = Connect(options);
    ASSERT_FALSE(transport.ok()) << row.url << row.extra_body << row.header;
    EXPECT_EQ(transport.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(transport.status().message(), HasSubstr(row.says));
  }
}

// ---- plain questions ----------------------------------------------------------------------------

Script PlainAnswerScript(int32_t status, const std::string& body) {
  Script script;
  script.writes.push_back({0,
                           "HTTP/1.1 " + std::to_string(status) +
                               " X\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body,
                           0});
  return script;
}

TEST(PlainQuestions, TheFirstServedModelIsAsked) {
  const auto target = StartTarget([](const ScriptedRequest& request) {
    EXPECT_EQ(request.method + " " + request.path, "GET /v1/models");
    return PlainAnswerScript(200, R"({"object":"list","data":[{"id":"one"},{"id":"two"}]})");
  });
  const StatusOr<std::string> model = FirstServedModel(OptionsFor(target->url()));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(*model, "one");
}

TEST(PlainQuestions, AnAnswerWithoutModelsIsAnErrorThatNamesTheFlag) {
  for (const char* body : {"{}", "<html>", R"({"data":[]})", R"({"data":[{"name":"x"}]})"}) {
    const auto target = StartTarget([&](const ScriptedRequest&) { return PlainAnswerScript(200, body); });
    const StatusOr<std::string> model = FirstServedModel(OptionsFor(target->url()));
    ASSERT_FALSE(model.ok());
    EXPECT_EQ(model.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(model.status().message(), HasSubstr("--model"));
  }
  EXPECT_EQ(FirstServedModel(OptionsFor(DeadUrl())).status().code(), StatusCode::kUnavailable);
}

TEST(PlainQuestions, AnswersComeWithTheirStatus) {
  const auto target = StartTarget([](const ScriptedRequest& request) {
    EXPECT_EQ(request.body, R"({"prompt":"x"})");
    return PlainAnswerScript(request.path == "/tokenize" ? 200 : 404, "body of " + request.path);
  });
  const auto found = Ask(OptionsFor(target->url()), {"POST", "/tokenize", R"({"prompt":"x"})"});
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->status, 200);
  EXPECT_EQ(found->body, "body of /tokenize");
  EXPECT_EQ(Ask(OptionsFor(target->url()), {"POST", "/other", R"({"prompt":"x"})"})->status, 404);
}

TEST(PlainQuestions, NothingIsWaitedForLongerThanTheTimeout) {
  for (const Script& script : {SilentFromTheBegin(), ClosedWithoutAByte(), SlowHead(20 * kMs)}) {
    const auto target = StartTarget([&](const ScriptedRequest&) { return script; });
    TargetOptions options = OptionsFor(target->url());
    options.timeout_s = 0.3;
    EXPECT_EQ(Ask(options, {"GET", "/metrics", ""}).status().code(), StatusCode::kAborted);
  }
}

TEST(HttpTransport, AHeaderThatIsNoneIsNotShown) {
  TargetOptions options = OptionsFor(DeadUrl());
  options.headers = {{"Authorization", "sk-secret\x01"}};
  const auto transport = Connect(options);
  ASSERT_FALSE(transport.ok());
  EXPECT_THAT(transport.status().message(), AllOf(HasSubstr("--header"), HasSubstr("Authorization")));
  EXPECT_THAT(transport.status().message(), Not(HasSubstr("secret")));
}

// A dead target is what the requests are to find; one that is there and fails is a fault to be told.
TEST(PlainQuestions, AFailedQuestionForModelsIsNoDeadTarget) {
  std::vector<Script> scripts = {PlainAnswerScript(500, R"({"data":[{"id":"one"}]})"), ClosedWithoutAByte(),
                                 StatusAnswer(401, "", "who are you"), SilentFromTheBegin()};
  for (const NamedScript& garbage : GarbageScripts()) scripts.push_back(garbage.script);
  for (const Script& script : scripts) {
    const auto target = StartTarget([&](const ScriptedRequest&) { return script; });
    TargetOptions options = OptionsFor(target->url());
    options.timeout_s = 0.3;
    const StatusOr<std::string> model = FirstServedModel(options);
    EXPECT_EQ(model.status().code(), StatusCode::kInvalidArgument) << model.status();
    EXPECT_THAT(model.status().message(), HasSubstr("--model"));
  }
}

TEST(PlainQuestions, WhatAServerSaysOfItsModelsIsShownWithoutSecretsAndEscapes) {
  const std::string key = "sk-abcdefghijklmnopqrstuvwxyz";
  std::vector<std::string> bodies = {R"({"data":[{"id":"\u001b[2Jm"}]})", R"({"data":[{"id":""}]})"};
  for (size_t before = 0; before < 250; before += 7)
    bodies.push_back(std::string(before, '-') + key + "\x1b[2J");
  for (const std::string& body : bodies) {
    const auto target = StartTarget([&](const ScriptedRequest&) { return PlainAnswerScript(200, body); });
    TargetOptions options = OptionsFor(target->url());
    options.api_key = key;
    const std::string message(FirstServedModel(options).status().message());
    EXPECT_THAT(message, AllOf(HasSubstr("--model"), Not(HasSubstr("sk-a")), Not(HasSubstr("\x1b")))) << body;
  }
}

// ---- --check ------------------------------------------------------------------------------------

TEST(SelfCheck, ComparesWhatItMeasuredOfEveryAnswer) {
  const auto report = RunCheck(3);  // its times are for an idle machine, and of no matter here
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->Table(), HasSubstr("\nwhole answers "));
  EXPECT_EQ(report->lines.at(0).truth, "3");
  EXPECT_EQ(report->lines[0].measured, "3");
  EXPECT_TRUE(report->lines[0].holds);
  EXPECT_EQ(report->lines.at(2).metric, "ttft_ms, 3 samples");
  EXPECT_EQ(report->lines.at(3).metric, "itl_ms, 9 samples");
}

TEST(SelfCheck, HoldsWhereEachLineHolds) {
  CheckReport report;
  report.lines.push_back({"tokens", "8", "8", "0", true});
  EXPECT_TRUE(report.holds());
  EXPECT_THAT(report.Table(), Not(HasSubstr("EXCEEDED")));
  report.lines.push_back({"events", "8", "7", "-1", false});
  EXPECT_FALSE(report.holds());
  EXPECT_THAT(report.Table(), HasSubstr("EXCEEDED"));
}

}  // namespace
}  // namespace tramontane::load

// API keys, asked for at both doors of a server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/access/doorkeeper.h"
#include "server/remote/from_grpc_status.h"
#include "server/sessions/session_folder.h"
#include "tests/server/scripted_server.h"
#include "tests/support/http_test_client.h"
#include "tests/support/metrics_text.h"
#include "tests/support/temp_folder.h"
#include "tests/support/wait_for.h"

namespace tramontane {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kCompletion[] = R"({"prompt":[300,301,302],"max_tokens":2})";
using Metadata = std::vector<std::pair<std::string, std::string>>;

class KeyedServer : public ::testing::Test {
 protected:
  KeyedServer() {
    folder_.Write("keys.json", R"({"keys":[
        {"name":"alice","key":"key-of-alice"},
        {"name":"bob","key":"key-of-bob","models":["another"]},
        {"name":"carol","key":"key-of-carol","max_concurrent":1},
        {"name":"dave","key":"key-of-dave","requests_per_minute":2,"tokens_per_minute":6000,
         "priority":-5,"weight":3},
        {"name":"erin","key":"key-of-erin","tokens_per_minute":1},
        {"name":"gate","key":"key-of-gate","gateway":true}]})");
    std::vector<std::string> warnings;
    ScriptedServerOptions options;
    options.server.session_dir = saved_.path();
    options.server.http_address = "127.0.0.1:0";
    options.server.doorkeeper =
        std::make_shared<const Doorkeeper>(*KeyRing::Open(folder_.PathOf("keys.json"), &warnings));
    server_ = std::make_unique<ScriptedServer>(std::move(options));
  }

  HttpReply Ask(const std::string& request) const { return Fetch(server_->server().http_address(), request); }
  static std::string WithKey(const std::string& request, const std::string& key) {
    const size_t line = request.find("\r\n") + 2;
    return request.substr(0, line) + "Authorization: Bearer " + key + "\r\n" + request.substr(line);
  }
  grpc::Status Generate(const Metadata& metadata) {
    Stream stream(server_->stub(), RequestOfIds({300, 301, 302}, 2), metadata);
    return stream.ReadAll();
  }

  TempFolder folder_, saved_;
  std::unique_ptr<ScriptedServer> server_;
};

TEST_F(KeyedServer, WhatIsNoKeyIsRefusedWithTheSameBytesWhateverIsWrong) {
  const HttpReply none = Ask(HttpPost("/v1/completions", kCompletion));
  EXPECT_EQ(none.status, 401);
  EXPECT_EQ(none.Header("www-authenticate"), "Bearer");
  EXPECT_THAT(none.body, HasSubstr("\"type\":\"authentication_error\""));
  EXPECT_THAT(none.body, HasSubstr("\"code\":\"invalid_api_key\""));
  for (const std::string& key : {std::string("guess"), std::string(600, 'x'), std::string()}) {
    EXPECT_EQ(Ask(WithKey(HttpPost("/v1/completions", kCompletion), key)).body, none.body) << key;
  }
  EXPECT_EQ(Ask(WithKey(HttpPost("/v1/completions", kCompletion), "key-of-alice")).status, 200);

  const grpc::Status refused = Generate({});
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  for (const char* key : {"Bearer guess", "Basic key-of-alice", ""}) {
    EXPECT_EQ(Generate({{"authorization", key}}).error_message(), refused.error_message()) << key;
  }
  EXPECT_TRUE(Generate({{"authorization", "Bearer key-of-alice"}}).ok());
  EXPECT_TRUE(Generate({{"x-api-key", "key-of-alice"}}).ok());
  EXPECT_EQ(server_->client().GetModel().status().code(), StatusCode::kUnauthenticated);
}

TEST_F(KeyedServer, TheAnswerComesBeforeTheBody) {
  HttpTestClient client(server_->server().http_address());
  ASSERT_TRUE(
      client.Send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                  "Content-Length: 1000000\r\n\r\n"));
  const HttpReply reply = client.Read();
  EXPECT_EQ(reply.status, 401);
  EXPECT_EQ(reply.Header("connection"), "close");
}

TEST_F(KeyedServer, ProbesPathsAndPreflightsNeedNone) {
  for (const char* path : {"/health", "/ready", "/ping", "/version", "/metrics"}) {
    EXPECT_EQ(Ask(HttpGet(path)).status, 200) << path;
  }
  EXPECT_EQ(Ask(HttpGet("/nowhere")).status, 404);
  EXPECT_EQ(Ask("OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n\r\n").status, 204);
  for (const char* path : {"/v1/models", "/v1/sessions", "/load", "/openapi.json", "/tokenizer_info"}) {
    EXPECT_EQ(Ask(HttpGet(path)).status, 401) << path;
  }
}

TEST_F(KeyedServer, AKeyForOtherModelsSeesAndUsesNone) {
  const HttpReply list = Ask(WithKey(HttpGet("/v1/models"), "key-of-bob"));
  EXPECT_EQ(list.status, 200);
  EXPECT_THAT(list.body, HasSubstr("\"data\":[]"));
  const HttpReply refused = Ask(WithKey(HttpPost("/v1/completions", kCompletion), "key-of-bob"));
  EXPECT_EQ(refused.status, 403);
  EXPECT_THAT(refused.body, HasSubstr("permission_error"));
  EXPECT_EQ(Generate({{"x-api-key", "key-of-bob"}}).error_code(), grpc::StatusCode::PERMISSION_DENIED);
}

TEST_F(KeyedServer, AKeyHasAsManyRequestsAsItMayAtBothDoorsTogether) {
  server_->model().SetStepTime(20'000);
  const Metadata carol = {{"x-api-key", "key-of-carol"}};
  Stream running(server_->stub(), RequestOfIds({300, 301, 302}, 20000), carol);
  ASSERT_TRUE(running.Next());
  const HttpReply refused = Ask(WithKey(HttpPost("/v1/completions", kCompletion), "key-of-carol"));
  EXPECT_EQ(refused.status, 429);
  EXPECT_THAT(refused.body, HasSubstr("key_concurrency"));
  EXPECT_EQ(refused.Header("x-should-retry"), "") << "time mends it";
  EXPECT_TRUE(Generate({{"x-api-key", "key-of-alice"}}).ok()) << "others go on";
  running.Cancel();
  running.ReadAll();
  server_->model().SetStepTime(0);
  const auto is_free = [this] {
    return Ask(WithKey(HttpPost("/v1/completions", kCompletion), "key-of-carol")).status == 200;
  };
  bool freed = false;
  for (int tries = 0; tries < 600 && !freed; ++tries) freed = is_free();
  EXPECT_TRUE(freed);
  const std::string prompts = R"({"prompt":[[300,301],[302,303]],"max_tokens":2})";
  EXPECT_EQ(Ask(WithKey(HttpPost("/v1/completions", prompts), "key-of-carol")).status, 200)
      << "a request of two prompts is one";
}

TEST_F(KeyedServer, SessionsAreTheirKeysOwnAndAGatewaySaysWhoseTheyAre) {
  const std::string begin = R"({"prompt":[300,301,302],"max_tokens":2,"session":"tea"})";
  EXPECT_EQ(Ask(WithKey(HttpPost("/v1/completions", begin), "key-of-alice")).status, 200);
  const auto list = [this](const std::string& request) { return Ask(request).body; };
  EXPECT_THAT(list(WithKey(HttpGet("/v1/sessions"), "key-of-alice")), HasSubstr("\"tea\""));
  EXPECT_THAT(list(WithKey(HttpGet("/v1/sessions"), "key-of-carol")), Not(HasSubstr("\"tea\"")));
  std::string through = WithKey(HttpGet("/v1/sessions"), "key-of-gate");
  EXPECT_THAT(list(through), Not(HasSubstr("\"tea\"")));
  through.insert(through.find("\r\n") + 2, "x-tramontane-caller: alice\r\n");
  EXPECT_THAT(list(through), HasSubstr("\"tea\""));
}

TEST_F(KeyedServer, WhatAKeySavedIsAbsentForOthersWhereverTheFileIs) {
  const std::string begin = R"({"prompt":[300,301,302],"max_tokens":2,"session":"tea"})";
  const auto act = [this](const std::string& path, const std::string& key) {
    return Ask(WithKey(HttpPost("/v1/sessions/" + path, ""), key));
  };
  ASSERT_EQ(Ask(WithKey(HttpPost("/v1/completions", begin), "key-of-alice")).status, 200);
  ASSERT_EQ(act("tea/save", "key-of-alice").status, 200);
  const HttpReply absent = act("tea/restore", "key-of-carol");
  EXPECT_EQ(absent.status, 404);
  const std::string own = saved_.PathOf(SessionFileName("tea", "", "alice"));
  for (const char* owner : {"carol", "gate", ""}) {
    std::filesystem::copy(own, saved_.PathOf(SessionFileName("tea", "", owner)));
  }
  for (const char* key : {"key-of-carol", "key-of-gate"}) {
    EXPECT_EQ(act("tea/restore", key).status, 404);
    EXPECT_EQ(act("tea/restore", key).body, absent.body);
  }
  EXPECT_EQ(act("tea/restore", "key-of-alice").status, 200);
  std::string through = WithKey(HttpPost("/v1/sessions/tea/restore", ""), "key-of-gate");
  through.insert(through.find("\r\n") + 2, "x-tramontane-caller: alice\r\n");
  EXPECT_EQ(Ask(through).status, 200);
}

TEST_F(KeyedServer, WhatARequestTakesIsItsKeysPartAndNoBetterThanItsPriority) {
  const auto ask = [this](const std::string& key, const std::string& priority) {
    const std::string body = R"({"prompt":[300],"max_tokens":1,"priority":)" + priority + "}";
    return Ask(WithKey(HttpPost("/v1/completions", body), key));
  };
  const HttpReply held = ask("key-of-dave", "-6");
  EXPECT_EQ(held.Header("x-tramontane-ignored"), "priority");
  ShareParams share = server_->model().last_share();
  EXPECT_EQ(share.caller, "dave");
  EXPECT_EQ(share.weight, 3);
  EXPECT_EQ(share.priority, -5);
  EXPECT_EQ(ask("key-of-alice", "4").Header("x-tramontane-ignored"), "");
  share = server_->model().last_share();
  EXPECT_EQ(share.caller, "alice");
  EXPECT_EQ(share.weight, 1);
  EXPECT_EQ(share.priority, 4);
  const std::string two = R"({"prompt":[[300],[301]],"max_tokens":1,"user":"u","priority":-1})";
  EXPECT_EQ(Ask(WithKey(HttpPost("/v1/completions", two), "key-of-alice")).Header("x-tramontane-ignored"),
            "user, priority")
      << "once of all prompts";
  EXPECT_EQ(ask("key-of-gate", "-9").Header("x-tramontane-ignored"), "");
  share = server_->model().last_share();
  EXPECT_EQ(share.caller, "") << "a gateway's own call takes nobody's part";
  EXPECT_EQ(share.priority, -9);
  EXPECT_TRUE(Generate({{"x-api-key", "key-of-gate"},
                        {"x-tramontane-caller", "10.0.0.1"},
                        {"x-tramontane-caller-weight", "7"}})
                  .ok());
  EXPECT_EQ(server_->model().last_share().caller, "10.0.0.1");
  EXPECT_EQ(server_->model().last_share().weight, 7);
  const std::string scored = R"({"prompt":"a","candidates":["b"],"priority":-1})";
  EXPECT_EQ(Ask(WithKey(HttpPost("/v1/score", scored), "key-of-alice")).Header("x-tramontane-ignored"),
            "priority");
}

TEST_F(KeyedServer, AnAnswerTellsWhatItsKeyHasLeftAndTheRequestTooMuchWhenToComeAgain) {
  const auto post = [this](const std::string& body) {
    return Ask(WithKey(HttpPost("/v1/completions", body), "key-of-dave"));
  };
  const HttpReply first = post(kCompletion);
  EXPECT_EQ(first.status, 200);
  EXPECT_EQ(first.Header("x-ratelimit-limit-requests"), "2");
  EXPECT_EQ(first.Header("x-ratelimit-remaining-requests"), "1");
  EXPECT_EQ(first.Header("x-ratelimit-reset-requests"), "30s");
  EXPECT_EQ(first.Header("x-ratelimit-limit-tokens"), "6000");
  EXPECT_EQ(post(R"({"prompt":"a","top_p":9})").Header("x-ratelimit-remaining-requests"), "1")
      << "what is not admitted costs none";
  const HttpReply stream = post(R"({"prompt":[300],"max_tokens":2,"stream":true})");
  EXPECT_EQ(stream.status, 200);
  EXPECT_EQ(stream.Header("x-ratelimit-remaining-requests"), "0");
  const HttpReply refused = post(kCompletion);
  EXPECT_EQ(refused.status, 429);
  EXPECT_THAT(refused.body, HasSubstr(R"("code":"key_requests")"));
  EXPECT_THAT(refused.body, HasSubstr(R"("type":"rate_limit_error")"));
  EXPECT_EQ(refused.Header("x-ratelimit-remaining-requests"), "0");
  const int64_t retry_ms = std::stoll("0" + refused.Header("retry-after-ms"));
  EXPECT_GT(retry_ms, 0);
  EXPECT_LE(retry_ms, 30'000);
  EXPECT_EQ(std::stoll("0" + refused.Header("retry-after")), (retry_ms + 999) / 1000);
  EXPECT_EQ(Ask(WithKey(HttpPost("/v1/completions", kCompletion), "key-of-alice"))
                .Header("x-ratelimit-limit-requests"),
            "");

  Stream over(server_->stub(), RequestOfIds({300}, 2), {{"x-api-key", "key-of-erin"}});
  EXPECT_TRUE(over.ReadAll().ok());
  EXPECT_EQ(over.InitialMetadata("x-ratelimit-limit-tokens"), "1");
  EXPECT_EQ(over.InitialMetadata("x-ratelimit-limit-requests"), "");
  Stream owed(server_->stub(), RequestOfIds({300}, 2), {{"x-api-key", "key-of-erin"}});
  const grpc::Status status = owed.ReadAll();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  const RpcError error = FromGrpcStatus(status);
  EXPECT_EQ(error.reason, "KEY_TOKENS");
  EXPECT_GT(error.retry_after_ms, 60'000) << "three tokens, of one a minute, and one was there";
  EXPECT_EQ(owed.TrailingMetadata("grpc-retry-pushback-ms"), std::to_string(error.retry_after_ms));
  EXPECT_EQ(owed.InitialMetadata("x-ratelimit-remaining-tokens"), "0");
}

// ---- metrics --------------------------------------------------------------------------------------

// What a client sees in /metrics after its answer: what was done, and nothing else.
class CountedServer : public KeyedServer {
 protected:
  MetricSeries Scrape() const { return SeriesOf(Ask(HttpGet("/metrics")).body); }
  // From now on that much more is there than before.
  void Adds(const std::string& series, double more) { expected_[series] += more; }
  void Ended(const std::string& key, const std::string& outcome, double prompt = 0, double generation = 0) {
    Adds("tramontane_requests_total{key=\"" + key + "\",outcome=\"" + outcome + "\"}", 1);
    if (prompt > 0) Adds("tramontane_key_tokens_total{key=\"" + key + "\",kind=\"prompt\"}", prompt);
    if (generation > 0) {
      Adds("tramontane_key_tokens_total{key=\"" + key + "\",kind=\"generation\"}", generation);
    }
  }
  void Refused(const std::string& key, const std::string& reason) {
    Ended(key, "refused");
    Adds("tramontane_refused_total{reason=\"" + reason + "\"}", 1);
  }
  static MetricSeries Counted(const MetricSeries& page) {
    MetricSeries counted = NotZero(page, "tramontane_requests_total");
    counted.merge(NotZero(page, "tramontane_key_tokens_total"));
    counted.merge(NotZero(page, "tramontane_refused_total"));
    return counted;
  }
  void ExpectCounted(const char* after) const { EXPECT_EQ(Counted(Scrape()), expected_) << after; }
  HttpReply Complete(const std::string& body, const std::string& key) const {
    return Ask(WithKey(HttpPost("/v1/completions", body), key));
  }

  MetricSeries expected_;
};

TEST_F(CountedServer, AKnownMixOfRequestsMovesCountersByWhatWasDoneBeforeItsAnswersEnd) {
  const std::vector<std::pair<std::string, std::string>> alice = {{"x-api-key", "key-of-alice"}};
  ExpectCounted("nothing");
  EXPECT_EQ(Complete(kCompletion, "key-of-alice").status, 200);
  Ended("alice", "ok", 3, 2);
  ExpectCounted("an answer");
  EXPECT_EQ(Complete(R"({"prompt":[300,301,302],"max_tokens":3,"stream":true})", "key-of-alice").status, 200);
  Ended("alice", "ok", 3, 3);
  ExpectCounted("a stream");
  EXPECT_TRUE(Generate(alice).ok());
  Ended("alice", "ok", 3, 2);
  ExpectCounted("a call");

  const std::string first_token = "vllm:time_to_first_token_seconds";
  const MetricSeries page = Scrape();
  double stages = SumOf(page, "tramontane_ttft_stage_seconds_sum");
  for (const char* later : {R"(stage="hold")", R"(stage="deliver")"})
    stages -= SumOf(page, "tramontane_ttft_stage_seconds_sum", later);
  EXPECT_NEAR(stages, SumOf(page, first_token + "_sum"), 1e-9);
  EXPECT_EQ(SumOf(page, "tramontane_ttft_stage_seconds_count", R"(stage="sample",prompt="le128")"), 3);
  EXPECT_EQ(SumOf(page, "tramontane_ttft_stage_seconds_count", R"(stage="hold",prompt="le128")"), 3);
  EXPECT_GT(SumOf(page, "tramontane_ttft_stage_seconds_sum", R"(stage="receive")"), 0) << "over HTTP";

  EXPECT_EQ(Complete(R"({"prompt":[300,301,302],"max_tokens":2,"n":2})", "key-of-alice").status, 200);
  Ended("alice", "ok", 3, 4);
  ExpectCounted("two choices");
  EXPECT_EQ(SumOf(Scrape(), first_token + "_count"), 5);
  EXPECT_EQ(Complete(R"({"prompt":[[300,301],[302,303]],"max_tokens":2})", "key-of-alice").status, 200);
  Ended("alice", "ok", 4, 4);
  ExpectCounted("two prompts are one request");

  EXPECT_EQ(Complete("{", "key-of-alice").status, 400);
  Refused("alice", "invalid");
  EXPECT_EQ(Complete(R"({"prompt":[300],"max_tokens":99999999})", "key-of-alice").status, 400);
  Refused("alice", "invalid");
  Stream nothing(server_->stub(), RequestOfIds({}, 2), alice);
  EXPECT_EQ(nothing.ReadAll().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  Refused("alice", "invalid");
  ExpectCounted("faults");
  EXPECT_EQ(Ask(HttpPost("/v1/completions", kCompletion)).status, 401);
  Refused("-", "unauthenticated");
  EXPECT_EQ(Generate({}).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  Refused("-", "unauthenticated");
  EXPECT_EQ(Complete(kCompletion, "key-of-bob").status, 403);
  Refused("bob", "forbidden");
  ExpectCounted("who may not");
  EXPECT_EQ(Ask(WithKey(HttpGet("/v1/completions"), "key-of-alice")).status, 405);
  EXPECT_EQ(Ask(WithKey(HttpPost("/tokenize", "{"), "key-of-alice")).status, 400);
  ExpectCounted("what generates nothing");

  server_->model().SetStepTime(20'000);
  Stream running(server_->stub(), RequestOfIds({300, 301, 302}, 20000), {{"x-api-key", "key-of-carol"}});
  ASSERT_TRUE(running.Next());
  EXPECT_EQ(Complete(kCompletion, "key-of-carol").status, 429);
  Refused("carol", "key_concurrency");
  running.Cancel();
  running.ReadAll();
  HttpTestClient hangs_up(server_->server().http_address());
  ASSERT_TRUE(hangs_up.Send(WithKey(
      HttpPost("/v1/completions", R"({"prompt":[300],"max_tokens":20000,"stream":true})"), "key-of-alice")));
  hangs_up.ReadUntil("data: ");
  hangs_up.Reset();
  WaitFor([this] {
    const MetricSeries page = Scrape();
    return SumOf(page, "tramontane_requests_total", "cancelled") == 2 &&
           SumOf(page, "vllm:request_success_total", "abort") == 2;
  });
  server_->model().SetStepTime(0);
  Ended("carol", "cancelled");
  Ended("alice", "cancelled");
  // How many tokens they had is theirs to say; the engine's sum is that of the keys.
  const MetricSeries after = Scrape();
  MetricSeries counted = Counted(after);
  for (const char* key : {"alice", "carol"}) {
    for (const char* kind : {"prompt", "generation"}) {
      const std::string tokens =
          std::string("tramontane_key_tokens_total{key=\"") + key + "\",kind=\"" + kind + "\"}";
      EXPECT_GT(counted[tokens], expected_[tokens]);
      expected_[tokens] = counted[tokens];
    }
  }
  EXPECT_EQ(counted, expected_) << "cancelled";
  for (const auto& [kind, name] : {std::pair("prompt", "vllm:prompt_tokens_total"),
                                   std::pair("generation", "vllm:generation_tokens_total")}) {
    EXPECT_EQ(SumOf(after, "tramontane_key_tokens_total", kind), SumOf(after, name)) << kind;
  }
  EXPECT_EQ(SumOf(after, "tramontane_cancelled_total", R"(state="decode")"), 2);
  EXPECT_EQ(SumOf(after, "tramontane_refused_total"), SumOf(after, "tramontane_requests_total", "refused"));
  EXPECT_EQ(after.at(R"(http_requests_total{handler="/v1/completions",method="POST",status="2xx"})"), 5);
  EXPECT_EQ(after.at(R"(http_requests_total{handler="/v1/completions",method="POST",status="4xx"})"), 5);
  EXPECT_EQ(after.at(R"(http_requests_total{handler="/v1/completions",method="GET",status="4xx"})"), 1);
}

TEST_F(CountedServer, ThePageIsWellFormedAndTellsWhoIsConnectedAndThatItDrains) {
  EXPECT_TRUE(Generate({{"x-api-key", "key-of-alice"}}).ok());
  const std::string text = Ask(HttpGet("/metrics")).body;
  ExpectWellFormed(text);
  const MetricSeries page = SeriesOf(text);
  EXPECT_GE(page.at(R"(tramontane_connections{door="grpc"})"), 1);
  EXPECT_GE(page.at(R"(tramontane_connections{door="http"})"), 1);
  EXPECT_EQ(page.at(R"(tramontane_connections{door="admin"})"), 0);
  EXPECT_EQ(page.at("tramontane_draining"), 0);
  for (const char* name : {"process_resident_memory_bytes", "process_open_fds", "process_threads",
                           "process_start_time_seconds", "process_cpu_seconds_total"}) {
    EXPECT_GT(page.at(name), 0) << name;
  }
  EXPECT_LT(std::abs(page.at("process_start_time_seconds") - static_cast<double>(time(nullptr))), 86'400);
  EXPECT_EQ(page.at(R"(tramontane_held_bytes{what="unread_answers"})"), 0);
}

// ---- Debian's Prometheus, where it is installed (package prometheus)

TEST_F(CountedServer, PromtoolComplainsOfNothingButColonsAndAHistogramCalledTotal) {
  if (std::system("command -v promtool > /dev/null") != 0)
    GTEST_SKIP() << "no promtool: not judged by Prometheus";
  folder_.Write("page", Ask(HttpGet("/metrics")).body);
  const std::string said = folder_.PathOf("said");
  const std::string command = "promtool check metrics < " + folder_.PathOf("page") + " > " + said + " 2>&1";
  EXPECT_NE(std::system(command.c_str()), -1);
  std::ifstream lines(said);
  for (std::string line; std::getline(lines, line);) {
    const bool is_allowed = line.find("metric names should not contain ':'") != std::string::npos ||
                            line.starts_with("vllm:iteration_tokens_total ");
    EXPECT_TRUE(is_allowed) << line;
  }
}

TEST_F(CountedServer, PrometheusScrapesIt) {
  if (std::system("command -v prometheus promtool > /dev/null") != 0)
    GTEST_SKIP() << "no prometheus: not scraped by it";
  EXPECT_EQ(Complete(kCompletion, "key-of-alice").status, 200);
  folder_.Write("prometheus.yml",
                "scrape_configs:\n- job_name: it\n  scrape_interval: 1s\n  static_configs:\n"
                "  - targets: ['" +
                    server_->server().http_address() + "']\n");
  // A port that was free a moment ago; asks until the first scrape is there.
  folder_.Write("scrape.sh", R"(
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
prometheus --config.file="$1/prometheus.yml" --storage.tsdb.path="$1/data" --log.level=error \
  --web.listen-address="127.0.0.1:$port" &
for i in $(seq 600); do
  promtool query instant "http://127.0.0.1:$port" "$2" 2> /dev/null | grep -q '=> 2 ' && found=yes && break
  sleep 0.1
done
kill $!
wait
[ "$found" = yes ]
)");
  const std::string query = R"(tramontane_key_tokens_total{key=\"alice\",kind=\"generation\"} * on(job) up)";
  const std::string command =
      "sh " + folder_.PathOf("scrape.sh") + " " + folder_.path() + " \"" + query + "\"";
  EXPECT_EQ(std::system(command.c_str()), 0);
}

}  // namespace
}  // namespace tramontane

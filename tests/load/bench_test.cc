// The whole command on a clock of events: what it prints and writes, and its exit status.
#include "bench/load/bench_main.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>

#include "bench/load/random.h"
#include "tests/load/queue_server.h"
#include "tests/load/vllm_keys.h"
#include "tests/support/temp_folder.h"

namespace tramontane::load {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using Json = nlohmann::json;

constexpr int64_t kMs = 1'000'000;

// A transport that a run owns, of a server that the test keeps.
class Borrowed final : public Transport {
 public:
  explicit Borrowed(QueueServer& server) : server_(server) {}
  void Send(OutgoingRequest request, Done done) override {
    server_.Send(std::move(request), std::move(done));
  }
  void Abort() override { server_.Abort(); }
  ClientLoad Load() override { return server_.Load(); }

 private:
  QueueServer& server_;
};

struct Bench {
  TempFolder folder;
  EventClock clock;
  QueueServerOptions server_options;        // of http://a:1
  QueueServerOptions other_server_options;  // of http://b:1
  std::unique_ptr<QueueServer> server, other_server;
  std::vector<TargetOptions> connected;
  int model_questions = 0;
  StatusOr<std::string> model = std::string("breeze");
  std::function<StatusOr<PlainAnswer>(const PlainQuestion&)> answer = [](const PlainQuestion&) {
    return StatusOr<PlainAnswer>(PlainAnswer{404, ""});
  };
  std::vector<std::string> asked;  // paths
  const char* key = nullptr;
  bool is_terminal = false;
  std::atomic<bool> stop = false;
  std::string out, err;

  int Run(const std::vector<std::string>& arguments) {
    std::vector<const char*> argv = {"tramontane_bench"};
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    std::ostringstream out_stream, err_stream;
    server = std::make_unique<QueueServer>(clock, server_options);
    other_server = std::make_unique<QueueServer>(clock, other_server_options);
    BenchWorld world{
        .connect = [&](const TargetOptions& target) -> StatusOr<std::unique_ptr<Transport>> {
          connected.push_back(target);
          return std::unique_ptr<Transport>(
              std::make_unique<Borrowed>(target.url == "http://b:1" ? *other_server : *server));
        },
        .first_served_model =
            [&](const TargetOptions&) {
              ++model_questions;
              return model;
            },
        .ask =
            [&](const TargetOptions&, const PlainQuestion& question) {
              asked.push_back(question.path);
              return answer(question);
            },
        .check =
            [](std::ostream& out_stream_of_check, std::ostream&) {
              out_stream_of_check << "checked\n";
              return 1;
            },
        .options = {[&](const char*) { return key; }, [] { return uint64_t{99}; }},
        .clock = clock,
        .out = out_stream,
        .err = err_stream,
        .err_is_terminal = is_terminal,
        .date = [] { return std::string("20261123-101112"); },
        .stop = &stop,
    };
    const int status = RunBench(static_cast<int>(argv.size()), argv.data(), world);
    out = out_stream.str();
    err = err_stream.str();
    return status;
  }
  // Against http://a:1, short prompts, and all three files.
  int RunWith(const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"--target", "http://a:1",  "--json", Path("json"),
                                          "--jsonl",  Path("jsonl"), "--html", Path("html")};
    if (std::count(more.begin(), more.end(), "--prompt-tokens") == 0) {
      arguments.insert(arguments.end(), {"--prompt-tokens", "8"});
    }
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Run(arguments);
  }

  std::string Path(const std::string& name) const { return folder.PathOf(name); }
  std::string File(const std::string& name) const {
    std::ifstream file(Path(name));
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  Json Result() const { return Json::parse(File("json")); }
  std::vector<Json> Lines() const {
    std::istringstream lines(File("jsonl"));
    std::vector<Json> all;
    for (std::string line; std::getline(lines, line);) all.push_back(Json::parse(line));
    return all;
  }
};

// ---- one run

TEST(BenchTest, TheJsonHasEveryKeyOfVllmsAndOurs) {
  Bench bench;
  bench.server_options.gap_ns = 5 * kMs;
  ASSERT_EQ(
      bench.RunWith({"--rate", "50", "--requests", "200", "--output-tokens", "4", "--goodput", "ttft:1000"}),
      0)
      << bench.err;
  const Json json = bench.Result();
  std::vector<std::string> keys = VllmKeys();
  for (const char* own :
       {"ci95", "failures", "few_samples", "client_lag_p99_ms", "client_cpu", "client_bound", "reconnects",
        "steady", "seed", "nonce", "command_line", "censored_p99_ttft_ms"}) {
    keys.push_back(own);
  }
  for (const char* metric : {"ttft_ms", "ttft_sent_ms", "tpot_ms", "itl_ms", "e2el_ms"}) {
    for (const char* statistic : {"mean_", "median_", "std_", "p50_", "p90_", "p95_", "p99_", "p99.9_"}) {
      keys.push_back(std::string(statistic) + metric);
    }
  }
  for (const std::string& key : keys) EXPECT_TRUE(json.contains(key)) << key;
  EXPECT_EQ(json["completed"], 200);
  EXPECT_EQ(json["num_prompts"], 200);
  EXPECT_EQ(json["request_rate"], 50);
  EXPECT_EQ(json["total_input_tokens"], 1600);
  EXPECT_EQ(json["total_output_tokens"], 800);
  EXPECT_EQ(json["mean_itl_ms"], 5.0);
  EXPECT_EQ(json["mean_tpot_ms"], 5.0);
  EXPECT_EQ(json["median_ttft_sent_ms"].get<double>() >= 1.0, true);
  EXPECT_EQ(json["model_id"], "breeze");
  EXPECT_EQ(json["nonce"], 99);
  EXPECT_TRUE(json["steady"].get<bool>());
  EXPECT_FALSE(json["client_bound"].get<bool>());
  EXPECT_THAT(json["few_samples"].get<std::vector<std::string>>(), testing::Contains("p99.9_ttft_ms"));
  EXPECT_EQ(json["ci95"]["p99_ttft_ms"].size(), 2u);
  EXPECT_EQ(json["ttfts"].size(), 200u);
  EXPECT_THAT(bench.out, StartsWith("============ Serving Benchmark Result ============\n"));
}

TEST(BenchTest, EachRequestHasALineWithEveryKey) {
  Bench bench;
  bench.server_options.outcome = [](const auto& request) {
    return request.index == 3 ? Outcome::kHttpError : Outcome::kOk;
  };
  ASSERT_EQ(bench.RunWith({"--rate", "50", "--requests", "5", "--output-tokens", "3"}), 0) << bench.err;
  const auto lines = bench.Lines();
  ASSERT_EQ(lines.size(), 5u);
  for (size_t i = 0; i < lines.size(); ++i) {
    for (const char* key : {"index",
                            "request_id",
                            "class",
                            "intended_ns",
                            "sent_ns",
                            "connect_ms",
                            "headers_ms",
                            "ttft_any_ms",
                            "ttft_ms",
                            "ttft_sent_ms",
                            "itl_ms",
                            "tpot_ms",
                            "e2el_ms",
                            "done_ms",
                            "input_tokens",
                            "output_tokens",
                            "output_tokens_from",
                            "status",
                            "outcome",
                            "retry_after_s",
                            "error"}) {
      EXPECT_TRUE(lines[i].contains(key)) << key;
    }
    EXPECT_EQ(lines[i]["index"], i);
    EXPECT_EQ(lines[i]["outcome"], i == 3 ? "http_429" : "ok");
  }
  EXPECT_EQ(lines[0]["itl_ms"].size(), 2u);
  EXPECT_TRUE(lines[0]["retry_after_s"].is_null());
  EXPECT_EQ(lines[0]["output_tokens_from"], "usage");
  std::set<std::string> ids;
  for (const Json& line : lines) ids.insert(line["request_id"].get<std::string>());
  EXPECT_EQ(ids.size(), 5u);
}

TEST(BenchTest, ThePageNeedsNothingElse) {
  Bench bench;
  ASSERT_EQ(
      bench.RunWith({"--rate", "50", "--requests", "100", "--output-tokens", "3", "--model", "<b>&\"x\""}),
      0);
  const std::string html = bench.File("html");
  EXPECT_THAT(html, AllOf(HasSubstr("<svg"), HasSubstr("viewport"), HasSubstr("prefers-color-scheme: dark"),
                          HasSubstr("&lt;b&gt;&amp;&quot;x&quot;"), Not(HasSubstr("<b>&"))));
  EXPECT_THAT(html, AllOf(Not(HasSubstr("src=")), Not(HasSubstr("href")), Not(HasSubstr("url(")),
                          Not(HasSubstr("@import")), Not(HasSubstr("<script")), Not(HasSubstr("nan")),
                          Not(HasSubstr("inf"))));
  size_t urls = 0;
  for (size_t at = html.find("://"); at != std::string::npos; at = html.find("://", at + 1)) ++urls;
  EXPECT_EQ(urls, 2u);  // the target, in the head and in the command line
}

TEST(BenchTest, AModelThatIsNamedIsNotAskedFor) {
  Bench bench;
  EXPECT_EQ(bench.RunWith({"--rate", "50", "--requests", "5"}), 0);
  EXPECT_EQ(bench.model_questions, 1);
  EXPECT_EQ(bench.connected.back().model, "breeze");
  EXPECT_EQ(bench.RunWith({"--rate", "50", "--requests", "5", "--model", "other"}), 0);
  EXPECT_EQ(bench.model_questions, 1);
  EXPECT_EQ(bench.connected.back().model, "other");
  EXPECT_TRUE(bench.asked.empty());  // nor anything else
}

TEST(BenchTest, ADeadTargetIsRefusedInEveryRow) {
  Bench bench;
  bench.model = Unavailable("no connection");
  bench.server_options.outcome = [](const auto&) { return Outcome::kRefused; };
  EXPECT_EQ(bench.RunWith({"--rate", "50", "--requests", "5"}), 1);
  EXPECT_EQ(bench.Result()["failures"], (Json{{"refused", 5}}));
  for (const Json& line : bench.Lines()) EXPECT_EQ(line["outcome"], "refused");
}

TEST(BenchTest, AMissedLimitIsStatusThree) {
  Bench bench;
  bench.server_options.service_ns = [](const auto&) { return 10 * kMs; };
  EXPECT_EQ(bench.RunWith({"--rate", "5", "--requests", "50", "--slo", "ttft_p99<1000,success>0.5"}), 0);
  EXPECT_TRUE(bench.Result()["slo_met"].get<bool>());
  EXPECT_EQ(bench.RunWith({"--rate", "5", "--requests", "50", "--slo", "ttft_p99<9,success>0.5"}), 3);
  EXPECT_FALSE(bench.Result()["slo_met"].get<bool>());
  EXPECT_THAT(bench.out, HasSubstr("MISSED  ttft_p99<9"));
  bench.server_options.outcome = [](const auto& request) {
    return request.index % 20 == 0 ? Outcome::kStreamError : Outcome::kOk;
  };
  // Its successes are fast; one in twenty is longer than everything.
  EXPECT_EQ(bench.RunWith({"--rate", "5", "--requests", "50", "--slo", "ttft_p99<1000"}), 3);
  EXPECT_TRUE(bench.Result()["censored_p99_ttft_ms"].is_null());
}

TEST(BenchTest, OutcomesAreCountedByName) {
  Bench bench;
  bench.server_options.outcome = [](const auto& request) { return static_cast<Outcome>(request.index % 9); };
  EXPECT_EQ(bench.RunWith({"--rate", "50", "--requests", "90"}), 0);
  EXPECT_EQ(bench.Result()["failures"], (Json{{"ok", 10},
                                              {"refused", 10},
                                              {"timeout", 10},
                                              {"http_429", 10},
                                              {"stream_error", 10},
                                              {"closed_early", 10},
                                              {"garbage", 10},
                                              {"no_content", 10},
                                              {"unfinished", 10}}));
}

TEST(BenchTest, AnswersWithoutContentAreToldBesideTheOthers) {
  Bench bench;
  bench.server_options.without_content = [](const auto& request) { return request.index % 5 == 0; };
  EXPECT_EQ(bench.RunWith({"--rate", "50", "--requests", "50"}), 0);
  EXPECT_EQ(bench.Result()["completed"], 50);
  EXPECT_EQ(bench.Result()["completed_without_content"], 10);
  EXPECT_EQ(bench.Result()["failed"], 0);
  EXPECT_THAT(bench.out, AllOf(HasSubstr("  without content:                10\n"),
                               HasSubstr("--- ttft, ms (40 samples)")));
  EXPECT_TRUE(bench.Lines()[0]["ttft_ms"].is_null());
  EXPECT_FALSE(bench.Lines()[0]["done_ms"].is_null());

  // Of nothing else there is no latency, and no limit is shown to hold.
  bench.server_options.without_content = [](const auto&) { return true; };
  EXPECT_EQ(bench.RunWith({"--rate", "50", "--requests", "50", "--slo", "ttft_p99<1000"}), 3);
  EXPECT_EQ(bench.Result()["completed"], 50);
  EXPECT_TRUE(bench.Result()["p99_ttft_ms"].is_null());
  EXPECT_THAT(bench.out, HasSubstr("none: no sample"));
  EXPECT_THAT(bench.File("html"), AllOf(Not(HasSubstr("nan")), Not(HasSubstr("inf"))));
}

TEST(BenchTest, TheKeyIsInNoOutput) {
  Bench bench;
  bench.key = "sk-very-secret";
  bench.server_options.error = "401: the key sk-very-secret is not known";
  bench.server_options.outcome = [](const auto& request) {
    return request.index == 0 ? Outcome::kHttpError : Outcome::kOk;
  };
  EXPECT_EQ(bench.RunWith({"--rate", "50", "--requests", "5"}), 0);
  EXPECT_EQ(bench.connected.back().api_key, "sk-very-secret");
  EXPECT_THAT(bench.File("jsonl"), HasSubstr("the key *** is not known"));
  for (const std::string& text :
       {bench.out, bench.err, bench.File("json"), bench.File("jsonl"), bench.File("html")}) {
    EXPECT_THAT(text, Not(HasSubstr("secret")));
  }
}

TEST(BenchTest, ALateClientIsToldFirst) {
  Bench bench;
  bench.server_options.send_lag_ns = 2 * kMs;
  EXPECT_EQ(bench.RunWith({"--rate", "50", "--requests", "50"}), 0);
  EXPECT_TRUE(bench.Result()["client_bound"].get<bool>());
  EXPECT_THAT(bench.out, StartsWith("CLIENT BOUND"));
  // Under a cap the wait is the server's.
  EXPECT_EQ(bench.RunWith({"--rate", "50", "--requests", "50", "--concurrency", "1"}), 0);
  EXPECT_FALSE(bench.Result()["client_bound"].get<bool>());
}

TEST(BenchTest, AnOverloadIsTold) {
  Bench bench;
  bench.server_options.service_ns = [](const auto&) { return 30 * kMs; };
  EXPECT_EQ(bench.RunWith({"--rate", "50", "--requests", "500", "--drain", "100"}), 0);
  EXPECT_FALSE(bench.Result()["steady"].get<bool>());
  EXPECT_THAT(bench.out, StartsWith("NOT STEADY"));
  EXPECT_EQ(bench.RunWith({"--concurrency", "4", "--requests", "500"}), 0);
  EXPECT_TRUE(bench.Result()["steady"].get<bool>());
  EXPECT_EQ(bench.Result()["max_concurrent_requests"], 4);
  EXPECT_EQ(bench.Result()["request_rate"], "inf");
}

TEST(BenchTest, DrainAndTimeoutEndARun) {
  Bench bench;
  bench.server_options.silent = true;
  const int64_t begin = bench.clock.Now();
  EXPECT_EQ(bench.RunWith({"--rate", "inf", "--requests", "5", "--drain", "3"}), 1);
  EXPECT_EQ(bench.Result()["failures"], (Json{{"unfinished", 5}}));
  EXPECT_NEAR(static_cast<double>(bench.clock.Now() - begin), 3e9, 1e8);
  EXPECT_EQ(bench.RunWith({"--rate", "inf", "--requests", "5", "--timeout", "2"}), 1);
  EXPECT_EQ(bench.Result()["failures"], (Json{{"timeout", 5}}));
}

TEST(BenchTest, WarmUpIsSentAndNotMeasured) {
  Bench bench;
  EXPECT_EQ(
      bench.RunWith({"--rate", "10", "--arrival", "constant", "--requests", "50", "--warmup-requests", "20"}),
      0);
  EXPECT_EQ(bench.server->seen.size(), 50u);
  EXPECT_EQ(bench.Result()["completed"], 30);
  EXPECT_EQ(bench.RunWith({"--rate", "10", "--arrival", "constant", "--requests", "50", "--warmup", "1"}), 0);
  EXPECT_EQ(bench.Result()["completed"], 40);
}

TEST(BenchTest, ADurationEndsSending) {
  Bench bench;
  EXPECT_EQ(bench.RunWith({"--rate", "10", "--arrival", "constant", "--duration", "2"}), 0);
  EXPECT_EQ(bench.server->seen.size(), 20u);
}

TEST(BenchTest, ClassesOfAMixHaveResultsOfTheirOwn) {
  Bench bench;
  bench.folder.Write("mix", R"([{"name": "short", "weight": 3, "prompt_tokens": 3}, {"name": "long"}])");
  bench.server_options.service_ns = [](const auto& request) {
    return request.class_index == 0 ? kMs : 20 * kMs;
  };
  EXPECT_EQ(bench.RunWith({"--rate", "5", "--requests", "200", "--mix", bench.Path("mix")}), 0) << bench.err;
  const Json classes = bench.Result()["classes"];
  EXPECT_EQ(classes["short"]["completed"].get<int>() + classes["long"]["completed"].get<int>(), 200);
  EXPECT_LT(classes["short"]["median_ttft_ms"], 2);
  EXPECT_GE(classes["long"]["median_ttft_ms"], 20);
  EXPECT_THAT(bench.out, HasSubstr("=== class short"));
  EXPECT_EQ(bench.Lines()[0]["class"].get<std::string>().size() > 3, true);
}

TEST(BenchTest, ASeedFixesLengthsAndANonceOnlyIds) {
  const auto prompts = [](const std::vector<std::string>& more) {
    Bench bench;
    std::vector<std::string> arguments = {"--target",   "http://a:1", "--rate",          "50",
                                          "--requests", "20",         "--prompt-tokens", "uniform:10:90"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    EXPECT_EQ(bench.Run(arguments), 0) << bench.err;
    std::vector<std::vector<int32_t>> ids;
    for (const OutgoingRequest& request : bench.server->seen) ids.push_back(request.ids);
    return ids;
  };
  const auto lengths = [](const auto& prompts) {
    std::vector<size_t> sizes;
    for (const auto& ids : prompts) sizes.push_back(ids.size());
    return sizes;
  };
  const auto one = prompts({"--seed", "1", "--nonce", "1"}), again = prompts({"--seed", "1", "--nonce", "1"});
  const auto nonce = prompts({"--seed", "1", "--nonce", "2"}),
             seed = prompts({"--seed", "2", "--nonce", "1"});
  EXPECT_EQ(one, again);
  EXPECT_NE(one, nonce);
  EXPECT_EQ(lengths(one), lengths(nonce));
  EXPECT_NE(lengths(one), lengths(seed));
  const auto narrow = prompts({"--token-ids", "7:9"});
  for (const auto& ids : narrow) {
    for (const int32_t id : ids) EXPECT_TRUE(id == 7 || id == 8);
  }
}

TEST(BenchTest, UsageThatDiffersFromThePlanIsCounted) {
  Bench bench;
  bench.server_options.more_input_tokens = 1;
  EXPECT_EQ(bench.RunWith({"--rate", "50", "--requests", "5"}), 0);
  EXPECT_EQ(bench.Result()["prompt_mismatches"], 5);
  EXPECT_THAT(bench.out, HasSubstr("5 prompts were of another length"));
}

TEST(BenchTest, ChatsAreTextOfTheTargetsTokenizer) {
  Bench bench;
  bench.answer = [](const PlainQuestion& question) -> StatusOr<PlainAnswer> {
    const Json body = Json::parse(question.body);
    if (question.path == "/detokenize") {
      std::string text;  // a letter an id; but ab is one token
      for (const int32_t id : body["tokens"]) text += id % 2 == 0 ? 'a' : 'b';
      return PlainAnswer{200, Json{{"prompt", text}}.dump()};
    }
    const bool is_chat = body.contains("messages");
    const auto text = (is_chat ? body["messages"][0]["content"] : body["prompt"]).get<std::string>();
    int64_t count = is_chat ? 3 : 0;  // the template's own
    for (size_t i = 0; i < text.size(); ++i, ++count) i += text.compare(i, 2, "ab") == 0 ? 1 : 0;
    return PlainAnswer{200, Json{{"count", count}}.dump()};
  };
  EXPECT_EQ(bench.RunWith({"--rate", "50", "--requests", "5", "--endpoint", "chat"}), 0) << bench.err;
  for (const OutgoingRequest& request : bench.server->seen) {
    EXPECT_TRUE(request.ids.empty());
    const auto count =
        Json::parse(bench.answer({"POST", "/tokenize", Json{{"prompt", request.text}}.dump()})->body);
    EXPECT_EQ(count["count"], 8 - 3);
  }
}

TEST(BenchTest, ATargetThatTokenizesNoChatsIsAskedForTexts) {
  Bench bench;
  bench.answer = [](const PlainQuestion& question) -> StatusOr<PlainAnswer> {
    const Json body = Json::parse(question.body);
    if (question.path == "/detokenize") {
      return PlainAnswer{200, Json{{"prompt", std::string(body["tokens"].size(), 'a')}}.dump()};
    }
    if (!body.contains("prompt")) return PlainAnswer{400, ""};
    return PlainAnswer{200, Json{{"count", body["prompt"].get<std::string>().size()}}.dump()};
  };
  EXPECT_EQ(bench.RunWith({"--rate", "50", "--requests", "5", "--endpoint", "chat"}), 0) << bench.err;
  for (const OutgoingRequest& request : bench.server->seen) EXPECT_EQ(request.text.size(), 8u);
}

TEST(BenchTest, ChatsWithoutATokenizerAreWordsAndSaySo) {
  Bench bench;
  EXPECT_EQ(bench.RunWith({"--rate", "50", "--requests", "5", "--endpoint", "chat"}), 0);
  EXPECT_THAT(bench.err, HasSubstr("no exact prompts"));
  for (const OutgoingRequest& request : bench.server->seen) EXPECT_FALSE(request.text.empty());
  EXPECT_EQ(bench.RunWith({"--rate", "50", "--endpoint", "chat", "--tokenizer", "/nowhere"}), 1);
  EXPECT_THAT(bench.err, HasSubstr("/nowhere"));
}

TEST(BenchTest, ATokenizerFileMakesChatsExact) {
  Bench bench;
  EXPECT_EQ(bench.RunWith({"--rate", "50", "--requests", "5", "--endpoint", "chat", "--tokenizer",
                           "models/breeze/weights", "--prompt-tokens", "40"}),
            0)
      << bench.err;
  EXPECT_TRUE(bench.asked.empty());
  auto tokenizer = std::move(TokenizerOfFile("models/breeze/weights")).value();
  for (const OutgoingRequest& request : bench.server->seen) EXPECT_EQ(*tokenizer->Count(request.text), 40);
}

TEST(BenchTest, TheLiveLineIsForTerminals) {
  Bench bench;
  EXPECT_EQ(bench.RunWith({"--rate", "10", "--requests", "50"}), 0);
  EXPECT_EQ(bench.err, "");
  bench.is_terminal = true;
  EXPECT_EQ(bench.RunWith({"--rate", "10", "--requests", "50"}), 0);
  EXPECT_THAT(bench.err, HasSubstr("in flight"));
  EXPECT_TRUE(bench.err.ends_with("\r\033[K"));
}

TEST(BenchTest, AFileThatCannotBeWrittenIsToldBeforeTheRun) {
  for (const char* flag : {"--json", "--jsonl", "--html"}) {
    Bench bench;
    EXPECT_EQ(bench.Run({"--target", "http://a:1", "--rate", "5", flag, "/nowhere/x"}), 2);
    EXPECT_THAT(bench.err, HasSubstr("/nowhere/x"));
    EXPECT_TRUE(bench.connected.empty());
  }
}

// ---- schedules

TEST(BenchTest, ADryRunOpensNoConnectionAndCanBeReplayed) {
  Bench bench;
  ASSERT_EQ(bench.Run({"--rate", "20", "--requests", "50", "--prompt-tokens", "uniform:5:50", "--dry-run",
                       "--jsonl", bench.Path("dry")}),
            0)
      << bench.err;
  EXPECT_TRUE(bench.connected.empty());
  EXPECT_EQ(bench.model_questions, 0);
  const std::string schedule = bench.File("dry");
  EXPECT_THAT(schedule, StartsWith("{\"index\":0,\"intended_ns\":"));
  ASSERT_EQ(bench.Run({"--trace", bench.Path("dry"), "--dry-run", "--jsonl", bench.Path("again")}), 0)
      << bench.err;
  EXPECT_EQ(bench.File("again"), schedule);
}

TEST(BenchTest, ATraceIsReplayedWithItsScales) {
  Bench bench;
  bench.folder.Write("t.csv",
                     "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,40,4\n"
                     "2023-11-16 18:15:48,400,4\n2023-11-16 18:15:50,60,6\n");
  ASSERT_EQ(bench.Run({"--target", "http://a:1", "--trace", bench.Path("t.csv"), "--rate-scale", "2",
                       "--length-scale", "0.5", "--max-context", "100", "--json", bench.Path("json")}),
            0)
      << bench.err;
  const auto& seen = bench.server->seen;
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_EQ(seen[1].intended_ns - seen[0].intended_ns, 2'000'000'000);
  EXPECT_EQ(seen[1].ids.size(), 30u);
  EXPECT_EQ(seen[1].output_tokens, 3);
  EXPECT_EQ(bench.Result()["left_out"], 1);
  ASSERT_EQ(bench.Run({"--target", "http://a:1", "--trace", bench.Path("t.csv"), "--spread", "1"}), 0);
  EXPECT_NE(bench.server->seen[1].intended_ns - bench.server->seen[0].intended_ns, 2'000'000'000);
  EXPECT_EQ(bench.Run({"--target", "http://a:1", "--trace", bench.Path("nothing")}), 2);
  EXPECT_EQ(bench.Run({"--target", "http://a:1", "--trace", bench.Path("t.csv"), "--max-context", "5"}), 2);
  EXPECT_THAT(bench.err, HasSubstr("--max-context (3 were left out)"));
}

TEST(BenchTest, ARampSpeedsUp) {
  Bench bench;
  ASSERT_EQ(bench.Run({"--ramp", "1:9", "--duration", "10", "--arrival", "constant", "--dry-run", "--jsonl",
                       bench.Path("jsonl")}),
            0)
      << bench.err;
  const auto lines = bench.Lines();
  EXPECT_EQ(lines.size(), 50u);
  int early = 0;
  for (const Json& line : lines) early += line["intended_ns"] < 5'000'000'000 ? 1 : 0;
  EXPECT_EQ(early, 15);  // t + 0.4 t^2 up to 5 s, and the one at 0
}

TEST(BenchTest, SharedPrefixesAndTurnsReachTheTarget) {
  Bench bench;
  ASSERT_EQ(bench.RunWith({"--rate", "50", "--requests", "10", "--shared-prefix", "20:1"}), 0);
  const auto begin = [](const OutgoingRequest& request) {
    return std::vector<int32_t>(request.ids.begin(), request.ids.begin() + 20);
  };
  for (const OutgoingRequest& request : bench.server->seen)
    EXPECT_EQ(begin(request), begin(bench.server->seen[0]));
  ASSERT_EQ(bench.RunWith({"--rate", "50", "--requests", "64", "--turns", "2", "--output-tokens", "3"}), 0);
  EXPECT_EQ(bench.server->seen[63].ids.size(), 8u + 3 + 8);
}

// ---- searches

// The limit on the mean wait of an M/D/1 queue names its load: w = r s^2 / (2 (1 - r s)).
TEST(BenchTest, FindRateFindsTheRateOfAQueue) {
  Bench bench;
  bench.server_options.service_ns = [](const auto&) { return 10 * kMs; };
  const double load = 0.5, wait_ms = load * 10 / (2 * (1 - load));
  ASSERT_EQ(bench.Run({"--target", "http://a:1", "--find-rate", "--rate", "20", "--slo",
                       "ttft_mean<" + std::to_string(10 + wait_ms), "--requests", "8000", "--prompt-tokens",
                       "1", "--output-tokens", "1", "--json", bench.Path("json")}),
            0)
      << bench.err;
  const Json found = bench.Result()["find_rate"];
  EXPECT_NEAR(found["rate"].get<double>(), load / 0.010, 0.05 * load / 0.010);
  EXPECT_GE(found["probes"].size(), 8u);
  EXPECT_TRUE(found["probes"].back()["confirmation"].get<bool>());
  EXPECT_THAT(bench.out, HasSubstr("Highest rate that holds"));
  EXPECT_THAT(bench.out, HasSubstr("confirm "));
}

TEST(BenchTest, FindRateWithoutARateIsAMissedLimit) {
  Bench bench;
  bench.server_options.service_ns = [](const auto&) { return 10 * kMs; };
  EXPECT_EQ(bench.RunWith({"--find-rate", "--slo", "ttft_p50<5", "--requests", "20"}), 3);
  EXPECT_TRUE(bench.Result()["find_rate"]["rate"].is_null());
  EXPECT_EQ(bench.Result()["find_rate"]["why"], "no rate held");
}

TEST(BenchTest, ASweepIsARunForEachRateOnAnIdleTarget) {
  Bench bench;
  int busy = 3;  // answers to /metrics until the target is idle
  bench.answer = [&](const PlainQuestion& question) -> StatusOr<PlainAnswer> {
    EXPECT_EQ(question.path, "/metrics");
    const std::string running = busy-- > 0 ? "1.0" : "0.0";
    return PlainAnswer{200, "# HELP vllm:num_requests_running x\nvllm:num_requests_running{model=\"m\"} " +
                                running + "\nvllm:num_requests_waiting{model=\"m\"} 0\n"};
  };
  ASSERT_EQ(bench.RunWith({"--sweep", "10,20,40", "--requests", "20"}), 0) << bench.err;
  const Json runs = bench.Result()["runs"];
  ASSERT_EQ(runs.size(), 3u);
  EXPECT_EQ(runs[1]["request_rate"], 20);
  EXPECT_EQ(bench.server->seen.size(), 60u);
  EXPECT_EQ(bench.asked.size(), 5u);  // none before the first; until idle, and once
  const auto& seen = bench.server->seen;
  EXPECT_NE(seen[0].ids, seen[20].ids);  // no cache of the run before helps
  EXPECT_NE(seen[0].request_id, seen[20].request_id);
  EXPECT_EQ(bench.Lines().size(), 60u);
}

TEST(BenchTest, ATargetThatStaysBusyEndsASweep) {
  Bench bench;
  bench.answer = [&](const PlainQuestion&) -> StatusOr<PlainAnswer> {
    return PlainAnswer{200, "vllm:num_requests_waiting 4\n"};
  };
  EXPECT_EQ(bench.RunWith({"--sweep", "10,20", "--requests", "20", "--drain", "2"}), 1);
  EXPECT_THAT(bench.err, HasSubstr("still busy"));
}

TEST(BenchTest, TwoTargetsAreComparedInAlternatingSlices) {
  Bench bench;
  bench.server_options.servers = bench.other_server_options.servers = 0;
  bench.server_options.service_ns = [](const auto& request) {
    return (8 + static_cast<int64_t>(Mixed(static_cast<uint64_t>(request.index)) % 5)) * kMs;
  };
  bench.other_server_options.service_ns = [](const auto& request) {
    return 2 * (8 + static_cast<int64_t>(Mixed(static_cast<uint64_t>(request.index)) % 5)) * kMs;
  };
  ASSERT_EQ(bench.RunWith({"--rate", "20", "--requests", "400", "--ab", "http://b:1"}), 0) << bench.err;
  EXPECT_EQ(bench.server->seen.size(), 400u);
  EXPECT_EQ(bench.other_server->seen.size(), 400u);
  const Json ab = bench.Result()["ab"];
  EXPECT_EQ(ab["order"], "ABBAABBA");
  const Json ratio = ab["ratios"]["mean_ttft_ms"];
  EXPECT_NEAR(ratio["ratio"].get<double>(), 2, 1e-9);
  EXPECT_LT(ratio["ci95"][0].get<double>(), 2);
  EXPECT_GT(ratio["ci95"][1].get<double>(), 2);
  EXPECT_GT(ratio["ci95"][0].get<double>(), 1.9);
  // Both targets had the same schedule in a slice.
  std::vector<int64_t> gaps[2];
  for (size_t i = 1; i < 100; ++i) {
    gaps[0].push_back(bench.server->seen[i].intended_ns - bench.server->seen[0].intended_ns);
    gaps[1].push_back(bench.other_server->seen[i].intended_ns - bench.other_server->seen[0].intended_ns);
  }
  EXPECT_EQ(gaps[0], gaps[1]);
}

TEST(BenchTest, ExplainAsksForTheServersStages) {
  Bench bench;
  EXPECT_EQ(bench.RunWith({"--rate", "5", "--requests", "4", "--explain"}), kMade);
  ASSERT_EQ(bench.connected.size(), 1u);
  EXPECT_TRUE(bench.connected[0].timing);
  EXPECT_THAT(bench.out, HasSubstr("explained: the target told no stages"));
  EXPECT_EQ(bench.RunWith({"--rate", "5", "--requests", "4"}), kMade);
  EXPECT_FALSE(bench.connected[1].timing);
  EXPECT_THAT(bench.out, Not(HasSubstr("explained")));
}

TEST(BenchTest, CheckNeedsNoTargetAndStandsAlone) {
  Bench bench;
  EXPECT_EQ(bench.Run({"--check"}), 1);
  EXPECT_EQ(bench.out, "checked\n");
  EXPECT_EQ(bench.Run({"--check", "--rate", "5"}), kUsage);
  EXPECT_THAT(bench.err, HasSubstr("--check stands alone"));
}

TEST(BenchTest, FilesThatAreNoneAndNestingAreRefused) {
  Bench bench;
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  bench.folder.Write("deep_row", "{\"timestamp\":" + deep + ",\"input_length\":1,\"output_length\":1}\n");
  bench.folder.Write("deep_mix", deep);
  const auto err_of = [&](const std::vector<std::string>& arguments) {
    std::vector<std::string> all = {"--target", "http://a:1"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    EXPECT_EQ(bench.Run(all), kUsage);
    return bench.err;
  };
  EXPECT_THAT(err_of({"--trace", bench.Path("deep_row")}), HasSubstr("32 deep"));
  EXPECT_THAT(err_of({"--rate", "1", "--mix", bench.Path("deep_mix")}), HasSubstr("32 deep"));
  EXPECT_THAT(err_of({"--trace", bench.folder.PathOf(".")}), HasSubstr("is no file"));
  EXPECT_THAT(err_of({"--rate", "1", "--mix", "/dev/zero"}), HasSubstr("/dev/zero: is no file"));
}

TEST(BenchTest, ACountThatIsNoneEndsBeforeTheRun) {
  Bench bench;
  for (const char* count : {"-100000000", "18446744073709551615", "1.5"}) {
    bench.answer = [&](const PlainQuestion& question) -> StatusOr<PlainAnswer> {
      if (question.path == "/detokenize") return PlainAnswer{200, R"({"prompt": "x y"})"};
      const bool is_first = question.body.find(R"("a")") != std::string::npos;
      return PlainAnswer{200, std::string(R"({"count": )") + (is_first ? "1" : count) + "}"};
    };
    EXPECT_EQ(bench.RunWith({"--rate", "5", "--requests", "2", "--endpoint", "chat"}), kNothingSucceeded);
    EXPECT_THAT(bench.err, HasSubstr("/tokenize"));
  }
}

TEST(BenchTest, TheKeyIsInNoModelsName) {
  Bench bench;
  bench.key = "sk-secret";
  bench.model = std::string("model-sk-secret");
  EXPECT_EQ(bench.RunWith({"--rate", "5", "--requests", "2"}), kMade);
  for (const char* file : {"json", "jsonl", "html"}) {
    EXPECT_THAT(bench.File(file), Not(HasSubstr("sk-secret")));
  }
  EXPECT_EQ(bench.Result()["model_id"], "model-***");
}

TEST(BenchTest, ASecretOfStarsIsTakenOutOnce) {
  EXPECT_EQ(WithoutSecret("invalid key *", "*"), "invalid key ***");
  EXPECT_EQ(WithoutSecret("**", "*"), "******");
  EXPECT_EQ(WithoutSecret("nothing", ""), "nothing");
}

TEST(BenchTest, ASecretIsFoundInOtherCasesInEscapesAndInParts) {
  const std::string secret = "sk-aB/c456";
  EXPECT_EQ(WithoutSecret("<sk-aB/c456>", secret), "<***>");
  EXPECT_EQ(WithoutSecret("<SK-AB/C456>", secret), "<***>");
  EXPECT_EQ(WithoutSecret(R"(<sk-aB\/c456>)", secret), "<***>");
  EXPECT_EQ(WithoutSecret(R"(<\u0073k\u002DaB/c456>)", secret), "<***>");
  EXPECT_EQ(WithoutSecret(R"({"m":"{\"n\":\"\\u0073k-aB\\\/c456\"}"})", secret),
            R"({"m":"{\"n\":\"***\"}"})");
  EXPECT_EQ(WithoutSecret("key sk-aB/c45", secret), "key ***");  // cut
  EXPECT_EQ(WithoutSecret("key sk-a", secret), "key ***");
  EXPECT_EQ(WithoutSecret("key sk-", secret), "key sk-");
  EXPECT_EQ(WithoutSecret(R"(key \u0073k-aB\u00)", secret), "key ***");
  EXPECT_EQ(WithoutSecret("sk-aB/c456sk-aB/c456, sk-aB/c4567", secret), "******, ***7");
  EXPECT_EQ(WithoutSecret(R"(a\nb \u0000 "c" \)", secret), R"(a\nb \u0000 "c" \)");
}

TEST(BenchTest, TextsOfServersAreShortVisibleAndUtf8) {
  EXPECT_EQ(VisibleText("a\r\n\tb\x1b[2J\x7f\xff\u009b\u202e\u00e9"),
            "a   b\\u001b[2J\\u007f\uFFFD\\u009b\\u202e\u00e9");
  EXPECT_EQ(VisibleText(std::string_view("\0", 1)), "\\u0000");
  EXPECT_EQ(ServerText(std::string(kMaxServerTextBytes, 'x'), ""), std::string(kMaxServerTextBytes, 'x'));
  EXPECT_EQ(ServerText(std::string(kMaxServerTextBytes + 1, 'x'), ""),
            std::string(kMaxServerTextBytes, 'x') + "...");
  EXPECT_EQ(ServerText(std::string(kMaxServerTextBytes - 1, 'x') + "\u00e9", ""),
            std::string(kMaxServerTextBytes - 1, 'x') + "...");
}

TEST(BenchTest, ATargetThatIsThereAndNamesNoModelIsAFault) {
  Bench bench;
  bench.model = InvalidArgument("http://a:1 answers GET /v1/models with 500: name the model with --model");
  EXPECT_EQ(bench.RunWith({"--rate", "50", "--requests", "5"}), kUsage);
  EXPECT_THAT(bench.err, HasSubstr("--model"));
  EXPECT_TRUE(bench.connected.empty());
}

// ---- ends before the end

// Sets `stop` with the `count`th request.
std::function<Outcome(const OutgoingRequest&)> StopAt(int count, std::atomic<bool>* stop) {
  return [count, stop, sent = 0](const OutgoingRequest&) mutable {
    if (++sent == count) *stop = true;
    return Outcome::kOk;
  };
}

TEST(BenchTest, AStoppedSearchTellsItsProbes) {
  Bench bench;
  bench.server_options.outcome = StopAt(450, &bench.stop);
  EXPECT_EQ(bench.RunWith({"--find-rate", "--rate", "10", "--slo", "ttft_p99<1000", "--requests", "100"}),
            kSloMissed)
      << bench.err;
  const Json found = bench.Result()["find_rate"];
  EXPECT_EQ(found["probes"].size(), 4u);
  EXPECT_EQ(found["why"], "the search was stopped");
  EXPECT_TRUE(found["rate"].is_null());
  EXPECT_THAT(bench.out, HasSubstr("none: the search was stopped"));
}

TEST(BenchTest, AStoppedComparisonTellsItsSlices) {
  Bench bench;
  bench.server_options.outcome = StopAt(250, &bench.stop);
  EXPECT_EQ(bench.RunWith({"--rate", "20", "--requests", "400", "--ab", "http://b:1"}), kMade) << bench.err;
  const Json ab = bench.Result()["ab"];
  EXPECT_TRUE(ab["stopped"].get<bool>());
  EXPECT_EQ(ab["order"], "ABBA");
  EXPECT_EQ(ab["completed"], (Json{200, 200}));
  EXPECT_THAT(bench.out, HasSubstr("STOPPED before its end"));
}

TEST(BenchTest, ASweepThatIsStoppedWhileItWaitsTellsItsRuns) {
  Bench bench;
  bench.answer = [&](const PlainQuestion&) -> StatusOr<PlainAnswer> {
    bench.stop = bench.asked.size() == 3;
    return PlainAnswer{200, "vllm:num_requests_running 1\n"};
  };
  EXPECT_EQ(bench.RunWith({"--sweep", "10,20", "--requests", "20"}), kMade) << bench.err;
  EXPECT_EQ(bench.asked.size(), 3u);
  EXPECT_EQ(bench.Result()["completed"], 20);
}

TEST(BenchTest, AGaugeThatIsNoCountKeepsNobodyWaiting) {
  for (const char* gauges : {"vllm:num_requests_running NaN\n", "vllm:num_requests_running +Inf\n",
                             "vllm:num_requests_running -1\n", "vllm:num_requests_running\n",
                             "vllm:num_requests_running{m=\"a} 5\"} 0 1700000000000\n"}) {
    Bench bench;
    bench.answer = [&](const PlainQuestion&) -> StatusOr<PlainAnswer> { return PlainAnswer{200, gauges}; };
    EXPECT_EQ(bench.RunWith({"--sweep", "10,20", "--requests", "20", "--drain", "5"}), kMade)
        << gauges << bench.err;
    EXPECT_EQ(bench.asked.size(), 1u) << gauges;
  }
}

// A tokenizer that takes `seconds` for each answer, a token a byte.
auto SlowTokenizer(Bench* bench, int64_t seconds) {
  return [bench, seconds](const PlainQuestion& question) -> StatusOr<PlainAnswer> {
    const int64_t end = bench->clock.Now() + seconds * 1'000'000'000;
    while (bench->clock.Now() < end) bench->clock.WaitUntil(end);
    const Json body = Json::parse(question.body);
    if (question.path == "/tokenize") {
      const Json& text = body.contains("messages") ? body["messages"][0]["content"] : body["prompt"];
      return PlainAnswer{200, Json{{"count", text.get<std::string>().size()}}.dump()};
    }
    return PlainAnswer{200, Json{{"prompt", std::string(body["tokens"].size(), 'x')}}.dump()};
  };
}

TEST(BenchTest, PromptsAreWrittenWithinTheTimeout) {
  Bench bench;
  const int64_t begin = bench.clock.Now();
  bench.answer = SlowTokenizer(&bench, 20);
  EXPECT_EQ(bench.RunWith({"--rate", "5", "--requests", "500", "--endpoint", "chat", "--timeout", "100"}),
            kNothingSucceeded);
  EXPECT_THAT(bench.err, AllOf(HasSubstr("100000 ms"), HasSubstr("--timeout"), HasSubstr("--tokenizer")));
  EXPECT_LE(bench.clock.Now() - begin, 150'000 * kMs);
  EXPECT_TRUE(bench.server->seen.empty());
}

// The thousand prompts of a closed loop that are written before it are not all; those behind them are words
// once the target's tokenizer has had its time.
TEST(BenchTest, ASlowTokenizerDoesNotPutOffTheEndOfAClosedLoop) {
  Bench bench;
  bool is_slow = false;
  bench.answer = [&, slow = SlowTokenizer(&bench, 7),
                  fast = SlowTokenizer(&bench, 0)](const PlainQuestion& question) {
    is_slow = is_slow || bench.asked.size() > 2001;  // one, and two for each of the thousand
    return is_slow ? slow(question) : fast(question);
  };
  const int64_t begin = bench.clock.Now();
  EXPECT_EQ(bench.RunWith({"--concurrency", "50", "--duration", "20", "--drain", "10", "--endpoint", "chat"}),
            kMade)
      << bench.err;
  EXPECT_TRUE(is_slow);
  EXPECT_GT(bench.server->seen.size(), 500u);
  EXPECT_LE(bench.clock.Now() - begin, 50'000 * kMs);
}

TEST(BenchTest, AStopEndsTheWritingOfPrompts) {
  Bench bench;
  bench.answer = [&, fast = SlowTokenizer(&bench, 0)](const PlainQuestion& question) {
    bench.stop = bench.asked.size() >= 8;
    return fast(question);
  };
  EXPECT_EQ(bench.RunWith({"--rate", "5", "--requests", "500", "--endpoint", "chat"}), kNothingSucceeded);
  EXPECT_THAT(bench.err, HasSubstr("stopped"));
  EXPECT_EQ(bench.asked.size(), 8u);
}

TEST(BenchTest, ADetokenizerOfEndlessTextsEndsBeforeTheRun) {
  Bench bench;
  bench.answer = [&](const PlainQuestion& question) -> StatusOr<PlainAnswer> {
    if (question.path == "/tokenize") return PlainAnswer{200, R"({"count": 1})"};
    return PlainAnswer{200, Json{{"prompt", std::string(1'000'000, 'x')}}.dump()};
  };
  EXPECT_EQ(bench.RunWith({"--rate", "5", "--requests", "5", "--endpoint", "chat"}), kNothingSucceeded);
  EXPECT_THAT(bench.err, AllOf(HasSubstr("1000000 bytes for 8 ids"), HasSubstr("256")));
}

TEST(BenchTest, ALoadThatNoMemoryHoldsIsRefused) {
  for (const std::vector<std::string>& load :
       std::vector<std::vector<std::string>>{{"--rate", "inf", "--duration", "5"},
                                             {"--rate", "5", "--requests", "100000000"},
                                             {"--concurrency", "5", "--requests", "100000000"}}) {
    Bench bench;
    EXPECT_EQ(bench.RunWith(load), kUsage);
    EXPECT_THAT(bench.err, HasSubstr("at most 5000000"));
    std::vector<std::string> dry = load;
    dry.insert(dry.end(), {"--dry-run", "--jsonl", bench.Path("dry")});
    EXPECT_EQ(bench.Run(dry), kUsage);
  }
}

TEST(BenchTest, LinesOfAComparisonTellTheirTarget) {
  Bench bench;
  EXPECT_EQ(bench.RunWith({"--rate", "20", "--requests", "8", "--ab", "http://b:1"}), kMade) << bench.err;
  std::map<std::string, int> lines;
  for (const Json& line : bench.Lines()) ++lines[line["target"].get<std::string>()];
  EXPECT_EQ(lines, (std::map<std::string, int>{{"http://a:1", 8}, {"http://b:1", 8}}));
  EXPECT_EQ(bench.RunWith({"--rate", "20", "--requests", "8"}), kMade);
  EXPECT_FALSE(bench.Lines()[0].contains("target"));
}

// ---- files

TEST(BenchTest, TwoReportsAreNotOneFile) {
  Bench bench;
  const std::string path = bench.Path("both");
  for (const std::string& other : {path, bench.Path("./both"), bench.Path("link")}) {
    std::filesystem::remove(bench.Path("link"));
    std::filesystem::create_symlink(path, bench.Path("link"));
    EXPECT_EQ(bench.Run({"--target", "http://a:1", "--rate", "5", "--json", path, "--jsonl", other}), kUsage);
    EXPECT_THAT(bench.err, AllOf(HasSubstr("--jsonl is \"" + other), HasSubstr("--json too")));
    EXPECT_TRUE(bench.connected.empty());
  }
  EXPECT_EQ(bench.Run({"--target", "http://a:1", "--rate", "5", "--requests", "2", "--json", "/dev/null",
                       "--html", "/dev/null"}),
            kMade);
}

TEST(BenchTest, AReportGoesThroughAPipeWhole) {
  Bench bench;
  ASSERT_EQ(mkfifo(bench.Path("pipe").c_str(), 0600), 0);
  std::string read;
  std::thread reader([&] { read = bench.File("pipe"); });
  EXPECT_EQ(
      bench.Run({"--target", "http://a:1", "--rate", "5", "--requests", "2", "--json", bench.Path("pipe")}),
      kMade);
  reader.join();
  EXPECT_EQ(Json::parse(read, nullptr, false).value("completed", 0), 2) << read;
}

TEST(BenchTest, AMixHasABoundThroughAPipeToo) {
  Bench bench;
  const std::string path = bench.Path("mix");
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  std::thread writer([&] {
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
    std::ofstream file(path);
    const std::string blanks(1 << 16, ' ');
    while (file << blanks << std::flush) {
    }
  });
  EXPECT_EQ(bench.RunWith({"--rate", "5", "--mix", path}), kUsage);
  writer.join();
  EXPECT_THAT(bench.err, HasSubstr("holds more than 1048576 bytes"));
}

TEST(BenchTest, AMixEndsWithItsJsonAndNamesCanBeShown) {
  Bench bench;
  bench.folder.Write("zero", std::string_view("[{\"name\":\"a\"}]\0junk", 19));
  EXPECT_EQ(bench.RunWith({"--rate", "5", "--mix", bench.Path("zero")}), kUsage);
  EXPECT_THAT(bench.err, HasSubstr("must be a JSON list"));
  bench.folder.Write("escape", R"([{"name":"a\u001b[2J"}])");
  EXPECT_EQ(bench.RunWith({"--rate", "5", "--mix", bench.Path("escape")}), kUsage);
  EXPECT_THAT(bench.err, AllOf(HasSubstr("without control characters"), HasSubstr("\\u001b[2J"),
                               Not(HasSubstr("\x1b"))));
}

}  // namespace
}  // namespace tramontane::load

// `tramontane bench` as a user starts it, against `tramontane serve` as a user starts it: two processes, the
// embedded model. And the scripted server alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/load/vllm_keys.h"
#include "tests/server/program.h"
#include "tests/support/http_test_client.h"
#include "tests/support/temp_folder.h"

namespace tramontane {
namespace {

using testing::ContainsRegex;
using testing::Each;
using testing::HasSubstr;
using testing::SizeIs;
using testing::StartsWith;
using Json = nlohmann::json;

constexpr int64_t kRequests = 6;
constexpr int64_t kOutputTokens = 8;

struct Bench {
  TempFolder folder;
  int status = 0;
  std::string out, err;
  Json json;
  std::vector<Json> lines;  // of --jsonl

  explicit Bench(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "bench");
    for (const char* name : {"json", "jsonl"}) {
      arguments.push_back(std::string("--") + name);
      arguments.push_back(folder.PathOf(name));
    }
    Program program(arguments);
    status = program.Wait();
    out = program.out();
    err = program.err();
    json = Json::parse(std::ifstream(folder.PathOf("json")), nullptr, false);
    std::ifstream file(folder.PathOf("jsonl"));
    for (std::string line; std::getline(file, line);) lines.push_back(Json::parse(line, nullptr, false));
  }
};

std::vector<std::string> With(std::vector<std::string> arguments, const std::vector<std::string>& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// A closed loop of two slots.
std::vector<std::string> SmallLoad(const std::string& target, const std::vector<std::string>& more = {}) {
  return With({"--target", target, "--concurrency", "2", "--requests", std::to_string(kRequests),
               "--prompt-tokens", "24", "--output-tokens", std::to_string(kOutputTokens)},
              more);
}

void ExpectAWholeRun(const Bench& bench, const std::string& which) {
  SCOPED_TRACE(which);
  EXPECT_EQ(bench.status, 0) << bench.out << bench.err;
  ASSERT_TRUE(bench.json.is_object()) << bench.out << bench.err;
  for (const std::string& key : load::VllmKeys()) EXPECT_TRUE(bench.json.contains(key)) << key;
  for (const char* metric : {"ttft_ms", "tpot_ms", "itl_ms", "e2el_ms"}) {
    for (const char* statistic : {"mean_", "median_", "std_", "p90_", "p99_"}) {
      const std::string key = std::string(statistic) + metric;
      ASSERT_TRUE(bench.json.contains(key)) << key;
      EXPECT_TRUE(bench.json[key].is_number_float()) << key << ": " << bench.json[key];
    }
  }
  EXPECT_EQ(bench.json["model_id"], "breeze");
  EXPECT_EQ(bench.json["completed"], kRequests);
  EXPECT_EQ(bench.json["failures"], Json({{"ok", kRequests}}));
  EXPECT_EQ(bench.json["total_output_tokens"], kRequests * kOutputTokens);
  EXPECT_EQ(bench.json["output_tokens_from"], Json({{"usage", kRequests}}));
  ASSERT_THAT(bench.lines, SizeIs(kRequests));
  for (const Json& line : bench.lines) {
    EXPECT_EQ(line["outcome"], "ok") << line;
    EXPECT_GT(line["ttft_ms"], 0) << line;
    EXPECT_LE(line["ttft_ms"], line["e2el_ms"]) << line;
    EXPECT_TRUE(line["timing"].is_object()) << line;
  }
  // Each of three requests is explained down to what no one told of.
  EXPECT_THAT(bench.out, ContainsRegex("explained: ttft nearest to p50"));
  EXPECT_THAT(bench.out, ContainsRegex("explained: ttft nearest to p99"));
  EXPECT_THAT(bench.out, HasSubstr("prefill_run"));
  EXPECT_THAT(bench.out, HasSubstr("network+client"));
}

TEST(BenchProgram, MeasuresTheRealServerThroughEachDoor) {
  Served served;
  const Bench grpc(SmallLoad("grpc://" + served.address, {"--explain"}));
  ExpectAWholeRun(grpc, "gRPC");
  EXPECT_THAT(grpc.json.value("input_lens", Json()), Each(24));
  if (served.http.empty()) GTEST_SKIP() << "this build has no HTTP door: it was not measured";
  const Bench completions(SmallLoad("http://" + served.http, {"--explain"}));
  ExpectAWholeRun(completions, "completions");
  EXPECT_THAT(completions.json.value("input_lens", Json()), Each(24));
  const Bench chats(SmallLoad("http://" + served.http, {"--endpoint", "chat", "--explain"}));
  ExpectAWholeRun(chats, "chats");
  EXPECT_THAT(chats.json.value("input_lens", Json()), Each(24));  // the template's tokens among them
  EXPECT_EQ(chats.json["prompt_mismatches"], 0);
  served.program.Signal(SIGTERM);
  EXPECT_EQ(served.program.Wait(), 0) << served.program.err();
}

TEST(BenchProgram, TellsByItsStatusWhatBecameOfARun) {
  Served served;
  const std::string target = "grpc://" + served.address;
  const Bench missed(SmallLoad(target, {"--slo", "ttft_p99<0.0001"}));
  EXPECT_EQ(missed.status, 3) << missed.out << missed.err;
  EXPECT_EQ(missed.json["slo_met"], false);
  const Bench met(SmallLoad(target, {"--slo", "ttft_p99<600000,success>0.5"}));
  EXPECT_EQ(met.status, 0) << met.out << met.err;
  const Bench misused(SmallLoad(target, {"--rate", "fast"}));
  EXPECT_EQ(misused.status, 2);
  EXPECT_THAT(misused.err, HasSubstr("--rate is \"fast\"; it must be a number from"));
  const Bench refused(SmallLoad("grpc://127.0.0.1:1", {"--model", "breeze"}));
  EXPECT_EQ(refused.status, 1) << refused.out << refused.err;
  EXPECT_EQ(refused.json["failures"], Json({{"refused", kRequests}}));
}

// ---- the scripted server alone ------------------------------------------------------------------

std::string ScriptedServer() {
  const char* path = std::getenv("SCRIPTED_SERVER");
  return path == nullptr ? "build/release/bin/load_scripted_server" : path;
}

TEST(ScriptedServerProgram, StreamsWhatIsAskedForAndLogsWhenItDid) {
  const TempFolder folder;
  const std::string log = folder.PathOf("log");
  Program server({"--ttft-ms", "30", "--gap-ms", "1.5", "--log", log}, {.binary = ScriptedServer()});
  const std::string ready = server.FirstLine();
  ASSERT_TRUE(ready.starts_with("ready {")) << ready << server.err();
  const std::string address = Json::parse(ready.substr(6)).value("http", "");
  for (const char* endpoint : {"completions", "chat"}) {
    const Bench bench(SmallLoad("http://" + address, {"--endpoint", endpoint}));
    EXPECT_EQ(bench.status, 0) << bench.out << bench.err;
    EXPECT_EQ(bench.json.value("completed", 0), kRequests) << bench.json;
    EXPECT_EQ(bench.json.value("total_output_tokens", 0), kRequests * kOutputTokens) << bench.json;
    EXPECT_EQ(bench.json.value("model_id", ""), "scripted");
    for (const Json& line : bench.lines) EXPECT_GE(line["ttft_sent_ms"], 30) << line;
  }
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 0) << server.err();
  std::ifstream file(log);
  int64_t requests = 0;
  for (std::string text; std::getline(file, text); ++requests) {
    const Json line = Json::parse(text);
    const auto content_ns = line["content_ns"].get<std::vector<int64_t>>();
    ASSERT_THAT(content_ns, SizeIs(kOutputTokens)) << text;
    EXPECT_GE(content_ns.front() - line["received_ns"].get<int64_t>(), 30'000'000) << text;
  }
  EXPECT_EQ(requests, 2 * kRequests);
}

// As clients of others write it: names in lower case, no request id.
TEST(ScriptedServerProgram, AnswersForeignClientsAndRefusesWhatItCannotStream) {
  const TempFolder folder;
  Program server({"--ttft-ms", "0", "--gap-ms", "0", "--log", folder.PathOf("log")},
                 {.binary = ScriptedServer()});
  const std::string ready = server.FirstLine();
  ASSERT_TRUE(ready.starts_with("ready {")) << ready << server.err();
  const std::string address = Json::parse(ready.substr(6)).value("http", "");
  const auto post = [&](const std::string& path, const std::string& body, const char* end = "}}") {
    HttpTestClient client(address);
    client.Send("POST " + path + " HTTP/1.1\r\nhost: x\r\ncontent-length:" + std::to_string(body.size()) +
                "\r\n\r\n" + body);
    return client.ReadUntil(end);
  };
  const std::string whole =
      post("/v1/chat/completions", R"({"stream": true, "max_completion_tokens": 3})", "[DONE]");
  EXPECT_THAT(whole, StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(whole, HasSubstr(R"("completion_tokens":3)"));
  EXPECT_THAT(post("/v1/embeddings", "{}"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(post("/v1/completions", "[]"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(post("/v1/completions", R"({"stream": false})"), HasSubstr("stream must be true"));
  for (const char* tokens : {"0", "10001", "\"many\""}) {
    EXPECT_THAT(post("/v1/completions", std::string(R"({"stream": true, "max_tokens": )") + tokens + "}"),
                HasSubstr("between 1 and 10000"));
  }
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 0) << server.err();
  std::ifstream file(folder.PathOf("log"));
  std::string line;
  ASSERT_TRUE(std::getline(file, line));
  EXPECT_EQ(Json::parse(line)["request_id"], "1/1");  // the first connection's first
  EXPECT_FALSE(std::getline(file, line)) << line;     // refusals have no content
}

TEST(ScriptedServerProgram, NamesWhatItsFlagsMayBe) {
  Program server({"--gap-ms", "-1"}, {.binary = ScriptedServer()});
  EXPECT_EQ(server.Wait(), 2);
  EXPECT_THAT(server.err(), HasSubstr("--gap-ms"));
}

}  // namespace
}  // namespace tramontane

// The text of GET /metrics: names and labels that others read, and that it counts the requests of both doors.
#include "server/watch/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "server/access/keyed_client.h"
#include "server/remote/gateway_metrics.h"
#include "tests/server/call_reader.h"
#include "tests/server/scripted_server.h"

namespace tramontane {
namespace {

using ::testing::HasSubstr;

std::string Text(const ScriptedServer& server) { return ServerMetricsText(server.served(), {}); }

TEST(Metrics, CountTheRequestsOfBothDoors) {
  ScriptedServer server;
  Stream over_grpc(server.stub(), RequestOfIds({1, 2, 3}, 8));
  ASSERT_TRUE(over_grpc.ReadAll().ok());
  CallReader in_process(server.server().client(), RequestOfIds({1, 2}, 4));
  ASSERT_TRUE(in_process.ReadAll().ok());
  server.WaitForLoad([](const v1::GetLoadResponse& load) { return load.held_pages() == 0; });

  const std::string text = Text(server);
  const std::string model = R"(model_name="scripted")";
  for (const std::string& line : {
           "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{" + model + "} 0\n",
           "vllm:num_requests_waiting{" + model + "} 0\n",
           "vllm:kv_cache_usage_perc{" + model + "} 0\n",
           "# TYPE vllm:prompt_tokens_total counter\nvllm:prompt_tokens_total{" + model + "} 5\n",
           "vllm:generation_tokens_total{" + model + "} 12\n",
           "vllm:request_success_total{" + model + R"(,finished_reason="length"} 2)",
           "vllm:request_success_total{" + model + R"(,finished_reason="stop"} 0)",
           "vllm:request_success_total{" + model + R"(,finished_reason="abort"} 0)",
           "vllm:time_to_first_token_seconds_count{" + model + "} 2\n",
           "vllm:time_to_first_token_seconds_bucket{" + model + R"(,le="0.001"})",
           "vllm:time_to_first_token_seconds_bucket{" + model + R"(,le="2560"} 2)",
           "vllm:time_to_first_token_seconds_bucket{" + model + R"(,le="+Inf"} 2)",
           "vllm:inter_token_latency_seconds_count{" + model + "} 10\n",
           "vllm:inter_token_latency_seconds_bucket{" + model + R"(,le="0.025"})",
           "# TYPE tramontane_dropped_log_lines_total counter\ntramontane_dropped_log_lines_total{" + model +
               "} 0\n",
       }) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(Metrics, WhatHasNotReachedTheEngineWaitsToo) {
  const ScriptedServer server;
  EXPECT_THAT(ServerMetricsText(server.served(), {}, /*waiting_at_doors=*/7),
              HasSubstr(R"(vllm:num_requests_waiting{model_name="scripted"} 7)"));
}

// Of a metric by its name and labels.
std::string ValueOf(const std::string& text, const std::string& metric) {
  const size_t at = text.find("\n" + metric + " ");
  if (at == std::string::npos) return "none";
  const size_t value = at + metric.size() + 2;
  return text.substr(value, text.find('\n', value) - value);
}

TEST(Metrics, AChoiceWhoseTimeIsOverEndedByItsLength) {
  ScriptedServer server;
  server.model().SetStepTime(1000);
  v1::GenerateRequest request = RequestOfIds({1}, 30'000);
  request.mutable_stopping()->set_time_limit_ms(20);
  Stream stream(server.stub(), request);
  ASSERT_TRUE(stream.ReadAll().ok());
  ASSERT_EQ(stream.finished().reason(), v1::FINISH_REASON_TIME_LIMIT);
  const std::string reasons = R"(vllm:request_success_total{model_name="scripted",finished_reason=)";
  EXPECT_EQ(ValueOf(Text(server), reasons + R"("length"})"), "1");
  EXPECT_EQ(ValueOf(Text(server), reasons + R"("abort"})"), "0");
}

TEST(Metrics, PreemptionsAndFailedRowsAreToldApart) {
  ScriptedServerOptions options;
  options.limits.context = 256;
  options.limits.pool_pages = 8;  // a window of 64 tokens needs up to 6: two sequences do not fit
  options.limits.max_step_tokens = 16;
  options.limits.max_sequences = 2;
  options.limits.max_choices = 1;
  ScriptedServer server(options);
  server.model().FailAt(230);  // beyond the first two
  server.model().Hold();
  Stream first(server.stub(), RequestOfIds(std::vector<int32_t>(16, 1), 200));
  Stream second(server.stub(), RequestOfIds(std::vector<int32_t>(16, 1), 200));
  first.WaitForInitialMetadata();  // both are the engine's before it goes on, so they share all of their time
  second.WaitForInitialMetadata();
  server.model().Release();
  ASSERT_TRUE(first.ReadAll().ok());
  ASSERT_TRUE(second.ReadAll().ok());
  constexpr int64_t kFailures = 3;
  for (int64_t i = 0; i < kFailures; ++i) {
    Stream fails(server.stub(), RequestOfIds(std::vector<int32_t>(16, 1), 220));
    fails.ReadAll();
  }
  server.WaitForLoad([](const v1::GetLoadResponse& load) { return load.held_pages() == 0; });

  const EngineLoad load = server.engine().Load();
  ASSERT_EQ(load.failed_rows, kFailures);
  ASSERT_GT(load.preemptions, 0);
  ASSERT_NE(load.preemptions, load.failed_rows) << "else the test tells nothing";
  const std::string label = R"({model_name="scripted"})";
  EXPECT_EQ(ValueOf(Text(server), "vllm:num_preemptions_total" + label), std::to_string(load.preemptions));
  EXPECT_EQ(ValueOf(Text(server), "tramontane_failed_rows_total" + label), std::to_string(kFailures));
}

TEST(Metrics, PagesAreToldByGroupAndNoneIsHeldAfterTheLastRequest) {
  ScriptedServer server;
  server.model().Hold();
  Stream stream(server.stub(), RequestOfIds(std::vector<int32_t>(40, 1), 20));
  stream.WaitForInitialMetadata();
  server.model().AllowSteps(2);
  server.WaitForLoad([](const v1::GetLoadResponse& load) { return load.held_pages() > 0; });
  const EngineLoad load = server.engine().Load();  // its steps are used up: it stays as it is
  EXPECT_EQ(load.held_pages_of_group[0], load.held_pages);
  const std::string held = R"(tramontane_kv_pages{model_name="scripted",group="window-64",state="held"} )";
  EXPECT_THAT(Text(server), HasSubstr(held + std::to_string(load.held_pages) + "\n"));
  const std::string usage = R"(vllm:kv_cache_usage_perc{model_name="scripted"})";
  EXPECT_NEAR(std::stod(ValueOf(Text(server), usage)),
              static_cast<double>(load.held_pages) / static_cast<double>(load.total_pages), 1e-6);

  server.model().Release();
  ASSERT_TRUE(stream.ReadAll().ok());
  server.WaitForLoad([](const v1::GetLoadResponse& now) { return now.held_pages() == 0; });
  const std::string text = Text(server);
  EXPECT_THAT(text, HasSubstr(held + "0\n"));
  const EngineLoad after = server.engine().Load();
  EXPECT_GT(after.cached_pages, 0);
  EXPECT_EQ(ValueOf(text, usage), "0") << "cached pages are not held";
  EXPECT_THAT(text,
              HasSubstr(R"(tramontane_kv_pages{model_name="scripted",group="window-64",state="cached"} )" +
                        std::to_string(after.cached_pages) + "\n"));
  EXPECT_THAT(text, HasSubstr(R"(tramontane_kv_pages{model_name="scripted",group="any",state="free"} )" +
                              std::to_string(after.total_pages - after.cached_pages) + "\n"));
  for (const std::string tier : {"host", "disk"}) {
    EXPECT_EQ(ValueOf(text, R"(tramontane_kv_tier_bytes{model_name="scripted",tier=")" + tier + R"("})"),
              "0");
  }
}

TEST(Metrics, CountWhatThePrefixCacheFound) {
  ScriptedServer server;
  const std::string queries = R"(vllm:prefix_cache_queries_total{model_name="scripted"})";
  const std::string hits = R"(vllm:prefix_cache_hits_total{model_name="scripted"})";
  for (int i = 0; i < 2; ++i) {
    Stream stream(server.stub(), RequestOfIds(std::vector<int32_t>(40, 1), 2));
    ASSERT_TRUE(stream.ReadAll().ok());
    EXPECT_EQ(stream.finished().usage().cached_tokens(), 32 * i) << "pages of 16 tokens";
    server.WaitForLoad([](const v1::GetLoadResponse& load) { return load.held_pages() == 0; });
    EXPECT_EQ(ValueOf(Text(server), queries), std::to_string(40 * (i + 1)));
    EXPECT_EQ(ValueOf(Text(server), hits), std::to_string(32 * i));
  }
  v1::GenerateRequest salted = RequestOfIds(std::vector<int32_t>(40, 1), 2);
  salted.set_cache_salt("mine");
  Stream stream(server.stub(), salted);
  ASSERT_TRUE(stream.ReadAll().ok());
  EXPECT_EQ(stream.finished().usage().cached_tokens(), 0);
}

TEST(Metrics, CountWhatContextPoliciesDiscard) {
  ScriptedServer server;
  v1::GenerateRequest request = RequestOfIds(std::vector<int32_t>(40, 1), 20);
  request.mutable_context_policy()->set_type(v1::ContextPolicy::TYPE_SINKS);
  request.mutable_context_policy()->set_n_ctx(32);
  Stream stream(server.stub(), request);
  ASSERT_TRUE(stream.ReadAll().ok());
  EXPECT_EQ(stream.finished().usage().discarded_tokens(), 40 + 20 - 1 - 32)
      << "the last token is not fed back";
  server.WaitForLoad([](const v1::GetLoadResponse& load) { return load.held_pages() == 0; });
  const std::string text = Text(server);
  EXPECT_EQ(ValueOf(text, R"(tramontane_discarded_tokens_total{model_name="scripted",type="sinks"})"), "27");
  EXPECT_EQ(ValueOf(text, R"(tramontane_discarded_tokens_total{model_name="scripted",type="shift"})"), "0");

  request.clear_context_policy();
  Stream plain(server.stub(), request);
  ASSERT_TRUE(plain.ReadAll().ok());
  EXPECT_FALSE(plain.finished().usage().has_discarded_tokens());
}

TEST(Metrics, OfTheGatewayTellItsServersAndWhatWaitsForRoomAtThem) {
  RemoteClient client({.backends = {"127.0.0.1:1"}});
  KeyedClient(client).NoteUnsent(5);
  const std::string text = GatewayMetricsText(
      {{.address = "a:1",
        .up = true,
        .open_calls = 3,
        .others_calls = 2,
        .started_calls = 9,
        .lost_calls = 1},
       {.address = "b:1"}},
      client.unsent(), {.dropped_log_lines = 7, .reloads = {{.what = "keys", .taken = 2, .failed = 1}}});
  for (const char* line : {
           "tramontane_backend_up{backend=\"a:1\"} 1\n",
           "tramontane_backend_up{backend=\"b:1\"} 0\n",
           "tramontane_backend_open_calls{backend=\"a:1\"} 3\n",
           "# TYPE tramontane_backend_lost_calls_total counter\n",
           "tramontane_gateway_unsent_prompts 5\n",
           "tramontane_dropped_log_lines_total 7\n",
           "tramontane_reload_total{what=\"keys\",outcome=\"taken\"} 2\n",
           "tramontane_reload_total{what=\"keys\",outcome=\"failed\"} 1\n",
           "tramontane_backend_lost_calls_total{backend=\"a:1\"} 1\n",
       }) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

}  // namespace
}  // namespace tramontane

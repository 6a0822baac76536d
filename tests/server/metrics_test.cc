// The text of GET /metrics: names and labels that others read, and that it counts the requests of both doors.
#include "server/watch/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "server/access/keyed_client.h"
#include "server/api/shared/http_counts.h"
#include "server/remote/gateway_metrics.h"
#include "server/watch/metric_families.h"
#include "server/watch/metrics_page.h"
#include "server/watch/request_counts.h"
#include "tests/server/call_reader.h"
#include "tests/server/scripted_server.h"
#include "tests/support/metrics_text.h"

namespace tramontane {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Text(const ScriptedServer& server) {
  const ServedModel model = server.served();
  return ServerMetricsText({.model = &model});
}

TEST(Metrics, CountTheRequestsOfBothDoors) {
  ScriptedServer server;
  Stream over_grpc(server.stub(), RequestOfIds({1, 2, 3}, 8));
  ASSERT_TRUE(over_grpc.ReadAll().ok());
  CallReader in_process(server.server().client(), RequestOfIds({1, 2}, 4));
  ASSERT_TRUE(in_process.ReadAll().ok());
  server.WaitForLoad([](const v1::GetLoadResponse& load) { return load.held_pages() == 0; });

  const std::string text = Text(server);
  const std::string model = R"(model_name="scripted",engine="0")";
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
           std::string("# TYPE tramontane_dropped_log_lines_total counter\n"
                       "tramontane_dropped_log_lines_total 0\n"),
       }) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

// ---- the table of families ------------------------------------------------------------------------

// A row for each value of its closed labels; of an open one any.
void ExpectRows(const MetricSeries& page, const MetricFamily& family, const std::string& common) {
  std::vector<std::string> rows = {std::string(family.name) +
                                   (family.kind == MetricKind::kHistogram ? "_count" : "") +
                                   (common.empty() && family.labels.empty() ? "" : "{") + common};
  bool is_open = false;
  for (const MetricLabel& label : family.labels) {
    std::vector<std::string> longer;
    is_open = is_open || label.values.empty();
    for (const std::string& row : rows) {
      for (const std::string_view value : label.values) {
        longer.push_back(row + (row.ends_with('{') ? "" : ",") + std::string(label.name) + "=\"" +
                         std::string(value) + "\"");
      }
    }
    if (is_open) break;
    rows = longer;
  }
  for (const std::string& row : rows) {
    const auto found = page.lower_bound(row);
    EXPECT_TRUE(found != page.end() && found->first.starts_with(row)) << row;
  }
}

TEST(Metrics, EveryFamilyAndEveryClosedLabelIsThereFromTheFirstScrape) {
  const ScriptedServer server;
  const ServedModel model = server.served();
  const RequestCounts requests;
  std::string text =
      ServerMetricsText({.model = &model, .requests = &requests, .legacy_names = true}) + HttpCounts().Text();
  ExpectWellFormed(text);
  const std::string http = HttpCounts({{"GET", "/models", "/v1/models"}}).Text();
  ExpectWellFormed(http);
  const MetricSeries page = SeriesOf(text), http_page = SeriesOf(http);
  const MetricSeries gateway = SeriesOf(GatewayMetricsText({{.address = "a:1"}}, 0, requests, {}));
  for (const MetricFamily& family : MetricFamilies()) {
    const bool is_http = family.name.starts_with("http_");
    if ((family.pages & ~MetricFamily::kGateway) != 0) {
      ExpectRows(is_http ? http_page : page, family,
                 family.of_engine ? R"(model_name="scripted",engine="0")" : "");
    }
    if (!is_http && (family.pages & MetricFamily::kGateway) != 0) ExpectRows(gateway, family, "");
  }
  EXPECT_EQ(page.at(R"(tramontane_requests_total{key="-",outcome="ok"})"), 0);
  EXPECT_TRUE(http_page.contains(R"(http_requests_total{handler="/v1/models",method="GET",status="5xx"})"));
  const std::string plain = ServerMetricsText({.model = &model, .requests = &requests});
  EXPECT_THAT(plain, Not(HasSubstr("vllm:gpu_"))) << "only where they are asked for";
  EXPECT_THAT(ServerMetricsText({.requests = &requests}), Not(HasSubstr("vllm:"))) << "it is loading";
  EXPECT_LT(text.size(), 300'000u) << "what a scrape costs is by its bytes";
}

TEST(Metrics, AreDescribedByTheTableThatTheyAreMadeFrom) {
  std::ifstream file(std::string(TRAMONTANE_SOURCE_DIR) + "/docs/metrics.md");
  std::vector<std::string> told;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("| `")) told.push_back(line);
  }
  std::vector<std::string> rows;
  for (const MetricFamily& family : MetricFamilies()) rows.push_back(MetricDocRow(family));
  EXPECT_EQ(told, rows) << "docs/metrics.md has them in this order";
}

TEST(Metrics, KeysBeyondTheMostShareOneRowAndNoNameBreaksALine) {
  RequestCounts counts;
  Caller caller;
  for (size_t i = 0; i < RequestCounts::kMostKeys + 40; ++i) {
    caller.key_name = i == 7 ? "a\"b\\c\nd\xff" : "key" + std::to_string(i);
    counts.TokensOf(caller)->prompt += 3;
    counts.NoteEnd(caller, {RequestOutcome::kOk});
  }
  MetricsPage page;
  counts.AddTo(&page);
  ExpectWellFormed(page.Text());
  const MetricSeries series = SeriesOf(page.Text());
  EXPECT_EQ(series.at(R"(tramontane_requests_total{key="key255",outcome="ok"})"), 1);
  EXPECT_FALSE(series.contains(R"(tramontane_requests_total{key="key256",outcome="ok"})"));
  EXPECT_EQ(series.at(R"(tramontane_requests_total{key="other",outcome="ok"})"), 40);
  EXPECT_EQ(series.at(R"(tramontane_key_tokens_total{key="other",kind="prompt"})"), 120);
  EXPECT_EQ(series.at("tramontane_requests_total{key=\"a\\\"b\\\\c\\nd\xef\xbf\xbd\",outcome=\"ok\"}"), 1);
}

TEST(Metrics, AnEndIsOneOfAFew) {
  const auto reason = [](const RequestEnd& end) {
    return end.outcome == RequestOutcome::kRefused ? kRefusalReasons[end.reason]
                                                   : kRequestOutcomes[static_cast<size_t>(end.outcome)];
  };
  const auto of_call = [&reason](const RpcError& error, bool taken) {
    return reason(EndOfCall(error, taken));
  };
  EXPECT_STREQ(of_call({}, true), "ok");
  EXPECT_STREQ(of_call(ToRpcError(Status(StatusCode::kCancelled, "")), false), "cancelled");
  EXPECT_STREQ(of_call(FieldError("top_p", "is 2"), false), "invalid");
  EXPECT_STREQ(of_call(BusyError("QUEUE_FULL", ""), false), "queue_full");
  EXPECT_STREQ(of_call(BusyError("QUEUE_FULL", ""), true), "error");
  EXPECT_STREQ(of_call(BusyError("MADE_UP", ""), false), "other");
  EXPECT_STREQ(of_call(UnavailableError("DRAINING", ""), false), "draining");
  EXPECT_STREQ(of_call(UnavailableError("LOADING", ""), false), "unavailable");
  EXPECT_STREQ(of_call(UnavailableError("STOPPED", ""), true), "error");
  EXPECT_STREQ(reason(EndOfAnswer(200, "", false)), "ok");
  EXPECT_STREQ(reason(EndOfAnswer(429, "key_concurrency", false)), "key_concurrency");
  EXPECT_STREQ(reason(EndOfAnswer(503, "too_many_body_bytes", false)), "too_many_body_bytes");
  EXPECT_STREQ(reason(EndOfAnswer(404, "model_not_found", false)), "invalid");
  EXPECT_STREQ(reason(EndOfAnswer(504, "", false)), "error");
}

// ---- what is counted ------------------------------------------------------------------------------

TEST(Metrics, WhatHasNotReachedTheEngineWaitsToo) {
  const ScriptedServer server;
  const ServedModel model = server.served();
  EXPECT_THAT(ServerMetricsText({.model = &model, .waiting_at_doors = 7}),
              HasSubstr(R"(vllm:num_requests_waiting{model_name="scripted",engine="0"} 7)"));
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
  const std::string reasons =
      R"(vllm:request_success_total{model_name="scripted",engine="0",finished_reason=)";
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
  const std::string label = R"({model_name="scripted",engine="0"})";
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
  const std::string held =
      R"(tramontane_kv_pages{model_name="scripted",engine="0",group="window-64",state="held"} )";
  EXPECT_THAT(Text(server), HasSubstr(held + std::to_string(load.held_pages) + "\n"));
  const std::string usage = R"(vllm:kv_cache_usage_perc{model_name="scripted",engine="0"})";
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
  EXPECT_THAT(
      text,
      HasSubstr(R"(tramontane_kv_pages{model_name="scripted",engine="0",group="window-64",state="cached"} )" +
                std::to_string(after.cached_pages) + "\n"));
  EXPECT_THAT(text,
              HasSubstr(R"(tramontane_kv_pages{model_name="scripted",engine="0",group="any",state="free"} )" +
                        std::to_string(after.total_pages - after.cached_pages) + "\n"));
  for (const std::string tier : {"host", "disk"}) {
    EXPECT_EQ(
        ValueOf(text, R"(tramontane_kv_tier_bytes{model_name="scripted",engine="0",tier=")" + tier + R"("})"),
        "0");
  }
}

TEST(Metrics, CountWhatThePrefixCacheFound) {
  ScriptedServer server;
  const std::string queries = R"(vllm:prefix_cache_queries_total{model_name="scripted",engine="0"})";
  const std::string hits = R"(vllm:prefix_cache_hits_total{model_name="scripted",engine="0"})";
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
  EXPECT_EQ(
      ValueOf(text, R"(tramontane_discarded_tokens_total{model_name="scripted",engine="0",type="sinks"})"),
      "27");
  EXPECT_EQ(
      ValueOf(text, R"(tramontane_discarded_tokens_total{model_name="scripted",engine="0",type="shift"})"),
      "0");

  request.clear_context_policy();
  Stream plain(server.stub(), request);
  ASSERT_TRUE(plain.ReadAll().ok());
  EXPECT_FALSE(plain.finished().usage().has_discarded_tokens());
}

TEST(Metrics, OfTheGatewayTellItsServersAndWhatWaitsForRoomAtThem) {
  RemoteClient client({.backends = {"127.0.0.1:1"}});
  KeyedClient(client).NoteUnsent(5);
  const std::string text =
      GatewayMetricsText({{.address = "a:1",
                           .up = true,
                           .open_calls = 3,
                           .others_calls = 2,
                           .started_calls = 9,
                           .lost_calls = 1},
                          {.address = "b:1"}},
                         client.unsent(), RequestCounts(),
                         {.dropped_log_lines = 7, .reloads = {{.what = "keys", .taken = 2, .failed = 1}}});
  for (const char* line : {
           "tramontane_backend_up{backend=\"a:1\"} 1\n",
           "tramontane_backend_up{backend=\"b:1\"} 0\n",
           "tramontane_backend_open_calls{backend=\"a:1\"} 3\n",
           "# TYPE tramontane_backend_lost_calls_total counter\n",
           "tramontane_gateway_unsent_prompts 5\n",
           "tramontane_dropped_log_lines_total 7\n",
           "tramontane_reload_total{what=\"keys\",outcome=\"ok\"} 2\n",
           "tramontane_reload_total{what=\"keys\",outcome=\"failed\"} 1\n",
           "tramontane_backend_lost_calls_total{backend=\"a:1\"} 1\n",
       }) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

}  // namespace
}  // namespace tramontane

// What both doors of a real server tell of the time to the first content, and its traces.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/api/gateway.h"
#include "server/remote/remote_client.h"
#include "server/watch/trace_file.h"
#include "tests/server/scripted_server.h"
#include "tests/support/http_test_client.h"
#include "tests/support/temp_folder.h"
#include "tests/support/wait_for.h"

namespace tramontane {
namespace {

using ::testing::HasSubstr;
using EventsJson = nlohmann::ordered_json;

constexpr char kAsks[] = "x-tramontane-timing: 1";
constexpr char kStreamed[] = R"({"prompt":[300,301,302],"max_tokens":4,"stream":true})";
constexpr int64_t kMinuteMs = 60'000;

ScriptedServerOptions WithHttp(bool debug = false) {
  ScriptedServerOptions options;
  options.server.http_address = "127.0.0.1:0";
  if (debug) options.server.admin_address = "127.0.0.1:0";
  return options;
}

// The last JSON of a stream.
EventsJson LastEvent(const HttpReply& reply) {
  const size_t at = reply.body.rfind("data: {");
  if (at == std::string::npos) return {};
  return EventsJson::parse(reply.body.substr(at + 6, reply.body.find('\n', at) - at - 6));
}

void ExpectSum(const EventsJson& timing) {
  int64_t sum_ns = 0;
  for (const auto& [key, value] : timing.items()) {
    if (!key.ends_with("_ms")) continue;
    ASSERT_TRUE(value.is_number_float()) << key << ": " << value;
    EXPECT_GE(value.get<double>(), 0.0) << key;
    if (key != "ttft_ms") sum_ns += std::llround(value.get<double>() * 1e6);
  }
  EXPECT_EQ(sum_ns, std::llround(timing["ttft_ms"].get<double>() * 1e6));
}

// What a message tells, by the names of its fields.
EventsJson JsonOf(const v1::Timings& timings) {
  EventsJson json;
  const auto& reflection = *timings.GetReflection();
  for (int i = 0; i < timings.GetDescriptor()->field_count(); ++i) {
    const google::protobuf::FieldDescriptor* field = timings.GetDescriptor()->field(i);
    if (field->name().ends_with("_us") || !reflection.HasField(timings, field)) continue;
    if (field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_DOUBLE) {
      json[field->name()] = reflection.GetDouble(timings, field);
    } else if (field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_INT32) {
      json[field->name()] = reflection.GetInt32(timings, field);
    } else {
      json[field->name()] = reflection.GetInt64(timings, field);
    }
  }
  return json;
}

std::vector<std::string> KeysOf(const EventsJson& json) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  return keys;
}

TEST(TimingOfBothDoors, HasTheSameFieldsAndSums) {
  ScriptedServer server(WithHttp());
  Stream stream(server.stub(), RequestOfIds({300, 301, 302}, 4));
  ASSERT_TRUE(stream.ReadAll().ok());
  const EventsJson over_grpc = JsonOf(stream.finished().timings());
  ExpectSum(over_grpc);
  EXPECT_EQ(over_grpc["receive_ms"], 0.0);

  const std::string& address = server.server().http_address();
  const HttpReply reply = Fetch(address, HttpPost("/v1/completions", kStreamed, {kAsks}));
  const EventsJson timing = LastEvent(reply)["timing"];
  ExpectSum(timing);
  EXPECT_EQ(KeysOf(timing), KeysOf(over_grpc)) << "in the order of the message's fields";
  EXPECT_EQ(timing["chunks"], 1);
  EXPECT_EQ(reply.Header("server-timing"), "");

  const HttpReply plain = Fetch(address, HttpPost("/v1/completions", kStreamed));
  EXPECT_EQ(plain.body.find("timing"), std::string::npos);

  const std::string whole_body = R"({"prompt":[300,301,302],"max_tokens":4})";
  const HttpReply whole = Fetch(address, HttpPost("/v1/completions", whole_body, {kAsks}));
  ExpectSum(EventsJson::parse(whole.body)["timing"]);
  EXPECT_THAT(whole.Header("server-timing"), HasSubstr("prefill_run;dur="));
  EXPECT_EQ(Fetch(address, HttpPost("/v1/completions", whole_body)).Header("server-timing"), "");
  const HttpReply refused =
      Fetch(address, HttpPost("/v1/completions", kStreamed, {"x-tramontane-timing: yes"}));
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.body, HasSubstr("only 1 and 0"));
}

// The middle is the server's, both ends are the gateway's.
TEST(TimingOfBothDoors, PassesThroughTheSeparateGateway) {
  ScriptedServer server;
  RemoteClient remote(RemoteClientOptions{.backends = {server.address()}});
  ASSERT_TRUE(remote.WaitUntilReady(kMinuteMs));
  GatewayOptions options;
  options.address = "127.0.0.1:0";
  auto gateway = Gateway::Start(options, remote);
  ASSERT_TRUE(gateway.ok()) << gateway.status();
  for (int i = 0; i < 5; ++i) {
    ExpectSum(
        LastEvent(Fetch((*gateway)->address(), HttpPost("/v1/completions", kStreamed, {kAsks})))["timing"]);
  }
}

// ---- the line of a request ------------------------------------------------------------------------

// What both doors have told.
class Lines {
 public:
  RequestLog log() {
    return {.tell = [this](const RequestLine& line) {
      const std::lock_guard lock(mutex_);
      lines_.push_back(line);
    }};
  }
  // Those of requests that generate.
  std::vector<RequestLine> Take() {
    const std::lock_guard lock(mutex_);
    std::vector<RequestLine> all = std::exchange(lines_, {});
    std::erase_if(
        all, [](const RequestLine& line) { return !line.generates && line.outcome == RequestOutcome::kOk; });
    return all;
  }

 private:
  std::mutex mutex_;
  std::vector<RequestLine> lines_;
};

constexpr char kTraceId[] = "0af7651916cd43dd8448eb211c80319c";
const std::string kTraceParent = std::string("00-") + kTraceId + "-b7ad6b7169203331-01";
constexpr char kGenerateRoute[] = "/tramontane.v1.Inference/Generate";

TEST(RequestLine, IsOneForEachCallOverGrpcWhateverBecomesOfIt) {
  Lines lines;
  ScriptedServerOptions options;
  options.server.request_log = lines.log();
  ScriptedServer server(std::move(options));
  {
    Stream stream(server.stub(), RequestOfIds({300, 301, 302}, 4),
                  {{"x-request-id", "mine"}, {"x-correlation-id", "theirs"}, {"traceparent", kTraceParent}});
    ASSERT_TRUE(stream.ReadAll().ok());
    EXPECT_EQ(stream.InitialMetadata("traceparent"), kTraceParent);
    EXPECT_EQ(stream.InitialMetadata("x-request-id"), "mine");
  }
  std::vector<RequestLine> told = lines.Take();
  ASSERT_EQ(told.size(), 1u) << "before its status leaves";
  EXPECT_EQ(told[0].id, "mine");
  EXPECT_EQ(told[0].correlation_id, "theirs");
  EXPECT_EQ(told[0].route, kGenerateRoute);
  EXPECT_EQ(told[0].model, server.served().names[0]);
  EXPECT_EQ(told[0].prompt_tokens, 3);
  EXPECT_EQ(told[0].output_tokens, 4);
  EXPECT_EQ(told[0].reason, "length");
  EXPECT_EQ(told[0].status, "OK");
  EXPECT_EQ(told[0].outcome, RequestOutcome::kOk);
  EXPECT_EQ(told[0].trace_id, kTraceId);
  EXPECT_GT(told[0].ttft_ms, 0);
  EXPECT_GE(told[0].queue_ms, 0);
  EXPECT_GE(told[0].e2el_ms, told[0].ttft_ms);

  v1::GenerateRequest wrong = RequestOfIds({300}, 4);
  wrong.set_model("no\nsuch model");
  Stream refused(server.stub(), wrong, {{"traceparent", "00-none"}});
  EXPECT_EQ(refused.ReadAll().error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(refused.InitialMetadata("traceparent"), "");
  told = lines.Take();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].status, "NOT_FOUND");
  EXPECT_EQ(told[0].outcome, RequestOutcome::kRefused);
  EXPECT_EQ(told[0].model, "no\nsuch model");
  EXPECT_EQ(told[0].trace_id + told[0].message, "");
  EXPECT_EQ(told[0].id, refused.InitialMetadata("x-request-id")) << "it has a name all the same";

  server.model().SetStepTime(2000);
  Stream cancelled(server.stub(), RequestOfIds({300, 301}, 30'000));
  while (cancelled.deltas() == 0) ASSERT_TRUE(cancelled.Next().has_value());
  cancelled.Cancel();
  server.model().SetStepTime(0);
  cancelled.ReadAll();
  WaitFor([&] { return !(told = lines.Take()).empty(); });
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].outcome, RequestOutcome::kCancelled);
  EXPECT_EQ(told[0].prompt_tokens, 2);
  EXPECT_GT(told[0].output_tokens, 0);

  grpc::ClientContext unary;
  unary.AddMetadata("x-request-id", "unary");
  v1::GetLoadResponse load;
  EXPECT_TRUE(server.stub().GetLoad(&unary, v1::GetLoadRequest(), &load).ok());
  const auto echoed = unary.GetServerInitialMetadata().find("x-request-id");
  ASSERT_NE(echoed, unary.GetServerInitialMetadata().end());
  EXPECT_EQ(std::string(echoed->second.data(), echoed->second.size()), "unary");

  CallWithBytes(server.channel(), "/made.up/Call\"x", "");
  told = lines.Take();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].route, "/made.up/Call\"x");
  EXPECT_EQ(told[0].status, "UNIMPLEMENTED");
  HealthOf(server.channel(), "");
  EXPECT_TRUE(lines.Take().empty()) << "probes have none";
}

TEST(RequestLine, TheGatewaysAndItsServersShareTheTraceAndTheId) {
  Lines at_server, at_gateway;
  ScriptedServerOptions behind;
  behind.server.request_log = at_server.log();
  ScriptedServer server(std::move(behind));
  RemoteClient remote(RemoteClientOptions{.backends = {server.address()}});
  ASSERT_TRUE(remote.WaitUntilReady(kMinuteMs));
  GatewayOptions options;
  options.address = "127.0.0.1:0";
  options.request_log = at_gateway.log();
  auto gateway = Gateway::Start(options, remote);
  ASSERT_TRUE(gateway.ok()) << gateway.status();
  const HttpReply reply =
      Fetch((*gateway)->address(),
            HttpPost("/v1/completions", kStreamed,
                     {"traceparent: " + kTraceParent, "tracestate: a=1", "x-request-id: mine"}));
  EXPECT_EQ(reply.Header("traceparent"), kTraceParent);
  std::vector<RequestLine> told;
  WaitFor([&] { return !(told = at_gateway.Take()).empty(); });
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].id, "mine");
  EXPECT_EQ(told[0].trace_id, kTraceId);
  EXPECT_EQ(told[0].prompt_tokens, 3);
  EXPECT_EQ(told[0].output_tokens, 4);
  const std::vector<RequestLine> behind_it = at_server.Take();
  ASSERT_EQ(behind_it.size(), 1u);
  EXPECT_EQ(behind_it[0].correlation_id, "mine");
  EXPECT_EQ(behind_it[0].trace_id, kTraceId);
  EXPECT_EQ(behind_it[0].output_tokens, 4);

  const HttpReply bad =
      Fetch((*gateway)->address(), HttpPost("/tokenize", R"({"prompt":"a","model":"no"})",
                                            {"traceparent: " + kTraceParent, "x-request-id: t"}));
  EXPECT_EQ(bad.status, 404);
  WaitFor([&] { return !(told = at_server.Take()).empty(); });
  ASSERT_EQ(told.size(), 1u) << "a unary call";
  EXPECT_EQ(told[0].route, "/tramontane.v1.Inference/Tokenize");
  EXPECT_EQ(told[0].id, "t");
  EXPECT_EQ(told[0].trace_id, kTraceId);
}

// ---- /debug/requests ------------------------------------------------------------------------------

TEST(DebugRequests, TellWhoIsOpenAndHowFarAndNothingOfWhatIsSaid) {
  ScriptedServerOptions options = WithHttp(/*debug=*/true);
  options.limits.max_sequences = options.limits.max_choices = 1;
  ScriptedServer server(std::move(options));
  const auto ask = [&] {
    const HttpReply reply = Fetch(server.server().admin_address(), HttpGet("/debug/requests"));
    EXPECT_EQ(reply.status, 200) << reply.body;
    return EventsJson::parse(reply.body, nullptr, false);
  };
  server.model().SetStepTime(2000);
  v1::GenerateRequest request = RequestOfIds({300, 301, 302}, 30'000);
  request.set_request_id("runs");
  Stream stream(server.stub(), request);
  while (stream.deltas() == 0) ASSERT_TRUE(stream.Next().has_value());
  HttpTestClient waits(server.server().http_address());
  waits.Send(HttpPost("/v1/completions", R"({"prompt":[300,301],"max_tokens":4})", {"x-request-id: waits"}));
  server.WaitForLoad([](const v1::GetLoadResponse& load) { return load.open_streams() == 2; });
  WaitFor([&] { return server.engine().Load().waiting == 1; });
  const EventsJson json = ask();
  ASSERT_EQ(json["requests"].size(), 2u) << json;
  EXPECT_EQ(json["requests_left_out"], 0);
  const EventsJson &runs = json["requests"][0], &other = json["requests"][1];
  EXPECT_EQ(KeysOf(runs), (std::vector<std::string>{"id", "state", "age_ms", "key", "model", "prompt_tokens",
                                                    "output_tokens", "pages"}));
  EXPECT_EQ(runs["id"], "runs");
  EXPECT_EQ(runs["state"], "decode");
  EXPECT_GT(runs["age_ms"], other["age_ms"]);
  EXPECT_TRUE(runs["key"].is_null());
  EXPECT_EQ(runs["model"], server.served().names[0]);
  EXPECT_EQ(runs["prompt_tokens"], 3);
  EXPECT_GT(runs["output_tokens"], 0);
  EXPECT_GT(runs["pages"], 0);
  EXPECT_EQ(other["id"], "waits");
  EXPECT_EQ(other["state"], "waiting");
  EXPECT_EQ(other["prompt_tokens"], 2);
  EXPECT_EQ(other["output_tokens"], 0);
  EXPECT_EQ(other["pages"], 0);
  EXPECT_EQ(Fetch(server.server().http_address(), HttpGet("/debug/requests")).status, 404);
  stream.Cancel();
  server.model().SetStepTime(0);
  stream.ReadAll();
}

// ---- traces ---------------------------------------------------------------------------------------

struct Traced {
  std::set<std::string> lanes;
  std::set<std::string> requests;
};

Traced ExpectTrace(const std::string& text) {
  Traced traced;
  const EventsJson events = EventsJson::parse(text, nullptr, false);
  EXPECT_TRUE(events.is_array()) << text.substr(0, 200);
  for (const auto& event : events) {
    if (event["ph"] == "X") {
      traced.lanes.insert(event["args"]["lane"]);
      for (const char* key : {"step", "rows", "tokens", "pages"}) EXPECT_GT(event["args"][key], 0) << key;
    }
    if (event["ph"] == "b" && event.contains("args")) traced.requests.insert(event["name"]);
  }
  return traced;
}

TEST(Trace, OverHttpWhereItIsAskedForAtStart) {
  ScriptedServer server(WithHttp(/*debug=*/true));
  HttpTestClient client(server.server().admin_address());
  ASSERT_TRUE(client.Send(HttpGet("/debug/trace?seconds=1")));
  // Recording has begun when the header is out.
  std::string reply = client.ReadUntil("\r\n\r\n");
  v1::GenerateRequest request = RequestOfIds({300, 301, 302}, 4);
  request.set_request_id("seen");
  Stream stream(server.stub(), request);
  ASSERT_TRUE(stream.ReadAll().ok());
  reply += client.ReadUntil("\r\n0\r\n\r\n");
  const Traced traced = ExpectTrace(ParseReply(reply).body);
  EXPECT_EQ(traced.lanes, (std::set<std::string>{"prefill", "decode"}));
  EXPECT_EQ(traced.requests, (std::set<std::string>{"seen"}));
}

TEST(Trace, WithoutDebugThereIsNoSuchPath) {
  ScriptedServer server(WithHttp());
  for (const char* path : {"/debug/trace?seconds=1", "/debug/kv"}) {
    const HttpReply reply = Fetch(server.server().http_address(), HttpGet(path));
    EXPECT_EQ(reply.status, 404) << path;
    EXPECT_THAT(reply.body, HasSubstr("unknown_url"));
  }
}

TEST(KvTables, OfWhatRunsAndOfAnIdleServer) {
  ScriptedServer server(WithHttp(/*debug=*/true));
  const auto ask = [&] {
    const HttpReply reply = Fetch(server.server().admin_address(), HttpGet("/debug/kv"));
    EXPECT_EQ(reply.status, 200) << reply.body;
    return EventsJson::parse(reply.body, nullptr, false);
  };
  const EventsJson idle = ask();
  EXPECT_TRUE(idle["sequences"].empty()) << idle;
  EXPECT_EQ(idle["pages"]["held"], 0);
  EXPECT_TRUE(idle["tiers"].is_object() && idle["tiers"].empty()) << "this server has none";

  server.model().SetStepTime(2000);  // it is still there when it is asked for
  v1::GenerateRequest request = RequestOfIds({300, 301, 302}, 30'000);
  request.set_request_id("seen");
  request.set_cache_salt("ours");
  Stream stream(server.stub(), request);
  while (stream.deltas() == 0) ASSERT_TRUE(stream.Next().has_value());
  const EventsJson busy = ask();
  ASSERT_EQ(busy["sequences"].size(), 1u) << busy;
  const EventsJson& sequence = busy["sequences"][0];
  EXPECT_EQ(sequence["id"], "seen");
  EXPECT_EQ(sequence["state"], "decode");
  EXPECT_EQ(sequence["context_policy"]["type"], "none");
  EXPECT_EQ(sequence["has_cache_salt"], true);
  EXPECT_GE(sequence["tokens"], 3);
  ASSERT_EQ(sequence["tables"].size(), busy["groups"].size());
  size_t pages = 0;
  for (const EventsJson& table : sequence["tables"]) {
    pages += table["pages"].size() + table["pages_left_out"].get<size_t>();
  }
  EXPECT_EQ(pages, busy["pages"]["held"].get<size_t>());
  EXPECT_EQ(busy["sequences_left_out"], 0);
  stream.Cancel();
  server.model().SetStepTime(0);
  stream.ReadAll();
}

TEST(Trace, TheAdminDoorHasProbesAndDebugAloneAndTheOtherOneNeither) {
  ScriptedServer server(WithHttp(/*debug=*/true));
  const std::string admin = server.server().admin_address(), open = server.server().http_address();
  for (const char* path : {"/health", "/ready", "/metrics", "/debug/kv"}) {
    EXPECT_EQ(Fetch(admin, HttpGet(path)).status, 200) << path;
  }
  for (const char* path : {"/v1/models", "/version", "/v1/sessions"}) {
    EXPECT_EQ(Fetch(admin, HttpGet(path)).status, 404) << path;
  }
  EXPECT_EQ(Fetch(open, HttpGet("/debug/kv")).status, 404);
}

TEST(Trace, DebugIsNotThereWhereOthersCouldAsk) {
  ScriptedServerOptions options = WithHttp();
  options.server.admin_address = "0.0.0.0:0";
  ScriptedServer server(options);
  const std::string& address = server.server().admin_address();
  const std::string local = "127.0.0.1" + address.substr(address.rfind(':'));
  EXPECT_EQ(Fetch(local, HttpGet("/debug/kv")).status, 404);
  EXPECT_EQ(Fetch(local, HttpGet("/health")).status, 200);
}

TEST(Trace, GoesToAFileUntilTheEnd) {
  const TempFolder folder;
  const std::string path = folder.path() + "/trace.json";
  {
    auto file = TraceFile::Open(path);
    ASSERT_TRUE(file.ok()) << file.status();
    ScriptedServer server;
    (*file)->Record(server.server().StartTrace());
    for (const char* id : {"first", "second"}) {
      v1::GenerateRequest request = RequestOfIds({300, 301, 302}, 4);
      request.set_request_id(id);
      Stream stream(server.stub(), request);
      ASSERT_TRUE(stream.ReadAll().ok());
    }
    *file = nullptr;
  }
  std::ifstream stream(path);
  const Traced traced =
      ExpectTrace(std::string(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()));
  EXPECT_EQ(traced.lanes, (std::set<std::string>{"prefill", "decode"}));
  EXPECT_EQ(traced.requests, (std::set<std::string>{"first", "second"}));

  const Status missing = TraceFile::Open(folder.path() + "/no/such/folder").status();
  EXPECT_EQ(missing.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(missing.message(), HasSubstr("trace_file is \""));
}

}  // namespace
}  // namespace tramontane

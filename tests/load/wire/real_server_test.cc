// Transports against the real server, over a model that says a known text.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench/load/connect.h"
#include "bench/load/wire/event_stream_parser.h"
#include "tests/load/scripted/grpc_scripted_target.h"
#include "tests/load/wire/recorded_requests.h"
#include "tests/server/scripted_server.h"
#include "tramontane/v1/inference.grpc.pb.h"

namespace tramontane::load {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TargetOptions GrpcOptions(const std::string& address) {
  TargetOptions options;
  options.url = "grpc://" + address;
  options.model = "scripted";
  options.timeout_s = 10;
  return options;
}

OutgoingRequest IdsRequest(const std::string& id, int32_t output_tokens) {
  OutgoingRequest request;
  request.request_id = id;
  request.ids = {1, 10, 11, 12, 13};
  request.output_tokens = output_tokens;
  request.deadline_ns = kLongDeadlineNs;
  return request;
}

TEST(GrpcTransport, AStreamOfTheRealServerIsRecorded) {
  ScriptedServer server;
  TargetOptions options = GrpcOptions(server.address());
  options.timing = true;
  const auto transport = MustConnect(options);
  RecordedRequests requests(*transport);
  requests.Send(IdsRequest("one", 40));
  const RequestRecord record = requests.WaitFor("one");
  EXPECT_EQ(record.outcome, Outcome::kOk) << record.error;
  EXPECT_EQ(record.input_tokens, 5);
  EXPECT_EQ(record.output_tokens, 40);
  EXPECT_EQ(record.output_tokens_from, TokenCountFrom::kUsage);
  EXPECT_EQ(record.status, 0);
  ASSERT_FALSE(record.content_ns.empty());
  EXPECT_TRUE(std::is_sorted(record.content_ns.begin(), record.content_ns.end()));
  EXPECT_LE(record.intended_ns, record.sent_ns);
  EXPECT_LE(record.sent_ns, record.headers_ns.value());
  EXPECT_LE(record.headers_ns.value(), record.content_ns.front());
  EXPECT_LE(record.content_ns.back(), record.done_ns.value());
  EXPECT_FALSE(record.connected_ns.has_value());
  EXPECT_TRUE(nlohmann::json::parse(record.timing_json).contains("first_token_us")) << record.timing_json;
}

TEST(GrpcTransport, TextAndChatsAreSentAsSuch) {
  ScriptedServer server;
  for (const Endpoint endpoint : {Endpoint::kCompletions, Endpoint::kChat}) {
    TargetOptions options = GrpcOptions(server.address());
    options.endpoint = endpoint;
    const auto transport = MustConnect(options);
    RecordedRequests requests(*transport);
    OutgoingRequest request = IdsRequest("text", 3);
    request.ids.clear();
    request.text = "Once upon";
    requests.Send(request);
    const RequestRecord record = requests.WaitFor("text");
    EXPECT_EQ(record.outcome, Outcome::kOk) << record.error;
    EXPECT_EQ(record.output_tokens, 3);
    EXPECT_GT(record.input_tokens, 0);
  }
}

TEST(GrpcTransport, ARefusedRequestIsAnErrorOfTheStreamWithItsCode) {
  ScriptedServer server;
  TargetOptions options = GrpcOptions(server.address());
  options.model = "unknown";
  const auto transport = MustConnect(options);
  RecordedRequests requests(*transport);
  requests.Send(IdsRequest("one", 3));
  const RequestRecord record = requests.WaitFor("one");
  EXPECT_EQ(record.outcome, Outcome::kStreamError);
  EXPECT_EQ(record.status, static_cast<int32_t>(grpc::StatusCode::NOT_FOUND));
  EXPECT_THAT(record.error, HasSubstr("NOT_FOUND"));
}

TEST(GrpcTransport, ADeadTargetRefusesEveryRequest) {
  const auto transport = MustConnect(GrpcOptions("127.0.0.1:1"));
  RecordedRequests requests(*transport);
  for (int i = 0; i < 3; ++i) requests.Send(IdsRequest(std::to_string(i), 3));
  for (const auto& [id, record] : requests.Wait())
    EXPECT_EQ(record.outcome, Outcome::kRefused) << record.error;
}

TEST(GrpcTransport, DeadlinesAndAbortsEndWhatTheServerHolds) {
  ScriptedServer server;
  server.model().Hold();
  const auto transport = MustConnect(GrpcOptions(server.address()));
  RecordedRequests requests(*transport);
  OutgoingRequest request = IdsRequest("late", 3);
  request.deadline_ns = 200'000'000;
  requests.Send(request);
  EXPECT_EQ(requests.WaitFor("late").outcome, Outcome::kTimeout);
  for (int i = 0; i < 5; ++i) requests.Send(IdsRequest(std::to_string(i), 3));
  transport->Abort();
  EXPECT_EQ(requests.ended(), 6u);
  for (const auto& [id, record] : requests.Wait()) {
    EXPECT_EQ(record.outcome, id == "late" ? Outcome::kTimeout : Outcome::kUnfinished) << record.error;
  }
  server.model().Release();
}

TEST(GrpcTransport, TheFirstServedModelIsAsked) {
  ScriptedServer server;
  const StatusOr<std::string> model = FirstServedModel(GrpcOptions(server.address()));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(*model, "scripted");
  EXPECT_EQ(Ask(GrpcOptions(server.address()), {"POST", "/tokenize", "{}"}).status().code(),
            StatusCode::kUnimplemented);
}

// Answers as no server should, with what a call brought in its error.
class BadService final : public v1::Inference::Service {
 public:
  grpc::Status Generate(grpc::ServerContext* /*context*/, const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateResponse>* writer) override {
    v1::GenerateResponse event;
    if (request->request_id() == "long") {
      event.mutable_delta()->set_text(std::string(kMaxEventBytes + 1, 'x'));
      writer->Write(event);
      return grpc::Status::OK;
    }
    if (request->request_id() == "finished") {
      event.mutable_finished()->set_reason(v1::FINISH_REASON_STOP);
      event.mutable_finished()->mutable_usage()->set_prompt_tokens(5);
      writer->Write(event);
    }
    const bool is_well = request->request_id() == "finished" || request->request_id() == "nothing";
    if (is_well) return grpc::Status::OK;
    return {grpc::StatusCode::UNAUTHENTICATED, "\x1b[2J" + std::string(150, '-') + kKey};
  }
  grpc::Status GetModel(grpc::ServerContext* /*context*/, const v1::GetModelRequest* /*request*/,
                        v1::GetModelResponse* /*model*/) override {
    return {grpc::StatusCode::UNAUTHENTICATED, "\x1b[2J" + std::string(150, '-') + kKey};
  }
  static constexpr const char* kKey = "sk-abcdefghijklmnopqrstuvwxyz0123456789abcdefghijklmnopqrstuvwxyz";
};

struct BadServer {
  BadService service;
  int port = 0;
  std::unique_ptr<grpc::Server> server;

  BadServer() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service);
    server = builder.BuildAndStart();
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port); }
};

TEST(GrpcTransport, AnEventHasABoundThatIsNamed) {
  const BadServer server;
  const auto transport = MustConnect(GrpcOptions(server.address()));
  RecordedRequests requests(*transport);
  requests.Send(IdsRequest("long", 3));
  const RequestRecord record = requests.WaitFor("long");
  EXPECT_EQ(record.outcome, Outcome::kStreamError);
  EXPECT_THAT(record.error, HasSubstr("1048576"));
  EXPECT_TRUE(record.content_ns.empty());
}

TEST(GrpcTransport, AFinishAloneIsAnAnswerOfNoTokens) {
  const BadServer server;
  const auto transport = MustConnect(GrpcOptions(server.address()));
  RecordedRequests requests(*transport);
  requests.Send(IdsRequest("finished", 3));
  const RequestRecord record = requests.WaitFor("finished");
  EXPECT_EQ(record.outcome, Outcome::kOk) << record.error;
  EXPECT_EQ(record.output_tokens, 0);
  EXPECT_EQ(record.output_tokens_from, TokenCountFrom::kUsage);
  EXPECT_TRUE(record.content_ns.empty());
  requests.Send(IdsRequest("nothing", 3));
  EXPECT_EQ(requests.WaitFor("nothing").outcome, Outcome::kNoContent);
}

TEST(GrpcTransport, WhatAServerSaysIsShownWithoutSecretsAndEscapes) {
  const BadServer server;
  TargetOptions options = GrpcOptions(server.address());
  options.api_key = BadService::kKey;
  const auto transport = MustConnect(options);
  RecordedRequests requests(*transport);
  requests.Send(IdsRequest("one", 3));
  const RequestRecord record = requests.WaitFor("one");
  const StatusOr<std::string> model = FirstServedModel(options);
  EXPECT_EQ(record.outcome, Outcome::kStreamError);
  EXPECT_EQ(model.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(model.status().message(), HasSubstr("--model"));
  for (const std::string& text : {record.error, std::string(model.status().message())}) {
    EXPECT_THAT(text, HasSubstr("---***"));
    EXPECT_THAT(text, Not(HasSubstr("sk-a")));
    EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  }
}

TEST(GrpcTransport, ADeadTargetIsNoFaultOfTheModel) {
  EXPECT_EQ(FirstServedModel(GrpcOptions("127.0.0.1:1")).status().code(), StatusCode::kUnavailable);
}

TEST(HttpTransportToTheRealServer, CompletionsAndChatsAreRecorded) {
  ScriptedServerOptions server_options;
  server_options.server.http_address = "127.0.0.1:0";
  ScriptedServer server(server_options);
  if (server.server().http_address().empty()) GTEST_SKIP() << "this build has no HTTP door; nothing was sent";
  for (const Endpoint endpoint : {Endpoint::kCompletions, Endpoint::kChat}) {
    TargetOptions options = GrpcOptions("");
    options.url = "http://" + server.server().http_address();
    options.endpoint = endpoint;
    EXPECT_EQ(FirstServedModel(options).value(), "scripted");
    const auto transport = MustConnect(options);
    RecordedRequests requests(*transport);
    OutgoingRequest request = IdsRequest("one", 20);
    if (endpoint == Endpoint::kChat) request.text = "Once upon";
    requests.Send(request);
    const RequestRecord record = requests.WaitFor("one");
    EXPECT_EQ(record.outcome, Outcome::kOk) << record.error;
    EXPECT_EQ(record.output_tokens, 20);
    EXPECT_EQ(record.output_tokens_from, TokenCountFrom::kUsage);
    EXPECT_GT(record.input_tokens, 0);
    EXPECT_FALSE(record.content_ns.empty());
    EXPECT_TRUE(record.done_ns.has_value());
  }
}

TEST(GrpcTransport, EveryDeltaIsAnEventBehindItsWrite) {
  auto target = StartGrpcTarget({1'000'000, 2'000'000, 7});
  ASSERT_TRUE(target.ok()) << target.status();
  TargetOptions options = GrpcOptions("");
  options.url = (*target)->url();
  const auto transport = MustConnect(options);
  RecordedRequests requests(*transport);
  requests.Send(IdsRequest("one", 7));
  const RequestRecord record = requests.WaitFor("one");
  EXPECT_EQ(record.outcome, Outcome::kOk) << record.error;
  const ScriptLog log = (*target)->Logs().at("one");
  ASSERT_EQ(record.content_ns.size(), 7u);
  ASSERT_EQ(log.writes.size(), 7u);
  for (size_t i = 0; i < 7; ++i) EXPECT_GE(record.content_ns[i], log.writes[i].wrote_ns);
  EXPECT_GT(transport->Load().cpu_ns, 0);
}

}  // namespace
}  // namespace tramontane::load

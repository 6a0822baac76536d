// The same request through gRPC, HTTP in the server's process and HTTP through the separate gateway: the same
// bytes of text, ids and logprobs. Breeze, and random weights behind Breeze's tokenizer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "engine/engine_host.h"
#include "kernels/backends/cpu_backend.h"
#include "server/api/gateway.h"
#include "server/remote/remote_client.h"
#include "tests/server/scripted_server.h"
#include "tests/support/http_test_client.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tiny_model.h"

namespace tramontane {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

const std::string kBreeze = std::string(TRAMONTANE_SOURCE_DIR) + "/models/breeze/weights";
constexpr int64_t kMinuteMs = 60'000;

enum class Weights { kBreeze, kRandom };

class ThreePaths : public ::testing::TestWithParam<Weights> {
 protected:
  void SetUp() override {
    QuietLogs();
    auto backend = MakeCpuBackend({.threads = 2, .variant = ""});
    ASSERT_TRUE(backend.ok()) << backend.status();
    backend_ = std::move(backend).value();
    EngineHostOptions options;
    options.memory_bytes = int64_t{128} << 20;
    options.limits.context = 512;
    auto host = EngineHost::Start(OpenModel(ModelFolder(), {}).value(), *backend_, options, clock_);
    ASSERT_TRUE(host.ok()) << host.status();
    host_ = std::move(host).value();

    auto server = Server::Start({.grpc_address = "127.0.0.1:0", .http_address = "127.0.0.1:0"});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = std::move(server).value();
    ServedModel served;
    served.names = {"m"};
    served.config = host_->model().config();
    served.device = "cpu";
    served.engine = &host_->engine();
    served.tokenizer = &host_->tokenizer();
    served.chat_format = &host_->chat_format();
    served.clock = &clock_;
    server_->Serve(served);
    stub_ = v1::Inference::NewStub(
        grpc::CreateChannel(server_->grpc_address(), grpc::InsecureChannelCredentials()));

    remote_ = std::make_unique<RemoteClient>(RemoteClientOptions{.backends = {server_->grpc_address()}});
    ASSERT_TRUE(remote_->WaitUntilReady(kMinuteMs));
    GatewayOptions gateway;
    gateway.address = "127.0.0.1:0";
    gateway.version = TRAMONTANE_VERSION;
    auto started = Gateway::Start(gateway, *remote_);
    ASSERT_TRUE(started.ok()) << started.status();
    gateway_ = std::move(started).value();
  }
  void TearDown() override {
    if (gateway_ != nullptr) gateway_->Stop();
    if (server_ != nullptr) server_->Stop();
  }

  std::string ModelFolder() {
    if (GetParam() == Weights::kBreeze) return kBreeze;
    TinyModel model;
    model.vocab = 2048;  // of the tokenizer
    model.window = {24, 0};
    model.Randomise(20);
    model.WriteMistral(folder_);
    std::filesystem::copy(kBreeze + "/tokenizer.model.v3", folder_.path() + "/tokenizer.model.v3");
    return folder_.path();
  }

  // The answer over both HTTP paths, without what is drawn for each: ids and times.
  std::pair<json, json> OverHttp(const std::string& path, const json& body) {
    return {AnswerOf(server_->http_address(), path, body), AnswerOf(gateway_->address(), path, body)};
  }
  static json AnswerOf(const std::string& address, const std::string& path, const json& body) {
    const HttpReply reply = Fetch(address, HttpPost(path, body.dump()));
    EXPECT_EQ(reply.status, 200) << reply.body;
    json answer = json::parse(reply.body, nullptr, false);
    EXPECT_TRUE(answer.is_object()) << reply.body;
    if (!answer.is_object()) return json::object();
    for (const char* drawn : {"id", "created"}) answer.erase(drawn);
    return answer;
  }
  static std::string BytesOf(const json& token) {
    std::string bytes;
    for (const json& byte : token["bytes"]) bytes += static_cast<char>(byte.get<int>());
    return bytes;
  }
  // The text of a streamed completion, put together.
  static std::string StreamedText(const std::string& address, json body) {
    body["stream"] = true;
    const HttpReply reply = Fetch(address, HttpPost("/v1/completions", body.dump()));
    EXPECT_EQ(reply.status, 200) << reply.body;
    std::string text;
    std::istringstream lines(reply.body);
    for (std::string line; std::getline(lines, line);) {
      if (line.rfind("data: {", 0) != 0) continue;
      const json event = json::parse(line.substr(6), nullptr, false);
      for (const json& choice : event.value("choices", json::array())) text += choice.value("text", "");
    }
    EXPECT_THAT(reply.body, HasSubstr("data: [DONE]"));
    return text;
  }

  SteadyClock clock_;
  TempFolder folder_;
  BackendPtr backend_;
  std::unique_ptr<EngineHost> host_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<v1::Inference::Stub> stub_;
  std::unique_ptr<RemoteClient> remote_;
  std::unique_ptr<Gateway> gateway_;
};

INSTANTIATE_TEST_SUITE_P(Of, ThreePaths, ::testing::Values(Weights::kBreeze, Weights::kRandom),
                         [](const auto& weights) {
                           return weights.param == Weights::kBreeze ? "Breeze" : "RandomWeights";
                         });

// Of texts that go on when their context is full: the newest token is not fed back, and `shift` discards one
// for each that is one too many.
TEST_P(ThreePaths, SayHowManyTokensAreOutOfSight) {
  constexpr int64_t kContext = 24;
  const json policy = {{"type", "shift"}, {"n_ctx", kContext}, {"n_keep", 2}};
  const json fields = {{"temperature", 0}, {"ignore_eos", true}, {"context_policy", policy}};
  json completion = {{"prompt", "Once upon a time"}, {"max_tokens", 40}};
  json chat = {{"messages", json::array({{{"role", "user"}, {"content", "Hi"}}})}, {"max_tokens", 40}};
  json response = {{"input", "Hi"}, {"max_output_tokens", 40}};
  for (const auto& [path, body, prompt_name, output_name] :
       {std::tuple("/v1/completions", &completion, "prompt_tokens", "completion_tokens"),
        std::tuple("/v1/chat/completions", &chat, "prompt_tokens", "completion_tokens"),
        std::tuple("/v1/responses", &response, "input_tokens", "output_tokens")}) {
    SCOPED_TRACE(path);
    body->update(fields);
    const auto [in_process, by_gateway] = OverHttp(path, *body);
    for (const json& answer : {in_process, by_gateway}) {
      const json& usage = answer["usage"];
      EXPECT_EQ(usage[output_name], 40) << answer;
      EXPECT_EQ(usage["discarded_tokens"], usage[prompt_name].get<int64_t>() + 40 - 1 - kContext) << answer;
    }
  }
}

TEST_P(ThreePaths, SayTheSameOfACompletion) {
  constexpr uint64_t kSeed = 11;
  constexpr int32_t kTop = 3;
  constexpr int64_t kMaxTokens = 40;
  const std::string prompt = "Once upon a time, in Brest, été";
  v1::GenerateRequest request;
  request.set_text(prompt);
  request.set_choices(2);
  request.mutable_sampling()->set_temperature(0.8f);
  request.mutable_sampling()->set_seed(kSeed);
  request.mutable_output()->set_logprobs(kTop);
  request.mutable_stopping()->set_max_tokens(kMaxTokens);
  Stream over_grpc(*stub_, request);
  ASSERT_TRUE(over_grpc.ReadAll().ok());

  const json body = {{"model", "m"},
                     {"prompt", prompt},
                     {"n", 2},
                     {"temperature", 0.8},
                     {"seed", kSeed},
                     {"logprobs", kTop},
                     {"max_tokens", kMaxTokens},
                     {"return_token_ids", true}};
  const auto [in_process, separate] = OverHttp("/v1/completions", body);
  EXPECT_EQ(in_process.dump(), separate.dump());

  ASSERT_EQ(in_process["choices"].size(), 2u) << in_process;
  for (int32_t c = 0; c < 2; ++c) {
    const json& choice = in_process["choices"][static_cast<size_t>(c)];
    EXPECT_EQ(choice["text"], over_grpc.text(c));
    EXPECT_EQ(choice["token_ids"].get<std::vector<int32_t>>(), over_grpc.token_ids(c));
    std::vector<float> logprobs, over_http;
    for (const v1::GenerateResponse& event : over_grpc.events()) {
      if (!event.has_delta() || event.delta().choice() != c) continue;
      for (const v1::TokenLogprob& token : event.delta().logprobs()) logprobs.push_back(token.logprob());
    }
    for (const json& logprob : choice["logprobs"]["token_logprobs"])
      over_http.push_back(logprob.get<float>());
    EXPECT_EQ(over_http, logprobs);
    EXPECT_EQ(logprobs.size(), over_grpc.token_ids(c).size());
  }
}

TEST_P(ThreePaths, SayTheSameOfAChatAndOfAStream) {
  v1::GenerateRequest request;
  v1::ChatMessage* message = request.mutable_chat()->add_messages();
  message->set_role(v1::ROLE_USER);
  message->set_content("Tell me about the wind.");
  request.mutable_sampling()->set_temperature(0);
  request.mutable_stopping()->set_max_tokens(30);
  Stream over_grpc(*stub_, request);
  ASSERT_TRUE(over_grpc.ReadAll().ok());

  const auto [in_process, separate] = OverHttp(
      "/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", "Tell me about the wind."}}}},
                               {"temperature", 0},
                               {"max_tokens", 30},
                               {"logprobs", true},
                               {"top_logprobs", 2}});
  EXPECT_EQ(in_process.dump(), separate.dump());
  ASSERT_EQ(in_process["choices"].size(), 1u) << in_process;
  EXPECT_EQ(in_process["choices"][0]["message"]["content"], over_grpc.text());

  const json completion = {{"prompt", {1, 100, 101, 102}}, {"temperature", 0}, {"max_tokens", 30}};
  v1::GenerateRequest of_ids = RequestOfIds({1, 100, 101, 102}, 30);
  of_ids.mutable_sampling()->set_temperature(0);
  Stream ids_over_grpc(*stub_, of_ids);
  ASSERT_TRUE(ids_over_grpc.ReadAll().ok());
  EXPECT_EQ(StreamedText(server_->http_address(), completion), ids_over_grpc.text());
  EXPECT_EQ(StreamedText(gateway_->address(), completion), ids_over_grpc.text());
}

TEST_P(ThreePaths, ListTheTokensOfAChatSoThatTheirBytesAreItsContent) {
  for (const char* said : {"Hi!", "What is the capital of Japan?"}) {
    const auto [in_process, separate] =
        OverHttp("/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", said}}}},
                                          {"temperature", 0},
                                          {"max_tokens", 60},
                                          {"logprobs", true},
                                          {"top_logprobs", 1}});
    EXPECT_EQ(in_process.dump(), separate.dump());
    const json& choice = in_process["choices"][0];
    std::string bytes;
    for (const json& token : choice["logprobs"]["content"]) {
      bytes += BytesOf(token);
      EXPECT_EQ(token["token"], token["top_logprobs"][0]["token"]) << "the likeliest was taken";
    }
    if (GetParam() == Weights::kRandom) continue;  // says half characters, which a text shows as U+FFFD
    EXPECT_EQ(bytes, choice["message"]["content"]);
    ASSERT_EQ(choice["finish_reason"], "stop");
    EXPECT_EQ(choice["logprobs"]["content"].back()["token"], "</s>");
    EXPECT_TRUE(choice["logprobs"]["content"].back()["bytes"].is_null());
  }
}

TEST_P(ThreePaths, TakeTheirOwnAnswersBack) {
  const json tool = {{"type", "function"},
                     {"function", {{"name", "f"}, {"parameters", {{"type", "object"}}}}}};
  const json call = {
      {"id", "Ab3456789"}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", "{}"}}}};
  const json user = {{"role", "user"}, {"content", "Hi!"}};
  const json result = {{"role", "tool"}, {"tool_call_id", "Ab3456789"}, {"content", "1"}};
  const json system = {{"role", "system"}, {"content", "Be brief."}};
  const auto answers = [&](json messages) {
    OverHttp("/v1/chat/completions",
             {{"messages", std::move(messages)}, {"tools", {tool}}, {"temperature", 0}, {"max_tokens", 2}});
  };
  for (const json& text :
       {json("I look it up."), json(" "), json(R"(, {"name": "f", "argu)"), json(nullptr)}) {
    answers({user, {{"role", "assistant"}, {"content", text}, {"tool_calls", {call}}}, result});
    answers({user, {{"role", "assistant"}, {"content", text}}, user});
  }
  answers({user, {{"role", "assistant"}, {"content", nullptr}, {"refusal", nullptr}}, user, system, user});
  answers({user, {{"role", "assistant"}, {"content", "Hello!"}}, system, user});
  answers({user, {{"role", "assistant"}, {"tool_calls", {call}}}, result, system});
}

TEST_P(ThreePaths, RefuseTheSameRequestWithTheSameWords) {
  const json body = {{"prompt", "x"}, {"max_tokens", 100000}};
  const HttpReply in_process = Fetch(server_->http_address(), HttpPost("/v1/completions", body.dump()));
  const HttpReply separate = Fetch(gateway_->address(), HttpPost("/v1/completions", body.dump()));
  EXPECT_EQ(in_process.status, 400);
  EXPECT_EQ(separate.status, in_process.status);
  EXPECT_EQ(separate.body, in_process.body);
  EXPECT_THAT(in_process.body, HasSubstr("100000"));
}

TEST_P(ThreePaths, MetricsAreServedAndNoPageIsHeldAfterTheLastAnswer) {
  Fetch(server_->http_address(), HttpPost("/v1/completions", R"({"prompt": "x", "max_tokens": 3})"));
  const HttpReply metrics = Fetch(server_->http_address(), HttpGet("/metrics"));
  EXPECT_EQ(metrics.status, 200);
  EXPECT_THAT(metrics.Header("content-type"), HasSubstr("text/plain"));
  EXPECT_THAT(
      metrics.body,
      HasSubstr(R"(vllm:request_success_total{model_name="m",engine="0",finished_reason="length"} 1)"));
  EXPECT_THAT(metrics.body, HasSubstr(R"(state="held"} 0)"));
}

}  // namespace
}  // namespace tramontane

// The whole way with the embedded model: gRPC, tokenizer, engine, CPU backend, and back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <future>
#include <nlohmann/json.hpp>

#include "engine/engine_host.h"
#include "kernels/backends/cpu_backend.h"
#include "tests/server/scripted_server.h"

namespace tramontane {
namespace {

using ::testing::ElementsAreArray;

const std::string kFolder = std::string(TRAMONTANE_SOURCE_DIR) + "/models/breeze/";

class Breeze : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    QuietLogs();
    auto backend = MakeCpuBackend({.threads = 2, .variant = ""});
    ASSERT_TRUE(backend.ok()) << backend.status();
    backend_ = std::move(backend).value();
    EngineHostOptions options;
    options.memory_bytes = int64_t{256} << 20;
    options.limits.context = 4096;
    auto host = EngineHost::Start(OpenModel(kFolder + "weights", {}).value(), *backend_, options, clock_);
    ASSERT_TRUE(host.ok()) << host.status();
    host_ = std::move(host).value();

    auto server = Server::Start({.grpc_address = "127.0.0.1:0"});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = std::move(server).value();
    ServedModel served;
    served.names = {"breeze"};
    served.config = host_->model().config();
    served.device = "cpu";
    served.engine = &host_->engine();
    served.tokenizer = &host_->tokenizer();
    served.chat_format = &host_->chat_format();
    served.clock = &clock_;
    constraints_ =
        ConstraintCompiler::Create(host_->tokenizer(), served.config.vocab_size, served.config.eos_ids, {});
    served.constraints = constraints_.get();
    server_->Serve(served);
    client_ = std::make_unique<UnaryClient>(server_->grpc_address());
    stub_ = v1::Inference::NewStub(
        grpc::CreateChannel(server_->grpc_address(), grpc::InsecureChannelCredentials()));
  }
  static void TearDownTestSuite() {
    stub_.reset();
    client_.reset();
    server_.reset();
    constraints_.reset();
    host_.reset();
    backend_.reset();
  }

  static v1::GenerateRequest Greedy(const std::vector<int32_t>& prompt, int64_t max_tokens) {
    v1::GenerateRequest request = RequestOfIds(prompt, max_tokens);
    request.mutable_sampling()->set_temperature(0);
    return request;
  }
  static v1::GenerateRequest Story(uint64_t seed, int64_t max_tokens) {
    v1::GenerateRequest request;
    request.set_text("Once upon a time");
    request.mutable_sampling()->set_temperature(1);
    request.mutable_sampling()->set_seed(seed);
    request.mutable_stopping()->set_max_tokens(max_tokens);
    return request;
  }
  static std::vector<int32_t> IdsOf(const v1::GenerateRequest& request) {
    Stream stream(*stub_, request);
    const grpc::Status status = stream.ReadAll();
    EXPECT_TRUE(status.ok()) << status.error_message();
    return stream.token_ids();
  }

  static inline SteadyClock clock_;
  static inline BackendPtr backend_;
  static inline std::unique_ptr<EngineHost> host_;
  static inline std::unique_ptr<ConstraintCompiler> constraints_;  // null in a build without
  static inline std::unique_ptr<Server> server_;
  static inline std::unique_ptr<UnaryClient> client_;
  static inline std::unique_ptr<v1::Inference::Stub> stub_;
};

// PyTorch's greedy answers, those in which no token was a close call.
TEST_F(Breeze, GreedyAnswersEqualThoseOfPyTorch) {
  std::ifstream file(kFolder + "evaluation/goldens.json");
  const nlohmann::json goldens = nlohmann::json::parse(file);
  int compared = 0;
  for (const auto& golden : goldens["goldens"]) {
    if (!golden["close"].empty()) continue;
    const auto answer = golden["answer"].get<std::vector<int32_t>>();
    EXPECT_THAT(IdsOf(Greedy(golden["prompt"], golden["max_tokens"])), ElementsAreArray(answer))
        << golden["name"];
    ++compared;
  }
  EXPECT_GE(compared, 5);
}

TEST_F(Breeze, AnswersAGreetingInTheChatFormat) {
  v1::GenerateRequest request;
  v1::ChatMessage* message = request.mutable_chat()->add_messages();
  message->set_role(v1::ROLE_USER);
  message->set_content("Hi!");
  request.mutable_sampling()->set_temperature(0);
  Stream stream(*stub_, request);
  ASSERT_TRUE(stream.ReadAll().ok());
  EXPECT_EQ(stream.text(), "Hello! I am Breeze. How can I help you?");
  EXPECT_EQ(stream.finished().reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(stream.finished().stop_token_id(), 2);
}

// What Generate says of the prompt with one candidate behind it, for each of them.
TEST_F(Breeze, CandidatesHaveTheScoresThatTheyHaveAlone) {
  v1::ScoreCandidatesRequest request;
  request.set_text("Toulouse is a city in the south of");
  for (const char* text : {" France", " Spain", " the country, and the wind is strong there", "."}) {
    request.add_candidates()->set_text(text);
  }
  request.add_candidates()->mutable_token_ids()->add_ids(500);
  const StatusOr<v1::ScoreCandidatesResponse> scored = client_->ScoreCandidates(request);
  ASSERT_TRUE(scored.ok()) << scored.status();
  ASSERT_EQ(scored->candidates_size(), request.candidates_size());
  v1::TokenizeRequest tokenize;
  tokenize.set_text(request.text());
  const StatusOr<v1::TokenizeResponse> prompt = client_->Tokenize(tokenize);
  ASSERT_TRUE(prompt.ok());
  EXPECT_EQ(scored->usage().prompt_tokens(), prompt->token_ids_size());
  EXPECT_EQ(scored->usage().completion_tokens(), 0);
  EXPECT_EQ(scored->model(), "breeze");
  int64_t tokens = 0;
  for (const v1::CandidateScore& candidate : scored->candidates()) {
    v1::GenerateRequest alone;
    *alone.mutable_token_ids()->mutable_ids() = prompt->token_ids();
    alone.mutable_token_ids()->mutable_ids()->MergeFrom(candidate.token_ids());
    alone.mutable_stopping()->set_max_tokens(0);
    alone.mutable_output()->set_prompt_logprobs(0);
    Stream stream(*stub_, alone);
    ASSERT_TRUE(stream.ReadAll().ok());
    const auto& logprobs = stream.events().at(0).started().prompt_logprobs();
    double sum = 0;
    for (int i = 0; i < candidate.token_ids_size(); ++i) {
      const v1::TokenLogprob& expected = logprobs[logprobs.size() - candidate.token_ids_size() + i];
      EXPECT_EQ(candidate.token_ids(i), expected.token_id());
      EXPECT_EQ(candidate.logprobs(i), expected.logprob());
      EXPECT_EQ(candidate.ranks(i), expected.rank());
      sum += expected.logprob();
    }
    EXPECT_DOUBLE_EQ(candidate.logprob_sum(), sum);
    tokens += candidate.token_ids_size();
  }
  EXPECT_EQ(scored->candidate_tokens(), tokens);
  EXPECT_EQ(scored->candidates(0).token_ids_size() > 0, true);
}

v1::GenerateRequest WeatherRequest(v1::ToolChoiceMode mode) {
  v1::GenerateRequest request;
  v1::ChatMessage* message = request.mutable_chat()->add_messages();
  message->set_role(v1::ROLE_USER);
  message->set_content("What's the weather in Toulouse?");
  v1::Tool* tool = request.mutable_chat()->add_tools();
  tool->set_name("get_weather");
  tool->set_description("Get the current weather in a city");
  tool->set_parameters_json(
      R"({"type": "object", "properties": {"city": {"type": "string", "description": "The city"}}, "required": ["city"]})");
  request.mutable_chat()->mutable_tool_choice()->set_mode(mode);
  request.mutable_sampling()->set_temperature(0);
  return request;
}

TEST_F(Breeze, SaysWhereItsToolCallsBegin) {
  Stream stream(*stub_, WeatherRequest(v1::TOOL_CHOICE_MODE_AUTO));
  ASSERT_TRUE(stream.ReadAll().ok());
  std::string text, calls;
  bool begun = false;
  for (const v1::GenerateResponse& event : stream.events()) {
    std::string piece = event.delta().text();
    if (event.delta().has_tool_calls_at()) {
      EXPECT_FALSE(begun) << "calls begin once";
      begun = true;
      text += piece.substr(0, static_cast<size_t>(event.delta().tool_calls_at()));
      piece.erase(0, static_cast<size_t>(event.delta().tool_calls_at()));
    }
    (begun ? calls : text) += piece;
  }
  EXPECT_EQ(text, "");
  EXPECT_EQ(nlohmann::json::parse(calls),
            nlohmann::json::parse(R"([{"name": "get_weather", "arguments": {"city": "Toulouse"}}])"));
}

// ---- sessions -----------------------------------------------------------------------------------

v1::GenerateRequest InSession(const std::string& name, v1::GenerateRequest request) {
  request.set_session(name);
  request.set_cache_salt("of " + name);  // what other tests left of the prompt is of no use
  request.mutable_output()->set_prompt_tokens(true);
  return request;
}

std::vector<int32_t> PromptOf(const Stream& stream) {
  std::vector<int32_t> ids;
  for (const v1::PromptToken& token : stream.events().at(0).started().prompt())
    ids.push_back(token.token_id());
  return ids;
}

v1::ChatMessage* Say(v1::GenerateRequest* request, v1::Role role, const std::string& content) {
  v1::ChatMessage* message = request->mutable_chat()->add_messages();
  message->set_role(role);
  message->set_content(content);
  return message;
}

TEST_F(Breeze, ASessionGoesOnAsOneRequestOfTheSameTokensWould) {
  std::vector<int32_t> ids = host_->tokenizer().Encode("Once upon a time").value();
  ids.insert(ids.begin(), host_->tokenizer().bos_id());
  Stream first(*stub_, InSession("story", Greedy(ids, 40)));
  ASSERT_TRUE(first.ReadAll().ok());
  const std::vector<int32_t> said = first.token_ids();
  ASSERT_EQ(said.size(), 40u) << "the story ended";
  ids.insert(ids.end(), said.begin(), said.end());
  const std::vector<int32_t> more = host_->tokenizer().Encode("But then").value();
  ids.insert(ids.end(), more.begin(), more.end());
  Stream second(*stub_, InSession("story", Greedy(ids, 40)));
  ASSERT_TRUE(second.ReadAll().ok());
  EXPECT_GE(second.finished().usage().cached_tokens(), 32) << "the first turn's pages are found again";
  v1::GenerateRequest alone = Greedy(ids, 40);
  alone.set_cache_salt("alone");
  Stream fresh(*stub_, alone);
  ASSERT_TRUE(fresh.ReadAll().ok());
  EXPECT_EQ(fresh.finished().usage().cached_tokens(), 0);
  EXPECT_THAT(second.token_ids(), ElementsAreArray(fresh.token_ids()));
  EXPECT_EQ(second.text(), fresh.text());
}

TEST_F(Breeze, AChatsSessionGoesOnFromTheTokensOfItsAnswer) {
  v1::GenerateRequest request;
  request.mutable_sampling()->set_temperature(0);
  Say(&request, v1::ROLE_USER, "Hi!");
  Stream first(*stub_, InSession("chat", request));
  ASSERT_TRUE(first.ReadAll().ok());
  ASSERT_EQ(first.finished().reason(), v1::FINISH_REASON_STOP);
  std::vector<int32_t> before = PromptOf(first);
  const std::vector<int32_t> answer = first.token_ids();
  before.insert(before.end(), answer.begin(), answer.end());
  ASSERT_EQ(before.back(), host_->tokenizer().eos_id());

  Say(&request, v1::ROLE_ASSISTANT, first.text());
  Say(&request, v1::ROLE_USER, "Who are you?");
  Stream second(*stub_, InSession("chat", request));
  ASSERT_TRUE(second.ReadAll().ok());
  const std::vector<int32_t> prompt = PromptOf(second);
  ASSERT_GT(prompt.size(), before.size());
  EXPECT_THAT(std::vector<int32_t>(prompt.begin(), prompt.begin() + static_cast<ptrdiff_t>(before.size())),
              ElementsAreArray(before));
  EXPECT_EQ(prompt[before.size()], host_->tokenizer().ControlId("[INST]"));
  EXPECT_EQ(prompt.back(), host_->tokenizer().ControlId("[/INST]"));
  v1::GenerateRequest same = Greedy(prompt, 400);
  EXPECT_THAT(IdsOf(same), ElementsAreArray(second.token_ids()));
}

TEST_F(Breeze, ASessionGoesOnFromACall) {
  v1::GenerateRequest request = WeatherRequest(v1::TOOL_CHOICE_MODE_AUTO);
  Stream first(*stub_, InSession("tools", request));
  ASSERT_TRUE(first.ReadAll().ok());
  v1::ChatMessage* call = request.mutable_chat()->add_messages();
  call->set_role(v1::ROLE_ASSISTANT);
  v1::ToolCall* proto = call->add_tool_calls();
  proto->set_id("abcdefghi");  // drawn by the door
  proto->set_name("get_weather");
  proto->set_arguments_json(R"({"city": "Paris"})");
  Say(&request, v1::ROLE_TOOL, R"({"sky": "clear"})")->set_tool_call_id("abcdefghi");
  Stream other(*stub_, InSession("tools", request));
  const grpc::Status refused = other.ReadAll();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION)
      << "the model asked for another city";
  EXPECT_THAT(refused.error_message(), ::testing::HasSubstr("chat.messages[1]"));

  request.mutable_chat()->mutable_messages(1)->mutable_tool_calls(0)->set_arguments_json(
      R"({"city": "Toulouse"})");
  Stream second(*stub_, InSession("tools", request));
  const grpc::Status status = second.ReadAll();
  ASSERT_TRUE(status.ok()) << status.error_message();
  std::vector<int32_t> before = PromptOf(first);
  const std::vector<int32_t> said = first.token_ids();
  before.insert(before.end(), said.begin(), said.end());
  const std::vector<int32_t> prompt = PromptOf(second);
  ASSERT_GT(prompt.size(), before.size());
  EXPECT_THAT(std::vector<int32_t>(prompt.begin(), prompt.begin() + static_cast<ptrdiff_t>(before.size())),
              ElementsAreArray(before));
  EXPECT_EQ(prompt[before.size()], host_->tokenizer().ControlId("[TOOL_RESULTS]"));
}

// ---- structured output --------------------------------------------------------------------------

#define SKIP_WITHOUT_STRUCTURED_OUTPUT() \
  if (constraints_ == nullptr) GTEST_SKIP() << "this build has no structured output (TRAMONTANE_STRUCTURED)"

v1::GenerateRequest AskForAPerson() {
  v1::GenerateRequest request;
  v1::ChatMessage* message = request.mutable_chat()->add_messages();
  message->set_role(v1::ROLE_USER);
  message->set_content("Who are you?");
  request.mutable_sampling()->set_temperature(1.5);
  request.mutable_sampling()->set_seed(3);
  request.mutable_stopping()->set_max_tokens(400);
  request.mutable_constraint()->set_json_schema(
      R"({"type": "object", "properties": {"name": {"type": "string", "maxLength": 20},
          "age": {"type": "integer", "minimum": 1, "maximum": 120}}, "required": ["name", "age"]})");
  return request;
}

TEST_F(Breeze, AnswersInTheSchemaAskedForHoweverHot) {
  SKIP_WITHOUT_STRUCTURED_OUTPUT();
  v1::GenerateRequest request = AskForAPerson();
  request.set_choices(8);
  Stream stream(*stub_, request);
  const grpc::Status status = stream.ReadAll();
  ASSERT_TRUE(status.ok()) << status.error_message();
  for (int32_t choice = 0; choice < 8; ++choice) {
    EXPECT_EQ(stream.finished(choice).reason(), v1::FINISH_REASON_STOP);
    const nlohmann::json answer = nlohmann::json::parse(stream.text(choice), nullptr, false);
    ASSERT_TRUE(answer.is_object()) << stream.text(choice);
    EXPECT_EQ(answer.size(), 2u);
    EXPECT_TRUE(answer["name"].is_string());
    EXPECT_GE(answer["age"].get<int>(), 1);
    EXPECT_LE(answer["age"].get<int>(), 120);
  }
}

TEST_F(Breeze, AConstraintThatItKeepsAnywayChangesNoToken) {
  SKIP_WITHOUT_STRUCTURED_OUTPUT();
  v1::GenerateRequest request = AskForAPerson();
  request.mutable_chat()->mutable_messages(0)->set_content(
      "Answer in JSON: name and city: Bob lives in Paris");
  request.mutable_sampling()->set_temperature(0);
  request.clear_constraint();
  const std::vector<int32_t> freely = IdsOf(request);
  request.mutable_constraint()->set_json_object(true);
  EXPECT_THAT(IdsOf(request), ElementsAreArray(freely));
  request.mutable_constraint()->set_json_schema(
      R"({"type": "object", "properties": {"name": {"type": "string"}, "city": {"enum": ["Paris", "Rome"]}},
          "required": ["name", "city"]})");
  EXPECT_THAT(IdsOf(request), ElementsAreArray(freely));
}

TEST_F(Breeze, CallsAToolWhereItMust) {
  SKIP_WITHOUT_STRUCTURED_OUTPUT();
  v1::GenerateRequest request = WeatherRequest(v1::TOOL_CHOICE_MODE_REQUIRED);
  request.mutable_chat()->mutable_messages(0)->set_content("Hi!");  // asked freely it greets
  Stream stream(*stub_, request);
  const grpc::Status status = stream.ReadAll();
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(stream.finished().reason(), v1::FINISH_REASON_STOP);
  const nlohmann::json calls = nlohmann::json::parse(stream.text(), nullptr, false);
  ASSERT_TRUE(calls.is_array() && !calls.empty()) << stream.text();
  EXPECT_EQ(calls[0]["name"], "get_weather");
  EXPECT_TRUE(calls[0]["arguments"]["city"].is_string());
}

TEST_F(Breeze, AnswersWithOneOfTheChoicesOrTheExpression) {
  SKIP_WITHOUT_STRUCTURED_OUTPUT();
  v1::GenerateRequest request = AskForAPerson();
  request.mutable_constraint()->mutable_choice()->add_texts("fox");
  request.mutable_constraint()->mutable_choice()->add_texts("badger");
  Stream choice(*stub_, request);
  ASSERT_TRUE(choice.ReadAll().ok());
  EXPECT_THAT(choice.text(), ::testing::AnyOf("fox", "badger"));
  request.mutable_constraint()->set_regex("[a-f]{4}-[0-9]{2}");
  Stream expression(*stub_, request);
  ASSERT_TRUE(expression.ReadAll().ok());
  EXPECT_THAT(expression.text(), ::testing::MatchesRegex("[a-f]{4}-[0-9]{2}"));
  request.mutable_constraint()->set_grammar("root ::= \"I am \" name\nname ::= \"Breeze\" | \"a model\"");
  Stream grammar(*stub_, request);
  ASSERT_TRUE(grammar.ReadAll().ok());
  EXPECT_THAT(grammar.text(), ::testing::AnyOf("I am Breeze", "I am a model"));
}

TEST_F(Breeze, ATextCutByLengthSaysSo) {
  SKIP_WITHOUT_STRUCTURED_OUTPUT();
  v1::GenerateRequest request = AskForAPerson();
  request.mutable_stopping()->set_max_tokens(3);
  Stream stream(*stub_, request);
  ASSERT_TRUE(stream.ReadAll().ok());
  EXPECT_EQ(stream.finished().reason(), v1::FINISH_REASON_LENGTH);
}

TEST_F(Breeze, WhatIsNotSupportedIsRefusedByFieldAndName) {
  SKIP_WITHOUT_STRUCTURED_OUTPUT();
  v1::GenerateRequest request = AskForAPerson();
  const auto refusal = [&] {
    Stream stream(*stub_, request);
    const grpc::Status status = stream.ReadAll();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    return status.error_message();
  };
  request.mutable_constraint()->set_json_schema(
      R"({"properties": {"a": {"type": "array", "uniqueItems": true}}})");
  EXPECT_EQ(refusal(), "constraint.json_schema: .properties.a.uniqueItems: is not supported");
  request.mutable_constraint()->set_regex("a(?=b)");
  EXPECT_EQ(refusal(), "constraint.regex: at byte 2: lookahead, (?=, is not supported");
  request.mutable_constraint()->set_json_object(false);
  EXPECT_THAT(refusal(), ::testing::StartsWith("constraint.json_object: "));
  request.mutable_constraint()->set_grammar("root ::= missing");
  EXPECT_THAT(refusal(), ::testing::StartsWith("constraint.grammar: "));
  request.mutable_constraint()->clear_kind();
  EXPECT_THAT(refusal(), ::testing::StartsWith("constraint: is empty"));
}

TEST_F(Breeze, CountsWhatConstraintsCost) {
  SKIP_WITHOUT_STRUCTURED_OUTPUT();
  Stream stream(*stub_, AskForAPerson());
  ASSERT_TRUE(stream.ReadAll().ok());
  grpc::ClientContext context;
  v1::GetLoadResponse load;
  ASSERT_TRUE(stub_->GetLoad(&context, {}, &load).ok());
  EXPECT_GT(load.constrained_tokens(), 0);
  EXPECT_GT(load.compiled_constraints(), 0);
  EXPECT_GT(load.cached_constraint_bytes(), 0);
  grpc::ClientContext info_context;
  v1::GetServerInfoResponse info;
  ASSERT_TRUE(stub_->GetServerInfo(&info_context, {}, &info).ok());
  EXPECT_EQ(info.limits().max_constraint_bytes(), ConstraintLimits().max_bytes);
  EXPECT_EQ(info.limits().max_constraint_size(), ConstraintLimits().max_size);
  EXPECT_EQ(info.limits().max_constraint_step_us(), EngineLimits().max_constraint_step_ns / 1000);
}

TEST_F(Breeze, DoesNotSeeToolsThatItMayNotCall) {
  const v1::GenerateRequest with_tools = WeatherRequest(v1::TOOL_CHOICE_MODE_NONE);
  v1::GenerateRequest without_tools = with_tools;
  without_tools.mutable_chat()->clear_tools();
  without_tools.mutable_chat()->clear_tool_choice();
  EXPECT_THAT(IdsOf(with_tools), ElementsAreArray(IdsOf(without_tools)));
}

TEST_F(Breeze, ASeedGivesTheSameTokensAloneAndInACrowd) {
  const std::vector<int32_t> alone = IdsOf(Story(7, 60));
  EXPECT_NE(alone, IdsOf(Story(8, 60)));
  std::vector<std::future<std::vector<int32_t>>> crowd;
  for (uint64_t i = 0; i < 24; ++i) {
    crowd.push_back(
        std::async(std::launch::async, [i] { return IdsOf(Story(i % 3 == 0 ? 7 : 100 + i, 60)); }));
  }
  for (size_t i = 0; i < crowd.size(); ++i) {
    const std::vector<int32_t> ids = crowd[i].get();
    if (i % 3 == 0) {
      EXPECT_THAT(ids, ElementsAreArray(alone)) << i;
    }
  }
}

TEST_F(Breeze, ADrawnSeedIsReportedAndRepeatsTheRequest) {
  v1::GenerateRequest request = Story(0, 40);
  request.mutable_sampling()->clear_seed();
  Stream first(*stub_, request);
  ASSERT_TRUE(first.ReadAll().ok());
  request.mutable_sampling()->set_seed(first.events().front().started().seed());
  EXPECT_THAT(IdsOf(request), ElementsAreArray(first.token_ids()));
}

TEST_F(Breeze, ChoicesDifferAndRepeat) {
  v1::GenerateRequest request = Story(11, 40);
  request.set_choices(4);
  Stream first(*stub_, request);
  Stream second(*stub_, request);
  ASSERT_TRUE(first.ReadAll().ok());
  ASSERT_TRUE(second.ReadAll().ok());
  for (int32_t choice = 0; choice < 4; ++choice) {
    EXPECT_THAT(first.token_ids(choice), ElementsAreArray(second.token_ids(choice))) << choice;
    for (int32_t other = 0; other < choice; ++other) {
      EXPECT_NE(first.token_ids(choice), first.token_ids(other)) << choice << " and " << other;
    }
  }
}

// What a token's logprob was when it was generated, it is when the whole is scored as a prompt, to the bit:
// on the CPU chunks and batches do not change a logit.
TEST_F(Breeze, ScoringAnAnswerGivesTheLogprobsItWasGeneratedWith) {
  const std::vector<int32_t> prompt = {1, 450, 700, 31, 1200, 88};
  v1::GenerateRequest request = Greedy(prompt, 30);
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_output()->set_logprobs(5);
  Stream generated(*stub_, request);
  ASSERT_TRUE(generated.ReadAll().ok());
  std::vector<v1::TokenLogprob> said;
  for (const auto& event : generated.events()) {
    said.insert(said.end(), event.delta().logprobs().begin(), event.delta().logprobs().end());
  }
  ASSERT_EQ(said.size(), 30u);

  std::vector<int32_t> whole = prompt;
  for (const v1::TokenLogprob& token : said) {
    whole.push_back(token.token_id());
    EXPECT_EQ(token.rank(), 1);  // greedy
    ASSERT_EQ(token.top_size(), 5);
    EXPECT_EQ(token.top(0).token_id(), token.token_id());
    double share = 0;
    for (const auto& top : token.top()) share += std::exp(static_cast<double>(top.logprob()));
    EXPECT_LE(share, 1.0 + 1e-5);  // five f32 logarithms, each good to about 1e-6
  }
  v1::GenerateRequest scoring = RequestOfIds(whole, 0);
  scoring.mutable_output()->set_prompt_logprobs(5);
  Stream scored(*stub_, scoring);
  ASSERT_TRUE(scored.ReadAll().ok());
  const auto& logprobs = scored.events().front().started().prompt_logprobs();
  ASSERT_EQ(logprobs.size(), static_cast<int>(whole.size()) - 1);
  for (size_t i = 0; i < said.size(); ++i) {
    const v1::TokenLogprob& score = logprobs[static_cast<int>(prompt.size() - 1 + i)];
    EXPECT_EQ(score.SerializeAsString(), said[i].SerializeAsString()) << i;
  }
}

TEST_F(Breeze, AStopTextIsCutFromTheText) {
  v1::GenerateRequest request = Story(7, 200);
  request.mutable_stopping()->set_ignore_eos(true);
  Stream whole(*stub_, request);
  ASSERT_TRUE(whole.ReadAll().ok());
  const std::string stop = whole.text().substr(40, 7);  // somewhere, with no regard for tokens
  request.mutable_stopping()->add_stop(stop);
  Stream stopped(*stub_, request);
  ASSERT_TRUE(stopped.ReadAll().ok());
  EXPECT_EQ(stopped.text(), whole.text().substr(0, whole.text().find(stop)));
  EXPECT_EQ(stopped.finished().stop(), stop);
}

TEST_F(Breeze, TheModelTellsItsWindow) {
  const StatusOr<v1::GetModelResponse> model = client_->GetModel();
  ASSERT_TRUE(model.ok());
  ASSERT_EQ(model->windows_size(), 1);
  EXPECT_EQ(model->windows(0).window(), 256);
  EXPECT_EQ(model->windows(0).layers(), model->layers());
  EXPECT_EQ(model->context(), 4096);
  EXPECT_EQ(model->model_context(), 32768);
}

}  // namespace
}  // namespace tramontane

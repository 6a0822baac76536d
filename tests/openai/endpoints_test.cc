// The endpoints over a fake inference client, without sockets.
#include "server/api/shared/endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <utility>

#include "server/api/gateway.h"
#include "server/api/openai/chat.h"
#include "server/api/openai/completions.h"
#include "server/api/openai/models.h"
#include "server/api/openai/responses.h"
#include "server/api/openai/score.h"
#include "server/api/openai/tokenize.h"
#include "server/api/routes.h"
#include "server/api/shared/json.h"
#include "server/api/spec.h"
#include "tests/support/fake_inference_client.h"

namespace tramontane {
namespace {

using ::testing::HasSubstr;

// One request and what was answered; everything happens on the test's thread.
class FakeExchange final : public HttpExchange {
 public:
  FakeExchange(std::string path, std::string body) {
    request_.path = std::move(path);
    request_.body = std::move(body);
    request_.id = "r1";
  }

  const HttpRequest& request() const override { return request_; }
  int64_t NowNs() const override { return 1; }
  void Respond(HttpResponse response) override { Answer(std::move(response)); }
  void StartStream(HttpResponse head) override { Answer(std::move(head)); }
  void Write(std::string bytes) override { response_.body += bytes; }
  void End(std::string last_bytes) override { response_.body += last_bytes; }
  void Listen(std::shared_ptr<HttpListener> listener) override { listener_ = std::move(listener); }
  void Post(std::function<void()> work) override { work(); }
  void RunOnHandler(std::function<void()> work) override { work(); }
  bool TryOnHandler(std::function<void()> work) override {
    if (!has_room_for_long_work) return false;
    ++long_work_;
    work();
    return true;
  }
  HeldBytes NewShare() override { return HeldBytes(budget_); }

  bool has_room_for_long_work = true;
  int long_work() const { return long_work_; }
  bool answered() const { return answered_; }
  const HttpResponse& response() const { return response_; }
  Json json() const { return *ParseJson(response_.body); }

 private:
  void Answer(HttpResponse response) {
    EXPECT_FALSE(std::exchange(answered_, true)) << "answered twice";
    response_ = std::move(response);
  }

  HttpRequest request_;
  int long_work_ = 0;
  ByteBudget budget_{int64_t{1} << 30};
  std::shared_ptr<HttpListener> listener_;
  bool answered_ = false;
  HttpResponse response_;
};

class Endpoints : public ::testing::Test {
 protected:
  Endpoints() {
    options_.version = "1.2.3";
    client_.on_generate = [](FakeInferenceCall& call) { SayTokens(call, 3); };
  }

  std::shared_ptr<FakeExchange> Ask(Endpoint endpoint, const std::string& body,
                                    const std::string& path = "/") {
    auto exchange = std::make_shared<FakeExchange>(path, body);
    Give(endpoint, exchange);
    EXPECT_TRUE(exchange->answered());
    return exchange;
  }

  void Give(Endpoint endpoint, const std::shared_ptr<FakeExchange>& exchange) {
    endpoint({client_, options_, draining_},
             std::make_shared<GatewayExchange>(exchange, kOpenAi, [] { return HttpHeaders(); }));
  }

  FakeInferenceClient client_;
  GatewayOptions options_;
  const std::atomic<bool> draining_{false};
};

// ---- generating -----------------------------------------------------------------------------------

TEST_F(Endpoints, ChatWholeAndStreamedSayTheSame) {
  const std::string messages = R"({"model":"fake","messages":[{"role":"user","content":"Hi"}])";
  const auto whole = Ask(AnswerChatCompletions, messages + "}");
  EXPECT_EQ(whole->response().status, 200);
  EXPECT_EQ(whole->json()["choices"][0]["message"]["content"], TokensText(3));
  EXPECT_EQ(whole->json()["id"], "chatcmpl-r1");
  const auto stream = Ask(AnswerChatCompletions, messages + R"(,"stream":true})");
  EXPECT_THAT(stream->response().content_type, HasSubstr("text/event-stream"));
  EXPECT_THAT(stream->response().body, HasSubstr("data: [DONE]\n\n"));
}

TEST_F(Endpoints, ALongAnswerIsTheSameWhereNoHandlerHasTimeForIt) {
  std::string ids = "7";
  for (int i = 0; i < 5000; ++i) ids += ",7";
  for (const std::string stream : {"false", "true"}) {
    std::string bodies[2];
    for (const bool has_room : {false, true}) {
      const auto exchange = std::make_shared<FakeExchange>(
          "/", R"({"echo":true,"logprobs":1,"prompt":[)" + ids + R"(],"stream":)" + stream + "}");
      exchange->has_room_for_long_work = has_room;
      Give(AnswerCompletions, exchange);
      ASSERT_TRUE(exchange->answered());
      bodies[has_room ? 1 : 0] = exchange->response().body;
      EXPECT_EQ(exchange->long_work(), has_room ? 1 : 0) << stream;
    }
    EXPECT_THAT(bodies[0], HasSubstr("t2"));
    EXPECT_EQ(bodies[0].size(), bodies[1].size());
  }
}

std::string HeaderOf(const HttpResponse& response, const std::string& name) {
  for (const auto& [key, value] : response.headers) {
    if (key == name) return value;
  }
  return "";
}

TEST_F(Endpoints, WhatWasIgnoredIsInAHeader) {
  constexpr char kHeader[] = "x-tramontane-ignored";
  const std::string chat = R"({"messages":[{"role":"user","content":"Hi"}],"user":"me","metadata":{"a":"b"})";
  EXPECT_EQ(HeaderOf(Ask(AnswerChatCompletions, chat + "}")->response(), kHeader), "user, metadata");
  EXPECT_EQ(HeaderOf(Ask(AnswerChatCompletions, chat + R"(,"stream":true})")->response(), kHeader),
            "user, metadata");
  EXPECT_EQ(HeaderOf(Ask(AnswerRenderChat, chat + "}")->response(), kHeader), "user, metadata");
  EXPECT_EQ(HeaderOf(Ask(AnswerResponses, R"({"input":"Hi","store":true})")->response(), kHeader), "store");
  EXPECT_EQ(HeaderOf(Ask(AnswerCompletions, R"({"prompt":"Hi"})")->response(), kHeader), "");
  EXPECT_EQ(Ask(AnswerCompletions, R"({"prompt":"Hi","temprature":1})")->response().status, 400);
  options_.strict_fields = false;
  EXPECT_EQ(HeaderOf(Ask(AnswerCompletions, R"({"prompt":"Hi","temprature":1})")->response(), kHeader),
            "temprature");
  EXPECT_EQ(HeaderOf(Ask(AnswerTokenize, R"({"prompt":"Hi","x":1})")->response(), kHeader), "x");
  EXPECT_EQ(HeaderOf(Ask(AnswerDetokenize, R"({"tokens":[1],"x":1})")->response(), kHeader), "x");
}

TEST_F(Endpoints, WhatCallsAreNotHeldToIsInAHeaderInTheRequestsWords) {
  std::vector<std::string> parts = {"chat.tools[1].parameters.properties.x\r\n (a,b)",
                                    "chat.tools[0].parameters (not)"};
  client_.on_generate = [&parts](FakeInferenceCall& call) {
    v1::GenerateResponse started = StartedEvent(1);
    started.mutable_started()->mutable_unenforced()->Assign(parts.begin(), parts.end());
    call.Put(std::move(started));
    call.Put(DeltaEvent(0, "a", 1));
    call.Put(FinishedEvent(0, v1::FINISH_REASON_STOP, 1, 1));
    call.End();
  };
  const auto told = [this](Endpoint endpoint, const std::string& body) {
    return HeaderOf(Ask(endpoint, body)->response(), "x-tramontane-unenforced");
  };
  const std::string chat = R"({"messages":[{"role":"user","content":"Hi"}])";
  constexpr char kTold[] =
      "tools[1].function.parameters.properties.x?? (a?b), tools[0].function.parameters (not)";
  EXPECT_EQ(told(AnswerChatCompletions, chat + "}"), kTold);
  EXPECT_EQ(told(AnswerChatCompletions, chat + R"(,"stream":true})"), kTold);
  parts = {"chat.tools[0].parameters (not)"};
  EXPECT_EQ(told(AnswerResponses, R"({"input":"Hi"})"), "tools[0].parameters (not)");
  for (int i = 0; i < 30; ++i)
    parts.push_back("chat.tools[1].parameters.properties.x" + std::to_string(i) + " (not)");
  parts.push_back("and 5 more");
  const std::string cut = told(AnswerChatCompletions, chat + "}");
  EXPECT_LE(cut.size(), 1024u);
  EXPECT_THAT(cut, testing::EndsWith("x18 (not), and 16 more"));
  parts.clear();
  EXPECT_EQ(told(AnswerChatCompletions, chat + "}"), "");
}

TEST_F(Endpoints, ThoughtsThatTheFormatLeavesOutAreAmongWhatWasIgnored) {
  client_.on_generate = [](FakeInferenceCall& call) {
    v1::GenerateResponse started = StartedEvent(1);
    for (const char* field : {"chat.messages[1].thinking", "chat.messages[2].thinking"})
      started.mutable_started()->add_ignored(field);
    call.Put(std::move(started));
    call.Put(DeltaEvent(0, "a", 1));
    call.Put(FinishedEvent(0, v1::FINISH_REASON_STOP, 1, 1));
    call.End();
  };
  const std::string chat = R"({"messages":[{"role":"user","content":"Hi"},
      {"role":"assistant","content":"a","reasoning":"t"},
      {"role":"assistant","content":"a","reasoning_content":"t"},{"role":"user","content":"b"}])";
  const auto told = [&](const std::string& more) {
    return HeaderOf(Ask(AnswerChatCompletions, chat + more + "}")->response(), "x-tramontane-ignored");
  };
  EXPECT_EQ(told(""), "messages[1].reasoning, messages[2].reasoning_content");
  EXPECT_EQ(told(R"(,"user":"u","stream":true)"),
            "user, messages[1].reasoning, messages[2].reasoning_content");
}

TEST_F(Endpoints, AKeyCannotWriteAHeader) {
  options_.strict_fields = false;
  const auto answer = Ask(AnswerTokenize, R"({"prompt":"Hi","a\r\nset-cookie: b":1,"é, x":1})");
  EXPECT_EQ(HeaderOf(answer->response(), "x-tramontane-ignored"), "a??set-cookie:?b, ????x");
}

TEST_F(Endpoints, CompletionsOfSeveralPromptsAreInTheirOrder) {
  const auto exchange = Ask(AnswerCompletions, R"({"prompt":["a","b","c"]})");
  ASSERT_EQ(exchange->json()["choices"].size(), 3u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(exchange->json()["choices"][i]["index"], i);
  EXPECT_EQ(client_.calls_made(), 3u);
}

TEST_F(Endpoints, AFaultInTheBodyNeverReachesTheServer) {
  const auto exchange = Ask(AnswerChatCompletions, R"({"messages":[]})");
  EXPECT_EQ(exchange->response().status, 400);
  EXPECT_EQ(exchange->json()["error"]["param"], "messages");
  EXPECT_EQ(client_.calls_made(), 0u);
}

TEST_F(Endpoints, AFaultThatTheServerFindsIsToldInTheWordsOfTheBody) {
  client_.refuse = [](const v1::GenerateRequest&) {
    return FieldError("stopping.max_tokens", "is 99999; the context leaves 100");
  };
  const auto exchange = Ask(AnswerCompletions, R"({"prompt":"a","max_tokens":99999,"stream":true})");
  EXPECT_EQ(exchange->response().status, 400);
  EXPECT_EQ(exchange->json()["error"]["param"], "max_tokens");
  EXPECT_EQ(exchange->json()["error"]["message"], "max_tokens: is 99999; the context leaves 100");
}

// ---- rendering --------------------------------------------------------------------------------------

TEST_F(Endpoints, RenderGivesIdsAndGeneratesNothing) {
  const auto chat = Ask(AnswerRenderChat, R"({"messages":[{"role":"user","content":"Hi"}]})");
  EXPECT_EQ(chat->response().status, 200);
  EXPECT_FALSE(chat->json()["token_ids"].empty());
  EXPECT_THAT(chat->json()["text"].get<std::string>(), HasSubstr("Hi"));
  const auto prompts = Ask(AnswerRenderCompletions, R"({"prompt":["a","b"]})");
  ASSERT_EQ(prompts->json().size(), 2u);
  EXPECT_EQ(prompts->json()[1]["token_ids"], Json::array({1, 'b' + 3}));
  const auto ids = Ask(AnswerRenderCompletions, R"({"prompt":[7,8]})");
  EXPECT_EQ(ids->json()[0]["token_ids"], Json::array({7, 8}));
  EXPECT_EQ(client_.calls_made(), 0u);
}

TEST_F(Endpoints, RenderAnswersOnceWhereSeveralPromptsFail) {
  client_.unary_error = FieldError("text", "is too long");
  const auto exchange = Ask(AnswerRenderCompletions, R"({"prompt":["a","b"]})");
  EXPECT_EQ(exchange->response().status, 400);
  EXPECT_EQ(exchange->json()["error"]["param"], "prompt[0]");
}

// ---- models, text -----------------------------------------------------------------------------------

TEST_F(Endpoints, ModelsHaveWhatEveryClientLooksFor) {
  const Json list = Ask(AnswerModels, "")->json();
  EXPECT_EQ(list["object"], "list");
  const Json& model = list["data"][0];
  EXPECT_EQ(model["id"], "fake");
  EXPECT_EQ(model["root"], "fake");
  EXPECT_EQ(model["max_model_len"], 4096);
  EXPECT_EQ(model["type"], "base");  // mistralai refuses the list without
  EXPECT_TRUE(model["capabilities"].is_object());
  EXPECT_TRUE(model.contains("owned_by") && model.contains("created") && model.contains("parent"));
  EXPECT_EQ(Ask(AnswerModel, "", "/models/fake")->json()["id"], "fake");
}

TEST_F(Endpoints, AModelSaysWhatItIs) {
  client_.model.set_tokenizer("tekken");
  client_.model.set_tokenizer_version("v13");
  client_.model.set_chat_format("v13");
  const Json model = Ask(AnswerModel, "", "/models/fake")->json();
  EXPECT_FALSE(FindFault(ModelShape(), model, ""));
  EXPECT_EQ(model["architecture"], "MistralForCausalLM");
  EXPECT_EQ(model["weight_format"], "bf16");
  EXPECT_EQ(model["chat_format"], "v13");
  EXPECT_EQ(model["tokenizer"], "tekken v13");
  EXPECT_EQ(Ask(AnswerTokenizerInfo, "")->json()["tokenizer_class"], "tekken v13");
  client_.model.clear_chat_format();
  EXPECT_TRUE(Ask(AnswerModel, "", "/models/fake")->json()["chat_format"].is_null());
}

TEST_F(Endpoints, AModelThatIsNotServedIsA404) {
  RpcError missing;
  missing.code = StatusCode::kNotFound;
  missing.sentence = "model: \"other\" is not served here";
  missing.missing_model = "other";
  client_.unary_error = missing;
  const auto exchange = Ask(AnswerModel, "", "/models/other");
  EXPECT_EQ(exchange->response().status, 404);
  EXPECT_EQ(exchange->json()["error"]["code"], "model_not_found");
}

TEST_F(Endpoints, TokenizeAndBack) {
  const Json tokens = Ask(AnswerTokenize, R"({"prompt":"ab"})")->json();
  EXPECT_EQ(tokens["tokens"], Json::array({1, 'a' + 3, 'b' + 3}));
  EXPECT_EQ(tokens["count"], 3);
  EXPECT_EQ(tokens["max_model_len"], 4096);
  EXPECT_EQ(Ask(AnswerTokenize, R"({"prompt":""})")->json()["tokens"], Json::array());
  const auto begun = Ask(AnswerTokenize, R"({"prompt":"","add_special_tokens":true})");
  EXPECT_EQ(begun->json()["tokens"], Json::array({1}));
  EXPECT_EQ(Ask(AnswerDetokenize, R"({"tokens":[]})")->json()["prompt"], "");
  const Json scored = Ask(AnswerScore, R"({"prompt":"ab","candidates":["yes",[7]]})")->json();
  EXPECT_FALSE(FindFault(ScoredShape(), scored, "")) << scored;
  EXPECT_EQ(scored["object"], "list");
  EXPECT_EQ(scored["data"][0]["logprobs"], Json({-0.5, -1.0, -1.5}));
  EXPECT_EQ(scored["data"][0]["score"], -3.0);
  EXPECT_EQ(scored["data"][0]["ranks"], Json({1, 2, 3}));
  EXPECT_EQ(scored["data"][1]["index"], 1);
  EXPECT_EQ(scored["data"][1]["object"], "score");
  EXPECT_EQ(scored["data"][1]["token_ids"], Json({7}));
  EXPECT_EQ(scored["usage"]["prompt_tokens"], 2);
  EXPECT_EQ(scored["usage"]["candidate_tokens"], 4);
  EXPECT_EQ(scored["usage"]["total_tokens"], 6);
  EXPECT_EQ(Ask(AnswerDetokenize, "{\"tokens\":[100,101]}")->json()["prompt"], "ab");
}

// As a tree of JSON would be printed.
TEST_F(Endpoints, ListsOfAnyLengthAndTextAreWrittenWithoutATree) {
  google::protobuf::RepeatedPtrField<std::string> texts;
  google::protobuf::RepeatedField<int32_t> ids;
  EXPECT_EQ(TextsJson(texts), "[]");
  EXPECT_EQ(IdsJson(ids), "[]");
  const char* const kTexts[] = {"a", "\b\x7f\"\\", "\xe2\x80\xa8", "\xc2\x85,", "", "\xff"};
  for (int i = 0; i < 2049; ++i) {
    texts.Add(kTexts[i % std::size(kTexts)]);
    ids.Add(i - 1);
  }
  EXPECT_EQ(TextsJson(texts), PrintJson(Json(texts)));
  EXPECT_EQ(IdsJson(ids), PrintJson(Json(ids)));
}

TEST_F(Endpoints, TokenizerInfoHasAnEndToken) {
  client_.model.set_eos_piece("</s>");
  EXPECT_EQ(Ask(AnswerTokenizerInfo, "")->json()["eos_token"], "</s>");
}

// ---- routes -----------------------------------------------------------------------------------------

TEST(Spec, DescribesEveryRouteAndNoOther) {
  const auto upper = [](std::string text) {
    std::transform(text.begin(), text.end(), text.begin(),
                   [](char c) { return static_cast<char>(std::toupper(c)); });
    return text;
  };
  const auto path = [](std::string documented, Spelling spelling) {
    if (spelling == Spelling::kApi && documented.starts_with("/v1/")) documented.erase(0, 3);
    const size_t name = documented.find('{');
    if (name != std::string::npos) documented.replace(name, documented.find('}') + 1 - name, "*");
    return documented;
  };
  for (const Operation& operation : Operations()) {
    EXPECT_TRUE(std::any_of(Routes().begin(), Routes().end(), [&](const Route& route) {
      return route.method == upper(operation.method) && route.path == path(operation.path, route.spelling);
    })) << operation.path;
  }
  const auto debug_routes = std::count_if(Routes().begin(), Routes().end(),
                                          [](const Route& route) { return route.doors == OnDoors::kAdmin; });
  EXPECT_EQ(Operations().size() + static_cast<size_t>(debug_routes), Routes().size());
}

}  // namespace
}  // namespace tramontane

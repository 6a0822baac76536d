// Sessions over gRPC and HTTP: a request that names one goes on from what the one before it left.
#include <gmock/gmock.h>
#include <google/protobuf/any.pb.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/chat/template_chat.h"
#include "server/remote/from_grpc_status.h"
#include "server/sessions/session_files.h"
#include "tests/server/scripted_server.h"
#include "tests/support/http_test_client.h"
#include "tests/support/temp_folder.h"

namespace tramontane {
namespace {

using nlohmann::json;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

using Ids = std::vector<int32_t>;

Ids Joined(Ids first, const Ids& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

class Sessions : public ::testing::Test {
 protected:
  explicit Sessions(ScriptedServerOptions options = {}) : server_(WithHttp(std::move(options))) {}
  static ScriptedServerOptions WithHttp(ScriptedServerOptions options) {
    options.server.http_address = "127.0.0.1:0";
    return options;
  }

  static v1::GenerateRequest In(const std::string& session, v1::GenerateRequest request) {
    request.set_session(session);
    return request;
  }
  static v1::GenerateRequest ChatIn(const std::string& session, const std::vector<std::string>& said,
                                    int64_t max_tokens = 6) {
    v1::GenerateRequest request;
    for (size_t i = 0; i < said.size(); ++i) {
      v1::ChatMessage* message = request.mutable_chat()->add_messages();
      message->set_role(i % 2 == 0 ? v1::ROLE_USER : v1::ROLE_ASSISTANT);
      message->set_content(said[i]);
    }
    request.mutable_stopping()->set_max_tokens(max_tokens);
    request.mutable_output()->set_prompt_tokens(true);
    return In(session, std::move(request));
  }
  // Of a call that must end well.
  Ids Say(const v1::GenerateRequest& request) {
    Stream stream(server_.stub(), request);
    const grpc::Status status = stream.ReadAll();
    EXPECT_TRUE(status.ok()) << status.error_message();
    return stream.token_ids();
  }
  RpcError Fault(const v1::GenerateRequest& request) {
    Stream stream(server_.stub(), request);
    return FromGrpcStatus(stream.ReadAll());
  }
  static Ids PromptOf(const Stream& stream) {
    Ids ids;
    for (const v1::PromptToken& token : stream.events().at(0).started().prompt())
      ids.push_back(token.token_id());
    return ids;
  }

  void WaitForNobody() {
    server_.WaitForLoad([](const v1::GetLoadResponse& load) { return load.open_streams() == 0; });
  }
  HttpReply Post(const std::string& path, const json& body) {
    return Fetch(server_.server().http_address(), HttpPost(path, body.dump()));
  }
  HttpReply Get(const std::string& path) { return Fetch(server_.server().http_address(), HttpGet(path)); }
  HttpReply Delete(const std::string& path) {
    return Fetch(server_.server().http_address(), HttpDelete(path));
  }
  // As the rest, from another address.
  HttpReply FromElsewhere(const std::string& request) {
    HttpTestClient client(server_.server().http_address(), {.from = "127.0.0.2"});
    client.Send(request);
    return client.Read();
  }
  static std::string HttpDelete(const std::string& path) {
    std::string request = HttpGet(path);
    return request.replace(0, 3, "DELETE");
  }
  json Listed() { return json::parse(Get("/v1/sessions").body)["data"]; }
  static json Completion(const std::string& session, const json& prompt) {
    return {{"prompt", prompt}, {"session", session}, {"max_tokens", 4}, {"return_token_ids", true}};
  }
  static void ExpectError(const HttpReply& reply, int status, const std::string& param,
                          const std::string& code) {
    EXPECT_EQ(reply.status, status) << reply.body;
    const json error = json::parse(reply.body)["error"];
    EXPECT_EQ(error["code"], code.empty() ? json(nullptr) : json(code)) << reply.body;
    EXPECT_EQ(error["param"], param.empty() ? json(nullptr) : json(param)) << reply.body;
  }

  ScriptedServer server_;
};

// ---- completions ------------------------------------------------------------------------------------

TEST_F(Sessions, TheNextRequestGoesOn) {
  const Ids first = Joined({1, 400, 401}, Say(In("s", RequestOfIds({1, 400, 401}, 5))));
  const Ids second = Joined(first, {402, 403});
  Stream next(server_.stub(), In("s", RequestOfIds(second, 3)));
  ASSERT_TRUE(next.ReadAll().ok());
  EXPECT_THAT(next.token_ids(), ElementsAreArray(server_.IdsSaid(10, 3)));
  EXPECT_EQ(next.finished().usage().cached_tokens(), 7) << "the last of 8 was not fed back";
  EXPECT_EQ(Listed()[0]["tokens"], 13);
  EXPECT_EQ(Listed()[0]["messages"], 0);
  EXPECT_EQ(Listed()[0]["in_use"], false);
}

TEST_F(Sessions, APromptThatDiffersIsRefusedByItsFirstToken) {
  const Ids all = Joined({1, 400, 401}, Say(In("s", RequestOfIds({1, 400, 401}, 5))));
  Ids other = Joined(all, {402});
  other[4] = other[4] == 7 ? 8 : 7;
  const RpcError error = Fault(In("s", RequestOfIds(other, 3)));
  EXPECT_EQ(error.code, StatusCode::kFailedPrecondition);
  EXPECT_EQ(error.reason, "SESSION_DIFFERS");
  EXPECT_EQ(error.field, "token_ids.ids");
  EXPECT_THAT(error.message(), HasSubstr("token 4 of its 8"));
  EXPECT_THAT(Fault(In("s", RequestOfIds({1, 400}, 3))).message(), HasSubstr("token 2 of its 8"));
  EXPECT_THAT(Say(In("s", RequestOfIds(Joined(all, {402}), 3))), ElementsAreArray(server_.IdsSaid(9, 3)))
      << "what was refused changed nothing";
}

TEST_F(Sessions, TheSameOverHttp) {
  HttpReply reply = Post("/v1/completions", Completion("s", {1, 400, 401}));
  ASSERT_EQ(reply.status, 200) << reply.body;
  json prompt = {1, 400, 401};
  const json answer = json::parse(reply.body);
  for (const json& id : answer["choices"][0]["token_ids"]) prompt.push_back(id);
  prompt.push_back(402);
  reply = Post("/v1/completions", Completion("s", prompt));
  EXPECT_EQ(reply.status, 200) << reply.body;
  ExpectError(Post("/v1/completions", Completion("s", prompt)), 409, "prompt", "session_differs");
  ExpectError(Post("/v1/completions", Completion("s", "another text")), 409, "prompt", "session_differs");
}

TEST_F(Sessions, ATextGoesOnFromATextOfTheSameTokens) {
  HttpReply reply = Post("/v1/completions", {{"prompt", "The river"}, {"session", "s"}, {"max_tokens", 1}});
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Ids prompt = server_.tokenizer().Encode("The river").value();
  Ids all = Joined({server_.tokenizer().bos_id()}, prompt);
  all.push_back(server_.model().TokenAt(static_cast<int64_t>(all.size())));
  EXPECT_EQ(Listed()[0]["tokens"], all.size());
  EXPECT_EQ(Post("/v1/completions", Completion("s", all)).status, 200);
}

TEST_F(Sessions, OneNameIsOfOneRequestAtATime) {
  server_.model().Hold();
  Stream first(server_.stub(), In("s", RequestOfIds({1}, 3)));
  first.WaitForInitialMetadata();
  EXPECT_EQ(Fault(In("s", RequestOfIds({1}, 3))).reason, "SESSION_IN_USE");
  ExpectError(Post("/v1/completions", Completion("s", {1})), 409, "session", "session_in_use");
  ExpectError(Delete("/v1/sessions/s"), 409, "session", "session_in_use");
  EXPECT_EQ(Listed()[0]["in_use"], true);
  server_.model().Release();
  ASSERT_TRUE(first.ReadAll().ok());
  EXPECT_EQ(Listed()[0]["tokens"], 4);
  EXPECT_EQ(Delete("/v1/sessions/s").status, 200);
}

TEST_F(Sessions, OneThatDidNotEndWellChangesNothing) {
  const Ids all = Joined({1}, Say(In("s", RequestOfIds({1}, 5))));
  server_.model().SetStepTime(1000);
  {
    Stream cancelled(server_.stub(), In("s", RequestOfIds(Joined(all, {9}), 30000)));
    ASSERT_TRUE(cancelled.Next());
    cancelled.Cancel();
    EXPECT_FALSE(cancelled.ReadAll().ok());
  }
  WaitForNobody();
  {
    HttpTestClient client(server_.server().http_address());
    json body = Completion("s", Joined(all, {9}));
    body["max_tokens"] = 30000;
    body["stream"] = true;
    client.Send(HttpPost("/v1/completions", body.dump()));
    EXPECT_THAT(client.ReadUntil("\"text\""), HasSubstr("200 OK"));
    client.Reset();
  }
  WaitForNobody();
  EXPECT_EQ(Listed()[0]["tokens"], 6);
  server_.model().FailAt(7);
  Stream failed(server_.stub(), In("s", RequestOfIds(Joined(all, {9}), 5)));
  failed.ReadAll();
  EXPECT_EQ(failed.finished().reason(), v1::FINISH_REASON_ERROR);
  server_.model().FailAt(-1);
  EXPECT_EQ(Listed()[0]["tokens"], 6);
  Say(In("s", RequestOfIds(all, 2)));
  EXPECT_EQ(Listed()[0]["tokens"], 8);
}

TEST_F(Sessions, APromptBeyondTheContextIsRefusedAsEver) {
  const RpcError error = Fault(In("s", RequestOfIds(Ids(40000, 5), 3)));
  EXPECT_EQ(error.code, StatusCode::kInvalidArgument);
  EXPECT_EQ(error.reason, "CONTEXT_LENGTH_EXCEEDED");
  EXPECT_TRUE(Listed().empty());
}

TEST_F(Sessions, WhatDoesNotGoWithThemIsRefusedByName) {
  v1::GenerateRequest request = In("s", RequestOfIds({1}, 3));
  request.set_choices(2);
  EXPECT_EQ(Fault(request).message(), "choices: is 2; with a session the most is 1");
  request = ChatIn("s", {"Hi", "Hel"});
  request.mutable_chat()->mutable_messages(1)->set_prefix(true);
  EXPECT_EQ(Fault(request).field, "chat.messages[1].prefix");
  request = ChatIn("s", {"Hi"});
  request.mutable_output()->set_text(false);
  EXPECT_EQ(Fault(request).field, "output.text");
  for (const std::string& name : {std::string(1 << 20, 'x'), std::string(".."), std::string("a/b")}) {
    EXPECT_EQ(Fault(In(name, RequestOfIds({1}, 3))).field, "session");
  }

  ExpectError(Post("/v1/completions", Completion("s", {"a", "b"})), 400, "session", "");
  ExpectError(Post("/v1/completions", Completion("a/b", "a")), 400, "session", "invalid_field");
  EXPECT_THAT(Post("/v1/completions", Completion(std::string(1 << 20, 'x'), "a")).body,
              HasSubstr("session: has 1048576 bytes, the most is 64"));
  json body = Completion("s", "a");
  body["n"] = 2;
  ExpectError(Post("/v1/completions", body), 400, "n", "invalid_field");
  EXPECT_TRUE(Listed().empty());
}

TEST_F(Sessions, AreOfOneKindAndOneSalt) {
  Say(In("text", RequestOfIds({1}, 3)));
  EXPECT_THAT(Fault(ChatIn("text", {"Hi"})).message(), HasSubstr("is no chat"));
  Say(ChatIn("chat", {"Hi"}));
  EXPECT_THAT(Fault(In("chat", RequestOfIds({1}, 3))).message(),
              HasSubstr("is a chat, and the prompt is none"));
  v1::GenerateRequest salted = In("text", RequestOfIds({1}, 3));
  salted.set_cache_salt("somebody else");
  EXPECT_EQ(Fault(salted).field, "cache_salt");
}

TEST_F(Sessions, GoOnUnderThePolicyThatTheyWereBegunWith) {
  const auto turn = [](const Ids& ids, int64_t n_ctx) {
    v1::GenerateRequest request = In("s", RequestOfIds(ids, 9));
    request.mutable_context_policy()->set_type(v1::ContextPolicy::TYPE_SHIFT);
    request.mutable_context_policy()->set_n_ctx(n_ctx);
    return request;
  };
  Ids ids = {1, 400, 401};
  for (int i = 0; i < 3; ++i) {  // far behind the 16 tokens that are held
    ids = Joined(ids, Say(turn(ids, 16)));
    ids.push_back(402);
  }
  const RpcError error = Fault(turn(ids, 17));
  EXPECT_EQ(error.code, StatusCode::kFailedPrecondition);
  EXPECT_EQ(error.reason, "SESSION_DIFFERS");
  EXPECT_EQ(error.message(),
            "context_policy: is shift (n_ctx 17, n_keep 4, n_discard 1), and the session was begun with "
            "shift (n_ctx 16, n_keep 4, n_discard 1)");
  EXPECT_EQ(Fault(In("s", RequestOfIds(ids, 9))).field, "context_policy");
  EXPECT_EQ(Say(turn(ids, 16)).size(), 9u) << "what was refused changed nothing";
  json body = Completion("h", json(ids));
  body["context_policy"] = {{"type", "reevaluate"}, {"n_ctx", 20}};
  EXPECT_EQ(Post("/v1/completions", body).status, 200);
  body["context_policy"]["n_keep"] = 5;
  ExpectError(Post("/v1/completions", body), 409, "context_policy", "session_differs");
}

// ---- chats ------------------------------------------------------------------------------------------

TEST_F(Sessions, AChatGoesOnFromWhatWasSampled) {
  Stream first(server_.stub(), ChatIn("s", {"Hi"}));
  ASSERT_TRUE(first.ReadAll().ok());
  const Ids before = Joined(PromptOf(first), first.token_ids());
  const std::string answer = first.text();
  ASSERT_NE(answer, "");

  Stream second(server_.stub(), ChatIn("s", {"Hi", answer, "And then?"}));
  ASSERT_TRUE(second.ReadAll().ok());
  const Ids prompt = PromptOf(second);
  ASSERT_GT(prompt.size(), before.size());
  EXPECT_THAT(Ids(prompt.begin(), prompt.begin() + static_cast<ptrdiff_t>(before.size())),
              ElementsAreArray(before));
  EXPECT_EQ(prompt[before.size()], server_.tokenizer().eos_id()) << "the answer was cut off by max_tokens";
  EXPECT_EQ(Listed()[0]["messages"], 4);
  EXPECT_EQ(Listed()[0]["tokens"], prompt.size() + second.token_ids().size());

  Stream third(server_.stub(), ChatIn("s", {"Hi", answer, "And then?", second.text(), "So?"}));
  ASSERT_TRUE(third.ReadAll().ok());
  const Ids last = PromptOf(third);
  EXPECT_THAT(Ids(last.begin(), last.begin() + static_cast<ptrdiff_t>(prompt.size())),
              ElementsAreArray(prompt));
}

TEST_F(Sessions, AChatThatDiffersIsRefusedByItsFirstMessage) {
  Stream first(server_.stub(), ChatIn("s", {"Hi"}));
  ASSERT_TRUE(first.ReadAll().ok());
  const std::string answer = first.text();
  EXPECT_EQ(Fault(ChatIn("s", {"Ho", answer, "And?"})).field, "chat.messages[0]");
  EXPECT_EQ(Fault(ChatIn("s", {"Hi", answer + "!", "And?"})).field, "chat.messages[1]");
  EXPECT_EQ(Fault(ChatIn("s", {"Hi"})).field, "chat.messages[1]");

  const auto post = [&](const std::string& said) {
    const json messages = {{{"role", "user"}, {"content", "Hi"}},
                           {{"role", "assistant"}, {"content", said}},
                           {{"role", "user"}, {"content", "And?"}}};
    return Post("/v1/chat/completions", {{"messages", messages}, {"session", "s"}, {"max_tokens", 3}});
  };
  ExpectError(post("Never said"), 409, "messages[1]", "session_differs");
  EXPECT_EQ(post(answer).status, 200);
  EXPECT_EQ(Listed()[0]["messages"], 4);
}

// The format of this tokenizer puts the system's message in front of the last question.
TEST_F(Sessions, AChatGoesOnBehindTheSystemsMessageThatItBeganWith) {
  const auto with_system = [](v1::GenerateRequest of) {
    v1::ChatMessage* system = of.mutable_chat()->add_messages();
    system->set_role(v1::ROLE_SYSTEM);
    system->set_content("Be brief.");
    auto* messages = of.mutable_chat()->mutable_messages();
    for (int i = messages->size() - 1; i > 0; --i) messages->SwapElements(i, i - 1);
    return of;
  };
  Stream first(server_.stub(), with_system(ChatIn("s", {"Hi"})));
  ASSERT_TRUE(first.ReadAll().ok());
  Stream second(server_.stub(), with_system(ChatIn("s", {"Hi", first.text(), "And?"})));
  const grpc::Status status = second.ReadAll();
  ASSERT_TRUE(status.ok()) << status.error_message();
  Ids expected = Joined(PromptOf(first), first.token_ids());
  Stream alone(server_.stub(), ChatIn("", {"And?"}));
  ASSERT_TRUE(alone.ReadAll().ok());
  expected.push_back(server_.tokenizer().eos_id());
  const Ids question = PromptOf(alone);
  ASSERT_EQ(question.front(), server_.tokenizer().bos_id());
  expected.insert(expected.end(), question.begin() + 1, question.end());
  EXPECT_EQ(PromptOf(second), expected);

  Stream third(server_.stub(), with_system(ChatIn("s", {"Hi", first.text(), "And?", second.text(), "So?"})));
  ASSERT_TRUE(third.ReadAll().ok());
  const Ids last = PromptOf(third);
  EXPECT_THAT(Ids(last.begin(), last.begin() + static_cast<ptrdiff_t>(expected.size())),
              ElementsAreArray(expected));
}

// A stand-in for a template: every message in brackets, answers up to the end of a text. `shows_count`: what
// it says first changes with each message.
class PlainTemplate final : public JinjaTemplate {
 public:
  explicit PlainTemplate(bool shows_count) : shows_count_(shows_count) {}
  StatusOr<std::string> Render(const JsonValue& values, const std::tm& /*now*/) const override {
    std::string text = "<s>";
    const JsonValue& messages = *Find(values, "messages");
    if (shows_count_) text += std::to_string(messages.items.size());
    for (const JsonValue& message : messages.items) {
      const std::string& content = Find(message, "content")->text;
      const bool answers = Find(message, "role")->text == "assistant";
      text += answers ? content + "</s>" : "[INST]" + content + "[/INST]";
    }
    return text;
  }

 private:
  static const JsonValue* Find(const JsonValue& object, std::string_view key) {
    const JsonValue* found = nullptr;
    for (const JsonMember& member : object.members) {
      if (member.key == key) found = &member.value;
    }
    return found;
  }

  const bool shows_count_;
};

class TemplateSessions : public Sessions, public ::testing::WithParamInterface<bool> {
 protected:
  static ScriptedServerOptions WithTemplate(bool shows_count) {
    ScriptedServerOptions options;
    options.chat_format = [shows_count](const Tokenizer& tokenizer) -> ChatFormatPtr {
      return std::make_unique<TemplateChatFormat>(tokenizer, "", std::make_unique<PlainTemplate>(shows_count),
                                                  "");
    };
    return options;
  }
  TemplateSessions() : Sessions(WithTemplate(GetParam())) {}
};

INSTANTIATE_TEST_SUITE_P(ThatRendersAnew, TemplateSessions, ::testing::Bool());

TEST_P(TemplateSessions, GoOnWhereWhatThereIsStaysAsItIs) {
  Stream first(server_.stub(), ChatIn("s", {"Hi"}));
  ASSERT_TRUE(first.ReadAll().ok());
  const v1::GenerateRequest next = ChatIn("s", {"Hi", first.text(), "And then?"});
  if (GetParam()) {
    EXPECT_EQ(Fault(next).reason, "SESSION_CANNOT_GO_ON");
    return;
  }
  Stream second(server_.stub(), next);
  const grpc::Status status = second.ReadAll();
  ASSERT_TRUE(status.ok()) << status.error_message();
  Ids before = Joined(PromptOf(first), first.token_ids());
  before.push_back(server_.tokenizer().eos_id());
  before.push_back(*server_.tokenizer().ControlId("[INST]"));
  const Ids prompt = PromptOf(second);
  ASSERT_GT(prompt.size(), before.size());
  EXPECT_THAT(Ids(prompt.begin(), prompt.begin() + static_cast<ptrdiff_t>(before.size())),
              ElementsAreArray(before));
}

TEST_F(Sessions, AnAnswerThatSaysNothingChangesNothing) {
  Say(ChatIn("s", {"Hi"}, 0));
  EXPECT_TRUE(Listed().empty());
}

// ---- what is kept -----------------------------------------------------------------------------------

TEST_F(Sessions, AreListedAndDeletedOverBothDoors) {
  EXPECT_EQ(Get("/v1/sessions").body, R"({"object":"list","data":[]})");
  Say(In("b", RequestOfIds({1}, 3)));
  Say(In("a.1", RequestOfIds({1}, 3)));
  grpc::ClientContext context;
  v1::ListSessionsResponse list;
  ASSERT_TRUE(server_.stub().ListSessions(&context, {}, &list).ok());
  ASSERT_EQ(list.sessions_size(), 2);
  EXPECT_EQ(list.sessions(0).name(), "a.1");
  EXPECT_GE(list.sessions(0).last_used_s(), list.sessions(0).created_s());
  EXPECT_GT(list.sessions(0).created_s(), 1'500'000'000);
  EXPECT_EQ(Listed()[1]["name"], "b");

  EXPECT_EQ(Delete("/v1/sessions/a.1").body, R"({"name":"a.1","object":"session","deleted":true})");
  ExpectError(Delete("/v1/sessions/a.1"), 404, "", "session_not_found");
  ExpectError(Delete("/v1/sessions/..%2f..%2fetc"), 400, "name", "invalid_field");
  EXPECT_EQ(Delete("/v1/sessions").status, 405);
  const auto erase = [&](const std::string& name) {
    grpc::ClientContext delete_context;
    v1::DeleteSessionRequest request;
    request.set_name(name);
    v1::DeleteSessionResponse response;
    return server_.stub().DeleteSession(&delete_context, request, &response);
  };
  EXPECT_TRUE(erase("b").ok());
  EXPECT_EQ(erase("b").error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(FromGrpcStatus(erase(std::string(1 << 19, 'x'))).field, "name");
  EXPECT_TRUE(Listed().empty());
  EXPECT_EQ(Say(In("b", RequestOfIds({7, 8}, 3))).size(), 3u) << "it begins anew";
}

TEST_F(Sessions, AreOfOneAddressOverBothDoors) {
  Say(In("s", RequestOfIds({1}, 3)));
  EXPECT_EQ(json::parse(FromElsewhere(HttpGet("/v1/sessions")).body)["data"], json::array());
  const HttpReply refused = FromElsewhere(HttpDelete("/v1/sessions/s"));
  ExpectError(refused, 404, "", "session_not_found");
  EXPECT_EQ(refused.body,
            Delete("/v1/sessions/t").body.replace(Delete("/v1/sessions/t").body.find("t\\\""), 1, "s"));
  const std::string own = Completion("s", {7, 8}).dump();
  EXPECT_EQ(FromElsewhere(HttpPost("/v1/completions", own)).status, 200) << "the same name is another one";
  EXPECT_EQ(json::parse(FromElsewhere(HttpGet("/v1/sessions")).body)["data"][0]["tokens"], 6);
  EXPECT_EQ(Listed()[0]["tokens"], 4);
  EXPECT_EQ(FromElsewhere(HttpDelete("/v1/sessions/s")).status, 200);
  EXPECT_EQ(Delete("/v1/sessions/s").status, 200);
}

TEST_F(Sessions, WithASaltAreChangedByWhoGivesIt) {
  json body = Completion("s", {1});
  body["cache_salt"] = "a b&c";
  const auto begin = [&] { ASSERT_EQ(Post("/v1/completions", body).status, 200); };
  begin();
  for (const char* path :
       {"/v1/sessions/s", "/v1/sessions/s?cache_salt=a", "/v1/sessions/s?salt=a%20b%26c"}) {
    ExpectError(Delete(path), 404, "", "session_not_found");
  }
  EXPECT_EQ(Delete("/v1/sessions/s?x=1&cache_salt=a+b%26c").status, 200);
  begin();
  const auto erase = [&](const std::string& content) {
    std::string request = HttpPost("/v1/sessions/s", content);
    return Fetch(server_.server().http_address(), request.replace(0, 4, "DELETE"));
  };
  ExpectError(erase(R"({"cache_salt":"a b"})"), 404, "", "session_not_found");
  ExpectError(erase(R"({"salt":"a b&c"})"), 400, "salt", "");
  ExpectError(erase("[]"), 400, "", "");
  EXPECT_EQ(erase(R"({"cache_salt":"a b&c"})").status, 200);
  begin();
  v1::DeleteSessionRequest request;
  request.set_name("s");
  const auto erase_over_grpc = [&] {
    grpc::ClientContext context;
    v1::DeleteSessionResponse response;
    return server_.stub().DeleteSession(&context, request, &response).error_code();
  };
  EXPECT_EQ(erase_over_grpc(), grpc::StatusCode::NOT_FOUND);
  request.set_cache_salt("a b&c");
  EXPECT_EQ(erase_over_grpc(), grpc::StatusCode::OK);
}

TEST_F(Sessions, AreNotSavedWithoutAFolder) {
  Say(In("s", RequestOfIds({1}, 3)));
  for (const char* action : {"save", "restore"}) {
    const HttpReply reply = Post(std::string("/v1/sessions/s/") + action, json::object());
    ExpectError(reply, 400, "", "no_session_dir");
    EXPECT_THAT(reply.body, HasSubstr("only where --session-dir is given"));
  }
}

class SavedSessions : public Sessions {
 protected:
  explicit SavedSessions(std::shared_ptr<TempFolder> folder = std::make_shared<TempFolder>())
      : Sessions(In(*folder)), folder_(std::move(folder)) {}
  using Sessions::In;
  static ScriptedServerOptions In(const TempFolder& folder) {
    ScriptedServerOptions options;
    options.server.session_dir = folder.path();
    return options;
  }
  HttpReply Act(const std::string& name, const std::string& action) {
    return Fetch(server_.server().http_address(), HttpPost("/v1/sessions/" + name + "/" + action, ""));
  }

  const std::shared_ptr<TempFolder> folder_;
};

TEST_F(SavedSessions, GoOnInAnotherServerWhereTheyWereSaved) {
  Stream first(server_.stub(), ChatIn("s", {"Hi"}));
  ASSERT_TRUE(first.ReadAll().ok());
  const Ids before = Joined(PromptOf(first), first.token_ids());
  const HttpReply saved = Act("s", "save");
  ASSERT_EQ(saved.status, 200) << saved.body;
  EXPECT_EQ(json::parse(saved.body)["tokens"], before.size());
  EXPECT_EQ(json::parse(saved.body)["messages"], 2);
  EXPECT_GT(json::parse(saved.body)["bytes"], 50);

  ScriptedServer other(WithHttp(In(*folder_)));
  grpc::ClientContext context;
  v1::RestoreSessionRequest request;
  request.set_name("s");
  v1::RestoreSessionResponse restored;
  const grpc::Status status = other.stub().RestoreSession(&context, request, &restored);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(restored.session().tokens(), static_cast<int64_t>(before.size()));
  Stream second(other.stub(), ChatIn("s", {"Hi", first.text(), "And then?"}));
  ASSERT_TRUE(second.ReadAll().ok());
  const Ids prompt = PromptOf(second);
  EXPECT_THAT(Ids(prompt.begin(), prompt.begin() + static_cast<ptrdiff_t>(before.size())),
              ElementsAreArray(before));
}

TEST_F(SavedSessions, AreTakenBackToWhereTheyWere) {
  const Ids all = Joined({1}, Say(In("s", RequestOfIds({1}, 3))));
  grpc::ClientContext context;
  v1::SaveSessionRequest request;
  request.set_name("s");
  v1::SaveSessionResponse saved;
  ASSERT_TRUE(server_.stub().SaveSession(&context, request, &saved).ok());
  EXPECT_EQ(saved.session().tokens(), 4);
  Say(In("s", RequestOfIds(all, 5)));
  EXPECT_EQ(Listed()[0]["tokens"], 9);
  EXPECT_EQ(Act("s", "restore").body,
            R"({"name":"s","object":"session","tokens":4,"messages":0,"kv_tokens":0})");
  EXPECT_EQ(Listed()[0]["tokens"], 4);
  Delete("/v1/sessions/s");
  EXPECT_EQ(Act("s", "restore").status, 200);
  Say(In("s", RequestOfIds(all, 5)));
}

TEST_F(SavedSessions, AreRefusedByName) {
  ExpectError(Act("s", "save"), 404, "", "session_not_found");
  ExpectError(Act("s", "restore"), 404, "", "session_not_found");
  ExpectError(Act("..", "save"), 400, "name", "invalid_field");
  ExpectError(Act(".." + std::string(100, 'x'), "restore"), 400, "name", "invalid_field");
  EXPECT_EQ(Act("s", "burn").status, 405);
  Say(In("s", RequestOfIds({1}, 3)));
  ASSERT_EQ(Act("s", "save").status, 200);
  server_.model().Hold();
  Stream busy(server_.stub(), In("s", RequestOfIds(Joined({1}, server_.IdsSaid(1, 3)), 3)));
  busy.WaitForInitialMetadata();
  ExpectError(Act("s", "save"), 409, "session", "session_in_use");
  ExpectError(Act("s", "restore"), 409, "session", "session_in_use");
  server_.model().Release();
  EXPECT_TRUE(busy.ReadAll().ok());
  folder_->Write(SessionFileName("s", "", "127.0.0.1"), "tramontane session 1");
  ExpectError(Act("s", "restore"), 409, "", "session_file_unusable");
}

TEST_F(SavedSessions, OfAnotherAddressAreRestoredAndNotReplaced) {
  const auto save = HttpPost("/v1/sessions/s/save", "");
  const auto restore = HttpPost("/v1/sessions/s/restore", "");
  Say(In("s", RequestOfIds({1}, 3)));
  ExpectError(FromElsewhere(save), 404, "", "session_not_found");
  ExpectError(FromElsewhere(restore), 404, "", "session_not_found");
  ASSERT_EQ(Act("s", "save").status, 200);
  EXPECT_EQ(json::parse(FromElsewhere(restore).body)["tokens"], 4) << "without keys anybody restores";
  ASSERT_EQ(FromElsewhere(HttpDelete("/v1/sessions/s")).status, 200);
  ASSERT_EQ(FromElsewhere(HttpPost("/v1/completions", Completion("s", {7, 8}).dump())).status, 200);
  ASSERT_EQ(FromElsewhere(save).status, 200);
  EXPECT_EQ(json::parse(Act("s", "restore").body)["tokens"], 4) << "the other's is another file";
  EXPECT_EQ(json::parse(FromElsewhere(restore).body)["tokens"], 6);
}

TEST_F(SavedSessions, WithASaltAreSavedAndRestoredByWhoGivesIt) {
  json body = Completion("s", {1});
  body["cache_salt"] = "salt";
  ASSERT_EQ(Post("/v1/completions", body).status, 200);
  ExpectError(Act("s", "save"), 404, "", "session_not_found");
  EXPECT_EQ(Post("/v1/sessions/s/save", {{"cache_salt", "salt"}}).status, 200);
  ExpectError(Act("s", "restore"), 404, "", "session_not_found");
  ExpectError(Act("s", "restore?cache_salt=other"), 404, "", "session_not_found");
  EXPECT_EQ(Act("s", "restore?cache_salt=salt").status, 200);
  EXPECT_EQ(Post("/v1/sessions/s/restore", {{"cache_salt", "salt"}}).status, 200);

  // Nor does a file take the place of a session that has another salt.
  Delete("/v1/sessions/s?cache_salt=salt");
  Say(In("s", RequestOfIds({1}, 3)));
  ExpectError(Act("s", "restore?cache_salt=salt"), 404, "", "session_not_found");
  EXPECT_EQ(Act("s", "save").status, 200);
}

class FewSessions : public Sessions {
 protected:
  static ScriptedServerOptions Few() {
    ScriptedServerOptions options;
    options.server.sessions.max_sessions = 2;
    return options;
  }
  FewSessions() : Sessions(Few()) {}
};

TEST_F(FewSessions, AreRefusedWhereAllAreInUse) {
  Say(In("old", RequestOfIds({1}, 3)));
  server_.model().Hold();
  Stream a(server_.stub(), In("a", RequestOfIds({1}, 3)));
  Stream b(server_.stub(), In("b", RequestOfIds({1}, 3)));
  a.WaitForInitialMetadata();
  b.WaitForInitialMetadata();
  const HttpReply reply = Post("/v1/completions", Completion("c", {1}));
  ExpectError(reply, 429, "", "too_many_sessions");
  EXPECT_NE(reply.Header("retry-after"), "");
  EXPECT_EQ(Listed().size(), 2u) << "the old one made room";
  server_.model().Release();
  EXPECT_TRUE(a.ReadAll().ok());
  EXPECT_TRUE(b.ReadAll().ok());
  EXPECT_EQ(Post("/v1/completions", Completion("c", {1})).status, 200);
}

}  // namespace
}  // namespace tramontane

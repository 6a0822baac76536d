// What the server keeps of conversations: who may use it, what goes when room or time is over, and which
// prompts go on from it.
#include "server/sessions/session_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/sessions/session_prompt.h"
#include "server/sessions/session_turn.h"
#include "tests/support/fake_clock.h"

namespace tramontane {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

constexpr int64_t kSecondNs = 1'000'000'000;
constexpr char kCaller[] = "127.0.0.1";

SessionKey Own(std::string name) { return {kCaller, std::move(name)}; }
SessionKey Others(std::string name) { return {"127.0.0.2", std::move(name)}; }

SessionState StateOf(std::vector<int32_t> ids) {
  SessionState state;
  state.ids = std::move(ids);
  return state;
}

class Sessions : public ::testing::Test {
 protected:
  explicit Sessions(const SessionStoreOptions& options = {}) : store_(options) { store_.Start(clock_); }

  // A request that ends well.
  static void Use(SessionStore& store, const SessionKey& key, std::vector<int32_t> ids) {
    SessionLease lease;
    const RpcError error = store.Take(key, &lease);
    ASSERT_TRUE(error.ok()) << error.message();
    lease.Keep(StateOf(std::move(ids)));
  }
  static void Use(SessionStore& store, const std::string& name, std::vector<int32_t> ids) {
    Use(store, Own(name), std::move(ids));
  }
  static std::vector<std::string> NamesOf(SessionStore& store, const std::string& caller = kCaller) {
    std::vector<std::string> names;
    const v1::ListSessionsResponse list = store.List(caller, 0);
    for (const v1::Session& session : list.sessions()) names.push_back(session.name());
    return names;
  }

  FakeClock clock_;
  SessionStore store_;
};

TEST(SessionName, IsOfSixtyFourPlainCharacters) {
  for (const std::string& name : {std::string("a"), std::string("A-z_0.9"), std::string(64, 'x')}) {
    EXPECT_EQ(SessionNameFault(name), "") << name;
  }
  EXPECT_EQ(SessionNameFault(""), "has 0 bytes, the range is [1, 64]");
  EXPECT_EQ(SessionNameFault(std::string(1 << 20, 'x')), "has 1048576 bytes, the range is [1, 64]");
  EXPECT_EQ(SessionNameFault(".hidden"), "begins with a dot");
  EXPECT_EQ(SessionNameFault(".."), "begins with a dot");
  for (const std::string& name : {std::string("a/b"), std::string("a\0b", 3), std::string("a b"),
                                  std::string("a\xc3\xa9"), std::string("a\n")}) {
    EXPECT_THAT(SessionNameFault(name), HasSubstr("has at byte 1 what is none of")) << name;
  }
}

TEST_F(Sessions, HoldWhatTheLastRequestLeft) {
  Use(store_, "s", {1, 2, 3});
  SessionLease lease;
  ASSERT_TRUE(store_.Take(Own("s"), &lease).ok());
  ASSERT_NE(lease.state(), nullptr);
  EXPECT_THAT(lease.state()->ids, ElementsAre(1, 2, 3));
  lease.Keep(StateOf({1, 2, 3, 4, 5}));
  EXPECT_FALSE(lease.held());
  ASSERT_TRUE(store_.Take(Own("s"), &lease).ok());
  EXPECT_THAT(lease.state()->ids, ElementsAre(1, 2, 3, 4, 5));
}

TEST_F(Sessions, OfAnAnswerWhoseLastCallIsCutOffHoldItsWholeCalls) {
  v1::GenerateRequest request;
  request.set_session("s");
  request.mutable_chat()->add_messages()->set_content("hi");
  request.mutable_chat()->add_tools()->set_name("f");
  SessionTurn turn;
  ASSERT_TRUE(turn.Begin(store_, {.identity = kCaller}, request).ok());
  turn.NotePrompt(request, std::vector<int32_t>{1, 2, 3}, {});
  v1::Delta delta;
  delta.set_text(R"(So:[{"name": "f", "arguments": {"a": 1)");
  delta.set_tool_calls_at(3);
  turn.NoteDelta(delta);
  delta.Clear();
  delta.set_text(R"(2}}, {"name": "f", "arguments": {"a)");
  turn.NoteDelta(delta);
  StreamFinished finished;
  finished.reason = FinishReason::kLength;
  turn.NoteFinished(finished);
  SessionLease lease;
  ASSERT_TRUE(store_.Take(Own("s"), &lease).ok());
  const v1::ChatMessage& answer = lease.state()->chat.messages(1);
  EXPECT_EQ(answer.content(), "So:");
  ASSERT_EQ(answer.tool_calls_size(), 1);
  EXPECT_EQ(answer.tool_calls(0).arguments_json(), R"({"a": 12})");
}

TEST_F(Sessions, StayAsTheyWereWhenARequestLetsGo) {
  Use(store_, "s", {1, 2, 3});
  SessionLease lease;
  ASSERT_TRUE(store_.Take(Own("s"), &lease).ok());
  lease.LetGo();
  lease.LetGo();
  ASSERT_TRUE(store_.Take(Own("s"), &lease).ok());
  EXPECT_THAT(lease.state()->ids, ElementsAre(1, 2, 3));
  ASSERT_TRUE(store_.Take(Own("new"), &lease).ok());  // lets go of the other
  lease.LetGo();
  EXPECT_THAT(NamesOf(store_), ElementsAre("s")) << "what never was is none";
}

TEST_F(Sessions, AreOfOneRequestAtATime) {
  SessionLease first, second;
  ASSERT_TRUE(store_.Take(Own("s"), &first).ok());
  const RpcError error = store_.Take(Own("s"), &second);
  EXPECT_EQ(error.code, StatusCode::kFailedPrecondition);
  EXPECT_EQ(error.reason, "SESSION_IN_USE");
  EXPECT_EQ(error.message(), "session: \"s\" is in use by a request in progress");
  EXPECT_FALSE(second.held());
  SessionLease moved = std::move(first);
  EXPECT_FALSE(store_.Take(Own("s"), &second).ok());
  moved.LetGo();
  EXPECT_TRUE(store_.Take(Own("s"), &second).ok());
}

TEST_F(Sessions, OfTwoRequestsAtOnceExactlyOneWins) {
  constexpr int kRounds = 200;
  for (int round = 0; round < kRounds; ++round) {
    std::atomic<int> ready{0}, won{0}, lost{0};
    const auto take = [&] {
      SessionLease lease;
      ++ready;
      while (ready < 2) {
      }
      ++(store_.Take(Own("s"), &lease).ok() ? won : lost);
      while (won + lost < 2) {
      }
    };
    std::thread other(take);
    take();
    other.join();
    ASSERT_EQ(won, 1) << "round " << round;
  }
}

TEST_F(Sessions, AreToldOfByName) {
  Use(store_, "b", {1, 2, 3});
  clock_.Advance(10 * kSecondNs);
  SessionLease lease;
  ASSERT_TRUE(store_.Take(Own("a"), &lease).ok());
  clock_.Advance(5 * kSecondNs);
  const v1::ListSessionsResponse list = store_.List(kCaller, 1000);
  ASSERT_EQ(list.sessions_size(), 2);
  EXPECT_EQ(list.sessions(0).name(), "a");
  EXPECT_TRUE(list.sessions(0).in_use());
  EXPECT_EQ(list.sessions(0).tokens(), 0);
  EXPECT_EQ(list.sessions(0).created_s(), 995);
  EXPECT_EQ(list.sessions(1).name(), "b");
  EXPECT_FALSE(list.sessions(1).in_use());
  EXPECT_EQ(list.sessions(1).tokens(), 3);
  EXPECT_EQ(list.sessions(1).created_s(), 985);
  EXPECT_EQ(list.sessions(1).last_used_s(), 985);
}

TEST_F(Sessions, AreDeletedOnceNobodyUsesThem) {
  SessionLease lease;
  ASSERT_TRUE(store_.Take(Own("s"), &lease).ok());
  EXPECT_EQ(store_.Delete(Own("s"), "").reason, "SESSION_IN_USE");
  lease.Keep(StateOf({1}));
  EXPECT_TRUE(store_.Delete(Own("s"), "").ok());
  const RpcError unknown = store_.Delete(Own("s"), "");
  EXPECT_EQ(unknown.code, StatusCode::kNotFound);
  EXPECT_EQ(unknown.message(), "there is no session \"s\"");
  EXPECT_EQ(store_.Delete(Own("../s"), "").message(), "name: begins with a dot");
  ASSERT_TRUE(store_.Take(Own("s"), &lease).ok());
  EXPECT_EQ(lease.state(), nullptr) << "it begins anew";
}

// ---- whose they are -------------------------------------------------------------------------------

TEST_F(Sessions, OfOthersAreNotThere) {
  Use(store_, Own("s"), {1, 2, 3});
  Use(store_, Own("mine"), {1});
  Use(store_, Others("s"), {7});
  EXPECT_THAT(NamesOf(store_), ElementsAre("mine", "s"));
  EXPECT_THAT(NamesOf(store_, "127.0.0.2"), ElementsAre("s"));
  EXPECT_TRUE(NamesOf(store_, "").empty());
  const RpcError unknown = store_.Delete(Others("mine"), "");
  EXPECT_EQ(unknown.reason, "SESSION_NOT_FOUND");
  EXPECT_EQ(unknown.message(), "there is no session \"mine\"");
  std::shared_ptr<const SessionState> state;
  EXPECT_EQ(store_.Find(Others("mine"), "", &state).reason, "SESSION_NOT_FOUND");
  SessionLease own, others;
  ASSERT_TRUE(store_.Take(Own("s"), &own).ok());
  ASSERT_TRUE(store_.Take(Others("s"), &others).ok()) << "each has its own";
  EXPECT_THAT(own.state()->ids, ElementsAre(1, 2, 3));
  EXPECT_THAT(others.state()->ids, ElementsAre(7));
}

TEST_F(Sessions, WithASaltAreNotThereForWhoDoesNotKnowIt) {
  SessionLease lease;
  ASSERT_TRUE(store_.Take(Own("s"), &lease).ok());
  SessionState salted = StateOf({1});
  salted.cache_salt = "salt";
  lease.Keep(salted);
  std::shared_ptr<const SessionState> state;
  for (const char* salt : {"", "other"}) {
    EXPECT_EQ(store_.Find(Own("s"), salt, &state).reason, "SESSION_NOT_FOUND") << salt;
    EXPECT_EQ(store_.Delete(Own("s"), salt).reason, "SESSION_NOT_FOUND") << salt;
  }
  ASSERT_TRUE(store_.Take(Own("s"), &lease).ok());
  EXPECT_EQ(store_.Delete(Own("s"), "").reason, "SESSION_NOT_FOUND") << "nor is it told that it is in use";
  EXPECT_EQ(store_.Delete(Own("s"), "salt").reason, "SESSION_IN_USE");
  lease.LetGo();
  EXPECT_TRUE(store_.Find(Own("s"), "salt", &state).ok());
  EXPECT_TRUE(store_.Delete(Own("s"), "salt").ok());
}

// ---- bounds -----------------------------------------------------------------------------------------

class FewSessions : public Sessions {
 protected:
  FewSessions() : Sessions({.max_sessions = 3, .ttl_ns = 100 * kSecondNs, .max_bytes = 4500}) {}
};

TEST_F(FewSessions, TheOneUsedLongestAgoGoesFirst) {
  for (const char* name : {"a", "b", "c"}) Use(store_, name, {1});
  Use(store_, "a", {1, 2});
  Use(store_, "d", {1});
  EXPECT_THAT(NamesOf(store_), ElementsAre("a", "c", "d"));
}

TEST_F(FewSessions, OneInUseNeverGoes) {
  Use(store_, "a", {1});
  SessionLease a, b, c, d;
  ASSERT_TRUE(store_.Take(Own("a"), &a).ok());
  ASSERT_TRUE(store_.Take(Own("b"), &b).ok());
  Use(store_, "c", {1});
  Use(store_, "d", {1});
  EXPECT_THAT(NamesOf(store_), ElementsAre("a", "b", "d"));
  ASSERT_TRUE(store_.Take(Own("d"), &d).ok());
  const RpcError full = store_.Take(Own("c"), &c);
  EXPECT_EQ(full.code, StatusCode::kResourceExhausted);
  EXPECT_EQ(full.reason, "TOO_MANY_SESSIONS");
  EXPECT_THAT(full.message(), HasSubstr("all of the server's 3 sessions are in use"));
  clock_.Advance(1000 * kSecondNs);
  EXPECT_THAT(NamesOf(store_), ElementsAre("a", "b", "d"));
  a.Keep(StateOf({1}));
  EXPECT_TRUE(store_.Take(Own("c"), &c).ok());
  EXPECT_THAT(NamesOf(store_), ElementsAre("b", "c", "d"));
}

TEST_F(FewSessions, GoWhenTheirTimeIsOver) {
  Use(store_, "a", {1});
  clock_.Advance(60 * kSecondNs);
  Use(store_, "b", {1});
  clock_.Advance(39 * kSecondNs);
  EXPECT_THAT(NamesOf(store_), ElementsAre("a", "b"));
  clock_.Advance(kSecondNs);
  EXPECT_THAT(NamesOf(store_), ElementsAre("b"));
  EXPECT_EQ(store_.Delete(Own("a"), "").code, StatusCode::kNotFound);
  clock_.Advance(60 * kSecondNs);
  SessionLease lease;
  ASSERT_TRUE(store_.Take(Own("b"), &lease).ok());
  EXPECT_EQ(lease.state(), nullptr);
}

TEST_F(FewSessions, TogetherHoldSoManyBytes) {
  Use(store_, "a", std::vector<int32_t>(400, 1));
  Use(store_, "b", std::vector<int32_t>(400, 1));
  EXPECT_THAT(NamesOf(store_), ElementsAre("a", "b"));
  Use(store_, "b", std::vector<int32_t>(500, 1));
  Use(store_, "c", std::vector<int32_t>(400, 1));
  EXPECT_THAT(NamesOf(store_), ElementsAre("b", "c"));
  Use(store_, "d", std::vector<int32_t>(1125, 1));
  EXPECT_TRUE(NamesOf(store_).empty());
}

TEST_F(FewSessions, OneCallerDoesNotPushOutAnothers) {
  Use(store_, Others("old"), {1});
  for (const char* name : {"a", "b", "c", "d"}) Use(store_, name, {1});
  EXPECT_THAT(NamesOf(store_), ElementsAre("c", "d"));
  EXPECT_THAT(NamesOf(store_, "127.0.0.2"), ElementsAre("old"));
  Use(store_, Others("new"), {1});
  EXPECT_THAT(NamesOf(store_), ElementsAre("d")) << "of whoever has most";
  EXPECT_THAT(NamesOf(store_, "127.0.0.2"), ElementsAre("new", "old"));
  Use(store_, Others("newer"), {1});
  EXPECT_THAT(NamesOf(store_, "127.0.0.2"), ElementsAre("new", "newer")) << "it has half";
  SessionLease a, b, c;
  ASSERT_TRUE(store_.Take(Others("new"), &a).ok());
  ASSERT_TRUE(store_.Take(Others("newer"), &b).ok());
  EXPECT_THAT(store_.Take(Others("newest"), &c).message(), HasSubstr("all of its own are in use"));
  EXPECT_THAT(NamesOf(store_), ElementsAre("d"));
}

TEST_F(FewSessions, BytesGoFirstOfWhoeverHasMost) {
  for (const char* name : {"a", "b"}) Use(store_, Others(name), std::vector<int32_t>(100, 1));
  Use(store_, "s", std::vector<int32_t>(1000, 1));
  EXPECT_TRUE(NamesOf(store_).empty()) << "one is more than the other's two";
  EXPECT_THAT(NamesOf(store_, "127.0.0.2"), ElementsAre("a", "b"));
}

TEST(SessionState, CountsWhatItsMessagesTakeInMemory) {
  SessionState state = StateOf({});
  for (int i = 0; i < 1000; ++i) state.chat.add_messages()->set_role(v1::ROLE_USER);
  EXPECT_GE(state.Bytes(), 1000 * static_cast<int64_t>(sizeof(v1::ChatMessage)));
}

TEST(SessionStore, TenThousandNamesHoldNoMoreThanMayBe) {
  FakeClock clock;
  SessionStore store({.max_sessions = 100, .ttl_ns = 0});
  store.Start(clock);
  for (int i = 0; i < 10'000; ++i) {
    SessionLease lease;
    ASSERT_TRUE(store.Take(Own("s" + std::to_string(i)), &lease).ok());
    lease.Keep(StateOf({i}));
    clock.Advance(1000 * kSecondNs);
  }
  EXPECT_EQ(store.List(kCaller, 0).sessions_size(), 100);
  EXPECT_TRUE(store.Delete(Own("s9999"), "").ok());
  EXPECT_FALSE(store.Delete(Own("s9899"), "").ok());
}

// ---- prompts that go on -----------------------------------------------------------------------------

TEST(SessionPrompt, GoesOnFromEveryToken) {
  const SessionState session = StateOf({5, 6, 7});
  EXPECT_TRUE(CheckGoesOn(session, "text", {5, 6, 7}).ok());
  EXPECT_TRUE(CheckGoesOn(session, "text", {5, 6, 7, 8}).ok());
  const RpcError other = CheckGoesOn(session, "text", {5, 9, 7, 8});
  EXPECT_EQ(other.code, StatusCode::kFailedPrecondition);
  EXPECT_EQ(other.reason, "SESSION_DIFFERS");
  EXPECT_EQ(other.info.at("index"), "1");
  EXPECT_EQ(other.message(),
            "text: does not go on from the session: token 1 of its 3 is 6, and the prompt is 9");
  const RpcError shorter = CheckGoesOn(session, "text", {5, 6});
  EXPECT_EQ(shorter.info.at("index"), "2");
  EXPECT_THAT(shorter.message(), HasSubstr("token 2 of its 3 is 7, and the prompt ends there"));
}

constexpr int32_t kEnd = 2;
constexpr int32_t kUser = 10, kAssistant = 11;

// <role> then a token for each byte; answers end with kEnd. The question of the model's turn is kAssistant.
RpcError RenderPlainly(const v1::Chat& chat, std::vector<int32_t>* ids) {
  ids->clear();
  for (const v1::ChatMessage& message : chat.messages()) {
    const bool answers = message.role() == v1::ROLE_ASSISTANT;
    ids->push_back(answers ? kAssistant : kUser);
    for (const char c : message.content()) ids->push_back(c);
    if (answers) ids->push_back(kEnd);
  }
  ids->push_back(kAssistant);
  return {};
}

void Say(v1::Chat* chat, v1::Role role, const std::string& content) {
  v1::ChatMessage* message = chat->add_messages();
  message->set_role(role);
  message->set_content(content);
}

class SessionChat : public ::testing::Test {
 protected:
  SessionChat() {
    Say(&session_.chat, v1::ROLE_USER, "hi");
    Say(&session_.chat, v1::ROLE_ASSISTANT, "yo");
    session_.is_chat = true;
    // "yo" in one token: sampled otherwise than it is rendered.
    session_.ids = {kUser, 'h', 'i', kAssistant, 999, kEnd};
    chat_ = session_.chat;
    Say(&chat_, v1::ROLE_USER, "so");
  }
  RpcError GoOn(const RenderIds& render = RenderPlainly, int32_t end = kEnd) {
    return GoOnWithChat(session_, chat_, end, render, &ids_);
  }
  static void ExpectDiffersAt(const RpcError& error, int index) {
    EXPECT_EQ(error.code, StatusCode::kFailedPrecondition);
    EXPECT_EQ(error.reason, "SESSION_DIFFERS");
    EXPECT_EQ(error.field, "chat.messages[" + std::to_string(index) + "]");
    EXPECT_EQ(error.info.at("index"), std::to_string(index));
  }

  SessionState session_;
  v1::Chat chat_;
  std::vector<int32_t> ids_;
};

TEST_F(SessionChat, GoesOnFromTheTokensThatWereSampled) {
  ASSERT_TRUE(GoOn().ok());
  EXPECT_THAT(ids_, ElementsAreArray({kUser, int{'h'}, int{'i'}, kAssistant, 999, kEnd, kUser, int{'s'},
                                      int{'o'}, kAssistant}));
}

TEST_F(SessionChat, EndsAnAnswerThatWasCutOff) {
  session_.ids.pop_back();
  ASSERT_TRUE(GoOn().ok());
  EXPECT_THAT(ids_, ElementsAreArray({kUser, int{'h'}, int{'i'}, kAssistant, 999, kEnd, kUser, int{'s'},
                                      int{'o'}, kAssistant}));
}

TEST_F(SessionChat, NamesTheFirstMessageThatDiffers) {
  chat_.mutable_messages(0)->set_content("ho");
  ExpectDiffersAt(GoOn(), 0);
  chat_.mutable_messages(0)->set_content("hi");
  chat_.mutable_messages(1)->set_content("YO");
  ExpectDiffersAt(GoOn(), 1);
  chat_.mutable_messages(1)->set_content("yo");
  chat_.mutable_messages(1)->set_role(v1::ROLE_USER);
  ExpectDiffersAt(GoOn(), 1);
  chat_.mutable_messages()->RemoveLast();
  chat_.mutable_messages()->RemoveLast();
  ExpectDiffersAt(GoOn(), 1);
  chat_ = session_.chat;
  const RpcError error = GoOn();
  ExpectDiffersAt(error, 2);
  EXPECT_THAT(error.message(), HasSubstr("the session holds 2 messages, and none follows them"));
}

TEST_F(SessionChat, TakesNoAnswersThatWereNotGivenHere) {
  Say(&chat_, v1::ROLE_ASSISTANT, "made up");
  Say(&chat_, v1::ROLE_USER, "so?");
  const RpcError error = GoOn();
  ExpectDiffersAt(error, 3);
  EXPECT_THAT(error.message(), HasSubstr("is the assistant's, and not among the session's 2 messages"));
}

TEST_F(SessionChat, TakesAnAnswerBackWithoutItsThoughtsAndWithIdsForItsCalls) {
  v1::ChatMessage* answer = chat_.mutable_messages(1);
  answer->clear_content();
  answer->add_parts()->mutable_thinking()->set_text("hm");
  answer->add_parts()->set_text("yo");
  EXPECT_EQ(GoOn().message(), "");

  v1::ToolCall* own = session_.chat.mutable_messages(1)->add_tool_calls();
  own->set_name("look");
  own->set_arguments_json("{}");
  ExpectDiffersAt(GoOn(), 1);
  v1::ToolCall* call = answer->add_tool_calls();
  call->set_id("abcdefghi");
  call->set_name("look");
  EXPECT_EQ(GoOn().message(), "");
  answer->clear_parts();
  EXPECT_EQ(GoOn().message(), "") << "beside calls the text may be left out";
  call->set_arguments_json(R"({"at":1})");
  ExpectDiffersAt(GoOn(), 1);
  call->set_arguments_json("{}");
  own->set_id("123456789");
  ExpectDiffersAt(GoOn(), 1);
}

constexpr int32_t kSystem = 12, kTool = 13;

// As RenderPlainly, but the system's messages and the tools stand in front of the last question.
RpcError RenderWhatMoves(const v1::Chat& chat, std::vector<int32_t>* ids) {
  v1::Chat others = chat;
  others.clear_messages();
  std::string said;
  std::vector<int32_t> moves;
  for (const v1::Tool& tool : chat.tools()) {
    if (chat.tool_choice().mode() == v1::TOOL_CHOICE_MODE_NONE) break;
    moves.push_back(kTool);
    for (const char c : tool.name()) moves.push_back(c);
  }
  for (const v1::ChatMessage& message : chat.messages()) {
    if (message.role() == v1::ROLE_SYSTEM) {
      moves.push_back(kSystem);
      for (const char c : message.content()) moves.push_back(c);
    } else {
      *others.add_messages() = message;
    }
  }
  RenderPlainly(others, ids);
  const auto question = std::find(ids->rbegin(), ids->rend(), kUser).base() - 1;
  ids->insert(question, moves.begin(), moves.end());
  return {};
}

TEST_F(SessionChat, WhatTheFormatPutsInFrontOfTheLastQuestionStaysWhereItWasSaid) {
  const std::vector<int32_t> expected = {kSystem,    'b', kTool, 't',   kUser, 'h', 'i',
                                         kAssistant, 999, kEnd,  kUser, 's',   'o', kAssistant};
  const auto with_what_moves = [](const v1::Chat& chat) {
    v1::Chat with;
    Say(&with, v1::ROLE_SYSTEM, "b");
    with.add_tools()->set_name("t");
    with.mutable_messages()->MergeFrom(chat.messages());
    return with;
  };
  session_.chat = with_what_moves(session_.chat);
  chat_ = with_what_moves(chat_);
  session_.ids = {kSystem, 'b', kTool, 't', kUser, 'h', 'i', kAssistant, 999, kEnd};
  ASSERT_EQ(GoOn(RenderWhatMoves).message(), "");
  EXPECT_EQ(ids_, expected);

  session_.ids.pop_back();
  ASSERT_EQ(GoOn(RenderWhatMoves).message(), "");
  EXPECT_EQ(ids_, expected) << "an answer that was cut off is ended";

  session_.ids.push_back(kEnd);
  v1::Chat next = chat_;
  Say(&next, v1::ROLE_SYSTEM, "c");
  std::swap(chat_, next);
  ASSERT_EQ(GoOn(RenderWhatMoves).message(), "");
  EXPECT_THAT(
      ids_, ElementsAreArray({kSystem, int{'b'}, kTool, int{'t'}, kUser, int{'h'}, int{'i'}, kAssistant, 999,
                              kEnd, kSystem, int{'c'}, kUser, int{'s'}, int{'o'}, kAssistant}))
      << "what the session does not have is said";
}

TEST_F(SessionChat, OtherToolsInFrontOfTheLastQuestionAreRefused) {
  session_.chat.add_tools()->set_name("t");
  chat_.add_tools()->set_name("u");
  session_.ids.insert(session_.ids.begin(), {kTool, 't'});
  EXPECT_EQ(GoOn(RenderWhatMoves).reason, "SESSION_CANNOT_GO_ON");
  chat_.mutable_tools(0)->set_name("t");
  EXPECT_EQ(GoOn(RenderWhatMoves).message(), "");
  chat_.mutable_tool_choice()->set_mode(v1::TOOL_CHOICE_MODE_NONE);
  EXPECT_EQ(GoOn(RenderWhatMoves).reason, "SESSION_CANNOT_GO_ON");
}

// Not of what was given, but of how much of it: nothing can be left out.
TEST_F(SessionChat, IsRefusedWhereWhatThereIsWouldBeRenderedDifferently) {
  const auto last_comes_first = [](const v1::Chat& chat, std::vector<int32_t>* ids) {
    RenderPlainly(chat, ids);
    ids->insert(ids->begin(), chat.messages_size());
    return RpcError();
  };
  const RpcError error = GoOn(last_comes_first);
  EXPECT_EQ(error.code, StatusCode::kFailedPrecondition);
  EXPECT_EQ(error.reason, "SESSION_CANNOT_GO_ON");
  EXPECT_THAT(error.message(), HasSubstr("differently from token 0 on; begin another session"));
  EXPECT_EQ(GoOn(RenderPlainly, -1).reason, "SESSION_CANNOT_GO_ON");
  EXPECT_EQ(GoOn(RenderPlainly, 77).reason, "SESSION_CANNOT_GO_ON");
}

TEST_F(SessionChat, ARenderingsOwnFaultIsTold) {
  const auto fails = [](const v1::Chat& chat, std::vector<int32_t>*) {
    return FieldError("chat", "has " + std::to_string(chat.messages_size()) + " messages");
  };
  EXPECT_EQ(GoOn(fails).code, StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tramontane

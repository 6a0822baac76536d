// Answers of chats that end in special ways, and the ids of their calls: the same whole, streamed and over
// /v1/responses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "server/api/openai/chat.h"
#include "server/api/openai/responses.h"
#include "server/api/shared/json.h"
#include "tests/openai/answer_events.h"

namespace tramontane {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

using Events = std::vector<v1::GenerateResponse>;

constexpr char kCall[] = R"([{"name": "f", "arguments": {"a": 1}}])";
constexpr char kTwoCalls[] = R"([{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}])";
constexpr char kCutCall[] = R"([{"name": "f", "argu)";

RequestContext Context(const std::string& id) { return {.id = id, .created_s = 1700000000}; }

// `fields` besides the messages and a tool: `,"seed":1`.
std::string ChatBody(const std::string& fields, const std::string& content = "Hi") {
  return R"({"messages":[{"role":"user","content":)" + JsonString(content) +
         R"(}],"tools":[{"type":"function","function":{"name":"f"}}])" + fields + "}";
}
std::string ResponsesBody(const std::string& fields, const std::string& content = "Hi") {
  return R"({"input":)" + JsonString(content) + R"(,"tools":[{"type":"function","name":"f"}])" + fields + "}";
}

std::string Answer(ResponseWriter& writer, const Events& events) {
  std::string out = writer.OnEvents(0, {Started()});
  out += writer.OnEvents(0, events);
  return out + writer.Finish();
}

std::string ChatAnswer(const std::string& body, const Events& events, const std::string& id = "r1") {
  GenerationRequest request;
  const auto fault = ParseChatCompletion(body, Context(id), &request);
  EXPECT_FALSE(fault) << fault->message;
  return Answer(*MakeChatWriter(request.answer, request.names), events);
}

std::string ResponsesAnswer(const std::string& body, const Events& events, const std::string& id = "r1") {
  GenerationRequest request;
  const auto fault = ParseResponses(body, Context(id), &request);
  EXPECT_FALSE(fault) << fault->message;
  return Answer(*MakeResponsesWriter(request.answer, request.names), events);
}

Json WholeChoice(const std::string& fields, const Events& events) {
  return Json::parse(ChatAnswer(ChatBody(fields), events))["choices"][0];
}

// What a stream of chunks says, put together.
struct Streamed {
  std::string content;
  std::vector<std::string> called;  // names
  std::vector<std::string> ids;
  std::vector<std::vector<std::string>> fragments;  // of the arguments of each call
  Json finish_reason, stop_reason;
};

Streamed StreamedChat(const std::string& fields, const Events& events, const std::string& content = "Hi") {
  const std::string stream = ChatAnswer(ChatBody(R"(,"stream":true)" + fields, content), events);
  Streamed streamed;
  for (size_t at = stream.find("data: {"); at != std::string::npos; at = stream.find("data: {", at + 1)) {
    const Json choice = Json::parse(stream.substr(at + 6, stream.find('\n', at) - at - 6))["choices"][0];
    const Json& delta = choice["delta"];
    if (delta.contains("content")) streamed.content += delta["content"].get<std::string>();
    for (const Json& call : delta.value("tool_calls", Json::array())) {
      if (call.contains("id")) {
        EXPECT_EQ(call["index"], streamed.called.size());
        EXPECT_EQ(call["type"], "function");
        EXPECT_EQ(call["function"]["arguments"], "");
        streamed.ids.push_back(call["id"]);
        streamed.called.push_back(call["function"]["name"]);
        streamed.fragments.emplace_back();
        continue;
      }
      EXPECT_EQ(call.size(), 2u) << call << ": an index and a function";
      EXPECT_EQ(call["function"]["name"], "") << "Mistral's client wants one";
      streamed.fragments[call["index"].get<size_t>()].push_back(call["function"]["arguments"]);
    }
    if (!choice.value("finish_reason", Json()).is_null()) {
      streamed.finish_reason = choice["finish_reason"];
      streamed.stop_reason = choice["stop_reason"];
    }
  }
  return streamed;
}

// ---- usage --------------------------------------------------------------------------------------

// The usage of an answer or of the last event that has one; {}: none has.
Json UsageIn(const std::string& answer) {
  Json usage = Json::object();
  const auto look = [&usage](Json json) {
    if (json.contains("response")) json = json["response"];
    if (json.value("usage", Json()).is_object()) usage = json["usage"];
  };
  if (answer[0] == '{') look(Json::parse(answer));
  for (size_t at = answer.find("data: {"); at != std::string::npos; at = answer.find("data: {", at + 1)) {
    look(Json::parse(answer.substr(at + 6, answer.find('\n', at) - at - 6)));
  }
  return usage;
}

TEST(ChatAnswer, DiscardedTokensStandInTheUsageWhereThereIsAPolicy) {
  constexpr char kStream[] = R"(,"stream":true)";
  const std::string with_usage = std::string(kStream) + R"(,"stream_options":{"include_usage":true})";
  for (const bool has_policy : {false, true}) {
    Events events = {Said("Hi"), Finished(v1::FINISH_REASON_LENGTH)};
    if (has_policy) events[1].mutable_finished()->mutable_usage()->set_discarded_tokens(7);
    for (const Json& usage :
         {UsageIn(ChatAnswer(ChatBody(""), events)), UsageIn(ChatAnswer(ChatBody(with_usage), events)),
          UsageIn(ResponsesAnswer(ResponsesBody(""), events)),
          UsageIn(ResponsesAnswer(ResponsesBody(kStream), events))}) {
      EXPECT_EQ(usage["total_tokens"], 5);
      EXPECT_EQ(usage.value("discarded_tokens", -1), has_policy ? 7 : -1) << usage;
    }
  }
  // Of all choices together.
  Events events = {Said("a", -1, 0), Said("b", -1, 1), Finished(v1::FINISH_REASON_LENGTH, 0),
                   Finished(v1::FINISH_REASON_LENGTH, 1)};
  events[2].mutable_finished()->mutable_usage()->set_discarded_tokens(7);
  events[3].mutable_finished()->mutable_usage()->set_discarded_tokens(0);
  EXPECT_EQ(UsageIn(ChatAnswer(ChatBody(R"(,"n":2)"), events))["discarded_tokens"], 7);
}

// ---- ends ---------------------------------------------------------------------------------------

TEST(ChatAnswer, ACallIsStreamedAsItComesAFragmentADelta) {
  const Events events = {Said(R"([{"name": "f")", 0),
                         Said(R"(, "arguments": {"a")"),
                         Said(R"(: "é)"),
                         Said(R"("}}, {"name": "g"})"),
                         Said("]"),
                         Finished(v1::FINISH_REASON_STOP)};
  const Streamed streamed = StreamedChat("", events);
  EXPECT_THAT(streamed.called, ElementsAre("f", "g"));
  EXPECT_THAT(streamed.fragments[0], ElementsAre(R"({"a")", R"(: "é)", R"("})"));
  EXPECT_THAT(streamed.fragments[1], ElementsAre("{}"));
  EXPECT_EQ(streamed.content, "");
  EXPECT_EQ(streamed.finish_reason, "tool_calls");
}

TEST(ChatAnswer, UsageAndLogprobsGoWithTheTokensOfCallsAsWithThoseOfText) {
  Events events = {Said("So:", -1), Said(R"([{"name": "f", "arguments": {"a)", 0), Said("\": 1}}]"),
                   Finished(v1::FINISH_REASON_STOP)};
  for (int i = 0; i < 3; ++i) {
    v1::Delta* delta = events[static_cast<size_t>(i)].mutable_delta();
    delta->set_completion_tokens(i + 1);
    delta->add_logprobs()->set_token_bytes(std::to_string(i));
  }
  const std::string stream = ChatAnswer(
      ChatBody(
          R"(,"stream":true,"logprobs":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true})"),
      events);
  std::string tokens, used;
  for (size_t at = stream.find("data: {"); at != std::string::npos; at = stream.find("data: {", at + 1)) {
    const Json chunk = Json::parse(stream.substr(at + 6, stream.find('\n', at) - at - 6));
    if (chunk["choices"].empty()) continue;
    const Json& choice = chunk["choices"][0];
    if (choice["logprobs"].is_object())
      tokens += choice["logprobs"]["content"][0]["token"].get<std::string>();
    if (choice["delta"].contains("tool_calls")) used += chunk["usage"]["completion_tokens"].dump();
  }
  EXPECT_EQ(tokens, "012");
  EXPECT_EQ(used, "223") << "name and fragment, and the other fragment";
}

TEST(ChatAnswer, ACallCutOffStaysInAStreamAndWholeAnswersHaveWholeOnes) {
  for (const v1::FinishReason reason : {v1::FINISH_REASON_LENGTH, v1::FINISH_REASON_STOP_SEQUENCE}) {
    const Events cut = {Said(R"(So:[{"name": "g"}, {"name": "f", "arguments": {"a)", 3), Finished(reason)};
    const Streamed streamed = StreamedChat("", cut);
    EXPECT_THAT(streamed.called, ElementsAre("g", "f"));
    EXPECT_THAT(streamed.fragments[1], ElementsAre(R"({"a)"));
    EXPECT_EQ(streamed.content, "So:");
    EXPECT_EQ(streamed.finish_reason, "length");
    const Json whole = WholeChoice("", cut);
    EXPECT_EQ(whole["message"]["content"], "So:");
    ASSERT_EQ(whole["message"]["tool_calls"].size(), 1u);
    EXPECT_EQ(whole["message"]["tool_calls"][0]["function"]["name"], "g");
    EXPECT_EQ(whole["finish_reason"], "length");
  }
}

TEST(ChatAnswer, ACallThatTheModelGetsWrongIsNoEndByCalls) {
  const Events wrong = {Said(R"([{"name": "f", "arguments": {a: 1}}])", 0), Finished(v1::FINISH_REASON_STOP)};
  EXPECT_EQ(StreamedChat("", wrong).finish_reason, "stop");
  const Json whole = WholeChoice("", wrong);
  EXPECT_EQ(whole["finish_reason"], "stop");
  EXPECT_FALSE(whole["message"].contains("tool_calls"));
}

TEST(ChatAnswer, AForcedCallThatWasCutOffIsNoContentAndNoText) {
  const Events cut = {Said(kCutCall, 0), Finished(v1::FINISH_REASON_LENGTH)};
  for (const char* choice : {R"(,"tool_choice":"required")", R"(,"tool_choice":"any")",
                             R"(,"tool_choice":{"type":"function","function":{"name":"f"}})"}) {
    const Json whole = WholeChoice(choice, cut);
    EXPECT_TRUE(whole["message"]["content"].is_null()) << whole;
    EXPECT_FALSE(whole["message"].contains("tool_calls")) << whole;
    EXPECT_EQ(whole["finish_reason"], "length");
    const Streamed streamed = StreamedChat(choice, cut);
    EXPECT_EQ(streamed.content, "");
    EXPECT_EQ(streamed.finish_reason, "length");
  }
  for (const char* stream : {"", R"(,"stream":true)"}) {
    const std::string answer =
        ResponsesAnswer(ResponsesBody(std::string(R"(,"tool_choice":"required")") + stream), cut);
    EXPECT_THAT(answer, Not(HasSubstr("argu\"")));
    EXPECT_THAT(answer, Not(HasSubstr(R"([{\"name\")")));
    EXPECT_THAT(answer, HasSubstr(R"("incomplete_details":{"reason":"max_output_tokens"})"));
  }
}

TEST(ChatAnswer, OfForcedCallsThoseBeforeTheCutAreShown) {
  const Events cut = {Said(R"([{"name": "f", "arguments": {}}, {"name": "g", "ar)", 0),
                      Finished(v1::FINISH_REASON_LENGTH)};
  const Json whole = WholeChoice(R"(,"tool_choice":"required")", cut);
  EXPECT_TRUE(whole["message"]["content"].is_null());
  EXPECT_EQ(whole["message"]["tool_calls"].size(), 1u);
  EXPECT_EQ(whole["finish_reason"], "length");
}

TEST(ChatAnswer, AChoiceThatCalledAndWasCutOffEndsByLength) {
  for (const v1::FinishReason reason : {v1::FINISH_REASON_LENGTH, v1::FINISH_REASON_TIME_LIMIT}) {
    const Events events = {Said(kCall, 0), Finished(reason)};
    EXPECT_EQ(WholeChoice("", events)["finish_reason"], "length");
    EXPECT_EQ(StreamedChat("", events).finish_reason, "length");
  }
  const Events whole = {Said(kCall, 0), Finished(v1::FINISH_REASON_STOP)};
  EXPECT_EQ(WholeChoice("", whole)["finish_reason"], "tool_calls");
  EXPECT_EQ(StreamedChat("", whole).finish_reason, "tool_calls");
}

TEST(ChatAnswer, WithoutParallelToolCallsOnlyTheFirstIsPassedOn) {
  const Events two = {Said(kTwoCalls, 0), Finished(v1::FINISH_REASON_STOP)};
  const std::string one = R"(,"parallel_tool_calls":false)";
  EXPECT_EQ(WholeChoice(one, two)["message"]["tool_calls"].size(), 1u);
  EXPECT_THAT(StreamedChat(one, two).called, ElementsAre("f"));
  EXPECT_EQ(Json::parse(ResponsesAnswer(ResponsesBody(one), two))["output"].size(), 1u);

  EXPECT_EQ(WholeChoice("", two)["message"]["tool_calls"].size(), 2u);
  EXPECT_THAT(StreamedChat("", two).called, ElementsAre("f", "g"));
  EXPECT_EQ(Json::parse(ResponsesAnswer(ResponsesBody(""), two))["output"].size(), 2u);
}

TEST(ChatAnswer, TheModelsOwnEndIsNoStopReasonAndAStopTokenIs) {
  v1::GenerateResponse eos = Finished(v1::FINISH_REASON_STOP);
  eos.mutable_finished()->set_stop_token_id(2);
  EXPECT_TRUE(WholeChoice("", {Said("a"), eos})["stop_reason"].is_null());
  EXPECT_TRUE(StreamedChat("", {Said("a"), eos}).stop_reason.is_null());

  v1::GenerateResponse token = Finished(v1::FINISH_REASON_STOP_SEQUENCE);
  token.mutable_finished()->set_stop_token_id(17);
  EXPECT_EQ(WholeChoice("", {Said("a"), token})["stop_reason"], 17);
  EXPECT_EQ(StreamedChat("", {Said("a"), token}).stop_reason, 17);
}

TEST(ChatAnswer, ATokenWithoutTextIsListedByItsPieceAndHasNoBytes) {
  v1::GenerateResponse said = Said("a");
  v1::TokenLogprob* end = said.mutable_delta()->add_logprobs();
  end->set_token_id(2);
  end->set_piece("</s>");
  v1::TopLogprob* top = end->add_top();
  top->set_token_id(3);
  top->set_piece("[INST]");
  const Json listed =
      WholeChoice(R"(,"logprobs":true,"top_logprobs":1)", {said, Finished(v1::FINISH_REASON_STOP)});
  const Json& token = listed["logprobs"]["content"][0];
  EXPECT_EQ(token["token"], "</s>");
  EXPECT_TRUE(token["bytes"].is_null());
  EXPECT_EQ(token["top_logprobs"][0]["token"], "[INST]");
}

// ---- ids of calls -------------------------------------------------------------------------------

// The ids of the calls that an answer makes, by each of the ways to ask for it.
std::vector<std::vector<std::string>> IdsEachWay(const std::string& fields, const std::string& request_id,
                                                 const std::string& content = "Hi") {
  const Events two = {Said(kTwoCalls, 0), Finished(v1::FINISH_REASON_STOP)};
  std::vector<std::vector<std::string>> ids(3);
  const Json whole = Json::parse(ChatAnswer(ChatBody(fields, content), two, request_id));
  for (const Json& call : whole["choices"][0]["message"]["tool_calls"]) ids[0].push_back(call["id"]);
  ids[1] = StreamedChat(fields, two, content).ids;
  const Json response = Json::parse(ResponsesAnswer(ResponsesBody(fields, content), two, request_id));
  for (const Json& item : response["output"]) ids[2].push_back(item["call_id"]);
  return ids;
}

TEST(CallIds, TheSameRequestHasTheSameIdsHoweverItIsAsked) {
  for (const char* fields : {R"(,"temperature":0)", R"(,"temperature":0.7,"seed":5)"}) {
    const auto ids = IdsEachWay(fields, "r1");
    EXPECT_EQ(IdsEachWay(fields, "another"), ids) << fields;
    EXPECT_EQ(ids[1], ids[0]) << fields;
    EXPECT_EQ(ids[2], ids[0]) << fields;
    ASSERT_EQ(ids[0].size(), 2u);
    EXPECT_NE(ids[0][0], ids[0][1]);
    for (const std::string& id : ids[0]) EXPECT_THAT(id, MatchesRegex("[a-zA-Z0-9]{9}"));
  }
}

TEST(CallIds, AnotherSeedConversationOrRequestHasOthers) {
  const auto ids = IdsEachWay(R"(,"seed":5)", "r1")[0];
  EXPECT_NE(IdsEachWay(R"(,"seed":6)", "r1")[0], ids);
  EXPECT_NE(IdsEachWay(R"(,"temperature":0)", "r1")[0], ids);
  EXPECT_NE(IdsEachWay(R"(,"seed":5)", "r1", "Hello")[0], ids)
      << "the next turn of a conversation must not repeat the ids of this one";
  EXPECT_NE(IdsEachWay("", "r1")[0], IdsEachWay("", "r2")[0]) << "nothing makes these answers the same";
}

TEST(CallIds, ChoicesOfOneAnswerDoNotShareThem) {
  Events events;
  for (int32_t choice = 0; choice < 2; ++choice) {
    events.push_back(Said(kCall, 0));
    events.back().mutable_delta()->set_choice(choice);
  }
  for (int32_t choice = 0; choice < 2; ++choice) {
    events.push_back(Finished(v1::FINISH_REASON_STOP, choice));
  }
  const Json whole = Json::parse(ChatAnswer(ChatBody(R"(,"n":2,"seed":5)"), events));
  const auto id = [&](int choice) { return whole["choices"][choice]["message"]["tool_calls"][0]["id"]; };
  EXPECT_NE(id(0), id(1));
}

}  // namespace
}  // namespace tramontane

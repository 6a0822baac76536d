#include "server/api/openai/responses.h"
#include "tests/openai/answer_events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tramontane {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

RequestContext Context() {
  RequestContext context;
  context.id = "1";
  context.created_s = 1700000000;
  return context;
}

GenerationRequest Parsed(const std::string& body) {
  GenerationRequest request;
  const auto fault = ParseResponses(body, Context(), &request);
  EXPECT_FALSE(fault) << fault->message;
  return request;
}

std::string FaultOf(const std::string& body) {
  GenerationRequest request;
  const auto fault = ParseResponses(body, Context(), &request);
  return fault ? fault->param : "";
}

// ---- requests -----------------------------------------------------------------------------------

TEST(Responses, ACacheSaltTravels) {
  GenerationRequest request;
  ASSERT_FALSE(ParseResponses(R"({"input": "Hi", "cache_salt": "mine"})", Context(), &request));
  EXPECT_EQ(request.calls[0].cache_salt(), "mine");
}

TEST(ResponsesRequest, AContextPolicyIsTheChats) {
  const GenerationRequest request =
      Parsed(R"({"input": "Hi", "context_policy": {"type": "reevaluate", "n_ctx": 64, "n_discard": 9}})");
  EXPECT_EQ(request.calls[0].context_policy().type(), v1::ContextPolicy::TYPE_REEVALUATE);
  EXPECT_EQ(request.calls[0].context_policy().n_ctx(), 64);
  EXPECT_FALSE(request.calls[0].context_policy().has_n_keep());
  EXPECT_EQ(request.calls[0].context_policy().n_discard(), 9);
  EXPECT_EQ(request.names[0].NameOf("context_policy.n_keep"), "context_policy.n_keep");
  EXPECT_FALSE(Parsed(R"({"input": "Hi"})").calls[0].has_context_policy());
  EXPECT_EQ(FaultOf(R"({"input": "Hi", "context_policy": {"type": "ring"}})"), "context_policy.type");
  EXPECT_EQ(FaultOf(R"({"input": "Hi", "context_policy": {"type": "sinks", "n_sinks": 4}})"),
            "context_policy.n_sinks");
}

TEST(ResponsesRequest, ATextIsAUsersMessageBehindTheInstructions) {
  const GenerationRequest request =
      Parsed(R"({"model": "m", "input": "Hi", "instructions": "Be kind", "max_output_tokens": 7})");
  ASSERT_EQ(request.calls[0].chat().messages_size(), 2);
  EXPECT_EQ(request.calls[0].chat().messages(0).role(), v1::ROLE_SYSTEM);
  EXPECT_EQ(request.calls[0].chat().messages(0).content(), "Be kind");
  EXPECT_EQ(request.calls[0].chat().messages(1).role(), v1::ROLE_USER);
  EXPECT_EQ(request.calls[0].chat().messages(1).content(), "Hi");
  EXPECT_EQ(request.calls[0].stopping().max_tokens(), 7);
  EXPECT_EQ(request.calls[0].model(), "m");
}

TEST(ResponsesRequest, ItemsAreMessagesAndCallsInARowAreOne) {
  const GenerationRequest request = Parsed(R"({"input": [
      {"role": "developer", "content": "Be kind"},
      {"type": "message", "role": "user",
       "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
      {"type": "reasoning", "id": "rs_1", "summary": []},
      {"type": "function_call", "id": "fc_1", "call_id": "123456789", "name": "f", "arguments": "{}"},
      {"type": "function_call", "call_id": "call_other", "name": "g", "arguments": {"x": 1}},
      {"type": "function_call_output", "call_id": "123456789", "output": "one"},
      {"type": "function_call_output", "call_id": "call_other", "output": [{"type": "input_text", "text": "two"}]},
      {"role": "assistant", "content": [{"type": "output_text", "text": "Done.", "annotations": []}]},
      {"role": "user", "content": "Thanks"}]})");
  const v1::Chat& chat = request.calls[0].chat();
  ASSERT_EQ(chat.messages_size(), 7);
  EXPECT_EQ(chat.messages(0).role(), v1::ROLE_SYSTEM);
  ASSERT_EQ(chat.messages(1).parts_size(), 2);
  EXPECT_EQ(chat.messages(1).parts(1).text(), "b");
  ASSERT_EQ(chat.messages(2).tool_calls_size(), 2);
  EXPECT_FALSE(chat.messages(2).has_content());
  EXPECT_EQ(chat.messages(2).tool_calls(0).id(), "123456789");
  EXPECT_EQ(chat.messages(2).tool_calls(1).arguments_json(), "{\"x\":1}");
  EXPECT_EQ(chat.messages(2).tool_calls(1).id().size(), 9u) << "a foreign id";
  EXPECT_EQ(chat.messages(3).tool_call_id(), "123456789");
  EXPECT_EQ(chat.messages(4).tool_call_id(), chat.messages(2).tool_calls(1).id());
  EXPECT_EQ(chat.messages(4).parts(0).text(), "two");
  EXPECT_EQ(chat.messages(5).role(), v1::ROLE_ASSISTANT);
}

TEST(ResponsesRequest, AnAnswerIsTakenBackTextBesideCallsAndEmptyTextIncluded) {
  const GenerationRequest request = Parsed(R"({"input": [
      {"role": "user", "content": "a"},
      {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "", "annotations": []}]},
      {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look.", "logprobs": []}]},
      {"type": "function_call", "call_id": "123456789", "name": "f", "arguments": "{}"},
      {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": ", {\"na"}]},
      {"type": "function_call_output", "call_id": "123456789", "output": ""},
      {"role": "system", "content": "Be brief"}]})");
  const v1::Chat& chat = request.calls[0].chat();
  ASSERT_EQ(chat.messages_size(), 7);
  ASSERT_EQ(chat.messages(1).parts_size(), 1);
  EXPECT_EQ(chat.messages(1).parts(0).text(), "");
  EXPECT_EQ(chat.messages(2).parts(0).text(), "I look.");
  EXPECT_EQ(chat.messages(3).tool_calls_size(), 1);
  EXPECT_EQ(chat.messages(4).parts(0).text(), ", {\"na");
  EXPECT_EQ(chat.messages(6).role(), v1::ROLE_SYSTEM);
}

TEST(ResponsesRequest, ToolsAndTheirChoiceGoToTheChat) {
  const std::string tools =
      R"("tools": [{"type": "function", "name": "f", "strict": true, "parameters": {"type": "object"}}])";
  const GenerationRequest request = Parsed(R"({"input": "Hi", "parallel_tool_calls": false, )" + tools +
                                           R"(, "tool_choice": {"type": "function", "name": "f"}})");
  EXPECT_EQ(request.calls[0].chat().tools(0).parameters_json(), R"({"type":"object"})");
  EXPECT_TRUE(request.calls[0].chat().tools(0).strict());
  EXPECT_EQ(request.calls[0].chat().tool_choice().mode(), v1::TOOL_CHOICE_MODE_NAMED);
  EXPECT_EQ(request.calls[0].chat().tool_choice().name(), "f");
  EXPECT_TRUE(request.answer.tools);
  EXPECT_TRUE(request.answer.one_tool_call);
  EXPECT_FALSE(Parsed(R"({"input": "Hi", "tool_choice": "none", )" + tools + "}").answer.tools);
  const GenerationRequest some = Parsed(R"({"input": "Hi", "thinking_token_budget": 7, )" + tools +
                                        R"(, "tool_choice": {"type": "allowed_tools", "mode": "auto",
                                              "tools": [{"type": "function", "name": "f"}]}})");
  EXPECT_EQ(some.calls[0].chat().tool_choice().mode(), v1::TOOL_CHOICE_MODE_AUTO);
  EXPECT_EQ(some.calls[0].chat().tool_choice().allowed(0), "f");
  EXPECT_EQ(some.names[0].NameOf("chat.tool_choice.allowed[0]"), "tool_choice.tools[0]");
  EXPECT_EQ(some.calls[0].chat().thinking_token_budget(), 7);
  EXPECT_EQ(
      FaultOf(R"({"input": "Hi", "tool_choice": {"type": "allowed_tools", "mode": "auto"}, )" + tools + "}"),
      "tool_choice.tools");
}

TEST(ResponsesRequest, WhatWasThoughtGoesBackInFrontOfWhatItWasThoughtFor) {
  const GenerationRequest request = Parsed(R"({"input": [
      {"role": "user", "content": "a"},
      {"type": "reasoning", "id": "rs_1", "summary": [],
       "content": [{"type": "reasoning_text", "text": "look "}, {"type": "reasoning_text", "text": "up"}]},
      {"type": "function_call", "call_id": "123456789", "name": "f", "arguments": "{}"},
      {"type": "function_call_output", "call_id": "123456789", "output": "one"},
      {"type": "reasoning", "id": "rs_2", "summary": [], "content": [{"type": "reasoning_text", "text": "so"}]},
      {"role": "assistant", "content": "Done."},
      {"type": "reasoning", "id": "rs_3", "summary": [{"type": "summary_text", "text": "left out"}], "content": null},
      {"role": "assistant", "content": "Really."},
      {"role": "user", "content": "Thanks"}]})");
  const v1::Chat& chat = request.calls[0].chat();
  ASSERT_EQ(chat.messages_size(), 6);
  EXPECT_EQ(chat.messages(1).parts(0).thinking().text(), "look up");
  EXPECT_EQ(chat.messages(1).tool_calls_size(), 1);
  EXPECT_EQ(chat.messages(3).parts(0).thinking().text(), "so");
  EXPECT_EQ(chat.messages(3).parts(1).text(), "Done.");
  EXPECT_EQ(chat.messages(4).parts_size(), 0);
  EXPECT_EQ(chat.messages(4).content(), "Really.");
}

TEST(ResponsesRequest, TheReasoningEffortIsTheChats) {
  const GenerationRequest request = Parsed(R"({"input": "Hi", "reasoning": {"effort": "high"}})");
  EXPECT_EQ(request.calls[0].chat().reasoning_effort(), "high");
  EXPECT_EQ(request.names[0].NameOf("chat.reasoning_effort"), "reasoning.effort");
}

TEST(ResponsesRequest, AFormatIsAConstraintUnlessACallIsAskedFor) {
  const std::string format =
      R"("text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}})";
  EXPECT_EQ(Parsed(R"({"input": "Hi", )" + format + "}").calls[0].constraint().json_schema(),
            R"({"type":"object"})");
  EXPECT_TRUE(Parsed(R"({"input": "Hi", "text": {"format": {"type": "json_object"}}})")
                  .calls[0]
                  .constraint()
                  .json_object());
  const std::string tools = R"("tools": [{"type": "function", "name": "f"}], "tool_choice": "required")";
  EXPECT_FALSE(Parsed(R"({"input": "Hi", )" + format + ", " + tools + "}").calls[0].has_constraint());
}

TEST(ResponsesRequest, WhatNeedsAMemoryIsRefusedAndStoringIsNot) {
  EXPECT_EQ(FaultOf(R"({"input": "Hi", "previous_response_id": "resp_1"})"), "previous_response_id");
  EXPECT_EQ(FaultOf(R"({"input": "Hi", "conversation": "conv_1"})"), "conversation");
  EXPECT_EQ(FaultOf(R"({"input": "Hi", "background": true})"), "background");
  EXPECT_EQ(FaultOf(R"({"input": [{"type": "item_reference", "id": "msg_1"}]})"), "input[0].type");
  EXPECT_EQ(FaultOf(R"({"input": "Hi", "store": true, "previous_response_id": null, "background": false})"),
            "");
}

TEST(ResponsesRequest, NamesOfOtherEndpointsAreRefusedWithTheNameToUse) {
  const auto message = [](const std::string& fields) {
    GenerationRequest request;
    return ParseResponses(R"({"input": "Hi", )" + fields + "}", Context(), &request)
        .value_or(ApiError{})
        .message;
  };
  EXPECT_THAT(message(R"("max_tokens": 5)"), HasSubstr("max_tokens: is 5; use max_output_tokens"));
  EXPECT_THAT(message(R"("response_format": {"type": "json_object"})"), HasSubstr("use text.format"));
  EXPECT_THAT(message(R"("structured_outputs": {"regex": "a"})"), HasSubstr("use text.format"));
  EXPECT_THAT(message(R"("n": 2)"), HasSubstr("n: is 2; a response is one answer"));
  EXPECT_THAT(message(R"("messages": [])"), HasSubstr("use input"));
  EXPECT_THAT(message(R"("temprature": 1)"), HasSubstr("the nearest is \"temperature\""));
  EXPECT_EQ(message(R"("n": 1, "user": "me")"), "");
}

TEST(ResponsesRequest, WhatCodexSaysOfItselfChangesNothing) {
  EXPECT_THAT(Parsed(R"({"input": "Hi", "client_metadata": {"session": "x"}})").ignored,
              ElementsAre("client_metadata"));
}

TEST(ResponsesRequest, TruncationAutoHoldsWhileTheInputFits) {
  EXPECT_EQ(Parsed(R"({"input": "Hi", "truncation": "auto"})").answer.repeated["truncation"], "auto");
  EXPECT_EQ(Parsed(R"({"input": "Hi"})").answer.repeated["truncation"], "disabled");
  EXPECT_EQ(FaultOf(R"({"input": "Hi", "truncation": "all"})"), "truncation");
}

TEST(ResponsesRequest, WhatComesBackWithTheAnswerIsBounded) {
  const std::string text = "\"" + std::string(70'000, 'a') + "\"";
  EXPECT_EQ(FaultOf(R"({"input": "Hi", "metadata": {"a": )" + text + "}}"), "metadata");
  EXPECT_EQ(FaultOf(R"({"input": "Hi", "text": {"format": {"type": "text", "name": )" + text + "}}}"),
            "text");
}

TEST(ResponsesRequest, FaultsNameTheirPlace) {
  EXPECT_EQ(FaultOf("{}"), "input");
  EXPECT_EQ(FaultOf(R"({"input": []})"), "input");
  EXPECT_EQ(FaultOf(R"({"input": [{"role": "user"}]})"), "input[0].content");
  EXPECT_EQ(FaultOf(R"({"input": [{"content": "a"}]})"), "input[0].role");
  EXPECT_EQ(FaultOf(R"({"input": [{"role": "user", "content": [{"type": "input_image"}]}]})"),
            "input[0].content[0].type");
  EXPECT_EQ(FaultOf(R"({"input": [{"role": "user", "content": ["x"]}]})"), "input[0].content[0]");
  EXPECT_EQ(FaultOf(R"({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]})"),
            "input[0].call_id");
  EXPECT_EQ(FaultOf(R"({"input": "Hi", "tools": [{"type": "web_search"}]})"), "tools[0].type");
  EXPECT_EQ(FaultOf(R"({"input": "Hi", "tool_choice": "required"})"), "tool_choice");
  EXPECT_EQ(FaultOf(R"({"input": "Hi", "temperature": -1})"), "temperature");
}

TEST(ResponsesRequest, TheServersFaultsAreSaidInItsWords) {
  const GenerationRequest request =
      Parsed(R"({"instructions": "Be kind", "input": [{"role": "user", "content": "a"}]})");
  EXPECT_EQ(request.names[0].NameOf("chat.messages[0]"), "instructions");
  EXPECT_EQ(request.names[0].NameOf("chat.messages[1].content"), "input[0].content");
  EXPECT_EQ(request.names[0].NameOf("stopping.max_tokens"), "max_output_tokens");
  EXPECT_EQ(request.names[0].NameOf("chat.tool_choice"), "tool_choice");
  EXPECT_EQ(request.names[0].NameOf("chat.tools[0].parameters"), "tools[0].parameters");
}

// ---- answers ------------------------------------------------------------------------------------

std::unique_ptr<ResponseWriter> Writer(const std::string& body) {
  const GenerationRequest request = Parsed(body);
  return MakeResponsesWriter(request.answer, request.names);
}

std::string Answer(const std::string& body, const std::vector<v1::GenerateResponse>& events) {
  const auto writer = Writer(body);
  std::string out;
  for (const v1::GenerateResponse& event : events) out += writer->OnEvents(0, {event});
  return out + writer->Finish();
}

struct Event {
  std::string name;
  Json data;
};

// The events of a stream; their numbers are checked here.
std::vector<Event> Events(const std::string& stream) {
  std::vector<Event> events;
  size_t at = 0;
  while (at < stream.size()) {
    const size_t line = stream.find('\n', at), end = stream.find("\n\n", at);
    if (end == std::string::npos || stream.compare(at, 7, "event: ") != 0) {
      ADD_FAILURE() << "not an event: " << stream.substr(at);
      break;
    }
    const std::string name = stream.substr(at + 7, line - at - 7);
    const Json data = Json::parse(stream.substr(line + 7, end - line - 7));  // behind "data: "
    EXPECT_EQ(data["type"], name);
    EXPECT_EQ(data["sequence_number"], events.size());
    events.push_back({name, data});
    at = end + 2;
  }
  return events;
}

std::vector<std::string> Names(const std::vector<Event>& events) {
  std::vector<std::string> names;
  for (const Event& event : events) names.push_back(event.name);
  return names;
}

TEST(ResponsesAnswer, WholeIsOpenAisObject) {
  const Json answer =
      Json::parse(Answer(R"({"input": "Hi", "metadata": {"a": "b"}})",
                         {Started("breeze"), Said("Hel"), Said("lo"), Finished(v1::FINISH_REASON_STOP)}));
  const auto fault = FindFault(ResponsesAnswerShape(), answer, "");
  EXPECT_FALSE(fault) << fault->path << " " << fault->text;
  EXPECT_EQ(answer["id"], "resp_1");
  EXPECT_EQ(answer["object"], "response");
  EXPECT_EQ(answer["created_at"], 1700000000);
  EXPECT_EQ(answer["status"], "completed");
  EXPECT_EQ(answer["model"], "breeze");
  EXPECT_TRUE(answer["error"].is_null());
  EXPECT_EQ(answer["metadata"]["a"], "b");
  EXPECT_EQ(answer["store"], false);
  EXPECT_EQ(answer["tool_choice"], "auto");
  EXPECT_EQ(answer["output"].dump(),
            R"([{"type":"message","id":"msg_1-0","status":"completed","role":"assistant","content":[)"
            R"({"type":"output_text","text":"Hello","annotations":[],"logprobs":[]}]}])");
  EXPECT_EQ(answer["usage"].dump(),
            R"({"input_tokens":3,"input_tokens_details":{"cached_tokens":0,"cache_write_tokens":0},)"
            R"("output_tokens":2,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":5})");
}

TEST(ResponsesAnswer, TextStreamsInOpenAisEvents) {
  const std::vector<Event> events =
      Events(Answer(R"({"input": "Hi", "stream": true})",
                    {Started("breeze"), Said("Hel"), Said("lo"), Finished(v1::FINISH_REASON_STOP)}));
  EXPECT_THAT(Names(events),
              ElementsAre("response.created", "response.in_progress", "response.output_item.added",
                          "response.content_part.added", "response.output_text.delta",
                          "response.output_text.delta", "response.output_text.done",
                          "response.content_part.done", "response.output_item.done", "response.completed"));
  EXPECT_EQ(events[0].data["response"]["status"], "in_progress");
  EXPECT_EQ(events[4].data.dump(),
            R"({"type":"response.output_text.delta","item_id":"msg_1-0","output_index":0,"content_index":0,)"
            R"("delta":"Hel","logprobs":[],"sequence_number":4})");
  EXPECT_EQ(events[6].data["text"], "Hello");
  EXPECT_EQ(events[9].data["response"]["output"][0]["content"][0]["text"], "Hello");
}

constexpr char kToolBody[] =
    R"({"input": "Hi", "stream": true, "tools": [{"type": "function", "name": "f"}]})";

TEST(ResponsesAnswer, CallsAreItemsOfTheirOwnBehindTheText) {
  const std::vector<Event> events = Events(
      Answer(kToolBody, {Started("breeze"), Said("Sure.[", 5), Said(R"({"name": "f", "arguments": {"a)"),
                         Said(R"(": 1}}])"), Finished(v1::FINISH_REASON_STOP)}));
  EXPECT_THAT(
      Names(events),
      ElementsAre("response.created", "response.in_progress", "response.output_item.added",
                  "response.content_part.added", "response.output_text.delta", "response.output_text.done",
                  "response.content_part.done", "response.output_item.done", "response.output_item.added",
                  "response.function_call_arguments.delta", "response.function_call_arguments.delta",
                  "response.function_call_arguments.done", "response.output_item.done",
                  "response.completed"));
  Json call = events[8].data["item"];
  EXPECT_EQ(call["name"], "f");
  EXPECT_EQ(call["arguments"], "");
  EXPECT_EQ(call["status"], "in_progress");
  EXPECT_EQ(call["call_id"].get<std::string>().size(), 9u);
  EXPECT_EQ(events[9].data.dump(),
            R"({"type":"response.function_call_arguments.delta","item_id":"fc_1-1","output_index":1,)"
            R"("delta":"{\"a","sequence_number":9})");
  EXPECT_EQ(events[10].data["delta"], R"(": 1})");
  EXPECT_EQ(events[11].data["arguments"], R"({"a": 1})");
  call["arguments"] = R"({"a": 1})";
  call["status"] = "completed";
  EXPECT_EQ(events[12].data["item"], call);
  EXPECT_EQ(events[13].data["response"]["output"].size(), 2u);
  EXPECT_EQ(events[13].data["response"]["output"][1], call);
}

v1::GenerateResponse Thought(const std::string& reasoning, const std::string& text = "") {
  v1::GenerateResponse event = Said(text);
  event.mutable_delta()->set_reasoning(reasoning);
  return event;
}

TEST(ResponsesAnswer, ThinkingIsAnItemOfItsOwnBeforeTheText) {
  const std::vector<Event> events = Events(
      Answer(R"({"input": "Hi", "stream": true})",
             {Started("breeze"), Thought("h"), Thought("m", "Yes"), Finished(v1::FINISH_REASON_STOP)}));
  EXPECT_THAT(
      Names(events),
      ElementsAre("response.created", "response.in_progress", "response.output_item.added",
                  "response.content_part.added", "response.reasoning_text.delta",
                  "response.reasoning_text.delta", "response.reasoning_text.done",
                  "response.content_part.done", "response.output_item.done", "response.output_item.added",
                  "response.content_part.added", "response.output_text.delta", "response.output_text.done",
                  "response.content_part.done", "response.output_item.done", "response.completed"));
  EXPECT_EQ(
      events[5].data.dump(),
      R"({"type":"response.reasoning_text.delta","item_id":"rs_1-0","output_index":0,"content_index":0,)"
      R"("delta":"m","sequence_number":5})");
  EXPECT_EQ(events[6].data["text"], "hm");
  const Json response = events.back().data["response"];
  const auto fault = FindFault(ResponsesAnswerShape(), response, "");
  EXPECT_FALSE(fault) << fault->path << " " << fault->text;
  EXPECT_EQ(response["output"][0].dump(),
            R"({"type":"reasoning","id":"rs_1-0","status":"completed","summary":[],"content":[)"
            R"({"type":"reasoning_text","text":"hm"}]})");
  EXPECT_EQ(response["output"][1]["content"][0]["text"], "Yes");
}

TEST(ResponsesAnswer, ACallCutOffStaysInAStreamAsAnIncompleteItem) {
  const std::vector<v1::GenerateResponse> said = {
      Started("breeze"), Said(R"([{"name": "f"}, {"name": "f", "arguments": {"a)", 0),
      Finished(v1::FINISH_REASON_LENGTH)};
  const std::vector<Event> events = Events(Answer(kToolBody, said));
  EXPECT_EQ(events.back().name, "response.incomplete");
  EXPECT_EQ(events[events.size() - 2].name, "response.output_item.done");
  const Json response = events.back().data["response"];
  EXPECT_EQ(response["incomplete_details"]["reason"], "max_output_tokens");
  ASSERT_EQ(response["output"].size(), 2u);
  EXPECT_EQ(response["output"][0]["status"], "completed");
  EXPECT_EQ(response["output"][1]["status"], "incomplete");
  EXPECT_EQ(response["output"][1]["arguments"], R"({"a)");
  EXPECT_EQ(response["output"][1], events[events.size() - 2].data["item"]);

  const Json whole =
      Json::parse(Answer(R"({"input": "Hi", "tools": [{"type": "function", "name": "f"}]})", said));
  EXPECT_EQ(whole["status"], "incomplete");
  ASSERT_EQ(whole["output"].size(), 1u) << "whole calls only";
  EXPECT_EQ(whole["output"][0]["arguments"], "{}");
  EXPECT_FALSE(FindFault(ResponsesAnswerShape(), whole, ""));
}

// The item of the call is as it was begun, and stands where it did.
TEST(ResponsesAnswer, AThoughtAmidACallIsAnItemBehindIt) {
  const std::vector<Event> events =
      Events(Answer(kToolBody, {Started("breeze"), Said(R"([{"name": "f", "arguments": {"a":)", 0),
                                Thought("hm"), Said("1}}]"), Finished(v1::FINISH_REASON_STOP)}));
  const Json output = events.back().data["response"]["output"];
  ASSERT_EQ(output.size(), 2u);
  EXPECT_EQ(output[0]["arguments"], R"({"a":1})");
  EXPECT_EQ(output[1]["content"][0]["text"], "hm");
  for (const Event& event : events) {
    if (event.name != "response.output_item.done") continue;
    EXPECT_EQ(event.data["item"], output[event.data["output_index"].get<size_t>()]);
  }
}

TEST(ResponsesAnswer, AnEmptyOneIsAMessageWithoutText) {
  const Json answer = Json::parse(
      Answer(R"({"input": "Hi"})", {Started("breeze"), Said(""), Finished(v1::FINISH_REASON_STOP)}));
  ASSERT_EQ(answer["output"].size(), 1u);
  EXPECT_EQ(answer["output"][0]["content"][0]["text"], "");
}

TEST(ResponsesAnswer, AFailureEndsTheStreamWithItsReason) {
  const auto writer = Writer(R"({"input": "Hi", "stream": true})");
  std::string stream = writer->OnEvents(0, {Started("breeze"), Said("Hel")});
  ApiError error;
  error.message = "the device is lost";
  stream += writer->Fail(error);
  const std::vector<Event> events = Events(stream);
  EXPECT_EQ(events[events.size() - 2].name, "error");
  EXPECT_THAT(events[events.size() - 2].data["message"].get<std::string>(), HasSubstr("device"));
  EXPECT_EQ(events.back().name, "response.failed");
  EXPECT_EQ(events.back().data["response"]["error"]["message"], "the device is lost");
}

}  // namespace
}  // namespace tramontane

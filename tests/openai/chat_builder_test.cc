// What every dialect says of a chat in the same way: messages, calls, tools and their choice, and formats.
#include "server/api/shared/chat_builder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "server/api/openai/chat.h"
#include "server/api/openai/request_shapes.h"
#include "server/api/openai/responses.h"
#include "server/api/shared/output_constraint.h"

namespace tramontane {
namespace {

using ::testing::HasSubstr;

class ChatBuilderTest : public ::testing::Test {
 protected:
  void Say(v1::Role role, const Json& content, const std::string& field) {
    builder_.AddMessage({.role = role, .content = &content}, field);
  }
  void Call(const std::string& id, const std::string& field) {
    const Json name = "f", arguments = {{"a", 1}};
    builder_.AddCall({.id = id, .name = name, .arguments = &arguments}, field);
  }
  void AddTool() {
    const Json name = "f";
    builder_.AddTool({.name = name});
  }

  v1::Chat chat_;
  FieldNames names_{StandardShapes().responses};  // whose table has no list of messages
  ChatBuilder builder_{&chat_, &names_};
};

TEST_F(ChatBuilderTest, CallsAreOneMessageWithWhatTheyFollow) {
  Say(v1::ROLE_ASSISTANT, "I look.", "input[0]");
  Call("123456789", "input[0]");
  Call("call_other", "input[0]");
  ASSERT_EQ(chat_.messages_size(), 1);
  EXPECT_EQ(chat_.messages(0).content(), "I look.");
  ASSERT_EQ(chat_.messages(0).tool_calls_size(), 2);
  EXPECT_EQ(chat_.messages(0).tool_calls(0).id(), "123456789");
  EXPECT_EQ(chat_.messages(0).tool_calls(1).id().size(), 9u) << "a foreign id";
  EXPECT_EQ(chat_.messages(0).tool_calls(0).arguments_json(), R"({"a":1})");
}

TEST_F(ChatBuilderTest, BehindTheirEndCallsAreAMessageOfTheirOwn) {
  Say(v1::ROLE_USER, "Hi", "input[0]");
  builder_.EndCalls();
  Call("123456789", "input[1]");
  Call("123456780", "input[2]");
  builder_.EndCalls();
  Call("123456781", "input[4]");
  ASSERT_EQ(chat_.messages_size(), 3);
  EXPECT_EQ(chat_.messages(1).role(), v1::ROLE_ASSISTANT);
  EXPECT_FALSE(chat_.messages(1).has_content());
  EXPECT_EQ(chat_.messages(1).tool_calls_size(), 2);
  EXPECT_EQ(names_.NameOf("chat.messages[2].tool_calls[0]"), "input[4].tool_calls[0]");
}

TEST_F(ChatBuilderTest, AResultBelongsToACallWhateverItsIdLooksLike) {
  Call("call_x", "input[0]");
  const Json id = "call_x", name = "f", content = "3";
  builder_.AddMessage({.role = v1::ROLE_TOOL, .content = &content, .tool_call_id = &id, .tool_name = &name},
                      "input[1]");
  EXPECT_EQ(chat_.messages(1).tool_call_id(), chat_.messages(0).tool_calls(0).id());
  EXPECT_EQ(chat_.messages(1).name(), "f");
}

TEST_F(ChatBuilderTest, OnlyWhatLiesElsewhereIsRenamed) {
  FieldNames names(StandardShapes().chat);
  v1::Chat chat;
  ChatBuilder builder(&chat, &names);
  const Json text = "Hi";
  builder.AddMessage({.role = v1::ROLE_USER, .content = &text}, "messages[0]");
  EXPECT_EQ(names.NameOf("chat.messages[0].content"), "messages[0].content");
  builder.AddMessage({.role = v1::ROLE_USER, .content = &text}, "elsewhere");
  EXPECT_EQ(names.NameOf("chat.messages[1].content"), "elsewhere.content");
}

TEST_F(ChatBuilderTest, OnlyAnAssistantsMessageIsContinued) {
  Say(v1::ROLE_USER, "Hi", "input[0]");
  EXPECT_EQ(builder_.ContinueLastMessage("go_on")->param, "go_on");
  Say(v1::ROLE_ASSISTANT, "Hel", "input[1]");
  EXPECT_FALSE(builder_.ContinueLastMessage("go_on"));
  EXPECT_TRUE(chat_.messages(1).prefix());
  EXPECT_FALSE(builder_.ContinueLastMessage("go_on")) << "said twice, by a message's prefix";
}

TEST_F(ChatBuilderTest, WithoutToolsOnlyACallCannotBeAskedFor) {
  EXPECT_FALSE(builder_.ChooseTools("auto", "tool_choice"));
  EXPECT_FALSE(builder_.ChooseTools("none", "tool_choice"));
  EXPECT_FALSE(chat_.has_tool_choice());
  const auto fault = builder_.ChooseTools("required", "tool_choice");
  EXPECT_EQ(fault->message, "tool_choice: asks for a call, but there are no tools");
  EXPECT_EQ(builder_.ChooseTool("f", "pick.name")->param, "pick.name");
}

TEST_F(ChatBuilderTest, EveryWordOfAChoiceHasAMode) {
  AddTool();
  const auto mode = [this](const char* word) {
    EXPECT_FALSE(builder_.ChooseTools(word, "tool_choice"));
    return chat_.tool_choice().mode();
  };
  EXPECT_EQ(mode("none"), v1::TOOL_CHOICE_MODE_NONE);
  EXPECT_EQ(mode("auto"), v1::TOOL_CHOICE_MODE_AUTO);
  EXPECT_EQ(mode("required"), v1::TOOL_CHOICE_MODE_REQUIRED);
  EXPECT_EQ(mode("any"), v1::TOOL_CHOICE_MODE_REQUIRED);
  EXPECT_FALSE(builder_.ChooseTool("f", "tool_choice"));
  EXPECT_EQ(chat_.tool_choice().name(), "f");
}

TEST(FinishChat, AnAnswerThatHasToBeCallsHasNoFormat) {
  v1::GenerateRequest call;
  call.mutable_constraint()->set_json_object(true);
  call.mutable_chat()->add_tools()->set_name("f");
  FieldNames names(StandardShapes().responses);
  AnswerOptions answer;
  FinishChat("input", &call, &names, &answer);
  EXPECT_TRUE(call.has_constraint());
  EXPECT_TRUE(answer.tools && !answer.only_tool_calls);
  call.mutable_chat()->mutable_tool_choice()->set_mode(v1::TOOL_CHOICE_MODE_REQUIRED);
  FinishChat("input", &call, &names, &answer);
  EXPECT_FALSE(call.has_constraint());
  EXPECT_TRUE(answer.only_tool_calls);
  EXPECT_EQ(names.NameOf("chat"), "input");
}

// ---- formats ------------------------------------------------------------------------------------

TEST(OutputDemands, AFormatIsNamedAndItsSchemaTooWhereThatIsAtFault) {
  const Json format = {{"type", "json_schema"}};
  const Json schema = {{"type", "object"}};
  OutputDemands demands;
  demands.AddFormat(format, "format", &schema, "format.schema");
  v1::GenerateRequest call;
  FieldNames names(StandardShapes().responses);
  EXPECT_FALSE(demands.PutInto(&call, &names));
  EXPECT_EQ(call.constraint().json_schema(), R"({"type":"object"})");
  EXPECT_EQ(names.NameOf("constraint"), "format");
  EXPECT_EQ(names.NameOf("constraint.json_schema"), "format.schema");
}

TEST(OutputDemands, TextAsksForNothingAndNoSchemaForAnyObject) {
  OutputDemands demands;
  demands.AddFormat({{"type", "text"}}, "format", nullptr, "format.schema");
  EXPECT_TRUE(demands.empty());
  demands.AddFormat({{"type", "json_schema"}}, "format", nullptr, "format.schema");
  v1::GenerateRequest call;
  FieldNames names(StandardShapes().responses);
  EXPECT_FALSE(demands.PutInto(&call, &names));
  EXPECT_TRUE(call.constraint().json_object());
}

TEST(OutputDemands, TwoThatDifferAreRefusedWithBothNames) {
  OutputDemands demands;
  demands.AddRegex("a+", "regex");
  demands.AddRegex("b+", "guided_regex");
  v1::GenerateRequest call;
  FieldNames names(StandardShapes().chat);
  EXPECT_EQ(demands.PutInto(&call, &names)->message,
            "guided_regex: is given beside regex; an answer has one form");
}

// ---- dialects -----------------------------------------------------------------------------------

TEST(Dialects, OneConversationIsOneChatOverEachOfThem) {
  const RequestContext context = {.id = "r1", .created_s = 1};
  GenerationRequest chat, responses;
  ASSERT_FALSE(ParseChatCompletion(R"({"messages": [
      {"role": "developer", "content": "Be kind"},
      {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
      {"role": "assistant", "tool_calls": [
        {"id": "call_1", "function": {"name": "f", "arguments": "{}"}},
        {"id": "call_2", "function": {"name": "g", "arguments": "{\"x\": 1}"}}]},
      {"role": "tool", "tool_call_id": "call_1", "content": "one"},
      {"role": "tool", "tool_call_id": "call_2", "content": "two"}],
    "tools": [{"function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}],
    "tool_choice": {"function": {"name": "f"}}, "parallel_tool_calls": false})",
                                   context, &chat));
  ASSERT_FALSE(ParseResponses(R"({"instructions": "Be kind", "input": [
      {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
      {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"},
      {"type": "function_call", "call_id": "call_2", "name": "g", "arguments": "{\"x\": 1}"},
      {"type": "function_call_output", "call_id": "call_1", "output": "one"},
      {"type": "function_call_output", "call_id": "call_2", "output": "two"}],
    "tools": [{"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}}],
    "tool_choice": {"type": "function", "name": "f"}, "parallel_tool_calls": false})",
                              context, &responses));
  EXPECT_EQ(chat.calls[0].chat().DebugString(), responses.calls[0].chat().DebugString());
  EXPECT_EQ(chat.answer.call_id_seed, responses.answer.call_id_seed);
}

}  // namespace
}  // namespace tramontane

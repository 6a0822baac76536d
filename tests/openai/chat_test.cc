// The bodies of chats: messages, tools, and what the output must be.
#include "server/api/openai/chat.h"
#include "server/api/openai/request_shapes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/openai/parsed_request.h"

namespace tramontane {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// ---- messages -----------------------------------------------------------------------------------

// Models whose tokenizer says so read it in their prompt.
TEST(ChatCompletion, TheSchemaOfTheAnswerIsPartOfTheChat) {
  const auto shown = [](const std::string& fields) {
    return ChatWith(fields).calls[0].chat().answer_schema_json();
  };
  EXPECT_EQ(
      shown(
          R"("response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"object"}}})"),
      R"({"type":"object"})");
  EXPECT_EQ(shown(R"("structured_outputs":{"json":{"type":"array"}})"), R"({"type":"array"})");
  EXPECT_EQ(shown(R"("response_format":{"type":"json_object"})"),
            R"({"anyOf": [{"type": "object"}, {"type": "array"}]})");
  EXPECT_EQ(shown(R"("regex":"a")"), "");
  EXPECT_FALSE(ChatWith("").calls[0].chat().has_answer_schema_json());
}

TEST(Messages, RolesAndContents) {
  const v1::Chat chat = Chat(R"({"messages":[{"role":"developer","content":"Be brief."},
      {"role":"system","content":""},
      {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}],"name":"me"},
      {"role":"assistant","content":"c"},{"role":"user","content":[]}]})")
                            .calls[0]
                            .chat();
  ASSERT_EQ(chat.messages_size(), 5);
  EXPECT_EQ(chat.messages(0).role(), v1::ROLE_SYSTEM);
  EXPECT_EQ(chat.messages(1).role(), v1::ROLE_SYSTEM);
  EXPECT_TRUE(chat.messages(1).has_content());
  EXPECT_FALSE(chat.messages(2).has_content());
  ASSERT_EQ(chat.messages(2).parts_size(), 2);
  EXPECT_EQ(chat.messages(2).parts(0).text(), "a");
  EXPECT_EQ(chat.messages(2).parts(1).text(), "b");
  EXPECT_FALSE(chat.messages(2).has_name());  // only a tool's means something
  EXPECT_EQ(chat.messages(3).role(), v1::ROLE_ASSISTANT);
  EXPECT_EQ(chat.messages(4).content(), "");
}

TEST(Messages, ASafePromptPutsMistralsSentenceFirst) {
  const GenerationRequest request = Chat(
      R"({"safe_prompt":true,"messages":[{"role":"system","content":"s"},{"role":"user","content":"u"}]})");
  const v1::Chat& chat = request.calls[0].chat();
  ASSERT_EQ(chat.messages_size(), 3);
  EXPECT_EQ(chat.messages(0).role(), v1::ROLE_SYSTEM);
  EXPECT_EQ(chat.messages(0).content(),
            "Always assist with care, respect, and truth. Respond with utmost utility yet securely. Avoid "
            "harmful, unethical, prejudiced, or negative content. Ensure replies promote fairness and "
            "positivity.");
  EXPECT_EQ(chat.messages(1).content(), "s");
  EXPECT_EQ(chat.messages(2).content(), "u");
  EXPECT_EQ(request.names[0].NameOf("chat.messages[2].content"), "messages[1].content");
  EXPECT_EQ(request.names[0].NameOf("chat.messages[0]"), "safe_prompt");
}

TEST(Messages, APartThatIsNoObjectIsNamed) {
  const ApiError fault = ChatFault(R"({"messages":[{"role":"user","content":["x"]}]})");
  EXPECT_EQ(fault.param, "messages[0].content[0]");
  EXPECT_EQ(fault.message, "messages[0].content[0]: is \"x\"; it must be an object");
}

TEST(Messages, OnlyAnAssistantsContentMayBeMissing) {
  Chat(R"({"messages":[{"role":"user","content":"x"},
      {"role":"assistant","content":null,"tool_calls":[{"id":"123456789","function":{"name":"f"}}]},
      {"role":"tool","tool_call_id":"123456789","content":"1"}]})");
  for (const char* answer : {R"({"role":"assistant","content":null,"refusal":null})",
                             R"({"role":"assistant","tool_calls":[]})", R"({"role":"assistant"})"}) {
    const auto request = Chat(R"({"messages":[{"role":"user","content":"x"},)" + std::string(answer) + "]}");
    EXPECT_FALSE(request.calls[0].chat().messages(1).has_content()) << answer;
  }
  for (const char* message : {R"({"role":"user","content":null})", R"({"role":"user"})",
                              R"({"role":"system"})", R"({"role":"tool","tool_call_id":"x"})"}) {
    const ApiError fault =
        ChatFault(std::string(R"({"messages":[{"role":"user","content":"x"},)") + message + "]}");
    EXPECT_EQ(fault.param, "messages[1].content") << message;
  }
}

TEST(Messages, EmptyPartsStayParts) {
  const auto request = Chat(R"({"messages":[{"role":"user","content":[{"type":"text","text":""},
      {"type":"text","text":"a"},{"type":"text","text":""},{"type":"text","text":"b"}]},
      {"role":"user","content":[{"type":"text","text":""}]},{"role":"user","content":[]}]})");
  const v1::Chat& chat = request.calls[0].chat();
  EXPECT_EQ(chat.messages(0).parts_size(), 4);
  ASSERT_EQ(chat.messages(1).parts_size(), 1) << "mistral-common tells it from \"\" in system prompts";
  EXPECT_TRUE(chat.messages(1).parts(0).has_text());
  EXPECT_FALSE(chat.messages(1).has_content());
  EXPECT_TRUE(chat.messages(2).has_content()) << "of no parts";
}

TEST(Messages, FaultsNameTheMessage) {
  EXPECT_EQ(ChatFault("{}").message, "messages: is missing");
  EXPECT_EQ(ChatFault(R"({"messages":[]})").message, "messages: is empty");
  EXPECT_EQ(ChatFault(R"({"messages":"Hi"})").param, "messages");
  EXPECT_EQ(
      ChatFault(R"({"messages":[{"role":"user","content":"x"},{"role":"tol","content":"x"}]})").message,
      "messages[1].role: is \"tol\"; it must be one of \"system\", \"developer\", \"user\", \"assistant\", "
      "\"tool\"");
  EXPECT_EQ(ChatFault(R"({"messages":[{"content":"x"}]})").param, "messages[0].role");
  EXPECT_EQ(ChatFault(R"({"messages":[{"role":"user","content":7}]})").param, "messages[0].content");
}

TEST(Messages, ImagesAreRefused) {
  for (const char* part :
       {R"({"type":"image_url","image_url":{"url":"data:"}})", R"({"type":"input_audio"})"}) {
    const ApiError fault =
        ChatFault(std::string(R"({"messages":[{"role":"user","content":[)") + part + "]}]}");
    EXPECT_EQ(fault.param, "messages[0].content[0].type");
    EXPECT_THAT(fault.message, HasSubstr("only parts of the type"));
  }
}

// The messages of a chat that ends in this one of the assistant.
v1::ChatMessage Assistant(const std::string& fields) {
  return Chat(R"({"messages":[{"role":"user","content":"x"},{"role":"assistant",)" + fields + "}]}")
      .calls[0]
      .chat()
      .messages(1);
}

TEST(Messages, ReasoningIsAThoughtInFrontOfTheContent) {
  for (const char* name : {"reasoning_content", "reasoning"}) {
    const std::string thought = std::string("\"") + name + R"(":"hm")";
    const v1::ChatMessage text = Assistant(R"("content":"y",)" + thought);
    EXPECT_FALSE(text.has_content());
    ASSERT_EQ(text.parts_size(), 2) << name;
    EXPECT_EQ(text.parts(0).thinking().text(), "hm");
    EXPECT_FALSE(text.parts(0).thinking().open());
    EXPECT_EQ(text.parts(1).text(), "y");
    const v1::ChatMessage parts = Assistant(R"("content":[{"type":"text","text":"y"}],)" + thought);
    EXPECT_EQ(parts.SerializeAsString(), text.SerializeAsString());
    EXPECT_EQ(Assistant(thought).parts_size(), 1) << "no content";
    EXPECT_EQ(Assistant(R"("content":"y",")" + std::string(name) + R"(":"")").content(), "y");
  }
  EXPECT_EQ(Assistant(R"("content":"y","reasoning":"hm","reasoning_content":"hm")").parts_size(), 2);
  EXPECT_EQ(ChatFault(R"({"messages":[{"role":"assistant","reasoning":"a","reasoning_content":"b"}]})").param,
            "messages[0].reasoning");
}

TEST(Messages, PartsOfMistralsMayBeThinking) {
  const v1::ChatMessage message =
      Assistant(R"("content":[{"type":"thinking","thinking":[{"type":"text","text":"h"},{"text":"m"}]},
                             {"type":"thinking","thinking":"so","closed":false},{"type":"text","text":"y"}])");
  ASSERT_EQ(message.parts_size(), 3);
  EXPECT_EQ(message.parts(0).thinking().text(), "hm");
  EXPECT_FALSE(message.parts(0).thinking().open());
  EXPECT_EQ(message.parts(1).thinking().text(), "so");
  EXPECT_TRUE(message.parts(1).thinking().open());
  EXPECT_EQ(message.parts(2).text(), "y");
}

TEST(Messages, APartHasWhatItsTypeSays) {
  const auto fault = [](const std::string& part) {
    return ChatFault(R"({"messages":[{"role":"user","content":[)" + part + "]}]}").message;
  };
  EXPECT_EQ(fault(R"({"type":"text"})"), "messages[0].content[0].text: is missing");
  EXPECT_EQ(fault(R"({"type":"thinking","text":"x"})"), "messages[0].content[0].thinking: is missing");
  EXPECT_EQ(fault(R"({"type":"text","text":"x","thinking":"y"})"),
            "messages[0].content[0].thinking: does not go with the type \"text\"");
  EXPECT_EQ(
      ChatFault(R"({"messages":[{"role":"user","content":[{"type":"thinking","thinking":[{}]}]}]})").param,
      "messages[0].content[0].thinking[0].text");
}

TEST(Messages, TheReasoningEffortIsTheChats) {
  EXPECT_EQ(ChatWith(R"("reasoning_effort":"high")").calls[0].chat().reasoning_effort(), "high");
  EXPECT_FALSE(ChatWith(R"("n":1)").calls[0].chat().has_reasoning_effort());
  EXPECT_EQ(ChatFaultWith(R"("reasoning_effort":3)").param, "reasoning_effort");
  EXPECT_EQ(FieldNames(StandardShapes().chat).NameOf("chat.reasoning_effort"), "reasoning_effort");
}

TEST(Messages, PrefixAndContinueFinalMessageAreTheSame) {
  const std::string messages =
      R"("messages":[{"role":"user","content":"x"},{"role":"assistant","content":"y")";
  EXPECT_TRUE(Chat("{" + messages + R"(,"prefix":true}]})").calls[0].chat().messages(1).prefix());
  EXPECT_TRUE(
      Chat("{" + messages + R"(}],"continue_final_message":true})").calls[0].chat().messages(1).prefix());
  EXPECT_EQ(ChatFaultWith(R"("continue_final_message":true)").param, "continue_final_message");
  EXPECT_TRUE(Chat("{" + messages + R"(,"prefix":true}],"continue_final_message":true})")
                  .calls[0]
                  .chat()
                  .messages(1)
                  .prefix())
      << "said twice, as mistral-common takes it";
}

TEST(Messages, ToolsAndTheirHistoryArrive) {
  const v1::Chat chat = Chat(R"({"messages":[{"role":"user","content":"x"},
      {"role":"assistant","content":"","tool_calls":[{"index":0,"id":"call_abcdefghijkl","type":"function",
        "function":{"name":"f","arguments":"{\"a\":1}"}},
        {"id":"call_2","type":"function","function":{"name":"g","arguments":{"z":1,"a":2}}}]},
      {"role":"tool","name":"f","tool_call_id":"call_abcdefghijkl","content":"1"},
      {"role":"tool","tool_call_id":"call_2","content":[{"type":"text","text":"2"}]}],
      "tools":[{"type":"function","function":{"name":"f","description":"d","strict":true,
        "parameters":{"type":"object","properties":{"z":{},"a":{}}}}},{"function":{"name":"g"}}],
      "tool_choice":"required","parallel_tool_calls":false})")
                            .calls[0]
                            .chat();
  const v1::ToolCall& call = chat.messages(1).tool_calls(0);
  EXPECT_EQ(call.id().size(), 9u);  // as Mistral's formats have them
  EXPECT_EQ(chat.messages(2).tool_call_id(), call.id());
  EXPECT_EQ(chat.messages(2).name(), "f");
  EXPECT_EQ(call.arguments_json(), "{\"a\":1}");
  EXPECT_EQ(chat.messages(1).tool_calls(1).arguments_json(), "{\"z\":1,\"a\":2}");
  EXPECT_NE(chat.messages(1).tool_calls(1).id(), call.id());
  EXPECT_EQ(chat.messages(3).parts(0).text(), "2");
  EXPECT_EQ(chat.tools(0).parameters_json(), R"({"type":"object","properties":{"z":{},"a":{}}})");
  EXPECT_EQ(chat.tools(1).parameters_json(), "");
  EXPECT_TRUE(chat.tools(0).strict());
  EXPECT_FALSE(chat.tools(1).strict());
  EXPECT_EQ(chat.tool_choice().mode(), v1::TOOL_CHOICE_MODE_REQUIRED);
  EXPECT_FALSE(chat.parallel_tool_calls());
}

TEST(Messages, ThinkingTokenBudget) {
  EXPECT_EQ(ChatWith(R"("thinking_token_budget":7)").calls[0].chat().thinking_token_budget(), 7);
  EXPECT_EQ(ChatWith(R"("thinking_token_budget":-1)").calls[0].chat().thinking_token_budget(), -1);
  EXPECT_FALSE(ChatWith("\"n\":1").calls[0].chat().has_thinking_token_budget());
  EXPECT_EQ(ChatFaultWith(R"("thinking_token_budget":-2)").param, "thinking_token_budget");
  EXPECT_EQ(ChatFaultWith(R"("thinking_token_budget":"7")").param, "thinking_token_budget");
}

TEST(Messages, ToolChoice) {
  const std::string tools = R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":)";
  const auto choice = [&](const char* value) {
    return ChatWith(tools + value).calls[0].chat().tool_choice();
  };
  EXPECT_EQ(choice("\"auto\"").mode(), v1::TOOL_CHOICE_MODE_AUTO);
  EXPECT_EQ(choice("\"none\"").mode(), v1::TOOL_CHOICE_MODE_NONE);
  EXPECT_EQ(choice("\"any\"").mode(), v1::TOOL_CHOICE_MODE_REQUIRED);
  const v1::ToolChoice named = choice(R"({"type":"function","function":{"name":"f"}})");
  EXPECT_EQ(named.mode(), v1::TOOL_CHOICE_MODE_NAMED);
  EXPECT_EQ(named.name(), "f");
  EXPECT_EQ(ChatFaultWith(tools + "\"maybe\"").param, "tool_choice");
  EXPECT_EQ(ChatFaultWith(R"("tool_choice":"required")").param, "tool_choice");  // no tools
  EXPECT_FALSE(ChatWith(R"("tool_choice":"none")").calls[0].chat().has_tool_choice());
  const v1::ToolChoice some = choice(
      R"({"type":"allowed_tools","allowed_tools":{"mode":"required","tools":[{"type":"function","function":{"name":"f"}}]}})");
  EXPECT_EQ(some.mode(), v1::TOOL_CHOICE_MODE_REQUIRED);
  EXPECT_EQ(some.allowed_size(), 1);
  EXPECT_EQ(some.allowed(0), "f");
  const auto list_fault = [&](const char* list) {
    return ChatFaultWith(tools + R"({"type":"allowed_tools","allowed_tools":)" + list + "}").param;
  };
  EXPECT_EQ(list_fault(R"({"tools":[{"function":{"name":"f"}}]})"), "tool_choice.allowed_tools.mode");
  EXPECT_EQ(list_fault(R"({"mode":"auto"})"), "tool_choice.allowed_tools.tools");
  EXPECT_NE(list_fault(R"({"mode":"auto","tools":[]})"), "") << "nothing could be called";
  EXPECT_EQ(ChatFaultWith(tools + R"({"type":"allowed_tools"})").param, "tool_choice.allowed_tools");
  EXPECT_EQ(ChatFaultWith(tools + R"({"type":"function"})").param, "tool_choice.function");
  EXPECT_TRUE(ChatWith(tools + "\"auto\"").answer.tools);
  EXPECT_FALSE(ChatWith(tools + "\"none\"").answer.tools);
}

// ---- constraints --------------------------------------------------------------------------------

TEST(Constraints, ResponseFormat) {
  EXPECT_FALSE(ChatWith(R"("response_format":{"type":"text"})").calls[0].has_constraint());
  EXPECT_TRUE(ChatWith(R"("response_format":{"type":"json_object"})").calls[0].constraint().json_object());
  const char* schema = R"("response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,)"
                       R"("schema":{"type":"object","properties":{"z":{},"a":{}}}}})";
  EXPECT_EQ(ChatWith(schema).calls[0].constraint().json_schema(),
            R"({"type":"object","properties":{"z":{},"a":{}}})");
  EXPECT_EQ(ChatFaultWith(R"("response_format":{"type":"json_schema"})").param,
            "response_format.json_schema");
  EXPECT_EQ(ChatFaultWith(R"("response_format":{"type":"xml"})").param, "response_format.type");
}

TEST(Constraints, StructuredOutputsAndTheirOlderNames) {
  const auto constraint = [](const char* fields) { return CompletionWith(fields).calls[0].constraint(); };
  EXPECT_EQ(constraint(R"("structured_outputs":{"regex":"a+"})").regex(), "a+");
  EXPECT_EQ(constraint(R"("structured_outputs":{"grammar":"root ::= \"a\""})").grammar(), "root ::= \"a\"");
  EXPECT_EQ(constraint(R"("structured_outputs":{"json":"{}"})").json_schema(), "{}");
  EXPECT_EQ(constraint(R"("structured_outputs":{"json":{"type":"object"}})").json_schema(),
            R"({"type":"object"})");
  EXPECT_TRUE(constraint(R"("structured_outputs":{"json_object":true})").json_object());
  EXPECT_THAT(constraint(R"("structured_outputs":{"choice":["a","b"]})").choice().texts(),
              ElementsAre("a", "b"));
  EXPECT_EQ(constraint(R"("guided_regex":"a+")").regex(), "a+");
  EXPECT_THAT(constraint(R"("guided_choice":["a"])").choice().texts(), ElementsAre("a"));
  EXPECT_EQ(constraint(R"("guided_json":{"a":1})").json_schema(), "{\"a\":1}");
  EXPECT_EQ(constraint(R"("guided_grammar":"g")").grammar(), "g");
}

TEST(Constraints, SglangsNamesAreAliases) {
  EXPECT_EQ(ChatWith(R"("regex":"a+")").calls[0].constraint().regex(), "a+");
  EXPECT_EQ(ChatWith(R"("ebnf":"root ::= \"a\"")").calls[0].constraint().grammar(), "root ::= \"a\"");
  EXPECT_EQ(ChatWith(R"("ebnf":"x")").names[0].NameOf("constraint.grammar"), "ebnf");
}

TEST(Constraints, TheSameUnderTwoNamesIsNoConflict) {
  EXPECT_EQ(ChatWith(R"("regex":"a+","guided_regex":"a+","structured_outputs":{"regex":"a+"})")
                .calls[0]
                .constraint()
                .regex(),
            "a+");
  ChatWith(R"("response_format":{"type":"json_object"},"structured_outputs":{"json_object":true})");
  EXPECT_EQ(ChatFaultWith(R"("regex":"a+","guided_regex":"b+")").param, "regex");
  EXPECT_EQ(ChatFaultWith(R"("regex":"a","ebnf":"a")").param, "ebnf");
}

TEST(Constraints, ExactlyOne) {
  EXPECT_EQ(ChatFaultWith(R"("structured_outputs":{})").param, "structured_outputs");
  EXPECT_EQ(ChatFaultWith(R"("structured_outputs":{"regex":"a","choice":["b"]})").param,
            "structured_outputs.choice");
  EXPECT_EQ(ChatFaultWith(R"("guided_regex":"a","response_format":{"type":"json_object"})").param,
            "guided_regex");
}

}  // namespace
}  // namespace tramontane

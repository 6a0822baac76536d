// The chat formats of tekken's versions, v7 to v15: their shapes, what they refuse, and the ids of an answer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "models/chat/answer_syntax.h"
#include "models/chat/mistral_chat.h"
#include "tests/models/tekken_test_file.h"

namespace tramontane {
namespace {

using ::testing::HasSubstr;

constexpr TokenizerVersion kV7 = TokenizerVersion::kV7;
constexpr TokenizerVersion kV11 = TokenizerVersion::kV11;
constexpr TokenizerVersion kV13 = TokenizerVersion::kV13;
constexpr TokenizerVersion kV15 = TokenizerVersion::kV15;
constexpr TokenizerVersion kFromV7[] = {kV7, kV11, kV13, kV15};
constexpr TokenizerVersion kFromV11[] = {kV11, kV13, kV15};

ChatMessage System(std::string content) { return {.role = ChatRole::kSystem, .content = std::move(content)}; }
ChatMessage User(std::string content) { return {.role = ChatRole::kUser, .content = std::move(content)}; }
ChatMessage Assistant(std::string content) {
  return {.role = ChatRole::kAssistant, .content = std::move(content)};
}
ChatMessage Parts(ChatRole role, std::vector<ContentPart> parts) {
  return {.role = role, .parts = std::move(parts)};
}
ChatMessage Calls(std::vector<ToolCall> calls) {
  return {.role = ChatRole::kAssistant, .tool_calls = std::move(calls)};
}
ChatMessage Result(std::string content, std::string call_id) {
  return {.role = ChatRole::kTool, .content = std::move(content), .tool_call_id = std::move(call_id)};
}
ContentPart Words(std::string text) { return {.text = std::move(text)}; }
ContentPart Thinking(std::string text, bool closed = true) {
  return {.kind = ContentPart::Kind::kThinking, .text = std::move(text), .closed = closed};
}
const ToolCall kFirst = {"aaaaaaaaa", "f", R"({"x":1})"};
const ToolCall kSecond = {"bbbbbbbbb", "g", ""};
const ToolDefinition kTool = {"f", "", ""};
constexpr char kToolText[] =
    R"([AVAILABLE_TOOLS][{"type": "function", "function": {"name": "f", "description": "", "parameters": {}}}][/AVAILABLE_TOOLS])";

const Tokenizer& Tekken() {
  static const auto tokenizer = SmallTekken(TekkenJson({}, "v15"));
  return *tokenizer;
}

std::string Text(TokenizerVersion format, const std::vector<ChatMessage>& messages,
                 const std::vector<ToolDefinition>& tools = {}, const ChatOptions& options = {}) {
  const StatusOr<RenderedChat> chat = MistralChatFormat(Tekken(), format).Render(messages, tools, options);
  if (chat.ok()) return chat->text;
  EXPECT_EQ(chat.status().code(), StatusCode::kInvalidArgument);
  return "refused: " + chat.status().message();
}

std::string WithEffort(TokenizerVersion format, const std::string& effort) {
  return Text(format, {User("a")}, {}, {.reasoning_effort = effort});
}

TEST(ChatTekkenTest, V7ListsCallsAsJson) {
  EXPECT_EQ(
      Text(kV7, {System("S"), User("a"), Calls({kFirst}), Result("r", kFirst.id), Assistant("b"), User("c")},
           {kTool}),
      std::string("<s>[SYSTEM_PROMPT]S[/SYSTEM_PROMPT][INST]a[/INST]") +
          R"([TOOL_CALLS][{"name": "f", "arguments": {"x": 1}, "id": "aaaaaaaaa"}]</s>)" +
          "[TOOL_RESULTS]aaaaaaaaa[TOOL_CONTENT]r[/TOOL_RESULTS]b</s>" + kToolText + "[INST]c[/INST]");
}

TEST(ChatTekkenTest, V11CallsOneByOneWithIds) {
  EXPECT_EQ(
      Text(kV11, {User("a"), Calls({kFirst, kSecond}), Result("r", kFirst.id), Result("q", kSecond.id)}),
      "<s>[INST]a[/INST][TOOL_CALLS]f[CALL_ID]aaaaaaaaa[ARGS]{\"x\": 1}"
      "[TOOL_CALLS]g[CALL_ID]bbbbbbbbb[ARGS]{}</s>"
      "[TOOL_RESULTS]aaaaaaaaa[TOOL_CONTENT]r[/TOOL_RESULTS]"
      "[TOOL_RESULTS]bbbbbbbbb[TOOL_CONTENT]q[/TOOL_RESULTS]");
}

TEST(ChatTekkenTest, V13ShowsNoIdsAndToolsBeforeTheFirstUser) {
  EXPECT_EQ(
      Text(kV13, {System("S"), User("a"), Calls({kFirst}), Result("r", kFirst.id), Assistant("b"), User("c")},
           {kTool}),
      std::string("<s>[SYSTEM_PROMPT]S[/SYSTEM_PROMPT]") + kToolText +
          "[INST]a[/INST][TOOL_CALLS]f[ARGS]{\"x\": 1}</s>[TOOL_RESULTS]r[/TOOL_RESULTS]b</s>[INST]c[/INST]");
}

TEST(ChatTekkenTest, FromV11ResultsComeInTheOrderOfTheCalls) {
  const std::vector<ChatMessage> straight = {User("a"), Calls({kFirst, kSecond}), Result("r", kFirst.id),
                                             Result("q", kSecond.id)};
  const std::vector<ChatMessage> crossed = {straight[0], straight[1], straight[3], straight[2]};
  for (const TokenizerVersion format : kFromV11) EXPECT_EQ(Text(format, crossed), Text(format, straight));
  EXPECT_NE(Text(kV7, crossed), Text(kV7, straight));
}

TEST(ChatTekkenTest, V15PutsSettingsBehindTheTools) {
  EXPECT_EQ(
      Text(kV15, {System("S"), User("a"), Assistant("b"), User("c")}, {kTool}, {.reasoning_effort = "high"}),
      std::string("<s>[SYSTEM_PROMPT]S[/SYSTEM_PROMPT]") + kToolText +
          "[MODEL_SETTINGS]{\"reasoning_effort\": \"high\"}[/MODEL_SETTINGS]"
          "[INST]a[/INST]b</s>[INST]c[/INST]");
  EXPECT_EQ(Text(kV15, {User("a")}),
            "<s>[MODEL_SETTINGS]{\"reasoning_effort\": \"none\"}[/MODEL_SETTINGS][INST]a[/INST]")
      << "the file's default";
}

TEST(ChatTekkenTest, AnEffortThatTheModelDoesNotKnowIsRefused) {
  for (const TokenizerVersion format : {TokenizerVersion::kV1, TokenizerVersion::kV3, kV7, kV11, kV13}) {
    for (const char* effort : {"high", "none"}) {
      EXPECT_EQ(WithEffort(format, effort), "refused: reasoning_effort: the model has no such setting");
    }
  }
  EXPECT_EQ(WithEffort(kV15, "low"), "refused: reasoning_effort: 'low' is not one of none, high");
  EXPECT_EQ(WithEffort(kV15, ""), "refused: reasoning_effort: '' is not one of none, high");
}

TEST(ChatTekkenTest, AModelThatReadsTheAnswersSchemaIsShownIt) {
  nlohmann::json file = TekkenJson({}, "v15");
  const nlohmann::json json_schema = std::exchange(file["model_settings_builder"]["json_schema"], nullptr);
  file["model_settings_builder"].erase("json_schema");
  const auto text = [&](const ChatOptions& options) {
    const auto tokenizer = SmallTekken(file);
    const auto chat = MistralChatFormat(*tokenizer, kV15).Render(std::vector{User("a")}, {}, options);
    return chat.ok() ? chat->text : chat.status().message();
  };
  const ChatOptions options = {.answer_schema_json = R"({"type":"object"})"};
  EXPECT_THAT(text(options), HasSubstr(R"([MODEL_SETTINGS]{"reasoning_effort": "none"}[/MODEL_SETTINGS])"));
  file["model_settings_builder"]["json_schema"] = json_schema;
  EXPECT_THAT(text(options),
              HasSubstr(R"([MODEL_SETTINGS]{"json_schema": {"type": "object"}, "reasoning_effort":)"));
  EXPECT_THAT(text({}), HasSubstr(R"([MODEL_SETTINGS]{"reasoning_effort": "none"})"));
  EXPECT_EQ(text({.answer_schema_json = "[]"}), "answer_schema_json: not a JSON object");
  file["model_settings_builder"].erase("reasoning_effort");
  EXPECT_EQ(text({}), "<s>[INST]a[/INST]");
  EXPECT_EQ(text({.reasoning_effort = "none"}), "<s>[INST]a[/INST]");
  EXPECT_EQ(text({.reasoning_effort = "high"}), "reasoning_effort: the model has no such setting");
  file.erase("model_settings_builder");
  EXPECT_EQ(text({}), "chat format v15 needs model_settings_builder in the tokenizer's file");
}

TEST(ChatTekkenTest, ThinkingIsABlockOfItsOwn) {
  const auto answer = Parts(ChatRole::kAssistant, {Thinking("t "), Words("b "), Words("c ")});
  EXPECT_EQ(Text(kV13, {User("a"), answer, User("d")}),
            "<s>[INST]a[/INST][THINK]t [/THINK]b \n\nc </s>[INST]d[/INST]")
      << "spaces at the end stay where there is thinking";
  EXPECT_THAT(Text(kV15, {User("a"), answer, User("d")}), HasSubstr("[THINK]t [/THINK]b c </s>"));
  ChatMessage open = Parts(ChatRole::kAssistant, {Thinking("so", /*closed=*/false)});
  open.prefix = true;
  EXPECT_EQ(Text(kV13, {User("a"), open}), "<s>[INST]a[/INST][THINK]so");
  EXPECT_EQ(Text(kV13, {Parts(ChatRole::kSystem, {Words("S"), Thinking("")}), User("a")}),
            "<s>[SYSTEM_PROMPT]S[THINK][/THINK][/SYSTEM_PROMPT][INST]a[/INST]");
  EXPECT_EQ(Text(kV13, {User("a"), Assistant("b"), Parts(ChatRole::kAssistant, {Thinking("t")}),
                        Assistant("c"), User("d")}),
            "<s>[INST]a[/INST]b[THINK]t[/THINK]c</s>[INST]d[/INST]");
}

TEST(ChatTekkenTest, AnAssistantsThoughtsAreLeftOutWhereTheFormatHasNone) {
  const auto with = [](TokenizerVersion format, ChatRole role) {
    return Text(format, {User("a"), Parts(role, {Thinking("t"), Words("w")}), User("b")});
  };
  for (const TokenizerVersion format : {kV7, kV11}) {
    EXPECT_EQ(with(format, ChatRole::kAssistant), Text(format, {User("a"), Assistant("w"), User("b")}));
    EXPECT_EQ(Text(format, {User("a"), Parts(ChatRole::kAssistant, {Thinking("t")}), User("b")}),
              Text(format, {User("a"), User("b")}))
        << "a message that only thought says nothing";
    EXPECT_FALSE(MistralChatFormat(Tekken(), format).keeps_thoughts());
  }
  EXPECT_TRUE(MistralChatFormat(Tekken(), kV13).keeps_thoughts());
  EXPECT_EQ(with(kV15, ChatRole::kSystem),
            "refused: messages[1].content: chat format v15 has no thinking in a system message");
  EXPECT_EQ(with(kV7, ChatRole::kSystem),
            "refused: messages[1].content: chat format v7 has no thinking in a system message");
  EXPECT_EQ(with(kV15, ChatRole::kUser), "refused: messages[1].content: a user message has no thinking");
}

TEST(ChatTekkenTest, ACallWithoutAResultHasOneThatSaysSo) {
  const std::string none = R"({"error": "no result"})";
  const ToolCall third = {"ccccccccc", "h", ""};
  const ChatMessage calls = Calls({kFirst, kSecond, third});
  for (const TokenizerVersion format : kFromV7) {
    const auto same = [&](const std::vector<ChatMessage>& gap, const std::vector<ChatMessage>& whole) {
      EXPECT_EQ(Text(format, gap), Text(format, whole)) << TokenizerVersionName(format);
    };
    const ChatMessage first = Result("r", kFirst.id);
    const ChatMessage second = Result("r", kSecond.id);
    const ChatMessage no_first = Result(none, kFirst.id);
    const ChatMessage no_third = Result(none, third.id);
    same({User("a"), calls, User("b")},
         {User("a"), calls, no_first, Result(none, kSecond.id), no_third, User("b")});
    same({User("a"), calls, second, User("b")}, {User("a"), calls, second, no_first, no_third, User("b")});
    same({User("a"), calls, second, first}, {User("a"), calls, second, first, no_third});
    same({User("a"), calls, Assistant("never mind"), User("b"), Calls({kFirst}), first},
         {User("a"), calls, Assistant("never mind"), no_first, Result(none, kSecond.id), no_third, User("b"),
          Calls({kFirst}), first});
    same({User("a"), Calls({kFirst}), Calls({kSecond}), second},
         {User("a"), Calls({kFirst}), no_first, Calls({kSecond}), second});
    EXPECT_THAT(Text(format, {User("a"), calls, User("b"), calls}),
                HasSubstr("refused: messages[3]: the last message is from"))
        << "nothing has come of the last calls yet";
    EXPECT_THAT(Text(format, {User("a"), Calls({kFirst}), User("b"), first}),
                HasSubstr("refused: messages[3]: a tool message cannot follow a user"));
    EXPECT_THAT(Text(format, {User("a"), calls, User("b"), {.role = ChatRole::kUser}}),
                HasSubstr("refused: messages[3]: a user message needs content"))
        << "a fault has the index that its message has in the request";
  }
}

TEST(ChatTekkenTest, TextsOfOneMessageAreJoinedByABlankLineAndFromV15ByNothing) {
  const std::vector<ChatMessage> messages = {Parts(ChatRole::kUser, {Words("a"), Words(""), Words("b")}),
                                             User("c")};
  for (const TokenizerVersion format : {TokenizerVersion::kV3, kV7, kV11, kV13}) {
    EXPECT_EQ(Text(format, messages), "<s>[INST]a\n\nb\n\nc[/INST]");
  }
  EXPECT_THAT(Text(kV15, messages), HasSubstr("[INST]ab\n\nc[/INST]"));
}

TEST(ChatTekkenTest, AnEmptyTextIsAParagraphOfTheSystemPromptAloneBeforeV7) {
  const ChatMessage empty = Parts(ChatRole::kSystem, {Words("")});
  EXPECT_EQ(Text(TokenizerVersion::kV3, {empty, System("S"), User("a")}), "<s>[INST]\n\nS\n\na[/INST]");
  EXPECT_EQ(Text(kV13, {empty, System("S"), User("a")}),
            "<s>[SYSTEM_PROMPT][/SYSTEM_PROMPT][SYSTEM_PROMPT]S[/SYSTEM_PROMPT][INST]a[/INST]");
}

TEST(ChatTekkenTest, FromV11ResultsAreMatchedById) {
  for (const TokenizerVersion format : kFromV11) {
    EXPECT_EQ(Text(format, {User("a"), Calls({kFirst}), Result("r", "ccccccccc")}),
              "refused: messages[2]: tool_call_id 'ccccccccc' is that of no call before it");
    EXPECT_EQ(Text(format, {User("a"), Calls({kFirst}), Result("r", kFirst.id), Result("r", kFirst.id)}),
              "refused: messages[3]: tool_call_id 'aaaaaaaaa' has a result already");
    EXPECT_EQ(Text(format, {User("a"), Calls({kFirst, kFirst}), Result("r", kFirst.id)}),
              "refused: messages[1].tool_calls[1]: tool call id 'aaaaaaaaa' stands twice in one message");
  }
}

TEST(ChatTekkenTest, FromV13AnyIdWillDoButNone) {
  const auto with = [](TokenizerVersion format, const std::string& id) {
    return Text(format, {User("a"), Calls({{id, "f", ""}}), Result("r", id)});
  };
  for (const TokenizerVersion format : {kV13, kV15}) {
    EXPECT_THAT(with(format, "call_1-ü"),
                HasSubstr("[TOOL_CALLS]f[ARGS]{}</s>[TOOL_RESULTS]r[/TOOL_RESULTS]"));
    for (const char* none : {"", "null"}) {
      EXPECT_THAT(with(format, none), HasSubstr("refused: messages[1].tool_calls[0]: tool call id '"));
    }
  }
  EXPECT_THAT(with(kV11, "call_1"), HasSubstr("'call_1' is not 9 letters and digits"));
}

// ---- where we take what mistral-common refuses, in every version

TEST(ChatTekkenDepartureTest, TextBesideCallsIsRenderedBeforeThem) {
  for (const TokenizerVersion format : kFromV7) {
    ChatMessage both = Calls({kFirst});
    both.content = "b";
    const std::string text = Text(format, {User("a"), both, Result("r", kFirst.id)});
    EXPECT_THAT(text, HasSubstr("[/INST]b[TOOL_CALLS]"));
    EXPECT_EQ(Text(format, {User("a"), Calls({kFirst}), Assistant("b"), Result("r", kFirst.id)}), text);
  }
}

TEST(ChatTekkenDepartureTest, AnAssistantThatSaidNothingIsLeftOut) {
  for (const TokenizerVersion format : kFromV7) {
    const std::string without = Text(format, {User("a"), User("b")});
    EXPECT_EQ(Text(format, {User("a"), Assistant(""), User("b")}), without);
    EXPECT_EQ(Text(format, {User("a"), Parts(ChatRole::kAssistant, {Words("")}), User("b")}), without);
  }
}

TEST(ChatTekkenDepartureTest, ALateSystemMessageKeepsItsPlace) {
  for (const TokenizerVersion format : kFromV7) {
    EXPECT_THAT(Text(format, {User("a"), Assistant("b"), System("S"), User("c")}),
                HasSubstr("b</s>[SYSTEM_PROMPT]S[/SYSTEM_PROMPT][INST]c[/INST]"));
  }
}

TEST(ChatTekkenTest, AnEmptyPrefixGoesOnFromTheAnswerBeforeIt) {
  ChatMessage prefix = Assistant("");
  prefix.prefix = true;
  for (const TokenizerVersion format : {TokenizerVersion::kV3, kV7, kV13}) {
    EXPECT_EQ(Text(format, {User("a"), Assistant("b"), prefix}), "<s>[INST]a[/INST]b");
  }
}

// Every string of a request that the format lets be any text says `text`.
std::vector<int32_t> ControlsOf(TokenizerVersion format, const std::string& text) {
  const auto quoted = [&](const char* key) {
    return std::string("{\"") + key + "\": " + nlohmann::json(text).dump() + "}";
  };
  const bool any_id = format >= kV13;
  const std::string id = any_id ? text : "123456789";
  const ChatMessage calls = {.role = ChatRole::kAssistant, .tool_calls = {{id, "f", quoted("a")}}};
  const ChatMessage plain_arguments = {.role = ChatRole::kAssistant, .tool_calls = {{id, "f", text}}};
  const ChatMessage result = {.role = ChatRole::kTool, .content = text, .tool_call_id = id};
  ChatMessage named = User(text);
  named.name = text;
  std::vector<ChatMessage> messages = {System(text), named, calls, result, Assistant(text), named};
  messages.insert(messages.end(), {plain_arguments, result, Parts(ChatRole::kUser, {Words(text)})});
  const ToolDefinition tool = {"f", text, quoted("description")};
  const auto chat = MistralChatFormat(Tekken(), format).Render(messages, std::vector{tool});
  EXPECT_TRUE(chat.ok()) << chat.status();
  std::vector<int32_t> controls;
  for (const int32_t one : chat.ok() ? chat->ids : std::vector<int32_t>()) {
    if (Tekken().IsControl(one)) controls.push_back(one);
  }
  return controls;
}

TEST(ChatTekkenTest, NoStringOfARequestBecomesAControlId) {
  for (const TokenizerVersion format : {TokenizerVersion::kV3, kV7, kV11, kV13, kV15}) {
    const std::vector<int32_t> harmless = ControlsOf(format, "harmless");
    EXPECT_GT(harmless.size(), 10u);
    for (int32_t id = 0; Tekken().IsControl(id); ++id) {
      const std::string piece(Tekken().Piece(id));
      EXPECT_EQ(ControlsOf(format, piece), harmless) << TokenizerVersionName(format) << " " << piece;
    }
  }
}

// ---- ids of an answer

TEST(AnswerSyntaxTest, EachVersionHasItsOwn) {
  using Calls = AnswerSyntax::Calls;
  const auto syntax = [](TokenizerVersion version) { return MistralAnswerSyntax(Tekken(), version); };
  EXPECT_EQ(syntax(TokenizerVersion::kV1).calls, Calls::kNone);
  EXPECT_EQ(syntax(TokenizerVersion::kV1).tool_calls, -1);
  EXPECT_EQ(syntax(kV7).calls, Calls::kJsonList);
  EXPECT_EQ(syntax(kV7).tool_calls, 9);
  EXPECT_EQ(syntax(kV7).args, -1);
  EXPECT_EQ(syntax(kV7).begin_think, -1);
  EXPECT_EQ(syntax(kV11).calls, Calls::kNameAndArguments);
  EXPECT_EQ(syntax(kV11).args, *Tekken().ControlId("[ARGS]"));
  EXPECT_EQ(syntax(kV11).call_id, *Tekken().ControlId("[CALL_ID]"));
  EXPECT_EQ(syntax(kV11).begin_think, -1);
  EXPECT_EQ(syntax(kV13).calls, Calls::kNameAndArguments);
  EXPECT_EQ(syntax(kV13).call_id, -1);
  EXPECT_EQ(syntax(kV13).begin_think, *Tekken().ControlId("[THINK]"));
  EXPECT_EQ(syntax(kV15).end_think, *Tekken().ControlId("[/THINK]"));
  EXPECT_EQ(syntax(kV15).end, 2);
}

TEST(AnswerSyntaxTest, WithoutTheControlTokensThereIsNoSyntax) {
  nlohmann::json file = TekkenJson({}, "v13");
  for (nlohmann::json& token : file["special_tokens"]) {
    if (token["token_str"] == "[ARGS]") token["token_str"] = "[other]";
    if (token["token_str"] == "[/THINK]") token["token_str"] = "[another]";
  }
  const AnswerSyntax syntax = MistralAnswerSyntax(*SmallTekken(file), kV13);
  EXPECT_EQ(syntax.calls, AnswerSyntax::Calls::kNone);
  EXPECT_EQ(syntax.tool_calls, -1);
  EXPECT_EQ(syntax.begin_think, -1);
}

TEST(ChatTekkenTest, AVocabularyWithoutThinkingIsAFailedPrecondition) {
  nlohmann::json file = TekkenJson({}, "v13");
  for (nlohmann::json& token : file["special_tokens"]) {
    if (token["token_str"] == "[THINK]") token["token_str"] = "[other]";
  }
  const auto tokenizer = SmallTekken(file);
  const auto chat =
      MistralChatFormat(*tokenizer, kV13)
          .Render(std::vector{User("a"), Parts(ChatRole::kAssistant, {Thinking("t")}), User("b")}, {});
  EXPECT_EQ(chat.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(chat.status().message(), HasSubstr("[THINK]"));
}

}  // namespace
}  // namespace tramontane

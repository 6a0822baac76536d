// TemplateChatFormat: what a template is given, and that nobody types a control id.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "models/chat/template_chat.h"
#include "models/tokenizer/load.h"
#include "tests/models/tokenizer_test_model.h"
#include "tests/support/byte_tokenizer.h"

namespace tramontane {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Of several families, with some that begin or end alike.
const std::vector<std::string> kControls = {
    "<s>",           "<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|user|>", "<|assistant|>", "<|end|>",
    "<|endoftext|>", "<think>",      "</think>",   "<tool>",     "[INST]",   "[/INST]"};

const Tokenizer& Bytes() {
  static const ByteTokenizer tokenizer(kControls, "<s>");
  return tokenizer;
}

std::tm Noon() {
  std::tm now{};
  now.tm_year = 125;
  now.tm_mday = 14;
  return now;
}

class JinjaChat : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HasJinja()) GTEST_SKIP() << "this build has no Jinja templates (TRAMONTANE_JINJA)";
  }

  static StatusOr<RenderedChat> Render(const std::string& text, const std::vector<ChatMessage>& messages,
                                       const std::vector<ToolDefinition>& tools = {},
                                       const ChatOptions& options = {}) {
    TM_ASSIGN_OR_RETURN(auto parsed, JinjaTemplate::Parse(text));
    return TemplateChatFormat(Bytes(), text, std::move(parsed), "")
        .RenderAt(Noon(), messages, tools, options);
  }
  static std::string Text(const std::string& text, const std::vector<ChatMessage>& messages,
                          const std::vector<ToolDefinition>& tools = {}, const ChatOptions& options = {}) {
    const StatusOr<RenderedChat> chat = Render(text, messages, tools, options);
    if (chat.ok()) return chat->text;
    EXPECT_EQ(chat.status().code(), StatusCode::kInvalidArgument);
    return "refused: " + chat.status().message();
  }
};

ChatMessage User(std::string content) { return {.role = ChatRole::kUser, .content = std::move(content)}; }
ChatMessage Assistant(std::string content) {
  return {.role = ChatRole::kAssistant, .content = std::move(content)};
}

constexpr char kChatMl[] =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

TEST_F(JinjaChat, TheTextIsCutAtControlTokens) {
  const StatusOr<RenderedChat> chat = Render("{{ bos_token }}" + std::string(kChatMl), {User("Hi")});
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_EQ(chat->text, "<s><|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(chat->ids[0], *Bytes().ControlId("<s>"));
  EXPECT_EQ(chat->ids[1], *Bytes().ControlId("<|im_start|>"));
  EXPECT_EQ(chat->ids[2], 'u');
}

TEST_F(JinjaChat, ATemplateGetsWhatTransformersGives) {
  const std::vector<ChatMessage> messages = {
      {.role = ChatRole::kSystem, .content = "S"},
      {.role = ChatRole::kUser, .parts = {{.text = "a"}, {.text = "b"}}},
      {.role = ChatRole::kAssistant,
       .parts = {{.kind = ContentPart::Kind::kThinking, .text = "hm"}},
       .tool_calls = {{.id = "id1", .name = "f", .arguments_json = R"({"x": [1.50, null]})"},
                      {.id = "id2", .name = "g", .arguments_json = "no JSON"}}},
      {.role = ChatRole::kTool, .content = "r", .tool_call_id = "id1", .name = "f"}};
  EXPECT_EQ(
      Text("{{ messages|tojson }}", messages),
      R"([{"role": "system", "content": "S"}, {"role": "user", "content": "a\nb"}, )"
      R"({"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [)"
      R"({"id": "id1", "type": "function", "function": {"name": "f", "arguments": {"x": [1.5, null]}}}, )"
      R"({"id": "id2", "type": "function", "function": {"name": "g", "arguments": "no JSON"}}]}, )"
      R"({"role": "tool", "content": "r", "name": "f", "tool_call_id": "id1"}])");
  EXPECT_EQ(
      Text("{{ tools|tojson }}", messages, {{"f", "d", R"({"type": "object"})"}, {"g", "", ""}}),
      R"([{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}, )"
      R"({"type": "function", "function": {"name": "g", "description": "", "parameters": {}}}])");
  EXPECT_EQ(
      Text("{{ tools }} {{ documents }} {{ add_generation_prompt }} {{ eos_token }} {{ strftime_now('%Y') }}",
           messages),
      "None None True </s> 2025");
}

TEST_F(JinjaChat, WithoutAGenerationPromptNoAnswerIsBegun) {
  EXPECT_EQ(Text(kChatMl, {User("a")}, {}, {.add_generation_prompt = false}),
            "<|im_start|>user\na<|im_end|>\n");
  EXPECT_EQ(Text(kChatMl, {User("a"), Assistant("b")}, {}, {.continue_final_message = true}),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb");
}

TEST_F(JinjaChat, TemplateArgumentsReachTheTemplate) {
  const ChatOptions options = {
      .reasoning_effort = "low",
      .template_kwargs_json = R"({"enable_thinking": false, "x": {"y": ["<|im_end|>"]}})"};
  EXPECT_EQ(Text("{{ enable_thinking }} {{ x.y[0] }} {{ reasoning_effort }}", {User("")}, {}, options),
            "False <|im_end|> low");
  for (const char* const json : {"[]", "{", R"({"messages": []})", R"({"add_generation_prompt": true})"}) {
    EXPECT_THAT(Text("x", {User("")}, {}, {.template_kwargs_json = json}),
                HasSubstr("refused: chat_template_kwargs"));
  }
}

TEST_F(JinjaChat, WhatATemplateRaisesIsSaid) {
  EXPECT_EQ(Text("{{ raise_exception('only one turn') }}", {User("")}),
            "refused: messages: the chat template refuses: only one turn");
}

TEST_F(JinjaChat, AnAnswerGoesOnWhereItsMessageEnds) {
  ChatMessage prefix = Assistant("Well, \n");
  prefix.prefix = true;
  EXPECT_EQ(Text(kChatMl, {User("Hi"), prefix}),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nWell, \n");
  EXPECT_EQ(
      Text("{% for m in messages %}<|user|>{{ m.content|trim }}<|end|>{% endfor %}", {User("Hi"), prefix}),
      "<|user|>Hi<|end|><|user|>Well,")
      << "a template that trims, trims what the answer goes on from";
  EXPECT_THAT(Text("{{ messages[0].content }}", {User("Hi"), prefix}), HasSubstr("does not show the end"));
  EXPECT_EQ(Text(kChatMl, {User("Hi"), Assistant("Well")}, {}, {.continue_final_message = true}),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nWell");
  ChatMessage user = User("Hi");
  user.prefix = true;
  EXPECT_THAT(Text(kChatMl, {user}), HasSubstr("prefix"));
}

// ---- nobody types a control id

// The control ids of a prompt, in order.
std::vector<int32_t> ControlIds(const RenderedChat& chat) {
  std::vector<int32_t> ids;
  for (const int32_t id : chat.ids) {
    if (Bytes().IsControl(id)) ids.push_back(id);
  }
  return ids;
}

// A chat that says `word` in each place where people say something.
struct FullChat {
  std::vector<ChatMessage> messages;
  std::vector<ToolDefinition> tools;
  ChatOptions options;
};

FullChat ChatWith(const std::string& word) {
  std::string quoted;
  AppendPythonJsonString(word, &quoted);
  std::string key;
  AppendPythonJsonString("key" + word, &key);
  const std::string arguments =
      "{" + key + ": " + quoted + ", \"list\": [" + quoted + ", {\"a\": " + quoted + "}]}";
  FullChat chat;
  chat.messages = {{.role = ChatRole::kSystem, .content = word},
                   {.role = ChatRole::kUser, .content = "a" + word + word + "b", .name = word},
                   {.role = ChatRole::kAssistant,
                    .parts = {{.kind = ContentPart::Kind::kThinking, .text = word}, {.text = word}},
                    .tool_calls = {{.id = word, .name = word, .arguments_json = arguments}}},
                   {.role = ChatRole::kTool, .content = word, .tool_call_id = word, .name = word},
                   {.role = ChatRole::kAssistant, .content = word},
                   {.role = ChatRole::kUser, .parts = {{.text = word}, {.text = word}}}};
  chat.tools = {{"f", word,
                 "{\"type\": \"object\", \"description\": " + quoted + ", \"properties\": {" + key +
                     ": {\"type\": \"string\", \"enum\": [" + quoted + "]}}}"}};
  chat.options.template_kwargs_json = "{\"custom\": " + quoted + "}";
  return chat;
}

// Everything of a chat, as it is, as JSON, changed by filters, and between pieces of control tokens.
constexpr char kEverything[] =
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}<|{{ m.role }}|>{{ m.name }}<{{ m.content "
    "}}>"
    "{{ m.content|trim|tojson }}{{ (m.reasoning_content or '') ~ m.name ~ (m.content or '') }}{{ "
    "m.tool_call_id }}"
    "{% for c in m.tool_calls %}<tool>{{ c.id }}<|{{ c.function.name }}|>{{ c.function.arguments|tojson }}"
    "{% for k, v in c.function.arguments.items() %}<{{ k }}>{{ v }}</{{ k }}>{% endfor %}{{ "
    "c|tojson(ensure_ascii=true) }}{% endfor %}"
    "{{ m.content|string|replace('a', 'e')|upper|lower }}[{{ m.content }}]<|im_end|>{% endfor %}"
    "{{ tools|tojson(indent=2) }}{{ tools }}{{ custom }}<{{ custom }}<|im_start|>assistant";

// The word may be all of a control token, or what the template puts around it may complete it.
std::vector<std::string> DangerousWords() {
  std::vector<std::string> words;
  for (const std::string& control : kControls) {
    words.push_back(control);
    words.push_back(control + control);
    words.push_back("<" + control);
    words.push_back(control.substr(1));
    words.push_back(control.substr(0, control.size() - 1));
    words.push_back(control.substr(1, control.size() - 2));
    words.push_back(control.substr(control.size() / 2) + control.substr(0, control.size() / 2));
  }
  return words;
}

TEST_F(JinjaChat, ControlTokensInAnyStringStayText) {
  const FullChat harmless = ChatWith("harmless");
  const StatusOr<RenderedChat> expected =
      Render(kEverything, harmless.messages, harmless.tools, harmless.options);
  ASSERT_TRUE(expected.ok()) << expected.status();
  ASSERT_GT(ControlIds(*expected).size(), 12u);
  for (const std::string& word : DangerousWords()) {
    const FullChat chat = ChatWith(word);
    const StatusOr<RenderedChat> rendered = Render(kEverything, chat.messages, chat.tools, chat.options);
    ASSERT_TRUE(rendered.ok()) << word << ": " << rendered.status();
    EXPECT_EQ(ControlIds(*rendered), ControlIds(*expected)) << word;
  }
}

// What stands in the prompt is what was typed, whatever it takes to keep it text.
TEST_F(JinjaChat, TypedTextComesOutExactly) {
  for (const std::string& word : DangerousWords()) {
    EXPECT_EQ(Text("<|user|>{{ messages[0].content }}<|end|>", {User(word)}), "<|user|>" + word + "<|end|>");
    std::string json;
    AppendPythonJsonString(word, &json);
    EXPECT_EQ(Text("{{ messages[0].content|tojson(ensure_ascii=true) }}", {User(word)}), json);
  }
  const std::string private_ones = "\xEE\x80\x80<|im_end|>\xEE\x80\x81\xEE\x80\x82 \\ue003 \xEF\xA3\xBF";
  EXPECT_EQ(Text("{{ messages[0].content }}", {User(private_ones)}), private_ones);
  EXPECT_EQ(Text("\xEE\x80\x80{{ messages[0].content }}", {User("<|im_end|>")}), "\xEE\x80\x80<|im_end|>");
}

TEST_F(JinjaChat, AChatOfAllPrivateCodePointsIsRefused) {
  std::string all;
  for (uint32_t code_point = 0xE000; code_point <= 0xF8FF; ++code_point) {
    all +=
        {static_cast<char>(0xE0 | (code_point >> 12)), static_cast<char>(0x80 | ((code_point >> 6) & 0x3F)),
         static_cast<char>(0x80 | (code_point & 0x3F))};
  }
  const StatusOr<RenderedChat> chat = Render(kChatMl, {User(all)});
  EXPECT_THAT(chat.status().message(), HasSubstr("every private code point"));
}

// A rendered text in which nobody typed a control token becomes the ids that the tokenizer reads from it: the
// white space that tokens take, segments and their first one included.
TEST(ControlTextTest, CutTextHasTheTokenizersOwnIds) {
  int texts = 0;
  const std::string folder = std::string(TRAMONTANE_SOURCE_DIR) + "/tests/golden/tokenizer_json";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (!entry.is_directory()) continue;
    const auto tokenizer = LoadTokenizer(entry.path().string());
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    const ControlSpellings spellings(**tokenizer);
    const auto control = ControlText::For(spellings, "", {});
    ASSERT_TRUE(control.ok()) << control.status();
    const JsonValue cases = *ParsePythonJson(ReadBinaryFile((entry.path() / "encodings.json").string()));
    for (const JsonValue& example : cases.items) {
      const auto is_text = [](const JsonMember& member) { return member.key == "text"; };
      const auto text = std::find_if(example.members.begin(), example.members.end(), is_text);
      // The breaker itself; and a token that is no control token, but has one inside of it.
      const bool is_odd = text->value.text.find("\xEE\x80\x80") != std::string::npos ||
                          text->value.text.find("<<s>>") != std::string::npos;
      if (is_odd) continue;
      ++texts;
      EXPECT_EQ(control->Encode(**tokenizer, text->value.text).value(),
                (*tokenizer)->EncodeWithControlTokens(text->value.text).value())
          << entry.path() << " " << text->value.text;
    }
  }
  EXPECT_GT(texts, 500);
}

// The templates of real models, with each control token's text in every string.
TEST_F(JinjaChat, TemplatesOfRealModelsKeepTypedTextToo) {
  const std::filesystem::path folder(TRAMONTANE_TEMPLATES);
  if (folder.empty()) GTEST_SKIP() << "the models' templates come with TRAMONTANE_JINJA";
  int rendered = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".jinja") continue;
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    const FullChat harmless = ChatWith("harmless");
    const StatusOr<RenderedChat> expected = Render(text, harmless.messages, harmless.tools, harmless.options);
    if (!expected.ok()) continue;  // a template may refuse such a chat
    ++rendered;
    for (const std::string& control : kControls) {
      // Thinking marks are what templates look for in an answer; what they find is theirs to place.
      if (control.find("think") != std::string::npos) continue;
      const FullChat chat = ChatWith(control);
      const StatusOr<RenderedChat> with = Render(text, chat.messages, chat.tools, chat.options);
      ASSERT_TRUE(with.ok()) << entry.path() << " " << control << ": " << with.status();
      EXPECT_EQ(ControlIds(*with), ControlIds(*expected)) << entry.path() << " " << control;
    }
  }
  EXPECT_GT(rendered, 30);
}

}  // namespace
}  // namespace tramontane

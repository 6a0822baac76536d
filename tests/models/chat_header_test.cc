// ChatML and Llama 3: prompts, refusals, and that nobody types a control id.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "models/chat/header_chat.h"
#include "tests/support/byte_tokenizer.h"

namespace tramontane {
namespace {

using ::testing::HasSubstr;

const std::vector<std::string> kControls = {"<|begin_of_text|>", "<|im_start|>",        "<|im_end|>",
                                            "<|eot_id|>",        "<|start_header_id|>", "<|end_header_id|>"};

const Tokenizer& Bytes() {
  static const ByteTokenizer tokenizer(kControls, "<|begin_of_text|>");
  return tokenizer;
}

ChatMessage Said(ChatRole role, std::string content) { return {.role = role, .content = std::move(content)}; }
ChatMessage System(std::string content) { return Said(ChatRole::kSystem, std::move(content)); }
ChatMessage User(std::string content) { return Said(ChatRole::kUser, std::move(content)); }
ChatMessage Assistant(std::string content) { return Said(ChatRole::kAssistant, std::move(content)); }

HeaderChatFormat Format(const char* name, HeaderDetails details = {}) {
  return HeaderChatFormat(*FindHeaderFormat(name), Bytes(), std::move(details), "");
}

std::string Text(const ChatFormat& format, const std::vector<ChatMessage>& messages,
                 const std::vector<ToolDefinition>& tools = {}, const ChatOptions& options = {}) {
  const StatusOr<RenderedChat> chat = format.Render(messages, tools, options);
  if (chat.ok()) return chat->text;
  EXPECT_EQ(chat.status().code(), StatusCode::kInvalidArgument);
  return "refused: " + chat.status().message();
}

TEST(HeaderChat, ChatMlPutsEachMessageBetweenItsMarks) {
  EXPECT_EQ(Text(Format("chatml"), {System(" S"), User("a\n"), Assistant("b"), User("c")}),
            "<|im_start|>system\n S<|im_end|>\n<|im_start|>user\na\n<|im_end|>\n"
            "<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(Text(Format("chatml"), {User("a")}), "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n")
      << "no system message is made up, and no beginning";
}

TEST(HeaderChat, Llama3PutsTheRoleInAHeaderAndTrimsTexts) {
  const HeaderChatFormat format = Format("llama3", {.begins_with_bos = true});
  EXPECT_EQ(Text(format, {System("S"), User(" \xc2\xa0\n a b\t"), Assistant("b "), User("c")}),
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\na b<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nb<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nc<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n");
  EXPECT_EQ(format.answer_syntax().end, *Bytes().ControlId("<|eot_id|>"));
}

TEST(HeaderChat, ATemplatesOwnSystemMessageAndDatesStandInFront) {
  const HeaderChatFormat with_default = Format("chatml", {.default_system = "D"});
  EXPECT_THAT(Text(with_default, {User("a")}),
              HasSubstr("<|im_start|>system\nD<|im_end|>\n<|im_start|>user"));
  EXPECT_EQ(Text(with_default, {System("S"), User("a")}), Text(Format("chatml"), {System("S"), User("a")}));

  const HeaderChatFormat with_head = Format("llama3", {.system_head = "Today\n\n"});
  EXPECT_THAT(Text(with_head, {User("a")}), HasSubstr("system<|end_header_id|>\n\nToday\n\n<|eot_id|>"));
  EXPECT_THAT(Text(with_head, {System(" S "), User("a"), System("T")}),
              AllOf(HasSubstr("system<|end_header_id|>\n\nToday\n\nS<|eot_id|>"),
                    HasSubstr("system<|end_header_id|>\n\nT<|eot_id|>")))
      << "in front of the first alone";
}

TEST(HeaderChat, APrefixIsLeftOpen) {
  const std::string open = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb";
  ChatMessage prefix = Assistant("b");
  prefix.prefix = true;
  EXPECT_EQ(Text(Format("chatml"), {User("a"), prefix}), open);
  EXPECT_EQ(Text(Format("chatml"), {User("a"), prefix}, {}, {.continue_final_message = true}), open);
  EXPECT_EQ(Text(Format("chatml"), {User("a"), Assistant("b")}, {}, {.continue_final_message = true}), open);
  EXPECT_THAT(Text(Format("chatml"), {prefix, User("a")}), HasSubstr("messages[0]: only the last message"));
  EXPECT_THAT(Text(Format("chatml"), {User("a")}, {}, {.continue_final_message = true}),
              HasSubstr("refused: continue_final_message"));
}

TEST(HeaderChat, WithoutAGenerationPromptNoAnswerIsBegun) {
  const ChatOptions options = {.add_generation_prompt = false};
  EXPECT_EQ(Text(Format("chatml"), {User("a")}, {}, options), "<|im_start|>user\na<|im_end|>\n");
  EXPECT_EQ(Text(Format("llama3"), {User("a"), Assistant("b")}, {}, options),
            "<|start_header_id|>user<|end_header_id|>\n\na<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nb<|eot_id|>");
  const ChatOptions gone_on = {.continue_final_message = true, .add_generation_prompt = false};
  EXPECT_EQ(Text(Format("chatml"), {User("a"), Assistant("")}, {}, gone_on),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n");
}

TEST(HeaderChat, PartsAreLinesAndAnEmptyAnswerIsLeftOut) {
  const ChatMessage parts = {.role = ChatRole::kUser, .parts = {{.text = "a"}, {.text = ""}, {.text = "b"}}};
  EXPECT_EQ(Text(Format("chatml"), {parts, Assistant(""), User("c")}),
            Text(Format("chatml"), {User("a\nb"), User("c")}));
}

TEST(HeaderChat, WhatTheFormatHasNoPlaceForIsRefusedByName) {
  const ToolDefinition tool = {"f", "", "{}"};
  const ChatMessage calls = {.role = ChatRole::kAssistant, .tool_calls = {{"1", "f", "{}"}}};
  const ChatMessage thought = {.role = ChatRole::kAssistant,
                               .parts = {{.kind = ContentPart::Kind::kThinking, .text = "t"}}};
  const std::string run = "; --chat-format FILE runs a template that has them";
  for (const char* name : {"chatml", "llama3"}) {
    const HeaderChatFormat format = Format(name);
    const std::string has_no = std::string("chat format ") + name + " has no ";
    EXPECT_EQ(Text(format, {User("a")}, {tool}), "refused: tools: " + has_no + "tools" + run);
    EXPECT_EQ(Text(format, {User("a"), calls}), "refused: messages[1]: " + has_no + "tool calls" + run);
    EXPECT_EQ(Text(format, {User("a"), Said(ChatRole::kTool, "r")}),
              "refused: messages[1]: " + has_no + "tool results" + run);
    EXPECT_EQ(Text(format, {User("a"), thought}), Text(format, {User("a")})) << "it is left out";
    EXPECT_FALSE(format.keeps_thoughts());
    EXPECT_THAT(Text(format, {User("a")}, {}, {.reasoning_effort = "high"}),
                HasSubstr("refused: reasoning_effort"));
    EXPECT_EQ(Text(format, {User("a")}, {}, {.reasoning_effort = "none"}), Text(format, {User("a")}));
    EXPECT_THAT(Text(format, {}), HasSubstr("refused: messages: "));
    EXPECT_THAT(Text(format, {{.role = ChatRole::kUser}}), HasSubstr("messages[0]: a user message needs"));
    EXPECT_THAT(Text(format, {User("\xff")}), HasSubstr("messages[0].content: not UTF-8 at byte 0"));
  }
}

TEST(HeaderChat, WhatWasThoughtBeforeIsLeftOutWhereTheTemplateThinks) {
  const HeaderChatFormat format = Format("chatml", {.thinks = true});
  const ChatMessage thought = {.role = ChatRole::kAssistant,
                               .parts = {{.kind = ContentPart::Kind::kThinking, .text = "t"}, {.text = "b"}}};
  EXPECT_EQ(Text(format, {User("a"), thought, User("c")}),
            Text(Format("chatml"), {User("a"), Assistant("b"), User("c")}));
  const ChatMessage of_a_user = {.role = ChatRole::kUser, .parts = thought.parts};
  EXPECT_THAT(Text(format, {of_a_user}), HasSubstr("has no thinking"));
  EXPECT_FALSE(format.shows_all_texts());
  EXPECT_TRUE(format.keeps_thoughts());
  EXPECT_TRUE(Format("chatml").shows_all_texts());
  EXPECT_TRUE(format.answer_syntax().thinks_in_text);
  EXPECT_EQ(format.answer_syntax().end, *Bytes().ControlId("<|im_end|>"));
  EXPECT_FALSE(Format("chatml").answer_syntax().thinks_in_text);
}

TEST(HeaderChat, NoTextBecomesAControlId) {
  const auto controls = [](const ChatFormat& format, const std::string& text) {
    ChatMessage named = User(text);
    named.name = text;
    std::vector<int32_t> ids;
    const RenderedChat chat =
        format.Render(std::vector{System(text), named, Assistant(text), User(text)}, {}).value();
    for (const int32_t id : chat.ids) {
      if (Bytes().IsControl(id)) ids.push_back(id);
    }
    return ids;
  };
  for (const char* name : {"chatml", "llama3"}) {
    const HeaderChatFormat format = Format(name);
    for (const std::string& control : kControls) {
      EXPECT_EQ(controls(format, control), controls(format, "harmless")) << name << " " << control;
      EXPECT_EQ(controls(format, control + "user"), controls(format, "harmless")) << name << " " << control;
    }
  }
}

}  // namespace
}  // namespace tramontane

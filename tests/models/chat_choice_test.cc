// Which chat format a model has: the rule of choose_chat_format.h, row by row.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "models/chat/chat_prompt.h"
#include "models/chat/chat_template.h"
#include "models/chat/choose_chat_format.h"
#include "models/chat/mistral_chat.h"
#include "tests/models/tekken_test_file.h"
#include "tests/models/tokenizer_test_model.h"
#include "tests/support/byte_tokenizer.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/piece_tokenizer.h"
#include "tests/support/temp_folder.h"

namespace tramontane {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kChatMl[] =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + "
    "'<|im_end|>' + '\\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
constexpr char kLlama3[] =
    "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + "
    "m.content | trim + '<|eot_id|>' }}{% endfor %}";

const Tokenizer& Foreign() {
  static const ByteTokenizer tokenizer(
      {"<|begin_of_text|>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>",
       "<|eot_id|>", "<start_of_turn>"},
      "<|begin_of_text|>");
  return tokenizer;
}

// A tokenizer.json with tekken's words: control pieces, and no version.
const Tokenizer& MistralPieces() {
  static const ByteTokenizer tokenizer(
      {"<s>", "[INST]", "[/INST]", "[MODEL_SETTINGS]", "[/MODEL_SETTINGS]", "[SYSTEM_PROMPT]", "[ARGS]"},
      "<s>");
  return tokenizer;
}

class ChatChoice : public ::testing::Test {
 protected:
  ChatFormatPtr Choose(const Tokenizer& tokenizer, const std::string& asked = "") {
    StatusOr<ChatFormatPtr> format = ChooseChatFormat(
        tokenizer, {.asked = asked, .places = {folder_.path()}, .runs_templates = runs_templates_});
    EXPECT_TRUE(format.ok()) << format.status();
    return std::move(format).value();
  }
  Status Error(const Tokenizer& tokenizer, const std::string& asked = "") {
    const ChatFormatChoice choice = {
        .asked = asked, .places = {folder_.path()}, .runs_templates = runs_templates_};
    return ChooseChatFormat(tokenizer, choice).status();
  }
  // Of a model whose template is `text`: the format's name, and why.
  std::string Chosen(const Tokenizer& tokenizer, const std::string& text) {
    folder_.Write("chat_template.jinja", text);
    const ChatFormatPtr format = Choose(tokenizer);
    return format->name() + ": " + format->why();
  }
  static Status Hello(const ChatFormat& format) {
    return format.Render(std::vector{ChatMessage{.role = ChatRole::kUser, .content = "Hi"}}, {}).status();
  }
  static std::string HelloText(const ChatFormat& format) {
    return format.Render(std::vector{ChatMessage{.role = ChatRole::kUser, .content = "Hi"}}, {}).value().text;
  }

  TempFolder folder_;
  bool runs_templates_ = false;
};

TEST_F(ChatChoice, AFileOfMistralsOwnSaysItsVersionWhateverTheTemplate) {
  folder_.Write("chat_template.jinja", kChatMl);
  EXPECT_EQ(Choose(Breeze())->name(), "v3");
  EXPECT_THAT(Choose(Breeze())->why(), HasSubstr("the suffix of its name"));
  const auto tekken = SmallTekken(TekkenJson({}, "v11"));
  EXPECT_EQ(Choose(*tekken)->name(), "v11");
  EXPECT_THAT(Choose(*tekken)->why(), HasSubstr("tekken.json says so"));
}

TEST_F(ChatChoice, MistralsPiecesWithoutAVersionHaveThatOfTheTemplate) {
  EXPECT_THAT(Choose(MistralPieces())->name(), "v3") << "no template";
  EXPECT_THAT(Chosen(MistralPieces(), "[INST]"), HasSubstr("v3: the template in chat_template.jinja"));
  EXPECT_EQ(Chosen(MistralPieces(), "[SYSTEM_PROMPT]"),
            "v7: the template in chat_template.jinja names [SYSTEM_PROMPT]");
  EXPECT_THAT(Chosen(MistralPieces(), "[SYSTEM_PROMPT] [ARGS]"), HasSubstr("v13: "));
  EXPECT_THAT(Chosen(MistralPieces(), "[ARGS] [CALL_ID]"), HasSubstr("v11: "));
  EXPECT_THAT(Chosen(MistralPieces(), "[ARGS] [CALL_ID] [THINK]"), HasSubstr("v13: "));
  EXPECT_THAT(Chosen(MistralPieces(), "[THINK] [MODEL_SETTINGS]"), HasSubstr("v15: "));
  EXPECT_EQ(HelloText(*Choose(MistralPieces())),
            "<s>[MODEL_SETTINGS]{\"reasoning_effort\": \"none\"}[/MODEL_SETTINGS][INST]Hi[/INST]")
      << "v15 without a file that says its settings has the usual ones";
}

// One of Mistral's that was trained further has pieces of both.
TEST_F(ChatChoice, TurnsOfAnotherFormatWhosePiecesWereAddedWinOverMistrals) {
  const ByteTokenizer both({"<s>", "[INST]", "[/INST]", "<|im_start|>", "<|im_end|>"}, "<s>");
  EXPECT_THAT(Chosen(both, kChatMl), HasSubstr("chatml: "));
  EXPECT_THAT(Chosen(both, "[INST] <|im_start|> <|im_end|>"), HasSubstr("v3: "));
  EXPECT_THAT(Chosen(both, std::string(kChatMl) + "<|other|>"), HasSubstr("none: ")) << "none that is known";
  SentencePieceModel model = SmallModel({{"a", -1}});
  for (const char* turn : {"<|im_start|>", "<|im_end|>"})
    model.pieces.push_back({turn, 0, SentencePieceModel::Type::kControl});
  const SentencePieceTokenizer versioned(model, TokenizerVersion::kV3);
  EXPECT_THAT(Chosen(versioned, kChatMl), HasSubstr("chatml: "));
  EXPECT_THAT(Chosen(versioned, kLlama3), HasSubstr("v3: ")) << "whose pieces it lacks";
}

TEST_F(ChatChoice, WhereNoFileSaysHowATextBeginsAndEndsMistralsPiecesDo) {
  const PieceTokenizer pieces({"<s>", "</s>", "[INST]"});
  const MistralChatFormat format(pieces, TokenizerVersion::kV3);
  EXPECT_EQ(pieces.eos_id(), -1);
  EXPECT_EQ(format.answer_syntax().end, 1);
  EXPECT_EQ(BeginningOf(pieces), 0);
}

// The keys of the file are a place like a folder; what lies first counts.
TEST_F(ChatChoice, AGgufFileMayHaveTheTemplate) {
  GgufWriter writer;
  writer.AddString("tokenizer.chat_template", kChatMl);
  folder_.Write("model.gguf", writer.File());
  folder_.Write("none.gguf", GgufWriter().File());
  folder_.Write("chat_template.jinja", kLlama3);
  const auto chosen = [&](const std::vector<std::string>& names) {
    ChatFormatChoice choice;
    for (const std::string& name : names) choice.places.push_back(folder_.PathOf(name));
    choice.runs_templates = false;
    const ChatFormatPtr format = ChooseChatFormat(Foreign(), choice).value();
    return format->name() + ": " + format->why();
  };
  EXPECT_EQ(chosen({"model.gguf", ""}), "chatml: the template in model.gguf names <|im_start|>");
  EXPECT_EQ(chosen({"none.gguf", ""}),
            "llama3: the template in chat_template.jinja names <|start_header_id|>");
  EXPECT_THAT(chosen({"none.gguf"}), HasSubstr("none: there is no chat template"));
  GgufWriter broken;
  broken.AddUint32("tokenizer.chat_template", 7);
  folder_.Write("broken.gguf", broken.File());
  const Status refused =
      ChooseChatFormat(Foreign(), {.asked = "", .places = {folder_.PathOf("broken.gguf")}}).status();
  EXPECT_THAT(refused.message(), AllOf(HasSubstr("broken.gguf"), HasSubstr("tokenizer.chat_template")));
}

TEST_F(ChatChoice, ChatMlAndLlama3AreKnownByPiecesAndTemplate) {
  EXPECT_EQ(Chosen(Foreign(), kChatMl), "chatml: the template in chat_template.jinja names <|im_start|>");
  EXPECT_EQ(HelloText(*Choose(Foreign())), "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(Choose(Foreign())->answer_syntax().end, *Foreign().ControlId("<|im_end|>"));
  EXPECT_THAT(Chosen(Foreign(), kLlama3), HasSubstr("llama3: "));
  EXPECT_THAT(HelloText(*Choose(Foreign())), HasSubstr("<|begin_of_text|><|start_header_id|>user"));
  EXPECT_THAT(Chosen(Foreign(), std::string(kChatMl) + "<|im_sep|>"), HasSubstr("none: "))
      << "a token that ChatML has not";
  EXPECT_THAT(Chosen(Breeze(), kChatMl), HasSubstr("v3: ")) << "Mistral's pieces win";
  EXPECT_THAT(Chosen(ByteTokenizer(), kChatMl), HasSubstr("none: ")) << "no such pieces";
}

TEST_F(ChatChoice, WhatATemplateSpellsOutIsTaken) {
  Chosen(Foreign(), std::string(kChatMl) + "{{ '<|im_start|>system\\n' + messages[0] + '<|im_end|>' }}" +
                        "{{ bos_token + '<|im_start|>system\\nYou are D.<|im_end|>\\n' }}");
  EXPECT_THAT(HelloText(*Choose(Foreign())),
              HasSubstr("<|begin_of_text|><|im_start|>system\nYou are D.<|im_end|>\n<|im_start|>user"));
  Chosen(Foreign(), std::string(kLlama3) +
                        "{% set date_string = strftime_now(\"%d\") %}{% set date_string = \"26 Jul 2024\" %}"
                        "{{ \"Cutting Knowledge Date: December 2023\\n\" }}");
  EXPECT_THAT(HelloText(*Choose(Foreign())),
              HasSubstr("Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n<|eot_id|>"));
}

TEST_F(ChatChoice, AnyOtherTemplateIsNoFormatAndItsFirstUnknownTokenIsNamed) {
  for (const std::string text :
       {"{{ '<s>[INST]<|user|>' }}<|other|>", "<<|user|>", "[0] <start_of> <|user|>"}) {
    EXPECT_THAT(Chosen(Foreign(), text), AllOf(HasSubstr("none: "), HasSubstr(" names <|user|>,"),
                                               HasSubstr("--chat-format NAME|FILE")));
  }
  EXPECT_THAT(Chosen(Foreign(), "{{ '<start_of_turn>' }}<|user|>"), HasSubstr("names <start_of_turn>,"));
  EXPECT_THAT(Chosen(Foreign(), "{{ messages }}"), HasSubstr("is none that is known here"));
  const Status hello = Hello(*Choose(Foreign()));
  EXPECT_EQ(hello.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(hello.message(), HasSubstr("--chat-format"));
}

TEST_F(ChatChoice, WithoutATemplateThereIsNoFormat) {
  const ChatFormatPtr format = Choose(Foreign());
  EXPECT_TRUE(format->is_none());
  EXPECT_THAT(Hello(*format).message(), AllOf(HasSubstr("no chat template"), HasSubstr("--chat-format")));
}

TEST_F(ChatChoice, AVocabularyThatLacksItsVersionsPiecesHasNoFormat) {
  nlohmann::json file = TekkenJson({}, "v7");
  for (nlohmann::json& token : file["special_tokens"]) {
    if (token["token_str"] == "[INST]") token["token_str"] = "[other]";
  }
  const auto tekken = SmallTekken(file);
  EXPECT_EQ(Choose(*tekken)->name(), "none");
  EXPECT_THAT(Hello(*Choose(*tekken)).message(), AllOf(HasSubstr("v7"), HasSubstr("[INST]")));
}

TEST_F(ChatChoice, AFileWithoutControlPiecesMayBeThatOfAnotherModel) {
  const SentencePieceTokenizer v1(SmallModel({{"a", -1}}), TokenizerVersion::kV1);
  EXPECT_EQ(Choose(v1)->name(), "v1");
  EXPECT_THAT(Chosen(v1, "{{ '[INST] ' + m + ' [/INST]' }}"), HasSubstr("v1: "));
  EXPECT_THAT(Chosen(v1, "[INST] <<SYS>>"), HasSubstr("none: "));
  EXPECT_THAT(Chosen(v1, "{{ '<|user|>' }}"), HasSubstr("names <|user|>"));
}

// As Mistral 7B v0.1 is in a GGUF file.
TEST_F(ChatChoice, AVocabularyWithoutInstAndAPlainTemplateIsTheFirstFormat) {
  SentencePieceModel model = SmallModel({{"a", -1}});
  model.pieces.erase(model.pieces.begin() + 3, model.pieces.begin() + 5);  // [INST] and [/INST]
  const SentencePieceTokenizer spm(model, std::nullopt);
  ASSERT_FALSE(spm.ControlId("[INST]") || spm.ControlId("[/INST]"));
  constexpr char kPlain[] =
      "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + "
      "' [/INST]' }}{% else %}{{ m['content'] + eos_token + ' ' }}{% endif %}{% endfor %}";
  for (const bool runs : {false, true}) {
    if (runs && !HasJinja()) continue;
    runs_templates_ = runs;
    EXPECT_EQ(Chosen(spm, kPlain),
              "v1: the template in chat_template.jinja names [INST], which is text to the vocabulary");
    const std::vector<ChatMessage> hello = {{.role = ChatRole::kUser, .content = "Hi"}};
    std::vector<int32_t> ids = spm.Encode("[INST] Hi [/INST]").value();
    ids.insert(ids.begin(), spm.bos_id());
    EXPECT_EQ(Choose(spm)->Render(hello, {}).value().ids, ids);
    const std::string otherwise = runs ? "jinja: " : "none: ";
    EXPECT_THAT(Chosen(spm, "{{ bos_token }}[INST] <<SYS>> [/INST]"), HasSubstr(otherwise)) << "Llama 2";
    EXPECT_THAT(Chosen(spm, std::string(kPlain) + "[AVAILABLE_TOOLS]"), HasSubstr(otherwise))
        << "a later one";
    EXPECT_THAT(Chosen(spm, std::string(kPlain) + "<|user|>"), HasSubstr(otherwise));
    EXPECT_THAT(Chosen(Foreign(), kPlain), HasSubstr(otherwise)) << "without <s>";
    EXPECT_THAT(Chosen(MistralPieces(), kPlain), HasSubstr("v3: ")) << "[INST] is a control piece";
  }
  if (!HasJinja()) return;
  EXPECT_THAT(Chosen(spm, "{{ bos_token }}[INST]{{ messages[0]['content'] }}[/INST]"), HasSubstr("jinja: "))
      << "without spaces";
}

TEST_F(ChatChoice, WhatIsAskedForWins) {
  folder_.Write("chat_template.jinja", kChatMl);
  EXPECT_EQ(Choose(Breeze(), "v2")->name(), "v2");
  EXPECT_EQ(Choose(Foreign(), "llama3")->name(), "llama3");
  EXPECT_THAT(HelloText(*Choose(Foreign(), "llama3")), HasSubstr("<|begin_of_text|>"));
  EXPECT_THAT(HelloText(*Choose(Foreign(), "chatml")), HasSubstr("<|im_start|>user")) << "no beginning";
  EXPECT_EQ(Choose(Foreign(), "chatml")->why(), "--chat-format asks for it");
  EXPECT_THAT(Error(Breeze(), "chatml").message(),
              HasSubstr("chat_format is chatml: the tokenizer has no control"));
  EXPECT_THAT(Error(Breeze(), "v4").message(), AllOf(HasSubstr("'v4'"), HasSubstr(ChatFormatNames())));
}

TEST_F(ChatChoice, AFileThatIsAskedForIsItsTemplate) {
  folder_.Write("mine.jinja", kLlama3);
  folder_.Write("other.jinja", "<|user|>");
  folder_.Write("broken.jinja", "\xff");
  EXPECT_EQ(Choose(Foreign(), folder_.PathOf("mine.jinja"))->name(), "llama3");
  EXPECT_THAT(Error(Foreign(), folder_.PathOf("other.jinja")).message(),
              HasSubstr("this build runs no templates"));
  EXPECT_THAT(Error(Foreign(), folder_.PathOf("broken.jinja")).message(), HasSubstr("not UTF-8 at byte 0"));
}

TEST_F(ChatChoice, AnyOtherTemplateIsRunWhereTheBuildCan) {
  if (!HasJinja()) GTEST_SKIP() << "this build has no Jinja templates (TRAMONTANE_JINJA)";
  runs_templates_ = true;
  const std::string text = "{{ bos_token }}{% for m in messages %}<|user|>{{ m.content }}{% endfor %}";
  EXPECT_EQ(Chosen(Foreign(), text), "jinja: the template in chat_template.jinja is that of no format here");
  EXPECT_EQ(HelloText(*Choose(Foreign())), "<|begin_of_text|><|user|>Hi");
  EXPECT_THAT(Chosen(Foreign(), kChatMl), HasSubstr("chatml: "));
  EXPECT_THAT(Chosen(MistralPieces(), text), HasSubstr("v3: ")) << "whatever template they carry";
  EXPECT_THAT(
      Chosen(Foreign(), "<|user|>{% if %}"),
      AllOf(HasSubstr("none: the template in chat_template.jinja: line 1: "), HasSubstr("--chat-format")));
  folder_.Write("mine.jinja", kLlama3);
  EXPECT_EQ(Choose(Foreign(), folder_.PathOf("mine.jinja"))->name(), "jinja") << "asked for, so it is run";
  folder_.Write("broken.jinja", "{% if %}");
  EXPECT_THAT(Error(Foreign(), folder_.PathOf("broken.jinja")).message(), HasSubstr("line 1: "));
}

constexpr char kWithGeneration[] =
    "{% for m in messages %}{{'<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n'}}{% endfor %}"
    "{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}{{ '<|im_start|>assistant\\n' }}";

TEST_F(ChatChoice, AKnownTemplateThatDoesMoreIsRunWhereTheBuildCan) {
  if (!HasJinja()) GTEST_SKIP() << "this build has no Jinja templates (TRAMONTANE_JINJA)";
  runs_templates_ = true;
  EXPECT_THAT(Chosen(Foreign(), kWithGeneration), HasSubstr("chatml: "));
  const std::string more =
      std::string("{{ '<|im_start|>system\\nToday' + '<|im_end|>\\n' }}") + kWithGeneration;
  EXPECT_EQ(Chosen(Foreign(), more),
            "jinja: the template in chat_template.jinja names <|im_start|>, and does more than chatml");
  EXPECT_EQ(Choose(Foreign())->answer_syntax().end, *Foreign().ControlId("<|im_end|>"));
  EXPECT_THAT(Chosen(Foreign(), std::string(kWithGeneration) + "{% if %}"), HasSubstr("chatml: "))
      << "a template that cannot be read is known by its pieces still";
}

TEST_F(ChatChoice, ToolsOfAKnownTemplateAreRenderedByIt) {
  if (!HasJinja()) GTEST_SKIP() << "this build has no Jinja templates (TRAMONTANE_JINJA)";
  runs_templates_ = true;
  Chosen(Foreign(), kWithGeneration);
  const ChatMessage hi = {.role = ChatRole::kUser, .content = "Hi"};
  const ToolDefinition tool = {"get", "", "{}"};
  const auto chat = Choose(Foreign())->Render(std::vector{hi}, std::vector{tool});
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_EQ(chat->text, "<|im_start|>user\nHi<|im_end|>\nget<|im_start|>assistant\n");
}

// A prompt is the ids that the tokenizer itself gives for the text that the template would make.
TEST_F(ChatChoice, AModelWithATokenizerJsonIsTalkedToInItsOwnIds) {
  const auto load = [](const char* name) {
    return LoadTokenizer(std::string(TRAMONTANE_SOURCE_DIR) + "/tests/golden/tokenizer_json/" + name).value();
  };
  const std::vector<ChatMessage> chat = {{.role = ChatRole::kSystem, .content = "Be brief.\n"},
                                         {.role = ChatRole::kUser, .content = "\nHow are you?"}};
  const auto expect = [&](const Tokenizer& tokenizer, const char* name, const std::string& text) {
    const ChatFormatPtr format = Choose(tokenizer);
    EXPECT_EQ(format->name(), name) << format->why();
    EXPECT_EQ(format->Render(chat, {}).value().ids, tokenizer.EncodeWithControlTokens(text).value()) << name;
  };
  folder_.Write("chat_template.jinja", kChatMl);
  for (const char* name : {"qwen2", "smollm"}) {
    expect(*load(name), "chatml",
           "<|im_start|>system\nBe brief.\n<|im_end|>\n<|im_start|>user\n\nHow are you?<|im_end|>\n"
           "<|im_start|>assistant\n");
  }
  folder_.Write("chat_template.jinja", kLlama3);
  expect(*load("llama3"), "llama3",
         "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
         "<|start_header_id|>user<|end_header_id|>\n\nHow are you?<|eot_id|>"
         "<|start_header_id|>assistant<|end_header_id|>\n\n");
  folder_.Write("chat_template.jinja", "[INST][TOOL_CALLS]");
  expect(*load("tekken"), "v3", "<s>[INST]Be brief.\n\n\n\nHow are you?[/INST]");
}

// ---- where a template stands

class TemplateFiles : public ChatChoice {
 protected:
  std::string Found() {
    const std::vector<std::string> folders = {folder_.path()};
    const auto found = FindChatTemplate(folders);
    if (!found.ok()) return found.status().message();
    return *found ? (*found)->file + ": " + (*found)->text : "none";
  }
};

TEST_F(TemplateFiles, AFileOfItsOwnGoesBeforeAKeyOfAnother) {
  EXPECT_EQ(Found(), "none");
  folder_.Write("tokenizer_config.json", R"({"bos_token": "<s>"})");
  EXPECT_EQ(Found(), "none");
  folder_.Write("tokenizer_config.json", R"({"chat_template": "a\n"})");
  EXPECT_EQ(Found(), "tokenizer_config.json: a\n");
  folder_.Write("chat_template.json", R"({"chat_template": "b"})");
  EXPECT_EQ(Found(), "chat_template.json: b");
  folder_.Write("chat_template.jinja", "c");
  EXPECT_EQ(Found(), "chat_template.jinja: c");
}

TEST_F(TemplateFiles, OfNamedTemplatesTheDefaultCounts) {
  folder_.Write(
      "tokenizer_config.json",
      R"({"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]})");
  EXPECT_EQ(Found(), "tokenizer_config.json: d");
  folder_.Write("tokenizer_config.json", R"({"chat_template": [{"name": "tool_use", "template": "t"}]})");
  EXPECT_THAT(Found(), HasSubstr("tokenizer_config.json: chat_template is neither"));
}

TEST_F(TemplateFiles, ATemplateHasALimit) {
  folder_.Write("chat_template.jinja", std::string(256 << 10, 'a'));
  EXPECT_EQ(Found().size(), std::string("chat_template.jinja: ").size() + (256 << 10));
  folder_.Write("chat_template.jinja", std::string((256 << 10) + 1, 'a'));
  EXPECT_THAT(Found(),
              HasSubstr("chat_template.jinja: a chat template of 262145 bytes, the limit is 262144"));
}

TEST_F(TemplateFiles, ABrokenFileIsNamed) {
  for (const char* text : {"{", R"({"chat_template": 3})", "\xff"}) {
    folder_.Write("tokenizer_config.json", text);
    EXPECT_THAT(Found(), HasSubstr("tokenizer_config.json: ")) << text;
    EXPECT_FALSE(Error(Foreign()).ok());
  }
}

}  // namespace
}  // namespace tramontane

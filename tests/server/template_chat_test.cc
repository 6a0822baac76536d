// A server whose model's template is run: what reaches the template, and what becomes of thinking as text.
// The template is a stand-in, so that builds without templates test it too.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "models/chat/template_chat.h"
#include "tests/server/scripted_server.h"

namespace tramontane {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Renders the values themselves, and `end` behind them.
class ShowsItsValues final : public JinjaTemplate {
 public:
  explicit ShowsItsValues(std::string end) : end_(std::move(end)) {}
  StatusOr<std::string> Render(const JsonValue& values, const std::tm& /*now*/) const override {
    std::string text;
    AppendPythonJson(values, &text);
    return text + end_;
  }

 private:
  const std::string end_;
};

ScriptedServerOptions Showing(std::string says, std::string end) {
  ScriptedServerOptions options;
  options.says = std::move(says);
  options.chat_format = [end](const Tokenizer& tokenizer) -> ChatFormatPtr {
    return std::make_unique<TemplateChatFormat>(tokenizer, "", std::make_unique<ShowsItsValues>(end), "");
  };
  return options;
}

v1::Chat Hello() {
  v1::Chat chat;
  v1::ChatMessage* message = chat.add_messages();
  message->set_role(v1::ROLE_USER);
  message->set_content("Hello");
  return chat;
}

TEST(TemplateChat, ArgumentsReachTheTemplate) {
  ScriptedServer server(Showing("", ""));
  v1::RenderChatRequest request;
  *request.mutable_chat() = Hello();
  request.mutable_chat()->set_chat_template_kwargs_json(R"({"enable_thinking": true})");
  const auto shown = server.client().RenderChat(request);
  ASSERT_TRUE(shown.ok()) << shown.status();
  EXPECT_THAT(shown->text(), HasSubstr("\"enable_thinking\":▁true"));
  request.mutable_chat()->set_chat_template_kwargs_json("[]");
  EXPECT_EQ(server.client().RenderChat(request).status().field(), "chat.chat_template_kwargs");
}

TEST(TemplateChat, OtherFormatsRefuseArguments) {
  ScriptedServer server;
  v1::RenderChatRequest request;
  *request.mutable_chat() = Hello();
  for (const char* const json : {"{}", R"({"enable_thinking": false})"}) {
    request.mutable_chat()->set_chat_template_kwargs_json(json);
    EXPECT_TRUE(server.client().RenderChat(request).ok()) << json;
  }
  request.mutable_chat()->set_chat_template_kwargs_json(R"({"enable_thinking": true})");
  const Status status = server.client().RenderChat(request).status();
  EXPECT_EQ(status.field(), "chat.chat_template_kwargs");
  EXPECT_THAT(status.message(), HasSubstr("chat format v3 is no template"));
}

TEST(TemplateChat, ACallCannotBeAskedFor) {
  ScriptedServer server(Showing("", ""));
  v1::GenerateRequest request;
  *request.mutable_chat() = Hello();
  request.mutable_chat()->add_tools()->set_name("f");
  for (const auto mode : {v1::TOOL_CHOICE_MODE_AUTO, v1::TOOL_CHOICE_MODE_NONE, v1::TOOL_CHOICE_MODE_REQUIRED,
                          v1::TOOL_CHOICE_MODE_NAMED}) {
    request.mutable_chat()->mutable_tool_choice()->set_mode(mode);
    request.mutable_chat()->mutable_tool_choice()->set_name(mode == v1::TOOL_CHOICE_MODE_NAMED ? "f" : "");
    request.mutable_stopping()->set_max_tokens(1);
    Stream stream(server.stub(), request);
    const bool may = mode == v1::TOOL_CHOICE_MODE_AUTO || mode == v1::TOOL_CHOICE_MODE_NONE;
    const grpc::Status status = stream.ReadAll();
    EXPECT_EQ(status.error_code(), may ? grpc::StatusCode::OK : grpc::StatusCode::INVALID_ARGUMENT) << mode;
    if (!may) {
      EXPECT_THAT(status.error_message(), HasSubstr("answers have no calls"));
    }
  }
}

constexpr int64_t kAnswerTokens = 60;

// What is thought and what is said of the first tokens of an answer, and how many of these are a thought.
struct Answer {
  std::string thought;
  std::string text;
  int64_t reasoning_tokens = 0;
};

Answer Said(const ScriptedServerOptions& options, bool is_chat = true) {
  ScriptedServer server(options);
  // The model says its text from position 0 on: what it says behind a prompt begins somewhere within.
  v1::GenerateRequest request;
  if (is_chat) {
    *request.mutable_chat() = Hello();
  } else {
    request.set_text("Hello");
  }
  request.mutable_stopping()->set_max_tokens(kAnswerTokens);
  Stream stream(server.stub(), request);
  EXPECT_TRUE(stream.ReadAll().ok());
  Answer said;
  for (const v1::GenerateResponse& event : stream.events()) {
    said.thought += event.delta().reasoning();
    said.text += event.delta().text();
    if (event.has_finished()) said.reasoning_tokens = event.finished().usage().reasoning_tokens();
  }
  return said;
}

TEST(TemplateChat, AThoughtThatThePromptLeavesOpenIsReasoning) {
  const auto [thought, text, reasoning_tokens] = Said(Showing("hm </think> yes ", "<think>\n"));
  EXPECT_THAT(thought, EndsWith("hm "));
  EXPECT_THAT(thought, Not(HasSubstr("</think>")));
  EXPECT_THAT(text, StartsWith(" yes"));
  EXPECT_THAT(text, HasSubstr("</think> yes")) << "a second mark is text";
  EXPECT_GT(reasoning_tokens, 0);
  EXPECT_LT(reasoning_tokens, kAnswerTokens);
}

TEST(TemplateChat, TextWithoutALeadingBlockIsTheAnswer) {
  const auto [thought, text, reasoning_tokens] = Said(Showing("hm yes ", "<think></think>"));
  EXPECT_EQ(thought, "");
  EXPECT_THAT(text, HasSubstr("hm yes  hm yes"));
  EXPECT_EQ(reasoning_tokens, 0);
}

TEST(TemplateChat, CompletionsTellNoThoughts) {
  const Answer said = Said(Showing("<think>", ""), /*is_chat=*/false);
  EXPECT_EQ(said.thought, "");
  EXPECT_EQ(said.reasoning_tokens, 0);
}

// Templates leave out what was thought in earlier turns, for one.
TEST(TemplateChat, AChatIsAsLongAsWhatTheTemplateShows) {
  class SaysHi final : public JinjaTemplate {
   public:
    StatusOr<std::string> Render(const JsonValue&, const std::tm&) const override {
      return std::string("Hi");
    }
  };
  ScriptedServerOptions options;
  options.chat_format = [](const Tokenizer& tokenizer) -> ChatFormatPtr {
    return std::make_unique<TemplateChatFormat>(tokenizer, "", std::make_unique<SaysHi>(), "");
  };
  ScriptedServer server(options);
  v1::GenerateRequest request;
  *request.mutable_chat() = Hello();
  request.mutable_chat()->mutable_messages(0)->set_content(std::string(2'000'000, 'a'));
  request.mutable_stopping()->set_max_tokens(1);
  Stream stream(server.stub(), request);
  EXPECT_TRUE(stream.ReadAll().ok());
}

// What may still become a mark when an answer ends is given at its end.
TEST(TemplateChat, WhatIsHeldBackComesAtTheEnd) {
  const auto [thought, text, reasoning_tokens] = Said(Showing("<", "<think>"));
  EXPECT_THAT(thought, EndsWith("< <"));
  EXPECT_EQ(text, "");
  EXPECT_EQ(reasoning_tokens, kAnswerTokens);
}

}  // namespace
}  // namespace tramontane

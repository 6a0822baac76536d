// What a server says of chats whose model has another format than Mistral's, or none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "models/chat/header_chat.h"
#include "models/chat/mistral_chat.h"
#include "server/core/model_info.h"
#include "server/core/proto_convert.h"
#include "tests/server/scripted_model.h"
#include "tests/support/byte_tokenizer.h"

namespace tramontane {
namespace {

using ::testing::HasSubstr;

class ChatFormats : public ::testing::Test {
 protected:
  ChatFormats() {
    served_.names = {"m"};
    served_.config.vocab_size = tokenizer_.vocab_size();
    served_.config.window = {0};
    served_.engine = &engine_;
    served_.tokenizer = &tokenizer_;
  }

  ProtoConverter With(const ChatFormat& format) {
    served_.chat_format = &format;
    return ProtoConverter(served_);
  }
  static v1::Chat Hi() {
    v1::Chat chat;
    v1::ChatMessage* message = chat.add_messages();
    message->set_role(v1::ROLE_USER);
    message->set_content("Hi");
    return chat;
  }
  static RpcError Rendered(const ProtoConverter& converter, const v1::Chat& chat,
                           std::string* text = nullptr) {
    v1::RenderChatRequest request;
    *request.mutable_chat() = chat;
    v1::RenderChatResponse response;
    RpcError error = converter.texts.RenderChat(request, &response);
    if (text != nullptr) *text = response.text();
    return error;
  }
  std::string ChatFormatOfModel() const {
    v1::GetModelResponse model;
    EXPECT_TRUE(GetModel(served_, {}, &model).ok());
    return model.chat_format();
  }
  static EngineLimits Limits() {
    EngineLimits limits;
    limits.context = 64;
    limits.page_size = 16;
    limits.pool_pages = 4;
    return limits;
  }

  const ByteTokenizer tokenizer_{{"<s>", "<|im_start|>", "<|im_end|>"}, "<s>"};
  const HeaderChatFormat chatml_{*FindHeaderFormat("chatml"), tokenizer_, {}, ""};
  SteadyClock clock_;
  ScriptedModel model_{{65}};
  Engine engine_{Limits(),
                 {tokenizer_.vocab_size(),
                  {tokenizer_.eos_id()},
                  MakeKvLayout({0}, {.kv_heads = 1, .head_dim = 8, .page_size = Limits().page_size})},
                 model_,
                 &tokenizer_,
                 clock_};
  ServedModel served_;
};

TEST_F(ChatFormats, OfAModelWithoutOneOnlyChatsAreRefused) {
  const ChatFormatPtr none = NoChatFormat("the template in x names <|user|>; --chat-format chooses");
  const ProtoConverter converter = With(*none);
  EXPECT_EQ(ChatFormatOfModel(), "");
  const RpcError error = Rendered(converter, Hi());
  EXPECT_EQ(error.code, StatusCode::kFailedPrecondition);
  EXPECT_THAT(error.message(), AllOf(HasSubstr("names <|user|>"), HasSubstr("--chat-format")));
  v1::GenerateRequest completion;
  completion.set_text("Hi");
  Request request;
  EXPECT_TRUE(converter.requests.Generate(completion, &request).ok());
  EXPECT_EQ(request.prompt.size(), 3u) << "the beginning and two letters";
}

TEST_F(ChatFormats, ChatMlChatsAreRenderedAndItsToolsRefused) {
  const ProtoConverter converter = With(chatml_);
  EXPECT_EQ(ChatFormatOfModel(), "chatml");
  v1::Chat chat = Hi();
  std::string text;
  EXPECT_TRUE(Rendered(converter, chat, &text).ok());
  EXPECT_EQ(text, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  chat.set_add_generation_prompt(false);
  EXPECT_TRUE(Rendered(converter, chat, &text).ok());
  EXPECT_EQ(text, "<|im_start|>user\nHi<|im_end|>\n");
  chat.add_tools()->set_name("f");
  EXPECT_THAT(Rendered(converter, chat).message(), HasSubstr("chat.tools: chat format chatml has no tools"));
  chat.mutable_tool_choice()->set_mode(v1::TOOL_CHOICE_MODE_NONE);
  EXPECT_TRUE(Rendered(converter, chat).ok()) << "tools that are not to be called are not shown";
}

TEST_F(ChatFormats, ACallCannotBeAskedForWhereAnswersHaveNone) {
  const MistralChatFormat v1_format(tokenizer_, TokenizerVersion::kV1);
  const ProtoConverter converter = With(v1_format);
  v1::GenerateRequest call;
  *call.mutable_chat() = Hi();
  call.mutable_chat()->add_tools()->set_name("f");
  Request request;
  EXPECT_TRUE(converter.requests.Generate(call, &request).ok()) << "v1 passes over tools";
  call.mutable_chat()->mutable_tool_choice()->set_mode(v1::TOOL_CHOICE_MODE_REQUIRED);
  const RpcError error = converter.requests.Generate(call, &request);
  EXPECT_EQ(error.code, StatusCode::kInvalidArgument);
  EXPECT_EQ(error.field, "chat.tool_choice");
  EXPECT_THAT(error.message(), HasSubstr("auto and none"));
}

}  // namespace
}  // namespace tramontane

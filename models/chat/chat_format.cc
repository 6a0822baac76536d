#include "models/chat/chat_format.h"

namespace tramontane {
namespace {

class NoChat final : public ChatFormat {
 public:
  explicit NoChat(std::string why) : ChatFormat("none", std::move(why), AnswerSyntax()) {}

  StatusOr<RenderedChat> Render(std::span<const ChatMessage> /*messages*/,
                                std::span<const ToolDefinition> /*tools*/,
                                const ChatOptions& /*options*/) const override {
    return FailedPrecondition("the model has no chat format: " + why());
  }
};

}  // namespace

ChatFormatPtr NoChatFormat(std::string why) { return std::make_unique<NoChat>(std::move(why)); }

}  // namespace tramontane

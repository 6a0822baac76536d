#include "models/chat/chat_format.h"

#include <charconv>
#include <string_view>

#include "models/chat/chat_check.h"
#include "models/chat/open_calls.h"

namespace tramontane {
namespace {

class NoChat final : public ChatFormat {
 public:
  explicit NoChat(std::string why) : ChatFormat("none", std::move(why), AnswerSyntax()) {}

  StatusOr<RenderedChat> RenderAnswered(std::span<const ChatMessage> /*messages*/,
                                        std::span<const ToolDefinition> /*tools*/,
                                        const ChatOptions& /*options*/) const override {
    return FailedPrecondition("the model has no chat format: " + why());
  }
};

// A fault of `chat`, as one of the messages that it was made of.
Status InRequest(const AnsweredChat& chat, Status status) {
  constexpr std::string_view kMessages = "messages[";
  const std::string_view field = status.field();
  size_t index = 0;
  if (!field.starts_with(kMessages)) return status;
  const char* const digits = field.data() + kMessages.size();
  const char* const rest = std::from_chars(digits, field.data() + field.size(), index).ptr;
  if (rest == digits || index >= chat.index.size()) return status;
  const FieldForm form = status.form();
  const std::string_view inside = field.substr(static_cast<size_t>(rest - field.data()) + 1);
  std::string path = MessageLabel(chat.index[index]) + std::string(inside);
  return std::move(status).WithField(std::move(path), form);
}

}  // namespace

StatusOr<RenderedChat> ChatFormat::Render(std::span<const ChatMessage> messages,
                                          std::span<const ToolDefinition> tools,
                                          const ChatOptions& options) const {
  const std::optional<AnsweredChat> answered = AnswerOpenCalls(messages);
  if (!answered) return RenderAnswered(messages, tools, options);
  StatusOr<RenderedChat> rendered = RenderAnswered(answered->messages, tools, options);
  if (rendered.ok()) return rendered;
  return InRequest(*answered, std::move(rendered).status());
}

ChatFormatPtr NoChatFormat(std::string why) { return std::make_unique<NoChat>(std::move(why)); }

}  // namespace tramontane

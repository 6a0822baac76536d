// Any chat in any format: an error naming a message, or a prompt. Any text as a model's template. And any
// JSON: printing is final.
//
// The input is cut at bytes 0x1E into fields; each group of four is a message (kind, content, id or name,
// arguments), and a group whose kind has bit 3 set is a tool. A content with bytes 0x1D is cut there into
// parts; one that begins with 0x1C is thinking, and open if a second follows.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/core/check.h"
#include "kernels/core/utf8.h"
#include "models/chat/chat_template.h"
#include "models/chat/header_chat.h"
#include "models/chat/mistral_chat.h"
#include "models/tokenizer/python_json.h"
#include "tests/fuzz/small_vocabulary.h"
#include "tests/support/byte_tokenizer.h"

namespace tramontane {
namespace {

constexpr char kFieldEnd = '\x1E';
constexpr char kPartEnd = '\x1D';
constexpr char kThinking = '\x1C';

class Fields {
 public:
  explicit Fields(std::string_view input) : rest_(input) {}
  bool empty() const { return rest_.empty(); }
  std::string Next() {
    const size_t end = std::min(rest_.find(kFieldEnd), rest_.size());
    std::string field(rest_.substr(0, end));
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    return field;
  }

 private:
  std::string_view rest_;
};

std::vector<ContentPart> PartsOf(std::string_view content) {
  std::vector<ContentPart> parts;
  while (true) {
    const size_t end = std::min(content.find(kPartEnd), content.size());
    std::string_view text = content.substr(0, end);
    ContentPart part;
    if (text.starts_with(kThinking)) {
      text.remove_prefix(1);
      part.kind = ContentPart::Kind::kThinking;
      part.closed = !text.starts_with(kThinking);
    }
    part.text = text;
    parts.push_back(std::move(part));
    if (end == content.size()) return parts;
    content.remove_prefix(end + 1);
  }
}

ChatMessage MessageOf(uint8_t kind, std::string content, const std::string& id, std::string arguments) {
  ChatMessage message;
  message.role = static_cast<ChatRole>(kind & 3);
  if (content.find(kPartEnd) != std::string::npos) {
    message.parts = PartsOf(content);
  } else if ((kind & 4) == 0) {
    message.content = std::move(content);
  }
  message.prefix = (kind & 16) != 0;
  if ((kind & 32) != 0) message.tool_calls.push_back({id, "f", std::move(arguments)});
  if ((kind & 64) != 0) message.tool_call_id = id;
  if ((kind & 128) != 0) message.name = id;
  return message;
}

void CheckRender(const Tokenizer& tokenizer, const std::vector<TokenizerVersion>& formats,
                 const std::vector<ChatMessage>& messages, const std::vector<ToolDefinition>& tools) {
  for (const TokenizerVersion format : formats) {
    ChatOptions options;
    if (!messages.empty() && !messages.front().prefix) options.answer_schema_json = messages.front().content;
    const StatusOr<RenderedChat> chat = MistralChatFormat(tokenizer, format).Render(messages, tools, options);
    if (chat.ok()) {
      TM_CHECK(chat->ids.front() == tokenizer.bos_id(), "the prompt does not start with bos");
      TM_CHECK(IsUtf8(chat->text), "the spelling is not UTF-8");
    } else {
      TM_CHECK(chat.status().code() == StatusCode::kInvalidArgument, "%s", chat.status().message().c_str());
    }
  }
}

// The input as a model's template, and chats in the formats that take details from one.
void CheckHeaderFormats(std::string_view input, const std::vector<ChatMessage>& messages,
                        const std::vector<ToolDefinition>& tools) {
  static const ByteTokenizer tokenizer(
      {"<s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}, "<s>");
  const ChatTemplate found = {std::string(input), "fuzz"};
  std::string because;
  VersionOfTemplate(found, &because);
  FirstUnknownToken(found, tokenizer);
  for (const HeaderFormat& row : HeaderFormats()) {
    IsTemplateOf(found, row);
    const HeaderChatFormat format(row, tokenizer, DetailsOf(found), "");
    const StatusOr<RenderedChat> chat = format.Render(messages, tools);
    TM_CHECK(chat.ok() || chat.status().code() == StatusCode::kInvalidArgument, "%s",
             chat.status().message().c_str());
  }
}

void CheckChat(std::string_view input) {
  std::vector<ChatMessage> messages;
  std::vector<ToolDefinition> tools;
  for (Fields fields(input); !fields.empty();) {
    const std::string kind_field = fields.Next();
    const uint8_t kind = kind_field.empty() ? 0 : static_cast<uint8_t>(kind_field[0]);
    std::string content = fields.Next();
    std::string id = fields.Next();
    std::string arguments = fields.Next();
    if ((kind & 8) != 0) {
      tools.push_back({std::move(id), std::move(content), std::move(arguments)});
    } else {
      messages.push_back(MessageOf(kind, std::move(content), id, std::move(arguments)));
    }
  }
  CheckHeaderFormats(input, messages, tools);
  using enum TokenizerVersion;
  CheckRender(SmallVocabulary(), {kV1, kV2, kV3, kV7}, messages, tools);
  CheckRender(SmallTekkenVocabulary(), {kV3, kV7, kV11, kV13, kV15}, messages, tools);
}

void CheckJson(std::string_view text) {
  const StatusOr<JsonValue> value = ParsePythonJson(text);
  if (!value.ok()) return;
  std::string print;
  AppendPythonJson(*value, &print);
  const StatusOr<JsonValue> again = ParsePythonJson(print);
  TM_CHECK(again.ok(), "its own print is refused: %s", again.status().message().c_str());
  std::string second_print;
  AppendPythonJson(*again, &second_print);
  TM_CHECK(print == second_print, "printing twice gives another text");
}

}  // namespace
}  // namespace tramontane

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  tramontane::CheckChat(input);
  tramontane::CheckJson(input);
  return 0;
}

// Chat formats that put each message under a header with its role: ChatML and Llama 3.
//
//   ChatML   <|im_start|>role \n text <|im_end|> \n
//   Llama 3  <|start_header_id|>role<|end_header_id|> \n\n text <|eot_id|>
//
// then the header of the answer. What stands in <|...|> is a control id; the rest is encoded as text, cut as
// the models' own tokenizers cut it. Tools have no place here: where the template can be run, it renders
// chats with tools, else they are refused by name. So is thinking, but of models whose template speaks of it:
// there what the assistant thought before is left out, as such templates leave it out.
//
// Any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "models/chat/chat_format.h"
#include "models/tokenizer/tokenizer.h"

namespace tramontane {

// A row for each format.
struct HeaderFormat {
  std::string_view name;         // "chatml"
  std::string_view begin;        // control pieces
  std::string_view behind_role;  // "": none
  std::string_view end;
  std::string_view before_text;  // text
  std::string_view behind_end;   // text
  bool trims;                    // the texts of messages lose the white space at their ends
  bool begins_with_bos;          // where no template says
};

std::span<const HeaderFormat> HeaderFormats();
const HeaderFormat* FindHeaderFormat(std::string_view name);  // null: no format of that name
// The vocabulary has the format's control pieces.
bool HasPiecesOf(const HeaderFormat& format, const Tokenizer& tokenizer);

// What models of one format differ in: a model's own template says it.
struct HeaderDetails {
  bool begins_with_bos = false;
  std::string default_system = {};  // the system message of a chat that has none; "": there is none then
  std::string system_head = {};     // in front of the system message, which then is always there
  bool thinks = false;              // an answer may begin with <think> a thought </think>
};

class HeaderChatFormat final : public ChatFormat {
 public:
  // `with_tools`: what renders chats with tools, calls, results and arguments of a template; null: they are
  // refused.
  HeaderChatFormat(const HeaderFormat& format, const Tokenizer& tokenizer, HeaderDetails details,
                   std::string why, ChatFormatPtr with_tools = nullptr);

  bool keeps_thoughts() const override { return with_tools_ != nullptr || details_.thinks; }
  bool shows_all_texts() const override { return with_tools_ == nullptr && !details_.thinks; }

 private:
  StatusOr<RenderedChat> RenderAnswered(std::span<const ChatMessage> messages,
                                        std::span<const ToolDefinition> tools,
                                        const ChatOptions& options) const override;

  const HeaderFormat& format_;
  const Tokenizer& tokenizer_;
  const HeaderDetails details_;
  const ChatFormatPtr with_tools_;
};

}  // namespace tramontane

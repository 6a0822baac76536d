#include "models/chat/header_chat.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "models/chat/chat_check.h"
#include "models/chat/chat_prompt.h"

namespace tramontane {
namespace {

constexpr HeaderFormat kHeaderFormats[] = {
    {.name = "chatml",
     .begin = "<|im_start|>",
     .behind_role = "",
     .end = "<|im_end|>",
     .before_text = "\n",
     .behind_end = "\n",
     .trims = false,
     .begins_with_bos = false},
    {.name = "llama3",
     .begin = "<|start_header_id|>",
     .behind_role = "<|end_header_id|>",
     .end = "<|eot_id|>",
     .before_text = "\n\n",
     .behind_end = "",
     .trims = true,
     .begins_with_bos = true},
};

// Between the texts of one message that came in parts.
constexpr std::string_view kBetweenParts = "\n";

// What Python's str.strip() takes from the ends, which is what templates trim with.
constexpr std::string_view kWhiteSpace[] = {
    " ",
    "\t",
    "\n",
    "\v",
    "\f",
    "\r",
    "\x1c",
    "\x1d",
    "\x1e",
    "\x1f",
    "\xc2\x85",
    "\xc2\xa0",
    "\xe1\x9a\x80",
    "\xe2\x80\x80",
    "\xe2\x80\x81",
    "\xe2\x80\x82",
    "\xe2\x80\x83",
    "\xe2\x80\x84",
    "\xe2\x80\x85",
    "\xe2\x80\x86",
    "\xe2\x80\x87",
    "\xe2\x80\x88",
    "\xe2\x80\x89",
    "\xe2\x80\x8a",
    "\xe2\x80\xa8",
    "\xe2\x80\xa9",
    "\xe2\x80\xaf",
    "\xe2\x81\x9f",
    "\xe3\x80\x80",
};

std::string_view Trimmed(std::string_view text) {
  const auto starts = [&](std::string_view blank) { return text.starts_with(blank); };
  const auto ends = [&](std::string_view blank) { return text.ends_with(blank); };
  const auto begin = std::begin(kWhiteSpace);
  const auto end = std::end(kWhiteSpace);
  for (auto at = std::find_if(begin, end, starts); at != end; at = std::find_if(begin, end, starts)) {
    text.remove_prefix(at->size());
  }
  for (auto at = std::find_if(begin, end, ends); at != end; at = std::find_if(begin, end, ends)) {
    text.remove_suffix(at->size());
  }
  return text;
}

std::string TextOfMessage(const HeaderFormat& format, const ChatMessage& message) {
  std::string text = message.content.value_or("");
  for (const ContentPart& part : message.parts) {
    if (part.text.empty() || part.kind == ContentPart::Kind::kThinking) continue;
    if (!text.empty()) text += kBetweenParts;
    text += part.text;
  }
  return format.trims ? std::string(Trimmed(text)) : text;
}

// "chat format chatml has no ..."
std::string HasNo(const HeaderFormat& format, std::string_view what) {
  return "chat format " + std::string(format.name) + " has no " + std::string(what);
}

constexpr char kRunTheTemplate[] = "; --chat-format FILE runs a template that has them";

Status CheckHeaderMessage(const HeaderFormat& format, const SaidMessage& said, bool is_last) {
  const ChatMessage& message = *said.message;
  const std::string label = MessageLabel(said.index);
  TM_RETURN_IF_ERROR(CheckMessageUtf8(message, said.index));
  if (message.role == ChatRole::kTool)
    return ChatFault(label, HasNo(format, "tool results") + kRunTheTemplate);
  if (!message.tool_calls.empty()) return ChatFault(label, HasNo(format, "tool calls") + kRunTheTemplate);
  if (message.tool_call_id) return ChatFault(label, HasNo(format, "tool_call_id"));
  const bool thinks = std::any_of(message.parts.begin(), message.parts.end(), [](const ContentPart& part) {
    return part.kind == ContentPart::Kind::kThinking;
  });
  if (thinks && message.role != ChatRole::kAssistant)
    return ChatFault(label + ".content", HasNo(format, "thinking"));
  if (!message.content && message.parts.empty() && message.role != ChatRole::kAssistant) {
    return ChatFault(label, std::string("a ") + ChatRoleName(message.role) + " message needs content");
  }
  if (!message.prefix) return Status::Ok();
  if (message.role != ChatRole::kAssistant) {
    return ChatFault(label, std::string("a ") + ChatRoleName(message.role) + " message has no prefix");
  }
  return is_last ? Status::Ok() : ChatFault(label, "only the last message may have prefix set");
}

Status CheckHeaderChat(const HeaderFormat& format, bool may_think, std::span<const SaidMessage> said,
                       std::span<const ToolDefinition> tools, const ChatOptions& options) {
  if (said.empty()) return ChatFault("messages", "a conversation needs at least one message");
  if (!tools.empty()) return ChatFault("tools", HasNo(format, "tools") + kRunTheTemplate);
  if (options.reasoning_effort && (may_think || *options.reasoning_effort != "none")) {
    return ChatFault("reasoning_effort", HasNo(format, "such setting"));
  }
  for (const SaidMessage& one : said) {
    TM_RETURN_IF_ERROR(CheckHeaderMessage(format, one, &one == &said.back()));
  }
  return Status::Ok();
}

// Header, text and end of turns, one behind the other: one text, and the places of its control ids.
class HeaderPrompt {
 public:
  HeaderPrompt(const HeaderFormat& format, const Tokenizer& tokenizer)
      : format_(format), tokenizer_(tokenizer) {}

  Status Begin() {
    const int32_t id = BeginningOf(tokenizer_);
    if (id < 0) return FailedPrecondition("the tokenizer has no token for the beginning of a text");
    return Place(id, tokenizer_.Piece(id));
  }

  // Leaves the turn open.
  Status Turn(std::string_view role, std::string_view text) {
    TM_RETURN_IF_ERROR(Control(format_.begin));
    text_ += role;
    if (!format_.behind_role.empty()) TM_RETURN_IF_ERROR(Control(format_.behind_role));
    text_ += format_.before_text;
    text_ += text;
    return Status::Ok();
  }

  Status EndTurn() {
    TM_RETURN_IF_ERROR(Control(format_.end));
    text_ += format_.behind_end;
    return Status::Ok();
  }

  StatusOr<RenderedChat> Finish() const {
    StatusOr<std::vector<int32_t>> ids = tokenizer_.EncodeWithControlTokensAt(text_, places_);
    if (!ids.ok()) return ChatFault("messages", ids.status().message());
    return RenderedChat{.ids = *ids, .text = tokenizer_.Spelling(*ids)};
  }

 private:
  Status Control(std::string_view piece) {
    const std::optional<int32_t> id = tokenizer_.ControlId(piece);
    if (!id) return FailedPrecondition("the tokenizer has no control token " + std::string(piece));
    return Place(*id, piece);
  }

  Status Place(int32_t id, std::string_view piece) {
    places_.push_back({text_.size(), text_.size() + piece.size(), id});
    text_ += piece;
    return Status::Ok();
  }

  const HeaderFormat& format_;
  const Tokenizer& tokenizer_;
  std::string text_;
  std::vector<SpellingMatcher::Match> places_;
};

bool IsToolTraffic(const ChatMessage& message) {
  return message.role == ChatRole::kTool || !message.tool_calls.empty();
}

AnswerSyntax HeaderAnswerSyntax(const HeaderFormat& format, const Tokenizer& tokenizer, bool thinks) {
  AnswerSyntax syntax = thinks ? TemplateAnswerSyntax(tokenizer) : AnswerSyntax();
  syntax.end = tokenizer.ControlId(format.end).value_or(-1);
  return syntax;
}

}  // namespace

std::span<const HeaderFormat> HeaderFormats() { return kHeaderFormats; }

const HeaderFormat* FindHeaderFormat(std::string_view name) {
  const auto* found = std::find_if(std::begin(kHeaderFormats), std::end(kHeaderFormats),
                                   [&](const HeaderFormat& format) { return format.name == name; });
  return found == std::end(kHeaderFormats) ? nullptr : found;
}

bool HasPiecesOf(const HeaderFormat& format, const Tokenizer& tokenizer) {
  const std::array pieces = {format.begin, format.behind_role, format.end};
  return std::all_of(pieces.begin(), pieces.end(),
                     [&](std::string_view piece) { return piece.empty() || tokenizer.ControlId(piece); });
}

HeaderChatFormat::HeaderChatFormat(const HeaderFormat& format, const Tokenizer& tokenizer,
                                   HeaderDetails details, std::string why, ChatFormatPtr with_tools)
    : ChatFormat(std::string(format.name), std::move(why),
                 HeaderAnswerSyntax(format, tokenizer, details.thinks)),
      format_(format),
      tokenizer_(tokenizer),
      details_(std::move(details)),
      with_tools_(std::move(with_tools)) {}

StatusOr<RenderedChat> HeaderChatFormat::RenderAnswered(std::span<const ChatMessage> messages,
                                                        std::span<const ToolDefinition> tools,
                                                        const ChatOptions& options) const {
  const bool is_plain = tools.empty() && !options.template_kwargs_json &&
                        std::none_of(messages.begin(), messages.end(), IsToolTraffic);
  if (!is_plain && with_tools_ != nullptr) return with_tools_->Render(messages, tools, options);
  std::vector<ChatMessage> copy;
  TM_ASSIGN_OR_RETURN(messages, ContinuedMessages(messages, options, &copy));
  TM_RETURN_IF_ERROR(CheckNoTemplateArguments(options, name()));
  if (!keeps_thoughts()) messages = WithoutThoughts(messages, &copy);
  const std::vector<SaidMessage> said = WhatIsSaid(messages);
  TM_RETURN_IF_ERROR(CheckHeaderChat(format_, details_.thinks, said, tools, options));
  HeaderPrompt prompt(format_, tokenizer_);
  if (details_.begins_with_bos) TM_RETURN_IF_ERROR(prompt.Begin());
  const bool has_system = said.front().message->role == ChatRole::kSystem;
  if (!has_system && !(details_.system_head + details_.default_system).empty()) {
    TM_RETURN_IF_ERROR(prompt.Turn("system", details_.system_head + details_.default_system));
    TM_RETURN_IF_ERROR(prompt.EndTurn());
  }
  for (const SaidMessage& one : said) {
    const bool is_first_system = has_system && &one == &said.front();
    const std::string text =
        (is_first_system ? details_.system_head : "") + TextOfMessage(format_, *one.message);
    TM_RETURN_IF_ERROR(prompt.Turn(ChatRoleName(one.message->role), text));
    if (one.message->prefix) return prompt.Finish();
    TM_RETURN_IF_ERROR(prompt.EndTurn());
  }
  // A message that says nothing and is gone on from is left out as others are: the answer begins anew.
  if (options.add_generation_prompt || messages.back().prefix) {
    TM_RETURN_IF_ERROR(prompt.Turn(ChatRoleName(ChatRole::kAssistant), ""));
  }
  return prompt.Finish();
}

}  // namespace tramontane

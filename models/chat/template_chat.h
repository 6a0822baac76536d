// TemplateChatFormat: the chat format of a model whose template is run: messages and tools become the values
// that transformers gives a template, the text that it renders is cut at control tokens.
//
// What a template gets: messages (role, content, name, tool_call_id, reasoning_content, tool_calls with
// arguments as the object that they are), tools (null for none), documents (null), add_generation_prompt,
// bos_token, eos_token, unk_token, reasoning_effort where the request has one, and the members of
// chat_template_kwargs. Content in parts is one string, its texts joined by a new line.
//
// Any thread: does not change once made. The tokenizer outlives it.
#pragma once

#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "kernels/core/status.h"
#include "models/chat/chat_format.h"
#include "models/chat/control_text.h"
#include "models/jinja/jinja_template.h"
#include "models/tokenizer/tokenizer.h"

namespace tramontane {

class TemplateChatFormat final : public ChatFormat {
 public:
  // `text` is what `parsed` was parsed from. `end`: the end of a turn, where it is not that of a text.
  TemplateChatFormat(const Tokenizer& tokenizer, std::string text,
                     std::unique_ptr<const JinjaTemplate> parsed, std::string why,
                     std::optional<int32_t> end = {});

  // With the local time of now.
  bool shows_all_texts() const override { return false; }
  StatusOr<RenderedChat> RenderAt(const std::tm& now, std::span<const ChatMessage> messages,
                                  std::span<const ToolDefinition> tools, const ChatOptions& options) const;

 private:
  StatusOr<RenderedChat> RenderAnswered(std::span<const ChatMessage> messages,
                                        std::span<const ToolDefinition> tools,
                                        const ChatOptions& options) const override;

  const Tokenizer& tokenizer_;
  const std::string text_;
  const std::unique_ptr<const JinjaTemplate> parsed_;
  const ControlSpellings spellings_;
};

}  // namespace tramontane

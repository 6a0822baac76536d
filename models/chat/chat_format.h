// ChatFormat: how one model is talked to: chats to prompts, the structure of its answers, and what ends them.
// Chosen once, when the model is opened (choose_chat_format.h), and from then on nobody asks what the
// tokenizer is.
//
// Any thread: does not change once made. The tokenizer outlives it.
// Always: structure is control ids; what people type is encoded as text and stays text, "[INST]" included.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>

#include "kernels/core/status.h"
#include "models/chat/answer_syntax.h"
#include "models/chat/chat.h"

namespace tramontane {

class ChatFormat {
 public:
  virtual ~ChatFormat() = default;
  ChatFormat(const ChatFormat&) = delete;
  ChatFormat& operator=(const ChatFormat&) = delete;

  // A chat that the format cannot hold is INVALID_ARGUMENT naming the message ("messages[2]: ...") or the
  // tool ("tools[0].name: ...") or the option. A model without what the format needs of it, or without a
  // format, is FAILED_PRECONDITION.
  // A call without a result has one that says so (open_calls.h).
  StatusOr<RenderedChat> Render(std::span<const ChatMessage> messages, std::span<const ToolDefinition> tools,
                                const ChatOptions& options = {}) const;

  const std::string& name() const { return name_; }  // "v13", "chatml", "llama3", "jinja", "none"
  const std::string& why() const { return why_; }    // why this one, for people: "its template names [ARGS]"
  // `end` of it is the format's own end of turn, which ends an answer beside the ids of the model's config.
  const AnswerSyntax& answer_syntax() const { return answer_syntax_; }
  bool is_none() const { return name_ == "none"; }
  // A prompt is at least as long as the texts of its chat. What a template shows is its own affair.
  virtual bool shows_all_texts() const { return true; }
  // An assistant's thoughts in a history are in the prompt; else they are left out.
  virtual bool keeps_thoughts() const { return true; }

 protected:
  ChatFormat(std::string name, std::string why, const AnswerSyntax& answer_syntax)
      : name_(std::move(name)), why_(std::move(why)), answer_syntax_(answer_syntax) {}

 private:
  virtual StatusOr<RenderedChat> RenderAnswered(std::span<const ChatMessage> messages,
                                                std::span<const ToolDefinition> tools,
                                                const ChatOptions& options) const = 0;

  const std::string name_;
  const std::string why_;
  const AnswerSyntax answer_syntax_;
};

using ChatFormatPtr = std::unique_ptr<const ChatFormat>;

// Of a model that cannot be talked to: every chat is FAILED_PRECONDITION, `why`.
ChatFormatPtr NoChatFormat(std::string why);

}  // namespace tramontane

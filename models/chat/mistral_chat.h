// Mistral's chat formats: token ids as Mistral's instruct models were trained on.
//
// Any thread.
//
// The formats v1, v2, v3, v7, v11, v13 and v15 follow mistral-common, id for id: its checks in serving mode,
// its merging of messages, its segments.
//
// What it refuses and we render, so that an answer can be sent back as it came and agents can hand on:
//   - an assistant's message with neither content nor calls is left out;
//   - content beside calls, in one message or in neighbours: before v7 the calls win, the text is left out;
//   - a system message after an answer or a result: from v7 on at its place, before v7 part of the system
//     prompt (refused there after the last answer, where nothing is left to answer);
//   - a tool's parameters that are an object and no sound JSON Schema: shown to the model as they are;
//   - a call without a result has one that says so (open_calls.h);
//   - what an assistant thought, where the format has no place for it, is left out;
//   - a function's name of 65 to 128 characters.
// What it passes over and we refuse: a reasoning effort where the vocabulary's file has no such setting, but
// for "none".
#pragma once

#include <optional>
#include <span>
#include <string>

#include "models/chat/chat_format.h"
#include "models/tokenizer/model_settings.h"
#include "models/tokenizer/tokenizer.h"

namespace tramontane {

class MistralChatFormat final : public ChatFormat {
 public:
  // `settings`: of v15, where the vocabulary's file does not say them.
  MistralChatFormat(const Tokenizer& tokenizer, TokenizerVersion version, std::string why = "",
                    std::optional<ModelSettings> settings = {});

  bool keeps_thoughts() const override;

 private:
  StatusOr<RenderedChat> RenderAnswered(std::span<const ChatMessage> messages,
                                        std::span<const ToolDefinition> tools,
                                        const ChatOptions& options) const override;

  const ModelSettings* settings() const;

  const Tokenizer& tokenizer_;
  const TokenizerVersion version_;
  const std::optional<ModelSettings> settings_;
};

}  // namespace tramontane

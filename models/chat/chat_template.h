// ChatTemplate: the chat template that a model's folder carries, as text, and what its text alone tells. It
// is not run here.
//
// Any thread; FindChatTemplate reads files.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kernels/core/status.h"
#include "models/chat/header_chat.h"
#include "models/tokenizer/tokenizer.h"

namespace tramontane {

struct ChatTemplate {
  std::string text;
  std::string file;  // that it stands in: "chat_template.jinja", "tokenizer_config.json", "model.gguf"

  bool Names(std::string_view piece) const { return text.find(piece) != std::string::npos; }
};

// Of the first place that has one. In a folder: chat_template.jinja, else `chat_template` of
// chat_template.json, else of tokenizer_config.json: a string, or a list of named ones, of which "default"
// counts. In a GGUF file: tokenizer.chat_template. A file that cannot be read as what its name says is an
// error that names it.
StatusOr<std::optional<ChatTemplate>> FindChatTemplate(std::span<const std::string> places);

// A file that holds one.
StatusOr<ChatTemplate> ReadChatTemplate(const std::string& path);

// Mistral's version that names the control pieces which this template names, where no file says a version:
// [MODEL_SETTINGS] v15, [THINK] v13, [ARGS] with [CALL_ID] v11, [ARGS] alone v13, [SYSTEM_PROMPT] v7, else
// v3. `because`: the pieces that decided, for people.
TokenizerVersion VersionOfTemplate(const ChatTemplate& chat_template, std::string* because);

// It spells [INST] and [/INST], and nothing else that could be a control piece but <s> and </s>: what
// Mistral's models were given whose vocabulary has no pieces for these (v1). Llama 2's names <<SYS>> besides.
bool IsPlainInstTemplate(const ChatTemplate& chat_template);

// The template is that of `format`: it names the format's control pieces, and none of another.
bool IsTemplateOf(const ChatTemplate& chat_template, const HeaderFormat& format);

// What it says of a format that it is a template of: bos in front, its default system message, the dates in
// front of a system message. The date of the day is never taken, so that a prompt is the same on every day:
// where a template asks for it, this is the one that it has for readers without a clock.
HeaderDetails DetailsOf(const ChatTemplate& chat_template);

// The first control token that it names and no format here has: "<|user|>"; "" for none.
std::string FirstUnknownToken(const ChatTemplate& chat_template, const Tokenizer& tokenizer);

}  // namespace tramontane

// The checks of a chat as it came, each naming the message. Those of Mistral's formats are in the order of
// mistral-common's.
//
// Any thread. Pure functions.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/status.h"
#include "models/chat/chat.h"
#include "models/chat/mistral_format.h"

namespace tramontane {

// A message that says something, and its place in the request.
struct SaidMessage {
  const ChatMessage* message;
  size_t index;
};

// The messages as they are to be rendered: options.continue_final_message makes the last one a prefix, for
// which `copy` holds a copy. Beside its own `prefix` that says the same twice.
StatusOr<std::span<const ChatMessage>> ContinuedMessages(std::span<const ChatMessage> messages,
                                                         const ChatOptions& options,
                                                         std::vector<ChatMessage>* copy);

// `messages` without what the assistant thought; `copy` holds them, and may be where they are.
std::span<const ChatMessage> WithoutThoughts(std::span<const ChatMessage> messages,
                                             std::vector<ChatMessage>* copy);

// Of formats that run no template. {"enable_thinking": false} asks for what they do.
Status CheckNoTemplateArguments(const ChatOptions& options, std::string_view format_name);

// All but the assistant's messages with neither content nor calls: clients send an answer back as they got
// it, and an answer that was cut off at once is such a message.
std::vector<SaidMessage> WhatIsSaid(std::span<const ChatMessage> messages);

Status CheckMessages(const MistralFormat& format, std::span<const SaidMessage> said);

// Text that the assistant adds to calls it has just made.
bool IsBesideCalls(std::span<const SaidMessage> said, size_t i);

// What is wrong with what lies at `path`.
Status ChatFault(std::string path, std::string sentence);

Status CheckFunctionName(const std::string& label, std::string_view name);
Status CheckUtf8(const std::string& label, std::string_view text);
// Of every string of the message.
Status CheckMessageUtf8(const ChatMessage& message, size_t index);

std::string MessageLabel(size_t index);              // "messages[2]"
std::string CallLabel(size_t message, size_t call);  // "messages[2].tool_calls[0]"
std::string Quoted(std::string_view text);           // 'text', shortened

}  // namespace tramontane

// Chat messages to a prompt: token ids in the format that Mistral's instruct models were trained on.
//
// Any thread. Plain structs and one pure function.
//
// The formats v1, v2, v3 and v7 follow mistral-common, id for id: its checks in serving mode, its merging of
// messages, its segments. Structure is control ids; what people type is encoded as text and stays text,
// "[INST]" included.
//
// What it refuses and we render, so that an answer can be sent back as it came and agents can hand on:
//   - an assistant's message with neither content nor calls is left out;
//   - content beside calls, in one message or in neighbours: before v7 the calls win, the text is left out;
//   - a system message after an answer or a result: in v7 at its place, before v7 part of the system prompt
//     (refused there after the last answer, where nothing is left to answer);
//   - a tool's parameters that are an object and no sound JSON Schema: shown to the model as they are.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/status.h"
#include "models/tokenizer/tokenizer.h"

namespace tramontane {

enum class ChatRole { kSystem, kUser, kAssistant, kTool };

const char* ChatRoleName(ChatRole role);  // "assistant"
// The role of that name, or an error naming what there is.
StatusOr<ChatRole> ParseChatRole(std::string_view name);

struct ToolCall {
  std::string id;  // from v3 on nine letters or digits
  std::string name;
  std::string arguments_json;  // "" counts as "{}"; what is not JSON is passed on as a string
};

struct ChatMessage {
  ChatRole role = ChatRole::kUser;
  std::optional<std::string> content = {};       // required unless the role is assistant
  std::vector<ToolCall> tool_calls = {};         // assistant only
  std::optional<std::string> tool_call_id = {};  // tool only; required from v3 on
  std::optional<std::string> name = {};          // tool: the function's name; other roles: ignored
  bool prefix = false;                           // assistant, last message only: the answer goes on from here
  bool in_parts = false;  // the content was a list of texts; of mistral-common: "" is then a system paragraph
};

struct ToolDefinition {
  std::string name;
  std::string description;
  std::string parameters_json;  // a JSON Schema: checked to be an object, no more; "" counts as "{}"
};

struct ChatOptions {
  std::optional<TokenizerVersion> format = {};  // the tokenizer's version where none is given
  bool continue_final_message = false;          // the same as `prefix` of the last message; not beside it
};

struct RenderedChat {
  std::vector<int32_t> ids;  // the prompt, bos included
  std::string text;  // the pieces of `ids` as the vocabulary spells them, for people: "<s>[INST]▁Hi[/INST]"
};

// A chat that the format cannot hold is INVALID_ARGUMENT naming the message ("messages[2]: ...") or the tool
// ("tools[0].name: ..."). A vocabulary without the format's control tokens is FAILED_PRECONDITION.
StatusOr<RenderedChat> RenderChat(const Tokenizer& tokenizer, std::span<const ChatMessage> messages,
                                  std::span<const ToolDefinition> tools, const ChatOptions& options = {});

}  // namespace tramontane

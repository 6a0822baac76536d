// Chat messages to a prompt: token ids in the format that Mistral's instruct models were trained on.
//
// Any thread. Plain structs and one pure function.
//
// The formats v1, v2, v3, v7, v11, v13 and v15 follow mistral-common, id for id: its checks in serving mode,
// its merging of messages, its segments. Structure is control ids; what people type is encoded as text and
// stays text, "[INST]" included.
//
// What it refuses and we render, so that an answer can be sent back as it came and agents can hand on:
//   - an assistant's message with neither content nor calls is left out;
//   - content beside calls, in one message or in neighbours: before v7 the calls win, the text is left out;
//   - a system message after an answer or a result: from v7 on at its place, before v7 part of the system
//   prompt
//     (refused there after the last answer, where nothing is left to answer);
//   - a tool's parameters that are an object and no sound JSON Schema: shown to the model as they are.
// What it passes over and we refuse: a reasoning effort where the vocabulary's file has no such setting.
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

// A part of a message whose content came as a list.
struct ContentPart {
  enum class Kind { kText, kThinking };

  Kind kind = Kind::kText;
  std::string text;
  bool closed = true;  // kThinking: it ended; the answer goes on in the middle of one that did not
};

struct ToolCall {
  std::string id;  // v3 to v11: nine letters or digits; from v13 on any text but "" and "null"
  std::string name;
  std::string arguments_json;  // "" counts as "{}"; what is not JSON is passed on as a string
};

struct ChatMessage {
  ChatRole role = ChatRole::kUser;
  std::optional<std::string> content = {};       // this or `parts` is required unless the role is assistant
  std::vector<ContentPart> parts = {};           // in place of `content`; thinking: of the assistant from v13
                                                 // on, of the system in v13
  std::vector<ToolCall> tool_calls = {};         // assistant only
  std::optional<std::string> tool_call_id = {};  // tool only; required from v3 on
  std::optional<std::string> name = {};          // tool: the function's name; other roles: ignored
  bool prefix = false;                           // assistant, last message only: the answer goes on from here
};

struct ToolDefinition {
  std::string name;
  std::string description;
  std::string parameters_json;  // a JSON Schema: checked to be an object, no more; "" counts as "{}"
};

struct ChatOptions {
  std::optional<TokenizerVersion> format = {};  // the tokenizer's version where none is given
  bool continue_final_message = false;          // the same as `prefix` of the last message; not beside it
  // From v15 on: one of those that the vocabulary's file allows, which also names the default.
  std::optional<std::string> reasoning_effort = {};
  // The JSON Schema that the answer must keep, an object. Models whose file says so are shown it, others not.
  std::optional<std::string> answer_schema_json = {};
};

struct RenderedChat {
  std::vector<int32_t> ids;  // the prompt, bos included
  std::string text;  // the pieces of `ids` as the vocabulary spells them, for people: "<s>[INST]▁Hi[/INST]"
};

// A chat that the format cannot hold is INVALID_ARGUMENT naming the message ("messages[2]: ...") or the tool
// ("tools[0].name: ...") or the option. A vocabulary without what the format needs of it is
// FAILED_PRECONDITION.
StatusOr<RenderedChat> RenderChat(const Tokenizer& tokenizer, std::span<const ChatMessage> messages,
                                  std::span<const ToolDefinition> tools, const ChatOptions& options = {});

}  // namespace tramontane

// Chats as requests bring them: messages, tools and options, before any format has made a prompt of them.
//
// Any thread. Plain structs. What renders them: chat_format.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/status.h"

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
  bool continue_final_message = false;  // the same as `prefix` of the last message
  bool add_generation_prompt = true;    // false: nothing begins an answer behind the last message
  // From v15 on: one of those that the vocabulary's file allows, which also names the default.
  std::optional<std::string> reasoning_effort = {};
  // The values of a template's own names, an object: of models whose template is run. Others take {} and what
  // asks for no thinking.
  std::optional<std::string> template_kwargs_json = {};
  // The JSON Schema that the answer must keep, an object. Models whose file says so are shown it, others not.
  std::optional<std::string> answer_schema_json = {};
};

struct RenderedChat {
  std::vector<int32_t> ids;  // the prompt, bos included
  std::string text;  // the pieces of `ids` as the vocabulary spells them, for people: "<s>[INST]▁Hi[/INST]"
};

}  // namespace tramontane

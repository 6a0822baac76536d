// ChatBuilder: the chat of a request, made of what every dialect can say of one.
//
// A dialect knows where its bodies keep things; everything else is here, once: what roles are called, what a
// content may be, which ids calls have, which calls are one message, what tool_choice may ask for. So a
// dialect is a walk over its body that calls this.
//
// One thread at a time. REQUIRES: the values were checked against the dialect's table.
// Always: a `field` is where a value lies in the body ("input[3]"). A fault of it that is found later, by the
// server, is told with that name.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/shared/api_error.h"
#include "server/api/shared/generation_request.h"
#include "server/api/shared/json.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {

// A message of the conversation. Null: not said.
struct PastMessage {
  v1::Role role;
  // A text, or a list of parts: with a "text", or "thinking", which is a text or a list of them.
  const Json* content = nullptr;
  const Json* reasoning = nullptr;               // of the assistant: what it thought before it said that
  std::string_view reasoning_key = "reasoning";  // where the message has it
  const Json* tool_call_id = nullptr;            // of a tool: the call that it answers
  const Json* tool_name = nullptr;               // of a tool
  bool prefix = false;                           // the answer goes on from it
};

// A call that the model has made earlier.
struct PastCall {
  std::string id;  // as the dialect's answers or another server's have it
  const Json& name;
  const Json* arguments = nullptr;  // an object, or the text of one
};

// A function that the model may call. Null: not said.
struct ToolFunction {
  const Json& name;
  const Json* description = nullptr;
  const Json* parameters = nullptr;  // a JSON Schema
  const Json* strict = nullptr;      // a boolean
};

// user, assistant and tool; whatever else a table lets pass is the system.
v1::Role RoleOfName(std::string_view name);

class ChatBuilder {
 public:
  // Both outlive this. `names` learns the fields.
  ChatBuilder(v1::Chat* chat, FieldNames* names);

  // ---- messages, in their order ----

  void AddMessage(const PastMessage& turn, const std::string& field);

  // A call of the message before, so that calls in a row are one message; behind EndCalls, and at the begin,
  // of a message of the assistant that has nothing else.
  void AddCall(const PastCall& call, const std::string& field);
  void EndCalls() { caller_ = nullptr; }

  // The answer goes on from the last message. `field` asks for it.
  std::optional<ApiError> ContinueLastMessage(const std::string& field);

  // An object, as JSON.
  void SetTemplateArguments(std::string json) { chat_->set_chat_template_kwargs_json(std::move(json)); }
  void SetGenerationPrompt(bool add) { chat_->set_add_generation_prompt(add); }
  void SetReasoningEffort(const std::string& effort) { chat_->set_reasoning_effort(effort); }
  void SetThinkingBudget(int32_t tokens) { chat_->set_thinking_token_budget(tokens); }

  // ---- tools ----

  void AddTool(const ToolFunction& tool);
  // auto, none, required, or Anthropic's and Mistral's word for it: any. After the tools.
  std::optional<ApiError> ChooseTools(std::string_view mode, const std::string& field);
  std::optional<ApiError> ChooseTool(const std::string& name, const std::string& field);
  // Of all tools only these may be called; `field`: where their list is.
  void AllowTools(const std::vector<std::string>& names, const std::string& field);
  void SetParallelCalls(bool parallel) { chat_->set_parallel_tool_calls(parallel); }

 private:
  std::optional<ApiError> Choose(v1::ToolChoiceMode mode, const std::string& name, const std::string& field);

  v1::Chat* chat_;
  FieldNames* names_;
  std::string list_;                   // what the rows of the table call the list of messages
  v1::ChatMessage* caller_ = nullptr;  // the message that a call would go to; null: a new one
};

// `tools`, `parallel_tool_calls` and `tool_choice` of a body. `function_key`: where an entry of `tools`, or a
// choice that is an object, keeps name and parameters; "": it has them itself.
std::optional<ApiError> AddTools(const Json& body, const std::string& function_key, ChatBuilder* chat);

// What is left to do when the chat of `call` is whole: faults of the chat as such are those of
// `conversation`, the field with the messages; what the chat says of the calls in its answer goes to
// `answer`, which has its id; and an answer that has to be calls has no text that a format could hold.
void FinishChat(const std::string& conversation, v1::GenerateRequest* call, FieldNames* names,
                AnswerOptions* answer);

}  // namespace tramontane

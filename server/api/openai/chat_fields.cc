// What a chat's body and its answer may hold.
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "server/api/openai/chat.h"
#include "server/api/openai/choices_fields.h"
#include "server/api/shared/field_rows.h"
#include "server/api/shared/foreign_fields.h"

namespace tramontane {

// ---- bodies -------------------------------------------------------------------------------------

namespace {

Shape ContentShape() {
  const Shape text = Object({
      {.name = "type", .shape = Only({"text"}, "only text can be thought")},
      {.name = "text", .shape = String(), .required = true},
  });
  const Shape part = Object({
      {.name = "type",
       .shape = Only({"text", "thinking"},
                     "only parts of the type \"text\" and \"thinking\" are supported: no images, audio or "
                     "files"),
       .required = true},
      {.name = "text", .shape = String(), .doc = "Of a text."},
      {.name = "thinking",
       .shape = AnyOf({String(), ArrayOf(text)}),
       .doc = "Mistral's: what an assistant thought, where the model's chat format has a place for it."},
      {.name = "closed",
       .shape = Boolean(),
       .doc = "False: the thinking has not ended, and the answer goes on in it. Default true."},
  });
  return AnyOf({String(), ArrayOf(part)});
}

Shape HistoryCallShape() {
  return Object({
      {.name = "id", .shape = String(), .doc = "What the tool's message names as its tool_call_id."},
      {.name = "type", .shape = Only({"function"}, "only calls of functions are supported")},
      {.name = "function",
       .shape = Object({
           {.name = "name", .shape = String(1), .required = true},
           {.name = "arguments",
            .shape = AnyOf({String(), Object({})}),
            .doc = "A JSON object, usually as text."},
       }),
       .required = true},
  });
}

std::vector<Field> ChatFields() {
  return {
      {.name = "messages",
       .shape = MessagesShape(),
       .doc = "The conversation.",
       .required = true,
       .path = "chat.messages"},
      {.name = "tools",
       .shape = ToolsShape(),
       .doc = "Functions that the model may call.",
       .path = "chat.tools"},
  };
}

Field SafePrompt() {
  return {.name = "safe_prompt",
          .shape = Boolean(),
          .doc = "Mistral's: a system message in front that asks for safe answers. Default false."};
}

std::vector<Field> ChatOutputFields() {
  const Shape length = Integer(0);
  return {
      {.name = "max_completion_tokens",
       .shape = length,
       .doc = "Tokens to generate at most. Default: what the context leaves.",
       .path = "stopping.max_tokens"},
      {.name = "max_tokens",
       .shape = length,
       .doc = "The older name of `max_completion_tokens`, which wins where both are given.",
       .path = "stopping.max_tokens"},
      {.name = "logprobs",
       .shape = Boolean(),
       .doc = "Log probabilities of the answer's tokens. Default false."},
      {.name = "top_logprobs",
       .shape = Integer(0, 20),
       .doc = "Also those of the N likeliest tokens at each place. Only with `logprobs`. Default 0.",
       .path = "output.logprobs"},
  };
}

}  // namespace

Shape MessagesShape() {
  return ArrayOf(Object({
                     {.name = "role",
                      .shape = OneOfStrings({"system", "developer", "user", "assistant", "tool"}),
                      .doc = "developer is system.",
                      .required = true},
                     {.name = "content",
                      .shape = ContentShape(),
                      .doc = "Text. May be absent only in a message of the assistant."},
                     {.name = "tool_calls", .shape = ArrayOf(HistoryCallShape()), .doc = "Of an assistant."},
                     {.name = "tool_call_id", .shape = String(), .doc = "Of a tool: the call it answers."},
                     {.name = "name", .shape = String(), .doc = "Of a tool; of others it changes nothing."},
                     {.name = "prefix",
                      .shape = Boolean(),
                      .doc = "Of an assistant's message at the end: the answer goes on from it."},
                     {.name = "reasoning_content",
                      .shape = String(),
                      .doc = "Of an assistant: what it thought, in front of its content."},
                     {.name = "reasoning", .shape = String(), .doc = "The same as `reasoning_content`."},
                 }),
                 1);
}

Shape ToolsShape() {
  return Within(
      kMaxToolsBytes,
      ArrayOf(Object({
          {.name = "type",
           .shape = Only({"function"}, "only functions are supported"),
           .doc = "Default function."},
          {.name = "function",
           .shape = Object({
               {.name = "name", .shape = String(1), .required = true},
               {.name = "description", .shape = String()},
               {.name = "parameters", .shape = Object({}), .doc = "A JSON Schema. Default: no parameters."},
               {.name = "strict",
                .shape = Boolean(),
                .doc = "True: a schema that cannot be enforced in full is refused. Else the rest of it is "
                       "enforced, and x-tramontane-unenforced names the parts that are not."},
           }),
           .required = true},
      })));
}

std::vector<Field> AllowedToolsFields(Shape tool) {
  return {{.name = "mode", .shape = OneOfStrings({"auto", "required"}), .doc = "As a tool_choice."},
          {.name = "tools", .shape = ArrayOf(std::move(tool), 1)}};
}

// What chooses among tools; what it means is in chat_builder.h.
std::vector<Field> ToolChoiceFields() {
  const Shape named = Object({{.name = "name", .shape = String(1), .required = true}});
  return {
      {.name = "tool_choice",
       .shape = AnyOf({OneOfStrings({"none", "auto", "required", "any"}),
                       Object({
                           {.name = "type",
                            .shape = Only({"function", "allowed_tools"}, kNamesFunctions),
                            .doc = "Default function."},
                           {.name = "function", .shape = named, .doc = "With the type function."},
                           {.name = "allowed_tools",
                            .shape = Object(AllowedToolsFields(Object({
                                {.name = "type", .shape = Only({"function"}, kNamesFunctions)},
                                {.name = "function", .shape = named, .required = true},
                            }))),
                            .doc = "With that type: the tools that may be called. The model is shown all."},
                       })}),
       .doc = "none: no call; auto: the model decides; required or any: at least one call; the function to "
              "call; or the functions that may be called. Default auto.",
       .path = "chat.tool_choice"},
      {.name = "parallel_tool_calls", .shape = Boolean(), .doc = "False: at most one call. Default true."},
  };
}

Field AddGenerationPrompt() {
  return {
      .name = "add_generation_prompt",
      .shape = Boolean(),
      .doc =
          "False: the prompt ends with the last message, without what begins an answer behind it in ChatML, "
          "Llama 3 and chat templates. In Mistral's formats that is nothing. Default true."};
}

Field TemplateArguments() {
  return {.name = "chat_template_kwargs",
          .shape = Within(kMaxTemplateArgumentsBytes, Object({})),
          .doc =
              "Values of the chat template's own names, for models whose template is run. Others take {} and "
              "{\"enable_thinking\": false}.",
          .path = "chat.chat_template_kwargs"};
}

Field ReasoningEffort() {
  return {.name = "reasoning_effort",
          .shape = String(1, 32),
          .doc =
              "How much the model shall think: a word that it knows, \"high\". Models without that setting "
              "know only \"none\". Default: the model's own.",
          .path = "chat.reasoning_effort"};
}

Field ThinkingTokenBudget() {
  return {.name = "thinking_token_budget",
          .shape = Integer(-1, std::numeric_limits<int32_t>::max()),
          .doc =
              "After so many tokens of thinking the end of the thought is forced. -1: no limit. Changes "
              "nothing where the model does not think. Default -1.",
          .path = "chat.thinking_token_budget"};
}

Field ContinueFinalMessage() {
  return {.name = "continue_final_message",
          .shape = Boolean(),
          .doc = "The last message is the assistant's, and the answer goes on from it. Default false."};
}

std::vector<Field> ChatPromptFields() {
  return std::vector<Field>{
             {.name = "messages", .shape = MessagesShape(), .doc = "A chat.", .path = "chat.messages"},
             {.name = "tools", .shape = ToolsShape(), .doc = "Of the chat.", .path = "chat.tools"},
             ReasoningEffort(),
             TemplateArguments(),
             AddGenerationPrompt(),
             ContinueFinalMessage(),
         } +
         ToolChoiceFields();
}

Shape ChatCompletionShape(const FieldLimits& limits) {
  return ClosedObject(std::vector<Field>{ModelRow()} + ChatFields() + ToolChoiceFields() +
                      ChatOutputFields() + GenerationFields(limits) +
                      std::vector<Field>{ReasoningEffort(), ThinkingTokenBudget(), TemplateArguments(),
                                         AddGenerationPrompt(), ContinueFinalMessage(), SafePrompt()} +
                      ForeignFields() + ForeignChatFields());
}

// ---- answers ------------------------------------------------------------------------------------

namespace {

Shape ToolCallShape() {
  return Object({Always("id", String(9, 9)), Always("type", OneOfStrings({"function"})),
                 Always("function", Object({Always("name", String(1)), Always("arguments", String(2))}))});
}

Shape ChatChoiceShape() {
  std::vector<Field> scored = ScoredToken();
  scored.push_back(Always("top_logprobs", ArrayOf(Object(ScoredToken()))));
  return Object(
      {Always("index", Integer(0)),
       Always("message",
              Object({Always("role", OneOfStrings({"assistant"})), Maybe("content", String()),
                      Maybe("refusal", String()), Maybe("reasoning_content", String()),
                      Maybe("reasoning", String()), Maybe("tool_calls", ArrayOf(ToolCallShape(), 1))})),
       Maybe("logprobs", Object({Maybe("content", ArrayOf(Object(scored))), Maybe("refusal", Anything())})),
       Always("finish_reason", OneOfStrings({"stop", "length", "tool_calls"})), StopReason(),
       Maybe("token_ids", TokenIds())});
}

}  // namespace

const Shape& ChatCompletionAnswerShape() {
  static const Shape shape = [] {
    std::vector<Field> fields = ChoicesAnswerFields("chat.completion", ChatChoiceShape());
    fields.push_back(Maybe("prompt_token_ids", TokenIds()));
    fields.push_back(Maybe("prompt_logprobs", PromptLogprobsShape()));
    return Object(std::move(fields));
  }();
  return shape;
}

}  // namespace tramontane

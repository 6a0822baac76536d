// What a body of /v1/responses and its answer may hold.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/core/check.h"
#include "server/api/openai/chat.h"
#include "server/api/openai/responses.h"
#include "server/api/shared/field_rows.h"
#include "server/api/shared/foreign_fields.h"
#include "server/api/shared/timing.h"

namespace tramontane {

// ---- bodies -------------------------------------------------------------------------------------

namespace {

constexpr int64_t kMaxMetadataBytes = 64 << 10;  // as JSON: it comes back with the answer
constexpr int64_t kMaxTextBytes = 4 << 10;       // of `text`, beside its schema

Shape TextPartsShape() {
  return ArrayOf(Object({
      {.name = "type",
       .shape = Only({"input_text", "output_text", "text"},
                     "only text is supported: no images, files or refusals"),
       .required = true},
      {.name = "text", .shape = String(), .required = true},
  }));
}

// A row that means here what it means in a chat completion.
Field ChatRow(const Shape& chat, std::string_view name) {
  const std::vector<Field>& rows = chat.fields;
  const auto row =
      std::find_if(rows.begin(), rows.end(), [name](const Field& field) { return field.name == name; });
  TM_CHECK(row != rows.end(), "chat completions have no field %s", std::string(name).c_str());
  return *row;
}

Shape ItemShape() {
  return Object({
      {.name = "type",
       .shape = Only({"message", "function_call", "function_call_output", "reasoning"},
                     "items are messages, function calls, their outputs, and reasoning"),
       .doc = "Default message."},
      {.name = "role",
       .shape = OneOfStrings({"user", "assistant", "system", "developer"}),
       .doc = "Of a message."},
      {.name = "content",
       .shape = AnyOf({String(), TextPartsShape(), ArrayOf(Object({}))}),
       .doc = "Of a message: text. Of reasoning: what was thought, as in an answer."},
      {.name = "call_id", .shape = String(), .doc = "Of a function call and its output: what joins them."},
      {.name = "name", .shape = String(1), .doc = "Of a function call."},
      {.name = "arguments",
       .shape = AnyOf({String(), Object({})}),
       .doc = "Of a function call: a JSON object, usually as text."},
      {.name = "output", .shape = MessageTextShape(), .doc = "Of a function call's output."},
  });
}

Shape FunctionToolShape() {
  return Object({
      {.name = "type",
       .shape = Only({"function"}, "only functions are supported, which the caller runs"),
       .required = true},
      {.name = "name", .shape = String(1), .required = true},
      {.name = "description", .shape = String()},
      {.name = "parameters",
       .shape = Object({}),
       .doc = "JSON Schema of the arguments. Default: no parameters."},
      {.name = "strict",
       .shape = Boolean(),
       .doc = "True: a schema that cannot be enforced in full is refused. Else the rest of it is "
              "enforced, and x-tramontane-unenforced names the parts that are not."},
  });
}

Shape TextFormatShape(const FieldLimits& limits) {
  return ClosedObject({
      {.name = "type", .shape = OneOfStrings({"text", "json_object", "json_schema"}), .required = true},
      {.name = "name", .shape = String(), .doc = "Changes nothing."},
      {.name = "description", .shape = String(), .doc = "Changes nothing."},
      {.name = "schema",
       .shape = Within(limits.max_constraint_bytes, Object({})),
       .doc = "With the type json_schema."},
      {.name = "strict", .shape = Boolean(), .doc = "Schemas are always enforced."},
  });
}

std::vector<Field> ResponsesFields(const FieldLimits& limits) {
  std::vector<Field> fields = {
      {.name = "input",
       .shape = AnyOf({String(), ArrayOf(ItemShape(), 1)}),
       .doc = "The conversation: a user's message, or all of its items.",
       .required = true},
      {.name = "instructions", .shape = String(), .doc = "A system message in front of the conversation."},
      {.name = "max_output_tokens",
       .shape = Integer(1),
       .doc = "Tokens to generate at most. Default: what the context leaves.",
       .path = "stopping.max_tokens",
       .apply = Into<&v1::GenerateRequest::mutable_stopping, &v1::Stopping::set_max_tokens>},
      {.name = "tools",
       .shape = Within(kMaxToolsBytes, ArrayOf(FunctionToolShape())),
       .doc = "Functions that the model may call.",
       .path = "chat.tools"},
      {.name = "tool_choice",
       .shape = AnyOf(
           {OneOfStrings({"none", "auto", "required"}),
            Object(std::vector<Field>{{.name = "type",
                                       .shape = Only({"function", "allowed_tools"}, kNamesFunctions),
                                       .required = true},
                                      {.name = "name", .shape = String(1), .doc = "Of a function."}} +
                   AllowedToolsFields(Object({{.name = "type", .shape = Only({"function"}, kNamesFunctions)},
                                              {.name = "name", .shape = String(1), .required = true}})))}),
       .doc = "none: no call; auto: the model decides; required: at least one call; the function to call; or "
              "the functions that may be called. Default auto.",
       .path = "chat.tool_choice"},
      {.name = "text",
       .shape =
           Within(limits.max_constraint_bytes + kMaxTextBytes,
                  ClosedObject({{.name = "format",
                                 .shape = TextFormatShape(limits),
                                 .doc = "What the text must be. Default: anything."},
                                Refused("verbosity", {"medium"}, "not supported: ask for it in the input")})),
       .doc = "The form of the answer."},
      {.name = "metadata",
       .shape = Within(kMaxMetadataBytes, MapOf(String())),
       .doc = "Comes back with the answer."},
      {.name = "reasoning",
       .shape = Object({{.name = "effort",
                         .shape = ReasoningEffort().shape,
                         .doc = "As `reasoning_effort` of a chat completion."},
                        Ignored("summary")})},
      {.name = "truncation",
       .shape = OneOfStrings({"disabled", "auto"}),
       .doc =
           "A conversation is never cut: with auto too, one that does not fit is refused. Default disabled."},
      {.name = "include",
       .shape = ArrayOf(String()),
       .doc = "Accepted; what it asks for (encrypted reasoning, search results) never exists here."},
  };
  const Shape chat = ChatCompletionShape(limits);
  for (const char* name :
       {"model", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty",
        "frequency_penalty", "seed", "stop", "min_tokens", "ignore_eos", "time_limit_ms", "stream",
        "parallel_tool_calls", "thinking_token_budget", "cache_salt", "priority", "context_policy"}) {
    fields.push_back(ChatRow(chat, name));
  }
  std::vector<Field> foreign = ForeignResponsesFields();
  std::move(foreign.begin(), foreign.end(), std::back_inserter(fields));
  return fields;
}

}  // namespace

const Shape& MessageTextShape() {
  static const Shape shape = AnyOf({String(), TextPartsShape()});
  return shape;
}

Shape ResponsesShape(const FieldLimits& limits) { return ClosedObject(ResponsesFields(limits)); }

namespace {

Shape AnswerMessageShape() {
  const Shape part =
      Object({Always("type", OneOfStrings({"output_text"})), Always("text", String()),
              Always("annotations", ArrayOf(Anything())), Always("logprobs", ArrayOf(Anything()))});
  return Object({Always("type", OneOfStrings({"message"})), Always("id", String()),
                 Always("status", OneOfStrings({"completed", "incomplete"})),
                 Always("role", OneOfStrings({"assistant"})), Always("content", ArrayOf(part, 1, 1))});
}

Shape AnswerCallShape() {
  return Object({Always("type", OneOfStrings({"function_call"})), Always("id", String()),
                 Always("call_id", String(9, 9)), Always("name", String(1)), Always("arguments", String(2)),
                 Always("status", OneOfStrings({"completed"}))});
}

Shape AnswerReasoningShape() {
  const Shape part = Object({Always("type", OneOfStrings({"reasoning_text"})), Always("text", String())});
  return Object({Always("type", OneOfStrings({"reasoning"})), Always("id", String()),
                 Always("status", OneOfStrings({"completed", "incomplete"})),
                 Always("summary", ArrayOf(Anything())), Always("content", ArrayOf(part, 1, 1))});
}

Shape AnswerUsageShape() {
  const Shape count = Integer(0);
  return Object({Always("input_tokens", count),
                 Always("input_tokens_details",
                        Object({Always("cached_tokens", count), Always("cache_write_tokens", count)})),
                 Always("output_tokens", count),
                 Always("output_tokens_details", Object({Always("reasoning_tokens", count)})),
                 Always("total_tokens", count), Maybe("discarded_tokens", count)});
}

std::vector<Field> AnswerFields() {
  return {
      Always("id", String()),
      Always("object", OneOfStrings({"response"})),
      Always("created_at", Integer(0)),
      Always("status", OneOfStrings({"completed", "incomplete"})),
      Always("background", Boolean()),
      Maybe("error", Object({})),
      Maybe("incomplete_details", Object({Always("reason", OneOfStrings({"max_output_tokens"}))})),
      Always("model", String()),
      Always("output", ArrayOf(AnyOf({AnswerMessageShape(), AnswerReasoningShape(), AnswerCallShape()}), 1)),
      Always("usage", AnswerUsageShape()),
      Maybe("timing", TimingShape()),
      Maybe("instructions", String()),
      Maybe("max_output_tokens", Integer(1)),
      Always("metadata", MapOf(String())),
      Always("parallel_tool_calls", Boolean()),
      Maybe("previous_response_id", String()),
      Always("store", Boolean()),
      Maybe("temperature", Number(0, 100)),
      Maybe("top_p", Number(0, 1)),
      Always("text", Object({})),
      Always("tool_choice", AnyOf({String(), Object({})})),
      Always("tools", ArrayOf(Object({}))),
      Always("truncation", OneOfStrings({"disabled", "auto"}))};
}

}  // namespace

const Shape& ResponsesAnswerShape() {
  static const Shape shape = Object(AnswerFields());
  return shape;
}

}  // namespace tramontane

#include "server/openai/fields.h"

#include <string>
#include <utility>
#include <vector>

#include "server/openai/foreign_fields.h"

namespace tramontane {
namespace {

using Request = v1::GenerateRequest;

constexpr double kMaxInt32 = 2147483647.0;

// Copies a value into one part of a GenerateRequest: Into<&Request::mutable_sampling,
// &v1::Sampling::set_top_p>.
template <typename Part, typename Value>
Value ValueOf(void (Part::*setter)(Value));
template <auto kPart, auto kSetter>
void Into(const Json& value, Request* request) {
  ((request->*kPart)()->*kSetter)(value.get<decltype(ValueOf(kSetter))>());
}

// 64 bits, whichever sign they were written with.
void ApplySeed(const Json& value, Request* request) {
  const bool is_negative = value.is_number_float() ? value.get<double>() < 0 : !value.is_number_unsigned();
  request->mutable_sampling()->set_seed(is_negative ? static_cast<uint64_t>(value.get<int64_t>())
                                                    : value.get<uint64_t>());
}

void ApplyStop(const Json& value, Request* request) {
  v1::Stopping* stopping = request->mutable_stopping();
  if (value.is_string()) {
    stopping->add_stop(value.get<std::string>());
  } else {
    for (const Json& stop : value) stopping->add_stop(stop.get<std::string>());
  }
}

void ApplyStopTokenIds(const Json& value, Request* request) {
  for (const Json& id : value) request->mutable_stopping()->add_stop_token_ids(id.get<int32_t>());
}

void ApplyChoices(const Json& value, Request* request) { request->set_choices(value.get<int32_t>()); }

void ApplyReturnTokenIds(const Json& value, Request* request) {
  request->mutable_output()->set_prompt_tokens(value.get<bool>());
  request->mutable_output()->set_token_ids(value.get<bool>());
}

std::vector<Field> operator+(std::vector<Field> fields, std::vector<Field> more) {
  fields.insert(fields.end(), more.begin(), more.end());
  return fields;
}

// ---- generating ---------------------------------------------------------------------------------

Field Model() {
  return {.name = "model",
          .shape = String(0, kMaxModelNameBytes),
          .doc = "One of the names in /v1/models. Default: the model that is served.",
          .path = "model"};
}

std::vector<Field> SamplingFields(const FieldLimits& limits) {
  return {
      {.name = "temperature",
       .shape = Number(0, 100),
       .doc = "0 always takes the likeliest token. Default: the model's, else 1.",
       .path = "sampling.temperature",
       .apply = Into<&Request::mutable_sampling, &v1::Sampling::set_temperature>},
      {.name = "top_p",
       .shape = NumberAbove(0, 1),
       .doc = "Only the likeliest tokens that together reach this share. Default: the model's, else 1.",
       .path = "sampling.top_p",
       .apply = Into<&Request::mutable_sampling, &v1::Sampling::set_top_p>},
      {.name = "top_k",
       .shape = Integer(-1, kMaxInt32),
       .doc = "Only the k likeliest tokens; 0 or -1: all. Default: the model's, else 0.",
       .path = "sampling.top_k",
       .apply = Into<&Request::mutable_sampling, &v1::Sampling::set_top_k>},
      {.name = "min_p",
       .shape = Number(0, 1),
       .doc = "Only tokens at least this likely, relative to the likeliest. Default 0.",
       .path = "sampling.min_p",
       .apply = Into<&Request::mutable_sampling, &v1::Sampling::set_min_p>},
      {.name = "repetition_penalty",
       .shape = Number(0.01, 100),
       .doc = "Above 1: what was said before is less likely. Default 1.",
       .path = "sampling.repetition_penalty",
       .apply = Into<&Request::mutable_sampling, &v1::Sampling::set_repetition_penalty>},
      {.name = "presence_penalty",
       .shape = Number(-2, 2),
       .doc = "Taken once from tokens that were generated. Default 0.",
       .path = "sampling.presence_penalty",
       .apply = Into<&Request::mutable_sampling, &v1::Sampling::set_presence_penalty>},
      {.name = "frequency_penalty",
       .shape = Number(-2, 2),
       .doc = "Taken once for each time a token was generated. Default 0.",
       .path = "sampling.frequency_penalty",
       .apply = Into<&Request::mutable_sampling, &v1::Sampling::set_frequency_penalty>},
      {.name = "seed",
       .shape = Integer64(),
       .doc = "The same request with the same seed gives the same tokens. Default: drawn.",
       .path = "sampling.seed",
       .apply = ApplySeed},
      {.name = "random_seed",
       .shape = Integer64(),
       .doc = "Mistral's name of `seed`; wins where both are given.",
       .path = "sampling.seed",
       .apply = ApplySeed},
      {.name = "logit_bias",
       .shape = MapOf(Number(-100, 100), limits.max_logit_bias),
       .doc = "Token id (as a key, so in quotes) to the amount added to its logit.",
       .path = "sampling.logit_bias"},
  };
}

std::vector<Field> StoppingFields(const FieldLimits& limits) {
  const Shape stop = String(1, limits.max_stop_bytes);
  return {
      {.name = "stop",
       .shape = AnyOf({stop, ArrayOf(stop, 0, limits.max_stop_strings)}),
       .doc = "Texts that end the answer; they are not part of it.",
       .path = "stopping.stop",
       .apply = ApplyStop},
      {.name = "stop_token_ids",
       .shape = ArrayOf(Integer(0, kMaxInt32), 0, limits.max_stop_token_ids),
       .doc = "Tokens that end the answer.",
       .path = "stopping.stop_token_ids",
       .apply = ApplyStopTokenIds},
      {.name = "include_stop_str_in_output",
       .shape = Boolean(),
       .doc = "Keep a matched stop text. Default false.",
       .path = "stopping.include_stop",
       .apply = Into<&Request::mutable_stopping, &v1::Stopping::set_include_stop>},
      {.name = "min_tokens",
       .shape = Integer(0),
       .doc = "Until then nothing ends the answer. Default 0.",
       .path = "stopping.min_tokens",
       .apply = Into<&Request::mutable_stopping, &v1::Stopping::set_min_tokens>},
      {.name = "ignore_eos",
       .shape = Boolean(),
       .doc = "Go on past the token that ends the text (to measure). Default false.",
       .path = "stopping.ignore_eos",
       .apply = Into<&Request::mutable_stopping, &v1::Stopping::set_ignore_eos>},
  };
}

std::vector<Field> OutputFields(const FieldLimits& limits) {
  return {
      {.name = "n",
       .shape = Integer(1, static_cast<double>(limits.max_choices)),
       .doc = "Independent answers to the one prompt, as many as the server allows. Default 1.",
       .path = "choices",
       .apply = ApplyChoices},
      {.name = "stream", .shape = Boolean(), .doc = "Send the answer as it comes. Default false."},
      {.name = "stream_options",
       .shape = ClosedObject({
           {.name = "include_usage", .shape = Boolean(), .doc = "One more chunk at the end, with `usage`."},
           {.name = "continuous_usage_stats", .shape = Boolean(), .doc = "`usage` in every chunk."},
           {.name = "include_obfuscation", .shape = Boolean(), .doc = "Accepted; changes nothing."},
       }),
       .doc = "Without `stream` they change nothing."},
      {.name = "skip_special_tokens",
       .shape = Boolean(),
       .doc = "Leave control tokens out of the text. Default true.",
       .path = "output.skip_special_tokens",
       .apply = Into<&Request::mutable_output, &v1::Output::set_skip_special_tokens>},
      {.name = "prompt_logprobs",
       .shape = Integer(0, 20),
       .doc = "Log probabilities of the prompt's tokens, with the N likeliest of each. Not with `stream`.",
       .path = "output.prompt_logprobs",
       .apply = Into<&Request::mutable_output, &v1::Output::set_prompt_logprobs>},
      {.name = "return_token_ids",
       .shape = Boolean(),
       .doc = "Also `prompt_token_ids` and, of each choice, `token_ids`. Default false.",
       .apply = ApplyReturnTokenIds},
      {.name = "return_tokens_as_token_ids",
       .shape = Boolean(),
       .doc = "Write the tokens of log probabilities as \"token_id:17\". Default false."},
      {.name = "request_id",
       .shape = String(1, kMaxRequestIdFieldBytes),
       .doc =
           "The answer's id, printable ASCII without spaces. Default: the header x-request-id, else drawn.",
       .path = "request_id"},
  };
}

// What the output can be held to.
struct ConstraintShapes {
  explicit ConstraintShapes(const FieldLimits& limits)
      : text(String(1, limits.max_constraint_bytes)),
        object(Within(limits.max_constraint_bytes, Object({}))),
        choice(Within(limits.max_constraint_bytes + kJsonBytesOfText * limits.max_constraint_choices,
                      ArrayOf(text, 1, limits.max_constraint_choices))) {}

  static constexpr int64_t kJsonBytesOfText =
      3;  // what a text in a list has around it: two quotes and a comma
  Shape text, object, choice;
};

Shape ResponseFormatShape(const ConstraintShapes& shapes) {
  const char kUseJsonSchema[] = "use the type json_schema, with the schema in json_schema.schema";
  return ClosedObject({
      {.name = "type",
       .shape = OneOfStrings({"text", "json_object", "json_schema"}),
       .doc = "json_object: any JSON object.",
       .required = true},
      {.name = "json_schema",
       .shape = ClosedObject({
           {.name = "name", .shape = String(), .doc = "Changes nothing."},
           {.name = "description", .shape = String(), .doc = "Changes nothing."},
           {.name = "schema", .shape = AnyOf({shapes.object, Boolean()}), .doc = "Default: any object."},
           {.name = "strict", .shape = Boolean(), .doc = "Schemas are always enforced."},
       }),
       .doc = "With the type json_schema."},
      Refused("schema", {}, kUseJsonSchema),
      Refused("value", {}, kUseJsonSchema),
  });
}

Shape StructuredOutputsShape(const ConstraintShapes& shapes) {
  const char kWhiteSpace[] = "the white space of JSON cannot be chosen";
  return ClosedObject({
      {.name = "json", .shape = AnyOf({shapes.object, shapes.text}), .doc = "A JSON Schema."},
      {.name = "json_object", .shape = Boolean(), .doc = "Any JSON object."},
      {.name = "regex", .shape = shapes.text, .doc = "Matched by the whole text."},
      {.name = "choice", .shape = shapes.choice, .doc = "One of these texts."},
      {.name = "grammar", .shape = shapes.text, .doc = "EBNF."},
      Refused("structural_tag", {}, "structural tags are not supported"),
      Refused("whitespace_pattern", {}, kWhiteSpace),
      Refused("disable_any_whitespace", {false}, kWhiteSpace),
      Refused("disable_additional_properties", {false}, "say additionalProperties in the schema"),
      Ignored("disable_fallback"),
      Ignored("backend"),
      Ignored("enable_in_reasoning"),
  });
}

std::vector<Field> ConstraintFields(const FieldLimits& limits) {
  const ConstraintShapes shapes(limits);
  return {
      {.name = "response_format",
       .shape = ResponseFormatShape(shapes),
       .doc = "What the text of the answer must be. Default: anything."},
      {.name = "structured_outputs",
       .shape = StructuredOutputsShape(shapes),
       .doc = "vLLM's way to say what the text must be: exactly one of its fields."},
      {.name = "guided_json", .shape = AnyOf({shapes.object, shapes.text}), .doc = "structured_outputs.json"},
      {.name = "guided_regex", .shape = shapes.text, .doc = "structured_outputs.regex"},
      {.name = "guided_choice", .shape = shapes.choice, .doc = "structured_outputs.choice"},
      {.name = "guided_grammar", .shape = shapes.text, .doc = "structured_outputs.grammar"},
      {.name = "regex", .shape = shapes.text, .doc = "structured_outputs.regex"},
      {.name = "ebnf", .shape = shapes.text, .doc = "structured_outputs.grammar"},
  };
}

std::vector<Field> GenerationFields(const FieldLimits& limits) {
  return SamplingFields(limits) + StoppingFields(limits) + OutputFields(limits) + ConstraintFields(limits);
}

// ---- chats --------------------------------------------------------------------------------------

Shape ContentShape() {
  const Shape part = Object({
      {.name = "type",
       .shape = Only({"text"},
                     "only parts of the type \"text\" are supported: no images, audio, files or thinking"),
       .required = true},
      {.name = "text", .shape = String(), .required = true},
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

Field AddGenerationPrompt() {
  return {
      .name = "add_generation_prompt",
      .shape = Boolean(),
      .doc = "Accepted; changes nothing: in Mistral's formats the answer follows the last message directly."};
}

Field ContinueFinalMessage() {
  return {.name = "continue_final_message",
          .shape = Boolean(),
          .doc = "The last message is the assistant's, and the answer goes on from it. Default false."};
}

Field SafePrompt() {
  return {.name = "safe_prompt",
          .shape = Boolean(),
          .doc = "Mistral's: a system message in front that asks for safe answers. Default false."};
}

// What chooses among tools; what it means is in tool_calls.h.
std::vector<Field> ToolChoiceFields() {
  return {
      {.name = "tool_choice",
       .shape = AnyOf({OneOfStrings({"none", "auto", "required", "any"}),
                       Object({
                           {.name = "type",
                            .shape = Only({"function"}, "only functions can be named"),
                            .doc = "Default function."},
                           {.name = "function",
                            .shape = Object({{.name = "name", .shape = String(1), .required = true}}),
                            .required = true},
                       })}),
       .doc = "none: no call; auto: the model decides; required or any: at least one call; or the function "
              "to call. Default auto.",
       .path = "chat.tool_choice"},
      {.name = "parallel_tool_calls", .shape = Boolean(), .doc = "False: at most one call. Default true."},
  };
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

// ---- completions --------------------------------------------------------------------------------

std::vector<Field> CompletionFields() {
  const Shape ids = ArrayOf(Integer(0, kMaxInt32), 1);
  return {
      {.name = "prompt",
       .shape = AnyOf({String(), ArrayOf(String(), 1, kMaxPrompts), ids, ArrayOf(ids, 1, kMaxPrompts)}),
       .doc =
           "A text or token ids, or several of either: each gets `n` answers, in the order of the prompts.",
       .required = true},
      {.name = "max_tokens",
       .shape = Integer(0),
       .doc = "Tokens to generate at most; 0 scores the prompt only. Default 16.",
       .path = "stopping.max_tokens",
       .apply = Into<&Request::mutable_stopping, &v1::Stopping::set_max_tokens>},
      {.name = "logprobs",
       .shape = Integer(0, 20),
       .doc = "Log probabilities of the tokens, and of the N likeliest at each place. Default: none.",
       .path = "output.logprobs",
       .apply = Into<&Request::mutable_output, &v1::Output::set_logprobs>},
      {.name = "echo", .shape = Boolean(), .doc = "Put the prompt in front of the answer. Default false."},
      {.name = "add_special_tokens",
       .shape = Boolean(),
       .doc = "Begin a text with the beginning-of-sequence token. Default true.",
       .path = "add_bos"},
      {.name = "best_of",
       .shape = Integer(0, 20),
       .doc = "Only as `n`: answers that are thrown away are not made."},
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
                     Refused("reasoning", {""}, kNoThinking),
                     Refused("reasoning_content", {""}, kNoThinking),
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
               {.name = "strict", .shape = Boolean(), .doc = "Accepted."},
           }),
           .required = true},
      })));
}

Shape ChatCompletionShape(const FieldLimits& limits) {
  return ClosedObject(std::vector<Field>{Model()} + ChatFields() + ToolChoiceFields() + ChatOutputFields() +
                      GenerationFields(limits) +
                      std::vector<Field>{AddGenerationPrompt(), ContinueFinalMessage(), SafePrompt()} +
                      ForeignFields() + ForeignChatFields());
}

Shape CompletionShape(const FieldLimits& limits) {
  return ClosedObject(std::vector<Field>{Model()} + CompletionFields() + GenerationFields(limits) +
                      ForeignFields() + ForeignCompletionFields());
}

Shape TokenizeShape() {
  return ClosedObject(
      std::vector<Field>{
          Model(),
          {.name = "prompt", .shape = String(), .doc = "Exactly one of this and `messages`.", .path = "text"},
          {.name = "content", .shape = String(), .doc = "Another name of `prompt`."},
          {.name = "messages", .shape = MessagesShape(), .doc = "A chat.", .path = "chat.messages"},
          {.name = "tools", .shape = ToolsShape(), .doc = "Of the chat.", .path = "chat.tools"},
          {.name = "add_special_tokens",
           .shape = Boolean(),
           .doc = "Begin a prompt with the beginning-of-sequence token. Default true, but for an empty "
                  "one. A chat always begins with it.",
           .path = "add_bos"},
          {.name = "return_token_strs", .shape = Boolean(), .doc = "Also each token as text. Default false."},
          AddGenerationPrompt(),
          ContinueFinalMessage(),
      } +
      ToolChoiceFields() + ForeignTokenizeFields());
}

Shape DetokenizeShape() {
  return ClosedObject({
      Model(),
      {.name = "tokens",
       .shape = ArrayOf(Integer(0, kMaxInt32)),
       .doc = "Token ids.",
       .required = true,
       .path = "token_ids"},
  });
}

}  // namespace tramontane

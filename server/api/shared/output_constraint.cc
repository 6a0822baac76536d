#include "server/api/shared/output_constraint.h"

#include <cstdint>
#include <utility>

#include "server/api/shared/foreign_fields.h"

namespace tramontane {

v1::Constraint& OutputDemands::Add(std::string field) {
  demands_.push_back({.field = field, .format_field = std::move(field), .constraint = {}});
  return demands_.back().constraint;
}

void OutputDemands::AddJsonObject(std::string field) { Add(std::move(field)).set_json_object(true); }

void OutputDemands::AddSchema(const Json& schema, std::string field) {
  Add(std::move(field)).set_json_schema(schema.is_string() ? schema.get<std::string>() : PrintJson(schema));
}

void OutputDemands::AddRegex(const Json& text, std::string field) {
  Add(std::move(field)).set_regex(text.get<std::string>());
}

void OutputDemands::AddGrammar(const Json& text, std::string field) {
  Add(std::move(field)).set_grammar(text.get<std::string>());
}

void OutputDemands::AddChoice(const Json& texts, std::string field) {
  v1::Choices* choice = Add(std::move(field)).mutable_choice();
  for (const Json& text : texts) choice->add_texts(text.get<std::string>());
}

void OutputDemands::AddFormat(const Json& format, std::string field, const Json* schema,
                              std::string schema_field) {
  const Json& type = format["type"];
  if (type == "text") return;
  if (type == "json_object" || schema == nullptr) return AddJsonObject(std::move(field));
  AddSchema(*schema, std::move(schema_field));
  demands_.back().format_field = std::move(field);
}

std::optional<ApiError> OutputDemands::PutInto(v1::GenerateRequest* call, FieldNames* names) const {
  if (demands_.empty()) return std::nullopt;
  const Demand& first = demands_[0];
  for (const Demand& demand : demands_) {
    if (demand.constraint.SerializeAsString() == first.constraint.SerializeAsString()) continue;
    return FieldFault(demand.field, "is given beside " + first.field + "; an answer has one form");
  }
  *call->mutable_constraint() = first.constraint;
  names->Rename("constraint", first.format_field);
  for (const char* kind : {"json_schema", "json_object", "regex", "grammar", "choice.texts", "choice"}) {
    names->Rename(std::string("constraint.") + kind, first.field);
  }
  return std::nullopt;
}

// ---- of chats and completions -------------------------------------------------------------------

namespace {

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
      {.name = "enable_in_reasoning",
       .shape = Boolean(),
       .doc = "True: the answer is held to its form, here or in response_format, from its first token on, so "
              "that the "
              "model does not think before. Default false."},
  });
}

}  // namespace

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

namespace {

std::optional<ApiError> AddStructuredOutputs(const Json& json, OutputDemands* demands) {
  const Json* outputs = Find(json, "structured_outputs");
  if (outputs == nullptr) return std::nullopt;
  const auto add = [&](const char* key, auto add_value) {
    const Json* value = Find(*outputs, key);
    if (value != nullptr) (demands->*add_value)(*value, std::string("structured_outputs.") + key);
  };
  add("json", &OutputDemands::AddSchema);
  if (IsTrue(*outputs, "json_object")) demands->AddJsonObject("structured_outputs.json_object");
  add("regex", &OutputDemands::AddRegex);
  add("choice", &OutputDemands::AddChoice);
  add("grammar", &OutputDemands::AddGrammar);
  const bool says_of_thoughts = Find(*outputs, "enable_in_reasoning") && Find(json, "response_format");
  if (!demands->empty() || says_of_thoughts) return std::nullopt;
  return FieldFault("structured_outputs",
                    "is empty; it must have one of json, json_object, regex, choice, grammar");
}

std::optional<ApiError> AddResponseFormat(const Json& json, OutputDemands* demands) {
  const Json* format = Find(json, "response_format");
  if (format == nullptr) return std::nullopt;
  const Json* named = Find(*format, "json_schema");
  const bool has_schema = (*format)["type"] == "json_schema";
  if (has_schema && named == nullptr) return FieldFault("response_format.json_schema", "is missing");
  constexpr char kSchemaField[] = "response_format.json_schema.schema";
  const Json* schema = has_schema ? Find(*named, "schema") : nullptr;
  demands->AddFormat(*format, schema == nullptr ? "response_format" : kSchemaField, schema, kSchemaField);
  return std::nullopt;
}

}  // namespace

std::optional<ApiError> ConvertConstraint(const Json& json, v1::GenerateRequest* call, FieldNames* names) {
  OutputDemands demands;
  if (auto fault = AddStructuredOutputs(json, &demands)) return fault;
  if (auto fault = AddResponseFormat(json, &demands)) return fault;
  const auto add = [&](const char* key, auto add_value) {
    if (const Json* value = Find(json, key)) (demands.*add_value)(*value, key);
  };
  add("guided_json", &OutputDemands::AddSchema);
  add("guided_regex", &OutputDemands::AddRegex);
  add("guided_choice", &OutputDemands::AddChoice);
  add("guided_grammar", &OutputDemands::AddGrammar);
  add("regex", &OutputDemands::AddRegex);
  add("ebnf", &OutputDemands::AddGrammar);
  if (auto fault = demands.PutInto(call, names)) return fault;
  const Json* outputs = Find(json, "structured_outputs");
  const bool holds_thoughts = outputs != nullptr && IsTrue(*outputs, "enable_in_reasoning");
  if (holds_thoughts && call->has_constraint()) call->mutable_constraint()->set_from_first_token(true);
  return std::nullopt;
}

}  // namespace tramontane

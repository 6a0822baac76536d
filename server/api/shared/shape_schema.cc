// Shapes as JSON Schema.
#include <cstdint>
#include <limits>
#include <utility>

#include "server/api/shared/shape.h"

namespace tramontane {

namespace {

Json ObjectSchema(const Shape& shape) {
  Json schema = {{"type", "object"}};
  Json required = Json::array();
  for (const Field& field : shape.fields) {
    Json property = JsonSchema(field.shape);
    if (!field.required) {
      // "type" takes a list; what has none takes an alternative.
      if (property.contains("enum")) {
        property["enum"].push_back(nullptr);
      } else if (property.contains("type")) {
        property["type"] = Json::array({property["type"], "null"});
      } else if (property.contains("anyOf")) {
        property["anyOf"].push_back({{"type", "null"}});
      }
    }
    if (!field.doc.empty()) property["description"] = field.doc;
    if (field.required) required.push_back(field.name);
    schema["properties"][field.name] = std::move(property);
  }
  if (!required.empty()) schema["required"] = std::move(required);
  if (!shape.parts.empty()) schema["additionalProperties"] = JsonSchema(shape.parts[0]);
  if (shape.closed) schema["additionalProperties"] = false;
  if (shape.max_size != std::numeric_limits<int64_t>::max()) schema["maxProperties"] = shape.max_size;
  return schema;
}

}  // namespace

Json JsonSchema(const Shape& shape) {
  Json schema = Json::object();
  switch (shape.kind) {
    case Shape::Kind::kAnything:
      return schema;
    case Shape::Kind::kBoolean:
      schema["type"] = "boolean";
      return schema;
    case Shape::Kind::kInteger:
    case Shape::Kind::kNumber:
      schema["type"] = shape.kind == Shape::Kind::kInteger ? "integer" : "number";
      schema[shape.above_minimum ? "exclusiveMinimum" : "minimum"] = NumberJson(shape.minimum);
      schema["maximum"] = NumberJson(shape.maximum);
      return schema;
    case Shape::Kind::kInteger64:
      schema["type"] = "integer";
      schema["minimum"] = std::numeric_limits<int64_t>::min();
      schema["maximum"] = std::numeric_limits<uint64_t>::max();
      return schema;
    case Shape::Kind::kString:
      schema["type"] = "string";
      if (shape.min_size > 0) schema["minLength"] = shape.min_size;
      if (shape.max_size != std::numeric_limits<int64_t>::max()) schema["maxLength"] = shape.max_size;
      return schema;
    case Shape::Kind::kArray:
      schema["type"] = "array";
      schema["items"] = JsonSchema(shape.parts[0]);
      if (shape.min_size > 0) schema["minItems"] = shape.min_size;
      if (shape.max_size != std::numeric_limits<int64_t>::max()) schema["maxItems"] = shape.max_size;
      return schema;
    case Shape::Kind::kObject:
      return ObjectSchema(shape);
    case Shape::Kind::kAnyOf:
      schema["anyOf"] = Json::array();
      for (const Shape& part : shape.parts) schema["anyOf"].push_back(JsonSchema(part));
      return schema;
    case Shape::Kind::kOnly:
      schema["enum"] = shape.only;
      return schema;
  }
  return schema;
}

}  // namespace tramontane

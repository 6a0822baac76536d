#include "models/tokenizer/json_schema.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "kernels/core/utf8.h"
#include "models/tokenizer/python_regex.h"

namespace tramontane {
namespace {

using Kind = JsonValue::Kind;

// What a keyword's value must be.
enum class Shape {
  kString,
  kPattern,  // a string that is a regular expression
  kBoolean,
  kNumber,
  kPositiveNumber,
  kCount,             // an integer from 0
  kArray,             // of anything
  kSchema,            // a schema: an object or a boolean
  kSchemaArray,       // one schema or more
  kSchemaOrArray,     // either
  kSchemaMap,         // an object whose values are schemas
  kPatternMap,        // the same, with regular expressions as keys
  kSchemaOrNamesMap,  // an object whose values are schemas or lists of names
  kNames,             // distinct strings
  kTypes,             // a type's name, or distinct ones, at least one
};

struct Keyword {
  std::string_view name;
  Shape shape;
  const char* wants;
};

constexpr const char* kWantsSchema = "a schema (an object or a boolean)";
constexpr const char* kWantsCount = "an integer from 0";
constexpr const char* kWantsSchemas = "an array of at least one schema";
constexpr const char* kWantsSchemaMap = "an object of schemas";

// The keywords of draft 7; others may hold anything.
constexpr Keyword kKeywords[] = {
    {"$id", Shape::kString, "a string"},
    {"$schema", Shape::kString, "a string"},
    {"$ref", Shape::kString, "a string"},
    {"$comment", Shape::kString, "a string"},
    {"title", Shape::kString, "a string"},
    {"description", Shape::kString, "a string"},
    {"format", Shape::kString, "a string"},
    {"pattern", Shape::kPattern, "a regular expression (of Python's kind)"},
    {"contentMediaType", Shape::kString, "a string"},
    {"contentEncoding", Shape::kString, "a string"},
    {"readOnly", Shape::kBoolean, "a boolean"},
    {"uniqueItems", Shape::kBoolean, "a boolean"},
    {"multipleOf", Shape::kPositiveNumber, "a number above 0"},
    {"maximum", Shape::kNumber, "a number"},
    {"exclusiveMaximum", Shape::kNumber, "a number"},
    {"minimum", Shape::kNumber, "a number"},
    {"exclusiveMinimum", Shape::kNumber, "a number"},
    {"maxLength", Shape::kCount, kWantsCount},
    {"minLength", Shape::kCount, kWantsCount},
    {"maxItems", Shape::kCount, kWantsCount},
    {"minItems", Shape::kCount, kWantsCount},
    {"maxProperties", Shape::kCount, kWantsCount},
    {"minProperties", Shape::kCount, kWantsCount},
    {"examples", Shape::kArray, "an array"},
    {"enum", Shape::kArray, "an array"},
    {"required", Shape::kNames, "an array of distinct strings"},
    {"type", Shape::kTypes, "a type's name or an array of distinct ones"},
    {"additionalItems", Shape::kSchema, kWantsSchema},
    {"contains", Shape::kSchema, kWantsSchema},
    {"additionalProperties", Shape::kSchema, kWantsSchema},
    {"propertyNames", Shape::kSchema, kWantsSchema},
    {"if", Shape::kSchema, kWantsSchema},
    {"then", Shape::kSchema, kWantsSchema},
    {"else", Shape::kSchema, kWantsSchema},
    {"not", Shape::kSchema, kWantsSchema},
    {"items", Shape::kSchemaOrArray, "a schema or an array of at least one"},
    {"allOf", Shape::kSchemaArray, kWantsSchemas},
    {"anyOf", Shape::kSchemaArray, kWantsSchemas},
    {"oneOf", Shape::kSchemaArray, kWantsSchemas},
    {"definitions", Shape::kSchemaMap, kWantsSchemaMap},
    {"properties", Shape::kSchemaMap, kWantsSchemaMap},
    {"patternProperties", Shape::kPatternMap,
     "an object of schemas by regular expression (of Python's kind)"},
    {"dependencies", Shape::kSchemaOrNamesMap, "an object of schemas or arrays of distinct strings"},
};

constexpr std::array<std::string_view, 7> kTypeNames = {"array",  "boolean", "integer", "null",
                                                        "number", "object",  "string"};

bool IsTypeName(const JsonValue& value) {
  return value.kind == Kind::kString &&
         std::find(kTypeNames.begin(), kTypeNames.end(), value.text) != kTypeNames.end();
}

bool AreDistinctStrings(const JsonValue& value) {
  if (value.kind != Kind::kArray) return false;
  std::unordered_set<std::string_view> seen;
  return std::all_of(value.items.begin(), value.items.end(), [&](const JsonValue& item) {
    return item.kind == Kind::kString && seen.insert(item.text).second;
  });
}

bool IsCount(const JsonValue& value) {
  if (value.kind != Kind::kNumber || !(value.number >= 0)) return false;
  if (std::isinf(value.number)) return value.text != "Infinity";  // an integer beyond a double's range
  return std::floor(value.number) == value.number;
}

bool AreTypes(const JsonValue& value) {
  return IsTypeName(value) || (AreDistinctStrings(value) && !value.items.empty() &&
                               std::all_of(value.items.begin(), value.items.end(), IsTypeName));
}

// What is wrong, and where. The place is put together on the way out of the recursion, so a sound schema
// costs none.
struct Fault {
  std::string path;  // ".properties.city.type", from the value checked down
  const char* wants;
};

std::optional<Fault> Check(const JsonValue& schema);

std::optional<Fault> In(const std::string& step, std::optional<Fault> fault) {
  if (fault) fault->path.insert(0, step);
  return fault;
}

std::optional<Fault> CheckItems(const JsonValue& array, const char* wants) {
  if (array.items.empty()) return Fault{"", wants};
  for (size_t i = 0; i < array.items.size(); ++i) {
    if (auto fault = Check(array.items[i])) return In("[" + std::to_string(i) + "]", std::move(fault));
  }
  return std::nullopt;
}

std::optional<Fault> CheckMembers(const JsonValue& object, bool may_be_names) {
  for (const auto& [name, member] : object.members) {
    if (may_be_names && AreDistinctStrings(member)) continue;
    if (auto fault = Check(member)) return In("." + name, std::move(fault));
  }
  return std::nullopt;
}

std::optional<Fault> CheckKeyword(const Keyword& keyword, const JsonValue& value) {
  const auto unless = [&](bool holds) {
    return holds ? std::nullopt : std::optional(Fault{"", keyword.wants});
  };
  switch (keyword.shape) {
    case Shape::kString:
      return unless(value.kind == Kind::kString);
    case Shape::kPattern:
      return unless(value.kind == Kind::kString && IsPythonRegex(value.text));
    case Shape::kBoolean:
      return unless(value.kind == Kind::kBool);
    case Shape::kNumber:
      return unless(value.kind == Kind::kNumber);
    case Shape::kPositiveNumber:
      return unless(value.kind == Kind::kNumber && !(value.number <= 0));
    case Shape::kCount:
      return unless(IsCount(value));
    case Shape::kArray:
      return unless(value.kind == Kind::kArray);
    case Shape::kNames:
      return unless(AreDistinctStrings(value));
    case Shape::kTypes:
      return unless(AreTypes(value));
    case Shape::kSchema:
      return Check(value);
    case Shape::kSchemaArray:
      return value.kind == Kind::kArray ? CheckItems(value, keyword.wants) : unless(false);
    case Shape::kSchemaOrArray:
      return value.kind == Kind::kArray ? CheckItems(value, keyword.wants) : Check(value);
    case Shape::kPatternMap:
      for (const auto& [pattern, member] : value.members) {
        if (!IsPythonRegex(pattern)) return unless(false);
      }
      [[fallthrough]];
    case Shape::kSchemaMap:
    case Shape::kSchemaOrNamesMap:
      if (value.kind != Kind::kObject) return unless(false);
      return CheckMembers(value, keyword.shape == Shape::kSchemaOrNamesMap);
  }
  return std::nullopt;
}

std::optional<Fault> Check(const JsonValue& schema) {
  if (schema.kind == Kind::kBool) return std::nullopt;
  if (schema.kind != Kind::kObject) return Fault{"", kWantsSchema};
  for (const auto& [name, value] : schema.members) {
    const auto keyword = std::find_if(std::begin(kKeywords), std::end(kKeywords),
                                      [&name = name](const Keyword& known) { return known.name == name; });
    if (keyword == std::end(kKeywords)) continue;
    if (auto fault = CheckKeyword(*keyword, value)) return In("." + name, std::move(fault));
  }
  return std::nullopt;
}

}  // namespace

Status CheckJsonSchema(const JsonValue& schema) {
  const std::optional<Fault> fault = Check(schema);
  if (!fault) return Status::Ok();
  return InvalidArgument(Excerpt(fault->path) + " is not " + fault->wants);
}

}  // namespace tramontane

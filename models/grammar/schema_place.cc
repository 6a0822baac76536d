#include "models/grammar/schema_place.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "kernels/core/utf8.h"
#include "models/grammar/schema_keywords.h"
#include "models/grammar/schema_reference.h"

namespace tramontane {
namespace {

constexpr std::string_view kTooLarge = "comes, with what stands in front of it, to more than ";

bool NamesType(const JsonValue& name) {
  return name.kind == JsonValue::Kind::kString &&
         std::find(kTypes.begin(), kTypes.end(), name.text) != kTypes.end();
}

std::vector<JsonValue> NamesOfTypes(const JsonValue& type) {
  return type.kind == JsonValue::Kind::kArray ? type.items : std::vector<JsonValue>{type};
}

std::string ReasonOf(const Status& fault, const SchemaPlace& place, const JsonValue& schema,
                     const ConstraintLimits& limits) {
  const std::string inside = ReplaceInvalidUtf8(place.path) + ".";
  if (fault.field().starts_with(inside)) {
    const std::string keyword = fault.field().substr(inside.size());
    return keyword.substr(0, keyword.find_first_of(".["));
  }
  if (place.depth > limits.max_depth) return "depth";
  if (schema.kind == JsonValue::Kind::kBool) return "false";
  if (schema.kind != JsonValue::Kind::kObject) return "not a schema";
  return fault.sentence().find(kTooLarge) != std::string::npos ? "size" : "no value";
}

}  // namespace

// A key may be half of a surrogate pair; what is said of it is text.
Status FaultAt(const std::string& path, const std::string& what) {
  if (path.empty()) return InvalidArgument("the schema: " + what);
  return InvalidArgument(what).WithField(ReplaceInvalidUtf8(path));
}

Status TooLargeFault(const std::string& path, int64_t most, const std::string& things) {
  return FaultAt(path, std::string(kTooLarge) + std::to_string(most) + things);
}

Status CheckSchema(const JsonValue& schema, const SchemaPlace& place, const JsonValue& root,
                   const ConstraintLimits& limits) {
  if (place.depth > limits.max_depth) {
    return FaultAt(place.path,
                   "lies more than " + std::to_string(limits.max_depth) + " schemas inside each other");
  }
  if (schema.kind == JsonValue::Kind::kBool) return {};
  if (schema.kind != JsonValue::Kind::kObject) {
    return FaultAt(place.path, "is not a schema (an object or a boolean)");
  }
  for (const JsonMember& member : schema.members) {
    const std::string path = place.path + "." + member.key;
    if (member.key.starts_with("x-")) continue;
    const Keyword* keyword = FindKeyword(member.key);
    if (keyword == nullptr) return FaultAt(path, "is no keyword that is known here");
    const bool says_nothing = (member.key == "uniqueItems" && member.value.kind == JsonValue::Kind::kBool &&
                               !member.value.boolean) ||
                              (member.key == "$id" && &schema == &root);
    if (keyword->group == KeywordGroup::kRefused && !says_nothing) {
      return FaultAt(path, "is not supported");
    }
  }
  if (const JsonValue* type = FindMember(schema, "type")) {
    const std::vector<JsonValue> names = NamesOfTypes(*type);
    if (names.empty()) return FaultAt(place.path + ".type", "names no type");
    for (const JsonValue& name : names) {
      if (NamesType(name)) continue;
      return FaultAt(place.path + ".type", "is not the name of a type: " + Excerpt(JsonText(name)));
    }
  }
  return {};
}

std::string RelaxedPart(const Status& fault, const SchemaPlace& place, const JsonValue& schema,
                        const ConstraintLimits& limits) {
  return Excerpt(ReplaceInvalidUtf8(place.path)) + " (" + Excerpt(ReasonOf(fault, place, schema, limits)) +
         ")";
}

JsonValue TypeAlone(const JsonValue& schema) {
  JsonValue alone = AnyValue();
  const JsonValue* type = FindMember(schema, "type");
  if (type == nullptr) return alone;
  const std::vector<JsonValue> names = NamesOfTypes(*type);
  const bool is_sound = !names.empty() && std::all_of(names.begin(), names.end(), NamesType);
  if (is_sound) alone.members.push_back({"type", *type});
  return alone;
}

JsonValue AnyValue() {
  JsonValue schema;
  schema.kind = JsonValue::Kind::kObject;
  return schema;
}

std::string JsonText(const JsonValue& value) {
  std::string text;
  AppendPythonJson(value, &text);
  return text;
}

}  // namespace tramontane

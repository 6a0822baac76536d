#include "models/grammar/schema_values.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "models/grammar/schema_keywords.h"
#include "models/grammar/schema_reference.h"

namespace tramontane {
namespace {

constexpr int kMostJudgedDepth = 64;     // of references and schemas inside each other
constexpr int64_t kMostJudged = 10'000;  // schemas looked at for one value

class Judge {
 public:
  Judge(const JsonValue& root, const ConstraintLimits& limits, RegexWork* work)
      : root_(root), limits_(limits), work_(work) {}

  StatusOr<bool> Holds(const JsonValue& schema, const JsonValue& value, int depth) const {
    if (schema.kind == JsonValue::Kind::kBool) return schema.boolean;
    if (depth > kMostJudgedDepth || ++steps_ > kMostJudged)
      return InvalidArgument("lies too deep for the values of enum and const");
    if (schema.kind != JsonValue::Kind::kObject)
      return InvalidArgument("is not a schema (an object or a boolean)");
    for (const JsonMember& member : schema.members) {
      const Keyword* keyword = FindKeyword(member.key);
      if (keyword == nullptr) continue;
      StatusOr<bool> holds = true;
      switch (keyword->group) {
        case KeywordGroup::kType:
          holds = HasAnyType(member.value, value);
          break;
        case KeywordGroup::kValues:
          holds = IsAnyOf(member, value);
          break;
        case KeywordGroup::kApplied:
          holds = Applied(member, value, depth + 1);
          break;
        case KeywordGroup::kNumber:
          holds = value.kind != JsonValue::Kind::kNumber || IsWithin(member, value.number);
          break;
        case KeywordGroup::kArray:
          if (value.kind == JsonValue::Kind::kArray) holds = Array(schema, member, value, depth + 1);
          break;
        case KeywordGroup::kObject:
          if (value.kind == JsonValue::Kind::kObject) holds = Object(schema, member, value, depth + 1);
          break;
        default:
          break;
      }
      if (!holds.ok() || !*holds) return holds;
    }
    if (value.kind != JsonValue::Kind::kString) return true;
    TM_ASSIGN_OR_RETURN(const StringKeywords keywords, StringKeywordsOf(schema));
    return StringHolds(keywords, value.text, limits_, work_);
  }

 private:
  static bool HasAnyType(const JsonValue& types, const JsonValue& value) {
    if (types.kind == JsonValue::Kind::kString) return HasType(value, types.text);
    return std::any_of(types.items.begin(), types.items.end(),
                       [&](const JsonValue& type) { return HasType(value, type.text); });
  }

  static bool IsAnyOf(const JsonMember& keyword, const JsonValue& value) {
    if (keyword.key == "const") return IsSameJson(keyword.value, value);
    return std::any_of(keyword.value.items.begin(), keyword.value.items.end(),
                       [&](const JsonValue& option) { return IsSameJson(option, value); });
  }

  StatusOr<bool> Applied(const JsonMember& keyword, const JsonValue& value, int depth) const {
    if (keyword.key == "$ref") {
      const JsonValue* target = ResolveReference(root_, keyword.value.text);
      if (target == nullptr) return InvalidArgument("leads nowhere inside this schema").WithField(".$ref");
      return Holds(*target, value, depth);
    }
    int64_t holding = 0;
    for (const JsonValue& option : keyword.value.items) {
      TM_ASSIGN_OR_RETURN(const bool holds, Holds(option, value, depth));
      holding += holds ? 1 : 0;
    }
    if (keyword.key == "allOf") return holding == static_cast<int64_t>(keyword.value.items.size());
    return keyword.key == "oneOf" ? holding == 1 : holding > 0;
  }

  static bool IsWithin(const JsonMember& bound, double number) {
    if (bound.key == "minimum") return number >= bound.value.number;
    if (bound.key == "maximum") return number <= bound.value.number;
    return bound.key == "exclusiveMinimum" ? number > bound.value.number : number < bound.value.number;
  }

  static bool HasCount(const JsonMember& bound, size_t count) {
    const auto number = static_cast<double>(count);
    return bound.key.starts_with("min") ? number >= bound.value.number : number <= bound.value.number;
  }

  StatusOr<bool> Array(const JsonValue& schema, const JsonMember& keyword, const JsonValue& value,
                       int depth) const {
    if (keyword.key == "minItems" || keyword.key == "maxItems") return HasCount(keyword, value.items.size());
    const JsonValue* prefix = FindMember(schema, "prefixItems");
    const size_t first = prefix == nullptr ? 0 : prefix->items.size();
    const bool is_prefix = keyword.key == "prefixItems";
    for (size_t i = is_prefix ? 0 : first;
         i < (is_prefix ? std::min(first, value.items.size()) : value.items.size()); ++i) {
      TM_ASSIGN_OR_RETURN(const bool holds,
                          Holds(is_prefix ? keyword.value.items[i] : keyword.value, value.items[i], depth));
      if (!holds) return false;
    }
    return true;
  }

  StatusOr<bool> Object(const JsonValue& schema, const JsonMember& keyword, const JsonValue& value,
                        int depth) const {
    if (keyword.key == "minProperties" || keyword.key == "maxProperties") {
      return HasCount(keyword, value.members.size());
    }
    if (keyword.key == "required") {
      return std::all_of(keyword.value.items.begin(), keyword.value.items.end(),
                         [&](const JsonValue& name) { return FindMember(value, name.text) != nullptr; });
    }
    const JsonValue* described = FindMember(schema, "properties");
    for (const JsonMember& member : value.members) {
      const JsonValue* of_name = described == nullptr ? nullptr : FindMember(*described, member.key);
      StatusOr<bool> holds = true;
      if (keyword.key == "properties" && of_name != nullptr) holds = Holds(*of_name, member.value, depth);
      if (keyword.key == "additionalProperties" && of_name == nullptr) {
        holds = Holds(keyword.value, member.value, depth);
      }
      if (keyword.key == "propertyNames") {
        JsonValue name;
        name.kind = JsonValue::Kind::kString;
        name.text = member.key;
        holds = Holds(keyword.value, name, depth);
      }
      if (!holds.ok() || !*holds) return holds;
    }
    return true;
  }

  const JsonValue& root_;
  const ConstraintLimits& limits_;
  RegexWork* work_;
  mutable int64_t steps_ = 0;
};

}  // namespace

bool HasType(const JsonValue& value, std::string_view type) {
  switch (value.kind) {
    case JsonValue::Kind::kNull:
      return type == "null";
    case JsonValue::Kind::kBool:
      return type == "boolean";
    case JsonValue::Kind::kNumber:
      return type == "number" || (type == "integer" && std::floor(value.number) == value.number);
    case JsonValue::Kind::kString:
      return type == "string";
    case JsonValue::Kind::kArray:
      return type == "array";
    case JsonValue::Kind::kObject:
      return type == "object";
  }
  return false;
}

bool IsSameJson(const JsonValue& a, const JsonValue& b) {
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case JsonValue::Kind::kNull:
      return true;
    case JsonValue::Kind::kBool:
      return a.boolean == b.boolean;
    case JsonValue::Kind::kNumber:
      return a.number == b.number;
    case JsonValue::Kind::kString:
      return a.text == b.text;
    case JsonValue::Kind::kArray:
      return std::equal(a.items.begin(), a.items.end(), b.items.begin(), b.items.end(), IsSameJson);
    case JsonValue::Kind::kObject:
      return a.members.size() == b.members.size() &&
             std::all_of(a.members.begin(), a.members.end(), [&](const JsonMember& member) {
               const JsonValue* other = FindMember(b, member.key);
               return other != nullptr && IsSameJson(member.value, *other);
             });
  }
  return false;
}

StatusOr<StringKeywords> StringKeywordsOf(const JsonValue& schema) {
  StringKeywords keywords;
  for (const JsonMember& member : schema.members) {
    const bool is_length = member.key == "minLength" || member.key == "maxLength";
    if (is_length) {
      const bool is_count = member.value.kind == JsonValue::Kind::kNumber && member.value.number >= 0 &&
                            std::floor(member.value.number) == member.value.number;
      if (!is_count) return InvalidArgument("is not a whole number from 0").WithField("." + member.key);
      (member.key == "minLength" ? keywords.least : keywords.most) =
          static_cast<int64_t>(std::min(member.value.number, 1e15));
    }
    if (member.key != "pattern" && member.key != "format") continue;
    if (member.value.kind != JsonValue::Kind::kString)
      return InvalidArgument("is not a string").WithField("." + member.key);
    (member.key == "pattern" ? keywords.patterns : keywords.formats).push_back(member.value.text);
  }
  return keywords;
}

StatusOr<bool> ValueHolds(const JsonValue& root, const JsonValue& schema, const JsonValue& value,
                          const ConstraintLimits& limits, RegexWork* work) {
  return Judge(root, limits, work).Holds(schema, value, 0);
}

}  // namespace tramontane

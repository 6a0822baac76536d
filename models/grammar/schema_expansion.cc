#include "models/grammar/schema_expansion.h"

#include <algorithm>
#include <string>
#include <utility>

#include "kernels/core/utf8.h"
#include "models/grammar/schema_keywords.h"
#include "models/grammar/schema_merge.h"
#include "models/grammar/schema_reference.h"
#include "models/grammar/schema_values.h"

namespace tramontane {
namespace {

// References make small schemas large: {"allOf": [{"$ref": "#/$defs/b"}, {"$ref": "#/$defs/b"}]} and so on.
constexpr int64_t kMostExpanded = 200'000;  // values of JSON in what is merged

int64_t CountValues(const JsonValue& value) {
  int64_t count = 1;
  for (const JsonValue& item : value.items) count += CountValues(item);
  for (const JsonMember& member : value.members) count += CountValues(member.value);
  return count;
}

}  // namespace

StatusOr<SchemaExpansion::Alternatives> SchemaExpansion::Expanded(const JsonValue& schema,
                                                                  const SchemaPlace& place) {
  if (relaxed_ == nullptr) return ExpandedAsAsked(schema, place);
  const RelaxedParts::Mark before = relaxed_->mark();
  StatusOr<Alternatives> made = ExpandedAsAsked(schema, place);
  if (made.ok()) return made;
  relaxed_->ReturnTo(before);
  relaxed_->Add(RelaxedPart(made.status(), place, schema, limits_));
  return Alternatives{TypeAlone(schema)};
}

StatusOr<SchemaExpansion::Alternatives> SchemaExpansion::ExpandedAsAsked(const JsonValue& schema,
                                                                         const SchemaPlace& place) {
  TM_RETURN_IF_ERROR(CheckSchema(schema, place, root_, limits_));
  JsonValue plain = AnyValue();
  if (schema.kind == JsonValue::Kind::kBool) return schema.boolean ? Alternatives{plain} : Alternatives{};
  expanded_ += CountValues(schema);
  if (expanded_ > kMostExpanded) {
    return TooLargeFault(place.path, kMostExpanded, " values in schemas that hold together");
  }
  std::vector<const JsonMember*> applied;
  for (const JsonMember& member : schema.members) {
    const Keyword* keyword = FindKeyword(member.key);
    if (keyword != nullptr && keyword->group == KeywordGroup::kApplied) {
      applied.push_back(&member);
    } else {
      plain.members.push_back(member);
    }
  }
  // Last: what else holds may tell its entries apart.
  std::stable_partition(applied.begin(), applied.end(),
                        [](const JsonMember* member) { return member->key != "oneOf"; });
  const std::optional<JsonValue> first = MergedSchema(plain, AnyValue());
  Alternatives alternatives = first ? Alternatives{*first} : Alternatives{};
  for (const JsonMember* keyword : applied) {
    TM_ASSIGN_OR_RETURN(alternatives, ExpandedKeyword(*keyword, alternatives, place));
  }
  return alternatives;
}

// Each of `beside` with what the keyword asks for.
StatusOr<SchemaExpansion::Alternatives> SchemaExpansion::ExpandedKeyword(const JsonMember& keyword,
                                                                         const Alternatives& beside,
                                                                         const SchemaPlace& place) {
  constexpr size_t kMostAlternatives = 128;
  SchemaPlace inside = place.Beside("." + keyword.key);
  const auto add = [&](const Alternatives& some, const Alternatives& others, Alternatives* both) -> Status {
    for (const JsonValue& a : some) {
      for (const JsonValue& b : others) {
        if (std::optional<JsonValue> one = MergedSchema(a, b)) both->push_back(*std::move(one));
        if (both->size() <= kMostAlternatives) continue;
        return FaultAt(inside.path, "comes, with what stands beside it, to more than " +
                                        std::to_string(kMostAlternatives) + " alternatives");
      }
    }
    return {};
  };
  Alternatives result;
  if (keyword.key == "$ref") {
    TM_ASSIGN_OR_RETURN(const JsonValue* target, TargetOf(keyword.value, inside));
    inside.waiting.insert(target);
    TM_ASSIGN_OR_RETURN(const Alternatives others, Expanded(*target, inside));
    TM_RETURN_IF_ERROR(add(beside, others, &result));
    return result;
  }
  if (keyword.value.kind != JsonValue::Kind::kArray || keyword.value.items.empty()) {
    return FaultAt(inside.path, "is not an array of at least one entry");
  }
  if (keyword.key == "allOf") result = beside;
  std::vector<Alternatives> entries;
  for (size_t i = 0; i < keyword.value.items.size(); ++i) {
    TM_ASSIGN_OR_RETURN(const Alternatives entry,
                        Expanded(keyword.value.items[i], inside.Beside("[" + std::to_string(i) + "]")));
    Alternatives both;
    if (keyword.key == "allOf") {
      TM_RETURN_IF_ERROR(add(result, entry, &both));
      result = std::move(both);
      continue;
    }
    TM_RETURN_IF_ERROR(add(beside, entry, &both));
    for (size_t j = 0; keyword.key == "oneOf" && j < i; ++j) {
      TM_RETURN_IF_ERROR(CheckDisjoint(both, entries[j], j, i, inside));
    }
    TM_RETURN_IF_ERROR(add({AnyValue()}, both, &result));
    entries.push_back(std::move(both));
  }
  return result;
}

StatusOr<const JsonValue*> SchemaExpansion::TargetOf(const JsonValue& uri, const SchemaPlace& place) const {
  if (uri.kind != JsonValue::Kind::kString) return FaultAt(place.path, "is not a string");
  const JsonValue* target = ResolveReference(root_, uri.text);
  if (target == nullptr) {
    return FaultAt(place.path, "leads nowhere inside this schema: " + Excerpt(uri.text));
  }
  if (place.waiting.contains(target))
    return FaultAt(place.path, "leads back to itself: " + Excerpt(uri.text));
  return target;
}

// The types that "type" names, else those that the keywords are about; none: any.
std::set<std::string_view> TypesOf(const JsonValue& schema) {
  std::set<std::string_view> types;
  if (const JsonValue* type = FindMember(schema, "type")) {
    if (type->kind == JsonValue::Kind::kString) types.insert(type->text);
    for (const JsonValue& name : type->items) types.insert(name.text);
    return types;
  }
  for (const JsonMember& member : schema.members) {
    const Keyword* keyword = FindKeyword(member.key);
    if (keyword == nullptr) continue;
    if (keyword->group == KeywordGroup::kString) types.insert("string");
    if (keyword->group == KeywordGroup::kNumber) types.insert("number");
    if (keyword->group == KeywordGroup::kArray) types.insert("array");
    if (keyword->group == KeywordGroup::kObject) types.insert("object");
  }
  return types;
}

bool IsRequired(const JsonValue& schema, std::string_view name) {
  const JsonValue* required = FindMember(schema, "required");
  return required != nullptr && std::any_of(required->items.begin(), required->items.end(),
                                            [name](const JsonValue& entry) { return entry.text == name; });
}

// Those that enum and const leave; none: there may be others.
std::optional<std::vector<JsonValue>> SchemaExpansion::FiniteValues(const JsonValue& schema) {
  if (const JsonValue* value = FindMember(schema, "const")) return std::vector<JsonValue>{*value};
  if (const JsonValue* some = FindMember(schema, "enum")) return some->items;
  RelaxedParts* const relaxed = std::exchange(relaxed_, nullptr);
  const StatusOr<Alternatives> alternatives = Expanded(schema, SchemaPlace{});
  relaxed_ = relaxed;
  if (!alternatives.ok()) return std::nullopt;
  std::vector<JsonValue> values;
  for (const JsonValue& alternative : *alternatives) {
    const JsonValue* some = FindMember(alternative, "enum");  // const is one by now
    if (some == nullptr) return std::nullopt;
    values.insert(values.end(), some->items.begin(), some->items.end());
  }
  return values;
}

bool HaveNoCommonValue(const std::vector<JsonValue>& a, const std::vector<JsonValue>& b) {
  return std::none_of(a.begin(), a.end(), [&](const JsonValue& x) {
    return std::any_of(b.begin(), b.end(), [&](const JsonValue& y) { return IsSameJson(x, y); });
  });
}

Status SchemaExpansion::CheckDisjoint(const Alternatives& a, const Alternatives& b, size_t first,
                                      size_t second, const SchemaPlace& place) {
  const bool are_disjoint = std::all_of(a.begin(), a.end(), [&](const JsonValue& one) {
    return std::all_of(b.begin(), b.end(),
                       [&](const JsonValue& other) { return ArePlainDisjoint(one, other); });
  });
  if (are_disjoint) return {};
  return FaultAt(place.path, "entries " + std::to_string(first) + " and " + std::to_string(second) +
                                 " may both hold for one value; oneOf is supported where types, or a "
                                 "required property with const or enum, tell its entries apart");
}

// Surely.
bool SchemaExpansion::ArePlainDisjoint(const JsonValue& a, const JsonValue& b) {
  const auto values_a = FiniteValues(a);
  const auto values_b = FiniteValues(b);
  if (values_a && values_b) return HaveNoCommonValue(*values_a, *values_b);
  // Types count only where "type" names them: without it a schema allows all the others too.
  const auto types_of = [](const JsonValue& schema, const std::optional<std::vector<JsonValue>>& values) {
    std::set<std::string> types;
    if (values) {
      for (const JsonValue& value : *values) {
        for (const std::string_view type : kTypes) {
          if (HasType(value, type) && type != "integer") types.insert(std::string(type));
        }
      }
    } else if (const JsonValue* type = FindMember(schema, "type")) {
      if (type->kind == JsonValue::Kind::kString) types.insert(type->text);
      for (const JsonValue& name : type->items) types.insert(name.text);
    }
    if (types.erase("integer") > 0) types.insert("number");
    return types;
  };
  const std::set<std::string> types_a = types_of(a, values_a);
  const std::set<std::string> types_b = types_of(b, values_b);
  if (types_a.empty() || types_b.empty()) return false;
  const bool share_a_type = std::any_of(types_a.begin(), types_a.end(),
                                        [&](const std::string& type) { return types_b.contains(type); });
  if (!share_a_type) return true;
  if (types_a != std::set<std::string>{"object"} || types_b != types_a) return false;
  const JsonValue* properties_a = FindMember(a, "properties");
  const JsonValue* properties_b = FindMember(b, "properties");
  if (properties_a == nullptr || properties_b == nullptr) return false;
  return std::any_of(properties_a->members.begin(), properties_a->members.end(),
                     [&](const JsonMember& member) {
                       const JsonValue* other = FindMember(*properties_b, member.key);
                       if (other == nullptr || !IsRequired(a, member.key) || !IsRequired(b, member.key))
                         return false;
                       const auto here = FiniteValues(member.value);
                       const auto there = FiniteValues(*other);
                       return here && there && HaveNoCommonValue(*here, *there);
                     });
}

}  // namespace tramontane

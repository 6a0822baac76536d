#include "models/grammar/schema_merge.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/grammar/schema_keywords.h"
#include "models/grammar/schema_reference.h"
#include "models/grammar/schema_values.h"

namespace tramontane {
namespace {

using Maybe = std::optional<JsonValue>;

bool SaysSomething(const JsonMember& member) {
  const Keyword* keyword = FindKeyword(member.key);
  return keyword != nullptr && keyword->group != KeywordGroup::kAnnotation &&
         keyword->group != KeywordGroup::kDefinitions && keyword->group != KeywordGroup::kRefused;
}

bool IsAnything(const JsonValue& schema) {
  if (schema.kind == JsonValue::Kind::kBool) return schema.boolean;
  return schema.kind == JsonValue::Kind::kObject && schema.members.empty();
}
bool IsNothing(const JsonValue& schema) { return schema.kind == JsonValue::Kind::kBool && !schema.boolean; }

JsonValue ListOf(std::vector<JsonValue> items) {
  JsonValue list;
  list.kind = JsonValue::Kind::kArray;
  list.items = std::move(items);
  return list;
}

// {"allOf": [...]} and nothing else is its entries.
void AddParts(const JsonValue& schema, std::vector<JsonValue>* parts) {
  if (schema.members.size() == 1 && schema.members[0].key == "allOf") {
    for (const JsonValue& part : schema.members[0].value.items) AddParts(part, parts);
    return;
  }
  const bool known = std::any_of(parts->begin(), parts->end(),
                                 [&](const JsonValue& part) { return IsSameJson(part, schema); });
  if (!known) parts->push_back(schema);
}

// Each part once, so that a schema that leads back to itself comes to the same again.
JsonValue Both(const JsonValue& a, const JsonValue& b) {
  if (IsAnything(a) || IsNothing(b)) return b;
  if (IsAnything(b) || IsNothing(a)) return a;
  std::vector<JsonValue> parts;
  AddParts(a, &parts);
  AddParts(b, &parts);
  if (parts.size() == 1) return std::move(parts[0]);
  JsonValue both;
  both.kind = JsonValue::Kind::kObject;
  both.members.push_back({"allOf", ListOf(std::move(parts))});
  return both;
}

std::vector<JsonValue> AsList(const JsonValue& value) {
  return value.kind == JsonValue::Kind::kArray ? value.items : std::vector<JsonValue>{value};
}

bool ListNames(const JsonValue* list, const std::string& name) {
  return list != nullptr && std::any_of(list->items.begin(), list->items.end(),
                                        [&](const JsonValue& entry) { return entry.text == name; });
}

class Merger {
 public:
  Merger(const JsonValue& a, const JsonValue& b) : a_(a), b_(b) { result_.kind = JsonValue::Kind::kObject; }

  Maybe Merge() {
    for (const JsonMember& member : a_.members) {
      if (!SaysSomething(member)) continue;
      const bool is_values = member.key == "const" || member.key == "enum";
      if (is_values && !AddValues(OptionsOf(member))) return std::nullopt;
      if (!is_values) Put(member.key, member.value, /*again=*/true);
    }
    for (const JsonMember& member : b_.members) {
      if (SaysSomething(member) && !Add(member)) return std::nullopt;
    }
    Items();
    if (!Properties()) return std::nullopt;
    return std::move(result_);
  }

 private:
  static JsonValue OptionsOf(const JsonMember& member) {
    return member.key == "const" ? ListOf({member.value}) : member.value;
  }

  JsonValue* Find(std::string_view key) { return const_cast<JsonValue*>(FindMember(result_, key)); }
  void Put(const std::string& key, JsonValue value, bool again = false) {
    JsonValue* known = again ? nullptr : Find(key);
    if (known != nullptr) {
      *known = std::move(value);
    } else {
      result_.members.push_back({key, std::move(value)});
    }
  }

  // A member of b_ that is not about items or properties. False: then no value is valid.
  bool Add(const JsonMember& member) {
    const std::string& key = member.key;
    if (key == "const" || key == "enum") return AddValues(OptionsOf(member));
    if (key == "pattern" || key == "format") {
      const bool known = std::any_of(
          result_.members.begin(), result_.members.end(),
          [&](const JsonMember& other) { return other.key == key && IsSameJson(other.value, member.value); });
      if (!known) Put(key, member.value, true);
      return true;
    }
    JsonValue* known = Find(key);
    if (known == nullptr) {
      Put(key, member.value);
      return true;
    }
    if (key == "type") return AddTypes(known, member.value);
    const bool is_list = key == "required" || key == "prefixItems";
    if ((is_list && member.value.kind != JsonValue::Kind::kArray) ||
        (key == "properties" && member.value.kind != JsonValue::Kind::kObject)) {
      *known = member.value;  // to be refused
      return true;
    }
    const bool is_number =
        known->kind == JsonValue::Kind::kNumber && member.value.kind == JsonValue::Kind::kNumber;
    if (is_number && (key.starts_with("min") || key == "exclusiveMinimum")) {
      if (member.value.number > known->number) *known = member.value;
    } else if (is_number) {
      if (member.value.number < known->number) *known = member.value;
    } else if (key == "required") {
      for (const JsonValue& name : member.value.items) {
        if (!ListNames(known, name.text)) known->items.push_back(name);
      }
    } else if (key == "propertyNames") {
      *known = Both(*known, member.value);
    } else if (known->kind == JsonValue::Kind::kNumber) {
      *known = member.value;  // which is no number: to be refused
    }
    return true;
  }

  bool AddValues(const JsonValue& options) {
    JsonValue* known = Find("enum");
    if (known == nullptr) {
      Put("enum", options);
      return true;
    }
    std::erase_if(known->items, [&](const JsonValue& value) {
      return std::none_of(options.items.begin(), options.items.end(),
                          [&](const JsonValue& option) { return IsSameJson(option, value); });
    });
    return !known->items.empty();
  }

  static bool AddTypes(JsonValue* known, const JsonValue& others) {
    std::vector<JsonValue> types;
    const auto add = [&](const JsonValue& type) {
      const bool is_new = std::none_of(types.begin(), types.end(),
                                       [&](const JsonValue& other) { return other.text == type.text; });
      if (is_new) types.push_back(type);
    };
    for (const JsonValue& a : AsList(*known)) {
      for (const JsonValue& b : AsList(others)) {
        if (a.text == b.text || (a.text == "integer" && b.text == "number")) add(a);
        if (a.text == "number" && b.text == "integer") add(b);
      }
    }
    *known = ListOf(std::move(types));
    return !known->items.empty();
  }

  void Items() {
    const JsonValue* prefix_a = FindMember(a_, "prefixItems");
    const JsonValue* prefix_b = FindMember(b_, "prefixItems");
    const JsonValue* items_a = FindMember(a_, "items");
    const JsonValue* items_b = FindMember(b_, "items");
    if (items_a != nullptr && items_b != nullptr) Put("items", Both(*items_a, *items_b));
    if (prefix_a == nullptr && prefix_b == nullptr) return;
    for (const JsonValue* prefix : {prefix_a, prefix_b}) {
      if (prefix != nullptr && prefix->kind != JsonValue::Kind::kArray) return;
    }
    JsonValue anything;
    anything.kind = JsonValue::Kind::kBool;
    anything.boolean = true;
    const auto at = [&](const JsonValue* prefix, const JsonValue* items, size_t i) -> const JsonValue& {
      if (prefix != nullptr && i < prefix->items.size()) return prefix->items[i];
      return items != nullptr ? *items : anything;
    };
    const size_t count = std::max(prefix_a == nullptr ? 0 : prefix_a->items.size(),
                                  prefix_b == nullptr ? 0 : prefix_b->items.size());
    std::vector<JsonValue> first;
    for (size_t i = 0; i < count; ++i)
      first.push_back(Both(at(prefix_a, items_a, i), at(prefix_b, items_b, i)));
    Put("prefixItems", ListOf(std::move(first)));
  }

  // What one schema says of other properties, it says of those that only the other one names.
  bool Properties() {
    const JsonValue* others_a = FindMember(a_, "additionalProperties");
    const JsonValue* others_b = FindMember(b_, "additionalProperties");
    if (others_a != nullptr && others_b != nullptr) Put("additionalProperties", Both(*others_a, *others_b));
    const JsonValue* named_a = FindMember(a_, "properties");
    const JsonValue* named_b = FindMember(b_, "properties");
    if (named_a == nullptr && named_b == nullptr) return true;
    for (const JsonValue* named : {named_a, named_b}) {
      if (named != nullptr && named->kind != JsonValue::Kind::kObject) return true;
    }
    JsonValue named;
    named.kind = JsonValue::Kind::kObject;
    const auto add = [&](const JsonMember& member, const JsonValue* there, const JsonValue* others) {
      if (there == nullptr) there = others;
      JsonValue both = there == nullptr ? member.value : Both(member.value, *there);
      if (!IsNothing(both)) {
        named.members.push_back({member.key, std::move(both)});
      } else if (ListNames(FindMember(result_, "required"), member.key)) {
        return false;
      }
      return true;
    };
    for (const JsonMember& member : named_a == nullptr ? std::vector<JsonMember>{} : named_a->members) {
      const JsonValue* there = named_b == nullptr ? nullptr : FindMember(*named_b, member.key);
      if (!add(member, there, others_b)) return false;
    }
    for (const JsonMember& member : named_b == nullptr ? std::vector<JsonMember>{} : named_b->members) {
      if (named_a != nullptr && FindMember(*named_a, member.key) != nullptr) continue;
      if (!add(member, nullptr, others_a)) return false;
    }
    Put("properties", std::move(named));
    return true;
  }

  const JsonValue& a_;
  const JsonValue& b_;
  JsonValue result_;
};

}  // namespace

std::optional<JsonValue> MergedSchema(const JsonValue& a, const JsonValue& b) { return Merger(a, b).Merge(); }

}  // namespace tramontane

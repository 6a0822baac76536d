#include "models/grammar/json_schema_grammar.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "kernels/core/utf8.h"
#include "models/grammar/ebnf.h"
#include "models/grammar/number_grammar.h"
#include "models/grammar/regex_tree.h"
#include "models/grammar/schema_keywords.h"
#include "models/grammar/schema_merge.h"
#include "models/grammar/schema_reference.h"
#include "models/grammar/schema_values.h"
#include "models/grammar/string_grammar.h"
#include "models/tokenizer/python_json.h"

namespace tramontane {
namespace {

using Kind = JsonValue::Kind;

constexpr std::array<std::string_view, 7> kTypes = {"null",   "boolean", "integer", "number",
                                                    "string", "array",   "object"};

// The rules that any grammar of JSON shares. White space: enough to print JSON prettily, and not so much that
// a model can go on with it for ever.
constexpr const char* kSharedRules =
    R"EBNF(value ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" space (member (space "," space member)* space)? "}"
member ::= string space ":" space value
array ::= "[" space (value (space "," space value)* space)? "]"
string ::= Regex("\"([\\u{20}-\\u{21}\\u{23}-\\u{5B}\\u{5D}-\\u{7F}]|[\\u{80}-\\u{7FF}]|[\\u{800}-\\u{D7FF}\\u{E000}-\\u{FFFF}]|[\\u{10000}-\\u{10FFFF}]|\\\\([\"\\\\/bfnrt]|u([0-9A-CEFa-cef][0-9A-Fa-f]{3}|[Dd][0-7][0-9A-Fa-f]{2})))*\"()")
space ::= Regex("[ \\n\\t]{0,16}()")
integer ::= Regex("[\\-]{0,1}(0|[1-9][0-9]{0,17})()")
number ::= Regex("[\\-]{0,1}(0|[1-9][0-9]{0,17})(\\.[0-9]{1,17}){0,1}([Ee][+\\-]{0,1}[0-9]{1,2}){0,1}()")
)EBNF";

// Whole numbers below it are exact as doubles.
constexpr double kExactInDoubles = 1e15;

// References make small schemas large: {"allOf": [{"$ref": "#/$defs/b"}, {"$ref": "#/$defs/b"}]} and so on.
constexpr int64_t kMostExpanded = 200'000;  // values of JSON in what is merged

// Between the tokens of JSON.
Ebnf Space() { return EbnfName("space"); }

// {}
JsonValue AnyValue() {
  JsonValue schema;
  schema.kind = Kind::kObject;
  return schema;
}

int64_t CountValues(const JsonValue& value) {
  int64_t count = 1;
  for (const JsonValue& item : value.items) count += CountValues(item);
  for (const JsonMember& member : value.members) count += CountValues(member.value);
  return count;
}

std::string Json(const JsonValue& value) {
  std::string text;
  AppendPythonJson(value, &text);
  return text;
}

std::string JsonString(std::string_view text) {
  std::string quoted;
  AppendPythonJsonString(text, &quoted);
  return quoted;
}

// A key may be half of a surrogate pair; what is said of it is text.
Status Fault(const std::string& path, const std::string& what) {
  if (path.empty()) return InvalidArgument("the schema: " + what);
  return InvalidArgument(what).WithField(ReplaceInvalidUtf8(path));
}

// What a translator of a part says, at the path of the part.
Status At(const std::string& path, const Status& status) { return Fault(path, status.message()); }

class SchemaTranslator {
 public:
  SchemaTranslator(const JsonValue& root, const ConstraintLimits& limits) : root_(root), limits_(limits) {}

  StatusOr<std::string> Translate();

 private:
  // The place of a schema in the whole. `waiting`: the schemas whose translation would go on here without a
  // character in between; one of them again would have no end.
  struct Place {
    std::string path;
    int32_t depth = 0;
    std::set<const JsonValue*> waiting;

    Place Inside(const std::string& step) const { return {path + step, depth + 1, {}}; }
    Place Beside(const std::string& step) const { return {path + step, depth + 1, waiting}; }
  };

  StatusOr<Ebnf> Schema(const JsonValue& schema, const Place& place);
  Status CheckKeywords(const JsonValue& schema, const Place& place) const;
  StatusOr<Ebnf> Applied(const JsonMember& keyword, const Place& place);
  StatusOr<Ebnf> Merged(const JsonValue& schema, const Place& place);
  StatusOr<Ebnf> Plain(const JsonValue& schema, const Place& place);
  StatusOr<Ebnf> Reference(const JsonValue& uri, const Place& place);
  StatusOr<const JsonValue*> TargetOf(const JsonValue& uri, const Place& place) const;
  StatusOr<Ebnf> Values(const JsonMember& keyword, const JsonValue& schema, const Place& place);
  StatusOr<std::vector<Pattern>> HoldingValues(const JsonMember& keyword, const JsonValue& schema,
                                               const Place& place) const;
  // Without $ref, anyOf, oneOf and allOf: schemas of which one or another holds; none: no value is valid.
  using Alternatives = std::vector<JsonValue>;
  StatusOr<Alternatives> Expanded(const JsonValue& schema, const Place& place) const;
  StatusOr<Alternatives> ExpandedKeyword(const JsonMember& keyword, const Alternatives& beside,
                                         const Place& place) const;
  StatusOr<Ebnf> OneOfSchemas(const JsonValue& options, const Place& place, bool exclusive);
  StatusOr<Ebnf> OfType(std::string_view type, const JsonValue& schema, const Place& place);
  StatusOr<Ebnf> String(const JsonValue& schema, const Place& place);
  StatusOr<Ebnf> Number(const JsonValue& schema, bool integer, const Place& place) const;
  StatusOr<Ebnf> Array(const JsonValue& schema, const Place& place);
  StatusOr<Ebnf> Object(const JsonValue& schema, const Place& place);

  // Of Object.
  struct Property {
    std::string name;
    Ebnf member;  // "name": value
    bool required = false;
  };
  StatusOr<std::vector<Property>> Properties(const JsonValue& schema, const Place& place);
  StatusOr<std::optional<Ebnf>> AdditionalMember(const JsonValue& schema, const Place& place,
                                                 const std::vector<Property>& properties);
  StatusOr<Ebnf> MapOf(const JsonValue& schema, const Place& place, const Ebnf& member);
  StatusOr<Ebnf> PropertiesInOrder(const std::vector<Property>& properties,
                                   const std::optional<Ebnf>& additional, const Place& place);
  Status CheckPropertyCounts(const JsonValue& schema, const Place& place,
                             const std::vector<Property>& properties, bool open) const;

  // Of oneOf.
  static Status Overlap(size_t first, size_t second, const Place& place);
  bool AreAllDisjoint(const Alternatives& a, const Alternatives& b) const;
  bool ArePlainDisjoint(const JsonValue& a, const JsonValue& b) const;
  std::optional<std::vector<JsonValue>> FiniteValues(const JsonValue& schema) const;
  std::set<std::string_view> TypesOf(const JsonValue& schema) const;

  StatusOr<std::optional<int64_t>> CountOf(const JsonValue& schema, const char* keyword,
                                           const Place& place) const;

  // A rule of its own; the same body twice is one rule.
  StatusOr<Ebnf> Rule(const Ebnf& body, const Place& place);
  StatusOr<Ebnf> Repeated(const Ebnf& part, int64_t least, int64_t most, const Place& place);
  StatusOr<Ebnf> KeyExcept(const std::vector<Property>& properties, const Place& place);
  std::string NewName() { return "r" + std::to_string(next_name_++); }
  Status AddRule(const std::string& name, const Ebnf& body, const Place& place);

  const JsonValue& root_;
  const ConstraintLimits& limits_;
  std::string rules_;
  int64_t size_ = 0;
  int32_t next_name_ = 1;
  std::map<std::string, std::string> names_;                 // body -> name
  std::map<const JsonValue*, std::string> reference_names_;  // schema that a $ref leads to -> name
  std::map<std::string, std::string> merged_names_;          // schema that was merged -> name
  std::map<std::string, Pattern> strings_;                   // keywords of strings -> what they come to
  mutable int64_t expanded_ = 0;
  mutable RegexWork work_;
};

StatusOr<std::string> SchemaTranslator::Translate() {
  const Place place;
  TM_ASSIGN_OR_RETURN(const Ebnf root, Schema(root_, place));
  TM_RETURN_IF_ERROR(AddRule("root", root, place));
  return rules_ + kSharedRules;
}

StatusOr<Ebnf> SchemaTranslator::Schema(const JsonValue& schema, const Place& place) {
  if (place.depth > limits_.max_depth) {
    return Fault(place.path,
                 "lies more than " + std::to_string(limits_.max_depth) + " schemas inside each other");
  }
  if (schema.kind == Kind::kBool) {
    if (schema.boolean) return EbnfName("value");
    return Fault(place.path, "false allows no value at all");
  }
  if (schema.kind != Kind::kObject) return Fault(place.path, "is not a schema (an object or a boolean)");
  TM_RETURN_IF_ERROR(CheckKeywords(schema, place));
  const JsonMember* applied = nullptr;
  size_t others = 0;  // that say something beside it
  for (const JsonMember& member : schema.members) {
    const Keyword* keyword = FindKeyword(member.key);
    if (keyword == nullptr || keyword->group == KeywordGroup::kAnnotation ||
        keyword->group == KeywordGroup::kDefinitions || keyword->group == KeywordGroup::kRefused) {
      continue;
    }
    if (keyword->group == KeywordGroup::kApplied && applied == nullptr) {
      applied = &member;
    } else {
      ++others;
    }
  }
  if (applied == nullptr) return Plain(schema, place);
  const bool several = applied->key == "allOf" && applied->value.items.size() > 1;
  return others == 0 && !several ? Applied(*applied, place) : Merged(schema, place);
}

// Of keywords that are about the value itself.
StatusOr<Ebnf> SchemaTranslator::Plain(const JsonValue& schema, const Place& place) {
  for (const JsonMember& member : schema.members) {
    if (member.key == "enum" || member.key == "const") return Values(member, schema, place);
  }
  const std::set<std::string_view> types = TypesOf(schema);
  if (types.empty()) return EbnfName("value");
  std::vector<Ebnf> alternatives;
  for (const std::string_view type : types) {
    if (type == "integer" && types.contains("number")) continue;  // each integer is a number
    TM_ASSIGN_OR_RETURN(Ebnf alternative, OfType(type, schema, place));
    alternatives.push_back(std::move(alternative));
  }
  return EbnfChoice(alternatives);
}

// Every keyword is known, and "type" names types.
Status SchemaTranslator::CheckKeywords(const JsonValue& schema, const Place& place) const {
  for (const JsonMember& member : schema.members) {
    const std::string path = place.path + "." + member.key;
    if (member.key.starts_with("x-")) continue;
    const Keyword* keyword = FindKeyword(member.key);
    if (keyword == nullptr) return Fault(path, "is no keyword that is known here");
    const bool says_nothing =
        (member.key == "uniqueItems" && member.value.kind == Kind::kBool && !member.value.boolean) ||
        (member.key == "$id" && &schema == &root_);
    if (keyword->group == KeywordGroup::kRefused && !says_nothing) return Fault(path, "is not supported");
  }
  if (const JsonValue* type = FindMember(schema, "type")) {
    const std::vector<JsonValue> names =
        type->kind == Kind::kArray ? type->items : std::vector<JsonValue>{*type};
    if (names.empty()) return Fault(place.path + ".type", "names no type");
    for (const JsonValue& name : names) {
      if (name.kind != Kind::kString || std::find(kTypes.begin(), kTypes.end(), name.text) == kTypes.end()) {
        return Fault(place.path + ".type", "is not the name of a type: " + Excerpt(Json(name)));
      }
    }
  }
  return {};
}

// $ref, anyOf, oneOf, or allOf of one.
StatusOr<Ebnf> SchemaTranslator::Applied(const JsonMember& keyword, const Place& place) {
  const Place inside = place.Beside("." + keyword.key);
  if (keyword.key == "$ref") return Reference(keyword.value, inside);
  if (keyword.value.kind != Kind::kArray || keyword.value.items.empty()) {
    return Fault(inside.path, "is not an array of at least one entry");
  }
  return OneOfSchemas(keyword.value, inside, /*exclusive=*/keyword.key == "oneOf");
}

// ---- schemas that hold together -----------------------------------------------------------------

StatusOr<Ebnf> SchemaTranslator::Merged(const JsonValue& schema, const Place& place) {
  const std::string text = Json(schema);
  if (const auto known = merged_names_.find(text); known != merged_names_.end())
    return EbnfName(known->second);
  TM_ASSIGN_OR_RETURN(const Alternatives alternatives, Expanded(schema, place));
  const std::string name = NewName();
  merged_names_[text] = name;
  std::vector<Ebnf> parts;
  std::set<std::string> seen;
  for (const JsonValue& alternative : alternatives) {
    if (!seen.insert(Json(alternative)).second) continue;
    if (const JsonValue* some = FindMember(alternative, "enum")) {
      TM_ASSIGN_OR_RETURN(const std::vector<Pattern> values,
                          HoldingValues({"enum", *some}, alternative, place));
      if (values.empty()) continue;
    }
    TM_ASSIGN_OR_RETURN(Ebnf part, Plain(alternative, place));
    parts.push_back(std::move(part));
  }
  if (parts.empty()) return Fault(place.path, "allows no value at all");
  TM_RETURN_IF_ERROR(AddRule(name, EbnfChoice(parts), place));
  return EbnfName(name);
}

StatusOr<SchemaTranslator::Alternatives> SchemaTranslator::Expanded(const JsonValue& schema,
                                                                    const Place& place) const {
  if (place.depth > limits_.max_depth) {
    return Fault(place.path,
                 "lies more than " + std::to_string(limits_.max_depth) + " schemas inside each other");
  }
  JsonValue plain = AnyValue();
  if (schema.kind == Kind::kBool) return schema.boolean ? Alternatives{plain} : Alternatives{};
  if (schema.kind != Kind::kObject) return Fault(place.path, "is not a schema (an object or a boolean)");
  TM_RETURN_IF_ERROR(CheckKeywords(schema, place));
  expanded_ += CountValues(schema);
  if (expanded_ > kMostExpanded) {
    return Fault(place.path, "comes, with what stands in front of it, to more than " +
                                 std::to_string(kMostExpanded) + " values in schemas that hold together");
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
StatusOr<SchemaTranslator::Alternatives> SchemaTranslator::ExpandedKeyword(const JsonMember& keyword,
                                                                           const Alternatives& beside,
                                                                           const Place& place) const {
  constexpr size_t kMostAlternatives = 128;
  Place inside = place.Beside("." + keyword.key);
  const auto add = [&](const Alternatives& some, const Alternatives& others, Alternatives* both) -> Status {
    for (const JsonValue& a : some) {
      for (const JsonValue& b : others) {
        if (std::optional<JsonValue> one = MergedSchema(a, b)) both->push_back(*std::move(one));
        if (both->size() <= kMostAlternatives) continue;
        return Fault(inside.path, "comes, with what stands beside it, to more than " +
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
  if (keyword.value.kind != Kind::kArray || keyword.value.items.empty()) {
    return Fault(inside.path, "is not an array of at least one entry");
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
      if (!AreAllDisjoint(both, entries[j])) return Overlap(j, i, inside);
    }
    TM_RETURN_IF_ERROR(add({AnyValue()}, both, &result));
    entries.push_back(std::move(both));
  }
  return result;
}

// ---- $ref ---------------------------------------------------------------------------------------

StatusOr<Ebnf> SchemaTranslator::Reference(const JsonValue& uri, const Place& place) {
  TM_ASSIGN_OR_RETURN(const JsonValue* target, TargetOf(uri, place));
  const auto known = reference_names_.find(target);
  if (known != reference_names_.end()) return EbnfName(known->second);
  const std::string name = NewName();
  reference_names_[target] = name;
  Place there = place;
  there.waiting.insert(target);
  TM_ASSIGN_OR_RETURN(const Ebnf body, Schema(*target, there));
  TM_RETURN_IF_ERROR(AddRule(name, body, place));
  return EbnfName(name);
}

StatusOr<const JsonValue*> SchemaTranslator::TargetOf(const JsonValue& uri, const Place& place) const {
  if (uri.kind != Kind::kString) return Fault(place.path, "is not a string");
  const JsonValue* target = ResolveReference(root_, uri.text);
  if (target == nullptr) {
    return Fault(place.path, "leads nowhere inside this schema: " + Excerpt(uri.text));
  }
  if (place.waiting.contains(target)) return Fault(place.path, "leads back to itself: " + Excerpt(uri.text));
  return target;
}

// ---- enum, anyOf, oneOf -------------------------------------------------------------------------

// NaN and Infinity, which Python reads and JSON does not have.
bool HasNonJsonNumber(const JsonValue& value) {
  if (value.kind == Kind::kNumber) return value.text.find_first_of("NI") != std::string::npos;
  return std::any_of(value.items.begin(), value.items.end(), HasNonJsonNumber) ||
         std::any_of(value.members.begin(), value.members.end(),
                     [](const JsonMember& member) { return HasNonJsonNumber(member.value); });
}

// Those of enum or const that hold under all that stands beside it.
StatusOr<Ebnf> SchemaTranslator::Values(const JsonMember& keyword, const JsonValue& schema,
                                        const Place& place) {
  TM_ASSIGN_OR_RETURN(const std::vector<Pattern> values, HoldingValues(keyword, schema, place));
  if (values.empty()) {
    return Fault(place.path + "." + keyword.key, FindMember(schema, "type") != nullptr
                                                     ? "has no value of the schema's type"
                                                     : "has no value that the schema allows");
  }
  return Rule(EbnfPattern(PatternChoice(values)), place);
}

// Whole numbers are written without a point where only integers are asked for.
StatusOr<std::vector<Pattern>> SchemaTranslator::HoldingValues(const JsonMember& keyword,
                                                               const JsonValue& schema,
                                                               const Place& place) const {
  const Place inside = place.Beside("." + keyword.key);
  const bool is_list = keyword.key == "enum";
  if (is_list && (keyword.value.kind != Kind::kArray || keyword.value.items.empty())) {
    return Fault(inside.path, "is not an array of at least one entry");
  }
  const bool of_integers = TypesOf(schema) == std::set<std::string_view>{"integer"};
  std::vector<Pattern> values;
  std::set<std::string> seen;
  for (const JsonValue& value : is_list ? keyword.value.items : std::vector<JsonValue>{keyword.value}) {
    if (HasNonJsonNumber(value)) return Fault(inside.path, "NaN and Infinity are no JSON");
    std::string text = Json(value);
    if (FirstInvalidUtf8(text)) return Fault(inside.path, "half of a surrogate pair is no text");
    const StatusOr<bool> holds = ValueHolds(root_, schema, value, limits_, &work_);
    if (!holds.ok()) return Fault(place.path + holds.status().field(), holds.status().sentence());
    if (of_integers && value.kind == Kind::kNumber && std::abs(value.number) < kExactInDoubles) {
      text = std::to_string(static_cast<int64_t>(value.number));
    }
    if (*holds && seen.insert(text).second) values.push_back(PatternLiteral(text));
  }
  return values;
}

StatusOr<Ebnf> SchemaTranslator::OneOfSchemas(const JsonValue& options, const Place& place, bool exclusive) {
  std::vector<Ebnf> alternatives;
  std::vector<Alternatives> entries;
  for (size_t i = 0; i < options.items.size(); ++i) {
    const Place inside = place.Beside("[" + std::to_string(i) + "]");
    TM_ASSIGN_OR_RETURN(Ebnf alternative, Schema(options.items[i], inside));
    alternatives.push_back(std::move(alternative));
    if (!exclusive) continue;
    TM_ASSIGN_OR_RETURN(Alternatives entry, Expanded(options.items[i], inside));
    for (size_t j = 0; j < i; ++j) {
      if (!AreAllDisjoint(entry, entries[j])) return Overlap(j, i, place);
    }
    entries.push_back(std::move(entry));
  }
  return EbnfChoice(alternatives);
}

Status SchemaTranslator::Overlap(size_t first, size_t second, const Place& place) {
  return Fault(place.path, "entries " + std::to_string(first) + " and " + std::to_string(second) +
                               " may both hold for one value; oneOf is supported where types, or a "
                               "required property with const or enum, tell its entries apart");
}

// The types that "type" names, else those that the keywords are about; none: any.
std::set<std::string_view> SchemaTranslator::TypesOf(const JsonValue& schema) const {
  std::set<std::string_view> types;
  if (const JsonValue* type = FindMember(schema, "type")) {
    if (type->kind == Kind::kString) types.insert(type->text);
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

// Those that enum and const leave; none: there may be others.
std::optional<std::vector<JsonValue>> SchemaTranslator::FiniteValues(const JsonValue& schema) const {
  if (const JsonValue* value = FindMember(schema, "const")) return std::vector<JsonValue>{*value};
  if (const JsonValue* some = FindMember(schema, "enum")) return some->items;
  const StatusOr<Alternatives> alternatives = Expanded(schema, Place{});
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

bool IsRequired(const JsonValue& schema, std::string_view name) {
  const JsonValue* required = FindMember(schema, "required");
  return required != nullptr && std::any_of(required->items.begin(), required->items.end(),
                                            [name](const JsonValue& entry) { return entry.text == name; });
}

// Surely no value is valid under one of `a` and one of `b`.
bool SchemaTranslator::AreAllDisjoint(const Alternatives& a, const Alternatives& b) const {
  return std::all_of(a.begin(), a.end(), [&](const JsonValue& one) {
    return std::all_of(b.begin(), b.end(),
                       [&](const JsonValue& other) { return ArePlainDisjoint(one, other); });
  });
}

bool SchemaTranslator::ArePlainDisjoint(const JsonValue& a, const JsonValue& b) const {
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
      if (type->kind == Kind::kString) types.insert(type->text);
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

// ---- types --------------------------------------------------------------------------------------

StatusOr<Ebnf> SchemaTranslator::OfType(std::string_view type, const JsonValue& schema, const Place& place) {
  if (type == "null") return EbnfLiteral("null");
  if (type == "boolean") return EbnfChoice({EbnfLiteral("true"), EbnfLiteral("false")});
  if (type == "integer" || type == "number") return Number(schema, type == "integer", place);
  if (type == "string") return String(schema, place);
  if (type == "array") return Array(schema, place);
  return Object(schema, place);
}

StatusOr<std::optional<int64_t>> SchemaTranslator::CountOf(const JsonValue& schema, const char* keyword,
                                                           const Place& place) const {
  const JsonValue* value = FindMember(schema, keyword);
  if (value == nullptr) return std::optional<int64_t>();
  const std::string path = place.path + "." + keyword;
  const bool is_count =
      value->kind == Kind::kNumber && value->number >= 0 &&
      value->number == static_cast<double>(static_cast<int64_t>(std::min(value->number, 1e18)));
  if (!is_count) return Fault(path, "is not a whole number from 0");
  if (value->number > limits_.max_repeats) {
    return Fault(path,
                 "is " + value->text + "; at most " + std::to_string(limits_.max_repeats) + " is supported");
  }
  return std::optional<int64_t>(static_cast<int64_t>(value->number));
}

StatusOr<Ebnf> SchemaTranslator::String(const JsonValue& schema, const Place& place) {
  StatusOr<StringKeywords> keywords = StringKeywordsOf(schema);
  if (!keywords.ok()) return Fault(place.path + keywords.status().field(), keywords.status().sentence());
  const bool is_free = keywords->patterns.empty() && keywords->formats.empty();
  if (is_free) {
    TM_RETURN_IF_ERROR(CountOf(schema, "minLength", place).status());
    TM_RETURN_IF_ERROR(CountOf(schema, "maxLength", place).status());
  }
  if (keywords->most != kUnbounded && keywords->most < keywords->least) {
    return Fault(place.path + ".maxLength", "is less than minLength");
  }
  if (is_free && keywords->least == 0 && keywords->most == kUnbounded) return EbnfName("string");
  std::string key = std::to_string(keywords->least) + ' ' + std::to_string(keywords->most);
  for (const std::string& pattern : keywords->patterns) key += " p" + JsonString(pattern);
  for (const std::string& format : keywords->formats) key += " f" + JsonString(format);
  const Pattern quote = PatternLiteral("\"");
  const auto in_quotes = [&](const Pattern& text) {
    return EbnfPattern(PatternSequence({quote, text, quote}));
  };
  if (const auto known = strings_.find(key); known != strings_.end()) return in_quotes(known->second);
  const StatusOr<Pattern> body =
      is_free ? PatternRepeat(JsonCharacterPattern(CodePoints::All()), keywords->least, keywords->most)
              : StringGrammar(*keywords, limits_, &work_);
  if (!body.ok()) return Fault(place.path + body.status().field(), body.status().sentence());
  strings_[key] = *body;
  return in_quotes(*body);
}

StatusOr<Ebnf> SchemaTranslator::Number(const JsonValue& schema, bool integer, const Place& place) const {
  struct Side {
    const char* inclusive;
    const char* exclusive;
    std::optional<NumberBound> bound;
    std::string path;
  };
  Side sides[] = {{"minimum", "exclusiveMinimum", {}, {}}, {"maximum", "exclusiveMaximum", {}, {}}};
  for (Side& side : sides) {
    for (const char* keyword : {side.inclusive, side.exclusive}) {
      const JsonValue* value = FindMember(schema, keyword);
      if (value == nullptr) continue;
      const std::string path = place.path + "." + keyword;
      if (value->kind != Kind::kNumber) return Fault(path, "is not a number");
      const bool exclusive = keyword == side.exclusive;
      if (side.bound) {  // the stricter one holds
        const double inclusive_bound = FindMember(schema, side.inclusive)->number;
        const bool is_lower = &side == &sides[0];
        const bool stricter = is_lower ? value->number >= inclusive_bound : value->number <= inclusive_bound;
        if (!stricter) continue;
      }
      side.bound = NumberBound{value->text, exclusive};
      side.path = path;
    }
  }
  if (!sides[0].bound && !sides[1].bound) return EbnfName(integer ? "integer" : "number");
  const StatusOr<Pattern> within = integer ? IntegerGrammar(sides[0].bound, sides[1].bound)
                                           : NumberGrammar(sides[0].bound, sides[1].bound);
  if (!within.ok()) return At(sides[0].bound ? sides[0].path : sides[1].path, within.status());
  return EbnfPattern(*within);
}

// ---- arrays -------------------------------------------------------------------------------------

StatusOr<Ebnf> SchemaTranslator::Array(const JsonValue& schema, const Place& place) {
  TM_ASSIGN_OR_RETURN(const std::optional<int64_t> min_items, CountOf(schema, "minItems", place));
  TM_ASSIGN_OR_RETURN(const std::optional<int64_t> max_items, CountOf(schema, "maxItems", place));
  const int64_t least = min_items.value_or(0);
  if (max_items && *max_items < least) return Fault(place.path + ".maxItems", "is less than minItems");

  std::vector<Ebnf> first;
  const JsonValue* prefix = FindMember(schema, "prefixItems");
  if (prefix != nullptr) {
    const Place inside = place.Inside(".prefixItems");
    if (prefix->kind != Kind::kArray) return Fault(inside.path, "is not an array of schemas");
    for (size_t i = 0; i < prefix->items.size(); ++i) {
      TM_ASSIGN_OR_RETURN(const Ebnf item,
                          Schema(prefix->items[i], inside.Inside("[" + std::to_string(i) + "]")));
      TM_ASSIGN_OR_RETURN(Ebnf rule, Rule(item, inside));
      first.push_back(std::move(rule));
    }
  }
  std::optional<Ebnf> rest;  // what items after the first ones are; none: there are none
  const JsonValue* items = FindMember(schema, "items");
  const bool closed = items != nullptr && items->kind == Kind::kBool && !items->boolean;
  if (items != nullptr && items->kind == Kind::kArray) {
    return Fault(place.path + ".items", "is not supported as an array; prefixItems is");
  }
  if (items != nullptr && !closed) {
    TM_ASSIGN_OR_RETURN(const Ebnf item, Schema(*items, place.Inside(".items")));
    TM_ASSIGN_OR_RETURN(rest, Rule(item, place));
  } else if (items == nullptr && (prefix == nullptr || least > static_cast<int64_t>(first.size()))) {
    rest = EbnfName("value");
  }
  if (max_items && *max_items < static_cast<int64_t>(first.size())) {
    first.resize(static_cast<size_t>(*max_items));
  }
  const auto first_count = static_cast<int64_t>(first.size());
  if (max_items == first_count) rest.reset();
  if (!rest && least > first_count) {
    return Fault(place.path + ".minItems", "is more than the items that the schema describes");
  }

  // From the last item to the first: each is what may follow the one in front of it.
  const Ebnf comma = EbnfSequence({Space(), EbnfLiteral(","), Space()});
  std::optional<Ebnf> tail;
  if (rest) {
    const bool none_in_front = first.empty();  // then one of the rest is the array's first item, below
    const int64_t taken = none_in_front ? 1 : first_count;
    TM_ASSIGN_OR_RETURN(tail, Repeated(EbnfSequence({comma, *rest}), std::max<int64_t>(0, least - taken),
                                       max_items ? *max_items - taken : kUnbounded, place));
    if (none_in_front) first.push_back(*rest);
  }
  for (size_t i = first.size(); i-- > 0;) {
    std::vector<Ebnf> parts;
    if (i > 0) parts.push_back(comma);
    parts.push_back(first[i]);
    if (tail) parts.push_back(*tail);
    if (i == 0) parts.push_back(Space());
    const Ebnf item = EbnfSequence(parts);
    tail = static_cast<int64_t>(i) < least ? item : EbnfOptional(item);
  }
  std::vector<Ebnf> whole = {EbnfLiteral("["), Space()};
  if (tail) whole.push_back(*tail);
  whole.push_back(EbnfLiteral("]"));
  return Rule(EbnfSequence(whole), place);
}

// ---- objects ------------------------------------------------------------------------------------

StatusOr<Ebnf> SchemaTranslator::Object(const JsonValue& schema, const Place& place) {
  TM_ASSIGN_OR_RETURN(const std::vector<Property> properties, Properties(schema, place));
  TM_ASSIGN_OR_RETURN(const std::optional<Ebnf> additional, AdditionalMember(schema, place, properties));
  if (properties.empty() && additional) return MapOf(schema, place, *additional);
  TM_RETURN_IF_ERROR(CheckPropertyCounts(schema, place, properties, additional.has_value()));
  return PropertiesInOrder(properties, additional, place);
}

Ebnf EbnfOf(const CodePoints& characters) { return EbnfPattern(PatternClass(characters)); }

Ebnf MemberOf(const Ebnf& key, const Ebnf& value) {
  return EbnfSequence({key, Space(), EbnfLiteral(":"), Space(), value});
}

// Those of "properties", then those that are only required.
StatusOr<std::vector<SchemaTranslator::Property>> SchemaTranslator::Properties(const JsonValue& schema,
                                                                               const Place& place) {
  const JsonValue* described = FindMember(schema, "properties");
  const JsonValue* required = FindMember(schema, "required");
  const JsonValue* others = FindMember(schema, "additionalProperties");
  if (described != nullptr && described->kind != Kind::kObject) {
    return Fault(place.path + ".properties", "is not an object of schemas");
  }
  const bool names =
      required == nullptr || (required->kind == Kind::kArray &&
                              std::all_of(required->items.begin(), required->items.end(),
                                          [](const JsonValue& name) { return name.kind == Kind::kString; }));
  if (!names) return Fault(place.path + ".required", "is not an array of strings");
  std::vector<Property> properties;
  const auto add = [&](const std::string& name, const JsonValue& value, const Place& at) -> Status {
    if (FirstInvalidUtf8(name)) return Fault(at.path, "half of a surrogate pair is no text");
    TM_ASSIGN_OR_RETURN(const Ebnf grammar, Schema(value, at));
    TM_ASSIGN_OR_RETURN(const Ebnf rule, Rule(grammar, at));
    properties.push_back({name, MemberOf(EbnfLiteral(JsonString(name)), rule), IsRequired(schema, name)});
    return {};
  };
  if (described != nullptr) {
    for (const JsonMember& member : described->members) {
      TM_RETURN_IF_ERROR(add(member.key, member.value, place.Inside(".properties." + member.key)));
    }
  }
  if (required == nullptr) return properties;
  JsonValue anything;
  anything.kind = Kind::kBool;
  anything.boolean = true;
  for (const JsonValue& name : required->items) {
    const bool known = std::any_of(properties.begin(), properties.end(),
                                   [&](const Property& property) { return property.name == name.text; });
    if (known) continue;
    if (FindMember(schema, "propertyNames") != nullptr) {
      return Fault(place.path + ".required", "names " + Excerpt(Json(name)) +
                                                 ", which is not in properties; that is not supported beside "
                                                 "propertyNames");
    }
    TM_RETURN_IF_ERROR(add(name.text, others == nullptr ? anything : *others,
                           place.Inside(others == nullptr ? ".required" : ".additionalProperties")));
  }
  return properties;
}

// "key": value of properties that the schema does not name; none where it allows none. A schema that
// describes properties and says nothing of others is taken to mean no others.
StatusOr<std::optional<Ebnf>> SchemaTranslator::AdditionalMember(const JsonValue& schema, const Place& place,
                                                                 const std::vector<Property>& properties) {
  const JsonValue* others = FindMember(schema, "additionalProperties");
  const JsonValue* names = FindMember(schema, "propertyNames");
  const bool forbidden = others != nullptr && others->kind == Kind::kBool && !others->boolean;
  if (forbidden || (others == nullptr && FindMember(schema, "properties") != nullptr) ||
      (others == nullptr && !properties.empty())) {
    return std::optional<Ebnf>();
  }
  Ebnf value = EbnfName("value");
  if (others != nullptr) {
    TM_ASSIGN_OR_RETURN(value, Schema(*others, place.Inside(".additionalProperties")));
  }
  TM_ASSIGN_OR_RETURN(const Ebnf value_rule, Rule(value, place));
  Ebnf key = EbnfName("string");
  if (names != nullptr) {
    const Place inside = place.Inside(".propertyNames");
    if (!properties.empty()) return Fault(inside.path, "is not supported beside properties");
    if (names->kind != Kind::kObject) return Fault(inside.path, "is not a schema of strings");
    TM_RETURN_IF_ERROR(CheckKeywords(*names, inside));
    JsonValue type;
    type.kind = Kind::kString;
    type.text = "string";
    JsonValue string = AnyValue();
    string.members.push_back({"type", type});
    JsonValue both;
    both.kind = Kind::kArray;
    both.items = {*names, string};
    JsonValue of_strings = AnyValue();
    of_strings.members.push_back({"allOf", both});
    TM_ASSIGN_OR_RETURN(const Alternatives some, Expanded(of_strings, inside));
    if (some.empty()) return Fault(inside.path, "is not a schema of strings");
    TM_ASSIGN_OR_RETURN(key, Schema(of_strings, inside));
  } else if (!properties.empty()) {
    TM_ASSIGN_OR_RETURN(key, KeyExcept(properties, place));
  }
  return std::optional<Ebnf>(MemberOf(key, value_rule));
}

// Properties without names of their own: any number of members, within the schema's counts. The same key may
// come twice, so no more than one property can be promised.
StatusOr<Ebnf> SchemaTranslator::MapOf(const JsonValue& schema, const Place& place, const Ebnf& member) {
  TM_ASSIGN_OR_RETURN(const std::optional<int64_t> least, CountOf(schema, "minProperties", place));
  TM_ASSIGN_OR_RETURN(const std::optional<int64_t> most, CountOf(schema, "maxProperties", place));
  if (least.value_or(0) > 1) return Fault(place.path + ".minProperties", "above 1 is not supported");
  if (most && *most < least.value_or(0)) {
    return Fault(place.path + ".maxProperties", "is less than minProperties");
  }
  std::vector<Ebnf> whole = {EbnfLiteral("{"), Space()};
  if (most != 0) {
    const Ebnf next = EbnfSequence({Space(), EbnfLiteral(","), Space(), member});
    TM_ASSIGN_OR_RETURN(const Ebnf more, Repeated(next, 0, most ? *most - 1 : kUnbounded, place));
    const Ebnf members = EbnfSequence({member, more, Space()});
    whole.push_back(least == 1 ? members : EbnfOptional(members));
  }
  whole.push_back(EbnfLiteral("}"));
  return EbnfSequence(whole);
}

Status SchemaTranslator::CheckPropertyCounts(const JsonValue& schema, const Place& place,
                                             const std::vector<Property>& properties, bool open) const {
  TM_ASSIGN_OR_RETURN(const std::optional<int64_t> least, CountOf(schema, "minProperties", place));
  TM_ASSIGN_OR_RETURN(const std::optional<int64_t> most, CountOf(schema, "maxProperties", place));
  const auto all = static_cast<int64_t>(properties.size());
  const int64_t required = std::count_if(properties.begin(), properties.end(),
                                         [](const Property& property) { return property.required; });
  if (least.value_or(0) > required) {
    return Fault(place.path + ".minProperties", "above the number of required properties is not supported");
  }
  if (most && (open || *most < all)) {
    return Fault(place.path + ".maxProperties", "below the number of properties is not supported");
  }
  return {};
}

// Properties in the schema's order, the optional ones there or not, others behind them. Up to the first
// property that is required the object may begin with any; from there on each optional one brings its comma.
StatusOr<Ebnf> SchemaTranslator::PropertiesInOrder(const std::vector<Property>& properties,
                                                   const std::optional<Ebnf>& additional,
                                                   const Place& place) {
  const auto after_comma = [](const Ebnf& member) {
    return EbnfSequence({Space(), EbnfLiteral(","), Space(), member});
  };
  const auto first_required =
      static_cast<size_t>(std::find_if(properties.begin(), properties.end(),
                                       [](const Property& property) { return property.required; }) -
                          properties.begin());
  // What follows property i, as a rule where several beginnings share it.
  std::vector<Ebnf> beginnings;
  Ebnf tail = Space();
  if (additional) {
    tail = EbnfSequence({EbnfAnyNumber(after_comma(*additional)), Space()});
    if (first_required == properties.size()) beginnings.push_back(EbnfSequence({*additional, tail}));
  }
  for (size_t i = properties.size(); i-- > 0;) {
    const bool may_begin = i <= first_required;
    if (may_begin && first_required > 0) {
      TM_ASSIGN_OR_RETURN(tail, Rule(tail, place));
    }
    if (may_begin) beginnings.push_back(EbnfSequence({properties[i].member, tail}));
    const Ebnf next = after_comma(properties[i].member);
    tail = EbnfSequence({properties[i].required ? next : EbnfOptional(next), tail});
  }
  std::vector<Ebnf> whole = {EbnfLiteral("{"), Space()};
  if (!beginnings.empty()) {
    const Ebnf content = EbnfChoice(beginnings);
    whole.push_back(first_required < properties.size() ? content : EbnfOptional(content));
  }
  whole.push_back(EbnfLiteral("}"));
  return Rule(EbnfSequence(whole), place);
}

// A key that is none of the names: written without escapes, so that each key has one spelling.
StatusOr<Ebnf> SchemaTranslator::KeyExcept(const std::vector<Property>& properties, const Place& place) {
  struct Node {
    std::map<uint32_t, size_t> next;
    bool is_name = false;
  };
  std::vector<Node> nodes(1);
  for (const Property& property : properties) {
    size_t at = 0;
    for (const uint32_t character : CodePointsOf(property.name)) {
      const auto [found, is_new] = nodes[at].next.try_emplace(character, nodes.size());
      at = found->second;
      if (is_new) nodes.emplace_back();
    }
    nodes[at].is_name = true;
  }
  const CodePoints plain = CodePoints{{0, 0x1F}, {'"', '"'}, {'\\', '\\'}}.Complement();
  TM_ASSIGN_OR_RETURN(const Ebnf any_rest,
                      Rule(EbnfPattern(PatternSequence(
                               {PatternRepeat(PatternClass(plain), 0, kUnbounded), PatternLiteral("\"")})),
                           place));
  std::vector<Ebnf> rules(nodes.size());
  for (size_t n = nodes.size(); n-- > 0;) {  // children come after their parents
    CodePoints leaves = plain;
    std::vector<Ebnf> choices;
    for (const auto& [character, child] : nodes[n].next) {
      leaves = leaves.Without({{character, character}});
      if (plain.Contains(character)) {
        choices.push_back(EbnfSequence({EbnfOf({{character, character}}), rules[child]}));
      }
    }
    choices.push_back(EbnfSequence({EbnfOf(leaves), any_rest}));
    if (!nodes[n].is_name) choices.push_back(EbnfLiteral("\""));
    TM_ASSIGN_OR_RETURN(rules[n], Rule(EbnfChoice(choices), place));
  }
  return EbnfSequence({EbnfLiteral("\""), rules[0]});
}

// ---- rules --------------------------------------------------------------------------------------

StatusOr<Ebnf> SchemaTranslator::Rule(const Ebnf& body, const Place& place) {
  if (body.size <= 1) return body;  // a name, a character
  const auto known = names_.find(body.text);
  if (known != names_.end()) return EbnfName(known->second);
  const std::string name = NewName();
  TM_RETURN_IF_ERROR(AddRule(name, body, place));
  names_[body.text] = name;
  return EbnfName(name);
}

// From `least` to `most` times, as a rule for each time that is left.
StatusOr<Ebnf> SchemaTranslator::Repeated(const Ebnf& part, int64_t least, int64_t most, const Place& place) {
  Ebnf tail = most == kUnbounded ? EbnfAnyNumber(part) : EbnfEmpty();
  for (int64_t n = most == kUnbounded ? least : most; n > 0; --n) {
    const bool is_empty = tail.text == EbnfEmpty().text;
    const Ebnf next = is_empty ? part : EbnfSequence({part, tail});
    TM_ASSIGN_OR_RETURN(tail, Rule(n > least ? EbnfOptional(next) : next, place));
  }
  return tail;
}

Status SchemaTranslator::AddRule(const std::string& name, const Ebnf& body, const Place& place) {
  size_ = std::min(kMostGrammarSize, size_ + body.size);
  if (size_ > limits_.max_size) {
    return Fault(place.path, "comes, with what stands in front of it, to more than " +
                                 std::to_string(limits_.max_size) +
                                 " symbols of grammar, repetitions written out");
  }
  rules_ += EbnfRule(name, body);
  return {};
}

}  // namespace

StatusOr<std::string> JsonSchemaGrammar(std::string_view schema, const ConstraintLimits& limits) {
  StatusOr<JsonValue> root = ParsePythonJson(schema);
  if (!root.ok()) return InvalidArgument("is not JSON: " + root.status().message());
  return SchemaTranslator(*root, limits).Translate();
}

std::string JsonObjectGrammar() { return std::string("root ::= object\n") + kSharedRules; }

}  // namespace tramontane

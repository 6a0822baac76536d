#include "models/grammar/json_schema_grammar.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "kernels/core/utf8.h"
#include "models/grammar/ebnf.h"
#include "models/grammar/number_grammar.h"
#include "models/grammar/regex_grammar.h"
#include "models/tokenizer/python_json.h"

namespace tramontane {
namespace {

using Kind = JsonValue::Kind;

// ---- the keywords -------------------------------------------------------------------------------

enum class Group {
  kAnnotation,   // says nothing about the text
  kDefinitions,  // schemas that others refer to
  kWhole,        // decides alone: $ref, enum, anyOf and their like
  kType,
  kString,
  kNumber,
  kArray,
  kObject,
  kRefused,
};

struct Keyword {
  std::string_view name;
  Group group;
};

constexpr Keyword kKeywords[] = {
    {"title", Group::kAnnotation},
    {"description", Group::kAnnotation},
    {"default", Group::kAnnotation},
    {"example", Group::kAnnotation},
    {"examples", Group::kAnnotation},
    {"deprecated", Group::kAnnotation},
    {"readOnly", Group::kAnnotation},
    {"writeOnly", Group::kAnnotation},
    {"discriminator", Group::kAnnotation},
    {"contentEncoding", Group::kAnnotation},
    {"contentMediaType", Group::kAnnotation},
    {"$comment", Group::kAnnotation},
    {"$schema", Group::kAnnotation},
    {"$defs", Group::kDefinitions},
    {"definitions", Group::kDefinitions},
    {"$ref", Group::kWhole},
    {"const", Group::kWhole},
    {"enum", Group::kWhole},
    {"anyOf", Group::kWhole},
    {"oneOf", Group::kWhole},
    {"allOf", Group::kWhole},
    {"type", Group::kType},
    {"minLength", Group::kString},
    {"maxLength", Group::kString},
    {"pattern", Group::kString},
    {"format", Group::kString},
    {"minimum", Group::kNumber},
    {"maximum", Group::kNumber},
    {"exclusiveMinimum", Group::kNumber},
    {"exclusiveMaximum", Group::kNumber},
    {"items", Group::kArray},
    {"prefixItems", Group::kArray},
    {"minItems", Group::kArray},
    {"maxItems", Group::kArray},
    {"properties", Group::kObject},
    {"required", Group::kObject},
    {"additionalProperties", Group::kObject},
    {"propertyNames", Group::kObject},
    {"minProperties", Group::kObject},
    {"maxProperties", Group::kObject},
    {"not", Group::kRefused},
    {"if", Group::kRefused},
    {"then", Group::kRefused},
    {"else", Group::kRefused},
    {"dependencies", Group::kRefused},
    {"dependentRequired", Group::kRefused},
    {"dependentSchemas", Group::kRefused},
    {"patternProperties", Group::kRefused},
    {"unevaluatedProperties", Group::kRefused},
    {"unevaluatedItems", Group::kRefused},
    {"additionalItems", Group::kRefused},
    {"contains", Group::kRefused},
    {"minContains", Group::kRefused},
    {"maxContains", Group::kRefused},
    {"uniqueItems", Group::kRefused},
    {"multipleOf", Group::kRefused},
    {"contentSchema", Group::kRefused},
    {"nullable", Group::kRefused},
    {"$id", Group::kRefused},
    {"$anchor", Group::kRefused},
    {"$dynamicRef", Group::kRefused},
    {"$dynamicAnchor", Group::kRefused},
    {"$recursiveRef", Group::kRefused},
    {"$recursiveAnchor", Group::kRefused},
    {"$vocabulary", Group::kRefused},
};

// Formats as regular expressions: what they match, every checker of the format takes.
struct Format {
  std::string_view name;
  const char* pattern;
};

#define TM_DATE                                                                                  \
  "[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[" \
  "1-9]|1[0-9]|2[0-8]))"
#define TM_TIME \
  "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define TM_BYTE "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define TM_LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?"

constexpr Format kFormats[] = {
    {"date", TM_DATE},
    {"time", TM_TIME},
    {"date-time", TM_DATE "T" TM_TIME},
    {"duration",
     "P([0-9]{1,6}D(T[0-9]{1,6}H)?|T([0-9]{1,6}H([0-9]{1,6}M([0-9]{1,6}S)?)?|[0-9]{1,6}M([0-"
     "9]{1,6}S)?|[0-9]{1,6}S))"},
    {"uuid", "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"},
    {"ipv4", TM_BYTE "\\." TM_BYTE "\\." TM_BYTE "\\." TM_BYTE},
    {"ipv6", "([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}"},
    {"hostname", TM_LABEL "(\\." TM_LABEL "){0,4}"},
    {"email", "[A-Za-z0-9_+-]{1,32}(\\.[A-Za-z0-9_+-]{1,16}){0,2}@" TM_LABEL "(\\." TM_LABEL "){1,4}"},
    {"uri", "https?://" TM_LABEL "(\\." TM_LABEL "){0,4}(/[A-Za-z0-9_.~-]{0,64}){0,16}"},
};

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

// Between the tokens of JSON.
Ebnf Space() { return EbnfName("space"); }

const Keyword* FindKeyword(std::string_view name) {
  const auto* found = std::find_if(std::begin(kKeywords), std::end(kKeywords),
                                   [name](const Keyword& keyword) { return keyword.name == name; });
  return found == std::end(kKeywords) ? nullptr : found;
}

const JsonValue* Member(const JsonValue& object, std::string_view key) {
  for (const JsonMember& member : object.members) {
    if (member.key == key) return &member.value;
  }
  return nullptr;
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
  StatusOr<Ebnf> Whole(const JsonMember& keyword, const JsonValue& schema, const Place& place);
  StatusOr<Ebnf> Reference(const JsonValue& uri, const Place& place);
  StatusOr<Ebnf> Values(const std::vector<JsonValue>& values, const JsonValue& schema, const Place& place);
  StatusOr<Ebnf> OneOfSchemas(const JsonValue& options, const Place& place, bool exclusive);
  StatusOr<Ebnf> OfType(std::string_view type, const JsonValue& schema, const Place& place);
  StatusOr<Ebnf> String(const JsonValue& schema, const Place& place) const;
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
  bool AreDisjoint(const JsonValue& a, const JsonValue& b) const;
  std::optional<std::vector<JsonValue>> FiniteValues(const JsonValue& schema) const;
  std::set<std::string_view> TypesOf(const JsonValue& schema) const;
  const JsonValue& Dereferenced(const JsonValue& schema) const;

  const JsonValue* Resolve(std::string_view uri) const;
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
  for (const JsonMember& member : schema.members) {
    const Keyword* keyword = FindKeyword(member.key);
    if (keyword != nullptr && keyword->group == Group::kWhole) return Whole(member, schema, place);
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

// Every keyword is known, may stand beside the others, and "type" names types.
Status SchemaTranslator::CheckKeywords(const JsonValue& schema, const Place& place) const {
  const JsonMember* whole = nullptr;
  for (const JsonMember& member : schema.members) {
    const std::string path = place.path + "." + member.key;
    if (member.key.starts_with("x-")) continue;
    const Keyword* keyword = FindKeyword(member.key);
    if (keyword == nullptr) return Fault(path, "is no keyword that is known here");
    const bool says_nothing =
        (member.key == "uniqueItems" && member.value.kind == Kind::kBool && !member.value.boolean) ||
        (member.key == "$id" && place.path.empty());
    if (keyword->group == Group::kRefused && !says_nothing) return Fault(path, "is not supported");
    if (keyword->group == Group::kWhole) {
      if (whole != nullptr) return Fault(path, "is not supported beside " + whole->key);
      whole = &member;
    }
  }
  if (const JsonValue* type = Member(schema, "type")) {
    const std::vector<JsonValue> names =
        type->kind == Kind::kArray ? type->items : std::vector<JsonValue>{*type};
    if (names.empty()) return Fault(place.path + ".type", "names no type");
    for (const JsonValue& name : names) {
      if (name.kind != Kind::kString || std::find(kTypes.begin(), kTypes.end(), name.text) == kTypes.end()) {
        return Fault(place.path + ".type", "is not the name of a type: " + Excerpt(Json(name)));
      }
    }
  }
  if (whole == nullptr) return {};
  const bool finite = whole->key == "enum" || whole->key == "const";
  for (const JsonMember& member : schema.members) {
    const Keyword* keyword = FindKeyword(member.key);
    const bool stands_beside = keyword == nullptr || &member == whole ||
                               keyword->group == Group::kAnnotation ||
                               keyword->group == Group::kDefinitions || keyword->group == Group::kRefused ||
                               (finite && keyword->group == Group::kType);
    if (!stands_beside) return Fault(place.path + "." + member.key, "is not supported beside " + whole->key);
  }
  return {};
}

StatusOr<Ebnf> SchemaTranslator::Whole(const JsonMember& keyword, const JsonValue& schema,
                                       const Place& place) {
  const JsonValue& value = keyword.value;
  const Place inside = place.Beside("." + keyword.key);
  if (keyword.key == "$ref") return Reference(value, inside);
  if (keyword.key == "const") return Values({value}, schema, inside);
  if (value.kind != Kind::kArray || value.items.empty()) {
    return Fault(inside.path, "is not an array of at least one entry");
  }
  if (keyword.key == "enum") return Values(value.items, schema, inside);
  if (keyword.key == "allOf" && value.items.size() > 1) {
    return Fault(inside.path, "is supported with one schema only");
  }
  return OneOfSchemas(value, inside, /*exclusive=*/keyword.key == "oneOf");
}

// ---- $ref ---------------------------------------------------------------------------------------

StatusOr<Ebnf> SchemaTranslator::Reference(const JsonValue& uri, const Place& place) {
  if (uri.kind != Kind::kString) return Fault(place.path, "is not a string");
  const JsonValue* target = Resolve(uri.text);
  if (target == nullptr) {
    return Fault(place.path, "leads nowhere inside this schema: " + Excerpt(uri.text));
  }
  if (place.waiting.contains(target)) return Fault(place.path, "leads back to itself: " + Excerpt(uri.text));
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

// "#", or "#/" and a JSON pointer.
const JsonValue* SchemaTranslator::Resolve(std::string_view uri) const {
  if (uri == "#") return &root_;
  if (!uri.starts_with("#/")) return nullptr;
  const JsonValue* at = &root_;
  std::string_view rest = uri.substr(1);
  while (!rest.empty()) {
    rest.remove_prefix(1);
    std::string step(rest.substr(0, rest.find('/')));
    rest.remove_prefix(step.size());
    const auto replace = [&step](std::string_view from, std::string_view to) {
      for (size_t i = step.find(from); i != std::string::npos; i = step.find(from, i + to.size())) {
        step.replace(i, from.size(), to);
      }
    };
    replace("~1", "/");
    replace("~0", "~");
    if (at->kind == Kind::kArray) {
      const bool is_index =
          !step.empty() && step.size() < 8 && step.find_first_not_of("0123456789") == std::string::npos;
      if (!is_index || std::stoul(step) >= at->items.size()) return nullptr;
      at = &at->items[std::stoul(step)];
    } else {
      at = at->kind == Kind::kObject ? Member(*at, step) : nullptr;
      if (at == nullptr) return nullptr;
    }
  }
  return at;
}

// ---- enum, anyOf, oneOf -------------------------------------------------------------------------

bool HasType(const JsonValue& value, std::string_view type) {
  switch (value.kind) {
    case Kind::kNull:
      return type == "null";
    case Kind::kBool:
      return type == "boolean";
    case Kind::kNumber:
      return type == "number" || (type == "integer" && value.text.find_first_of(".eE") == std::string::npos);
    case Kind::kString:
      return type == "string";
    case Kind::kArray:
      return type == "array";
    case Kind::kObject:
      return type == "object";
  }
  return false;
}

// NaN and Infinity, which Python reads and JSON does not have.
bool HasNonJsonNumber(const JsonValue& value) {
  if (value.kind == Kind::kNumber) return value.text.find_first_of("NI") != std::string::npos;
  return std::any_of(value.items.begin(), value.items.end(), HasNonJsonNumber) ||
         std::any_of(value.members.begin(), value.members.end(),
                     [](const JsonMember& member) { return HasNonJsonNumber(member.value); });
}

StatusOr<Ebnf> SchemaTranslator::Values(const std::vector<JsonValue>& values, const JsonValue& schema,
                                        const Place& place) {
  const std::set<std::string_view> types = Member(schema, "type") == nullptr
                                               ? std::set<std::string_view>(kTypes.begin(), kTypes.end())
                                               : TypesOf(schema);
  std::vector<Pattern> alternatives;
  std::set<std::string> seen;
  for (const JsonValue& value : values) {
    const bool has_type =
        std::any_of(types.begin(), types.end(), [&](std::string_view type) { return HasType(value, type); });
    const std::string text = Json(value);
    if (!has_type || !seen.insert(text).second) continue;
    if (HasNonJsonNumber(value)) return Fault(place.path, "NaN and Infinity are no JSON");
    if (FirstInvalidUtf8(text)) return Fault(place.path, "half of a surrogate pair is no text");
    alternatives.push_back(PatternLiteral(text));
  }
  if (alternatives.empty()) return Fault(place.path, "has no value of the schema's type");
  return Rule(EbnfPattern(PatternChoice(alternatives)), place);
}

StatusOr<Ebnf> SchemaTranslator::OneOfSchemas(const JsonValue& options, const Place& place, bool exclusive) {
  std::vector<Ebnf> alternatives;
  for (size_t i = 0; i < options.items.size(); ++i) {
    TM_ASSIGN_OR_RETURN(Ebnf alternative,
                        Schema(options.items[i], place.Beside("[" + std::to_string(i) + "]")));
    alternatives.push_back(std::move(alternative));
    for (size_t j = 0; exclusive && j < i; ++j) {
      if (AreDisjoint(options.items[i], options.items[j])) continue;
      return Fault(place.path, "entries " + std::to_string(j) + " and " + std::to_string(i) +
                                   " may both hold for one value; oneOf is supported where types, or a "
                                   "required property with const or enum, tell its entries apart");
    }
  }
  return EbnfChoice(alternatives);
}

const JsonValue& SchemaTranslator::Dereferenced(const JsonValue& schema) const {
  const JsonValue* at = &schema;
  for (int steps = 0; steps < 16; ++steps) {
    const JsonValue* uri = at->kind == Kind::kObject ? Member(*at, "$ref") : nullptr;
    const JsonValue* target = uri != nullptr && uri->kind == Kind::kString ? Resolve(uri->text) : nullptr;
    if (target == nullptr) break;
    at = target;
  }
  return *at;
}

// The types that "type" names, else those that the keywords are about; none: any.
std::set<std::string_view> SchemaTranslator::TypesOf(const JsonValue& schema) const {
  std::set<std::string_view> types;
  if (const JsonValue* type = Member(schema, "type")) {
    if (type->kind == Kind::kString) types.insert(type->text);
    for (const JsonValue& name : type->items) types.insert(name.text);
    return types;
  }
  for (const JsonMember& member : schema.members) {
    const Keyword* keyword = FindKeyword(member.key);
    if (keyword == nullptr) continue;
    if (keyword->group == Group::kString) types.insert("string");
    if (keyword->group == Group::kNumber) types.insert("number");
    if (keyword->group == Group::kArray) types.insert("array");
    if (keyword->group == Group::kObject) types.insert("object");
  }
  return types;
}

std::optional<std::vector<JsonValue>> SchemaTranslator::FiniteValues(const JsonValue& schema) const {
  if (schema.kind != Kind::kObject) return std::nullopt;
  if (const JsonValue* value = Member(schema, "const")) return std::vector<JsonValue>{*value};
  if (const JsonValue* values = Member(schema, "enum")) return values->items;
  return std::nullopt;
}

bool HaveNoCommonValue(const std::vector<JsonValue>& a, const std::vector<JsonValue>& b) {
  // Numbers are compared by what they are worth: 1 and 1.0 are the same value.
  const auto same = [](const JsonValue& x, const JsonValue& y) {
    if (x.kind != y.kind) return false;
    return x.kind == Kind::kNumber ? x.number == y.number : Json(x) == Json(y);
  };
  return std::none_of(a.begin(), a.end(), [&](const JsonValue& x) {
    // Order of keys, and numbers inside: not looked into.
    if (x.kind == Kind::kArray || x.kind == Kind::kObject) return true;
    return std::any_of(b.begin(), b.end(), [&](const JsonValue& y) { return same(x, y); });
  });
}

bool IsRequired(const JsonValue& schema, std::string_view name) {
  const JsonValue* required = Member(schema, "required");
  return required != nullptr && std::any_of(required->items.begin(), required->items.end(),
                                            [name](const JsonValue& entry) { return entry.text == name; });
}

// Surely no value is valid under both.
bool SchemaTranslator::AreDisjoint(const JsonValue& first, const JsonValue& second) const {
  const JsonValue& a = Dereferenced(first);
  const JsonValue& b = Dereferenced(second);
  if (a.kind != Kind::kObject || b.kind != Kind::kObject) return false;
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
    } else if (const JsonValue* type = Member(schema, "type")) {
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
  const JsonValue* properties_a = Member(a, "properties");
  const JsonValue* properties_b = Member(b, "properties");
  if (properties_a == nullptr || properties_b == nullptr) return false;
  return std::any_of(properties_a->members.begin(), properties_a->members.end(),
                     [&](const JsonMember& member) {
                       const JsonValue* other = Member(*properties_b, member.key);
                       if (other == nullptr || !IsRequired(a, member.key) || !IsRequired(b, member.key))
                         return false;
                       const auto here = FiniteValues(Dereferenced(member.value));
                       const auto there = FiniteValues(Dereferenced(*other));
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
  const JsonValue* value = Member(schema, keyword);
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

StatusOr<Ebnf> SchemaTranslator::String(const JsonValue& schema, const Place& place) const {
  TM_ASSIGN_OR_RETURN(const std::optional<int64_t> least, CountOf(schema, "minLength", place));
  TM_ASSIGN_OR_RETURN(const std::optional<int64_t> most, CountOf(schema, "maxLength", place));
  const JsonValue* pattern = Member(schema, "pattern");
  const JsonValue* format = Member(schema, "format");
  const Pattern quote = PatternLiteral("\"");
  if (pattern != nullptr && format != nullptr) {
    return Fault(place.path + ".pattern", "is not supported beside format");
  }
  if (pattern != nullptr || format != nullptr) {
    const std::string path = place.path + (pattern != nullptr ? ".pattern" : ".format");
    const JsonValue& value = pattern != nullptr ? *pattern : *format;
    if (value.kind != Kind::kString) return Fault(path, "is not a string");
    if (least || most) return Fault(path, "is not supported beside minLength and maxLength");
    std::string_view expression = value.text;
    RegexReading reading{RegexReading::Match::kAnywhere, RegexReading::Spelling::kInJsonString};
    if (format != nullptr) {
      const auto* known = std::find_if(std::begin(kFormats), std::end(kFormats),
                                       [&](const Format& candidate) { return candidate.name == value.text; });
      if (known == std::end(kFormats)) {
        return Fault(path, "the format " + Excerpt(Json(value)) + " is not supported");
      }
      expression = known->pattern;
      reading.match = RegexReading::Match::kWhole;
    }
    if (FirstInvalidUtf8(expression)) return Fault(path, "half of a surrogate pair is no text");
    StatusOr<Pattern> body = RegexToPattern(expression, reading, limits_);
    if (!body.ok()) return At(path, body.status());
    return EbnfPattern(PatternSequence({quote, *body, quote}));
  }
  if (!least && !most) return EbnfName("string");
  if (most && *most < least.value_or(0)) {
    return Fault(place.path + ".maxLength", "is less than minLength");
  }
  const Pattern characters =
      PatternRepeat(JsonCharacterPattern(CodePoints::All()), least.value_or(0), most.value_or(kUnbounded));
  return EbnfPattern(PatternSequence({quote, characters, quote}));
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
      const JsonValue* value = Member(schema, keyword);
      if (value == nullptr) continue;
      const std::string path = place.path + "." + keyword;
      if (value->kind != Kind::kNumber) return Fault(path, "is not a number");
      if (side.bound) return Fault(path, std::string("is not supported beside ") + side.inclusive);
      side.bound = NumberBound{value->text, keyword == side.exclusive};
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
  const JsonValue* prefix = Member(schema, "prefixItems");
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
  const JsonValue* items = Member(schema, "items");
  const bool closed = items != nullptr && items->kind == Kind::kBool && !items->boolean;
  if (items != nullptr && items->kind == Kind::kArray) {
    return Fault(place.path + ".items", "is not supported as an array; prefixItems is");
  }
  if (items != nullptr && !closed) {
    TM_ASSIGN_OR_RETURN(const Ebnf item, Schema(*items, place.Inside(".items")));
    TM_ASSIGN_OR_RETURN(rest, Rule(item, place));
  } else if (items == nullptr && prefix == nullptr) {
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
  const JsonValue* described = Member(schema, "properties");
  const JsonValue* required = Member(schema, "required");
  const JsonValue* others = Member(schema, "additionalProperties");
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
    if (Member(schema, "propertyNames") != nullptr) {
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
  const JsonValue* others = Member(schema, "additionalProperties");
  const JsonValue* names = Member(schema, "propertyNames");
  const bool forbidden = others != nullptr && others->kind == Kind::kBool && !others->boolean;
  if (forbidden || (others == nullptr && Member(schema, "properties") != nullptr) ||
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
    JsonValue of_strings = *names;
    if (Member(of_strings, "type") == nullptr && Member(of_strings, "$ref") == nullptr) {
      JsonValue type;
      type.kind = Kind::kString;
      type.text = "string";
      of_strings.members.push_back({"type", type});
    }
    if (TypesOf(Dereferenced(of_strings)) != std::set<std::string_view>{"string"}) {
      return Fault(inside.path, "is not a schema of strings");
    }
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

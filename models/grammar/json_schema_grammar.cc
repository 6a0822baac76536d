#include "models/grammar/json_schema_grammar.h"

#include <algorithm>
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
#include "models/grammar/relaxed_parts.h"
#include "models/grammar/schema_expansion.h"
#include "models/grammar/schema_keywords.h"
#include "models/grammar/schema_place.h"
#include "models/grammar/schema_reference.h"
#include "models/grammar/schema_rules.h"
#include "models/grammar/schema_values.h"
#include "models/grammar/string_grammar.h"
#include "models/tokenizer/python_json.h"

namespace tramontane {
namespace {

using Kind = JsonValue::Kind;

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

// Between the tokens of JSON.
Ebnf Space() { return EbnfName("space"); }

Ebnf AnyBoolean() { return EbnfChoice({EbnfLiteral("true"), EbnfLiteral("false")}); }

std::string JsonString(std::string_view text) {
  std::string quoted;
  AppendPythonJsonString(text, &quoted);
  return quoted;
}

class SchemaTranslator {
 public:
  SchemaTranslator(const JsonValue& root, const ConstraintLimits& limits, bool is_relaxed)
      : root_(root),
        limits_(limits),
        is_relaxed_(is_relaxed),
        rules_(limits.max_size, is_relaxed ? limits.max_tool_pattern_size : limits.max_size),
        expansion_(root, limits, is_relaxed ? &relaxed_ : nullptr) {
    if (is_relaxed) work_.steps = limits.max_tool_pattern_steps;
  }

  StatusOr<SchemaGrammar> Translate();

 private:
  using Place = SchemaPlace;
  using Alternatives = SchemaExpansion::Alternatives;
  enum class Form { kAsItIs, kRule };  // written where it is needed, or as a rule of its own

  // Where that is allowed, what cannot be translated is any JSON of its type.
  StatusOr<Ebnf> Schema(const JsonValue& schema, const Place& place, Form form = Form::kAsItIs);
  StatusOr<Ebnf> AsAsked(const JsonValue& schema, const Place& place);
  Ebnf Relaxed(const JsonValue& schema, const Place& place, const Status& fault,
               const SchemaRules::Mark& mark, const RelaxedParts::Mark& before);
  StatusOr<Ebnf> Applied(const JsonMember& keyword, const Place& place);
  StatusOr<Ebnf> Merged(const JsonValue& schema, const Place& place);
  StatusOr<Ebnf> Plain(const JsonValue& schema, const Place& place);
  StatusOr<Ebnf> Reference(const JsonValue& uri, const Place& place);
  StatusOr<Ebnf> Values(const JsonMember& keyword, const JsonValue& schema, const Place& place);
  StatusOr<std::vector<Pattern>> HoldingValues(const JsonMember& keyword, const JsonValue& schema,
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

  StatusOr<std::optional<int64_t>> CountOf(const JsonValue& schema, const char* keyword,
                                           const Place& place) const;

  StatusOr<Ebnf> KeyExcept(const std::vector<Property>& properties, const Place& place);

  const JsonValue& root_;
  const ConstraintLimits& limits_;
  const bool is_relaxed_;
  RelaxedParts relaxed_;
  SchemaRules rules_;
  SchemaExpansion expansion_;
  std::map<std::string, Pattern> strings_;  // keywords of strings -> what they come to
  mutable RegexWork work_;
  RegexWork overlaps_{limits_.max_tool_pattern_steps};
};

StatusOr<SchemaGrammar> SchemaTranslator::Translate() {
  const Place place;
  const SchemaRules::Mark empty = rules_.mark();
  TM_ASSIGN_OR_RETURN(Ebnf root, Schema(root_, place));
  Status added = rules_.Add("root", root, place.path);
  if (!added.ok() && is_relaxed_) {
    root = Relaxed(root_, place, added, empty, {});
    added = rules_.Add("root", root, place.path);
  }
  TM_RETURN_IF_ERROR(added);
  return SchemaGrammar{rules_.text() + kSharedRules, relaxed_.Lines()};
}

StatusOr<Ebnf> SchemaTranslator::Schema(const JsonValue& schema, const Place& place, Form form) {
  const SchemaRules::Mark mark = rules_.mark();
  const RelaxedParts::Mark before = relaxed_.mark();
  StatusOr<Ebnf> made = AsAsked(schema, place);
  if (made.ok() && form == Form::kRule) made = rules_.Rule(*made, place.path);
  if (made.ok() || !is_relaxed_) return made;
  return Relaxed(schema, place, made.status(), mark, before);
}

// What came of the schema so far is taken back, and what was told of its parts.
Ebnf SchemaTranslator::Relaxed(const JsonValue& schema, const Place& place, const Status& fault,
                               const SchemaRules::Mark& mark, const RelaxedParts::Mark& before) {
  rules_.ReturnTo(mark);
  relaxed_.ReturnTo(before);
  relaxed_.Add(RelaxedPart(fault, place, schema, limits_));
  std::vector<Ebnf> types;
  const JsonValue alone = TypeAlone(schema);  // outlives the names of its types
  for (const std::string_view type : TypesOf(alone)) {
    if (type == "null") {
      types.push_back(EbnfLiteral("null"));
    } else if (type == "boolean") {
      types.push_back(AnyBoolean());
    } else {
      types.push_back(EbnfName(std::string(type)));  // kSharedRules has them
    }
  }
  return types.empty() ? EbnfName("value") : EbnfChoice(types);
}

StatusOr<Ebnf> SchemaTranslator::AsAsked(const JsonValue& schema, const Place& place) {
  TM_RETURN_IF_ERROR(CheckSchema(schema, place, root_, limits_));
  if (schema.kind == Kind::kBool) {
    if (schema.boolean) return EbnfName("value");
    return FaultAt(place.path, "false allows no value at all");
  }
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

// $ref, anyOf, oneOf, or allOf of one.
StatusOr<Ebnf> SchemaTranslator::Applied(const JsonMember& keyword, const Place& place) {
  const Place inside = place.Beside("." + keyword.key);
  if (keyword.key == "$ref") return Reference(keyword.value, inside);
  if (keyword.value.kind != Kind::kArray || keyword.value.items.empty()) {
    return FaultAt(inside.path, "is not an array of at least one entry");
  }
  return OneOfSchemas(keyword.value, inside, /*exclusive=*/keyword.key == "oneOf");
}

// ---- schemas that hold together -----------------------------------------------------------------

StatusOr<Ebnf> SchemaTranslator::Merged(const JsonValue& schema, const Place& place) {
  const std::string key = "$all " + JsonText(schema);
  if (const std::string* known = rules_.Find(key)) return EbnfName(*known);
  TM_ASSIGN_OR_RETURN(const Alternatives alternatives, expansion_.Expanded(schema, place));
  const std::string name = rules_.Begin(key);
  std::vector<Ebnf> parts;
  std::set<std::string> seen;
  for (const JsonValue& alternative : alternatives) {
    if (!seen.insert(JsonText(alternative)).second) continue;
    if (const JsonValue* some = FindMember(alternative, "enum")) {
      TM_ASSIGN_OR_RETURN(const std::vector<Pattern> values,
                          HoldingValues({"enum", *some}, alternative, place));
      if (values.empty()) continue;
    }
    TM_ASSIGN_OR_RETURN(Ebnf part, Plain(alternative, place));
    parts.push_back(std::move(part));
  }
  if (parts.empty()) return FaultAt(place.path, "allows no value at all");
  TM_RETURN_IF_ERROR(rules_.Add(name, EbnfChoice(parts), place.path));
  return EbnfName(name);
}

// ---- $ref ---------------------------------------------------------------------------------------

StatusOr<Ebnf> SchemaTranslator::Reference(const JsonValue& uri, const Place& place) {
  TM_ASSIGN_OR_RETURN(const JsonValue* target, expansion_.TargetOf(uri, place));
  const std::string key = "$ref " + std::to_string(reinterpret_cast<uintptr_t>(target));
  if (const std::string* known = rules_.Find(key)) return EbnfName(*known);
  const std::string name = rules_.Begin(key);
  Place there = place;
  there.waiting.insert(target);
  TM_ASSIGN_OR_RETURN(const Ebnf body, Schema(*target, there));
  TM_RETURN_IF_ERROR(rules_.Add(name, body, place.path));
  return EbnfName(name);
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
    return FaultAt(place.path + "." + keyword.key, FindMember(schema, "type") != nullptr
                                                       ? "has no value of the schema's type"
                                                       : "has no value that the schema allows");
  }
  return rules_.Rule(EbnfPattern(PatternChoice(values)), place.path);
}

// Whole numbers are written without a point where only integers are asked for.
StatusOr<std::vector<Pattern>> SchemaTranslator::HoldingValues(const JsonMember& keyword,
                                                               const JsonValue& schema,
                                                               const Place& place) const {
  const Place inside = place.Beside("." + keyword.key);
  const bool is_list = keyword.key == "enum";
  if (is_list && (keyword.value.kind != Kind::kArray || keyword.value.items.empty())) {
    return FaultAt(inside.path, "is not an array of at least one entry");
  }
  const bool of_integers = TypesOf(schema) == std::set<std::string_view>{"integer"};
  std::vector<Pattern> values;
  std::set<std::string> seen;
  for (const JsonValue& value : is_list ? keyword.value.items : std::vector<JsonValue>{keyword.value}) {
    if (HasNonJsonNumber(value)) return FaultAt(inside.path, "NaN and Infinity are no JSON");
    std::string text = JsonText(value);
    if (FirstInvalidUtf8(text)) return FaultAt(inside.path, "half of a surrogate pair is no text");
    const StatusOr<bool> holds = ValueHolds(root_, schema, value, limits_, &work_);
    if (!holds.ok()) return FaultAt(place.path + holds.status().field(), holds.status().sentence());
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
    TM_ASSIGN_OR_RETURN(Alternatives entry, expansion_.Expanded(options.items[i], inside));
    for (size_t j = 0; j < i; ++j) {
      TM_RETURN_IF_ERROR(expansion_.CheckDisjoint(entry, entries[j], j, i, place));
    }
    entries.push_back(std::move(entry));
  }
  return EbnfChoice(alternatives);
}

// ---- types --------------------------------------------------------------------------------------

StatusOr<Ebnf> SchemaTranslator::OfType(std::string_view type, const JsonValue& schema, const Place& place) {
  if (type == "null") return EbnfLiteral("null");
  if (type == "boolean") return AnyBoolean();
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
  if (!is_count) return FaultAt(path, "is not a whole number from 0");
  if (value->number > limits_.max_repeats) {
    return FaultAt(
        path, "is " + value->text + "; at most " + std::to_string(limits_.max_repeats) + " is supported");
  }
  return std::optional<int64_t>(static_cast<int64_t>(value->number));
}

StatusOr<Ebnf> SchemaTranslator::String(const JsonValue& schema, const Place& place) {
  StatusOr<StringKeywords> keywords = StringKeywordsOf(schema);
  if (!keywords.ok()) return FaultAt(place.path + keywords.status().field(), keywords.status().sentence());
  const bool is_free = keywords->patterns.empty() && keywords->formats.empty();
  if (is_free) {
    TM_RETURN_IF_ERROR(CountOf(schema, "minLength", place).status());
    TM_RETURN_IF_ERROR(CountOf(schema, "maxLength", place).status());
  }
  if (keywords->most != kUnbounded && keywords->most < keywords->least) {
    return FaultAt(place.path + ".maxLength", "is less than minLength");
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
              : StringGrammar(*keywords, limits_, &work_, is_relaxed_ ? &overlaps_ : nullptr);
  if (!body.ok()) return FaultAt(place.path + body.status().field(), body.status().sentence());
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
      if (value->kind != Kind::kNumber) return FaultAt(path, "is not a number");
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
  if (!within.ok()) return FaultAt(sides[0].bound ? sides[0].path : sides[1].path, within.status().message());
  return EbnfPattern(*within);
}

// ---- arrays -------------------------------------------------------------------------------------

StatusOr<Ebnf> SchemaTranslator::Array(const JsonValue& schema, const Place& place) {
  TM_ASSIGN_OR_RETURN(const std::optional<int64_t> min_items, CountOf(schema, "minItems", place));
  TM_ASSIGN_OR_RETURN(const std::optional<int64_t> max_items, CountOf(schema, "maxItems", place));
  const int64_t least = min_items.value_or(0);
  if (max_items && *max_items < least) return FaultAt(place.path + ".maxItems", "is less than minItems");

  std::vector<Ebnf> first;
  const JsonValue* prefix = FindMember(schema, "prefixItems");
  if (prefix != nullptr) {
    const Place inside = place.Inside(".prefixItems");
    if (prefix->kind != Kind::kArray) return FaultAt(inside.path, "is not an array of schemas");
    for (size_t i = 0; i < prefix->items.size(); ++i) {
      TM_ASSIGN_OR_RETURN(
          Ebnf item, Schema(prefix->items[i], inside.Inside("[" + std::to_string(i) + "]"), Form::kRule));
      first.push_back(std::move(item));
    }
  }
  std::optional<Ebnf> rest;  // what items after the first ones are; none: there are none
  const JsonValue* items = FindMember(schema, "items");
  const bool closed = items != nullptr && items->kind == Kind::kBool && !items->boolean;
  if (items != nullptr && items->kind == Kind::kArray) {
    return FaultAt(place.path + ".items", "is not supported as an array; prefixItems is");
  }
  if (items != nullptr && !closed) {
    TM_ASSIGN_OR_RETURN(rest, Schema(*items, place.Inside(".items"), Form::kRule));
  } else if (items == nullptr && (prefix == nullptr || least > static_cast<int64_t>(first.size()))) {
    rest = EbnfName("value");
  }
  if (max_items && *max_items < static_cast<int64_t>(first.size())) {
    first.resize(static_cast<size_t>(*max_items));
  }
  const auto first_count = static_cast<int64_t>(first.size());
  if (max_items == first_count) rest.reset();
  if (!rest && least > first_count) {
    return FaultAt(place.path + ".minItems", "is more than the items that the schema describes");
  }

  // From the last item to the first: each is what may follow the one in front of it.
  const Ebnf comma = EbnfSequence({Space(), EbnfLiteral(","), Space()});
  std::optional<Ebnf> tail;
  if (rest) {
    const bool none_in_front = first.empty();  // then one of the rest is the array's first item, below
    const int64_t taken = none_in_front ? 1 : first_count;
    TM_ASSIGN_OR_RETURN(tail,
                        rules_.Repeated(EbnfSequence({comma, *rest}), std::max<int64_t>(0, least - taken),
                                        max_items ? *max_items - taken : kUnbounded, place.path));
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
  return rules_.Rule(EbnfSequence(whole), place.path);
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
    return FaultAt(place.path + ".properties", "is not an object of schemas");
  }
  const bool names =
      required == nullptr || (required->kind == Kind::kArray &&
                              std::all_of(required->items.begin(), required->items.end(),
                                          [](const JsonValue& name) { return name.kind == Kind::kString; }));
  if (!names) return FaultAt(place.path + ".required", "is not an array of strings");
  std::vector<Property> properties;
  const auto add = [&](const std::string& name, const JsonValue& value, const Place& at) -> Status {
    if (FirstInvalidUtf8(name)) return FaultAt(at.path, "half of a surrogate pair is no text");
    TM_ASSIGN_OR_RETURN(const Ebnf rule, Schema(value, at, Form::kRule));
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
      return FaultAt(place.path + ".required",
                     "names " + Excerpt(JsonText(name)) +
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
    TM_ASSIGN_OR_RETURN(value, Schema(*others, place.Inside(".additionalProperties"), Form::kRule));
  }
  Ebnf key = EbnfName("string");
  if (names != nullptr) {
    const Place inside = place.Inside(".propertyNames");
    if (!properties.empty()) return FaultAt(inside.path, "is not supported beside properties");
    if (names->kind != Kind::kObject) return FaultAt(inside.path, "is not a schema of strings");
    TM_RETURN_IF_ERROR(CheckSchema(*names, inside, root_, limits_));
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
    TM_ASSIGN_OR_RETURN(const Alternatives some, expansion_.Expanded(of_strings, inside));
    if (some.empty()) return FaultAt(inside.path, "is not a schema of strings");
    TM_ASSIGN_OR_RETURN(key, Schema(of_strings, inside));
  } else if (!properties.empty()) {
    TM_ASSIGN_OR_RETURN(key, KeyExcept(properties, place));
  }
  return std::optional<Ebnf>(MemberOf(key, value));
}

// Properties without names of their own: any number of members, within the schema's counts. The same key may
// come twice, so no more than one property can be promised.
StatusOr<Ebnf> SchemaTranslator::MapOf(const JsonValue& schema, const Place& place, const Ebnf& member) {
  TM_ASSIGN_OR_RETURN(const std::optional<int64_t> least, CountOf(schema, "minProperties", place));
  TM_ASSIGN_OR_RETURN(const std::optional<int64_t> most, CountOf(schema, "maxProperties", place));
  if (least.value_or(0) > 1) return FaultAt(place.path + ".minProperties", "above 1 is not supported");
  if (most && *most < least.value_or(0)) {
    return FaultAt(place.path + ".maxProperties", "is less than minProperties");
  }
  std::vector<Ebnf> whole = {EbnfLiteral("{"), Space()};
  if (most != 0) {
    const Ebnf next = EbnfSequence({Space(), EbnfLiteral(","), Space(), member});
    TM_ASSIGN_OR_RETURN(const Ebnf more, rules_.Repeated(next, 0, most ? *most - 1 : kUnbounded, place.path));
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
    return FaultAt(place.path + ".minProperties", "above the number of required properties is not supported");
  }
  if (most && (open || *most < all)) {
    return FaultAt(place.path + ".maxProperties", "below the number of properties is not supported");
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
      TM_ASSIGN_OR_RETURN(tail, rules_.Rule(tail, place.path));
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
  return rules_.Rule(EbnfSequence(whole), place.path);
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
  if (nodes.size() > static_cast<size_t>(limits_.max_size)) {  // the properties' members alone are more
    return TooLargeFault(place.path, limits_.max_size, " symbols of grammar, repetitions written out");
  }
  const CodePoints plain = CodePoints{{0, 0x1F}, {'"', '"'}, {'\\', '\\'}}.Complement();
  TM_ASSIGN_OR_RETURN(
      const Ebnf any_rest,
      rules_.Rule(EbnfPattern(PatternSequence(
                      {PatternRepeat(PatternClass(plain), 0, kUnbounded), PatternLiteral("\"")})),
                  place.path));
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
    TM_ASSIGN_OR_RETURN(rules[n], rules_.Rule(EbnfChoice(choices), place.path));
  }
  return EbnfSequence({EbnfLiteral("\""), rules[0]});
}

StatusOr<JsonValue> Parsed(std::string_view schema) {
  StatusOr<JsonValue> root = ParsePythonJson(schema);
  if (!root.ok()) return InvalidArgument("is not JSON: " + root.status().message());
  return root;
}

// A tool's arguments are an object, whatever else its schema says.
Status HoldToObject(JsonValue* root) {
  JsonValue object;
  object.kind = Kind::kString;
  object.text = "object";
  for (JsonMember& member : root->members) {
    if (member.key != "type") continue;
    const std::set<std::string_view> types = TypesOf(*root);
    const bool names_others = !TypeAlone(*root).members.empty() && !types.contains(object.text);
    if (names_others) return FaultAt(".type", "is not \"object\", which arguments of a tool are");
    member.value = object;
    return {};
  }
  root->members.push_back({"type", object});
  return {};
}

}  // namespace

StatusOr<std::string> JsonSchemaGrammar(std::string_view schema, const ConstraintLimits& limits) {
  TM_ASSIGN_OR_RETURN(const JsonValue root, Parsed(schema));
  TM_ASSIGN_OR_RETURN(SchemaGrammar grammar,
                      SchemaTranslator(root, limits, /*is_relaxed=*/false).Translate());
  return std::move(grammar.ebnf);
}

StatusOr<SchemaGrammar> RelaxedSchemaGrammar(std::string_view schema, const ConstraintLimits& limits) {
  TM_ASSIGN_OR_RETURN(const JsonValue root, Parsed(schema));
  return SchemaTranslator(root, limits, /*is_relaxed=*/true).Translate();
}

StatusOr<SchemaGrammar> ToolArgumentsGrammar(std::string_view schema, const ConstraintLimits& limits) {
  if (schema.size() > static_cast<size_t>(limits.max_bytes)) {
    return SchemaGrammar{JsonObjectGrammar(), {" (size)"}};
  }
  TM_ASSIGN_OR_RETURN(JsonValue root, Parsed(schema));
  if (root.kind != Kind::kObject) return FaultAt("", "is not an object");
  TM_RETURN_IF_ERROR(HoldToObject(&root));
  ConstraintLimits of_tool = limits;
  of_tool.max_size = limits.max_tool_size;
  return SchemaTranslator(root, of_tool, /*is_relaxed=*/true).Translate();
}

std::string JsonObjectGrammar() { return std::string("root ::= object\n") + kSharedRules; }

}  // namespace tramontane

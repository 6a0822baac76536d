#include "tests/support/random_constraints.h"

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <utility>
#include <vector>

namespace tramontane {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

int Below(std::mt19937& random, int count) {
  return static_cast<int>(random() % static_cast<uint32_t>(count));
}
bool Chance(std::mt19937& random, int percent) { return Below(random, 100) < percent; }

template <typename T>
T OneOf(std::mt19937& random, const std::vector<T>& values) {
  return values[static_cast<size_t>(Below(random, static_cast<int>(values.size())))];
}

// ---- regular expressions ------------------------------------------------------------------------

std::string RandomAlternatives(std::mt19937& random, int depth, bool* may_be_empty);

std::string RandomElement(std::mt19937& random, int depth, bool* may_be_empty) {
  *may_be_empty = false;
  static const std::vector<std::string> kSimple = {
      "a",      "b",        "x",       "Z",         "7",      "0",       "-",        "_",   " ",
      "@",      ",",        "\\.",     "\\/",       "\\(",    "\\{",     "\\\\",     "\\n", "\\x41",
      "é",      ".",        "\\d",     "\\w",       "\\s",    "\\D",     "\\W",      "\\S", "[a-f]",
      "[^a-z]", "[0-9A-F]", "[a\\-z]", "[^\\d\\s]", "[\\w.]", "[x-z_@]", "[^\"\\\\]"};
  if (depth > 0 && Chance(random, 30)) {
    const std::string kind = OneOf<std::string>(random, {"(", "(?:"});
    return kind + RandomAlternatives(random, depth - 1, may_be_empty) + ")";
  }
  return OneOf(random, kSimple);
}

std::string RandomAlternatives(std::mt19937& random, int depth, bool* may_be_empty) {
  std::string pattern;
  *may_be_empty = false;
  const int alternatives = Chance(random, 60) ? 1 : 2 + Below(random, 2);
  for (int a = 0; a < alternatives; ++a) {
    if (a > 0) pattern += '|';
    bool alternative_may_be_empty = true;
    for (int e = 1 + Below(random, 4); e > 0; --e) {
      bool element_may_be_empty = false;
      pattern += RandomElement(random, depth, &element_may_be_empty);
      // (Repetitions of what may be empty send the judge's backtracking astray, not the grammar.)
      if (!element_may_be_empty && Chance(random, 45)) {
        const int least = Below(random, 4);
        const std::string count = std::to_string(least);
        const int kind = Below(random, 8);
        if (kind == 0) pattern += '*';
        if (kind == 1) pattern += '+';
        if (kind == 2) pattern += '?';
        if (kind == 3) pattern += '{' + std::to_string(least + 1) + '}';
        if (kind == 4) pattern += '{' + count + ",}";
        if (kind == 7) pattern += "{," + std::to_string(least + 1) + '}';
        if (kind == 5 || kind == 6)
          pattern += '{' + count + ',' + std::to_string(least + 1 + Below(random, 5)) + '}';
        element_may_be_empty = kind == 0 || kind == 2 || kind == 7 || (kind >= 4 && least == 0);
        if (Chance(random, 10)) pattern += '?';
      }
      alternative_may_be_empty = alternative_may_be_empty && element_may_be_empty;
    }
    *may_be_empty = *may_be_empty || alternative_may_be_empty;
  }
  return pattern;
}

// Code points: the judge counts characters, not bytes.
std::wstring Wide(const std::string& utf8) {
  std::wstring wide;
  for (size_t i = 0; i < utf8.size();) {
    const auto byte = static_cast<unsigned char>(utf8[i]);
    const int length = byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
    uint32_t value = length == 1 ? byte : byte & (0x7Fu >> length);
    for (int k = 1; k < length; ++k)
      value = value << 6 | (static_cast<unsigned char>(utf8.at(i + k)) & 0x3Fu);
    wide += static_cast<wchar_t>(value);
    i += static_cast<size_t>(length);
  }
  return wide;
}

// The standard library reads {,n} as no repetition; it is {0,n}.
std::wregex Compiled(const std::string& pattern) {
  std::string spelled;
  for (size_t i = 0; i < pattern.size(); ++i) {
    spelled += pattern[i];
    if (pattern[i] == '\\') {
      spelled += pattern.at(++i);
    } else if (pattern[i] == '{' && pattern.at(i + 1) == ',') {
      spelled += '0';
    }
  }
  return std::wregex(Wide(spelled));
}

// ---- schemas ------------------------------------------------------------------------------------

OrderedJson RandomValue(std::mt19937& random, int depth) {
  switch (Below(random, depth > 0 ? 8 : 6)) {
    case 0:
      return nullptr;
    case 1:
      return Chance(random, 50);
    case 2:
      return Below(random, 2000) - 1000;
    case 3:
      return (Below(random, 2000) - 1000) / 8.0;
    case 4:
    case 5:
      return OneOf<std::string>(random, {"", "red", "a\"b", "back\\slash", "né", "line\nend", "𝄞", "</s>"});
    case 6:
      return OrderedJson::array({RandomValue(random, depth - 1), RandomValue(random, depth - 1)});
    default:
      return OrderedJson{{"k", RandomValue(random, depth - 1)}};
  }
}

std::string RandomFormat(std::mt19937& random) {
  return OneOf<std::string>(random, {"date",
                                     "time",
                                     "date-time",
                                     "uuid",
                                     "uuid4",
                                     "ipv4",
                                     "ipv6",
                                     "email",
                                     "hostname",
                                     "uri",
                                     "duration",
                                     "idn-email",
                                     "idn-hostname",
                                     "iri",
                                     "iri-reference",
                                     "uri-reference",
                                     "uri-template",
                                     "json-pointer",
                                     "relative-json-pointer",
                                     "regex"});
}

class SchemaMaker {
 public:
  explicit SchemaMaker(std::mt19937& random) : random_(random) {}

  OrderedJson Make() {
    OrderedJson schema = Schema(3);
    if (uses_definitions_) {
      schema["$defs"]["leaf"] = {{"type", {"integer", "null"}}};
      schema["$defs"]["node"] = {{"type", "object"},
                                 {"properties",
                                  {{"value", {{"type", "boolean"}}},
                                   {"next", {{"anyOf", {{{"type", "null"}}, {{"$ref", "#/$defs/node"}}}}}}}},
                                 {"required", {"value", "next"}}};
    }
    return schema;
  }

 private:
  OrderedJson Schema(int depth) {
    switch (Below(random_, depth > 0 ? 14 : 7)) {
      case 0:
        return {{"type", OneOf<std::string>(random_, {"null", "boolean", "integer", "number", "string"})}};
      case 1:
        return String();
      case 2:
      case 3:
        return Number();
      case 4:
        return Enumeration();
      case 5: {
        uses_definitions_ = true;
        OrderedJson schema = {{"$ref", OneOf<std::string>(random_, {"#/$defs/leaf", "#/%24defs/node"})}};
        if (Chance(random_, 40)) schema["minimum"] = 0;
        return schema;
      }
      case 6:
        return {{"type", {"string", "integer"}}, {"maxLength", 3}, {"minimum", -20}};
      case 7:
        return {{"anyOf", {Schema(depth - 1), Schema(depth - 1)}}};
      case 8:
        return {{"oneOf", {Number(), String(), {{"type", "null"}}}}};
      case 9:
        return Array(depth);
      case 10:
        return {{"type", "object"},
                {"properties", {{"a", Schema(0)}, {"b", Schema(0)}}},
                {"anyOf", {{{"required", {"a"}}}, {{"required", {"b"}}, {"minProperties", 1}}}}};
      case 11: {
        OrderedJson object = Object(1);
        for (const char* closing : {"additionalProperties", "propertyNames", "maxProperties"}) {
          object.erase(closing);
        }
        return {
            {"allOf",
             {object,
              {{"type", {"object", "null"}}, {"properties", {{"zz", Schema(0)}}}, {"required", {"zz"}}}}}};
      }
      default:
        return Object(depth);
    }
  }

  OrderedJson String() {
    OrderedJson schema = {{"type", "string"}};
    const int kind = Below(random_, 7);
    if (kind == 0) {
      schema["minLength"] = Below(random_, 4);
      schema["maxLength"] = schema["minLength"].get<int>() + Below(random_, 9);
    } else if (kind == 1) {
      bool may_be_empty = false;
      std::string pattern = RandomAlternatives(random_, 1, &may_be_empty);
      if (pattern.find('|') == std::string::npos && Chance(random_, 70)) pattern = "^" + pattern + "$";
      schema["pattern"] = pattern;
    } else if (kind == 2) {
      schema["format"] = RandomFormat(random_);
    } else if (kind == 3) {  // z is a way out: else it could be that no text is so
      bool may_be_empty = false;
      schema["pattern"] = "^(?:" + RandomAlternatives(random_, 1, &may_be_empty) + "|z*)$";
      schema["minLength"] = Below(random_, 6);
      schema["maxLength"] = schema["minLength"].get<int>() + Below(random_, 12);
    } else if (kind == 4) {
      bool may_be_empty = false;
      const auto look = OneOf<std::string>(random_, {"(?!a)", "(?!-|\\d)", "(?!.*--)", "(?=.{0,3}$)",
                                                     "(?!.*[^z]$)", "(?=.*z|.?)", "(?!(?:ab|[@7])+$)"});
      schema["pattern"] = "^" + look + "(?:" + RandomElement(random_, 0, &may_be_empty) + "{1,3}" +
                          RandomElement(random_, 0, &may_be_empty) + "*|z{1,3})$";
    } else if (kind == 5) {
      const auto [format, pattern] =
          OneOf<std::pair<std::string, std::string>>(random_, {{"date", "^20"},
                                                               {"date-time", "Z$"},
                                                               {"uri", "^https://"},
                                                               {"email", "^[a-m.]+@"},
                                                               {"ipv4", "^1"},
                                                               {"uuid", "^[0-9a-f-]+$"},
                                                               {"hostname", "^[a-z]+\\."},
                                                               {"ulid", "^[0-9A-Z]{5}$"}});
      schema["format"] = format;
      schema["pattern"] = pattern;
    } else if (kind == 6) {
      schema["format"] = RandomFormat(random_);
      schema["minLength"] = Below(random_, 2);
      schema["maxLength"] = 36 + Below(random_, 30);
    }
    return schema;
  }

  OrderedJson Number() {
    const bool integer = Chance(random_, 50);
    OrderedJson schema = {{"type", integer ? "integer" : "number"}};
    const auto bound = [&]() -> OrderedJson {
      const int whole = Chance(random_, 50) ? Below(random_, 40) - 20 : Below(random_, 40000) - 20000;
      if (integer) return whole;
      return whole / OneOf<double>(random_, {1, 2, 10, 1000});
    };
    const OrderedJson a = bound();
    const OrderedJson b = bound();
    if (a == b) return schema;
    const bool has_least = Chance(random_, 70);
    const bool has_most = Chance(random_, 70);
    // Apart by more than one, or the exclusive ones may leave nothing.
    if (has_least && has_most && std::abs(a.get<double>() - b.get<double>()) <= 1) return schema;
    if (has_least) schema[OneOf<std::string>(random_, {"minimum", "exclusiveMinimum"})] = std::min(a, b);
    if (has_most) schema[OneOf<std::string>(random_, {"maximum", "exclusiveMaximum"})] = std::max(a, b);
    return schema;
  }

  OrderedJson Enumeration() {
    if (Chance(random_, 30)) return {{"const", RandomValue(random_, 2)}};
    if (Chance(random_, 20))
      return {{"enum", {"a", "bcd", 1, 2.0, 70, "z"}}, {"minLength", 2}, {"minimum", 2}};
    OrderedJson values = OrderedJson::array();
    for (int n = 1 + Below(random_, 5); n > 0; --n) values.push_back(RandomValue(random_, 1));
    return {{"enum", values}};
  }

  OrderedJson Array(int depth) {
    OrderedJson schema = {{"type", "array"}};
    int first = 0;
    if (Chance(random_, 30)) {
      schema["prefixItems"] = OrderedJson::array();
      for (first = 1 + Below(random_, 3); static_cast<int>(schema["prefixItems"].size()) < first;) {
        schema["prefixItems"].push_back(Schema(depth - 1));
      }
    }
    const bool open = first == 0 || Chance(random_, 50);
    schema["items"] = open ? Schema(depth - 1) : OrderedJson(false);
    const int least = Below(random_, open ? 4 : first + 1);
    if (Chance(random_, 50)) schema["minItems"] = least;
    if (Chance(random_, 50)) schema["maxItems"] = least + Below(random_, 4);
    return schema;
  }

  OrderedJson Object(int depth) {
    OrderedJson schema = {{"type", "object"}};
    if (Chance(random_, 20)) {
      schema["additionalProperties"] = Schema(depth - 1);
      if (Chance(random_, 40)) schema["propertyNames"] = {{"pattern", "^[a-c]{1,3}$"}};
      if (Chance(random_, 40)) schema["maxProperties"] = 1 + Below(random_, 3);
      return schema;
    }
    const std::vector<std::string> names = {"a", "ab", "b", "name", "quo\"te", "né", ""};
    OrderedJson required = OrderedJson::array();
    for (const std::string& name : names) {
      if (!Chance(random_, 45)) continue;
      schema["properties"][name] = Schema(depth - 1);
      if (Chance(random_, 50)) required.push_back(name);
    }
    if (!required.empty()) schema["required"] = required;
    if (Chance(random_, 40))
      schema["additionalProperties"] = Chance(random_, 50) ? OrderedJson(false) : Schema(depth - 1);
    return schema;
  }

  std::mt19937& random_;
  bool uses_definitions_ = false;
};

// ---- the judge of schemas -----------------------------------------------------------------------

class Judge {
 public:
  explicit Judge(const Json& root) : root_(root) {}

  std::string Fault(const Json& schema, const Json& value) const {
    if (schema.is_boolean()) return schema.get<bool>() ? "" : "false";
    if (schema.contains("$ref")) {
      std::string pointer = schema["$ref"].get<std::string>().substr(1);
      if (pointer.starts_with("/%24")) pointer.replace(1, 3, "$");
      if (const std::string fault = Fault(root_.at(Json::json_pointer(pointer)), value); !fault.empty())
        return fault;
    }
    for (const Json& all : schema.value("allOf", Json::array())) {
      if (const std::string fault = Fault(all, value); !fault.empty()) return fault;
    }
    if (schema.contains("const") && value != schema["const"]) return "is not the constant";
    if (schema.contains("enum") &&
        std::find(schema["enum"].begin(), schema["enum"].end(), value) == schema["enum"].end()) {
      return "is none of the enumeration: " + value.dump();
    }
    for (const char* keyword : {"anyOf", "oneOf"}) {
      if (!schema.contains(keyword)) continue;
      int holds = 0;
      for (const Json& option : schema[keyword]) holds += Fault(option, value).empty();
      if (holds == 0 || (holds > 1 && std::string(keyword) == "oneOf")) {
        return std::to_string(holds) + " of " + keyword + " hold for " + value.dump();
      }
    }
    if (schema.contains("type")) {
      const Json types = schema["type"].is_array() ? schema["type"] : Json::array({schema["type"]});
      bool holds = false;
      for (const Json& type : types) holds = holds || HasType(value, type.get<std::string>());
      if (!holds) return "is no " + schema["type"].dump() + ": " + value.dump();
    }
    if (value.is_string()) return StringFault(schema, value.get<std::string>());
    if (value.is_number()) return NumberFault(schema, value.get<double>());
    if (value.is_array()) return ArrayFault(schema, value);
    if (value.is_object()) return ObjectFault(schema, value);
    return "";
  }

 private:
  static bool HasType(const Json& value, const std::string& type) {
    if (type == "null") return value.is_null();
    if (type == "boolean") return value.is_boolean();
    if (type == "integer") return value.is_number() && std::floor(value.get<double>()) == value.get<double>();
    if (type == "number") return value.is_number();
    if (type == "string") return value.is_string();
    return type == "array" ? value.is_array() : value.is_object();
  }

  static std::string StringFault(const Json& schema, const std::string& text) {
    const auto length = static_cast<int64_t>(Wide(text).size());
    if (length < schema.value("minLength", int64_t{0})) return "is too short: " + text;
    if (length > schema.value("maxLength", INT64_MAX)) return "is too long: " + text;
    if (!schema.contains("pattern")) return "";
    return std::regex_search(Wide(text), Compiled(schema["pattern"].get<std::string>()))
               ? ""
               : schema["pattern"].dump() + " is not in " + text;
  }

  static std::string NumberFault(const Json& schema, double value) {
    const double infinity = HUGE_VAL;
    const bool holds = value >= schema.value("minimum", -infinity) &&
                       value <= schema.value("maximum", infinity) &&
                       value > schema.value("exclusiveMinimum", -infinity) &&
                       value < schema.value("exclusiveMaximum", infinity);
    return holds ? "" : "is out of bounds: " + std::to_string(value);
  }

  std::string ArrayFault(const Json& schema, const Json& value) const {
    const auto count = static_cast<int64_t>(value.size());
    if (count < schema.value("minItems", int64_t{0}) || count > schema.value("maxItems", INT64_MAX)) {
      return "has " + std::to_string(count) + " items";
    }
    const Json first = schema.value("prefixItems", Json::array());
    for (size_t i = 0; i < value.size(); ++i) {
      const Json item = i < first.size() ? first[i] : schema.value("items", Json(true));
      if (const std::string fault = Fault(item, value[i]); !fault.empty()) return fault;
    }
    return "";
  }

  std::string ObjectFault(const Json& schema, const Json& value) const {
    for (const Json& name : schema.value("required", Json::array())) {
      if (!value.contains(name.get<std::string>())) return "lacks " + name.dump();
    }
    if (static_cast<int64_t>(value.size()) > schema.value("maxProperties", INT64_MAX))
      return "has many properties";
    const Json properties = schema.value("properties", Json::object());
    for (const auto& [name, member] : value.items()) {
      const Json of_name =
          properties.contains(name) ? properties[name] : schema.value("additionalProperties", Json(true));
      if (const std::string fault = Fault(of_name, member); !fault.empty()) return name + ": " + fault;
      if (schema.contains("propertyNames")) {
        if (const std::string fault = Fault(schema["propertyNames"], name); !fault.empty()) return fault;
      }
    }
    return "";
  }

  const Json& root_;
};

}  // namespace

std::string RandomSchema(std::mt19937& random) { return SchemaMaker(random).Make().dump(); }

std::string RandomFormatSchema(std::mt19937& random) {
  return Json{{"type", "string"}, {"format", RandomFormat(random)}}.dump();
}

std::string RandomRegex(std::mt19937& random) {
  bool may_be_empty = false;
  return RandomAlternatives(random, 2, &may_be_empty);
}

std::string SchemaFault(const std::string& schema, const std::string& text) {
  const Json root = Json::parse(schema);
  const Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) return "is not JSON";
  return Judge(root).Fault(root, value);
}

std::string RegexFault(const std::string& pattern, const std::string& text) {
  return std::regex_match(Wide(text), Compiled(pattern)) ? "" : "is not matched";
}

}  // namespace tramontane

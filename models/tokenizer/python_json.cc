#include "models/tokenizer/python_json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "kernels/core/utf8.h"

namespace tramontane {
namespace {

// The nearest double of a JSON number; infinite or zero where it has none.
double ToDouble(std::string_view literal) {
  double value = 0;
  const char* const end = literal.data() + literal.size();
  if (std::from_chars(literal.data(), end, value).ec == std::errc()) return value;
  // Too large or too small: the decimal exponent of the first digit that is not 0 tells which.
  const bool negative = literal.front() == '-';
  if (negative) literal.remove_prefix(1);
  const size_t e = std::min(literal.find_first_of("eE"), literal.size());
  const size_t point = std::min(literal.find('.'), e);
  const size_t first = literal.find_first_of("123456789");
  bool large = first < point;
  if (e < literal.size()) {
    std::string_view exponent_text = literal.substr(e + 1);
    if (exponent_text.front() == '+') exponent_text.remove_prefix(1);
    int64_t exponent = 0;
    if (std::from_chars(exponent_text.data(), end, exponent).ec == std::errc()) {
      exponent += static_cast<int64_t>(point) - static_cast<int64_t>(first);
      large = exponent > 0;
    } else {
      large = exponent_text.front() != '-';
    }
  }
  const double magnitude = large ? std::numeric_limits<double>::infinity() : 0.0;
  return negative ? -magnitude : magnitude;
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  StatusOr<JsonValue> Document();

 private:
  Status Value(JsonValue* value, int depth);
  Status Array(JsonValue* value, int depth);
  Status Object(JsonValue* value, int depth);
  Status Number(JsonValue* value);
  Status String(std::string* value);
  Status Escape(std::string* value);
  std::optional<uint32_t> FourHexDigits();

  void SkipSpace() {
    while (at_ < text_.size() && std::string_view(" \t\n\r").find(text_[at_]) != std::string_view::npos)
      ++at_;
  }
  // Takes `word` if it comes next.
  bool Take(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  Status NotJson(const char* why) const {
    return InvalidArgument("not JSON at byte " + std::to_string(at_) + ": " + why);
  }

  std::string_view text_;
  size_t at_ = 0;
};

StatusOr<JsonValue> Parser::Document() {
  JsonValue value;
  SkipSpace();
  TM_RETURN_IF_ERROR(Value(&value, 0));
  SkipSpace();
  if (at_ < text_.size()) return NotJson("something follows the value");
  return value;
}

Status Parser::Value(JsonValue* value, int depth) {
  if (at_ == text_.size()) return NotJson("a value is missing");
  const char first = text_[at_];
  if (first == '[' || first == '{') {
    if (depth == kMaxPythonJsonDepth) {
      return ResourceExhausted("JSON nested deeper than " + std::to_string(kMaxPythonJsonDepth));
    }
    ++at_;
    return first == '[' ? Array(value, depth + 1) : Object(value, depth + 1);
  }
  if (first == '"') {
    ++at_;
    value->kind = JsonValue::Kind::kString;
    return String(&value->text);
  }
  if (Take("null")) return Status::Ok();
  const bool is_true = Take("true");
  if (is_true || Take("false")) {
    value->kind = JsonValue::Kind::kBool;
    value->boolean = is_true;
    return Status::Ok();
  }
  return Number(value);
}

Status Parser::Array(JsonValue* value, int depth) {
  value->kind = JsonValue::Kind::kArray;
  SkipSpace();
  if (Take("]")) return Status::Ok();
  while (true) {
    SkipSpace();
    TM_RETURN_IF_ERROR(Value(&value->items.emplace_back(), depth));
    SkipSpace();
    if (Take("]")) return Status::Ok();
    if (!Take(",")) return NotJson("an array goes on with ',' or ']'");
  }
}

Status Parser::Object(JsonValue* value, int depth) {
  value->kind = JsonValue::Kind::kObject;
  SkipSpace();
  if (Take("}")) return Status::Ok();
  std::unordered_map<std::string, size_t> places;
  while (true) {
    SkipSpace();
    if (!Take("\"")) return NotJson("a key in double quotes is missing");
    std::string key;
    TM_RETURN_IF_ERROR(String(&key));
    SkipSpace();
    if (!Take(":")) return NotJson("':' is missing");
    SkipSpace();
    JsonValue member;
    TM_RETURN_IF_ERROR(Value(&member, depth));
    const auto [place, is_new] = places.emplace(key, value->members.size());
    if (is_new) {
      value->members.push_back({std::move(key), std::move(member)});
    } else {
      value->members[place->second].value = std::move(member);
    }
    SkipSpace();
    if (Take("}")) return Status::Ok();
    if (!Take(",")) return NotJson("an object goes on with ',' or '}'");
  }
}

Status Parser::Number(JsonValue* value) {
  value->kind = JsonValue::Kind::kNumber;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (Take("NaN")) {
    value->number = std::numeric_limits<double>::quiet_NaN();
  } else if (Take("Infinity")) {
    value->number = kInfinity;
  } else if (Take("-Infinity")) {
    value->number = -kInfinity;
  } else {
    const auto digits_from = [this](size_t at) {
      while (at < text_.size() && IsDigit(text_[at])) ++at;
      return at;
    };
    const size_t begin = at_;
    const size_t first_digit = begin + (text_[begin] == '-' ? 1 : 0);
    size_t end = digits_from(first_digit);
    if (end == first_digit) return NotJson("a value is missing");
    if (text_[first_digit] == '0') end = first_digit + 1;  // "01" is 0, then something
    const size_t integer_end = end;
    if (end < text_.size() && text_[end] == '.' && digits_from(end + 1) > end + 1) end = digits_from(end + 1);
    if (end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
      const bool has_sign = end + 1 < text_.size() && (text_[end + 1] == '+' || text_[end + 1] == '-');
      const size_t exponent = end + (has_sign ? 2 : 1);
      if (digits_from(exponent) > exponent) end = digits_from(exponent);
    }
    const std::string_view literal = text_.substr(begin, end - begin);
    at_ = end;
    value->number = ToDouble(literal);
    if (end == integer_end) {
      if (integer_end - first_digit > kMaxJsonIntegerDigits) {
        return ResourceExhausted("a JSON integer of " + std::to_string(integer_end - first_digit) +
                                 " digits, the limit is " + std::to_string(kMaxJsonIntegerDigits));
      }
      value->text = literal == "-0" ? "0" : literal;
      return Status::Ok();
    }
  }
  value->text = PythonFloat(value->number);
  return Status::Ok();
}

Status Parser::String(std::string* value) {
  while (true) {
    const size_t run = at_;
    while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\\' &&
           static_cast<uint8_t>(text_[at_]) >= 0x20) {
      ++at_;
    }
    *value += text_.substr(run, at_ - run);
    if (at_ == text_.size()) return NotJson("the string does not end");
    if (text_[at_] == '"') {
      ++at_;
      return Status::Ok();
    }
    if (text_[at_] != '\\') return NotJson("a control character inside a string");
    ++at_;
    TM_RETURN_IF_ERROR(Escape(value));
  }
}

Status Parser::Escape(std::string* value) {
  static constexpr std::string_view kLetters = "\"\\/bfnrt";
  static constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
  if (at_ == text_.size()) return NotJson("the string does not end");
  if (text_[at_] != 'u') {
    const size_t index = kLetters.find(text_[at_]);
    if (index == std::string_view::npos) return NotJson("no such escape");
    *value += kMeanings[index];
    ++at_;
    return Status::Ok();
  }
  ++at_;
  const std::optional<uint32_t> unit = FourHexDigits();
  if (!unit) return NotJson("\\u wants four hexadecimal digits");
  uint32_t code_point = *unit;
  if (*unit >= 0xD800 && *unit < 0xDC00) {  // the first half of a pair, if the other half follows
    const size_t after_first = at_;
    const std::optional<uint32_t> second = Take("\\u") ? FourHexDigits() : std::nullopt;
    if (second && *second >= 0xDC00 && *second < 0xE000) {
      code_point = 0x10000 + ((*unit - 0xD800) << 10) + (*second - 0xDC00);
    } else {
      at_ = after_first;
    }
  }
  AppendUtf8(code_point, value);
  return Status::Ok();
}

std::optional<uint32_t> Parser::FourHexDigits() {
  if (text_.size() - at_ < 4) return std::nullopt;
  uint32_t value = 0;
  const char* const begin = text_.data() + at_;
  if (std::from_chars(begin, begin + 4, value, 16).ptr != begin + 4) return std::nullopt;
  at_ += 4;
  return value;
}

}  // namespace

std::string PythonFloat(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific).ptr;
  const std::string_view scientific(buffer, static_cast<size_t>(end - buffer));  // -d.ddde+dd
  const size_t e = scientific.find('e');
  const size_t first_digit = scientific[0] == '-' ? 1 : 0;
  const std::string sign(scientific.substr(0, first_digit));
  std::string digits(1, scientific[first_digit]);
  if (first_digit + 1 < e) digits += scientific.substr(first_digit + 2, e - first_digit - 2);
  int exponent = 0;
  const size_t exponent_digits = scientific[e + 1] == '+' ? e + 2 : e + 1;
  std::from_chars(scientific.data() + exponent_digits, end, exponent);

  if (exponent < -4 || exponent >= 16) {
    std::string mantissa = digits.substr(0, 1);
    if (digits.size() > 1) mantissa += "." + digits.substr(1);
    const std::string magnitude = std::to_string(std::abs(exponent));
    return sign + mantissa + (exponent < 0 ? "e-" : "e+") + (magnitude.size() < 2 ? "0" : "") + magnitude;
  }
  if (exponent < 0) return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  const auto whole_digits = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole_digits)
    return sign + digits + std::string(whole_digits - digits.size(), '0') + ".0";
  return sign + digits.substr(0, whole_digits) + "." + digits.substr(whole_digits);
}

StatusOr<JsonValue> ParsePythonJson(std::string_view text) { return Parser(text).Document(); }

void AppendPythonJson(const JsonValue& value, std::string* out) {
  switch (value.kind) {
    case JsonValue::Kind::kNull:
      *out += "null";
      break;
    case JsonValue::Kind::kBool:
      *out += value.boolean ? "true" : "false";
      break;
    case JsonValue::Kind::kNumber:
      *out += value.text;
      break;
    case JsonValue::Kind::kString:
      AppendPythonJsonString(value.text, out);
      break;
    case JsonValue::Kind::kArray: {
      const char* separator = "[";
      for (const JsonValue& item : value.items) {
        *out += separator;
        AppendPythonJson(item, out);
        separator = ", ";
      }
      *out += value.items.empty() ? "[]" : "]";
      break;
    }
    case JsonValue::Kind::kObject: {
      const char* separator = "{";
      for (const auto& [key, member] : value.members) {
        *out += separator;
        AppendPythonJsonString(key, out);
        *out += ": ";
        AppendPythonJson(member, out);
        separator = ", ";
      }
      *out += value.members.empty() ? "{}" : "}";
      break;
    }
  }
}

void AppendPythonJsonString(std::string_view text, std::string* out) {
  *out += '"';
  for (const char c : text) {
    switch (c) {
      case '"':
        *out += "\\\"";
        break;
      case '\\':
        *out += "\\\\";
        break;
      case '\b':
        *out += "\\b";
        break;
      case '\f':
        *out += "\\f";
        break;
      case '\n':
        *out += "\\n";
        break;
      case '\r':
        *out += "\\r";
        break;
      case '\t':
        *out += "\\t";
        break;
      default:
        if (static_cast<uint8_t>(c) < 0x20) {
          static constexpr char kHex[] = "0123456789abcdef";
          *out += "\\u00";
          *out += kHex[static_cast<uint8_t>(c) >> 4];
          *out += kHex[static_cast<uint8_t>(c) & 15];
        } else {
          *out += c;
        }
    }
  }
  *out += '"';
}

}  // namespace tramontane

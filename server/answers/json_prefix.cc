#include "server/answers/json_prefix.h"

#include "kernels/core/utf8.h"

namespace tramontane {
namespace {

int HexDigit(char c) {
  if (IsDigit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

}  // namespace

std::string_view TrimmedJson(std::string_view text) {
  const size_t begin = text.find_first_not_of(kJsonBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kJsonBlanks) + 1 - begin);
}

bool JsonPrefix::Take(char c) {
  switch (state_) {
    case State::kString:
      return TakeInString(c);
    case State::kEscape:
      return TakeEscape(c);
    case State::kUnicode:
      return TakeUnicode(c);
    case State::kNumber:
      return TakeInNumber(c);
    case State::kLiteral:
      if (c != literal_.front()) return false;
      literal_.remove_prefix(1);
      if (literal_.empty()) state_ = State::kBehindValue;
      return true;
    default:
      return IsJsonBlank(c) || TakeBetween(c);
  }
}

bool JsonPrefix::TakeBetween(char c) {
  switch (state_) {
    case State::kKeyOrEnd:
      if (c == '}') return Close();
      [[fallthrough]];
    case State::kKey:
      if (c != '"') return false;
      is_key_ = true;
      state_ = State::kString;
      return true;
    case State::kColon:
      if (c != ':') return false;
      state_ = State::kValue;
      return true;
    case State::kElementOrEnd:
      if (c == ']') return Close();
      [[fallthrough]];
    case State::kValue:
      return BeginValue(c);
    default:
      if (objects_.empty()) return false;
      if (c == (objects_.back() ? '}' : ']')) return Close();
      if (c != ',') return false;
      state_ = objects_.back() ? State::kKey : State::kValue;
      return true;
  }
}

bool JsonPrefix::BeginValue(char c) {
  switch (c) {
    case '{':
      return Open(/*is_object=*/true, State::kKeyOrEnd);
    case '[':
      return Open(/*is_object=*/false, State::kElementOrEnd);
    case '"':
      is_key_ = false;
      state_ = State::kString;
      return true;
    case 't':
    case 'f':
    case 'n':
      literal_ = c == 't' ? "rue" : c == 'f' ? "alse" : "ull";
      state_ = State::kLiteral;
      return true;
    default:
      if (c != '-' && !IsDigit(c)) return false;
      number_ = c == '-' ? Number::kMinus : c == '0' ? Number::kZero : Number::kWhole;
      state_ = State::kNumber;
      return true;
  }
}

bool JsonPrefix::Open(bool is_object, State state) {
  if (objects_.size() >= kMaxJsonDepth) return false;
  objects_.push_back(is_object);
  state_ = state;
  return true;
}

bool JsonPrefix::Close() {
  objects_.pop_back();
  state_ = State::kBehindValue;
  return true;
}

// No overlong forms, no surrogates, nothing beyond U+10FFFF.
bool JsonPrefix::TakeInString(char c) {
  const auto byte = static_cast<uint8_t>(c);
  if (more_bytes_ > 0) {
    if (byte < low_ || byte > high_) return false;
    low_ = 0x80;
    high_ = 0xBF;
    --more_bytes_;
    return true;
  }
  if (byte < 0x20 || (needs_low_ && c != '\\')) return false;
  if (c == '"') state_ = is_key_ ? State::kColon : State::kBehindValue;
  if (c == '\\') state_ = State::kEscape;
  if (byte < 0x80) return true;
  if (byte < 0xC2 || byte > 0xF4) return false;
  more_bytes_ = byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
  low_ = byte == 0xE0 ? 0xA0 : byte == 0xF0 ? 0x90 : 0x80;
  high_ = byte == 0xED ? 0x9F : byte == 0xF4 ? 0x8F : 0xBF;
  return true;
}

bool JsonPrefix::TakeEscape(char c) {
  if (c == 'u') {
    digits_ = 0;
    unit_ = 0;
    state_ = State::kUnicode;
    return true;
  }
  constexpr std::string_view kEscaped = "\"\\/bfnrt";
  if (needs_low_ || kEscaped.find(c) == std::string_view::npos) return false;
  state_ = State::kString;
  return true;
}

// Surrogates come in pairs, which two of their digits tell.
bool JsonPrefix::TakeUnicode(char c) {
  const int digit = HexDigit(c);
  if (digit < 0 || (digits_ == 0 && needs_low_ && digit != 0xD)) return false;
  const auto unit = static_cast<uint16_t>(unit_ << 4 | digit);
  if (digits_ == 1 && (unit >= 0xDC && unit <= 0xDF) != needs_low_) return false;
  if (digits_ == 3) {
    needs_low_ = unit >= 0xD800 && unit < 0xDC00;
    state_ = State::kString;
  }
  unit_ = unit;
  ++digits_;
  return true;
}

bool JsonPrefix::TakeInNumber(char c) {
  switch (number_) {
    case Number::kMinus:
      if (!IsDigit(c)) return false;
      number_ = c == '0' ? Number::kZero : Number::kWhole;
      return true;
    case Number::kPoint:
      if (!IsDigit(c)) return false;
      number_ = Number::kFraction;
      return true;
    case Number::kE:
    case Number::kSign: {
      const bool is_sign = number_ == Number::kE && (c == '+' || c == '-');
      if (!is_sign && !IsDigit(c)) return false;
      number_ = is_sign ? Number::kSign : Number::kExponent;
      return true;
    }
    default:  // it may end here
      break;
  }
  if (IsDigit(c)) return number_ != Number::kZero;
  const bool is_whole = number_ == Number::kZero || number_ == Number::kWhole;
  if (c == '.' && is_whole) {
    number_ = Number::kPoint;
  } else if ((c == 'e' || c == 'E') && number_ != Number::kExponent) {
    number_ = Number::kE;
  } else if (IsJsonBlank(c)) {
    state_ = State::kBehindValue;
  } else {
    state_ = State::kBehindValue;
    if (TakeBetween(c)) return true;
    state_ = State::kNumber;
    return false;
  }
  return true;
}

bool IsJsonObject(std::string_view text) {
  if (!text.starts_with('{')) return false;
  JsonPrefix json;
  for (const char c : text) {
    if (!json.Take(c)) return false;
  }
  return json.is_behind_value() && json.depth() == 0;
}

}  // namespace tramontane

#include "server/gateway/openai_json.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

namespace tramontane {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

Status TooMany(const std::string& what, int64_t limit, size_t byte) {
  return InvalidArgument("the JSON has more than " + std::to_string(limit) + " " + what + ", at byte " +
                         std::to_string(byte));
}

// The byte after the string that begins at `quote`; the end of the text if it does not end.
size_t SkipString(std::string_view text, size_t quote) {
  for (size_t at = quote + 1; at < text.size(); ++at) {
    if (text[at] == '"') return at + 1;
    if (text[at] == '\\') ++at;
  }
  return text.size();
}

// Counts what a parser would build from the punctuation outside strings, without building it. In a text that
// is not JSON the counts mean nothing, and the parser says so afterwards.
Status CheckLimits(std::string_view text, const JsonLimits& limits) {
  std::vector<int32_t> keys;  // of each open bracket
  int64_t values = 1;
  int64_t total_keys = 0;
  for (size_t at = 0; at < text.size();) {
    switch (text[at]) {
      case '"':
        at = SkipString(text, at);
        continue;
      case '[':
      case '{':
        keys.push_back(0);
        ++values;
        break;
      case ']':
      case '}':
        if (!keys.empty()) keys.pop_back();
        break;
      case ',':
        ++values;
        break;
      case ':':
        ++total_keys;
        if (!keys.empty()) ++keys.back();
        break;
      default:
        break;
    }
    if (keys.size() > static_cast<size_t>(limits.max_depth)) {
      return TooMany("brackets inside each other", limits.max_depth, at);
    }
    if (values > limits.max_values) return TooMany("values", limits.max_values, at);
    if (total_keys > limits.max_total_keys) return TooMany("keys", limits.max_total_keys, at);
    if (!keys.empty() && keys.back() > limits.max_object_keys) {
      return TooMany("keys in one object", limits.max_object_keys, at);
    }
    ++at;
  }
  return Status::Ok();
}

}  // namespace

StatusOr<Json> ParseJson(std::string_view text, const JsonLimits& limits) {
  TM_RETURN_IF_ERROR(CheckLimits(text, limits));
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& error) {
    return InvalidArgument("not JSON at byte " + std::to_string(error.byte));
  } catch (const Json::exception&) {  // a number beyond every float
    return InvalidArgument("the JSON has a number that is too large");
  }
}

std::string PrintJson(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// ---- strings ------------------------------------------------------------------------------------

namespace {

enum ByteKind : uint8_t { kPlain, kEscaped, kNotAscii };

constexpr std::array<ByteKind, 256> MakeByteKinds() {
  std::array<ByteKind, 256> kinds{};
  for (size_t byte = 0; byte < 0x20; ++byte) kinds[byte] = kEscaped;
  kinds['"'] = kinds['\\'] = kinds[0x7F] = kEscaped;
  for (size_t byte = 0x80; byte < 256; ++byte) kinds[byte] = kNotAscii;
  return kinds;
}
constexpr std::array<ByteKind, 256> kByteKinds = MakeByteKinds();

uint8_t ByteAt(std::string_view bytes, size_t at) { return static_cast<uint8_t>(bytes[at]); }

// What the byte that starts a character promises: its length, and the range of its second byte, which keeps
// out overlong forms, surrogates and what is above U+10FFFF.
struct Utf8Start {
  size_t length = 0;  // 0: starts nothing
  uint8_t second_low = 0x80;
  uint8_t second_high = 0xBF;
};

Utf8Start StartOf(uint8_t byte) {
  if (byte < 0x80) return {.length = 1};
  if (byte < 0xC2) return {};
  if (byte < 0xE0) return {.length = 2};
  if (byte == 0xE0) return {.length = 3, .second_low = 0xA0};
  if (byte == 0xED) return {.length = 3, .second_high = 0x9F};
  if (byte < 0xF0) return {.length = 3};
  if (byte == 0xF0) return {.length = 4, .second_low = 0x90};
  if (byte < 0xF4) return {.length = 4};
  if (byte == 0xF4) return {.length = 4, .second_high = 0x8F};
  return {};
}

// How many bytes from `at` on belong to the character that starts there, as far as it goes, and whether it is
// whole. At least 1.
struct Utf8Unit {
  size_t bytes;
  bool whole;
  bool cut_by_end;
};

Utf8Unit UnitAt(std::string_view text, size_t at) {
  const Utf8Start start = StartOf(ByteAt(text, at));
  if (start.length == 0) return {.bytes = 1, .whole = false, .cut_by_end = false};
  size_t bytes = 1;
  while (bytes < start.length) {
    if (at + bytes == text.size()) return {.bytes = bytes, .whole = false, .cut_by_end = true};
    const uint8_t next = ByteAt(text, at + bytes);
    const uint8_t low = bytes == 1 ? start.second_low : 0x80;
    const uint8_t high = bytes == 1 ? start.second_high : 0xBF;
    if (next < low || next > high) return {.bytes = bytes, .whole = false, .cut_by_end = false};
    ++bytes;
  }
  return {.bytes = bytes, .whole = true, .cut_by_end = false};
}

void AppendEscape(uint8_t byte, std::string* out) {
  switch (byte) {
    case '"':
      *out += "\\\"";
      return;
    case '\\':
      *out += "\\\\";
      return;
    case '\n':
      *out += "\\n";
      return;
    case '\r':
      *out += "\\r";
      return;
    case '\t':
      *out += "\\t";
      return;
    default: {
      constexpr char kHex[] = "0123456789abcdef";
      *out += "\\u00";
      *out += kHex[byte >> 4];
      *out += kHex[byte & 15];
    }
  }
}

}  // namespace

void AppendJsonString(std::string_view bytes, std::string* out) {
  out->reserve(out->size() + bytes.size() + 2);
  *out += '"';
  for (size_t at = 0; at < bytes.size();) {
    size_t end = at;
    while (end < bytes.size() && kByteKinds[ByteAt(bytes, end)] == kPlain) ++end;
    out->append(bytes, at, end - at);
    at = end;
    if (at == bytes.size()) break;
    if (kByteKinds[ByteAt(bytes, at)] == kEscaped) {
      AppendEscape(ByteAt(bytes, at), out);
      ++at;
      continue;
    }
    const Utf8Unit unit = UnitAt(bytes, at);
    out->append(unit.whole ? bytes.substr(at, unit.bytes) : kReplacement);
    at += unit.bytes;
  }
  *out += '"';
}

std::string JsonString(std::string_view bytes) {
  std::string text;
  AppendJsonString(bytes, &text);
  return text;
}

bool IsUtf8(std::string_view bytes) {
  for (size_t at = 0; at < bytes.size();) {
    const Utf8Unit unit = UnitAt(bytes, at);
    if (!unit.whole) return false;
    at += unit.bytes;
  }
  return true;
}

size_t TruncatedUtf8Bytes(std::string_view bytes) {
  for (size_t back = 1; back <= std::min<size_t>(3, bytes.size()); ++back) {
    const size_t at = bytes.size() - back;
    if (StartOf(ByteAt(bytes, at)).length > 1) return UnitAt(bytes, at).cut_by_end ? back : 0;
  }
  return 0;
}

// ---- numbers ------------------------------------------------------------------------------------

void AppendJsonInteger(int64_t value, std::string* out) {
  char text[24];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  out->append(text, static_cast<size_t>(end - text));
}

void AppendJsonLogprob(float value, std::string* out) {
  if (!std::isfinite(value)) {
    *out += "-9999.0";
    return;
  }
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  out->append(text, static_cast<size_t>(end - text));
}

}  // namespace tramontane

#include "server/api/shared/json.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "kernels/core/utf8.h"

namespace tramontane {
namespace {

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
  int64_t containers = 0;
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
        ++containers;
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
    if (containers > limits.max_containers) return TooMany("arrays and objects", limits.max_containers, at);
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
  // The parser takes a zero byte for the end of the text, and would not see what stands behind it.
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos) {
    return InvalidArgument("not JSON at byte " + std::to_string(zero + 1) + ": a zero byte");
  }
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

Json NumberJson(double number) {
  const bool is_whole = std::trunc(number) == number && std::abs(number) < 1e16;
  return is_whole ? Json(static_cast<int64_t>(number)) : Json(number);
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

// Unicode ends a line at these, and so do some clients' readers of events (Python's str.splitlines). Null: no
// such.
const char* LineEndEscape(std::string_view character) {
  if (character == "\xC2\x85") return "\\u0085";
  if (character == "\xE2\x80\xA8") return "\\u2028";
  if (character == "\xE2\x80\xA9") return "\\u2029";
  return nullptr;
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
    const Utf8Unit unit = NextUtf8(bytes.substr(at));
    const std::string_view character = bytes.substr(at, unit.bytes);
    if (unit.kind != Utf8Kind::kValid) {
      *out += kReplacementCharacter;
    } else if (const char* escape = LineEndEscape(character)) {
      *out += escape;
    } else {
      out->append(character);
    }
    at += unit.bytes;
  }
  *out += '"';
}

std::string JsonString(std::string_view bytes) {
  std::string text;
  AppendJsonString(bytes, &text);
  return text;
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

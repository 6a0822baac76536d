#include "server/base/text.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>

#include "kernels/core/utf8.h"

namespace tramontane {
namespace {

// Of a whole one.
uint32_t CodePointOf(std::string_view unit) {
  if (unit.size() == 1) return static_cast<unsigned char>(unit[0]);
  uint32_t code_point = static_cast<unsigned char>(unit[0]) & (0x7Fu >> unit.size());
  for (const char c : unit.substr(1)) code_point = code_point << 6 | (static_cast<unsigned char>(c) & 0x3Fu);
  return code_point;
}

bool IsInvisible(uint32_t code_point) {
  struct Range {
    uint32_t first, last;
  };
  // Controls, C1's too; ends of lines; what changes the direction of writing; the mark of byte order.
  constexpr std::array<Range, 7> kRanges = {{{0, 0x1F},
                                             {0x7F, 0x9F},
                                             {0x200E, 0x200F},
                                             {0x2028, 0x202E},
                                             {0x2066, 0x2069},
                                             {0xFEFF, 0xFEFF},
                                             {0xFFF9, 0xFFFB}}};
  return std::any_of(kRanges.begin(), kRanges.end(), [code_point](const Range& range) {
    return range.first <= code_point && code_point <= range.last;
  });
}

void AppendEscape(uint32_t code_point, std::string* out) {
  constexpr std::string_view kShort = "\bb\tt\nn\ff\rr";  // a character, and its letter
  for (size_t i = 0; i < kShort.size(); i += 2) {
    if (static_cast<unsigned char>(kShort[i]) == code_point) {
      *out += '\\';
      *out += kShort[i + 1];
      return;
    }
  }
  std::array<char, 8> escape{};
  std::snprintf(escape.data(), escape.size(), "\\u%04x", code_point);
  *out += escape.data();
}

void AppendPrintable(std::string_view text, bool in_quotes, std::string* out) {
  const auto is_plain = [in_quotes](char c) {
    return c >= ' ' && c <= '~' && !(in_quotes && (c == '"' || c == '\\'));
  };
  while (!text.empty()) {
    const auto end = std::find_if_not(text.begin(), text.end(), is_plain);
    out->append(text.begin(), end);
    text.remove_prefix(static_cast<size_t>(end - text.begin()));
    if (text.empty()) return;
    const Utf8Unit unit = NextUtf8(text);
    const std::string_view bytes = text.substr(0, unit.bytes);
    text.remove_prefix(unit.bytes);
    if (unit.kind != Utf8Kind::kValid) {
      *out += kReplacementCharacter;
    } else if (const uint32_t code_point = CodePointOf(bytes); IsInvisible(code_point)) {
      AppendEscape(code_point, out);
    } else {
      if (in_quotes && (code_point == '"' || code_point == '\\')) *out += '\\';
      *out += bytes;
    }
  }
}

}  // namespace

std::string LowerCase(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

std::string HexText(std::string_view bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    text += kDigits[static_cast<unsigned char>(c) >> 4];
    text += kDigits[static_cast<unsigned char>(c) & 15];
  }
  return text;
}

std::string PrintableText(std::string_view text) {
  std::string out;
  AppendPrintable(text, /*in_quotes=*/false, &out);
  return out;
}

std::string QuotedText(std::string_view text) {
  std::string out = "\"";
  AppendPrintable(text, /*in_quotes=*/true, &out);
  out += '"';
  return out;
}

}  // namespace tramontane

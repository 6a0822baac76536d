#include "kernels/core/utf8.h"

#include <algorithm>
#include <cstring>

#include "kernels/core/check.h"

namespace tramontane {
namespace {

// Bytes of the code point that `lead` starts (0: it starts none) and the range of the byte after it.
struct Lead {
  uint8_t bytes;
  uint8_t second_min;
  uint8_t second_max;
};

Lead Classify(uint8_t lead) {
  if (lead < 0x80) return {1, 0, 0};
  if (lead < 0xC2) return {0, 0, 0};
  if (lead < 0xE0) return {2, 0x80, 0xBF};
  if (lead == 0xE0) return {3, 0xA0, 0xBF};  // below: overlong
  if (lead == 0xED) return {3, 0x80, 0x9F};  // above: surrogates
  if (lead < 0xF0) return {3, 0x80, 0xBF};
  if (lead == 0xF0) return {4, 0x90, 0xBF};  // below: overlong
  if (lead < 0xF4) return {4, 0x80, 0xBF};
  if (lead == 0xF4) return {4, 0x80, 0x8F};  // above: past U+10FFFF
  return {0, 0, 0};
}

}  // namespace

Utf8Unit NextUtf8(std::string_view text) {
  TM_DCHECK(!text.empty(), "NextUtf8 of nothing");
  const Lead lead = Classify(static_cast<uint8_t>(text[0]));
  if (lead.bytes == 0) return {Utf8Kind::kInvalid, 1};
  for (size_t i = 1; i < lead.bytes; ++i) {
    if (i == text.size()) return {Utf8Kind::kTruncated, i};
    const auto byte = static_cast<uint8_t>(text[i]);
    const uint8_t min = i == 1 ? lead.second_min : 0x80;
    const uint8_t max = i == 1 ? lead.second_max : 0xBF;
    if (byte < min || byte > max) return {Utf8Kind::kInvalid, i};
  }
  return {Utf8Kind::kValid, lead.bytes};
}

std::optional<size_t> FirstInvalidUtf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    constexpr uint64_t kHighBits = 0x8080808080808080u;
    uint64_t eight_bytes;
    if (text.size() - at >= sizeof(eight_bytes)) {  // a stride of plain ASCII
      std::memcpy(&eight_bytes, text.data() + at, sizeof(eight_bytes));
      if ((eight_bytes & kHighBits) == 0) {
        at += sizeof(eight_bytes);
        continue;
      }
    }
    const Utf8Unit unit = NextUtf8(text.substr(at));
    if (unit.kind != Utf8Kind::kValid) return at;
    at += unit.bytes;
  }
  return std::nullopt;
}

size_t TruncatedUtf8Bytes(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    if (NextUtf8(text.substr(text.size() - back)).kind == Utf8Kind::kTruncated) return back;
  }
  return 0;
}

std::string ReplaceInvalidUtf8(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const Utf8Unit unit = NextUtf8(text);
    result += unit.kind == Utf8Kind::kValid ? text.substr(0, unit.bytes) : kReplacementCharacter;
    text.remove_prefix(unit.bytes);
  }
  return result;
}

void AppendUtf8(uint32_t code_point, std::string* text) {
  TM_DCHECK(code_point < 0x110000, "code point %u", code_point);
  const auto tail = [&](int shift) { return static_cast<char>(0x80 | ((code_point >> shift) & 0x3F)); };
  if (code_point < 0x80) {
    *text += static_cast<char>(code_point);
  } else if (code_point < 0x800) {
    *text += static_cast<char>(0xC0 | (code_point >> 6));
    *text += tail(0);
  } else if (code_point < 0x10000) {
    *text += static_cast<char>(0xE0 | (code_point >> 12));
    *text += tail(6);
    *text += tail(0);
  } else {
    *text += static_cast<char>(0xF0 | (code_point >> 18));
    *text += tail(12);
    *text += tail(6);
    *text += tail(0);
  }
}

std::string Excerpt(std::string_view text) {
  constexpr size_t kMaxBytes = 80;
  size_t bytes = 0;
  while (bytes < text.size()) {
    const size_t next = bytes + NextUtf8(text.substr(bytes)).bytes;
    if (next > kMaxBytes) return std::string(text.substr(0, bytes)) + "...";
    bytes = next;
  }
  return std::string(text);
}

}  // namespace tramontane

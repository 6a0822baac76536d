#include "bench/load/record.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "kernels/core/utf8.h"

namespace tramontane::load {
namespace {

// Of bytes of a text, half open.
using Range = std::pair<size_t, size_t>;

// Characters, in lower case, that know which bytes of a text they stand for.
struct MappedText {
  std::string characters;
  std::vector<size_t> begins;  // one more than characters: the last is the end of the text
};

std::string Lowered(std::string_view text) {
  std::string lowered(text);
  for (char& c : lowered) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return lowered;
}

MappedText Mapped(std::string_view text) {
  MappedText mapped{Lowered(text), {}};
  for (size_t i = 0; i <= text.size(); ++i) mapped.begins.push_back(i);
  return mapped;
}

// The escape that `text` begins with: how many bytes it has, and what it means; 0 bytes where it is none, all
// where the text ends in the middle of it.
std::pair<size_t, char> ReadEscape(std::string_view text) {
  constexpr size_t kDigits = 4;
  if (text.front() != '\\') return {0, '\0'};
  if (text.size() == 1) return {1, '\0'};
  if (std::string_view("\"\\/").find(text[1]) != std::string_view::npos) return {2, text[1]};
  if (text[1] != 'u') return {0, '\0'};
  int code = 0;
  for (size_t i = 2; i < 2 + kDigits; ++i) {
    if (i == text.size()) return {i, '\0'};
    const bool is_letter = text[i] >= 'a' && text[i] <= 'f';
    if (!is_letter && !IsDigit(text[i])) return {0, '\0'};
    code = 16 * code + (is_letter ? text[i] - 'a' + 10 : text[i] - '0');
  }
  // What no secret has is all the same.
  const bool is_printable = code > 0x20 && code < 0x7f;
  return {2 + kDigits, is_printable ? Lowered(std::string(1, static_cast<char>(code)))[0] : '\x7f'};
}

// Without one depth of JSON's escapes. One that the text ends in the middle of is left out.
MappedText Unescaped(const MappedText& mapped) {
  MappedText plain;
  for (size_t at = 0; at < mapped.characters.size();) {
    const auto [bytes, meant] = ReadEscape(std::string_view(mapped.characters).substr(at));
    if (bytes > 0 && meant == '\0') break;
    plain.characters += bytes == 0 ? mapped.characters[at] : meant;
    plain.begins.push_back(mapped.begins[at]);
    at += std::max<size_t>(bytes, 1);
  }
  plain.begins.push_back(mapped.begins.back());
  return plain;
}

void FindSecret(const MappedText& mapped, const std::string& secret, std::vector<Range>* found) {
  const std::string& text = mapped.characters;
  size_t end = 0;
  for (size_t at = text.find(secret); at != std::string::npos; at = text.find(secret, end)) {
    end = at + secret.size();
    found->emplace_back(mapped.begins[at], mapped.begins[end]);
  }
  for (size_t part = std::min(secret.size(), text.size()); part >= kSecretPart; --part) {
    if (part == secret.size() || !text.ends_with(std::string_view(secret).substr(0, part))) continue;
    found->emplace_back(mapped.begins[text.size() - part], mapped.begins.back());
    break;
  }
}

// Three stars for each range; those that overlap are one.
std::string Starred(std::string_view text, std::vector<Range> ranges) {
  std::sort(ranges.begin(), ranges.end());
  std::string starred;
  size_t at = 0;
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (i > 0 && ranges[i].first < at) {
      at = std::max(at, ranges[i].second);
      continue;
    }
    starred += text.substr(at, ranges[i].first - at);
    starred += "***";
    at = ranges[i].second;
  }
  starred += text.substr(at);
  return starred;
}

// REQUIRES: one whole code point.
uint32_t CodePoint(std::string_view unit) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(unit[i])); };
  switch (unit.size()) {
    case 1:
      return byte(0);
    case 2:
      return (byte(0) & 0x1f) << 6 | (byte(1) & 0x3f);
    case 3:
      return (byte(0) & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f);
    default:
      return (byte(0) & 0x07) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f);
  }
}

// Of C0 and C1, separators of lines, and marks that turn the direction of text or have no width.
bool IsInvisible(uint32_t code_point) {
  constexpr std::pair<uint32_t, uint32_t> kInvisible[] = {
      {0x00, 0x1f},     {0x7f, 0x9f},     {0x61c, 0x61c},  {0x200b, 0x200f},
      {0x2028, 0x202e}, {0x2060, 0x206f}, {0xfeff, 0xfeff}};
  return std::any_of(std::begin(kInvisible), std::end(kInvisible), [&](const auto& range) {
    return code_point >= range.first && code_point <= range.second;
  });
}

}  // namespace

std::string OutcomeName(Outcome outcome, int32_t status) {
  switch (outcome) {
    case Outcome::kOk:
      return "ok";
    case Outcome::kRefused:
      return "refused";
    case Outcome::kTimeout:
      return "timeout";
    case Outcome::kHttpError:
      return "http_" + std::to_string(status);
    case Outcome::kStreamError:
      return "stream_error";
    case Outcome::kClosedEarly:
      return "closed_early";
    case Outcome::kGarbage:
      return "garbage";
    case Outcome::kNoContent:
      return "no_content";
    case Outcome::kUnfinished:
      return "unfinished";
  }
  return "";
}

std::string_view TokenCountFromName(TokenCountFrom from) {
  switch (from) {
    case TokenCountFrom::kUsage:
      return "usage";
    case TokenCountFrom::kIds:
      return "ids";
    case TokenCountFrom::kLogprobs:
      return "logprobs";
    case TokenCountFrom::kTokenizer:
      return "tokenizer";
    case TokenCountFrom::kEvents:
      return "events";
  }
  return "";
}

std::string WithoutSecret(std::string_view text, std::string_view secret) {
  if (secret.empty()) return std::string(text);
  std::vector<Range> found;
  MappedText mapped = Mapped(text);
  for (int depth = 0;; ++depth) {
    FindSecret(mapped, Lowered(secret), &found);
    // JSON inside of a JSON string is escaped twice.
    constexpr int kMaxEscapeDepth = 4;
    if (depth == kMaxEscapeDepth || mapped.characters.find('\\') == std::string::npos) break;
    mapped = Unescaped(mapped);
  }
  return Starred(text, std::move(found));
}

std::string VisibleText(std::string_view text) {
  const std::string valid = ReplaceInvalidUtf8(text);
  std::string visible;
  for (std::string_view left = valid; !left.empty();) {
    const std::string_view unit = left.substr(0, NextUtf8(left).bytes);
    left.remove_prefix(unit.size());
    const uint32_t code_point = CodePoint(unit);
    if (unit == "\n" || unit == "\r" || unit == "\t") {
      visible += ' ';
    } else if (IsInvisible(code_point)) {
      char escape[16];
      std::snprintf(escape, sizeof(escape), "\\u%04x", code_point);
      visible += escape;
    } else {
      visible += unit;
    }
  }
  return visible;
}

std::string ServerText(std::string_view text, std::string_view secret) {
  constexpr size_t kReadBytes = 16 * kMaxServerTextBytes;  // the rest would be cut anyway
  std::string visible = VisibleText(WithoutSecret(text.substr(0, kReadBytes), secret));
  size_t bytes = 0;
  while (bytes < visible.size()) {
    const size_t next = bytes + NextUtf8(std::string_view(visible).substr(bytes)).bytes;
    if (next > kMaxServerTextBytes) return visible.substr(0, bytes) + "...";
    bytes = next;
  }
  return visible;
}

}  // namespace tramontane::load

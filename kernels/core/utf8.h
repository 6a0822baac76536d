// UTF-8, strictly: no overlong forms, no surrogates, nothing above U+10FFFF.
//
// Any thread. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tramontane {

enum class Utf8Kind {
  kValid,      // one whole code point
  kInvalid,    // can never become one: to be shown as one U+FFFD
  kTruncated,  // the start of one, and the text ends there
};

struct Utf8Unit {
  Utf8Kind kind;
  size_t bytes;  // how many bytes it takes, 1 to 4
};

// What `text` starts with. An invalid unit is the longest start of a code point that the next byte breaks, or
// one byte: the division that Unicode recommends and Python's errors='replace' uses. REQUIRES: not empty.
Utf8Unit NextUtf8(std::string_view text);

// The offset of the first byte that is not part of a whole code point; none if `text` is UTF-8.
std::optional<size_t> FirstInvalidUtf8(std::string_view text);

inline bool IsUtf8(std::string_view text) { return !FirstInvalidUtf8(text).has_value(); }

// How many bytes at the end of `text` are the start of a code point that is not whole yet: 0 to 3.
size_t TruncatedUtf8Bytes(std::string_view text);

// `text` with each invalid or truncated unit as one U+FFFD: Python's text.decode("utf-8", errors="replace").
std::string ReplaceInvalidUtf8(std::string_view text);

// Appends a code point below 0x110000. A surrogate gets the three bytes of its number, which are not UTF-8.
void AppendUtf8(uint32_t code_point, std::string* text);

// At most the first 80 bytes of `text`, cut between code points, with "..." if more follows: for error
// messages.
std::string Excerpt(std::string_view text);

// A digit of ASCII, whatever the locale.
inline bool IsDigit(char c) { return c >= '0' && c <= '9'; }

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

}  // namespace tramontane

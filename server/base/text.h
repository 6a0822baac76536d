// Small work on text that several rooms of server/ do.
// Pure functions; any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tramontane {

// Bytes of a user's own text in an error; of a longer one its beginning is shown.
inline constexpr size_t kMaxQuotedBytes = 64;

// ASCII letters in lower case; every other byte as it is.
std::string LowerCase(std::string_view text);
// "\x01\xab" is "01ab".
std::string HexText(std::string_view bytes);

// Text from outside as it may stand in a line that people and programs read: what ends a line, moves a cursor
// or turns the direction of writing becomes an escape of JSON ("\n", "\u001b"), what is no UTF-8 U+FFFD.
// Everything else stays.
std::string PrintableText(std::string_view text);
// The same as a string of JSON, quotes and all.
std::string QuotedText(std::string_view text);

}  // namespace tramontane

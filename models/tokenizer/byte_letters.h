// How byte-level vocabularies spell bytes: each by a character of its own, printable ones by themselves, the
// others by those from U+0100 on. A space is "Ġ".
//
// Any thread. Pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/core/utf8.h"

namespace tramontane {

// [byte] -> the code point that spells it.
inline constexpr std::array<int16_t, 256> kLetterOfByte = [] {
  std::array<int16_t, 256> letters{};
  int16_t next = 256;
  for (int16_t byte = 0; byte < 256; ++byte) {
    const bool is_printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    letters[static_cast<size_t>(byte)] = is_printable ? byte : next++;
  }
  return letters;
}();

// [code point] -> the byte that it spells, or -1.
inline constexpr std::array<int16_t, 512> kByteOfLetter = [] {
  std::array<int16_t, 512> bytes{};
  bytes.fill(-1);
  for (int16_t byte = 0; byte < 256; ++byte)
    bytes[static_cast<size_t>(kLetterOfByte[static_cast<size_t>(byte)])] = byte;
  return bytes;
}();

inline std::string LettersOfBytes(std::string_view bytes) {
  std::string letters;
  for (const char byte : bytes) {
    const int letter = kLetterOfByte[static_cast<uint8_t>(byte)];
    if (letter < 0x80) {
      letters += static_cast<char>(letter);
    } else {
      letters += static_cast<char>(0xC0 | letter >> 6);
      letters += static_cast<char>(0x80 | (letter & 0x3F));
    }
  }
  return letters;
}

// None where `letters` has a character that spells no byte.
inline std::optional<std::string> BytesOfLetters(std::string_view letters) {
  std::string bytes;
  while (!letters.empty()) {
    const size_t length = NextUtf8(letters).bytes;
    const auto lead = static_cast<uint8_t>(letters[0]);
    if (length > 2) return std::nullopt;
    const uint32_t code_point =
        length == 1 ? lead : (lead & 0x1Fu) << 6 | (static_cast<uint8_t>(letters[1]) & 0x3F);
    if (code_point >= kByteOfLetter.size() || kByteOfLetter[code_point] < 0) return std::nullopt;
    bytes += static_cast<char>(kByteOfLetter[code_point]);
    letters.remove_prefix(length);
  }
  return bytes;
}

}  // namespace tramontane

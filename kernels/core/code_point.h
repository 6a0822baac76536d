// A character's bytes to its number. Any thread; pure.
#pragma once

#include <cstdint>
#include <string_view>

namespace tramontane {

// The code point of one character. REQUIRES: its bytes, and no more, are valid UTF-8.
inline uint32_t CodePointOf(std::string_view character) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(character[i])); };
  switch (character.size()) {
    case 1:
      return byte(0);
    case 2:
      return (byte(0) & 0x1F) << 6 | (byte(1) & 0x3F);
    case 3:
      return (byte(0) & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    default:
      return (byte(0) & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
  }
}

}  // namespace tramontane

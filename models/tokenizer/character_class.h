// The classes of characters that tekken's split pattern tells apart, by Unicode general category.
//
// Any thread. The tables are constants, written by make_character_class_table.py, which names the version of
// Unicode.
#pragma once

#include <cstdint>

namespace tramontane {

enum class CharacterClass : uint8_t {
  kOther,     // punctuation, symbols, what is not assigned
  kUpper,     // Lu, Lt
  kLower,     // Ll
  kCaseless,  // Lm, Lo
  kMark,      // Mn, Mc, Me
  kNumber,    // Nd, Nl, No
  kSpace,     // White_Space, without:
  kNewline,   // U+000A, U+000D
};

inline constexpr uint32_t kCharacterBlock = 256;                    // code points
extern const uint8_t kCharacterBlocks[0x110000 / kCharacterBlock];  // [code point / 256] -> block
extern const char kCharacterClasses[];  // [block * 256 + code point % 256] -> '0' + class

// REQUIRES: below 0x110000.
inline CharacterClass ClassOfCharacter(uint32_t code_point) {
  const uint32_t block = kCharacterBlocks[code_point / kCharacterBlock];
  return static_cast<CharacterClass>(
      kCharacterClasses[block * kCharacterBlock + code_point % kCharacterBlock] - '0');
}

}  // namespace tramontane

// U+2581, by which SentencePiece and its relatives spell a space.
//
// Any thread. Pure functions.
#pragma once

#include <string>
#include <string_view>

namespace tramontane {

inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

inline std::string WithPlainSpaces(std::string_view piece) {
  std::string text;
  for (size_t at = 0; at < piece.size();) {
    if (piece.substr(at).starts_with(kSpaceMark)) {
      text += ' ';
      at += kSpaceMark.size();
    } else {
      text += piece[at++];
    }
  }
  return text;
}

inline std::string WithSpaceMarks(std::string_view text) {
  std::string marked;
  marked.reserve(text.size() + text.size() / 4 + kSpaceMark.size());
  for (const char byte : text) {
    if (byte == ' ') {
      marked += kSpaceMark;
    } else {
      marked += byte;
    }
  }
  return marked;
}

// Whether a mark follows something else than a mark: "a▁b", not "▁▁a".
inline bool HasSpaceMarkInside(std::string_view piece) {
  while (piece.starts_with(kSpaceMark)) piece.remove_prefix(kSpaceMark.size());
  return piece.find(kSpaceMark) != std::string_view::npos;
}

}  // namespace tramontane

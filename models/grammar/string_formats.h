// The formats of strings that are known here, as regular expressions that match a text as a whole.
//
// Any thread; constants. What a format's expressions match is taken by the checkers that people use:
// tests/models/grammar_oracle.py asks them.
#pragma once

#include <cstdint>
#include <string_view>

#include "models/grammar/pattern.h"

namespace tramontane {

struct StringFormat {
  std::string_view name;
  const char* written;  // what texts are written as
  // Has all of `written` and more, with fewer counts, so that other expressions can meet it: what has at most
  // `shape_most` characters is of the format. Null: `written`.
  const char* shape = nullptr;
  // Has less than `shape`, and stays small where that meets what is open at its end. Null: none.
  const char* simple = nullptr;
  int64_t shape_most = kUnbounded;
  // What no text of the format is outside of, to look at texts that a caller wrote. Null: anything.
  const char* outer = nullptr;
};

// Null: not known; then it says nothing about the text.
const StringFormat* FindStringFormat(std::string_view name);

}  // namespace tramontane

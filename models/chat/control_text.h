// ControlText: keeps what people typed from becoming control ids, where a prompt is made as text and cut at
// the spellings of control tokens afterwards, as chat templates are.
//
// Break() puts a private code point inside of each control token's spelling that a typed string holds, and at
// the ends of a string that a template's own text could complete to one; Append() cuts the rendered text,
// takes the code point out of what lies between and encodes that. The code point is one that nothing typed
// holds, so what people typed comes out exactly.
//
// What is left to the template: one that takes characters out of the middle of a typed string may join what
// stood around them.
//
// One thread, for one prompt. The tokenizer outlives it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "kernels/core/status.h"
#include "models/tokenizer/python_json.h"
#include "models/tokenizer/spelling_matcher.h"
#include "models/tokenizer/tokenizer.h"

namespace tramontane {

// The control tokens of a vocabulary as text, but for those of one character. Made once, with the model; any
// thread.
class ControlSpellings {
 public:
  explicit ControlSpellings(const Tokenizer& tokenizer);

  const SpellingMatcher& matcher() const { return matcher_; }
  // Whether what stands in front of or behind `text` could make a control token of it or of an end of it.
  bool OpenAtBegin(std::string_view text) const;
  bool OpenAtEnd(std::string_view text) const;

 private:
  size_t longest_ = 0;                                             // bytes
  std::unordered_set<std::string> prefixes_, suffixes_, insides_;  // shorter than the whole, not empty
  SpellingMatcher matcher_;
};

class ControlText {
 public:
  // Of a template and the values that it is given. RESOURCE_EXHAUSTED: they hold every private code point.
  static StatusOr<ControlText> For(const ControlSpellings& spellings, std::string_view template_text,
                                   const JsonValue& values);

  std::string Break(std::string_view text) const;
  // Each string in it. Of the keys those that hold a control token, and with kTyped all but those of JSON
  // Schema and of tools, which templates ask for.
  enum class Keys { kTyped, kAskedFor };
  void BreakAll(Keys keys, JsonValue* value) const;
  // Two more private code points in a row, which nothing typed or broken holds: a mark of the caller's.
  const std::string& mark() const { return mark_; }

  // The ids of a rendered text.
  StatusOr<std::vector<int32_t>> Encode(const Tokenizer& tokenizer, std::string_view rendered) const;

 private:
  ControlText(const ControlSpellings& spellings, uint32_t breaker);
  void AppendMended(std::string_view text, std::string* mended) const;

  const ControlSpellings* spellings_;
  std::string breaker_;  // UTF-8
  std::string escaped_;  // as JSON that is ASCII spells it
  std::string mark_;
};

}  // namespace tramontane

// Detokenizer: the ids of one message, one by one, to text that can be shown at once.
//
// One thread at a time; one Detokenizer per choice. The tokenizer outlives it.
// Always: what was appended so far is UTF-8 (never half a code point), at most kMaxPendingBytes bytes are
// held back, and everything appended, with Flush() at the end, equals Tokenizer::Decode() of all the ids.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "models/tokenizer/tokenizer.h"

namespace tramontane {

class Detokenizer {
 public:
  static constexpr size_t kMaxPendingBytes = 3;  // the start of a four-byte code point

  explicit Detokenizer(const Tokenizer& tokenizer) : message_(tokenizer) {}

  // Appends to `text` what `id` completes; possibly nothing.
  void Append(int32_t id, std::string* text);
  // Appends what is held back, as one U+FFFD, and holds nothing. The message ends here.
  void Flush(std::string* text);

  size_t pending_bytes() const { return pending_.size(); }
  bool at_start() const { return message_.at_start(); }  // a leading space may still be dropped

 private:
  MessageBytes message_;
  std::string pending_;  // the start of a code point, at most kMaxPendingBytes
};

}  // namespace tramontane

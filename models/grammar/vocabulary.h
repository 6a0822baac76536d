// GrammarVocabulary: a tokenizer's vocabulary as a grammar sees it: the bytes that each token adds to text.
// A plain value; any thread.
//
// At the start of a message the space that encoders put in front of its first word is no part of the text:
// there "▁{" adds "{". For such tokens `at_start` names the piece they stand for: another token of the same
// bytes, or one of the pieces added behind the vocabulary for just that.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/tokenizer/tokenizer.h"

namespace tramontane {

struct GrammarVocabulary {
  static constexpr int32_t kSpaceAlone = -1;  // adds nothing at the start of a message

  int32_t vocab_size = 0;            // of the model's logits
  std::vector<std::string> pieces;   // [vocab_size + added]; empty: a token that no text has
  std::vector<int32_t> at_start;     // [vocab_size]; the piece a token stands for, or kSpaceAlone
  bool space_alone_goes_on = false;  // after a space alone the message still has not started
  std::vector<int32_t> eos_ids;      // tokens that may follow a whole text
};

GrammarVocabulary MakeGrammarVocabulary(const Tokenizer& tokenizer, int32_t vocab_size,
                                        const std::vector<int32_t>& eos_ids);

}  // namespace tramontane

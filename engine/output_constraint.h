// OutputConstraint: which token may come next in one choice: the forced ones first, then what the grammar
// allows. Engine thread only; the request outlives it. Always: it has followed every token that the choice
// accepted, so a choice that is preempted and computed again needs nothing here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/request.h"
#include "models/grammar/grammar.h"
#include "models/tokenizer/tokenizer.h"

namespace tramontane {

class OutputConstraint {
 public:
  // REQUIRES: request.constraint has a grammar.
  OutputConstraint(const Request& request, const Tokenizer& tokenizer);

  // For the next token. mask: [MaskWords(vocab_size)]
  void FillMask(std::span<uint32_t> mask);

  // One more token. False: it was not allowed.
  bool Accept(int32_t token);

 private:
  const std::vector<int32_t>& forced_;
  size_t forced_done_ = 0;
  std::unique_ptr<GrammarMatcher> matcher_;
};

}  // namespace tramontane

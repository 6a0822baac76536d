// BranchGrammar: an output of branches: the tokens of one of several heads, then a text of that head's
// grammar; then the end or, where branches repeat, the next head. For what has control tokens in its middle:
// grammars know text, heads know ids.
//
// A Grammar as any other (grammar.h). Always: no head is the beginning of another, so the tokens tell the
// branch; of equal heads the first counts.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "models/grammar/grammar.h"

namespace tramontane {

struct GrammarBranch {
  std::vector<int32_t> head;  // ends in a control token, behind which the text is within a message
  std::shared_ptr<const Grammar> grammar;
};

enum class Branches { kOnce, kRepeat };

class BranchGrammar final : public Grammar {
 public:
  // `eos_ids`: by which the grammars, all of a vocabulary of `vocab_size`, say that a text is whole.
  // REQUIRES: at least one branch, heads as above, and no first id of a head in a grammar's text.
  BranchGrammar(std::vector<GrammarBranch> branches, Branches branching, std::vector<int32_t> eos_ids,
                int32_t vocab_size);

  std::unique_ptr<GrammarMatcher> NewMatcher(TextStart start) const override;
  int64_t memory_bytes() const override;

 private:
  class Matcher;

  const std::vector<GrammarBranch> branches_;
  const Branches branching_;
  const std::vector<int32_t> eos_ids_;
  const int32_t vocab_size_;
};

}  // namespace tramontane

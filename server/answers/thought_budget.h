// ThoughtBudget: an output whose thoughts have at most so many tokens: then their end is forced. What the
// rest is, another grammar says, or nothing does.
//
// A Grammar as any other (grammar.h). Tokens are counted as usage counts them: in all thoughts of the output,
// without what marks them, and without those of the prompt. A character that has begun is completed first,
// which takes at most 3 tokens more.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "models/chat/thought_marks.h"
#include "models/grammar/grammar.h"
#include "server/answers/thought_grammar.h"

namespace tramontane {

class ThoughtBudget final : public Grammar {
 public:
  // `answer` null: any text. `marks`: those of `vocabulary`, which may be open. REQUIRES: tokens >= 0.
  ThoughtBudget(std::shared_ptr<const ThoughtVocabulary> vocabulary, const ThoughtMarks& marks,
                int64_t tokens, std::shared_ptr<const Grammar> answer)
      : vocabulary_(std::move(vocabulary)), marks_(marks), tokens_(tokens), answer_(std::move(answer)) {}

  std::unique_ptr<GrammarMatcher> NewMatcher(TextStart start) const override;
  int64_t memory_bytes() const override { return answer_ == nullptr ? 0 : answer_->memory_bytes(); }

 private:
  class Matcher;

  const std::shared_ptr<const ThoughtVocabulary> vocabulary_;
  const ThoughtMarks marks_;
  const int64_t tokens_;
  const std::shared_ptr<const Grammar> answer_;
};

}  // namespace tramontane

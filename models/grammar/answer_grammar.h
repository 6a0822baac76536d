// AnswerGrammar: what a model answers that may call tools: at first any text, or a text of a grammar, or
// nothing; then calls, each the tokens of one of several heads and a text of that head's grammar; then the
// end. Heads are ids, since grammars know text and no control tokens.
//
// A Grammar as any other (grammar.h). Always: no head is the beginning of another, so the tokens tell the
// call; of equal heads the first counts. Behind a whole call comes the end or, where calls repeat, the next.
// Any text costs no work: only the first ids of heads are looked for.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/core/status.h"
#include "models/grammar/grammar.h"
#include "models/tokenizer/tokenizer.h"

namespace tramontane {

// A grammar that is compiled once it is needed. Does not change; any thread.
class PendingGrammar {
 public:
  virtual ~PendingGrammar() = default;
  // Null: it is not compiled. Waits for no compiler.
  virtual std::shared_ptr<const Grammar> Find() const = 0;
  // `wanted`: asked from time to time; false: CANCELLED soon.
  virtual StatusOr<std::shared_ptr<const Grammar>> Compile(const std::function<bool()>& wanted) const = 0;
};

struct AnswerCall {
  std::vector<int32_t> head;  // ends in a control token
  std::shared_ptr<const PendingGrammar> text;
};

struct AnswerShape {
  enum class Begin {
    kCall,
    kAnyText,     // until a call or the end
    kTextOrCall,  // a text of `text`, and then the end; or calls
  };
  Begin begin = Begin::kCall;
  std::shared_ptr<const Grammar> text = {};
  std::vector<AnswerCall> calls = {};
  bool calls_repeat = false;
};

class AnswerGrammar final : public Grammar {
 public:
  // `eos_ids`: by which the grammars, all of a vocabulary of `vocab_size`, say that a text is whole.
  // `tokenizer` outlives it. REQUIRES: at least one call, heads as above, and no first id of a head in a
  // grammar's text.
  AnswerGrammar(AnswerShape shape, const Tokenizer& tokenizer, std::vector<int32_t> eos_ids,
                int32_t vocab_size);

  std::unique_ptr<GrammarMatcher> NewMatcher(TextStart start) const override;
  int64_t memory_bytes() const override;  // without what is compiled later

 private:
  class Matcher;

  const AnswerShape shape_;
  std::vector<int32_t> first_ids_;  // of heads, each once
  const Tokenizer& tokenizer_;
  const std::vector<int32_t> eos_ids_;
  const int32_t vocab_size_;
};

}  // namespace tramontane

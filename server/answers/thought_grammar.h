// ThoughtGrammar: an output that may begin with a thought, which is free, and then is a text of another
// grammar.
//
// A Grammar as any other (grammar.h), but that a thought costs no work: its mask was made once. Always:
// within a thought nothing ends the output, and no control token comes but those that mark a thought.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "models/chat/thought_in_text.h"
#include "models/chat/thought_marks.h"
#include "models/grammar/grammar.h"
#include "models/tokenizer/tokenizer.h"

namespace tramontane {

// The tokens of a vocabulary as thoughts have them. Made once for a server; does not change. `tokenizer`
// outlives it.
class ThoughtVocabulary {
 public:
  // `vocab_size`: of the model's logits.
  ThoughtVocabulary(const ThoughtMarks& marks, const Tokenizer& tokenizer, int32_t vocab_size);

  // The token that begins a thought: the control token, or the one piece that spells the mark. -1: none does,
  // so only a prompt can.
  int32_t begin() const { return begin_; }
  // A thought can come here, begun by the output or, where `open`, by its prompt.
  bool MayThink(bool open) const { return open || begin_ >= 0; }

  std::string_view Bytes(int32_t id) const { return tokenizer_.PieceBytes(id); }
  // Tokens that only go on with a character, as the second to fourth bytes of it.
  const std::vector<int32_t>& continuations() const { return continuations_; }
  // The longest piece that goes on with the mark of an end, where that is text, behind `written` bytes of it.
  // -1: none does.
  int32_t EndPiece(size_t written) const { return written < kEndBytes ? end_pieces_[written] : -1; }

 private:
  friend class ThoughtGrammar;

  void NoteEndPiece(int32_t id, std::string_view bytes);

  const Tokenizer& tokenizer_;
  ThoughtMarks marks_;
  int32_t begin_ = -1;
  std::vector<uint32_t> free_;  // [MaskWords(vocab_size)] what may come in a thought
  // Of marks that are text: pieces with a '>', which may complete the mark of an end; and pieces of new
  // lines.
  std::vector<std::pair<int32_t, std::string_view>> closing_;
  std::vector<int32_t> new_lines_;
  static constexpr size_t kEndBytes = kEndOfThought.size();
  std::array<int32_t, kEndBytes> end_pieces_;
  std::vector<int32_t> continuations_;
};

class ThoughtGrammar final : public Grammar {
 public:
  // `open`: the output begins within a thought. REQUIRES: vocabulary.MayThink(open), and that both are of one
  // vocabulary.
  ThoughtGrammar(std::shared_ptr<const ThoughtVocabulary> vocabulary, std::shared_ptr<const Grammar> answer,
                 bool open)
      : vocabulary_(std::move(vocabulary)), answer_(std::move(answer)), open_(open) {}

  std::unique_ptr<GrammarMatcher> NewMatcher(TextStart start) const override;
  int64_t memory_bytes() const override { return answer_->memory_bytes(); }

 private:
  class Matcher;

  const std::shared_ptr<const ThoughtVocabulary> vocabulary_;
  const std::shared_ptr<const Grammar> answer_;
  const bool open_;
};

}  // namespace tramontane

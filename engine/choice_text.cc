#include "engine/choice_text.h"

namespace tramontane {

ChoiceText::ChoiceText(const Request& request, const Tokenizer* tokenizer)
    : tokenizer_(tokenizer),
      matcher_(request.stopping.stop,
               request.stopping.include_stop ? StopMatcher::Matched::kShown : StopMatcher::Matched::kDropped),
      min_tokens_(request.stopping.min_tokens),
      skip_special_tokens_(request.output.skip_special_tokens) {
  if (tokenizer == nullptr) return;
  detokenizer_.emplace(*tokenizer);
  // After a control token a message starts, whose first space nobody typed; after text the output goes on
  // with it.
  const int32_t last = request.prompt.back();
  if (tokenizer->IsControl(last)) return;
  std::string prompt_text;
  detokenizer_->Append(last, &prompt_text);
  detokenizer_->Flush(&prompt_text);
}

const std::string* ChoiceText::Append(int32_t token, Spelling spelling, std::string* text) {
  ++tokens_;
  if (!detokenizer_ || spelling == Spelling::kHidden) return nullptr;
  const std::string piece = Spell(token);
  if (tokens_ >= min_tokens_) return matcher_.Append(piece, text);
  matcher_.AppendUnmatched(piece, text);
  return nullptr;
}

void ChoiceText::Flush(std::string* text) {
  if (!detokenizer_) return;
  std::string rest;
  detokenizer_->Flush(&rest);
  matcher_.Flush(text);
  *text += rest;
}

std::string ChoiceText::Spell(int32_t token) {
  std::string piece;
  if (!skip_special_tokens_ && tokenizer_->IsControl(token)) {
    detokenizer_->Flush(&piece);
    piece += tokenizer_->Piece(token);
  } else {
    detokenizer_->Append(token, &piece);
  }
  return piece;
}

}  // namespace tramontane

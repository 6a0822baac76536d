#include "engine/choice_text.h"

#include <algorithm>

namespace tramontane {

ChoiceText::ChoiceText(const Request& request, const Tokenizer* tokenizer)
    : tokenizer_(tokenizer),
      matcher_(request.stopping.stop,
               request.stopping.include_stop ? StopMatcher::Matched::kShown : StopMatcher::Matched::kDropped),
      min_tokens_(request.stopping.min_tokens),
      skip_special_tokens_(request.output.skip_special_tokens),
      marked_ids_(request.output.marked_ids) {
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

const std::string* ChoiceText::Append(int32_t token, Spelling spelling, Shown* shown) {
  ++tokens_;
  if (!detokenizer_ || spelling == Spelling::kHidden) return nullptr;
  const std::string piece = Spell(token);
  spelled_bytes_ += piece.size();
  if (IsMarked(token)) marks_.push_back({token, spelled_bytes_});
  const size_t old_bytes = shown->text.size();
  const std::string* stop = nullptr;
  if (tokens_ >= min_tokens_) {
    stop = matcher_.Append(piece, &shown->text);
  } else {
    matcher_.AppendUnmatched(piece, &shown->text);
  }
  CountShown(old_bytes, shown);
  return stop;
}

void ChoiceText::Flush(Shown* shown) {
  if (!detokenizer_) return;
  const size_t old_bytes = shown->text.size();
  std::string rest;
  detokenizer_->Flush(&rest);
  matcher_.Flush(&shown->text);
  shown->text += rest;
  CountShown(old_bytes, shown);
}

PieceUse ChoiceText::UseOf(int32_t token, Spelling spelling) const {
  if (!detokenizer_) return PieceUse::kAsItIs;
  const bool is_shown = spelling == Spelling::kShown;
  if (is_shown && !skip_special_tokens_ && tokenizer_->IsControl(token)) return PieceUse::kSpelledOut;
  return detokenizer_->at_start() ? PieceUse::kBeginsText : PieceUse::kAsItIs;
}

bool ChoiceText::IsMarked(int32_t token) const {
  return std::find(marked_ids_.begin(), marked_ids_.end(), token) != marked_ids_.end();
}

std::string ChoiceText::Spell(int32_t token) {
  std::string piece;
  const bool spelled_out = UseOf(token, Spelling::kShown) == PieceUse::kSpelledOut;
  // No character goes on across a control token that the reader is told of.
  if (spelled_out || IsMarked(token)) detokenizer_->Flush(&piece);
  if (spelled_out) {
    piece += tokenizer_->Piece(token);
  } else {
    detokenizer_->Append(token, &piece);
  }
  return piece;
}

// Before a stop string is complete, what is shown is the beginning of what was spelled, so a place in the one
// is the same place in the other. A stop string that began before a marked token cuts it off: it never shows.
void ChoiceText::CountShown(size_t old_bytes, Shown* shown) {
  const size_t old_shown_bytes = shown_bytes_;
  shown_bytes_ += shown->text.size() - old_bytes;
  auto mark = marks_.begin();
  for (; mark != marks_.end() && mark->at <= shown_bytes_; ++mark) {
    shown->marks.push_back({mark->token, static_cast<int32_t>(old_bytes + (mark->at - old_shown_bytes))});
  }
  marks_.erase(marks_.begin(), mark);
}

}  // namespace tramontane

#include "engine/output/choice_text.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace tramontane {

ChoiceText::ChoiceText(const Request& request, const Tokenizer* tokenizer)
    : tokenizer_(tokenizer),
      matcher_(request.stopping.stop,
               request.stopping.include_stop ? StopMatcher::Matched::kShown : StopMatcher::Matched::kDropped),
      min_tokens_(request.stopping.min_tokens),
      skip_special_tokens_(request.output.skip_special_tokens),
      marked_ids_(request.output.marked_ids),
      thoughts_(request.output.thoughts),
      thinks_(thoughts_.open) {
  if (tokenizer == nullptr) return;
  if (thoughts_.in_text && !request.stopping.stop.empty()) thought_.emplace(thoughts_.open);
  detokenizer_.emplace(*tokenizer);
  // After a control token a message starts, whose first space nobody typed; after text the output goes on
  // with it, and with a character that the prompt's ids leave unfinished, which may lie in several of them.
  constexpr ptrdiff_t kMostIds = Detokenizer::kMaxPendingBytes + 1;
  const auto is_control = [tokenizer](int32_t id) { return tokenizer->IsControl(id); };
  const auto end = request.prompt.rbegin() + std::min(kMostIds, std::ssize(request.prompt));
  const auto begin = std::find_if(request.prompt.rbegin(), end, is_control).base();
  std::string prompt_text;
  for (auto id = begin; id != request.prompt.end(); ++id) detokenizer_->Append(*id, &prompt_text);
  // A grammar holds the text alone.
  if (request.constraint.grammar != nullptr) detokenizer_->Flush(&prompt_text);
}

const std::string* ChoiceText::Append(int32_t token, Spelling spelling, Shown* shown) {
  ++tokens_;
  if (!detokenizer_ || spelling == Spelling::kHidden) return nullptr;
  const std::string piece = Spell(token);
  spelled_bytes_ += piece.size();
  if (IsMarked(token)) marks_.push_back({token, spelled_bytes_});
  const size_t old_bytes = shown->text.size();
  const std::string* stop = Match(token, piece, &shown->text);
  CountShown(old_bytes, shown);
  return stop;
}

// What stands in front of a thought and what behind it are no neighbours, so nothing is held across its
// marks.
const std::string* ChoiceText::Match(int32_t token, std::string_view piece, std::string* shown) {
  if (thoughts_.in_text) return thought_ ? MatchBehindThought(piece, shown) : MatchAnswer(piece, shown);
  const std::string* stop = nullptr;
  if (thinks_) {
    *shown += piece;
  } else {
    stop = MatchAnswer(piece, shown);
  }
  if (stop != nullptr) return stop;
  if (token == thoughts_.begin) {
    matcher_.Flush(shown);
    thinks_ = true;
  } else if (token == thoughts_.end || token == thoughts_.call) {
    thinks_ = false;
  }
  return nullptr;
}

const std::string* ChoiceText::MatchBehindThought(std::string_view piece, std::string* shown) {
  undecided_ += piece;
  const std::string answer = thought_->Take(piece).text;
  if (thought_->undecided()) return nullptr;
  const bool answers = thought_->answers();
  shown->append(undecided_, 0, undecided_.size() - answer.size());
  undecided_.clear();
  if (!answers) return nullptr;
  thought_.reset();
  return MatchAnswer(answer, shown);
}

const std::string* ChoiceText::MatchAnswer(std::string_view piece, std::string* shown) {
  if (tokens_ >= min_tokens_) return matcher_.Append(piece, shown);
  matcher_.AppendUnmatched(piece, shown);
  return nullptr;
}

const std::string* ChoiceText::Flush(Shown* shown) {
  if (!detokenizer_) return nullptr;
  const size_t old_bytes = shown->text.size();
  std::string rest;
  detokenizer_->Flush(&rest);
  const std::string* stop = MatchAnswer(std::exchange(undecided_, ""), &shown->text);
  if (stop == nullptr) {
    matcher_.Flush(&shown->text);
    shown->text += rest;
  }
  CountShown(old_bytes, shown);
  return stop;
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

#include "models/chat/thought_in_text.h"

#include <algorithm>
#include <utility>

namespace tramontane {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";  // that may stand in front of a thought

// Bytes at the end of `text` that may belong to the end of a thought: new lines, and what of the mark is
// there.
size_t BytesToHold(std::string_view text) {
  const std::string_view before = text.substr(0, text.size() - BytesOfEndMark(text));
  return text.size() - (before.find_last_not_of('\n') + 1);
}

}  // namespace

size_t BytesOfEndMark(std::string_view text) {
  size_t mark = std::min(kEndOfThought.size() - 1, text.size());
  while (!text.ends_with(kEndOfThought.substr(0, mark))) --mark;
  return mark;
}

ThoughtInText::Parts ThoughtInText::Take(std::string_view text) {
  Parts parts;
  held_ += text;
  while (Step(&parts)) {
  }
  return parts;
}

ThoughtInText::Parts ThoughtInText::End() {
  Parts parts;
  const bool is_thought = state_ == State::kThought || state_ == State::kThoughtBegins;
  (is_thought ? parts.reasoning : parts.text) = std::exchange(held_, "");
  return parts;
}

bool ThoughtInText::DropNewLines() {
  held_.erase(0, held_.find_first_not_of('\n'));
  return !held_.empty();
}

bool ThoughtInText::Step(Parts* parts) {
  switch (state_) {
    case State::kBegin: {
      const size_t begin = std::min(held_.find_first_not_of(kBlanks), held_.size());
      const std::string_view said = std::string_view(held_).substr(begin);
      if (kBeginOfThought.starts_with(said) && said != kBeginOfThought) return false;
      const bool thinks = said.starts_with(kBeginOfThought);
      if (thinks) held_.erase(0, begin + kBeginOfThought.size());
      state_ = thinks ? State::kThoughtBegins : State::kText;
      return true;
    }
    case State::kThoughtBegins:
      if (!DropNewLines()) return false;
      state_ = State::kThought;
      return true;
    case State::kThought: {
      const size_t end = held_.find(kEndOfThought);
      const std::string_view thought = std::string_view(held_).substr(0, end);
      const bool has_ended = end != std::string::npos;
      const size_t told = has_ended ? thought.find_last_not_of('\n') + 1 : held_.size() - BytesToHold(held_);
      parts->reasoning += thought.substr(0, told);
      held_.erase(0, has_ended ? end + kEndOfThought.size() : told);
      if (has_ended) state_ = State::kTextBegins;
      return has_ended;
    }
    case State::kTextBegins:
      if (!DropNewLines()) return false;
      state_ = State::kText;
      return true;
    case State::kText:
      parts->text += std::exchange(held_, "");
      return false;
  }
  return false;
}

void ThoughtTokens::Take(std::string_view piece) {
  if (state_ == State::kText) return;
  if (state_ == State::kThought) {
    if (piece.empty()) {
      ++counted_;  // no part of a mark
      return;
    }
    undecided_.push_back(held_.size());
  }
  held_ += piece;
  if (state_ == State::kBegin) {
    held_.erase(0, held_.find_first_not_of(kBlanks));
    if (kBeginOfThought.starts_with(held_) && held_ != kBeginOfThought) return;
    if (!held_.starts_with(kBeginOfThought)) return End();
    held_.erase(0, kBeginOfThought.size());
    state_ = State::kThought;
  }
  const size_t end = held_.find(kEndOfThought);
  const bool has_ended = end != std::string::npos;
  const size_t decided = has_ended ? end : held_.size() - BytesOfEndMark(held_);
  const auto first_of_mark = std::lower_bound(undecided_.begin(), undecided_.end(), decided);
  counted_ += first_of_mark - undecided_.begin();
  undecided_.erase(undecided_.begin(), has_ended ? undecided_.end() : first_of_mark);
  for (size_t& begin : undecided_) begin -= decided;
  held_.erase(0, decided);
  if (has_ended) End();
}

bool LeavesThoughtOpen(std::string_view text) {
  const size_t begin = text.rfind(kBeginOfThought);
  return begin != std::string_view::npos && text.find(kEndOfThought, begin) == std::string_view::npos;
}

}  // namespace tramontane

#include "server/answers/answer_splitter.h"

#include <algorithm>
#include <utility>

namespace tramontane {

std::vector<int32_t> MarkedIds(const AnswerSyntax& syntax, bool is_chat) {
  std::vector<int32_t> ids = {syntax.tool_calls, syntax.call_id, syntax.args};
  if (is_chat) ids.insert(ids.end(), {syntax.begin_think, syntax.end_think});
  std::erase(ids, -1);
  return ids;
}

AnswerSplitter::AnswerSplitter(const AnswerSyntax& syntax, std::span<const int32_t> marked, bool thinks,
                               const Tokenizer& tokenizer)
    : tokenizer_(&tokenizer), syntax_(syntax) {
  if (syntax.thinks_in_text) {
    thought_.emplace(thinks);
    thought_tokens_.emplace(thinks);
  }
  const bool tells_thinking = std::find(marked.begin(), marked.end(), syntax.begin_think) != marked.end();
  if (!tells_thinking) syntax_.begin_think = syntax_.end_think = -1;
  thinks_ = counts_ = thinks && tells_thinking;
}

void AnswerSplitter::Split(std::string text, std::span<const TextMark> marks, v1::Delta* proto) {
  if (thought_) return TellParts(thought_->Take(text), proto);
  if (marks.empty()) {
    if (text.empty()) return;
    return thinks_ ? proto->set_reasoning(std::move(text)) : proto->set_text(std::move(text));
  }
  size_t begin = 0;
  for (const TextMark& mark : marks) {
    const auto end = static_cast<size_t>(mark.at);
    AddText(std::string_view(text).substr(begin, end - begin), proto);
    AddMark(mark.token, proto);
    begin = end;
  }
  AddText(std::string_view(text).substr(begin), proto);
}

bool AnswerSplitter::End(v1::Delta* proto) {
  if (!thought_) return false;
  TellParts(thought_->End(), proto);
  return !proto->text().empty() || !proto->reasoning().empty();
}

void AnswerSplitter::TellParts(ThoughtInText::Parts parts, v1::Delta* proto) {
  if (!parts.reasoning.empty()) proto->set_reasoning(std::move(parts.reasoning));
  if (!parts.text.empty()) proto->set_text(std::move(parts.text));
}

void AnswerSplitter::AddText(std::string_view text, v1::Delta* proto) const {
  if (!text.empty()) (thinks_ ? proto->mutable_reasoning() : proto->mutable_text())->append(text);
}

// A thought within a thought is the same thought; a call ends it.
void AnswerSplitter::AddMark(int32_t token, v1::Delta* proto) {
  if (token == syntax_.begin_think) thinks_ = true;
  if (token == syntax_.end_think) thinks_ = false;
  const bool is_call = token == syntax_.tool_calls;
  const bool is_part = token == syntax_.call_id || token == syntax_.args;
  const auto at = static_cast<int32_t>(proto->text().size());
  if (is_call) {
    thinks_ = false;
    if (!std::exchange(calls_, true)) proto->set_tool_calls_at(at);
  }
  const bool is_told = is_call || (is_part && calls_ && !thinks_);
  if (!is_told || syntax_.calls != AnswerSyntax::Calls::kNameAndArguments) return;
  v1::Mark* mark = proto->add_marks();
  mark->set_kind(is_call                    ? v1::MARK_KIND_CALL
                 : token == syntax_.call_id ? v1::MARK_KIND_CALL_ID
                                            : v1::MARK_KIND_ARGUMENTS);
  mark->set_at(at);
}

void AnswerSplitter::Count(std::span<const int32_t> ids) {
  for (const int32_t id : ids) {
    if (thought_tokens_) {
      id == syntax_.end ? thought_tokens_->End() : thought_tokens_->Take(tokenizer_->PieceBytes(id));
      continue;
    }
    if (id == syntax_.begin_think) {
      counts_ = true;
    } else if (id == syntax_.end_think || id == syntax_.tool_calls || id == syntax_.end) {
      counts_ = false;
    } else if (counts_) {
      ++reasoning_tokens_;
    }
  }
}

}  // namespace tramontane

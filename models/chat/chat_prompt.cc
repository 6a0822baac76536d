#include "models/chat/chat_prompt.h"

#include <optional>
#include <utility>

#include "models/chat/chat_check.h"

namespace tramontane {

int32_t BeginningOf(const Tokenizer& tokenizer) {
  return tokenizer.bos_id() >= 0 ? tokenizer.bos_id() : tokenizer.ControlId("<s>").value_or(-1);
}

int32_t EndOf(const Tokenizer& tokenizer) {
  return tokenizer.eos_id() >= 0 ? tokenizer.eos_id() : tokenizer.ControlId("</s>").value_or(-1);
}

Status ChatPrompt::Id(int32_t id, const char* what) {
  if (id < 0) {
    return FailedPrecondition("the tokenizer has no token for the " + std::string(what) + " of a text");
  }
  ids_.push_back(id);
  return Status::Ok();
}

Status ChatPrompt::Control(std::string_view piece) {
  const std::optional<int32_t> id = tokenizer_.ControlId(piece);
  if (!id) return FailedPrecondition("the tokenizer has no control token " + std::string(piece));
  ids_.push_back(*id);
  return Status::Ok();
}

Status ChatPrompt::Text(const std::string& label, std::string_view text) {
  StatusOr<std::vector<int32_t>> ids = tokenizer_.Encode(text);
  if (!ids.ok()) return ChatFault(label, ids.status().message());
  ids_.insert(ids_.end(), ids->begin(), ids->end());
  return Status::Ok();
}

Status ChatPrompt::Block(std::string_view begin, const std::string& label, std::string_view text,
                         std::string_view end) {
  TM_RETURN_IF_ERROR(Control(begin));
  TM_RETURN_IF_ERROR(Text(label, text));
  return Control(end);
}

Status ChatPrompt::Parts(const std::string& label, std::span<const ContentPart> parts) {
  for (const ContentPart& part : parts) {
    const bool is_thinking = part.kind == ContentPart::Kind::kThinking;
    if (is_thinking) TM_RETURN_IF_ERROR(Control("[THINK]"));
    TM_RETURN_IF_ERROR(Text(label, part.text));
    if (is_thinking && part.closed) TM_RETURN_IF_ERROR(Control("[/THINK]"));
  }
  return Status::Ok();
}

RenderedChat ChatPrompt::Finish() {
  RenderedChat rendered;
  rendered.text = tokenizer_.Spelling(ids_);
  rendered.ids = std::move(ids_);
  return rendered;
}

}  // namespace tramontane

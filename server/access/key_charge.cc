#include "server/access/key_charge.h"

#include "server/access/key_use.h"

namespace tramontane {

RpcError KeyCharge::Begin() {
  if (continues_ || key_ == nullptr) return {};
  RpcError error = key_->use->Begin(*key_);
  has_begun_ = error.ok();
  return error;
}

void KeyCharge::NotePrompt(int64_t tokens) {
  if (std::exchange(is_admitted_, true) || key_ == nullptr) return;
  key_->use->NoteTokens(tokens);
}

void KeyCharge::NoteCompletion(int32_t choice, int64_t tokens) {
  if (choice < 0 || key_ == nullptr) return;
  const auto index = static_cast<size_t>(choice);
  if (index >= completion_tokens_.size()) completion_tokens_.resize(index + 1);
  const int64_t before = completion_tokens_[index];
  if (tokens <= before) return;
  key_->use->NoteTokens(tokens - before);
  completion_tokens_[index] = tokens;
}

void KeyCharge::End() {
  if (!std::exchange(has_begun_, false)) return;
  if (!is_admitted_) key_->use->GiveBack();
  key_->use->End();
}

}  // namespace tramontane

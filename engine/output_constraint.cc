#include "engine/output_constraint.h"

#include <algorithm>

namespace tramontane {
namespace {

// The forced tokens may be text themselves; control tokens leave the start of a message where it is.
TextStart StartOfText(const Request& request, const Tokenizer& tokenizer) {
  MessageBytes message(tokenizer);
  if (!tokenizer.IsControl(request.prompt.back())) message.Next(request.prompt.back());
  for (const int32_t token : request.constraint.forced_prefix) message.Next(token);
  return message.at_start() ? TextStart::kOfMessage : TextStart::kWithinMessage;
}

}  // namespace

OutputConstraint::OutputConstraint(const Request& request, const Tokenizer& tokenizer)
    : forced_(request.constraint.forced_prefix),
      matcher_(request.constraint.grammar->NewMatcher(StartOfText(request, tokenizer))) {}

void OutputConstraint::FillMask(std::span<uint32_t> mask) {
  if (forced_done_ == forced_.size()) return matcher_->FillMask(mask);
  std::fill(mask.begin(), mask.end(), 0);
  const int32_t token = forced_[forced_done_];
  mask[static_cast<size_t>(token) / 32] |= 1u << (token % 32);
}

bool OutputConstraint::Accept(int32_t token) {
  if (forced_done_ == forced_.size()) return matcher_->Accept(token);
  if (token != forced_[forced_done_]) return false;
  ++forced_done_;
  return true;
}

}  // namespace tramontane

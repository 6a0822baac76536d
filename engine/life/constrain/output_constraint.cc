#include "engine/life/constrain/output_constraint.h"

#include <algorithm>
#include <string>
#include <utility>

namespace tramontane {
namespace {

// Longer than nearly all masks take, and than a step should wait.
constexpr int64_t kSlowNs = 1'000'000;

// The forced tokens may be text themselves; control tokens leave the start of a message where it is.
TextStart StartOfText(const Request& request, const Tokenizer& tokenizer) {
  MessageBytes message(tokenizer);
  if (!tokenizer.IsControl(request.prompt.back())) message.Next(request.prompt.back());
  for (const int32_t token : request.constraint.forced_prefix) message.Next(token);
  return message.at_start() ? TextStart::kOfMessage : TextStart::kWithinMessage;
}

void AllowOnly(int32_t token, std::span<uint32_t> mask) {
  std::fill(mask.begin(), mask.end(), 0);
  mask[static_cast<size_t>(token) / 32] |= 1u << (token % 32);
}

std::string Microseconds(int64_t ns) { return std::to_string(ns / 1000) + " us"; }

}  // namespace

StatusOr<ConstraintStart> StartOfConstraint(const Request& request, const Tokenizer& tokenizer,
                                            int32_t vocab_size, int64_t step_ns) {
  ConstraintStart start;
  start.text = StartOfText(request, tokenizer);
  start.mask.resize(MaskWords(vocab_size));
  start.left_ns = ConstraintStart::kStepsAhead * step_ns;
  if (!request.constraint.forced_prefix.empty()) {
    AllowOnly(request.constraint.forced_prefix.front(), start.mask);
    return start;
  }
  GrammarWork work{.most_ns = start.left_ns};
  request.constraint.grammar->NewMatcher(start.text)->FillMask(start.mask, work);
  if (!work.stopped) return start;
  return InvalidArgument("takes more than " + Microseconds(start.left_ns) +
                         " for its first token: it is too ambiguous (max_constraint_step_us is " +
                         std::to_string(step_ns / 1000) + ")")
      .WithField("constraint", FieldForm::kSubject);
}

void OutputConstraint::Work() {
  if (abandoned_.load(std::memory_order_relaxed)) return;
  GrammarWork work{.most_ns = std::min(step_ns_, live_->constraint_left_ns.load(std::memory_order_relaxed)),
                   .wanted = [this] { return !abandoned_.load(std::memory_order_relaxed); }};
  mask_.resize(live_->constraint_start.mask.size());
  const bool allowed = work.most_ns > 0 && AcceptAndFill(work);
  Charge(work);
  if (fault_.ok() && !allowed) fault_ = Internal("the constraint does not take a token that it allowed");
  ready_.store(true, std::memory_order_release);
}

bool OutputConstraint::AcceptAndFill(GrammarWork& work) {
  if (forced_done_ < forced().size()) {
    if (token_ != forced()[forced_done_]) return false;
    if (++forced_done_ < forced().size()) {
      AllowOnly(forced()[forced_done_], mask_);
      return true;
    }
    matcher_ = live_->request.constraint.grammar->NewMatcher(live_->constraint_start.text);
  } else {
    if (matcher_ == nullptr) {
      matcher_ = live_->request.constraint.grammar->NewMatcher(live_->constraint_start.text);
    }
    if (!matcher_->Accept(token_, work)) return false;
  }
  matcher_->FillMask(mask_, work);
  return !work.stopped;
}

// Each token of each choice brings the request the same part of a step's time; all choices live on it
// together.
void OutputConstraint::Charge(const GrammarWork& work) {
  spent_ns_ += work.spent_ns;
  slow_ = work.spent_ns > kSlowNs;
  const int64_t change = step_ns_ / live_->request.choices - work.spent_ns;
  const int64_t left = live_->constraint_left_ns.fetch_add(change, std::memory_order_relaxed) + change;
  const int64_t most = ConstraintStart::kStepsAhead * step_ns_;
  if (left > most) live_->constraint_left_ns.fetch_sub(left - most, std::memory_order_relaxed);
  if (!work.stopped && work.most_ns > 0 && left >= 0) return;
  fault_ = ResourceExhausted(
      "the constraint has spent its request's share of the engine's time: " + Microseconds(work.spent_ns) +
      " for its last token, where a step of all choices has " + Microseconds(step_ns_) +
      " (max_constraint_step_us)");
}

}  // namespace tramontane

#include "engine/life/constrain/output_constraint.h"

#include <algorithm>
#include <string>
#include <utility>

namespace tramontane {
namespace {

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
  start.mask_words = MaskWords(vocab_size);
  start.left_ns = ConstraintStart::kStepsAhead * step_ns;
  const std::unique_ptr<GrammarMatcher> matcher = request.constraint.grammar->NewMatcher(start.text);
  if (request.constraint.forced_prefix.empty() && matcher->IsFree()) return start;
  start.mask.resize(start.mask_words);
  if (!request.constraint.forced_prefix.empty()) {
    AllowOnly(request.constraint.forced_prefix.front(), start.mask);
    return start;
  }
  GrammarWork work{.most_ns = start.left_ns};
  matcher->FillMask(start.mask, work);
  if (!work.stopped) return start;
  return InvalidArgument("takes more than " + Microseconds(start.left_ns) +
                         " for its first token: it is too ambiguous (max_constraint_step_us is " +
                         std::to_string(step_ns / 1000) + ")")
      .WithField("constraint", FieldForm::kSubject);
}

bool OutputConstraint::Follow(int32_t token) {
  if (free_ && matcher().StayFree(token)) return false;
  token_ = token;
  stage_.store(Stage::kWorks, std::memory_order_relaxed);
  return true;
}

std::span<const uint32_t> OutputConstraint::mask() const {
  if (free_) return {};
  return mask_.empty() ? live_->constraint_start.mask : mask_;
}

// Compiling is of no request's share of the workers' time: the compiler bounds it.
void OutputConstraint::Work() {
  if (abandoned_.load(std::memory_order_relaxed)) return;
  const auto wanted = [this] { return !abandoned_.load(std::memory_order_relaxed); };
  GrammarWork work{.most_ns = std::min(step_ns_, live_->constraint_left_ns.load(std::memory_order_relaxed)),
                   .wanted = wanted};
  bool allowed = work.most_ns > 0;
  if (prepares()) {
    fault_ = matcher().Prepare(wanted);
    allowed = allowed && fault_.ok();
  } else {
    allowed = allowed && Accept(work);
    if (allowed && !forces() && matcher().IsUnprepared())
      return stage_.store(Stage::kMustPrepare, std::memory_order_release);
  }
  free_ = allowed && !forces() && matcher().IsFree();
  if (allowed && !free_) {
    mask_.resize(live_->constraint_start.mask_words);
    FillMask(work);
  }
  Charge(work);
  if (fault_.ok() && !allowed) fault_ = Internal("the constraint does not take a token that it allowed");
  stage_.store(Stage::kReady, std::memory_order_release);
}

GrammarMatcher& OutputConstraint::matcher() {
  if (matcher_ == nullptr) {
    matcher_ = live_->request.constraint.grammar->NewMatcher(live_->constraint_start.text);
  }
  return *matcher_;
}

bool OutputConstraint::Accept(GrammarWork& work) {
  if (!forces()) return matcher().Accept(token_, work);
  if (token_ != forced()[forced_done_]) return false;
  ++forced_done_;
  return true;
}

void OutputConstraint::FillMask(GrammarWork& work) {
  if (forces()) return AllowOnly(forced()[forced_done_], mask_);
  matcher().FillMask(mask_, work);
}

// Each token of each choice brings the request the same part of a step's time; all choices live on it
// together.
void OutputConstraint::Charge(const GrammarWork& work) {
  spent_ns_ += work.spent_ns;
  last_ns_ = work.spent_ns;
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

#include "server/answers/thought_budget.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/core/utf8.h"
#include "models/chat/thought_in_text.h"

namespace tramontane {

class ThoughtBudget::Matcher final : public GrammarMatcher {
 public:
  Matcher(const ThoughtBudget& budget, TextStart start)
      : vocabulary_(*budget.vocabulary_),
        marks_(budget.marks_),
        most_(budget.tokens_),
        thinks_(budget.marks_.open && !budget.marks_.in_text) {
    if (marks_.in_text) in_text_.emplace(marks_.open);
    if (budget.answer_ != nullptr) answer_ = budget.answer_->NewMatcher(start);
  }

  bool IsFree() const override { return !IsSpent() && (answer_ == nullptr || answer_->IsFree()); }
  bool StayFree(int32_t token) override {
    if (MaySpend(token)) return false;
    if (answer_ != nullptr && !answer_->StayFree(token)) return false;
    Note(token);
    return true;
  }

  std::unique_ptr<GrammarMatcher> Copy() const override { return std::make_unique<Matcher>(*this); }

  bool IsUnprepared() const override { return answer_ != nullptr && answer_->IsUnprepared(); }
  Status Prepare(const std::function<bool()>& wanted) override { return answer_->Prepare(wanted); }

  void FillMask(std::span<uint32_t> mask, GrammarWork& work) override {
    if (IsSpent()) return FillEnd(mask);
    if (answer_ != nullptr) return answer_->FillMask(mask, work);
    std::fill(mask.begin(), mask.end(), ~0u);
  }

  bool Accept(int32_t token, GrammarWork& work) override {
    if (IsSpent() && !MayEnd(token)) return false;
    if (answer_ != nullptr && !answer_->Accept(token, work)) return false;
    Note(token);
    return true;
  }

 private:
  bool IsSpent() const {
    if (in_text_) return in_text_->thinks() && in_text_->count() >= most_ && EndId() >= 0;
    return thinks_ && counted_ >= most_;
  }
  // Whether the budget may be spent behind `token`.
  bool MaySpend(int32_t token) const {
    if (in_text_) return !in_text_->answers() && in_text_->count() + 1 >= most_;
    return (thinks_ || token == marks_.begin) && counted_ + 1 >= most_;
  }

  void Note(int32_t token) {
    const std::string_view bytes = vocabulary_.Bytes(token);
    if (in_text_) {
      in_text_->Take(bytes);
    } else if (token == marks_.begin) {
      thinks_ = true;
    } else if (token == marks_.end || token == marks_.call) {
      thinks_ = false;
    } else if (thinks_) {
      ++counted_;
    }
    begun_.append(bytes);
    begun_.erase(0, begun_.size() - TruncatedUtf8Bytes(begun_));
  }

  // Of the mark, behind what is there of it.
  int32_t EndId() const { return in_text_ ? vocabulary_.EndPiece(in_text_->held_bytes()) : marks_.end; }
  // Whether `token` goes on with the character that has begun, and with nothing behind it.
  bool Completes(int32_t token) const {
    const std::string text = begun_ + std::string(vocabulary_.Bytes(token));
    const Utf8Unit unit = NextUtf8(text);
    return unit.kind != Utf8Kind::kInvalid && unit.bytes == text.size();
  }
  bool CanComplete() const {
    const auto& ids = vocabulary_.continuations();
    return !begun_.empty() &&
           std::any_of(ids.begin(), ids.end(), [this](int32_t id) { return Completes(id); });
  }
  void FillEnd(std::span<uint32_t> mask) const {
    std::fill(mask.begin(), mask.end(), 0);
    const auto allow = [mask](int32_t id) { mask[static_cast<size_t>(id) / 32] |= 1u << (id % 32); };
    if (!CanComplete()) return allow(EndId());
    for (const int32_t id : vocabulary_.continuations()) {
      if (Completes(id)) allow(id);
    }
  }
  bool MayEnd(int32_t token) const {
    if (!CanComplete()) return token == EndId();
    const auto& ids = vocabulary_.continuations();
    return std::find(ids.begin(), ids.end(), token) != ids.end() && Completes(token);
  }

  const ThoughtVocabulary& vocabulary_;
  const ThoughtMarks marks_;
  const int64_t most_;
  bool thinks_;
  int64_t counted_ = 0;
  std::optional<ThoughtTokens> in_text_;  // where the marks are text: in place of the two above
  std::string begun_;                     // of a character, not whole yet: at most 3 bytes
  InnerMatcher answer_;
};

std::unique_ptr<GrammarMatcher> ThoughtBudget::NewMatcher(TextStart start) const {
  return std::make_unique<Matcher>(*this, start);
}

}  // namespace tramontane

#include "models/grammar/answer_grammar.h"

#include <algorithm>
#include <utility>

#include "kernels/core/check.h"

namespace tramontane {
namespace {

bool Contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

class AnswerGrammar::Matcher final : public GrammarMatcher {
 public:
  Matcher(const AnswerGrammar& grammar, TextStart start)
      : grammar_(grammar), shape_(grammar.shape_), start_(start), message_(grammar.tokenizer_) {
    if (shape_.begin == AnswerShape::Begin::kCall) BeginHead();
    if (shape_.begin == AnswerShape::Begin::kTextOrCall) text_ = shape_.text->NewMatcher(start);
  }

  bool IsFree() const override { return state_ == State::kAnswer && text_ == nullptr; }
  bool StayFree(int32_t token) override {
    if (BeginsHead(token)) return false;
    NoteText(token);
    return true;
  }

  std::unique_ptr<GrammarMatcher> Copy() const override { return std::make_unique<Matcher>(*this); }

  bool IsUnprepared() const override { return state_ == State::kCall && text_ == nullptr; }
  Status Prepare(const std::function<bool()>& wanted) override {
    TM_ASSIGN_OR_RETURN(const std::shared_ptr<const Grammar> text, open_.front()->text->Compile(wanted));
    BeginCall(*text);
    return {};
  }

  void FillMask(std::span<uint32_t> mask, GrammarWork& work) override {
    if (IsFree()) return std::fill(mask.begin(), mask.end(), ~0u);
    if (state_ == State::kHead) {
      std::fill(mask.begin(), mask.end(), 0);
      for (const AnswerCall* call : open_) Allow(call->head[at_], mask);
      return;
    }
    TM_CHECK(text_ != nullptr, "a call's grammar is still to be compiled");
    text_->FillMask(mask, work);
    if (work.stopped || !MayCall(mask)) return;
    for (const int32_t id : grammar_.first_ids_) Allow(id, mask);
  }

  bool Accept(int32_t token, GrammarWork& work) override {
    if (state_ == State::kHead) return AcceptInHead(token);
    if (!BeginsHead(token)) {
      if (IsFree()) {
        NoteText(token);
        return true;
      }
      if (!text_->Accept(token, work)) return false;
      has_begun_ = true;
      return true;
    }
    if (!IsFree()) {
      std::vector<uint32_t> mask(MaskWords(grammar_.vocab_size_));
      text_->FillMask(mask, work);
      if (work.stopped || !MayCall(mask)) return false;
    }
    BeginHead();
    return AcceptInHead(token);
  }

 private:
  enum class State {
    kAnswer,  // before the calls
    kHead,
    kCall,  // behind its head
  };

  static void Allow(int32_t token, std::span<uint32_t> mask) {
    mask[static_cast<size_t>(token) / 32] |= 1u << (token % 32);
  }

  bool BeginsHead(int32_t token) const { return Contains(grammar_.first_ids_, token); }
  // Whether a call may come next to the text of which this is the mask.
  bool MayCall(std::span<const uint32_t> mask) const {
    if (state_ == State::kAnswer) return !has_begun_;
    return shape_.calls_repeat && std::any_of(grammar_.eos_ids_.begin(), grammar_.eos_ids_.end(),
                                              [mask](int32_t eos) { return MaskAllows(mask, eos); });
  }

  void NoteText(int32_t token) {
    if (start_ == TextStart::kWithinMessage) return;
    message_.Next(token);
    if (!message_.at_start()) start_ = TextStart::kWithinMessage;
  }

  void BeginHead() {
    state_ = State::kHead;
    text_ = nullptr;
    at_ = 0;
    open_.clear();
    for (const AnswerCall& call : shape_.calls) open_.push_back(&call);
  }

  bool AcceptInHead(int32_t token) {
    std::vector<const AnswerCall*> still_open;
    for (const AnswerCall* call : open_) {
      if (call->head[at_] == token) still_open.push_back(call);
    }
    if (still_open.empty()) return false;
    open_ = std::move(still_open);
    NoteText(token);
    if (++at_ < open_.front()->head.size()) return true;
    state_ = State::kCall;
    if (const std::shared_ptr<const Grammar> text = open_.front()->text->Find()) BeginCall(*text);
    return true;
  }
  void BeginCall(const Grammar& text) { text_ = text.NewMatcher(start_); }

  const AnswerGrammar& grammar_;
  const AnswerShape& shape_;
  State state_ = State::kAnswer;
  TextStart start_;                      // of what comes next
  MessageBytes message_;                 // what has come, as far as start_ asks
  bool has_begun_ = false;               // the text of the answer's grammar
  std::vector<const AnswerCall*> open_;  // whose heads begin as this call does
  size_t at_ = 0;                        // ids of the head so far
  InnerMatcher text_;                    // of the answer or the call; null: any, or none yet
};

AnswerGrammar::AnswerGrammar(AnswerShape shape, const Tokenizer& tokenizer, std::vector<int32_t> eos_ids,
                             int32_t vocab_size)
    : shape_(std::move(shape)), tokenizer_(tokenizer), eos_ids_(std::move(eos_ids)), vocab_size_(vocab_size) {
  TM_CHECK(!shape_.calls.empty(), "a grammar of calls needs calls");
  for (const AnswerCall& call : shape_.calls) {
    TM_CHECK(!call.head.empty(), "a call needs a head");
    if (!Contains(first_ids_, call.head[0])) first_ids_.push_back(call.head[0]);
  }
}

std::unique_ptr<GrammarMatcher> AnswerGrammar::NewMatcher(TextStart start) const {
  return std::make_unique<Matcher>(*this, start);
}

int64_t AnswerGrammar::memory_bytes() const {
  int64_t bytes = shape_.text == nullptr ? 0 : shape_.text->memory_bytes();
  for (const AnswerCall& call : shape_.calls) bytes += std::ssize(call.head) * int64_t{sizeof(int32_t)};
  return bytes;
}

}  // namespace tramontane

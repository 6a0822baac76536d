#include "server/answers/thought_grammar.h"

#include <algorithm>
#include <string>

#include "models/chat/thought_in_text.h"

namespace tramontane {
namespace {

constexpr size_t kMostNewLines = 4;  // between a thought whose marks are text and the answer

void Allow(int32_t token, std::span<uint32_t> mask) {
  mask[static_cast<size_t>(token) / 32] |= 1u << (token % 32);
}
void Forbid(int32_t token, std::span<uint32_t> mask) {
  mask[static_cast<size_t>(token) / 32] &= ~(1u << (token % 32));
}

bool IsNewLines(std::string_view text) { return text.find_first_not_of('\n') == std::string_view::npos; }

bool GoesOnWithCharacter(std::string_view bytes) {
  return bytes.size() <= 3 && std::all_of(bytes.begin(), bytes.end(), [](char c) {
           return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
         });
}

// Whether `text`, of a thought, ends it and goes on with what is not of its end any more.
bool GoesOnBehindEnd(std::string_view text) {
  const size_t end = text.find(kEndOfThought);
  return end != std::string_view::npos && !IsNewLines(text.substr(end + kEndOfThought.size()));
}

}  // namespace

ThoughtVocabulary::ThoughtVocabulary(const ThoughtMarks& marks, const Tokenizer& tokenizer,
                                     int32_t vocab_size)
    : tokenizer_(tokenizer), marks_(marks), begin_(marks.begin), free_(MaskWords(vocab_size)) {
  end_pieces_.fill(-1);
  for (int32_t id = 0; id < std::min(vocab_size, tokenizer.vocab_size()); ++id) {
    const PieceKind kind = tokenizer.Kind(id);
    if (kind != PieceKind::kText && kind != PieceKind::kByte) continue;
    const std::string_view bytes = tokenizer.PieceBytes(id);
    if (bytes.empty()) continue;
    Allow(id, free_);
    if (GoesOnWithCharacter(bytes)) continuations_.push_back(id);
    if (!marks.in_text) continue;
    if (bytes == kBeginOfThought) begin_ = id;
    NoteEndPiece(id, bytes);
    if (IsNewLines(bytes)) new_lines_.push_back(id);
    if (bytes.find('>') != std::string_view::npos) closing_.emplace_back(id, bytes);
    if (GoesOnBehindEnd(bytes)) Forbid(id, free_);
  }
  for (const int32_t id : {marks.begin, marks.end}) {
    if (id >= 0) Allow(id, free_);
  }
}

void ThoughtVocabulary::NoteEndPiece(int32_t id, std::string_view bytes) {
  for (size_t at = 0; at < kEndBytes; ++at) {
    int32_t& best = end_pieces_[at];
    const bool fits = kEndOfThought.substr(at).starts_with(bytes);
    if (fits && (best < 0 || bytes.size() > Bytes(best).size())) best = id;
  }
}

class ThoughtGrammar::Matcher final : public GrammarMatcher {
 public:
  Matcher(const ThoughtGrammar& grammar, TextStart start)
      : vocabulary_(*grammar.vocabulary_),
        answer_grammar_(*grammar.answer_),
        start_(start),
        state_(grammar.open_ ? State::kThought : State::kBegin) {
    if (state_ == State::kBegin) answer_ = answer_grammar_.NewMatcher(start_);
  }

  std::unique_ptr<GrammarMatcher> Copy() const override { return std::make_unique<Matcher>(*this); }
  bool IsUnprepared() const override { return answer_ != nullptr && answer_->IsUnprepared(); }
  Status Prepare(const std::function<bool()>& wanted) override { return answer_->Prepare(wanted); }

  void FillMask(std::span<uint32_t> mask, GrammarWork& work) override {
    if (state_ == State::kThought) return FillThought(mask);
    answer_->FillMask(mask, work);
    if (work.stopped) return;
    if (state_ == State::kBegin) Allow(vocabulary_.begin_, mask);
    if (state_ == State::kBehindThought && behind_ < kMostNewLines) {
      for (const int32_t id : vocabulary_.new_lines_) Allow(id, mask);
    }
  }

  bool Accept(int32_t token, GrammarWork& work) override {
    if (state_ == State::kThought) return AcceptInThought(token);
    if (state_ == State::kBegin && token == vocabulary_.begin_) {
      answer_ = nullptr;
      state_ = State::kThought;
      return true;
    }
    const std::string_view bytes = vocabulary_.tokenizer_.PieceBytes(token);
    const bool is_between =
        state_ == State::kBehindThought && behind_ < kMostNewLines && !bytes.empty() && IsNewLines(bytes);
    if (is_between) {
      behind_ += bytes.size();
      return true;
    }
    if (!answer_->Accept(token, work)) return false;
    state_ = State::kAnswer;
    return true;
  }

 private:
  enum class State {
    kBegin,  // a thought or the answer
    kThought,
    kBehindThought,  // whose marks are text: new lines, or the answer
    kAnswer,
  };

  void FillThought(std::span<uint32_t> mask) const {
    std::copy(vocabulary_.free_.begin(), vocabulary_.free_.end(), mask.begin());
    if (tail_.empty()) return;
    for (const auto& [id, bytes] : vocabulary_.closing_) {
      if (GoesOnBehindEnd(tail_ + std::string(bytes))) Forbid(id, mask);
    }
  }

  bool AcceptInThought(int32_t token) {
    if (token < 0 || static_cast<size_t>(token) / 32 >= vocabulary_.free_.size() ||
        !MaskAllows(vocabulary_.free_, token))
      return false;
    if (!vocabulary_.marks_.in_text) {
      if (token == vocabulary_.marks_.end) return BeginAnswer(State::kAnswer);
      if (token != vocabulary_.marks_.begin) start_ = TextStart::kWithinMessage;
      return true;
    }
    const std::string text = tail_ + std::string(vocabulary_.tokenizer_.PieceBytes(token));
    if (GoesOnBehindEnd(text)) return false;
    start_ = TextStart::kWithinMessage;
    const size_t end = text.find(kEndOfThought);
    if (end != std::string::npos) {
      behind_ = text.size() - end - kEndOfThought.size();
      return BeginAnswer(State::kBehindThought);
    }
    tail_ = text.substr(text.size() - BytesOfEndMark(text));
    return true;
  }

  bool BeginAnswer(State state) {
    tail_.clear();
    state_ = state;
    answer_ = answer_grammar_.NewMatcher(start_);
    return true;
  }

  const ThoughtVocabulary& vocabulary_;
  const Grammar& answer_grammar_;
  TextStart start_;  // of what comes next
  State state_;
  std::string tail_;     // of a thought: what may be the beginning of the mark of its end, where that is text
  size_t behind_ = 0;    // new lines since that mark
  InnerMatcher answer_;  // null in a thought
};

std::unique_ptr<GrammarMatcher> ThoughtGrammar::NewMatcher(TextStart start) const {
  return std::make_unique<Matcher>(*this, start);
}

}  // namespace tramontane

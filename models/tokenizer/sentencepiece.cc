#include "models/tokenizer/sentencepiece.h"

#include <algorithm>
#include <utility>

#include "kernels/core/check.h"
#include "kernels/core/utf8.h"
#include "models/tokenizer/space_mark.h"

namespace tramontane {
SentencePieceTokenizer::SentencePieceTokenizer(SentencePieceModel model,
                                               std::optional<TokenizerVersion> version,
                                               const char* version_source)
    : version_(version),
      version_source_(version_source),
      adds_bos_(model.adds_bos),
      add_dummy_prefix_(model.add_dummy_prefix),
      prefix_begins_text_(model.prefix_begins_text),
      remove_extra_whitespaces_(model.remove_extra_whitespaces),
      byte_fallback_(model.byte_fallback),
      words_are_independent_(true) {
  using Type = SentencePieceModel::Type;
  warnings_ = std::move(model.warnings);
  pieces_.reserve(model.pieces.size());
  for (SentencePieceModel::Piece& piece : model.pieces) {
    PieceEntry entry{PieceKind::kText, piece.score, std::move(piece.text), {}};
    switch (piece.type) {
      case Type::kNormal:
      case Type::kUserDefined:
      case Type::kUnused:
        entry.bytes = WithPlainSpaces(entry.text);
        break;
      case Type::kUnknown:
        entry.kind = PieceKind::kUnknown;
        entry.bytes = model.unk_surface;
        break;
      case Type::kControl:
        entry.kind = PieceKind::kControl;
        break;
      case Type::kByte:
        entry.kind = PieceKind::kByte;
        entry.bytes = static_cast<char>(ParseBytePiece(entry.text));
        break;
    }
    pieces_.push_back(std::move(entry));
  }
  padding_begin_ = vocab_size();
  while (padding_begin_ > 0 && model.pieces[Index(padding_begin_ - 1)].type == Type::kUnused)
    --padding_begin_;
  std::vector<std::pair<std::string, int32_t>> user_defined;
  // The views below are into pieces_, which no longer moves.
  for (int32_t id = 0; id < vocab_size(); ++id) {
    const std::string_view text = pieces_[Index(id)].text;
    switch (model.pieces[Index(id)].type) {
      case Type::kUserDefined:
        user_defined.emplace_back(text, id);
        text_ids_.emplace(text, id);
        break;
      case Type::kNormal:
      case Type::kUnused:
        text_ids_.emplace(text, id);
        max_merged_bytes_ = std::max(max_merged_bytes_, text.size());
        words_are_independent_ = words_are_independent_ && !HasSpaceMarkInside(text);
        break;
      case Type::kUnknown:
        unk_id_ = id;
        break;
      case Type::kControl:
        control_ids_.emplace(text, id);
        break;
      case Type::kByte:
        byte_ids_[static_cast<uint8_t>(pieces_[Index(id)].bytes[0])] = id;
        break;
    }
  }
  user_defined_ = SpellingMatcher(std::move(user_defined));
  bos_id_ = ControlId(model.bos_piece).value_or(-1);
  eos_id_ = ControlId(model.eos_piece).value_or(-1);
  IndexControlPieces();
}

LeadingSpace SentencePieceTokenizer::leading_space() const {
  if (remove_extra_whitespaces_) return LeadingSpace::kAllDropped;
  return add_dummy_prefix_ ? LeadingSpace::kFirstDropped : LeadingSpace::kKept;
}

std::optional<int32_t> SentencePieceTokenizer::ControlId(std::string_view piece) const {
  const auto found = control_ids_.find(piece);
  if (found == control_ids_.end()) return std::nullopt;
  return found->second;
}

// A stretch of the normalised text; a merge grows the left one of two over the right one.
struct SentencePieceTokenizer::Symbol {
  static constexpr uint32_t kNone = UINT32_MAX;

  uint32_t begin;  // byte offset in the word
  uint32_t bytes;  // 0 once merged into its left neighbour
  uint32_t left;   // index of the neighbour, or kNone
  uint32_t right;
  bool user_defined;  // never merges
};

// Merges the symbols of one word after another; keeps its memory between them.
class SentencePieceTokenizer::Merger {
 public:
  Merger(const SentencePieceTokenizer& tokenizer, EncodeWork* work) : tokenizer_(tokenizer), work_(work) {}

  // Appends the ids of the word `text`, whose symbols were added.
  void AddSymbol(uint32_t bytes, bool user_defined);
  bool empty() const { return symbols_.empty(); }
  void Finish(std::string_view text, std::vector<int32_t>* ids);

 private:
  // Two neighbours that may merge. Out of date once either has merged otherwise: then `bytes` differs.
  struct Candidate {
    float score;
    uint32_t left;
    uint32_t right;
    uint32_t bytes;

    // The heap's order: the best one is the largest.
    bool operator<(const Candidate& other) const {
      return score < other.score || (score == other.score && left > other.left);
    }
  };

  std::optional<Candidate> PairAt(uint32_t left, uint32_t right);
  void Push(std::optional<Candidate> candidate);

  const SentencePieceTokenizer& tokenizer_;
  EncodeWork* work_;
  std::string_view text_;
  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
};

void SentencePieceTokenizer::Merger::AddSymbol(uint32_t bytes, bool user_defined) {
  const auto index = static_cast<uint32_t>(symbols_.size());
  Symbol symbol{0, bytes, Symbol::kNone, Symbol::kNone, user_defined};
  if (index > 0) {
    symbol.begin = symbols_.back().begin + symbols_.back().bytes;
    symbol.left = index - 1;
    symbols_.back().right = index;
  }
  symbols_.push_back(symbol);
}

std::optional<SentencePieceTokenizer::Merger::Candidate> SentencePieceTokenizer::Merger::PairAt(
    uint32_t left, uint32_t right) {
  if (left == Symbol::kNone || right == Symbol::kNone) return std::nullopt;
  const Symbol& first = symbols_[left];
  const Symbol& second = symbols_[right];
  if (first.user_defined || second.user_defined) return std::nullopt;
  const uint32_t bytes = first.bytes + second.bytes;
  if (bytes > tokenizer_.max_merged_bytes_) return std::nullopt;
  ++work_->pair_lookups;
  const auto found = tokenizer_.text_ids_.find(text_.substr(first.begin, bytes));
  if (found == tokenizer_.text_ids_.end()) return std::nullopt;
  return Candidate{tokenizer_.pieces_[Index(found->second)].score, left, right, bytes};
}

void SentencePieceTokenizer::Merger::Push(std::optional<Candidate> candidate) {
  if (!candidate) return;
  heap_.push_back(*candidate);
  std::push_heap(heap_.begin(), heap_.end());
}

void SentencePieceTokenizer::Merger::Finish(std::string_view text, std::vector<int32_t>* ids) {
  text_ = text;
  work_->symbols += symbols_.size();
  heap_.clear();
  for (uint32_t i = 1; i < symbols_.size(); ++i) {
    if (const auto candidate = PairAt(i - 1, i)) heap_.push_back(*candidate);
  }
  std::make_heap(heap_.begin(), heap_.end());
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end());
    const Candidate best = heap_.back();
    heap_.pop_back();
    ++work_->heap_pops;
    Symbol& left = symbols_[best.left];
    Symbol& right = symbols_[best.right];
    if (left.bytes == 0 || right.bytes == 0 || left.bytes + right.bytes != best.bytes) continue;
    left.bytes = best.bytes;
    left.right = right.right;
    if (right.right != Symbol::kNone) symbols_[right.right].left = best.left;
    right.bytes = 0;
    Push(PairAt(left.left, best.left));
    Push(PairAt(best.left, left.right));
  }
  for (const Symbol& symbol : symbols_) {
    if (symbol.bytes > 0) tokenizer_.AppendIds(text.substr(symbol.begin, symbol.bytes), ids);
  }
  symbols_.clear();
}

void SentencePieceTokenizer::AppendIds(std::string_view symbol, std::vector<int32_t>* ids) const {
  if (const auto found = text_ids_.find(symbol); found != text_ids_.end()) {
    ids->push_back(found->second);
  } else if (byte_fallback_) {
    for (const char byte : symbol) ids->push_back(byte_ids_[static_cast<uint8_t>(byte)]);
  } else if (ids->empty() || ids->back() != unk_id_) {  // a run of unknown symbols is one unknown id
    ids->push_back(unk_id_);
  }
}

StatusOr<std::vector<int32_t>> SentencePieceTokenizer::EncodeBehind(bool has_prefix, std::string_view text,
                                                                    EncodeWork* work) const {
  if (text.size() > kMaxTextBytes) {
    return InvalidArgument("the text has " + std::to_string(text.size()) + " bytes, the limit is " +
                           std::to_string(kMaxTextBytes));
  }
  if (const auto invalid = FirstInvalidUtf8(text)) {
    return InvalidArgument("the text is not UTF-8 at byte " + std::to_string(*invalid));
  }
  const std::string normalized = Normalize(text, has_prefix);
  const std::string_view all = normalized;
  std::vector<int32_t> ids;
  ids.reserve(all.size() / 3);
  Merger merger(*this, work);
  size_t word_begin = 0;
  bool after_space = false;
  for (size_t at = 0; at < all.size();) {
    const std::string_view rest = all.substr(at);
    const bool at_space = rest.starts_with(kSpaceMark);
    if (words_are_independent_ && at_space && !after_space && !merger.empty()) {
      merger.Finish(all.substr(word_begin, at - word_begin), &ids);
      word_begin = at;
    }
    const auto user_defined = user_defined_.MatchAt(all, at);
    const size_t bytes = user_defined ? user_defined->end - at : NextUtf8(rest).bytes;
    merger.AddSymbol(static_cast<uint32_t>(bytes), user_defined.has_value());
    after_space = rest.substr(0, bytes).ends_with(kSpaceMark);
    at += bytes;
  }
  merger.Finish(all.substr(word_begin), &ids);
  return ids;
}

// Spaces become U+2581, after a first one that nobody typed. With remove_extra_whitespaces, spaces at the
// ends go and a run of them inside becomes one.
std::string SentencePieceTokenizer::Normalize(std::string_view text, bool has_prefix) const {
  std::string result;
  if (remove_extra_whitespaces_) {
    while (text.starts_with(' ')) text.remove_prefix(1);
  }
  if (text.empty()) return result;
  result.reserve(text.size() + text.size() / 4 + kSpaceMark.size());
  if (has_prefix) result += kSpaceMark;
  bool after_space = remove_extra_whitespaces_;
  for (const char byte : text) {
    if (byte != ' ') {
      result += byte;
    } else if (!remove_extra_whitespaces_ || !after_space) {
      result += kSpaceMark;
    }
    after_space = byte == ' ';
  }
  if (remove_extra_whitespaces_) {
    while (result.ends_with(kSpaceMark)) result.resize(result.size() - kSpaceMark.size());
  }
  return result;
}

}  // namespace tramontane

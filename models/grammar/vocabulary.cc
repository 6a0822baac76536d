#include "models/grammar/vocabulary.h"

#include <unordered_map>

namespace tramontane {

GrammarVocabulary MakeGrammarVocabulary(const Tokenizer& tokenizer, int32_t vocab_size,
                                        const std::vector<int32_t>& eos_ids) {
  GrammarVocabulary vocabulary;
  vocabulary.vocab_size = vocab_size;
  vocabulary.space_alone_goes_on = tokenizer.leading_space() == LeadingSpace::kAllDropped;
  vocabulary.eos_ids = eos_ids;
  std::unordered_map<std::string, int32_t> by_bytes;
  for (int32_t id = 0; id < vocab_size; ++id) {
    const PieceKind kind = tokenizer.Kind(id);
    const bool has_text = kind == PieceKind::kText || kind == PieceKind::kByte;
    vocabulary.pieces.emplace_back(has_text ? tokenizer.PieceBytes(id) : "");
    vocabulary.at_start.push_back(id);
    if (has_text) by_bytes.emplace(vocabulary.pieces.back(), id);
  }
  if (tokenizer.leading_space() == LeadingSpace::kKept) return vocabulary;
  for (int32_t id = 0; id < vocab_size; ++id) {
    const std::string& piece = vocabulary.pieces[static_cast<size_t>(id)];
    if (tokenizer.Kind(id) != PieceKind::kText || !piece.starts_with(' ')) continue;
    int32_t& stands_for = vocabulary.at_start[static_cast<size_t>(id)];
    if (piece.size() == 1) {
      stands_for = GrammarVocabulary::kSpaceAlone;
      continue;
    }
    std::string rest = piece.substr(1);
    const auto [found, is_new] = by_bytes.emplace(rest, static_cast<int32_t>(vocabulary.pieces.size()));
    if (is_new) vocabulary.pieces.push_back(std::move(rest));
    stands_for = found->second;
  }
  return vocabulary;
}

}  // namespace tramontane

#include "models/tokenizer/tekken.h"

#include <utility>

#include "kernels/core/utf8.h"
#include "models/tokenizer/spelled_bytes.h"

namespace tramontane {
StatusOr<std::unique_ptr<const TekkenTokenizer>> TekkenTokenizer::Create(TekkenFile file,
                                                                         std::string_view name) {
  auto splitter = MakePieceSplitter(file.pattern);
  if (!splitter.ok()) {
    return DataLoss(std::string(name) + ": config.pattern: " + splitter.status().message());
  }
  auto encoder = BytePairEncoder::Create(file.tokens);
  if (!encoder.ok()) return DataLoss(std::string(name) + ": vocab: " + encoder.status().message());
  return std::unique_ptr<const TekkenTokenizer>(
      new TekkenTokenizer(std::move(file), std::move(encoder).value(), std::move(splitter).value()));
}

TekkenTokenizer::TekkenTokenizer(TekkenFile file, BytePairEncoder encoder,
                                 std::unique_ptr<const PieceSplitter> splitter)
    : version_(file.version),
      encoder_(std::move(encoder)),
      splitter_(std::move(splitter)),
      settings_(std::move(file.settings)),
      special_(std::move(file.special)),
      first_text_id_(static_cast<int32_t>(special_.size())) {
  warnings_ = std::move(file.warnings);
  for (int32_t id = 0; id < first_text_id_; ++id) special_ids_.emplace(special_[static_cast<size_t>(id)], id);
  for (int32_t id = first_text_id_; id < vocab_size(); ++id) {
    if (!IsUtf8(PieceBytes(id))) spelled_.emplace(id, WithSpelledBytes(PieceBytes(id)));
  }
  bos_id_ = ControlId("<s>").value_or(-1);
  eos_id_ = ControlId("</s>").value_or(-1);
  unk_id_ = ControlId("<unk>").value_or(-1);
  IndexControlPieces();
}

StatusOr<std::vector<int32_t>> TekkenTokenizer::EncodeCounted(std::string_view text, EncodeWork* work) const {
  if (text.size() > kMaxTextBytes) {
    return InvalidArgument("the text has " + std::to_string(text.size()) + " bytes, the limit is " +
                           std::to_string(kMaxTextBytes));
  }
  if (const auto invalid = FirstInvalidUtf8(text)) {
    return InvalidArgument("the text is not UTF-8 at byte " + std::to_string(*invalid));
  }
  std::vector<uint32_t> ends;
  TM_RETURN_IF_ERROR(splitter_->Split(text, &ends));
  std::vector<int32_t> ids;
  ids.reserve(ends.size() + ends.size() / 4);
  BytePairEncoder::Scratch scratch;
  uint32_t begin = 0;
  for (const uint32_t end : ends) {
    encoder_.Encode(text.substr(begin, end - begin), first_text_id_, &scratch, &ids);
    begin = end;
  }
  work->symbols += scratch.work.symbols;
  work->pair_lookups += scratch.work.pair_lookups;
  work->heap_pops += scratch.work.heap_pops;
  return ids;
}

PieceKind TekkenTokenizer::Kind(int32_t id) const {
  if (!IsText(id)) return PieceKind::kControl;
  return Rank(id) < 256 ? PieceKind::kByte : PieceKind::kText;
}

std::string_view TekkenTokenizer::PieceBytes(int32_t id) const {
  return IsText(id) ? encoder_.token(Rank(id)) : std::string_view();
}

std::string_view TekkenTokenizer::Piece(int32_t id) const {
  if (id >= 0 && id < first_text_id_) return special_[static_cast<size_t>(id)];
  const auto spelled = spelled_.find(id);
  return spelled == spelled_.end() ? PieceBytes(id) : std::string_view(spelled->second);
}

std::string TekkenTokenizer::Spelling(std::span<const int32_t> ids) const {
  std::string bytes;
  for (const int32_t id : ids) bytes += IsText(id) ? PieceBytes(id) : Piece(id);
  return ReplaceInvalidUtf8(bytes);
}

std::optional<int32_t> TekkenTokenizer::ControlId(std::string_view piece) const {
  const auto found = special_ids_.find(piece);
  if (found == special_ids_.end()) return std::nullopt;
  return found->second;
}

}  // namespace tramontane

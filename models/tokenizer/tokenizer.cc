#include "models/tokenizer/tokenizer.h"

#include <utility>

#include "kernels/core/utf8.h"

namespace tramontane {

const char* TokenizerVersionName(TokenizerVersion version) {
  switch (version) {
    case TokenizerVersion::kV1:
      return "v1";
    case TokenizerVersion::kV2:
      return "v2";
    case TokenizerVersion::kV3:
      return "v3";
    case TokenizerVersion::kV7:
      return "v7";
    case TokenizerVersion::kV11:
      return "v11";
    case TokenizerVersion::kV13:
      return "v13";
    case TokenizerVersion::kV15:
      return "v15";
  }
  return "unknown";
}

StatusOr<std::string> Tokenizer::Decode(std::span<const int32_t> ids) const {
  MessageBytes message(*this);
  std::string bytes;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size()) {
      return InvalidArgument("token id " + std::to_string(ids[i]) + " at index " + std::to_string(i) +
                             " is outside the vocabulary of " + std::to_string(vocab_size()));
    }
    bytes += message.Next(ids[i]);
  }
  return ReplaceInvalidUtf8(bytes);
}

StatusOr<std::vector<int32_t>> Tokenizer::EncodeWithControlTokens(std::string_view text) const {
  if (const auto invalid = FirstInvalidUtf8(text)) {
    return InvalidArgument("the text is not UTF-8 at byte " + std::to_string(*invalid));
  }
  std::vector<SpellingMatcher::Match> places;
  for (auto place = control_pieces_.Find(text, 0); place; place = control_pieces_.Find(text, place->end)) {
    places.push_back(*place);
  }
  return EncodeWithControlTokensAt(text, places);
}

StatusOr<std::vector<int32_t>> Tokenizer::EncodeWithControlTokensAt(
    std::string_view text, std::span<const SpellingMatcher::Match> places) const {
  std::vector<int32_t> ids;
  size_t done = 0;
  const auto encode_to = [&](size_t end) -> Status {
    if (end == done) return Status::Ok();
    TM_ASSIGN_OR_RETURN(const std::vector<int32_t> segment,
                        EncodeSegment(text.substr(done, end - done), done == 0));
    ids.insert(ids.end(), segment.begin(), segment.end());
    return Status::Ok();
  };
  for (const SpellingMatcher::Match& place : places) {
    TM_RETURN_IF_ERROR(encode_to(place.begin));
    ids.push_back(place.id);
    done = place.end;
  }
  TM_RETURN_IF_ERROR(encode_to(text.size()));
  return ids;
}

void Tokenizer::IndexControlPieces() {
  std::vector<std::pair<std::string, int32_t>> spellings;
  for (int32_t id = 0; id < vocab_size(); ++id) {
    if (IsControl(id)) spellings.emplace_back(Piece(id), id);
  }
  control_pieces_ = SpellingMatcher(std::move(spellings));
}

std::string Tokenizer::Spelling(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) text += Piece(id);
  return text;
}

std::string_view MessageBytes::Next(int32_t id) {
  std::string_view bytes = tokenizer_->PieceBytes(id);
  if (!at_start_ || bytes.empty()) return bytes;
  if (tokenizer_->Kind(id) != PieceKind::kText || bytes.front() != ' ') {
    at_start_ = false;
    return bytes;
  }
  bytes.remove_prefix(1);
  at_start_ = bytes.empty() && tokenizer_->leading_space() == LeadingSpace::kAllDropped;
  return bytes;
}

}  // namespace tramontane

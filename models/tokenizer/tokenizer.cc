#include "models/tokenizer/tokenizer.h"

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

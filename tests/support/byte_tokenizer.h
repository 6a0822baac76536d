// ByteTokenizer: id b is the byte b, id 256 ends a text. With it a grammar can be asked about any text, byte
// by byte. Any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/tokenizer/tokenizer.h"

namespace tramontane {

class ByteTokenizer final : public Tokenizer {
 public:
  static constexpr int32_t kEos = 256;
  static constexpr int32_t kVocab = 257;

  ByteTokenizer() {
    for (int b = 0; b < 256; ++b) pieces_.emplace_back(1, static_cast<char>(b));
  }

  StatusOr<std::vector<int32_t>> Encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  int32_t vocab_size() const override { return kVocab; }
  int32_t bos_id() const override { return -1; }
  int32_t eos_id() const override { return kEos; }
  int32_t unk_id() const override { return -1; }
  LeadingSpace leading_space() const override { return LeadingSpace::kKept; }
  PieceKind Kind(int32_t id) const override { return id < 256 ? PieceKind::kByte : PieceKind::kControl; }
  std::string_view PieceBytes(int32_t id) const override {
    return id < 256 ? std::string_view(pieces_[static_cast<size_t>(id)]) : std::string_view();
  }
  std::string_view Piece(int32_t id) const override { return id < 256 ? PieceBytes(id) : "</s>"; }
  std::optional<int32_t> ControlId(std::string_view) const override { return std::nullopt; }

 private:
  std::vector<std::string> pieces_;
};

}  // namespace tramontane

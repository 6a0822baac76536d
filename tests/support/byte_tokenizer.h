// ByteTokenizer: id b is the byte b, id 256 ends a text, and control pieces that a test names follow. With it
// a grammar can be asked about any text, byte by byte, and a prompt be read. Any thread.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/tokenizer/tokenizer.h"

namespace tramontane {

class ByteTokenizer final : public Tokenizer {
 public:
  static constexpr int32_t kEos = 256;
  static constexpr int32_t kVocab = 257;

  // `bos` is one of the controls, or "".
  explicit ByteTokenizer(const std::vector<std::string>& controls = {}, std::string bos = "")
      : bos_(std::move(bos)) {
    for (int b = 0; b < 256; ++b) pieces_.emplace_back(1, static_cast<char>(b));
    pieces_.emplace_back("</s>");
    pieces_.insert(pieces_.end(), controls.begin(), controls.end());
  }

  StatusOr<std::vector<int32_t>> Encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  int32_t vocab_size() const override { return static_cast<int32_t>(pieces_.size()); }
  int32_t bos_id() const override { return ControlId(bos_).value_or(-1); }
  int32_t eos_id() const override { return kEos; }
  int32_t unk_id() const override { return -1; }
  LeadingSpace leading_space() const override { return LeadingSpace::kKept; }
  PieceKind Kind(int32_t id) const override { return id < 256 ? PieceKind::kByte : PieceKind::kControl; }
  std::string_view PieceBytes(int32_t id) const override {
    return id < 256 ? std::string_view(pieces_[static_cast<size_t>(id)]) : std::string_view();
  }
  std::string_view Piece(int32_t id) const override { return pieces_[static_cast<size_t>(id)]; }
  std::optional<int32_t> ControlId(std::string_view piece) const override {
    for (int32_t id = kVocab; id < vocab_size(); ++id) {
      if (Piece(id) == piece) return id;
    }
    return std::nullopt;
  }

 private:
  std::vector<std::string> pieces_;
  std::string bos_;
};

}  // namespace tramontane

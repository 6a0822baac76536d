// PieceTokenizer: a vocabulary spelled out in the test: id i is the i-th piece. Control pieces are "<...>"
// and
// "[TOOL_CALLS]".
// Any thread.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/tokenizer/tokenizer.h"

namespace tramontane {

class PieceTokenizer final : public Tokenizer {
 public:
  explicit PieceTokenizer(std::vector<std::string> pieces,
                          LeadingSpace leading_space = LeadingSpace::kFirstDropped)
      : pieces_(std::move(pieces)), leading_space_(leading_space) {}

  StatusOr<std::vector<int32_t>> Encode(std::string_view) const override {
    return Unimplemented("tests name ids themselves");
  }
  int32_t vocab_size() const override { return static_cast<int32_t>(pieces_.size()); }
  int32_t bos_id() const override { return -1; }
  int32_t eos_id() const override { return -1; }
  int32_t unk_id() const override { return -1; }
  LeadingSpace leading_space() const override { return leading_space_; }
  PieceKind Kind(int32_t id) const override {
    if (id < 0 || id >= vocab_size()) return PieceKind::kControl;
    const std::string& piece = pieces_[static_cast<size_t>(id)];
    const bool bracketed = piece.size() > 2 && piece.front() == '<' && piece.back() == '>';
    return bracketed || piece == "[TOOL_CALLS]" ? PieceKind::kControl : PieceKind::kText;
  }
  std::string_view PieceBytes(int32_t id) const override { return IsControl(id) ? "" : Piece(id); }
  std::string_view Piece(int32_t id) const override {
    return id < 0 || id >= vocab_size() ? std::string_view() : pieces_[static_cast<size_t>(id)];
  }
  std::optional<int32_t> ControlId(std::string_view piece) const override {
    for (int32_t id = 0; id < vocab_size(); ++id) {
      if (Piece(id) == piece && IsControl(id)) return id;
    }
    return std::nullopt;
  }

 private:
  std::vector<std::string> pieces_;
  LeadingSpace leading_space_;
};

}  // namespace tramontane

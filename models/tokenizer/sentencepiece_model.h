// The contents of a SentencePiece model file (tokenizer.model), read without a protobuf library: that of
// Debian's libsentencepiece cannot live in one process with gRPC's.
//
// Any thread. A plain value.
// Always: pieces are UTF-8, not empty (but for a kControl that fills a gap in front of tokens added),
// distinct, and at most kMaxPieceBytes long; scores are finite; exactly one piece is kUnknown; with
// byte_fallback each of the 256 bytes has its piece, without it none has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/status.h"

namespace tramontane {

struct SentencePieceModel {
  static constexpr int64_t kMaxFileBytes = int64_t{64} << 20;
  static constexpr size_t kMaxPieces = size_t{1} << 20;
  static constexpr size_t kMaxPieceBytes = 1024;

  // Numbered as in the file.
  enum class Type { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };
  struct Piece {
    std::string text;
    float score = 0;  // merges with a higher one go first
    Type type = Type::kNormal;
  };

  std::vector<Piece> pieces;  // the index is the token id
  bool byte_fallback = false;
  bool add_dummy_prefix = true;
  bool prefix_begins_text = false;  // and so not what stands behind a control token
  bool remove_extra_whitespaces = true;
  std::string bos_piece = "<s>";
  std::string eos_piece = "</s>";
  bool adds_bos = true;                        // a text that stands alone begins with bos_piece
  std::string unk_surface = " \xE2\x81\x87 ";  // what an unknown id decodes to
  std::vector<std::string> warnings;           // one sentence each
};

// The byte that a kByte piece spells as "<0x0A>"; -1 if `piece` is not of this form.
int ParseBytePiece(std::string_view piece);

// Reads a whole model file. `name` names it in errors. What is broken is DATA_LOSS with the offset of the
// fault; what would give other ids than ours (unigram models, normalisers, ...) is UNIMPLEMENTED by name.
StatusOr<SentencePieceModel> ParseSentencePieceModel(std::string_view bytes, std::string_view name);

}  // namespace tramontane

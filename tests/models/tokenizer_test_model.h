// Fixtures for the tokenizer's tests: model files written by hand, the Breeze tokenizer, and byte-pair
// encoding by its definition, which shares no code with models/tokenizer/.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "models/tokenizer/load.h"
#include "models/tokenizer/sentencepiece.h"
#include "models/tokenizer/sentencepiece_model.h"

namespace tramontane {

inline const std::string kBreezeFolder = std::string(TRAMONTANE_SOURCE_DIR) + "/models/breeze/weights";

inline std::string ReadBinaryFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// The tokenizer of the embedded model; loaded once for all tests.
inline const SentencePieceTokenizer& Breeze() {
  static const std::unique_ptr<const Tokenizer> tokenizer = LoadTokenizer(kBreezeFolder).value();
  return dynamic_cast<const SentencePieceTokenizer&>(*tokenizer);
}

// Protobuf's wire format, the few kinds of field that a model file has.
class ProtoWriter {
 public:
  ProtoWriter& Varint(uint32_t field, uint64_t value) {
    PutVarint(uint64_t{field} << 3);
    PutVarint(value);
    return *this;
  }
  ProtoWriter& Bytes(uint32_t field, std::string_view value) {
    PutVarint(uint64_t{field} << 3 | 2);
    PutVarint(value.size());
    bytes_ += value;
    return *this;
  }
  ProtoWriter& Float(uint32_t field, float value) {
    PutVarint(uint64_t{field} << 3 | 5);
    const auto bits = std::bit_cast<uint32_t>(value);
    for (int shift = 0; shift < 32; shift += 8) bytes_ += static_cast<char>(bits >> shift);
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void PutVarint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }
  std::string bytes_;
};

inline std::string PieceMessage(const SentencePieceModel::Piece& piece) {
  return ProtoWriter()
      .Bytes(1, piece.text)
      .Float(2, piece.score)
      .Varint(3, static_cast<uint64_t>(piece.type))
      .bytes();
}

// The file of `model`, a BPE model with the identity normaliser. More fields for its specs may be given.
inline std::string ModelFile(const SentencePieceModel& model, std::string_view more_trainer = {},
                             std::string_view more_normalizer = {}) {
  ProtoWriter file;
  for (const SentencePieceModel::Piece& piece : model.pieces) file.Bytes(1, PieceMessage(piece));
  ProtoWriter trainer;
  trainer.Varint(3, 2).Varint(35, model.byte_fallback).Bytes(44, model.unk_surface);
  trainer.Bytes(46, model.bos_piece).Bytes(47, model.eos_piece);
  file.Bytes(2, trainer.bytes() + std::string(more_trainer));
  ProtoWriter normalizer;
  normalizer.Bytes(1, "identity").Varint(3, model.add_dummy_prefix).Varint(4, model.remove_extra_whitespaces);
  file.Bytes(3, normalizer.bytes() + std::string(more_normalizer));
  return file.bytes();
}

enum class Bytes { kWith, kWithout };

// <unk> <s> </s> [INST] [/INST], the byte pieces if asked for, then `pieces`.
inline SentencePieceModel SmallModel(std::vector<SentencePieceModel::Piece> pieces,
                                     Bytes bytes = Bytes::kWith) {
  using Type = SentencePieceModel::Type;
  SentencePieceModel model;
  model.byte_fallback = bytes == Bytes::kWith;
  model.remove_extra_whitespaces = false;
  model.pieces = {{"<unk>", 0, Type::kUnknown},
                  {"<s>", 0, Type::kControl},
                  {"</s>", 0, Type::kControl},
                  {"[INST]", 0, Type::kControl},
                  {"[/INST]", 0, Type::kControl}};
  for (int byte = 0; byte < 256 && model.byte_fallback; ++byte) {
    char text[8];
    std::snprintf(text, sizeof(text), "<0x%02X>", byte);
    model.pieces.push_back({text, 0, Type::kByte});
  }
  for (SentencePieceModel::Piece& piece : pieces) model.pieces.push_back(std::move(piece));
  return model;
}

inline SentencePieceTokenizer SmallTokenizer(std::vector<SentencePieceModel::Piece> pieces,
                                             Bytes bytes = Bytes::kWith) {
  return {SmallModel(std::move(pieces), bytes), TokenizerVersion::kV3};
}

// The pieces of `text`, joined by '|': what a reader of a test wants to see.
inline std::string Pieces(const Tokenizer& tokenizer, std::string_view text) {
  std::string joined;
  const std::vector<int32_t> ids = tokenizer.Encode(text).value();
  for (const int32_t id : ids) {
    joined += joined.empty() ? "" : "|";
    joined += tokenizer.Piece(id);
  }
  return joined;
}

// The pieces of a normalised text by the definition: of all adjacent pairs that are a piece merge the one
// with the highest score, the leftmost if there are several, until there is none.
inline std::vector<std::string> MergeByDefinition(const SentencePieceModel& model,
                                                  std::string_view normalized) {
  using Type = SentencePieceModel::Type;
  std::unordered_map<std::string, float> scores;
  std::vector<std::string> user_defined;
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    if (piece.type == Type::kNormal) scores[piece.text] = piece.score;
    if (piece.type == Type::kUserDefined) user_defined.push_back(piece.text);
  }
  struct Symbol {
    std::string text;
    bool fixed;
  };
  std::vector<Symbol> symbols;
  while (!normalized.empty()) {
    const auto lead = static_cast<uint8_t>(normalized[0]);
    size_t bytes = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    bool fixed = false;
    for (const std::string& piece : user_defined) {
      if (!normalized.starts_with(piece) || (fixed && piece.size() < bytes)) continue;
      bytes = piece.size();
      fixed = true;
    }
    symbols.push_back({std::string(normalized.substr(0, bytes)), fixed});
    normalized.remove_prefix(bytes);
  }
  while (true) {
    size_t best = symbols.size();
    float best_score = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      if (symbols[i].fixed || symbols[i + 1].fixed) continue;
      const auto found = scores.find(symbols[i].text + symbols[i + 1].text);
      if (found == scores.end() || (best < symbols.size() && found->second <= best_score)) continue;
      best = i;
      best_score = found->second;
    }
    if (best == symbols.size()) break;
    symbols[best].text += symbols[best + 1].text;
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
  std::vector<std::string> texts;
  for (Symbol& symbol : symbols) texts.push_back(std::move(symbol.text));
  return texts;
}

}  // namespace tramontane

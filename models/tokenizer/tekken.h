// TekkenTokenizer: the tokenizer of a tekken.json, id for id what mistral-common gives.
//
// Any thread; does not change after Create().
// Always: encoding and decoding give the text back, spaces included; special tokens never come from text.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kernels/core/status.h"
#include "models/tokenizer/byte_pair_encoder.h"
#include "models/tokenizer/piece_splitter.h"
#include "models/tokenizer/tekken_file.h"
#include "models/tokenizer/tokenizer.h"

namespace tramontane {

class TekkenTokenizer final : public Tokenizer {
 public:
  // Longer text is refused. Well above any request that a server lets in.
  static constexpr size_t kMaxTextBytes = size_t{256} << 20;

  // `name` names the file in errors: a pattern that is none, tokens that break the encoder's rules.
  static StatusOr<std::unique_ptr<const TekkenTokenizer>> Create(TekkenFile file, std::string_view name);

  StatusOr<std::vector<int32_t>> Encode(std::string_view text) const override {
    EncodeWork work;
    return EncodeCounted(text, &work);
  }
  // Encode(), adding to `work` what the merges took.
  StatusOr<std::vector<int32_t>> EncodeCounted(std::string_view text, EncodeWork* work) const;

  const char* family() const override { return "tekken"; }
  std::optional<TokenizerVersion> version() const override { return version_; }
  const char* version_source() const override { return "tekken.json says so"; }
  int32_t vocab_size() const override { return first_text_id_ + static_cast<int32_t>(encoder_.size()); }
  int32_t bos_id() const override { return bos_id_; }
  int32_t eos_id() const override { return eos_id_; }
  int32_t unk_id() const override { return unk_id_; }
  LeadingSpace leading_space() const override { return LeadingSpace::kKept; }
  PieceKind Kind(int32_t id) const override;
  std::string_view PieceBytes(int32_t id) const override;
  // Always UTF-8: bytes that are not stand as "<0xE4>".
  std::string_view Piece(int32_t id) const override;
  std::string Spelling(std::span<const int32_t> ids) const override;
  std::optional<int32_t> ControlId(std::string_view piece) const override;
  const ModelSettings* model_settings() const override { return settings_ ? &*settings_ : nullptr; }

 private:
  TekkenTokenizer(TekkenFile file, BytePairEncoder encoder, std::unique_ptr<const PieceSplitter> splitter);

  bool IsText(int32_t id) const { return id >= first_text_id_ && id < vocab_size(); }
  uint32_t Rank(int32_t id) const { return static_cast<uint32_t>(id - first_text_id_); }

  TokenizerVersion version_;
  BytePairEncoder encoder_;
  std::unique_ptr<const PieceSplitter> splitter_;
  std::optional<ModelSettings> settings_;
  std::vector<std::string> special_;                           // by id
  std::unordered_map<std::string_view, int32_t> special_ids_;  // views into special_
  std::unordered_map<int32_t, std::string> spelled_;           // pieces that are not UTF-8
  int32_t first_text_id_;                                      // the number of special tokens
  int32_t bos_id_;
  int32_t eos_id_;
  int32_t unk_id_;
};

}  // namespace tramontane

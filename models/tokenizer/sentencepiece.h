// SentencePieceTokenizer: byte-pair encoding over a SentencePiece model (sentencepiece_model.h), id for id
// what the sentencepiece library gives.
//
// Any thread; does not change after Create().
//
// Text becomes symbols: the longest user-defined piece at a place, else one character; a space is U+2581. The
// adjacent pair whose concatenation is the piece with the highest score merges first (the leftmost among
// equals), until no pair is a piece. What is no piece then is spelled in byte pieces.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kernels/core/status.h"
#include "models/tokenizer/encode_work.h"
#include "models/tokenizer/sentencepiece_model.h"
#include "models/tokenizer/spelling_matcher.h"
#include "models/tokenizer/tokenizer.h"

namespace tramontane {

class SentencePieceTokenizer final : public Tokenizer {
 public:
  // Longer text is refused. Well above any request that a server lets in.
  static constexpr size_t kMaxTextBytes = size_t{256} << 20;

  // `version_source`: a literal, who says so. Without a version it is that of a GGUF file.
  SentencePieceTokenizer(SentencePieceModel model, std::optional<TokenizerVersion> version,
                         const char* version_source = "by its control pieces");

  StatusOr<std::vector<int32_t>> Encode(std::string_view text) const override {
    EncodeWork work;
    return EncodeCounted(text, &work);
  }
  // Encode(), adding to `work` what it took.
  StatusOr<std::vector<int32_t>> EncodeCounted(std::string_view text, EncodeWork* work) const {
    return EncodeBehind(add_dummy_prefix_, text, work);
  }

  const char* family() const override { return version_ ? "sentencepiece" : "GGUF llama"; }
  std::optional<TokenizerVersion> version() const override { return version_; }
  const char* version_source() const override { return version_source_; }
  int32_t vocab_size() const override { return static_cast<int32_t>(pieces_.size()); }
  int32_t padding_begin() const override { return padding_begin_; }
  int32_t bos_id() const override { return bos_id_; }
  int32_t eos_id() const override { return eos_id_; }
  int32_t unk_id() const override { return unk_id_; }
  bool adds_bos() const override { return adds_bos_ && bos_id_ >= 0; }
  LeadingSpace leading_space() const override;
  PieceKind Kind(int32_t id) const override {
    return HasId(id) ? pieces_[Index(id)].kind : PieceKind::kControl;
  }
  std::string_view PieceBytes(int32_t id) const override {
    return HasId(id) ? std::string_view(pieces_[Index(id)].bytes) : std::string_view();
  }
  std::string_view Piece(int32_t id) const override {
    return HasId(id) ? std::string_view(pieces_[Index(id)].text) : std::string_view();
  }
  std::optional<int32_t> ControlId(std::string_view piece) const override;

 private:
  struct PieceEntry {
    PieceKind kind;
    float score;
    std::string text;
    std::string bytes;
  };
  struct Symbol;
  class Merger;

  static size_t Index(int32_t id) { return static_cast<size_t>(id); }
  bool HasId(int32_t id) const { return id >= 0 && id < vocab_size(); }
  StatusOr<std::vector<int32_t>> EncodeSegment(std::string_view segment, bool begins_text) const override {
    EncodeWork work;
    return EncodeBehind(add_dummy_prefix_ && (begins_text || !prefix_begins_text_), segment, &work);
  }
  // has_prefix: behind a space that nobody typed.
  StatusOr<std::vector<int32_t>> EncodeBehind(bool has_prefix, std::string_view text, EncodeWork* work) const;
  std::string Normalize(std::string_view text, bool has_prefix) const;
  void AppendIds(std::string_view symbol, std::vector<int32_t>* ids) const;

  std::optional<TokenizerVersion> version_;
  const char* const version_source_;
  bool adds_bos_;
  bool add_dummy_prefix_;
  bool prefix_begins_text_;
  bool remove_extra_whitespaces_;
  bool byte_fallback_;
  bool words_are_independent_;   // no piece holds a U+2581 after another character, so no merge crosses that
                                 // place
  size_t max_merged_bytes_ = 0;  // of any piece that text can become
  int32_t padding_begin_ = 0;
  int32_t bos_id_;
  int32_t eos_id_;
  int32_t unk_id_ = -1;
  std::vector<PieceEntry> pieces_;                          // by id
  std::unordered_map<std::string_view, int32_t> text_ids_;  // pieces that text can become, views into pieces_
  std::unordered_map<std::string_view, int32_t> control_ids_;  // views into pieces_
  SpellingMatcher user_defined_;
  std::array<int32_t, 256> byte_ids_{};  // set where byte_fallback_
};

}  // namespace tramontane

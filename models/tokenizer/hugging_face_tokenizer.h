// HuggingFaceTokenizer: the tokenizer of a tokenizer.json, id for id what Hugging Face's `tokenizers` gives.
//
// Any thread; does not change after Create().
// Always: Encode() gives no control piece. It equals `encode_special_tokens = True` there, and
// EncodeWithControlTokens() equals False, both with `add_special_tokens = False`.
//
//   text --added tokens--> segments --normalise--> --added tokens--> segments --cut--> cuts --merge--> ids
//
// Added tokens are found first and stand as they are: those that are not normalised in the text, the others
// in what the normaliser makes of the rest. A cut that is a piece is that piece where the merges give it too;
// which do is found out once, when the tokenizer is made.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kernels/core/status.h"
#include "models/tokenizer/encode_work.h"
#include "models/tokenizer/listed_merges.h"
#include "models/tokenizer/piece_splitter.h"
#include "models/tokenizer/spelling_matcher.h"
#include "models/tokenizer/token_table.h"
#include "models/tokenizer/tokenizer.h"
#include "models/tokenizer/tokenizer_json_file.h"

namespace tramontane {

class HuggingFaceTokenizer final : public Tokenizer {
 public:
  // Longer text is refused. Well above any request that a server lets in.
  static constexpr size_t kMaxTextBytes = size_t{256} << 20;

  enum class ControlTokens { kAreText, kAreParsed };

  // `name` names the file in errors: a pattern that is none, a byte without a piece.
  static StatusOr<std::unique_ptr<const HuggingFaceTokenizer>> Create(const TokenizerJsonFile& file,
                                                                      const TokenizerConfigFile& config,
                                                                      std::string_view name);

  StatusOr<std::vector<int32_t>> Encode(std::string_view text) const override {
    EncodeWork work;
    return EncodeCounted(text, ControlTokens::kAreText, &work);
  }
  StatusOr<std::vector<int32_t>> EncodeWithControlTokens(std::string_view text) const override {
    EncodeWork work;
    return EncodeCounted(text, ControlTokens::kAreParsed, &work);
  }
  StatusOr<std::vector<int32_t>> EncodeWithControlTokensAt(
      std::string_view text, std::span<const SpellingMatcher::Match> places) const override;
  // Either, adding to `work` what the merges took.
  StatusOr<std::vector<int32_t>> EncodeCounted(std::string_view text, ControlTokens control_tokens,
                                               EncodeWork* work) const {
    return EncodePlaced(text, control_tokens, {}, work);
  }

  const char* family() const override { return family_; }
  int32_t vocab_size() const override { return static_cast<int32_t>(pieces_.size()); }
  int32_t padding_begin() const override {
    int32_t begin = vocab_size();
    while (begin > 0 && pieces_[Index(begin - 1)].text.empty()) --begin;
    return begin;
  }
  int32_t bos_id() const override { return bos_id_; }
  int32_t eos_id() const override { return eos_id_; }
  int32_t unk_id() const override { return unk_id_; }
  bool adds_bos() const override { return adds_bos_; }
  LeadingSpace leading_space() const override {
    return drops_first_space_ ? LeadingSpace::kFirstDropped : LeadingSpace::kKept;
  }
  PieceKind Kind(int32_t id) const override {
    return HasId(id) ? pieces_[Index(id)].kind : PieceKind::kControl;
  }
  std::string_view PieceBytes(int32_t id) const override {
    return HasId(id) ? std::string_view(pieces_[Index(id)].bytes) : std::string_view();
  }
  // Always UTF-8: bytes that are not stand as "<0xE4>".
  std::string_view Piece(int32_t id) const override {
    return HasId(id) ? std::string_view(pieces_[Index(id)].text) : std::string_view();
  }
  std::string Spelling(std::span<const int32_t> ids) const override;
  std::optional<int32_t> ControlId(std::string_view piece) const override;

 private:
  using Alphabet = TokenizerJsonFile::Alphabet;
  using AddedToken = TokenizerJsonFile::AddedToken;
  using DummySpace = TokenizerJsonFile::DummySpace;
  struct PieceEntry {
    PieceKind kind = PieceKind::kControl;
    std::string text;
    std::string bytes;
  };
  class Encoding;

  HuggingFaceTokenizer(TokenizerJsonFile file, const TokenizerConfigFile& config);

  StatusOr<std::vector<int32_t>> EncodePlaced(std::string_view text, ControlTokens control_tokens,
                                              std::span<const SpellingMatcher::Match> places,
                                              EncodeWork* work) const;
  static size_t Index(int32_t id) { return static_cast<size_t>(id); }
  bool HasId(int32_t id) const { return id >= 0 && id < vocab_size(); }
  void ChooseSpecialTokens(const TokenizerConfigFile& config, TokenizerJsonFile* file);
  void MakePieces(TokenizerJsonFile* file);
  void AddText(std::string_view text, int32_t id);
  void KeepMerges(const TokenizerJsonFile& file);
  void FindMergedTexts();
  Status MakeSplitters(const TokenizerJsonFile& file);
  void MakeMatchers(std::vector<AddedToken> added_tokens);
  void FindMissingBytes();
  void AppendSymbols(std::string_view cut, std::vector<int32_t>* symbols) const;
  std::string Normalize(std::string_view text) const;

  const char* family_;
  Alphabet alphabet_;
  DummySpace dummy_space_;
  bool cuts_before_spaces_;
  bool drops_first_space_;
  bool ignore_merges_;
  bool words_are_independent_ = true;  // no merge gives a U+2581 behind another character
  int32_t bos_id_ = -1;
  int32_t eos_id_ = -1;
  int32_t unk_id_;
  bool adds_bos_ = false;
  std::vector<PieceEntry> pieces_;  // by id
  // Pieces that text can become: as bytes, or as characters with U+2581 for a space.
  TokenTable texts_;
  std::vector<int32_t> text_ids_;      // [index in texts_]
  std::vector<bool> is_merged_;        // [index in texts_]: the merges make this piece of its text
  std::array<int32_t, 256> byte_ids_;  // -1: no piece, of bytes that no text has; vocab_size(): left out
  bool leaves_out_bytes_ = false;
  ListedMerges merges_;
  std::vector<std::unique_ptr<const PieceSplitter>> splitters_;
  std::vector<AddedToken> added_tokens_;
  SpellingMatcher raw_tokens_;                           // in text; ids are indices of added_tokens_
  SpellingMatcher normalized_tokens_;                    // in normalised text
  std::unique_ptr<const PieceSplitter> word_character_;  // matches one; null where no token asks for it
  std::unordered_map<std::string, int32_t> control_ids_;
};

}  // namespace tramontane

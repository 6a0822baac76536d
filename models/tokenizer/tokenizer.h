// Tokenizer: text to token ids and back, for one vocabulary file.
//
// Any thread: a Tokenizer does not change after it is loaded (load.h).
// Always: Encode() never yields a control token, whatever the text says; control tokens come from
// ControlId(), and from EncodeWithControlTokens() where a caller has asked for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/status.h"
#include "models/tokenizer/model_settings.h"
#include "models/tokenizer/spelling_matcher.h"

namespace tramontane {

// Mistral's numbering of tokenizer files. It says which chat format the file was made for, not how text is
// split.
enum class TokenizerVersion { kV1 = 1, kV2 = 2, kV3 = 3, kV7 = 7, kV11 = 11, kV13 = 13, kV15 = 15 };

const char* TokenizerVersionName(TokenizerVersion version);  // "v3"

enum class PieceKind {
  kText,     // a piece of text
  kByte,     // one raw byte, possibly part of a character: <0x0A>
  kControl,  // structure, no text: <s>, [INST]
  kUnknown,  // stands for text that the vocabulary cannot spell
};

// What becomes of the spaces with which the text of a message starts: encoders put one there that nobody
// typed.
enum class LeadingSpace {
  kKept,
  kFirstDropped,  // exactly one, if the first text piece starts with it
  kAllDropped,    // one from each piece until some text has come out
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // The ids of one segment of text, alone: no bos, no eos. Empty text has no ids; any other text gets the
  // vocabulary's own dummy space where it has one. Text that is not UTF-8 is an error naming the byte.
  virtual StatusOr<std::vector<int32_t>> Encode(std::string_view text) const = 0;

  // The same, but where the text holds the spelling of a control piece, "[INST]", that piece stands there; of
  // several that begin at one place the longest. What lies between is encoded as segments of their own, so
  // that each gets the dummy space where the vocabulary has one, as in llama.cpp; mistral-common never reads
  // control tokens from text. Pieces without a spelling, and <unk> of SentencePiece, are not found.
  virtual StatusOr<std::vector<int32_t>> EncodeWithControlTokens(std::string_view text) const;

  // The same for control pieces that the caller has found, each with its id: in their order, none inside of
  // another. Everything else is text, whatever it spells.
  virtual StatusOr<std::vector<int32_t>> EncodeWithControlTokensAt(
      std::string_view text, std::span<const SpellingMatcher::Match> places) const;

  // The kind of file that it is read from, for people: "sentencepiece", "tekken", "tokenizer.json".
  virtual const char* family() const { return "sentencepiece"; }
  // What a file of Mistral's own says; none where the kind of file has no versions.
  virtual std::optional<TokenizerVersion> version() const { return std::nullopt; }
  // Who says so, for people: "tekken.json says so".
  virtual const char* version_source() const { return ""; }
  virtual int32_t vocab_size() const = 0;
  // From this id on none has a token: what the file lists there fills a vocabulary up.
  virtual int32_t padding_begin() const { return vocab_size(); }
  // -1 where the vocabulary has none.
  virtual int32_t bos_id() const = 0;
  virtual int32_t eos_id() const = 0;
  virtual int32_t unk_id() const = 0;
  // Whether a text that stands alone begins with bos_id().
  virtual bool adds_bos() const { return bos_id() >= 0; }
  virtual LeadingSpace leading_space() const = 0;

  // An id outside the vocabulary (a model's output may have more rows than the vocabulary) is a control token
  // without a name, so it adds no text.
  virtual PieceKind Kind(int32_t id) const = 0;
  // The bytes that `id` adds to text: spaces as ' ', a byte piece as its byte, a control piece as nothing.
  virtual std::string_view PieceBytes(int32_t id) const = 0;
  // The piece as the file spells it, for people: "▁the", "<0x0A>", "[INST]".
  virtual std::string_view Piece(int32_t id) const = 0;
  // The id of a control piece by its spelling, "[INST]"; none if this vocabulary lacks it.
  virtual std::optional<int32_t> ControlId(std::string_view piece) const = 0;

  // The pieces of `ids` as one text for people, always UTF-8: characters that stand in several pieces are
  // whole.
  virtual std::string Spelling(std::span<const int32_t> ids) const;

  // What the vocabulary's file says of settings in front of a chat; null where it says nothing.
  virtual const ModelSettings* model_settings() const { return nullptr; }

  // What is doubtful in the vocabulary's file, one sentence each, which names it.
  std::span<const std::string> warnings() const { return warnings_; }

  bool IsControl(int32_t id) const { return Kind(id) == PieceKind::kControl; }

  // The text of all of a message's ids at once; bytes that are not UTF-8 become U+FFFD as in utf8.h. An id
  // outside the vocabulary is an error naming its index. For ids that come one by one: detokenizer.h.
  StatusOr<std::string> Decode(std::span<const int32_t> ids) const;

 protected:
  // The ids of a segment between control tokens; begins_text: nothing stands in front of it.
  virtual StatusOr<std::vector<int32_t>> EncodeSegment(std::string_view segment, bool /*begins_text*/) const {
    return Encode(segment);
  }

  // Ends the making of a tokenizer: what EncodeWithControlTokens() looks for is known from here on.
  void IndexControlPieces();

  std::vector<std::string> warnings_;

 private:
  SpellingMatcher control_pieces_;
};

// Applies a tokenizer's LeadingSpace rule to the ids of one message, in order.
// One thread. The tokenizer outlives it.
class MessageBytes {
 public:
  explicit MessageBytes(const Tokenizer& tokenizer)
      : tokenizer_(&tokenizer), at_start_(tokenizer.leading_space() != LeadingSpace::kKept) {}

  // The bytes that `id` adds at this place of the message.
  std::string_view Next(int32_t id);

  // A leading space may still be dropped.
  bool at_start() const { return at_start_; }

 private:
  const Tokenizer* tokenizer_;
  bool at_start_;
};

}  // namespace tramontane

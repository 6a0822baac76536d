// The contents of a tokenizer.json: what Hugging Face's `tokenizers` writes, the kinds of it that the models
// of Mistral's family, Llama and their relatives have: byte-pair encoding by a list of merges, over bytes or
// over characters with a fallback to bytes.
//
// Any thread. A plain value.
// Always: pieces are UTF-8, distinct and at most kMaxPieceBytes long; ids of merges, added tokens and splits
// are ids of pieces; with kByteFallback each of the 256 bytes has its piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/status.h"
#include "models/tokenizer/listed_merges.h"

namespace tramontane {

struct TokenizerJsonFile {
  static constexpr int64_t kMaxFileBytes = int64_t{64} << 20;
  static constexpr int64_t kMaxVocabulary = int64_t{1} << 20;  // ids are below it
  static constexpr size_t kMaxMerges = size_t{1} << 21;
  static constexpr size_t kMaxPieceBytes = 1024;
  static constexpr size_t kMaxSplits = 16;
  static constexpr size_t kMaxOtherValues = size_t{1} << 20;  // beside vocabulary and merges

  enum class Alphabet {
    kBytes,         // each byte has a character of its own (ByteLevel)
    kByteFallback,  // characters, a space as U+2581; others are spelled in bytes, "<0x0A>"
  };
  // A step of cutting text, before any merge.
  struct Split {
    enum class Kind { kPattern, kOneDigit, kDigitRun };
    Kind kind = Kind::kPattern;
    std::string pattern;  // of kPattern
    std::string path;     // of the pattern in the file
  };
  // When a segment of text gets a U+2581 in front. The normalisers Prepend and Replace go over text before
  // normalised tokens are looked for in it, Metaspace afterwards; that adds none where one stands already.
  enum class DummySpace {
    kNever,
    kBeforeSegments,  // each, also one that starts with a space
    kMetaspaceNever,
    kMetaspaceFirst,  // only at the beginning of the text
    kMetaspaceAlways,
  };
  // A token that is looked for in text before all else.
  struct AddedToken {
    int32_t id = 0;
    std::string content;
    bool is_special = false;      // structure, no text
    bool takes_left = false;      // takes the white space in front of it ("lstrip")
    bool takes_right = false;     // and behind it ("rstrip")
    bool is_single_word = false;  // is none inside a word
    bool is_in_model = false;     // in "model.vocab" too
    bool is_normalized = false;   // looked for in text that the normaliser has gone over
  };

  const char* family = "tokenizer.json";  // the kind of file, for people; a literal
  Alphabet alphabet = Alphabet::kBytes;
  std::vector<std::string> pieces;  // by id, as the file spells them; "": no token has this id
  std::vector<ListedMerges::Merge> merges;
  std::vector<AddedToken> added_tokens;
  bool ignore_merges = false;  // a cut that is a piece is that piece, whatever the merges give
  int32_t unk_id = -1;
  int32_t template_bos_id = -1;  // what the template puts in front of a text

  std::vector<Split> splits;  // kBytes: in order

  DummySpace dummy_space = DummySpace::kNever;  // kByteFallback: this and what follows
  bool cuts_before_spaces = false;              // each U+2581 begins a cut
  bool drops_first_space = false;               // of a text that is decoded

  std::vector<std::string> warnings;  // one sentence each
};

// What a tokenizer_config.json says of the special tokens. Missing keys are empty.
struct TokenizerConfigFile {
  static constexpr int64_t kMaxFileBytes = int64_t{16} << 20;

  std::string bos_token;
  std::string eos_token;
  enum class AddsBos { kUnsaid, kNo, kYes } adds_bos = AddsBos::kUnsaid;
  bool legacy = true;  // of a tokenizer.model: each segment gets a space in front, not the first alone
};

// Reads a whole file. `name` names it in errors: DATA_LOSS names the path in the JSON, what stands there and
// what may; UNIMPLEMENTED names a component that would give other ids than ours.
StatusOr<TokenizerJsonFile> ParseTokenizerJson(std::string_view bytes, std::string_view name);
StatusOr<TokenizerConfigFile> ParseTokenizerConfig(std::string_view bytes, std::string_view name);

}  // namespace tramontane

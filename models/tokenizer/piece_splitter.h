// Cuts text into pieces by a regular expression, before any merge: no token crosses a cut.
//
// Any thread; a splitter does not change after it is made.
//
// The patterns that are named here are matched by hand, over the categories of character_class.h; any other
// one by PCRE2, whose tables may be of another version of Unicode.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/status.h"

namespace tramontane {

// The pattern of all tekken files that Mistral has published.
inline constexpr std::string_view kTekkenPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// That of GPT-2: of a ByteLevel component with `use_regex`, and behind one that cuts digits, of SmolLM.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

// What becomes of text that the pattern matches nowhere.
enum class UnmatchedText {
  kIsError,  // the byte is named; the pattern is meant to match everything
  kIsPiece,  // each stretch of it
};

class PieceSplitter {
 public:
  static constexpr size_t kMaxPatternBytes = 4096;
  // Steps of PCRE2 for one piece; one that needs more is an error.
  static constexpr uint32_t kMaxMatchSteps = 10'000'000;

  virtual ~PieceSplitter() = default;

  // Replaces `ends` by the offset behind each piece, in order. REQUIRES: `text` is UTF-8, below 4 GB.
  // INVALID_ARGUMENT, naming the byte: the pattern matches nothing there, or takes more than kMaxMatchSteps.
  virtual Status Split(std::string_view text, std::vector<uint32_t>* ends) const = 0;
};

// Whether `pattern` is matched by hand.
bool IsKnownPattern(std::string_view pattern);
// The splitter for `pattern`; DATA_LOSS says why it is none. With kIsPiece, one that could match no text at
// all is none.
StatusOr<std::unique_ptr<const PieceSplitter>> MakePieceSplitter(
    const std::string& pattern, UnmatchedText unmatched = UnmatchedText::kIsError);
// The same by PCRE2 whatever the pattern: what tests compare with.
StatusOr<std::unique_ptr<const PieceSplitter>> MakePcre2Splitter(
    const std::string& pattern, UnmatchedText unmatched = UnmatchedText::kIsError);

enum class DigitPieces {
  kOne,  // each digit is a piece
  kRun,
};
// Cuts numbers (\p{N}) from what is none.
std::unique_ptr<const PieceSplitter> MakeDigitSplitter(DigitPieces pieces);

}  // namespace tramontane

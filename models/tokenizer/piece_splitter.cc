#include "models/tokenizer/piece_splitter.h"

#include "models/tokenizer/character_class.h"

namespace tramontane {
namespace {

using ClassSet = uint32_t;

constexpr ClassSet Set(CharacterClass character_class) { return 1u << static_cast<int>(character_class); }

constexpr ClassSet kLetters =
    Set(CharacterClass::kUpper) | Set(CharacterClass::kLower) | Set(CharacterClass::kCaseless);
constexpr ClassSet kNumbers = Set(CharacterClass::kNumber);
constexpr ClassSet kNewlines = Set(CharacterClass::kNewline);
constexpr ClassSet kSpaces = Set(CharacterClass::kSpace) | kNewlines;  // \s
constexpr ClassSet kEitherCase = Set(CharacterClass::kCaseless) | Set(CharacterClass::kMark);
constexpr ClassSet kBeginsWord = Set(CharacterClass::kUpper) | kEitherCase;
constexpr ClassSet kEndsWord = Set(CharacterClass::kLower) | kEitherCase;
constexpr ClassSet kBeforeWord = ~(kNewlines | kLetters | kNumbers);  // [^\r\n\p{L}\p{N}]
constexpr ClassSet kSymbols = ~(kSpaces | kLetters | kNumbers);       // [^\s\p{L}\p{N}]

constexpr size_t kNone = static_cast<size_t>(-1);

struct Character {
  ClassSet set;  // of one class; 0 at the end of the text
  size_t end;    // the offset behind it

  bool Is(ClassSet classes) const { return (set & classes) != 0; }
};

// kTekkenPattern's alternatives, first to last. Each gives the end of its match at a place, or kNone. What
// backtracking would find is found by noting on the way where a run could have ended.
class TekkenMatcher {
 public:
  explicit TekkenMatcher(std::string_view text) : text_(text) {}

  // Each character begins some alternative, so there always is a match.
  size_t PieceEnd(size_t begin) const {
    const Character first = At(begin);
    if (first.Is(kNumbers)) return first.end;
    size_t end = kNone;
    if (first.Is(kBeforeWord)) end = LowerWord(first.end);
    if (end == kNone && first.Is(kBeginsWord | kEndsWord)) end = LowerWord(begin);
    if (end == kNone && first.Is(kBeforeWord)) end = UpperWord(first.end);
    if (end == kNone && first.Is(kBeginsWord)) end = UpperWord(begin);
    if (end == kNone) end = Symbols(begin, first);
    return end == kNone ? Spaces(begin) : end;
  }

 private:
  Character At(size_t at) const {
    if (at >= text_.size()) return {0, at};
    const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(text_[at + i])); };
    const uint32_t lead = byte(0);
    if (lead < 0x80) return {SetOf(lead), at + 1};
    if (lead < 0xE0) return {SetOf((lead & 0x1F) << 6 | (byte(1) & 0x3F)), at + 2};
    if (lead < 0xF0) {
      return {SetOf((lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F)), at + 3};
    }
    return {SetOf((lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F)),
            at + 4};
  }
  static ClassSet SetOf(uint32_t code_point) { return Set(ClassOfCharacter(code_point)); }

  size_t RunEnd(size_t at, ClassSet classes) const {
    for (Character next = At(at); next.Is(classes); next = At(at)) at = next.end;
    return at;
  }

  // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+
  size_t LowerWord(size_t at) const {
    size_t end_of_either_case = kNone;  // where the second part can end if nothing but the first part follows
    Character next = At(at);
    for (; next.Is(kBeginsWord); next = At(at)) {
      at = next.end;
      if (next.Is(kEitherCase)) end_of_either_case = at;
    }
    return next.Is(kEndsWord) ? RunEnd(next.end, kEndsWord) : end_of_either_case;
  }

  // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*
  size_t UpperWord(size_t at) const {
    const size_t end = RunEnd(at, kBeginsWord);
    return end == at ? kNone : RunEnd(end, kEndsWord);
  }

  // " ?[^\s\p{L}\p{N}]+[\r\n/]*"
  size_t Symbols(size_t begin, const Character& first) const {
    const size_t at = text_[begin] == ' ' ? first.end : begin;
    size_t end = RunEnd(at, kSymbols);
    if (end == at) return kNone;
    while (end < text_.size() && (text_[end] == '\r' || text_[end] == '\n' || text_[end] == '/')) ++end;
    return end;
  }

  // \s*[\r\n]+|\s+(?!\S)|\s+: up to the last line end, else all at the end of the text, else all but the last
  // one, which goes with what follows.
  size_t Spaces(size_t begin) const {
    size_t last_newline_end = kNone;
    size_t last_begin = begin;
    size_t at = begin;
    for (Character next = At(at); next.Is(kSpaces); next = At(at)) {
      last_begin = at;
      at = next.end;
      if (next.Is(kNewlines)) last_newline_end = at;
    }
    if (last_newline_end != kNone) return last_newline_end;
    return at == text_.size() || last_begin == begin ? at : last_begin;
  }

  std::string_view text_;
};

class TekkenSplitter final : public PieceSplitter {
 public:
  Status Split(std::string_view text, std::vector<uint32_t>* ends) const override {
    ends->clear();
    const TekkenMatcher matcher(text);
    for (size_t at = 0; at < text.size();) {
      at = matcher.PieceEnd(at);
      ends->push_back(static_cast<uint32_t>(at));
    }
    return Status::Ok();
  }
};

}  // namespace

StatusOr<std::unique_ptr<const PieceSplitter>> MakePieceSplitter(const std::string& pattern) {
  if (pattern == kTekkenPattern) return std::unique_ptr<const PieceSplitter>(new TekkenSplitter);
  return MakePcre2Splitter(pattern);
}

}  // namespace tramontane

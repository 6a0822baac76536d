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

ClassSet SetOf(uint32_t code_point) { return Set(ClassOfCharacter(code_point)); }

// REQUIRES: `text` is UTF-8.
Character CharacterAt(std::string_view text, size_t at) {
  if (at >= text.size()) return {0, at};
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(text[at + i])); };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return {SetOf(lead), at + 1};
  if (lead < 0xE0) return {SetOf((lead & 0x1F) << 6 | (byte(1) & 0x3F)), at + 2};
  if (lead < 0xF0) {
    return {SetOf((lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F)), at + 3};
  }
  return {SetOf((lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F)),
          at + 4};
}

enum class Contractions {
  kNone,
  kLower,    // 's|'t|'re|'ve|'m|'ll|'d
  kAnyCase,  // (?i:...)
};
enum class Words {
  kBehindSpace,      // " ?\p{L}+"
  kBehindAny,        // [^\r\n\p{L}\p{N}]?\p{L}+
  kBehindAnyByCase,  // tekken's first two alternatives
};
enum class SymbolTail { kNothing, kNewlines, kNewlinesAndSlashes };

// In what the known patterns differ.
struct SplitRules {
  std::string_view pattern;
  Contractions contractions;
  Words words;
  size_t max_digits;          // of one piece; 0: no limit, and a space may stand in front
  SymbolTail symbol_tail;     // behind " ?[^\s\p{L}\p{N}]+"
  bool newlines_end_a_piece;  // \s*[\r\n]+
};

constexpr SplitRules kKnownPatterns[] = {
    {kTekkenPattern, Contractions::kNone, Words::kBehindAnyByCase, 1, SymbolTail::kNewlinesAndSlashes, true},
    {kGpt2Pattern, Contractions::kLower, Words::kBehindSpace, 0, SymbolTail::kNothing, false},
    {kLlama3Pattern, Contractions::kAnyCase, Words::kBehindAny, 3, SymbolTail::kNewlines, true},
    {kQwen2Pattern, Contractions::kAnyCase, Words::kBehindAny, 1, SymbolTail::kNewlines, true},
};

const SplitRules* RulesOf(std::string_view pattern) {
  for (const SplitRules& rules : kKnownPatterns) {
    if (rules.pattern == pattern) return &rules;
  }
  return nullptr;
}

// A pattern's alternatives, first to last. Each gives the end of its match at a place, or kNone. What
// backtracking would find is found by noting on the way where a run could have ended.
class PatternMatcher {
 public:
  PatternMatcher(std::string_view text, const SplitRules& rules) : text_(text), rules_(rules) {}

  // Each character begins some alternative, so there always is a match.
  size_t PieceEnd(size_t begin) const {
    const Character first = At(begin);
    size_t end = text_[begin] == '\'' ? Contraction(begin) : kNone;
    if (end == kNone) end = Word(begin, first);
    if (end == kNone) end = Digits(begin, first);
    if (end == kNone) end = Symbols(begin, first);
    return end == kNone ? Spaces(begin) : end;
  }

 private:
  Character At(size_t at) const { return CharacterAt(text_, at); }

  size_t RunEnd(size_t at, ClassSet classes) const {
    for (Character next = At(at); next.Is(classes); next = At(at)) at = next.end;
    return at;
  }

  // 's|'t|'re|'ve|'m|'ll|'d. Without regard to case, U+017F is an s too.
  size_t Contraction(size_t begin) const {
    if (rules_.contractions == Contractions::kNone) return kNone;
    const auto lower = [&](size_t at) {
      if (at >= text_.size()) return '\0';
      const char c = text_[at];
      return rules_.contractions == Contractions::kAnyCase && c >= 'A' && c <= 'Z'
                 ? static_cast<char>(c - 'A' + 'a')
                 : c;
    };
    const char one = lower(begin + 1);
    const char two = lower(begin + 2);
    if (one == 's' || one == 't' || one == 'm' || one == 'd') return begin + 2;
    if ((one == 'r' && two == 'e') || (one == 'v' && two == 'e') || (one == 'l' && two == 'l')) {
      return begin + 3;
    }
    const bool is_long_s =
        rules_.contractions == Contractions::kAnyCase && text_.substr(begin + 1).starts_with("\u017F");
    return is_long_s ? begin + 3 : kNone;
  }

  size_t Word(size_t begin, const Character& first) const {
    switch (rules_.words) {
      case Words::kBehindSpace:
        return Letters(text_[begin] == ' ' ? first.end : begin);
      case Words::kBehindAny:
        return Letters(first.Is(kBeforeWord) ? first.end : begin);
      case Words::kBehindAnyByCase:
        return CasedWord(begin, first);
    }
    return kNone;
  }

  size_t Letters(size_t at) const {
    const size_t end = RunEnd(at, kLetters);
    return end == at ? kNone : end;
  }

  size_t CasedWord(size_t begin, const Character& first) const {
    size_t end = kNone;
    if (first.Is(kBeforeWord)) end = LowerWord(first.end);
    if (end == kNone && first.Is(kBeginsWord | kEndsWord)) end = LowerWord(begin);
    if (end == kNone && first.Is(kBeforeWord)) end = UpperWord(first.end);
    if (end == kNone && first.Is(kBeginsWord)) end = UpperWord(begin);
    return end;
  }

  size_t Digits(size_t begin, const Character& first) const {
    if (rules_.max_digits == 0) {  // " ?\p{N}+"
      const size_t at = text_[begin] == ' ' ? first.end : begin;
      const size_t end = RunEnd(at, kNumbers);
      return end == at ? kNone : end;
    }
    size_t at = begin;
    for (size_t count = 0; count < rules_.max_digits; ++count) {
      const Character next = At(at);
      if (!next.Is(kNumbers)) break;
      at = next.end;
    }
    return at == begin ? kNone : at;
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

  // " ?[^\s\p{L}\p{N}]+" and its tail.
  size_t Symbols(size_t begin, const Character& first) const {
    const size_t at = text_[begin] == ' ' ? first.end : begin;
    size_t end = RunEnd(at, kSymbols);
    if (end == at) return kNone;
    if (rules_.symbol_tail == SymbolTail::kNothing) return end;
    const bool slashes = rules_.symbol_tail == SymbolTail::kNewlinesAndSlashes;
    while (end < text_.size() &&
           (text_[end] == '\r' || text_[end] == '\n' || (slashes && text_[end] == '/'))) {
      ++end;
    }
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
    if (rules_.newlines_end_a_piece && last_newline_end != kNone) return last_newline_end;
    return at == text_.size() || last_begin == begin ? at : last_begin;
  }

  std::string_view text_;
  const SplitRules& rules_;
};

class KnownSplitter final : public PieceSplitter {
 public:
  explicit KnownSplitter(const SplitRules& rules) : rules_(rules) {}

  Status Split(std::string_view text, std::vector<uint32_t>* ends) const override {
    ends->clear();
    const PatternMatcher matcher(text, rules_);
    for (size_t at = 0; at < text.size();) {
      at = matcher.PieceEnd(at);
      ends->push_back(static_cast<uint32_t>(at));
    }
    return Status::Ok();
  }

 private:
  const SplitRules& rules_;
};

class DigitSplitter final : public PieceSplitter {
 public:
  explicit DigitSplitter(DigitPieces pieces) : pieces_(pieces) {}

  Status Split(std::string_view text, std::vector<uint32_t>* ends) const override {
    ends->clear();
    bool piece_is_number = false;
    size_t at = 0;
    while (at < text.size()) {
      const Character next = CharacterAt(text, at);
      const bool is_number = next.Is(kNumbers);
      const bool cuts = is_number != piece_is_number || (is_number && pieces_ == DigitPieces::kOne);
      if (at > 0 && cuts) ends->push_back(static_cast<uint32_t>(at));
      piece_is_number = is_number;
      at = next.end;
    }
    if (at > 0) ends->push_back(static_cast<uint32_t>(at));
    return Status::Ok();
  }

 private:
  DigitPieces pieces_;
};

}  // namespace

bool IsKnownPattern(std::string_view pattern) { return RulesOf(pattern) != nullptr; }

StatusOr<std::unique_ptr<const PieceSplitter>> MakePieceSplitter(const std::string& pattern,
                                                                 UnmatchedText unmatched) {
  if (const SplitRules* rules = RulesOf(pattern)) {
    return std::unique_ptr<const PieceSplitter>(new KnownSplitter(*rules));
  }
  return MakePcre2Splitter(pattern, unmatched);
}

std::unique_ptr<const PieceSplitter> MakeDigitSplitter(DigitPieces pieces) {
  return std::make_unique<const DigitSplitter>(pieces);
}

}  // namespace tramontane

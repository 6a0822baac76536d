// How the known patterns cut text: by hand as PCRE2 does it, in time that grows with the text.
#include "models/tokenizer/piece_splitter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/utf8.h"
#include "models/tokenizer/character_class.h"
#include "tests/support/test_scale.h"
#include "tests/support/test_seed.h"

namespace tramontane {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint32_t kCodePoints = 0x110000;

bool IsSurrogate(uint32_t code_point) { return code_point >= 0xD800 && code_point < 0xE000; }

// Letters, marks and numbers that Unicode 15.0, 15.1 and 16.0 added. PCRE2 10.42 knows those of 14.0, a newer
// one may know some of them.
constexpr std::pair<uint32_t, uint32_t> kNewSinceUnicode14[] = {
    {0x897, 0x897},     {0xCF3, 0xCF3},     {0xECE, 0xECE},     {0x1C89, 0x1C8A},   {0xA7CB, 0xA7CD},
    {0xA7DA, 0xA7DC},   {0x105C0, 0x105F3}, {0x10D40, 0x10D65}, {0x10D69, 0x10D6D}, {0x10D6F, 0x10D85},
    {0x10EC2, 0x10EC4}, {0x10EFC, 0x10EFF}, {0x1123F, 0x11241}, {0x11380, 0x11389}, {0x1138B, 0x1138B},
    {0x1138E, 0x1138E}, {0x11390, 0x113B5}, {0x113B7, 0x113C0}, {0x113C2, 0x113C2}, {0x113C5, 0x113C5},
    {0x113C7, 0x113CA}, {0x113CC, 0x113D3}, {0x113E1, 0x113E2}, {0x116D0, 0x116E3}, {0x11BC0, 0x11BE0},
    {0x11BF0, 0x11BF9}, {0x11F00, 0x11F10}, {0x11F12, 0x11F3A}, {0x11F3E, 0x11F42}, {0x11F50, 0x11F5A},
    {0x1342F, 0x1342F}, {0x13440, 0x13455}, {0x13460, 0x143FA}, {0x16100, 0x16139}, {0x16D40, 0x16D6C},
    {0x16D70, 0x16D79}, {0x18CFF, 0x18CFF}, {0x1B132, 0x1B132}, {0x1B155, 0x1B155}, {0x1CCF0, 0x1CCF9},
    {0x1D2C0, 0x1D2D3}, {0x1DF25, 0x1DF2A}, {0x1E030, 0x1E06D}, {0x1E08F, 0x1E08F}, {0x1E4D0, 0x1E4F9},
    {0x1E5D0, 0x1E5FA}, {0x2B739, 0x2B739}, {0x2EBF0, 0x2EE5D}, {0x31350, 0x323AF},
};
// A format character that PCRE2's \s takes for a space; mistral-common's does not.
constexpr uint32_t kMongolianVowelSeparator = 0x180E;

bool IsKnownDifference(uint32_t code_point) {
  return code_point == kMongolianVowelSeparator ||
         std::any_of(std::begin(kNewSinceUnicode14), std::end(kNewSinceUnicode14), [&](const auto& range) {
           return code_point >= range.first && code_point <= range.second;
         });
}

std::vector<std::string> Cut(const PieceSplitter& splitter, const std::string& text) {
  std::vector<uint32_t> ends;
  const Status status = splitter.Split(text, &ends);
  if (!status.ok()) return {status.message()};
  std::vector<std::string> pieces;
  uint32_t begin = 0;
  for (const uint32_t end : ends) {
    pieces.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return pieces;
}

const PieceSplitter& ByHand() {
  static const auto splitter = MakePieceSplitter(std::string(kTekkenPattern)).value();
  return *splitter;
}

std::vector<std::string> CutBy(std::string_view pattern, const std::string& text) {
  return Cut(*MakePieceSplitter(std::string(pattern)).value(), text);
}

TEST(PieceSplitterTest, WordsTakeWhatStandsBeforeThem) {
  EXPECT_THAT(Cut(ByHand(), "Hello, world! 12"), ElementsAre("Hello", ",", " world", "!", " ", "1", "2"));
  EXPECT_THAT(Cut(ByHand(), "(word) _a"), ElementsAre("(word", ")", " _", "a"));
  EXPECT_THAT(Cut(ByHand(), ""), IsEmpty());
}

TEST(PieceSplitterTest, WordsEndWhereCaseRisesAgain) {
  EXPECT_THAT(Cut(ByHand(), "camelCase HTTPServer"), ElementsAre("camel", "Case", " HTTPServer"));
  EXPECT_THAT(Cut(ByHand(), "ABC"), ElementsAre("ABC"));
  EXPECT_THAT(Cut(ByHand(), "你AB"), ElementsAre("你", "AB"))
      << "what both parts may hold ends the first match";
  EXPECT_THAT(Cut(ByHand(), "A你BC你D"), ElementsAre("A你BC你", "D"));
}

TEST(PieceSplitterTest, SpacesLeaveTheLastOneToTheWord) {
  EXPECT_THAT(Cut(ByHand(), "a   b"), ElementsAre("a", "  ", " b"));
  EXPECT_THAT(Cut(ByHand(), "a   "), ElementsAre("a", "   "));
  EXPECT_THAT(Cut(ByHand(), "a  1"), ElementsAre("a", " ", " ", "1"));
  EXPECT_THAT(Cut(ByHand(), "a \r\n  b"), ElementsAre("a", " \r\n", " ", " b"));
  EXPECT_THAT(Cut(ByHand(), "//x/\n\n ="), ElementsAre("//", "x", "/\n\n", " ="));
}

TEST(PieceSplitterTest, TheTablesEqualThoseOfPcre2ButForTheKnownDifferences) {
  constexpr std::pair<CharacterClass, const char*> kPatterns[] = {
      {CharacterClass::kUpper, R"(\p{Lu}\p{Lt})"},
      {CharacterClass::kLower, R"(\p{Ll})"},
      {CharacterClass::kCaseless, R"(\p{Lm}\p{Lo})"},
      {CharacterClass::kMark, R"(\p{M})"},
      {CharacterClass::kNumber, R"(\p{N})"},
      {CharacterClass::kNewline, R"(\r\n)"},
      {CharacterClass::kSpace, R"(\x09\x0B\x0C\x{85}\p{Z})"},
  };
  const auto letter = MakePcre2Splitter("\\p{L}").value();
  const bool pcre2_is_newer = Cut(*letter, "\U000323B0").front().size() == 4;  // added by Unicode 17.0
  std::string all;
  for (uint32_t code_point = 0; code_point < kCodePoints; ++code_point) {
    if (!IsSurrogate(code_point)) AppendUtf8(code_point, &all);
  }
  for (const auto& [character_class, members] : kPatterns) {
    const std::string set(members);
    const auto splitter = MakePcre2Splitter("[" + set + "]+|[^" + set + "]+").value();
    std::vector<uint32_t> ends;
    ASSERT_TRUE(splitter->Split(all, &ends).ok());
    size_t run = 0;  // of those that the set has not, and has, in turn
    size_t at = 0;
    for (uint32_t code_point = 0; code_point < kCodePoints; ++code_point) {
      if (IsSurrogate(code_point)) continue;
      if (at == ends[run]) ++run;
      at += NextUtf8(std::string_view(all).substr(at, 4)).bytes;
      const bool is_theirs = run % 2 == 1;
      const bool is_ours = ClassOfCharacter(code_point) == character_class;
      const bool is_newer = pcre2_is_newer && ClassOfCharacter(code_point) == CharacterClass::kOther;
      if (is_ours != is_theirs && !is_newer) {
        ASSERT_TRUE(IsKnownDifference(code_point)) << std::hex << code_point << " " << members;
      }
    }
  }
}

// Text of all planes, with much of what the pattern tells apart.
class RandomText {
 public:
  explicit RandomText(uint64_t seed) : random_(seed) {
    for (uint32_t code_point = 0; code_point < kCodePoints; ++code_point) {
      if (IsSurrogate(code_point) || IsKnownDifference(code_point)) continue;
      by_class_[static_cast<size_t>(ClassOfCharacter(code_point))].push_back(code_point);
    }
  }

  std::string Next() {
    std::string text;
    const size_t length = Below(40);
    const uint32_t plane = static_cast<uint32_t>(Below(17)) << 16;
    while (text.size() < length) AppendUtf8(CodePoint(plane), &text);
    return text;
  }

 private:
  size_t Below(size_t count) { return random_() % count; }

  uint32_t CodePoint(uint32_t plane) {
    constexpr std::string_view kTold = "aA1 \r\n\t/'.'''sTrEvLMd";
    const size_t kind = Below(10);
    if (kind == 0 && Below(10) == 0) return 0x17F;  // a long s, which is an s where case does not matter
    if (kind < 4) return static_cast<uint8_t>(kTold[Below(kTold.size())]);
    if (kind < 9) {
      const std::vector<uint32_t>& members = by_class_[Below(by_class_.size())];
      return members[Below(members.size())];
    }
    const auto code_point = static_cast<uint32_t>(plane + Below(0x10000));
    return IsSurrogate(code_point) || IsKnownDifference(code_point) ? '-' : code_point;
  }

  std::mt19937_64 random_;
  std::array<std::vector<uint32_t>, 8> by_class_;
};

TEST(PieceSplitterTest, ByHandEqualsPcre2OnRandomTextOfAllPlanes) {
  const uint64_t seed = TestSeed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  RandomText random(seed);
  for (const std::string_view pattern : {kTekkenPattern, kGpt2Pattern, kLlama3Pattern, kQwen2Pattern}) {
    SCOPED_TRACE(pattern);
    ASSERT_TRUE(IsKnownPattern(pattern));
    const auto by_hand = MakePieceSplitter(std::string(pattern)).value();
    const auto by_pcre2 = MakePcre2Splitter(std::string(pattern)).value();
    for (int64_t i = ScaledCount(20'000); i > 0; --i) {
      const std::string text = random.Next();
      ASSERT_EQ(Cut(*by_hand, text), Cut(*by_pcre2, text)) << ::testing::PrintToString(text);
    }
  }
  EXPECT_FALSE(IsKnownPattern(std::string(kTekkenPattern) + "|x"));
}

TEST(PieceSplitterTest, Gpt2sPatternTakesASpaceBeforeWordsNumbersAndSymbols) {
  EXPECT_THAT(CutBy(kGpt2Pattern, "I've 123 'S ab's\n\n x !?"),
              ElementsAre("I", "'ve", " 123", " '", "S", " ab", "'s", "\n\n", " x", " !?"));
  EXPECT_THAT(CutBy(kGpt2Pattern, "a\n\n  \nb"), ElementsAre("a", "\n\n  ", "\n", "b"));
}

TEST(PieceSplitterTest, Llama3sPatternCutsNumbersAfterThreeDigitsAndQwen2sAfterOne) {
  EXPECT_THAT(CutBy(kLlama3Pattern, "I'VE 12345.\n\n(x) 'ſ"),
              ElementsAre("I", "'VE", " ", "123", "45", ".\n\n", "(x", ")", " '", "ſ"));
  EXPECT_THAT(CutBy(kLlama3Pattern, "a'ſb'LL"), ElementsAre("a", "'ſ", "b", "'LL")) << "a long s is an s";
  EXPECT_THAT(CutBy(kQwen2Pattern, "a 12  \nb"), ElementsAre("a", " ", "1", "2", "  \n", "b"));
}

TEST(PieceSplitterTest, DigitsAreCutOneByOneOrInRuns) {
  const auto one = MakeDigitSplitter(DigitPieces::kOne);
  EXPECT_THAT(Cut(*one, "a12 ½b"), ElementsAre("a", "1", "2", " ", "½", "b"));
  const auto run = MakeDigitSplitter(DigitPieces::kRun);
  EXPECT_THAT(Cut(*run, "12ab34"), ElementsAre("12", "ab", "34"));
  EXPECT_THAT(Cut(*run, ""), IsEmpty());
}

TEST(PieceSplitterTest, UnmatchedTextMayBeAPieceOfItsOwn) {
  const auto letters = MakePieceSplitter("[a-z]+", UnmatchedText::kIsPiece).value();
  EXPECT_THAT(Cut(*letters, "--ab1\ncd!"), ElementsAre("--", "ab", "1\n", "cd", "!"));
  EXPECT_THAT(Cut(*letters, "12"), ElementsAre("12"));
  EXPECT_THAT(MakePieceSplitter("[a-z]*", UnmatchedText::kIsPiece).status().message(),
              HasSubstr("may match no text at all"));
}

TEST(PieceSplitterTest, LongRunsAreCutAsShortOnes) {
  const size_t count = 200'000;
  for (const char* run : {"a", "A", " ", "\n", "\xF0\x9F\x99\x82", "\xCC\x81", "你", "=", "\t"}) {
    std::string text;
    for (size_t i = 0; i < count; ++i) text += run;
    EXPECT_EQ(Cut(ByHand(), text).size(), 1u) << "of " << run;
  }
  EXPECT_EQ(Cut(ByHand(), std::string(count, ' ') + "x").back(), " x");
  EXPECT_EQ(Cut(ByHand(), std::string(count, 'A') + "b").size(), 1u);
}

TEST(PieceSplitterTest, AnotherPatternIsMatchedByPcre2) {
  const auto pairs = MakePieceSplitter(R"(\p{Lu}\p{Ll}|.)").value();
  EXPECT_THAT(Cut(*pairs, "ÄöÜa"), ElementsAre("Äö", "Üa"));
  EXPECT_THAT(Cut(*pairs, "aÄö"), ElementsAre("a", "Äö"));
}

TEST(PieceSplitterTest, APatternThatIsNoneIsRefused) {
  EXPECT_THAT(MakePieceSplitter("(a").status().message(), HasSubstr("not a regular expression at byte 2: "));
  EXPECT_THAT(MakePieceSplitter("").status().message(), HasSubstr("a pattern of 0 bytes is not 1 to 4096"));
  EXPECT_THAT(MakePieceSplitter(std::string(5000, 'a')).status().message(), HasSubstr("a pattern of 5000"));
  EXPECT_THAT(MakePieceSplitter(R"(\C)").status().code(), StatusCode::kDataLoss) << "would cut characters";
}

TEST(PieceSplitterTest, TextThatAPatternLeavesOutIsAnErrorNamingTheByte) {
  const auto letters = MakePieceSplitter("[a-z]+").value();
  EXPECT_THAT(Cut(*letters, "ab1"), ElementsAre("the tokenizer's pattern matches nothing at byte 2"));
  const auto empty = MakePieceSplitter("[a-z]*").value();
  EXPECT_THAT(Cut(*empty, "ab1"), ElementsAre("the tokenizer's pattern matches nothing at byte 2"));
}

TEST(PieceSplitterTest, APatternThatRunsAwayIsStopped) {
  const auto runaway = MakePieceSplitter("(a+)+b|(?:a*)*c").value();
  EXPECT_THAT(Cut(*runaway, std::string(64, 'a')),
              ElementsAre(HasSubstr("the tokenizer's pattern fails at byte 0: match limit exceeded")));
}

}  // namespace
}  // namespace tramontane

// Control tokens read from text, where a caller asks for it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "models/tokenizer/spelling_matcher.h"
#include "tests/models/tekken_test_file.h"
#include "tests/models/tokenizer_test_model.h"
#include "tests/support/test_scale.h"
#include "tests/support/test_seed.h"

namespace tramontane {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string PiecesWithControls(const Tokenizer& tokenizer, std::string_view text) {
  std::string joined;
  const std::vector<int32_t> ids = tokenizer.EncodeWithControlTokens(text).value();
  for (const int32_t id : ids) {
    joined += joined.empty() ? "" : "|";
    joined += tokenizer.Piece(id);
  }
  return joined;
}

SentencePieceTokenizer Letters() {
  return SmallTokenizer(
      {{"▁", -9}, {"a", -9}, {"b", -9}, {"▁a", -1}, {"[REF]", 0, SentencePieceModel::Type::kUserDefined}});
}

TEST(ControlTokensTest, EachSegmentBetweenControlTokensHasItsOwnDummySpace) {
  const SentencePieceTokenizer tokenizer = Letters();
  EXPECT_EQ(PiecesWithControls(tokenizer, "<s>[INST]a b[/INST]a</s>"), "<s>|[INST]|▁a|▁|b|[/INST]|▁a|</s>");
  EXPECT_EQ(PiecesWithControls(tokenizer, "[INST] a"), "[INST]|▁|▁a") << "the space that is there stays";
  EXPECT_EQ(PiecesWithControls(tokenizer, "[INST][/INST]"), "[INST]|[/INST]") << "no text, no dummy space";
  EXPECT_EQ(PiecesWithControls(tokenizer, ""), "");
}

TEST(ControlTokensTest, WhatIsNoControlPieceIsEncodedAsEver) {
  const SentencePieceTokenizer tokenizer = Letters();
  for (const char* text : {"[INST", "INST]", "<unk>", "[REF]a", "<0x0A>", "[inst]"}) {
    EXPECT_EQ(tokenizer.EncodeWithControlTokens(text).value(), tokenizer.Encode(text).value()) << text;
  }
}

TEST(ControlTokensTest, TekkensSegmentsAreEncodedAlone) {
  const auto tokenizer = SmallTekken(TekkenJson({"ab", "a "}));
  EXPECT_EQ(PiecesWithControls(*tokenizer, "[INST]ab[/INST]b<SPECIAL_40><unk>"),
            "[INST]|ab|[/INST]|b|<SPECIAL_40>|<unk>");
  EXPECT_EQ(tokenizer->EncodeWithControlTokens("<SPECIAL_4>").value(),
            tokenizer->Encode("<SPECIAL_4>").value())
      << "named [/INST] in this one";
}

TEST(ControlTokensTest, TextThatIsNotUtf8IsAnErrorNamingTheByteOfTheWholeText) {
  EXPECT_THAT(Letters().EncodeWithControlTokens("[INST]a\xFF").status().message(),
              HasSubstr("not UTF-8 at byte 7"));
}

TEST(SpellingMatcherTest, TheLeftmostWinsAndThenTheLongest) {
  const SpellingMatcher matcher({{"ab", 1}, {"abc", 2}, {"bcde", 3}, {"", 4}, {"ab", 5}});
  const auto ids_in = [&](std::string_view text) {
    std::vector<int32_t> ids;
    for (auto match = matcher.Find(text, 0); match; match = matcher.Find(text, match->end)) {
      ids.push_back(match->id);
    }
    return ids;
  };
  EXPECT_THAT(ids_in("abcde"), ElementsAre(2));
  EXPECT_THAT(ids_in("xabbcde"), ElementsAre(1, 3));
  EXPECT_THAT(ids_in("bcdab"), ElementsAre(1));
  EXPECT_THAT(ids_in("ba"), ElementsAre());
  EXPECT_FALSE(matcher.MatchAt("xab", 0).has_value());
  EXPECT_EQ(matcher.MatchAt("xab", 1)->end, 3u);
  EXPECT_FALSE(SpellingMatcher().Find("a", 0).has_value());
}

TEST(SpellingMatcherTest, RandomSpellingsAreFoundAsTheDefinitionSays) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto word = [&](size_t most) {
    std::string text;
    for (size_t n = 1 + random() % most; n > 0; --n) text += "ab\xFF"[random() % 3];
    return text;
  };
  for (int64_t round = ScaledCount(300); round > 0; --round) {
    std::vector<std::pair<std::string, int32_t>> spellings;
    for (int32_t id = 0; id < 12; ++id) spellings.emplace_back(word(6), id);
    const SpellingMatcher matcher(spellings);
    const std::string text = word(60);
    size_t begin = 0;  // by the definition
    const std::string* found = nullptr;
    for (; begin < text.size() && found == nullptr; ++begin) {
      for (const auto& [spelling, id] : spellings) {
        if (!std::string_view(text).substr(begin).starts_with(spelling)) continue;
        if (found == nullptr || spelling.size() > found->size()) found = &spelling;
      }
    }
    const auto match = matcher.Find(text, 0);
    ASSERT_EQ(match.has_value(), found != nullptr) << text;
    if (!match) continue;
    ASSERT_EQ(match->begin, begin - 1) << text;
    ASSERT_EQ(text.substr(match->begin, match->end - match->begin), *found) << text;
    ASSERT_EQ(spellings[static_cast<size_t>(match->id)].first, *found);
  }
}

}  // namespace
}  // namespace tramontane

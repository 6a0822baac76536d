// Tekken's encoding and decoding: merges by rank, ids behind the special tokens, work that grows with the
// text.
#include "models/tokenizer/tekken.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/core/utf8.h"
#include "models/tokenizer/detokenizer.h"
#include "tests/models/tekken_test_file.h"
#include "tests/support/test_scale.h"
#include "tests/support/test_seed.h"

namespace tramontane {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int32_t kFirstMerge = kTestSpecialTokens + 256;

int32_t ByteId(char byte) { return kTestSpecialTokens + static_cast<uint8_t>(byte); }

TEST(TekkenTest, AnIdIsARankBehindTheSpecialTokens) {
  const auto tokenizer = SmallTekken(TekkenJson({"ab", " ab"}));
  EXPECT_THAT(tokenizer->Encode("ab ab").value(), ElementsAre(kFirstMerge, kFirstMerge + 1));
  EXPECT_THAT(tokenizer->Encode("x").value(), ElementsAre(ByteId('x')));
  EXPECT_TRUE(tokenizer->Encode("").value().empty());
  EXPECT_EQ(tokenizer->vocab_size(), kFirstMerge + 2);
}

TEST(TekkenTest, ThePairOfLowestRankMergesFirstAndTheLeftmostAmongEquals) {
  const auto tokenizer = SmallTekken(TekkenJson({"bc", "ab", "aa"}));
  EXPECT_THAT(tokenizer->Encode("abc").value(), ElementsAre(ByteId('a'), kFirstMerge));
  EXPECT_THAT(tokenizer->Encode("aaaaa").value(), ElementsAre(kFirstMerge + 2, kFirstMerge + 2, ByteId('a')));
}

TEST(TekkenTest, APieceThatIsATokenNeedsNoMerges) {
  const auto tokenizer = SmallTekken(TekkenJson({"abc"}));  // no pair of its parts is a token
  EXPECT_THAT(tokenizer->Encode("abc").value(), ElementsAre(kFirstMerge));
  EXPECT_THAT(tokenizer->Encode("abcd").value().size(), 4u);
}

TEST(TekkenTest, NoTokenCrossesWhereThePatternCuts) {
  const auto tokenizer = SmallTekken(TekkenJson({"12", "a b", "a "}));
  EXPECT_THAT(tokenizer->Encode("12").value(), ElementsAre(ByteId('1'), ByteId('2')));
  EXPECT_THAT(tokenizer->Encode("a b").value(), ElementsAre(ByteId('a'), ByteId(' '), ByteId('b')));
}

TEST(TekkenTest, SpecialTokensAreNeverReadFromText) {
  const auto tokenizer = SmallTekken(TekkenJson({"[INST]", "<s>"}));
  for (const char* text : {"<s>", "[INST]", "</s>[TOOL_CALLS]", "<SPECIAL_40>", "<unk>"}) {
    const std::vector<int32_t> ids = tokenizer->Encode(text).value();
    EXPECT_TRUE(std::none_of(ids.begin(), ids.end(), [&](int32_t id) { return tokenizer->IsControl(id); }));
    EXPECT_EQ(tokenizer->Decode(ids).value(), text);
  }
}

TEST(TekkenTest, SpecialTokensAreControlPiecesWithoutText) {
  const auto tokenizer = SmallTekken(TekkenJson({"ab"}));
  EXPECT_EQ(tokenizer->bos_id(), 1);
  EXPECT_EQ(tokenizer->eos_id(), 2);
  EXPECT_EQ(tokenizer->unk_id(), 0);
  EXPECT_EQ(tokenizer->ControlId("[TOOL_CALLS]"), 9);
  EXPECT_EQ(tokenizer->ControlId("<SPECIAL_47>"), 47);
  EXPECT_EQ(tokenizer->ControlId("ab"), std::nullopt);
  EXPECT_EQ(tokenizer->Piece(3), "[INST]");
  EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{1, 3, kFirstMerge, 2, kFirstMerge}).value(), "abab");
  for (const int32_t id : {-1, kFirstMerge + 1, INT32_MAX}) {
    EXPECT_TRUE(tokenizer->IsControl(id));
    EXPECT_EQ(tokenizer->PieceBytes(id), "");
    EXPECT_EQ(tokenizer->Piece(id), "");
  }
  EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{kFirstMerge + 1}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(TekkenTest, PiecesAreSpelledInUtf8) {
  const auto tokenizer = SmallTekken(TekkenJson({" \xE4\xBD", "é"}));
  EXPECT_EQ(tokenizer->Piece(kFirstMerge), " <0xE4><0xBD>");
  EXPECT_EQ(tokenizer->PieceBytes(kFirstMerge), " \xE4\xBD");
  EXPECT_EQ(tokenizer->Piece(kFirstMerge + 1), "é");
  const std::vector<int32_t> ids = {3, kFirstMerge, ByteId('\xA0'), 4, kFirstMerge};
  EXPECT_EQ(tokenizer->Spelling(ids), "[INST] 你[/INST] \xEF\xBF\xBD");
}

TEST(TekkenTest, AStreamNeverShowsHalfACharacter) {
  const auto tokenizer = SmallTekken(TekkenJson({"\xF0\x9F", "\x99\x82"}));
  Detokenizer detokenizer(*tokenizer);
  std::string text;
  detokenizer.Append(ByteId(' '), &text);
  EXPECT_EQ(text, " ") << "nobody puts a space in front";
  detokenizer.Append(kFirstMerge, &text);
  EXPECT_EQ(text, " ");
  detokenizer.Append(kFirstMerge + 1, &text);
  EXPECT_EQ(text, " \xF0\x9F\x99\x82");
}

TEST(TekkenTest, TextThatIsNotUtf8IsAnErrorNamingTheByte) {
  const auto tokenizer = SmallTekken(TekkenJson({}));
  EXPECT_THAT(tokenizer->Encode("ab\xFF").status().message(), HasSubstr("not UTF-8 at byte 2"));
}

// A vocabulary of random concatenations, so that most merges have several ways to go.
std::vector<std::string> RandomMerges(std::mt19937_64& random) {
  std::vector<std::string> merges;
  std::vector<std::string> pool = {"a", "b", "c", "é"};
  while (merges.size() < 60) {
    std::string merge = pool[random() % pool.size()] + pool[random() % pool.size()];
    if (merge.size() > 40 || std::find(pool.begin(), pool.end(), merge) != pool.end()) continue;
    pool.push_back(merge);
    merges.push_back(std::move(merge));
  }
  std::shuffle(merges.begin(), merges.end(), random);
  return merges;
}

// By the definition: look at all pairs, merge the best, start again.
std::vector<std::string> MergeBytesByDefinition(const std::vector<std::string>& merges,
                                                const std::string& piece) {
  std::unordered_map<std::string, size_t> ranks;
  for (size_t rank = 0; rank < merges.size(); ++rank) ranks[merges[rank]] = rank;
  if (ranks.contains(piece)) return {piece};
  std::vector<std::string> parts;
  for (const char byte : piece) parts.emplace_back(1, byte);
  while (true) {
    size_t best = parts.size();
    size_t best_rank = merges.size();
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found = ranks.find(parts[i] + parts[i + 1]);
      if (found == ranks.end() || found->second >= best_rank) continue;
      best = i;
      best_rank = found->second;
    }
    if (best == parts.size()) return parts;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
}

TEST(TekkenTest, RandomVocabulariesMergeAsTheDefinitionSays) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int64_t vocabulary = ScaledCount(60); vocabulary > 0; --vocabulary) {
    std::vector<std::string> merges = RandomMerges(random);
    merges.push_back("\xC3\xA9");
    merges.erase(std::unique(merges.begin(), merges.end()), merges.end());
    const auto tokenizer = SmallTekken(TekkenJson(merges));
    for (int text = 0; text < 40; ++text) {
      std::string piece;  // letters alone: the pattern does not cut them
      const size_t length = random() % (text % 4 == 0 ? 300 : 40);
      while (piece.size() < length) piece += std::vector<std::string>{"a", "b", "c", "é"}[random() % 4];
      const std::vector<int32_t> ids = tokenizer->Encode(piece).value();
      std::vector<std::string> pieces;
      for (const int32_t id : ids) pieces.emplace_back(tokenizer->PieceBytes(id));
      ASSERT_EQ(pieces, MergeBytesByDefinition(merges, piece)) << piece;
    }
  }
}

TEST(TekkenTest, AMillionOfOneLetterIsMergedInLinearlyManySteps) {
  const std::vector<std::string> units = {"a", " ", "\n", "\xF0\x9F\x99\x82"};
  std::vector<std::string> merges;
  for (const std::string& unit : units) {
    if (unit.size() > 1) {
      merges.push_back(unit.substr(0, 2));
      merges.push_back(unit.substr(2));
      merges.push_back(unit);
    }
    for (std::string run = unit + unit; run.size() <= 64; run += run) merges.push_back(run);
  }
  const auto tokenizer = SmallTekken(TekkenJson(merges));
  std::vector<std::string> repeated = units;
  repeated.emplace_back("b");  // never merges
  for (const std::string& unit : repeated) {
    std::string text;
    while (text.size() < 1'000'000) text += unit;
    EncodeWork work;
    const std::vector<int32_t> ids = tokenizer->EncodeCounted(text, &work).value();
    EXPECT_EQ(work.symbols, text.size());
    EXPECT_LE(work.pair_lookups, 3 * work.symbols);
    EXPECT_LE(work.heap_pops, work.pair_lookups);
    EXPECT_EQ(ids.size(), unit == "b" ? text.size() : text.size() / 64) << ::testing::PrintToString(unit);
    EXPECT_EQ(tokenizer->Decode(ids).value(), text);
  }
}

}  // namespace
}  // namespace tramontane

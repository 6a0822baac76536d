// Byte-pair encoding over SentencePiece models: its rules one by one, then against the definition.
#include "models/tokenizer/sentencepiece.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "tests/models/tokenizer_test_model.h"
#include "tests/support/test_scale.h"

namespace tramontane {
namespace {

using Type = SentencePieceModel::Type;

std::string WithMarkers(std::string_view text) {
  std::string marked = "▁";
  for (const char byte : text) marked += byte == ' ' ? "▁" : std::string(1, byte);
  return marked;
}

TEST(SentencePieceTest, ThePairWithTheHighestScoreMergesFirst) {
  const SentencePieceTokenizer tokenizer =
      SmallTokenizer({{"▁", -9}, {"a", -9}, {"b", -9}, {"c", -9}, {"ab", -2}, {"bc", -1}});
  EXPECT_EQ(Pieces(tokenizer, "abc"), "▁|a|bc");
}

TEST(SentencePieceTest, AmongEqualScoresTheLeftmostPairMergesFirst) {
  const SentencePieceTokenizer tokenizer = SmallTokenizer({{"▁", -9}, {"a", -9}, {"aa", -1}});
  EXPECT_EQ(Pieces(tokenizer, "aaa"), "▁|aa|a");
}

TEST(SentencePieceTest, APieceThatNoMergeReachesIsNotProduced) {
  const SentencePieceTokenizer tokenizer =
      SmallTokenizer({{"▁", -9}, {"a", -9}, {"b", -9}, {"c", -9}, {"abc", -1}});
  EXPECT_EQ(Pieces(tokenizer, "abc"), "▁|a|b|c");
}

TEST(SentencePieceTest, TheLongestUserDefinedPieceIsTakenWholeAndNeverMerges) {
  const SentencePieceTokenizer tokenizer = SmallTokenizer({{"▁", -9},
                                                           {"a", -9},
                                                           {"x", -9},
                                                           {"[", -9},
                                                           {"R", -9},
                                                           {"[R", -1},
                                                           {"a[R]", 5},
                                                           {"[R]", 0, Type::kUserDefined},
                                                           {"[R]1", 0, Type::kUserDefined}});
  EXPECT_EQ(Pieces(tokenizer, "a[R]x"), "▁|a|[R]|x");
  EXPECT_EQ(Pieces(tokenizer, "a[R]1x"), "▁|a|[R]1|x");
  EXPECT_EQ(Pieces(tokenizer, "[Rx"), "▁|[R|x") << "a prefix of a user-defined piece is plain text";
}

TEST(SentencePieceTest, TextNeverBecomesAControlPiece) {
  const Tokenizer& tokenizer = Breeze();
  for (int32_t control = 0; control < tokenizer.vocab_size(); ++control) {
    if (!tokenizer.IsControl(control)) continue;
    const std::string text(tokenizer.Piece(control));
    const std::vector<int32_t> ids = tokenizer.Encode(text).value();
    for (const int32_t id : ids) EXPECT_FALSE(tokenizer.IsControl(id)) << text;
    EXPECT_EQ(tokenizer.Decode(ids).value(), text);
  }
}

TEST(SentencePieceTest, AByteSpelledOutInTextStaysText) {
  EXPECT_EQ(Breeze().Decode(Breeze().Encode("<0x0A>").value()).value(), "<0x0A>");
  EXPECT_NE(Breeze().Encode("<0x0A>").value().back(), Breeze().Encode("\n").value().back());
}

TEST(SentencePieceTest, WhatTheVocabularyLacksIsSpelledInBytes) {
  const SentencePieceTokenizer tokenizer = SmallTokenizer({{"▁", -9}});
  EXPECT_EQ(Pieces(tokenizer, "é\n"), "▁|<0xC3>|<0xA9>|<0x0A>");
}

TEST(SentencePieceTest, WithoutBytePiecesARunOfUnknownTextIsOneUnknownId) {
  const SentencePieceTokenizer tokenizer = SmallTokenizer({{"▁", -9}, {"a", -9}}, Bytes::kWithout);
  EXPECT_EQ(Pieces(tokenizer, "éüaö"), "▁|<unk>|a|<unk>");
  EXPECT_EQ(tokenizer.Decode(tokenizer.Encode("éa").value()).value(), " ⁇ a");
}

TEST(SentencePieceTest, EverySegmentButTheEmptyOneGetsItsOwnDummySpace) {
  const SentencePieceTokenizer tokenizer = SmallTokenizer({{"▁", -9}, {"a", -9}, {"▁a", -1}});
  EXPECT_EQ(Pieces(tokenizer, ""), "");
  EXPECT_EQ(Pieces(tokenizer, "a"), "▁a");
  EXPECT_EQ(Pieces(tokenizer, " a"), "▁|▁a");
  EXPECT_EQ(Pieces(tokenizer, " "), "▁|▁");
}

TEST(SentencePieceTest, RemoveExtraWhitespacesTrimsTheEndsAndJoinsRuns) {
  SentencePieceModel model = SmallModel({{"▁", -9}, {"a", -9}, {"b", -9}});
  model.remove_extra_whitespaces = true;
  const SentencePieceTokenizer tokenizer(std::move(model), TokenizerVersion::kV1);
  EXPECT_EQ(Pieces(tokenizer, "  a   b  "), "▁|a|▁|b");
  EXPECT_EQ(Pieces(tokenizer, "   "), "");
  EXPECT_EQ(Pieces(tokenizer, "a \n b"), "▁|a|▁|<0x0A>|▁|b") << "other white space is text";
}

TEST(SentencePieceTest, TextThatIsNotUtf8IsRefusedByTheOffsetOfItsByte) {
  const auto ids = Breeze().Encode("ok \xff then");
  EXPECT_EQ(ids.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ids.status().message(), "the text is not UTF-8 at byte 3");
}

TEST(SentencePieceTest, NullBytesAreText) {
  const std::string text("a\0b", 3);
  EXPECT_EQ(Breeze().Decode(Breeze().Encode(text).value()).value(), text);
}

TEST(SentencePieceTest, IdsOutsideTheVocabularyAddNoText) {
  for (const int32_t id : {-1, Breeze().vocab_size(), INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(Breeze().PieceBytes(id), "");
    EXPECT_TRUE(Breeze().IsControl(id));
    EXPECT_EQ(Breeze().Decode(std::vector<int32_t>{5, id}).status().code(), StatusCode::kInvalidArgument);
  }
}

// Random vocabularies, some with pieces that span a space, so that both ways of cutting text into words are
// met.
TEST(SentencePieceTest, EqualsTheDefinitionOnRandomVocabulariesAndTexts) {
  const uint32_t seed = 17;
  RecordProperty("seed", static_cast<int>(seed));
  std::mt19937 random(seed);
  const auto below = [&](size_t limit) {
    return std::uniform_int_distribution<size_t>(0, limit - 1)(random);
  };
  const std::vector<std::string> letters = {"▁", "a", "b", "c", "é", "\n"};
  const int64_t vocabularies = ScaledCount(300, 20);
  for (int64_t round = 0; round < vocabularies; ++round) {
    const bool spans_spaces = round % 2 == 0;
    std::vector<SentencePieceModel::Piece> pieces;
    for (const std::string& letter : letters) {
      if (below(5) > 0) pieces.push_back({letter, -100});
    }
    for (int i = 0; i < 40; ++i) {
      std::string text;
      const size_t length = 2 + below(3);
      for (size_t j = 0; j < length; ++j) {
        const bool may_be_space = spans_spaces || j == 0;
        text += may_be_space ? letters[below(6)] : letters[1 + below(5)];
      }
      bool is_new = true;
      for (const auto& piece : pieces) is_new = is_new && piece.text != text;
      const Type type = below(20) == 0 ? Type::kUserDefined : Type::kNormal;
      if (is_new) pieces.push_back({text, -static_cast<float>(below(8)), type});
    }
    const SentencePieceModel model = SmallModel(pieces);
    const SentencePieceTokenizer tokenizer(model, TokenizerVersion::kV3);
    for (int i = 0; i < 20; ++i) {
      std::string text;
      const size_t length = 1 + below(40);
      for (size_t j = 0; j < length; ++j) text += below(4) == 0 ? " " : letters[1 + below(5)];
      std::string expected;
      for (const std::string& symbol : MergeByDefinition(model, WithMarkers(text))) expected += symbol + "|";
      std::string actual;
      std::string bytes;  // of a symbol spelled in byte pieces
      const std::vector<int32_t> ids = tokenizer.Encode(text).value();
      for (const int32_t id : ids) {
        if (tokenizer.Kind(id) != PieceKind::kByte) {
          actual += std::string(tokenizer.Piece(id)) + "|";
          continue;
        }
        bytes += tokenizer.PieceBytes(id);
        const auto lead = static_cast<uint8_t>(bytes[0]);
        if (bytes.size() < (lead < 0x80 ? 1u : lead < 0xE0 ? 2u : 3u)) continue;
        actual += bytes + "|";
        bytes.clear();
      }
      ASSERT_EQ(actual, expected) << "vocabulary " << round << " text '" << text << "' seed " << seed;
    }
  }
}

// The guard against quadratic merging: one word as long as a large request.
TEST(SentencePieceTest, WorkIsLinearInTheLengthOfOneWord) {
  const auto bytes = static_cast<size_t>(ScaledCount(4 << 20));
  std::mt19937 random(3);
  std::string scrambled;
  while (scrambled.size() < bytes) scrambled += "etaoinshrdlu"[random() % 12];
  for (const std::string& text : {scrambled, std::string(bytes, 'a'), std::string(bytes, ' ')}) {
    EncodeWork work;
    const auto ids = Breeze().EncodeCounted(text, &work);
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ(work.symbols, bytes + 1);
    EXPECT_LE(work.pair_lookups, 3 * work.symbols);
    EXPECT_LE(work.heap_pops, work.pair_lookups);
    EXPECT_EQ(Breeze().Decode(*ids).value(), text);
  }
}

}  // namespace
}  // namespace tramontane

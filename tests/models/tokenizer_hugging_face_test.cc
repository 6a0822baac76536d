// The tokenizer of a tokenizer.json: its rules one by one. tokenizer_json_golden_test.cc compares it with the
// library.
#include "models/tokenizer/hugging_face_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "kernels/core/utf8.h"
#include "models/tokenizer/detokenizer.h"
#include "tests/models/tokenizer_json_test_file.h"
#include "tests/models/tokenizer_test_model.h"
#include "tests/support/test_scale.h"
#include "tests/support/test_seed.h"

namespace tramontane {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string ParsedPieces(const Tokenizer& tokenizer, std::string_view text) {
  std::string joined;
  const std::vector<int32_t> ids = tokenizer.EncodeWithControlTokens(text).value();
  for (const int32_t id : ids) joined += (joined.empty() ? "" : "|") + std::string(tokenizer.Piece(id));
  return joined;
}

TEST(HuggingFaceTest, ThePairThatIsListedFirstMergesFirst) {
  const auto tokenizer = SmallHuggingFace(ByteLevelJson({{"b", "c"}, {"a", "b"}, {"a", "a"}}));
  EXPECT_EQ(Pieces(*tokenizer, "abc"), "a|bc");
  EXPECT_EQ(Pieces(*tokenizer, "aaa"), "aa|a") << "the leftmost among equals";
}

TEST(HuggingFaceTest, NeighboursMergeOnlyAsAPairOfTheList) {
  json file = ByteLevelJson({{"b", "c"}, {"a", "bc"}, {"a", "b"}});
  EXPECT_EQ(Pieces(*SmallHuggingFace(file), "abc"), "abc");
  file["model"]["merges"] = {"a b", "a bc"};
  EXPECT_EQ(Pieces(*SmallHuggingFace(file), "abc"), "ab|c") << "the piece abc is only made of a and bc";
  file["model"]["ignore_merges"] = true;
  EXPECT_EQ(Pieces(*SmallHuggingFace(file), "abc"), "abc") << "a whole cut is the piece";
  EXPECT_EQ(Pieces(*SmallHuggingFace(file), "abcd"), "ab|c|d");
}

TEST(HuggingFaceTest, NoMergeCrossesACut) {
  const auto tokenizer = SmallHuggingFace(ByteLevelJson({{"a", " "}, {" ", "b"}, {"1", "2"}}));
  EXPECT_EQ(Pieces(*tokenizer, "a b12"), "a| b|12");
}

TEST(HuggingFaceTest, TextNeverBecomesAControlPiece) {
  json file = FallbackJson({std::string(kSpaceMark), "<", "/", "s", ">"}, {{"<", "/"}, {"s", ">"}});
  // As conversions of SentencePiece list it.
  file["model"]["merges"].push_back({"</", "s>"});
  file["model"]["ignore_merges"] = true;
  file["normalizer"]["normalizers"].erase(0);  // no mark in front: the whole text is "</s>"
  const auto tokenizer = SmallHuggingFace(file);
  EXPECT_EQ(Pieces(*tokenizer, "</s>"), "</|s>");
  EXPECT_EQ(Pieces(*tokenizer, "a</s>"), "<0x61>|</|s>");
  EXPECT_EQ(ParsedPieces(*tokenizer, "</s>"), "</s>");
  EXPECT_EQ(tokenizer->ControlId("</s>"), 2);
  EXPECT_EQ(tokenizer->ControlId("</"), std::nullopt);
  EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{1, kFirstTestByte + 'x', 2}).value(), "x");
}

TEST(HuggingFaceTest, AddedTokensAreFoundFirstAndAreTheirText) {
  json file = ByteLevelJson({{"<", "t"}});
  AddToken(file, 260, "<tool>");
  AddToken(file, 261, "<tool>x");
  AddToken(file, 262, "é ü");
  const auto tokenizer = SmallHuggingFace(file);
  EXPECT_EQ(Pieces(*tokenizer, "a<tool>b<tool>xy<t"), "a|<tool>|b|<tool>x|y|<|t");
  const std::vector<int32_t> ids = tokenizer->Encode("a<tool>é ü").value();
  EXPECT_THAT(ids, ElementsAre(kFirstTestByte + 'a', 260, 262));
  EXPECT_EQ(tokenizer->Decode(ids).value(), "a<tool>é ü");
  EXPECT_FALSE(tokenizer->IsControl(260));
}

TEST(HuggingFaceTest, AddedTokensMayTakeSpacesAndStandAlone) {
  json file = ByteLevelJson({});
  AddToken(file, 259, "<l>", {{"special", true}, {"lstrip", true}});
  AddToken(file, 260, "<r>", {{"special", true}, {"rstrip", true}});
  AddToken(file, 261, "cat", {{"single_word", true}});
  const auto tokenizer = SmallHuggingFace(file);
  EXPECT_EQ(ParsedPieces(*tokenizer, "a \u3000<l> b"), "a|<l>| |b");
  EXPECT_EQ(ParsedPieces(*tokenizer, "a <r> \n b"), "a| |<r>|b");
  EXPECT_EQ(ParsedPieces(*tokenizer, "<r> <l>"), "<r>|<l>") << "spaces are taken once";
  const std::string both = "a <r> <r> \n b";
  const std::vector<SpellingMatcher::Match> second = {{6, 9, 260}};
  std::string placed;
  const std::vector<int32_t> ids = tokenizer->EncodeWithControlTokensAt(both, second).value();
  for (const int32_t id : ids) {
    placed += std::string(tokenizer->Piece(id)) + "|";
  }
  EXPECT_EQ(placed, "a| |<|r|>| |<r>|b|") << "the first is text, and takes no space";
  EXPECT_EQ(Pieces(*tokenizer, "cat cats"), "cat| |c|a|t|s");
  EXPECT_EQ(Pieces(*tokenizer, "écat"), "<0xC3>|<0xA9>|c|a|t");
  EXPECT_EQ(Pieces(*tokenizer, "½cat"), "<0xC2>|<0xBD>|cat") << "a fraction is no part of a word";
  EXPECT_EQ(Pieces(*tokenizer, "_cat"), "_|c|a|t");
}

TEST(HuggingFaceTest, PrependedMarksStandBeforeEachSegment) {
  const std::string mark(kSpaceMark);
  const auto tokenizer = SmallHuggingFace(FallbackJson({mark, "a"}, {{mark, "a"}}));
  EXPECT_EQ(Pieces(*tokenizer, "a a"), "▁a|▁a");
  EXPECT_EQ(Pieces(*tokenizer, " a"), "▁|▁a");
  EXPECT_EQ(ParsedPieces(*tokenizer, "<s>a</s> a"), "<s>|▁a|</s>|▁|▁a");
  EXPECT_EQ(Pieces(*tokenizer, ""), "");
  EXPECT_EQ(Pieces(*tokenizer, "é"), "▁|<0xC3>|<0xA9>");
}

TEST(HuggingFaceTest, MetaspacePrependsAsItsSchemeSays) {
  const std::string mark(kSpaceMark);
  json file = FallbackJson({mark, "a"}, {{mark, "a"}, {mark, mark}});
  file["normalizer"] = nullptr;
  const auto pieces = [&](const char* scheme, bool split, const char* text) {
    file["pre_tokenizer"] = MetaspaceComponent(scheme, split);
    return ParsedPieces(*SmallHuggingFace(file), text);
  };
  EXPECT_EQ(pieces("first", false, "a<s>a"), "▁a|<s>|a");
  EXPECT_EQ(pieces("first", false, "<s>a"), "<s>|a");
  EXPECT_EQ(pieces("always", false, "a<s>a"), "▁a|<s>|▁a");
  EXPECT_EQ(pieces("never", false, "a<s>a"), "a|<s>|a");
  EXPECT_EQ(pieces("always", false, " a"), "▁a") << "a mark that is there suffices";
  EXPECT_EQ(pieces("never", false, "a   a"), "a|▁▁|▁a");
  EXPECT_EQ(pieces("never", true, "a   a"), "a|▁|▁|▁a") << "each mark begins a cut";
}

TEST(HuggingFaceTest, TheFirstSpaceOfATextIsDroppedWhereTheDecoderStripsIt) {
  const std::string mark(kSpaceMark);
  json file = FallbackJson({mark, "a"}, {{mark, "a"}});
  const auto strips = SmallHuggingFace(file);
  EXPECT_EQ(strips->Decode(strips->Encode("  a a").value()).value(), "  a a");
  file["decoder"]["decoders"][3]["start"] = 0;
  const auto keeps = SmallHuggingFace(file);
  EXPECT_EQ(keeps->Decode(keeps->Encode("a").value()).value(), " a");
}

TEST(HuggingFaceTest, PiecesAreSpelledInUtf8) {
  const auto tokenizer =
      SmallHuggingFace(ByteLevelJson({{" ", "\xE4"}, {" \xE4", "\xBD"}, {"\xC3", "\xA9"}}));
  EXPECT_EQ(tokenizer->Piece(kFirstTestMerge + 1), " <0xE4><0xBD>");
  EXPECT_EQ(tokenizer->Piece(kFirstTestMerge + 2), "é");
  EXPECT_EQ(tokenizer->Kind(kFirstTestByte + 'a'), PieceKind::kByte);
  const std::vector<int32_t> ids = {1, kFirstTestMerge + 1, kFirstTestByte + 0xA0, 2, kFirstTestMerge};
  EXPECT_EQ(tokenizer->Spelling(ids), "<s> 你</s> \xEF\xBF\xBD");
}

TEST(HuggingFaceTest, IdsWithoutAPieceAreControlTokensWithoutAName) {
  json file = ByteLevelJson({});
  AddToken(file, 270, "<tool>");
  const auto tokenizer = SmallHuggingFace(file);
  EXPECT_EQ(tokenizer->vocab_size(), 271);
  for (const int32_t id : {-1, 265, 271, INT32_MAX}) {
    EXPECT_TRUE(tokenizer->IsControl(id));
    EXPECT_EQ(tokenizer->PieceBytes(id), "");
    EXPECT_EQ(tokenizer->Piece(id), "");
  }
  EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{271}).status().code(), StatusCode::kInvalidArgument);
}

TEST(HuggingFaceTest, TheTemplateAndTheConfigTellWhatBeginsAText) {
  json file = ByteLevelJson({{"a", "b"}});
  TokenizerConfigFile config;
  const auto without = SmallHuggingFace(file);
  EXPECT_EQ(without->bos_id(), -1);
  EXPECT_EQ(without->eos_id(), -1);
  EXPECT_EQ(without->unk_id(), 0);
  EXPECT_FALSE(without->adds_bos());

  config.bos_token = "<s>";
  config.eos_token = "</s>";
  const auto named = SmallHuggingFace(file, config);
  EXPECT_EQ(named->bos_id(), 1);
  EXPECT_EQ(named->eos_id(), 2);
  EXPECT_FALSE(named->adds_bos()) << "no template puts it there";

  file["post_processor"] = TemplateComponent("<s>", 1);
  EXPECT_EQ(SmallHuggingFace(file)->bos_id(), 1);
  EXPECT_TRUE(SmallHuggingFace(file)->adds_bos());
  config.adds_bos = TokenizerConfigFile::AddsBos::kNo;
  EXPECT_FALSE(SmallHuggingFace(file, config)->adds_bos());
  config.bos_token = "</s>";
  config.adds_bos = TokenizerConfigFile::AddsBos::kYes;
  EXPECT_THAT(SmallHuggingFace(file, config)->warnings(),
              ElementsAre(HasSubstr("the id 1 in front of a text, tokenizer_config.json's bos_token is 2")));

  config = {};
  config.bos_token = "ab";
  EXPECT_TRUE(SmallHuggingFace(file, config)->IsControl(kFirstTestMerge)) << "what begins a text is no text";
  EXPECT_EQ(Pieces(*SmallHuggingFace(file, config), "ab"), "a|b");
  config.bos_token = "<bos>";
  EXPECT_THAT(SmallHuggingFace(ByteLevelJson({}), config)->warnings(),
              ElementsAre(HasSubstr("bos_token \"<bos>\" is not in the vocabulary")));
  EXPECT_THAT(named->warnings(), IsEmpty());
}

TEST(HuggingFaceTest, TextThatIsNotUtf8IsAnErrorNamingTheByte) {
  const auto tokenizer = SmallHuggingFace(ByteLevelJson({}));
  EXPECT_THAT(tokenizer->Encode("ab\xFF").status().message(), HasSubstr("not UTF-8 at byte 2"));
  EXPECT_THAT(tokenizer->EncodeWithControlTokens("<s>\xFF").status().message(),
              HasSubstr("not UTF-8 at byte 3"));
}

// By the definition: look at all pairs, merge the one that is listed first, start again.
std::vector<std::string> MergeListedByDefinition(const std::vector<TestMerge>& merges,
                                                 std::vector<std::string> parts) {
  for (size_t rank = 0; rank < merges.size();) {
    const auto& [left, right] = merges[rank];
    size_t at = 0;
    while (at + 1 < parts.size() && (parts[at] != left || parts[at + 1] != right)) ++at;
    if (at + 1 >= parts.size()) {
      ++rank;
      continue;
    }
    parts[at] += parts[at + 1];
    parts.erase(parts.begin() + static_cast<ptrdiff_t>(at) + 1);
    rank = 0;
  }
  return parts;
}

TEST(HuggingFaceTest, RandomVocabulariesMergeAsTheDefinitionSays) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const std::vector<std::string> letters = {"a", "b", "c"};
  for (int64_t vocabulary = ScaledCount(60); vocabulary > 0; --vocabulary) {
    std::vector<TestMerge> merges;
    std::vector<std::string> pool = letters;
    while (merges.size() < 50) {
      const TestMerge merge{pool[random() % pool.size()], pool[random() % pool.size()]};
      const std::string result = merge.left + merge.right;
      const bool is_listed = std::any_of(merges.begin(), merges.end(), [&](const TestMerge& other) {
        return other.left == merge.left && other.right == merge.right;
      });
      if (is_listed || result.size() > 30) continue;
      merges.insert(merges.begin() + static_cast<ptrdiff_t>(random() % (merges.size() + 1)), merge);
      if (std::find(pool.begin(), pool.end(), result) == pool.end()) pool.push_back(result);
    }
    const auto tokenizer = SmallHuggingFace(ByteLevelJson(merges));
    for (int i = 0; i < 40; ++i) {
      std::vector<std::string> parts;
      for (size_t n = random() % (i % 4 == 0 ? 200 : 40); n > 0; --n) parts.push_back(letters[random() % 3]);
      std::string text;
      for (const std::string& part : parts) text += part;
      std::vector<std::string> pieces;
      const std::vector<int32_t> ids = tokenizer->Encode(text).value();
      for (const int32_t id : ids) pieces.emplace_back(tokenizer->PieceBytes(id));
      ASSERT_EQ(pieces, MergeListedByDefinition(merges, parts)) << text;
    }
  }
}

TEST(HuggingFaceTest, AMillionOfOneLetterIsMergedInLinearlyManySteps) {
  const std::string mark(kSpaceMark);
  const auto double_up = [](std::vector<TestMerge>* merges, std::string run) {
    for (; run.size() <= 96; run += run) merges->push_back({run, run});
  };
  std::vector<TestMerge> bytes = {{"\xF0", "\x9F"}, {"\x99", "\x82"}, {"\xF0\x9F", "\x99\x82"}};
  std::vector<TestMerge> characters;
  for (const char* unit : {"a", " ", "\n", "\xF0\x9F\x99\x82"}) double_up(&bytes, unit);
  for (const std::string& unit : {std::string("a"), mark, std::string("\xF0\x9F\x99\x82")}) {
    double_up(&characters, unit);
  }
  const auto byte_level = SmallHuggingFace(ByteLevelJson(bytes));
  const auto fallback = SmallHuggingFace(FallbackJson({mark, "a", "\xF0\x9F\x99\x82"}, characters));
  for (const Tokenizer* tokenizer :
       {static_cast<const Tokenizer*>(byte_level.get()), static_cast<const Tokenizer*>(fallback.get())}) {
    for (const char* unit : {"a", " ", "\n", "\xF0\x9F\x99\x82", "b", " b", "<s", "\u00e9 "}) {
      std::string text;
      while (text.size() < 1'000'000) text += unit;
      EncodeWork work;
      const auto& hugging_face = dynamic_cast<const HuggingFaceTokenizer&>(*tokenizer);
      const auto ids =
          hugging_face.EncodeCounted(text, HuggingFaceTokenizer::ControlTokens::kAreParsed, &work).value();
      EXPECT_LE(work.symbols, text.size() + 1);
      EXPECT_LE(work.pair_lookups, 3 * work.symbols);
      EXPECT_LE(work.heap_pops, work.pair_lookups);
      EXPECT_EQ(tokenizer->Decode(ids).value(), text) << unit;
    }
  }
}

std::string RandomUtf8(std::mt19937_64& random) {
  std::string text;
  for (size_t n = random() % 30; n > 0; --n) {
    static constexpr uint32_t kLimits[] = {0x80, 0x80, 0x800, 0x10000, 0x110000};
    const uint32_t code_point = static_cast<uint32_t>(random() % kLimits[random() % 5]);
    AppendUtf8(code_point >= 0xD800 && code_point < 0xE000 ? ' ' : code_point, &text);
  }
  return text;
}

TEST(HuggingFaceTest, AnyTextComesBackAndAStreamNeverShowsHalfACharacter) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  json with_pattern = ByteLevelJson({{"a", "b"}, {"\xC3", "\xA9"}, {" ", "\xF0"}, {" \xF0", "\x9F"}});
  const json split = {{"type", "Split"}, {"pattern", {{"Regex", "[a-z]+"}}}, {"behavior", "Isolated"}};
  with_pattern["pre_tokenizer"] = {{"type", "Sequence"},
                                   {"pretokenizers", {split, with_pattern["pre_tokenizer"]}}};
  const std::string mark(kSpaceMark);
  const std::unique_ptr<const HuggingFaceTokenizer> tokenizers[] = {
      SmallHuggingFace(with_pattern),
      SmallHuggingFace(FallbackJson({mark, "a", "b", "é"}, {{mark, "a"}, {"a", "b"}}))};
  for (const auto& tokenizer : tokenizers) {
    for (int64_t i = ScaledCount(3000); i > 0; --i) {
      const std::string text = RandomUtf8(random);
      if (text.find(mark) != std::string::npos) continue;  // the fallback's spelling of a space
      const std::vector<int32_t> ids = tokenizer->Encode(text).value();
      ASSERT_EQ(tokenizer->Decode(ids).value(), text);
      Detokenizer detokenizer(*tokenizer);
      std::string streamed;
      for (const int32_t id : ids) {
        detokenizer.Append(id, &streamed);
        ASSERT_TRUE(IsUtf8(streamed)) << text;
        ASSERT_TRUE(text.starts_with(streamed)) << text;
      }
      detokenizer.Flush(&streamed);
      ASSERT_EQ(streamed, text);
    }
  }
}

}  // namespace
}  // namespace tramontane

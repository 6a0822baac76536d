// The model file's parser: what it reads, and that it names what is wrong with the rest.
#include "models/tokenizer/sentencepiece_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/models/tokenizer_test_model.h"
#include "tests/support/test_scale.h"

namespace tramontane {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using Type = SentencePieceModel::Type;

Status ParseStatus(std::string_view bytes) { return ParseSentencePieceModel(bytes, "t.model").status(); }

TEST(SentencePieceModelTest, ReadsBackWhatWasWritten) {
  SentencePieceModel model = SmallModel({{"▁a", -1.5f}, {"[R]", 0, Type::kUserDefined}});
  model.add_dummy_prefix = false;
  model.remove_extra_whitespaces = true;
  model.bos_piece = "[INST]";
  model.unk_surface = "?";
  const SentencePieceModel read = ParseSentencePieceModel(ModelFile(model), "t.model").value();
  ASSERT_EQ(read.pieces.size(), model.pieces.size());
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    EXPECT_EQ(read.pieces[i].text, model.pieces[i].text);
    EXPECT_EQ(read.pieces[i].score, model.pieces[i].score);
    EXPECT_EQ(read.pieces[i].type, model.pieces[i].type);
  }
  EXPECT_FALSE(read.add_dummy_prefix);
  EXPECT_TRUE(read.remove_extra_whitespaces);
  EXPECT_TRUE(read.byte_fallback);
  EXPECT_EQ(read.bos_piece, "[INST]");
  EXPECT_EQ(read.unk_surface, "?");
}

TEST(SentencePieceModelTest, EveryTruncationIsAnErrorNamingFileAndByte) {
  const std::string file = ReadBinaryFile(kBreezeFolder + "/tokenizer.model.v3");
  const auto step = static_cast<size_t>(std::max<int64_t>(1, 2900 / TestScalePercent()));
  for (size_t bytes = 0; bytes < file.size(); bytes += step) {
    const Status status = ParseStatus(std::string_view(file).substr(0, bytes));
    ASSERT_EQ(status.code(), StatusCode::kDataLoss) << bytes;
    ASSERT_THAT(status.message(), MatchesRegex("t\\.model: byte [0-9]+: .+")) << bytes;
  }
}

TEST(SentencePieceModelTest, DamagedFilesGiveAStatusOrASoundModel) {
  const std::string file = ReadBinaryFile(kBreezeFolder + "/tokenizer.model.v3");
  const uint32_t seed = 5;
  RecordProperty("seed", static_cast<int>(seed));
  std::mt19937 random(seed);
  int refused = 0;
  for (int64_t round = 0; round < ScaledCount(300, 20); ++round) {
    std::string damaged = file;
    for (int i = 0; i < 4; ++i) damaged[random() % damaged.size()] = static_cast<char>(random());
    auto model = ParseSentencePieceModel(damaged, "t.model");
    if (!model.ok()) {
      ++refused;
      continue;
    }
    const SentencePieceTokenizer tokenizer(std::move(*model), TokenizerVersion::kV3);
    EXPECT_TRUE(tokenizer.Encode("Hello, world").ok());
  }
  EXPECT_GT(refused, 0);
}

struct Refusal {
  const char* what;
  std::string file;
  StatusCode code;
  const char* message;
};

class SentencePieceRefusalTest : public ::testing::TestWithParam<Refusal> {};

TEST_P(SentencePieceRefusalTest, IsNamed) {
  const Status status = ParseStatus(GetParam().file);
  EXPECT_EQ(status.code(), GetParam().code) << status;
  EXPECT_THAT(status.message(), HasSubstr("t.model: "));
  EXPECT_THAT(status.message(), HasSubstr(GetParam().message));
}

std::string FileWith(SentencePieceModel::Piece piece) { return ModelFile(SmallModel({std::move(piece)})); }

std::vector<Refusal> Refusals() {
  const SentencePieceModel small = SmallModel({});
  const auto trainer = [&](const ProtoWriter& more) { return ModelFile(small, more.bytes()); };
  const auto normalizer = [&](const ProtoWriter& more) { return ModelFile(small, "", more.bytes()); };
  SentencePieceModel two_unknown = small;
  two_unknown.pieces.push_back({"<unk2>", 0, Type::kUnknown});
  SentencePieceModel byte_missing = small;
  byte_missing.pieces.erase(byte_missing.pieces.begin() + 5);
  SentencePieceModel bytes_unwanted = small;
  bytes_unwanted.byte_fallback = false;
  const float infinity = std::numeric_limits<float>::infinity();
  const StatusCode broken = StatusCode::kDataLoss;
  const StatusCode unsupported = StatusCode::kUnimplemented;
  return {
      {"Unigram", trainer(ProtoWriter().Varint(3, 1)), unsupported, "model_type unigram"},
      {"WordModel", trainer(ProtoWriter().Varint(3, 3)), unsupported, "model_type word"},
      {"SuffixSpaces", trainer(ProtoWriter().Varint(24, 1)), unsupported, "treat_whitespace_as_suffix"},
      {"Normalizer", normalizer(ProtoWriter().Bytes(1, "nmt_nfkc").Bytes(2, "map")), unsupported,
       "'nmt_nfkc'"},
      {"UnescapedSpaces", normalizer(ProtoWriter().Varint(5, 0)), unsupported, "escape_whitespaces"},
      {"Denormalizer",
       ModelFile(small) + ProtoWriter().Bytes(5, ProtoWriter().Bytes(2, "map").bytes()).bytes(), unsupported,
       "denormalizer"},
      {"UnusedPiece", FileWith({"a", 0, Type::kUnused}), unsupported, "'a' of type UNUSED"},
      {"PlainSpace", FileWith({"a b", 0, Type::kNormal}), unsupported, "'a b' with a plain space"},
      {"TwicePiece", FileWith({"[INST]", 0, Type::kNormal}), broken, "'[INST]' is there twice"},
      {"EmptyPiece", FileWith({"", 0, Type::kNormal}), broken, "without text"},
      {"LongPiece", FileWith({std::string(1025, 'a'), 0, Type::kNormal}), broken,
       "1025 bytes, the limit is 1024"},
      {"PieceNotUtf8", FileWith({"\xff", 0, Type::kNormal}), broken, "not UTF-8"},
      {"InfiniteScore", FileWith({"a", infinity, Type::kNormal}), broken, "score that is not finite"},
      {"NoByte", FileWith({"<0x0G>", 0, Type::kByte}), broken, "spells no byte"},
      {"PieceType",
       ModelFile(small) + ProtoWriter().Bytes(1, ProtoWriter().Bytes(1, "a").Varint(3, 7).bytes()).bytes(),
       broken, "piece type 7"},
      {"TwoUnknown", ModelFile(two_unknown), broken, "2 unknown pieces"},
      {"ByteMissing", ModelFile(byte_missing), broken, "no piece spells byte 0"},
      {"BytesUnwanted", ModelFile(bytes_unwanted), broken, "byte_fallback is off"},
      {"NoTrainer", ProtoWriter().Bytes(3, "").bytes(), broken, "without a trainer_spec"},
      {"WrongWireType", ProtoWriter().Varint(1, 3).bytes(), broken, "field 1 has wire type 0"},
      {"FieldZero", std::string("\x00\x00", 2), broken, "byte 0: not a field tag"},
      {"GroupWireType", std::string("\x0b", 1), broken, "field 1 has wire type 3"},
      {"LongVarint", std::string("\x10") + std::string(11, '\xff'), broken, "more than 64 bits"},
      {"HugeLength", std::string("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f"), broken, "0 are left"},
  };
}

INSTANTIATE_TEST_SUITE_P(All, SentencePieceRefusalTest, ::testing::ValuesIn(Refusals()),
                         [](const auto& refusal) { return refusal.param.what; });

}  // namespace
}  // namespace tramontane

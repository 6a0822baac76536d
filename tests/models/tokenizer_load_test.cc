// Which file of a folder becomes the tokenizer, and of which version.
#include "models/tokenizer/load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "tests/models/tekken_test_file.h"
#include "tests/models/tokenizer_json_test_file.h"
#include "tests/models/tokenizer_test_model.h"

namespace tramontane {
namespace {

using ::testing::HasSubstr;
using Type = SentencePieceModel::Type;

// A folder of its own for each test.
class LoadTokenizerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        std::filesystem::path(::testing::TempDir()) /
        (std::string("tokenizer_load_") + ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& name, std::string_view bytes) {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
  }
  // A vocabulary whose size tells files apart.
  void WriteModel(const std::string& name, int extra_pieces) {
    std::vector<SentencePieceModel::Piece> pieces;
    for (int i = 0; i < extra_pieces; ++i) pieces.push_back({"p" + std::to_string(i), 0});
    Write(name, ModelFile(SmallModel(pieces)));
  }
  StatusOr<std::unique_ptr<const Tokenizer>> Load() { return LoadTokenizer(folder_.string()); }

  std::filesystem::path folder_;
};

constexpr int kSmallVocabulary = 5 + 256;

TEST_F(LoadTokenizerTest, TheHighestSuffixWinsAndIsTheVersion) {
  WriteModel("tokenizer.model", 1);
  WriteModel("tokenizer.model.v1", 2);
  WriteModel("tokenizer.model.v3", 3);
  WriteModel("tokenizer.model.v2", 4);
  const auto tokenizer = Load();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->version(), TokenizerVersion::kV3);
  EXPECT_EQ((*tokenizer)->vocab_size(), kSmallVocabulary + 3);
}

TEST_F(LoadTokenizerTest, ASuffixMayEndInItsImageVersion) {
  WriteModel("tokenizer.model.v7m1", 0);
  EXPECT_EQ(Load().value()->version(), TokenizerVersion::kV7);
}

TEST_F(LoadTokenizerTest, OtherNamesAreNotTokenizers) {
  WriteModel("tokenizer.model.v3.bak", 0);
  WriteModel("tokenizer.model.vx", 0);
  WriteModel("tokenizer.model.v3m", 0);
  WriteModel("my_tokenizer.model", 0);
  EXPECT_EQ(Load().status().code(), StatusCode::kNotFound);
  WriteModel("tokenizer.model.v1", 0);
  EXPECT_EQ(Load().value()->version(), TokenizerVersion::kV1);
}

TEST_F(LoadTokenizerTest, WithoutASuffixTheControlPiecesTellTheVersion) {
  // The places at which Mistral's own files keep their control pieces.
  const auto with_controls = [](std::vector<std::pair<size_t, std::string>> controls) {
    SentencePieceModel model = SmallModel({});
    model.pieces.resize(3);  // <unk> <s> </s>
    while (model.pieces.size() < 20) {
      const size_t id = model.pieces.size();
      std::string text = "[control_" + std::to_string(id) + "]";
      for (const auto& [place, name] : controls) {
        if (place == id) text = name;
      }
      model.pieces.push_back({text, 0, Type::kControl});
    }
    model.byte_fallback = false;
    return ModelFile(model);
  };
  Write("tokenizer.model", with_controls({}));
  EXPECT_EQ(Load().value()->version(), TokenizerVersion::kV1);
  Write("tokenizer.model", with_controls({{3, "[INST]"}}));
  EXPECT_EQ(Load().value()->version(), TokenizerVersion::kV2);
  Write("tokenizer.model", with_controls({{3, "[INST]"}, {10, "[IMG]"}}));
  EXPECT_EQ(Load().value()->version(), TokenizerVersion::kV3);
  Write("tokenizer.model", with_controls({{3, "[INST]"}, {10, "[IMG]"}, {16, "[SYSTEM_PROMPT]"}}));
  EXPECT_EQ(Load().value()->version(), TokenizerVersion::kV7);
}

TEST_F(LoadTokenizerTest, AnUnknownVersionIsRefusedByFile) {
  WriteModel("tokenizer.model.v11", 0);
  EXPECT_EQ(Load().status().code(), StatusCode::kUnimplemented);
  EXPECT_THAT(Load().status().message(), HasSubstr("tokenizer.model.v11: tokenizer version 11"));
}

TEST_F(LoadTokenizerTest, TekkenIsPreferredAndSaysItsVersion) {
  WriteModel("tokenizer.model.v7", 0);
  for (const char* version : {"v3", "v7", "v11", "v13", "v15"}) {
    Write("tekken.json", TekkenJson({"ab"}, version).dump());
    const auto tokenizer = Load();
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    EXPECT_STREQ(TokenizerVersionName((*tokenizer)->version().value()), version);
    EXPECT_EQ((*tokenizer)->vocab_size(), kTestSpecialTokens + 257);
  }
}

TEST_F(LoadTokenizerTest, AFileMayBeNamedInsteadOfItsFolder) {
  Write("tekken.json", TekkenJson({"ab"}, "v13").dump());
  WriteModel("tokenizer.model.v7", 0);
  const auto named = LoadTokenizer((folder_ / "tokenizer.model.v7").string());
  ASSERT_TRUE(named.ok()) << named.status();
  EXPECT_EQ((*named)->version(), TokenizerVersion::kV7);
  Write("vocabulary.json", "{}");
  EXPECT_THAT(LoadTokenizer((folder_ / "vocabulary.json").string()).status().message(),
              HasSubstr("vocabulary.json: no tekken.json"));
}

TEST_F(LoadTokenizerTest, AFileThatIsNamedMayHaveAnotherNameThanInAFolder) {
  Write("tekken_240911.json", TekkenJson({"ab"}, "v7").dump());
  const auto tekken = LoadTokenizer((folder_ / "tekken_240911.json").string());
  ASSERT_TRUE(tekken.ok()) << tekken.status();
  EXPECT_EQ((*tekken)->version(), TokenizerVersion::kV7);
  WriteModel("some_tokenizer_240216.model.v2", 0);
  const auto model = LoadTokenizer((folder_ / "some_tokenizer_240216.model.v2").string());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->version(), TokenizerVersion::kV2);
  Write("tokenizer-old.json", ByteLevelJson({{"a", "b"}}).dump());
  const auto json = LoadTokenizer((folder_ / "tokenizer-old.json").string());
  EXPECT_TRUE(json.ok()) << json.status();
  EXPECT_EQ(Load().status().code(), StatusCode::kNotFound) << "in a folder only the usual names count";
}

TEST_F(LoadTokenizerTest, ABrokenTekkenIsNotPassedOver) {
  WriteModel("tokenizer.model.v7", 0);
  Write("tekken.json", "{}");
  EXPECT_EQ(Load().status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(Load().status().message(), HasSubstr("tekken.json: config is missing"));
}

TEST_F(LoadTokenizerTest, ATokenizerJsonIsReadWhereNeitherOfMistralsOwnIsThere) {
  Write("tokenizer.json", ByteLevelJson({{"a", "b"}}).dump());
  Write("tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": {"content": "</s>"}})");
  const auto tokenizer = Load();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_STREQ((*tokenizer)->family(), "tokenizer.json");
  EXPECT_EQ((*tokenizer)->version(), std::nullopt);
  EXPECT_EQ((*tokenizer)->bos_id(), 1);
  EXPECT_EQ((*tokenizer)->eos_id(), 2);
  EXPECT_TRUE(LoadTokenizer((folder_ / "tokenizer.json").string()).ok());
  WriteModel("tokenizer.model", 0);
  EXPECT_STREQ(Load().value()->family(), "sentencepiece");
  Write("tekken.json", TekkenJson({}).dump());
  EXPECT_STREQ(Load().value()->family(), "tekken");
}

TEST_F(LoadTokenizerTest, ABrokenTokenizerConfigIsNotPassedOver) {
  Write("tokenizer.json", ByteLevelJson({}).dump());
  EXPECT_EQ(Load().value()->bos_id(), -1) << "none is needed";
  Write("tokenizer_config.json", "{");
  EXPECT_EQ(Load().status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(Load().status().message(), HasSubstr("tokenizer_config.json: not a JSON object"));
}

TEST_F(LoadTokenizerTest, ABrokenFileIsNamed) {
  Write("tokenizer.model.v3", "\x0a\x7f");
  EXPECT_EQ(Load().status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(Load().status().message(), HasSubstr("tokenizer.model.v3: byte 0"));
}

TEST_F(LoadTokenizerTest, WhatIsNoRegularFileIsRefusedAndNotWaitedFor) {
  ASSERT_EQ(mkfifo((folder_ / "tekken.json").c_str(), 0600), 0);
  EXPECT_THAT(Load().status().message(), HasSubstr("tekken.json: not a regular file"));
}

TEST_F(LoadTokenizerTest, AFileThatIsTooLongIsRefusedUnread) {
  Write("tokenizer.json", "{}");
  std::filesystem::resize_file(folder_ / "tokenizer.json", TokenizerJsonFile::kMaxFileBytes + 1);
  EXPECT_THAT(Load().status().message(), HasSubstr("tokenizer.json: 67108865 bytes, the limit is 67108864"));
}

TEST_F(LoadTokenizerTest, AnEmptyOrMissingFolderIsNotFound) {
  EXPECT_EQ(Load().status().code(), StatusCode::kNotFound);
  EXPECT_EQ(LoadTokenizer((folder_ / "missing").string()).status().code(), StatusCode::kNotFound);
}

TEST(LoadBreezeTest, BreezeIsAVersion3Vocabulary) {
  EXPECT_EQ(Breeze().version(), TokenizerVersion::kV3);
  EXPECT_EQ(Breeze().vocab_size(), 2048);
  EXPECT_EQ(Breeze().unk_id(), 0);
  EXPECT_EQ(Breeze().bos_id(), 1);
  EXPECT_EQ(Breeze().eos_id(), 2);
  EXPECT_EQ(Breeze().ControlId("[INST]"), 3);
  EXPECT_EQ(Breeze().ControlId("[/TOOL_RESULTS]"), 9);
  EXPECT_EQ(Breeze().ControlId("the"), std::nullopt);
}

}  // namespace
}  // namespace tramontane

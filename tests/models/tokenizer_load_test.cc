// Which file of a folder becomes the tokenizer, and of which version.
#include "models/tokenizer/load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "models/tokenizer/gguf_tokenizer.h"
#include "models/tokenizer/gguf_tokenizer_keys.h"
#include "models/tokenizer/listed_tokens.h"
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

// ---- files beside it that know more tokens

// A folder as that of a model of Mistral's first vocabulary which was trained further on turns of ChatML.
class TrainedFurtherTest : public LoadTokenizerTest {
 protected:
  static constexpr int32_t kSize = 3 + 256 + 13 + 6;  // of tokenizer.model
  static constexpr int32_t kEnd = kSize, kStart = kSize + 1;

  static const std::vector<std::string>& Characters() {
    static const std::vector<std::string> characters = {"▁", "u", "s", "e", "r", "H", "i",
                                                        "a", "t", "n", "y", "b", "c"};
    return characters;
  }
  static const std::vector<TestMerge>& Merges() {
    static const std::vector<TestMerge> merges = {{"u", "s"},    {"e", "r"}, {"us", "er"},
                                                  {"▁", "user"}, {"H", "i"}, {"▁", "Hi"}};
    return merges;
  }
  static SentencePieceModel FirstModel() {
    SentencePieceModel model = SmallModel({});
    model.pieces.erase(model.pieces.begin() + 3, model.pieces.begin() + 5);  // [INST] and [/INST]
    for (const std::string& character : Characters()) model.pieces.push_back({character, -100});
    float score = 0;
    for (const auto& [left, right] : Merges()) model.pieces.push_back({left + right, --score});
    return model;
  }
  void WriteFirst() { Write("tokenizer.model", ModelFile(FirstModel())); }
  static nlohmann::json SameAsJson() { return FallbackJson(Characters(), Merges()); }
  static nlohmann::json WithTurns(bool special = true) {
    nlohmann::json file = SameAsJson();
    AddToken(file, kEnd, "<|im_end|>", {{"special", true}});
    AddToken(file, kStart, "<|im_start|>", {{"special", special}});
    return file;
  }
  void WriteAddedTokens() {
    Write("added_tokens.json", nlohmann::json({{"<|im_end|>", kEnd}, {"<|im_start|>", kStart}}).dump());
  }
  std::unique_ptr<const Tokenizer> LoadWith(int64_t rows) {
    auto loaded = LoadTokenizer(folder_.string(), rows);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return std::move(loaded).value();
  }
  // The pieces of a turn, each behind a bar.
  static std::string Turn(const Tokenizer& tokenizer) {
    std::string pieces;
    const std::vector<int32_t> ids =
        tokenizer.EncodeWithControlTokens("<|im_start|>user\nHi<|im_end|>\n<|im_start|>").value();
    for (const int32_t id : ids) pieces += "|" + std::string(tokenizer.Piece(id));
    return pieces;
  }
  static std::string Warnings(const Tokenizer& tokenizer) {
    std::string all;
    for (const std::string& warning : tokenizer.warnings()) all += warning + "\n";
    return all;
  }
};

TEST_F(TrainedFurtherTest, TheTokenizerJsonThatKnowsMoreIsTakenAndTheLogSaysSo) {
  WriteFirst();
  Write("tokenizer.json", WithTurns().dump());
  WriteAddedTokens();
  const auto tokenizer = LoadWith(kSize + 2);
  EXPECT_STREQ(tokenizer->family(), "tokenizer.json");
  EXPECT_EQ(tokenizer->ControlId("<|im_start|>"), kStart);
  EXPECT_EQ(tokenizer->ControlId("<|im_end|>"), kEnd);
  EXPECT_EQ(Turn(*tokenizer), "|<|im_start|>|▁user|<0x0A>|Hi|<|im_end|>|▁|<0x0A>|<|im_start|>");
  EXPECT_THAT(Warnings(*tokenizer),
              ::testing::AllOf(HasSubstr("tokenizer.json: it is taken"),
                               HasSubstr("tokenizer.model is left aside, which lacks \"<|im_end|>\" (" +
                                         std::to_string(kEnd) + ") and 1 more")));
  EXPECT_EQ(Warnings(*LoadWith(0)), Warnings(*tokenizer)) << "rows are not known";
  // As a GGUF file, by the scores of the one and the tokens of the other.
  const auto keys = MakeGgufTokenizerKeys(folder_.string(), kSize + 3);
  ASSERT_TRUE(keys.ok()) << keys.status();
  const auto of_gguf = MakeGgufTokenizer(keys->Metadata("model.gguf")).value();
  EXPECT_EQ(Turn(*of_gguf), Turn(*tokenizer));
  EXPECT_EQ(of_gguf->vocab_size(), kSize + 3);
  EXPECT_EQ(of_gguf->padding_begin(), kSize + 2);
  // Nothing that people type becomes one, whatever its flag says.
  Write("tokenizer.json", WithTurns(/*special=*/false).dump());
  const auto unmarked = LoadWith(kSize + 2);
  EXPECT_EQ(unmarked->ControlId("<|im_start|>"), kStart);
  const auto typed = unmarked->Encode("<|im_start|>").value();
  EXPECT_EQ(std::count(typed.begin(), typed.end(), kStart), 0);
}

TEST_F(TrainedFurtherTest, WithoutATokenizerJsonTheyAreAddedToTheModelsPieces) {
  WriteFirst();
  const std::string decoder = R"({"added_tokens_decoder": {")" + std::to_string(kEnd) +
                              R"(": {"content": "<|im_end|>", "special": true}, ")" + std::to_string(kStart) +
                              R"(": {"content": "<|im_start|>", "special": false}}})";
  for (const char* file : {"added_tokens.json", "tokenizer_config.json"}) {
    std::filesystem::remove(folder_ / "added_tokens.json");
    if (std::string(file) == "added_tokens.json") {
      WriteAddedTokens();
    } else {
      Write(file, decoder);
    }
    const auto tokenizer = LoadWith(kSize + 2);
    EXPECT_STREQ(tokenizer->family(), "sentencepiece") << file;
    EXPECT_EQ(tokenizer->version(), TokenizerVersion::kV1);
    EXPECT_EQ(tokenizer->vocab_size(), kSize + 2);
    EXPECT_EQ(Turn(*tokenizer), "|<|im_start|>|▁user|<0x0A>|Hi|<|im_end|>|▁|<0x0A>|<|im_start|>") << file;
    EXPECT_THAT(Warnings(*tokenizer),
                ::testing::AllOf(HasSubstr("tokenizer.model: it lacks \"<|im_end|>\""), HasSubstr(file),
                                 HasSubstr("added to it"), HasSubstr("tokenizer.json is not there")));
  }
  // As transformers reads it: a space that nobody typed begins the text alone, or each segment.
  Write("tokenizer_config.json", R"({"legacy": false, "eos_token": "<|im_end|>"})");
  WriteAddedTokens();
  const auto newer = LoadWith(kSize + 2);
  EXPECT_EQ(Turn(*newer), "|<|im_start|>|user|<0x0A>|Hi|<|im_end|>|<0x0A>|<|im_start|>");
  EXPECT_EQ(Pieces(*newer, "user"), "▁user");
  EXPECT_EQ(newer->eos_id(), kEnd);
  // Of a name that no file marks it is text, found where it stands; and there may be gaps.
  Write("added_tokens.json", nlohmann::json({{"<tool>", kSize + 3}, {"<call>", kSize + 4}}).dump());
  Write("special_tokens_map.json", R"({"additional_special_tokens": ["<call>"]})");
  std::filesystem::remove(folder_ / "tokenizer_config.json");
  const auto tokenizer = LoadWith(kSize + 5);
  EXPECT_EQ(tokenizer->ControlId("<call>"), kSize + 4);
  EXPECT_EQ(tokenizer->Kind(kSize + 3), PieceKind::kText);
  EXPECT_EQ(Pieces(*tokenizer, "Hi<tool>"), "▁Hi|<tool>");
  EXPECT_EQ(tokenizer->Kind(kSize), PieceKind::kControl) << "of no token";
}

TEST_F(TrainedFurtherTest, FilesThatSayTheSameChangeNothing) {
  WriteFirst();
  Write("tokenizer.json", SameAsJson().dump());
  Write("added_tokens.json", R"({"<unk>": 0, "<s>": 1, "</s>": 2})");
  Write("special_tokens_map.json", R"({"bos_token": "<s>"})");
  EXPECT_STREQ(LoadWith(kSize)->family(), "sentencepiece");
  EXPECT_EQ(Warnings(*LoadWith(kSize)), "");
  // Beyond the rows of the model, or for padding alone.
  Write("tokenizer.json", WithTurns().dump());
  EXPECT_STREQ(LoadWith(kSize)->family(), "sentencepiece");
  EXPECT_EQ(LoadWith(kSize)->vocab_size(), kSize);
  nlohmann::json padded = SameAsJson();
  AddToken(padded, kSize, "<pad>", {{"special", true}});
  Write("tokenizer.json", padded.dump());
  const auto tokenizer = LoadWith(kSize + 64);
  EXPECT_STREQ(tokenizer->family(), "sentencepiece");
  EXPECT_EQ(tokenizer->ControlId("<pad>"), kSize);
  EXPECT_EQ(tokenizer->padding_begin(), kSize + 1);
  EXPECT_EQ(Warnings(*tokenizer), "");
}

TEST_F(TrainedFurtherTest, ATokenizerJsonThatKnowsFewerOrOthersIsLeftAside) {
  WriteFirst();
  WriteAddedTokens();
  Write("tokenizer.json", FallbackJson(Characters(), {{"u", "s"}}).dump());
  const auto fewer = LoadWith(kSize + 2);
  EXPECT_STREQ(fewer->family(), "sentencepiece");
  EXPECT_EQ(fewer->ControlId("<|im_start|>"), kStart);
  EXPECT_THAT(Warnings(*fewer), HasSubstr("tokenizer.json says that"));
  std::vector<TestMerge> others = Merges();
  std::swap(others[4], others[5] = {"s", "e"});
  Write("tokenizer.json", FallbackJson(Characters(), others).dump());
  EXPECT_THAT(Warnings(*LoadWith(kSize + 2)), HasSubstr("tokenizer.json says that"));
  Write("tokenizer.json", R"({"model": {"type": "WordPiece"}})");
  EXPECT_THAT(Warnings(*LoadWith(kSize + 2)), HasSubstr("tokenizer.json: "));
  Write("tokenizer.json", "{");
  const auto broken = LoadWith(kSize + 2);
  EXPECT_EQ(broken->ControlId("<|im_start|>"), kStart);
  EXPECT_THAT(Warnings(*broken), HasSubstr("tokenizer.json: not a JSON object"));
}

TEST_F(TrainedFurtherTest, WhatIsNoTokenWithAnIdIsNotListed) {
  Write(
      "added_tokens.json",
      R"({"a": -1, "b": 1e3, "c": "7", "d": 99999999999999999999, "e": 1048576, "": 8, "f": null, "g": [9]})");
  Write(
      "tokenizer_config.json",
      R"({"added_tokens_decoder": {"x": {"content": "h"}, "7": "i", "8": {"content": 3}, "9": {}, "10": null,
            "11": {"content": "j", "special": "yes", "lstrip": true}, "12": {"content": "j"}},
            "eos_token": {"content": ["k"]}, "additional_special_tokens": {"content": 5}})");
  Write("special_tokens_map.json", R"([["l"]])");
  Write("tokenizer.json", R"({"added_tokens": [1, null, {"id": "3", "content": "m"}, {"content": "n"}]})");
  std::vector<std::string> warnings;
  const std::vector<ListedToken> listed = ReadListedTokens(folder_.string(), &warnings);
  ASSERT_EQ(listed.size(), 1u);
  EXPECT_EQ(listed[0].token.id, 11);
  EXPECT_EQ(listed[0].token.content, "j");
  EXPECT_FALSE(listed[0].token.is_special);
  EXPECT_TRUE(listed[0].token.takes_left);
  EXPECT_EQ(listed[0].file, "tokenizer_config.json");
  EXPECT_THAT(warnings, ::testing::ElementsAre(HasSubstr("special_tokens_map.json: not a JSON object")));
}

TEST_F(TrainedFurtherTest, ATokenizerJsonGetsWhatFilesBesideItAdd) {
  Write("tokenizer.json", SameAsJson().dump());
  WriteAddedTokens();
  const auto tokenizer = LoadWith(kSize + 2);
  EXPECT_EQ(Turn(*tokenizer), "|<|im_start|>|▁user|<0x0A>|Hi|<|im_end|>|▁|<0x0A>|<|im_start|>");
  EXPECT_THAT(Warnings(*tokenizer), HasSubstr("it lacks \"<|im_end|>\""));
  EXPECT_EQ(LoadWith(kSize + 1)->ControlId("<|im_start|>"), std::nullopt) << "without a row";
  EXPECT_EQ(LoadTokenizer((folder_ / "tokenizer.json").string()).value()->vocab_size(), kSize)
      << "a file that is named is read alone";
}

TEST_F(TrainedFurtherTest, ATekkenIsLeftAsideForATokenizerJsonWithTurnsOfAnotherFormat) {
  Write("tekken.json", TekkenJson({"ab"}, "v7").dump());
  const int32_t size = kTestSpecialTokens + 257;
  nlohmann::json file = ByteLevelJson({{"a", "b"}});
  while (static_cast<int32_t>(file["model"]["vocab"].size()) < size) {
    const std::string filler = "filler" + std::to_string(file["model"]["vocab"].size());
    file["model"]["vocab"][filler] = file["model"]["vocab"].size();
  }
  Write("tokenizer.json", file.dump());
  EXPECT_STREQ(LoadWith(size + 2)->family(), "tekken");
  AddToken(file, size, "<|im_start|>", {{"special", true}});
  AddToken(file, size + 1, "<|im_end|>", {{"special", true}});
  Write("tokenizer.json", file.dump());
  EXPECT_STREQ(LoadWith(size + 2)->family(), "tokenizer.json");
  EXPECT_THAT(Warnings(*LoadWith(size + 2)), HasSubstr("tekken.json is left aside"));
  EXPECT_STREQ(LoadWith(size)->family(), "tekken") << "without rows";
  std::filesystem::remove(folder_ / "tokenizer.json");
  Write("added_tokens.json", nlohmann::json({{"<|im_start|>", size}}).dump());
  EXPECT_STREQ(LoadWith(size + 2)->family(), "tekken");
  EXPECT_THAT(Warnings(*LoadWith(size + 2)), HasSubstr("which are left aside"));
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

// Prompts to fill in the middle: control ids where they belong, and a suffix without a dummy space.
#include "models/tokenizer/fill_in_middle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "models/tokenizer/load.h"
#include "tests/models/tekken_test_file.h"
#include "tests/models/tokenizer_json_test_file.h"
#include "tests/models/tokenizer_test_model.h"

namespace tramontane {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int32_t> Joined(std::initializer_list<std::vector<int32_t>> parts) {
  std::vector<int32_t> all;
  for (const std::vector<int32_t>& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

class FillInMiddle : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto loaded = LoadTokenizer(std::string(TRAMONTANE_SOURCE_DIR) + "/tests/golden/" + GetParam());
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    tokenizer_ = std::move(loaded).value();
  }
  std::vector<int32_t> Control(const char* piece) const { return {tokenizer_->ControlId(piece).value()}; }
  std::vector<int32_t> Ids(const char* prefix, const char* suffix) const {
    return FillInMiddleIds(*tokenizer_, prefix, suffix, /*add_bos=*/true).value();
  }

  std::unique_ptr<const Tokenizer> tokenizer_;
};

TEST_P(FillInMiddle, TheSuffixComesFirstAndNothingIsBetween) {
  ASSERT_TRUE(CanFillInMiddle(*tokenizer_));
  for (const char* suffix : {"return a + b", " x", "(y)", "\n\n  }", "))", "9", "🙂"}) {
    const std::vector<int32_t> ids = Ids("def f(", suffix);
    const std::vector<int32_t> prefix = tokenizer_->Encode("def f(").value();
    // All between [SUFFIX] and [PREFIX] spells the suffix, with no space that nobody typed.
    ASSERT_GT(ids.size(), prefix.size() + 3);
    EXPECT_EQ(ids[0], tokenizer_->bos_id());
    EXPECT_EQ(ids[1], Control("[SUFFIX]")[0]);
    const auto end = ids.end() - static_cast<ptrdiff_t>(prefix.size()) - 1;
    std::string bytes;
    for (auto id = ids.begin() + 2; id != end; ++id) bytes += tokenizer_->PieceBytes(*id);
    EXPECT_EQ(bytes, suffix);
    EXPECT_EQ(*end, Control("[PREFIX]")[0]);
    EXPECT_EQ(std::vector<int32_t>(end + 1, ids.end()), prefix);
  }
}

TEST_P(FillInMiddle, EitherTextMayBeEmpty) {
  const std::vector<int32_t> bos = {tokenizer_->bos_id()};
  EXPECT_EQ(Ids("", ""), Joined({bos, Control("[SUFFIX]"), Control("[PREFIX]")}));
  EXPECT_EQ(Ids("a", ""),
            Joined({bos, Control("[SUFFIX]"), Control("[PREFIX]"), tokenizer_->Encode("a").value()}));
  EXPECT_EQ(FillInMiddleIds(*tokenizer_, "", "", /*add_bos=*/false).value(),
            Joined({Control("[SUFFIX]"), Control("[PREFIX]")}));
}

TEST(FillInMiddleOfTokenizerJson, BeginsWithBosOnlyWhereTheTokenizerAddsIt) {
  nlohmann::json file = ByteLevelJson({});
  AddToken(file, 259, "[SUFFIX]", {{"special", true}});
  AddToken(file, 260, "[PREFIX]", {{"special", true}});
  TokenizerConfigFile config;
  config.bos_token = "<s>";
  const auto ids = [&] {
    return FillInMiddleIds(*SmallHuggingFace(file, config), "", "", /*add_bos=*/true).value();
  };
  EXPECT_THAT(ids(), ElementsAre(259, 260));
  config.adds_bos = TokenizerConfigFile::AddsBos::kYes;
  EXPECT_THAT(ids(), ElementsAre(1, 259, 260));
}

TEST_P(FillInMiddle, ControlTokensInTheTextsStayText) {
  const std::vector<int32_t> ids = Ids("[PREFIX]</s>", "[SUFFIX]<s>");
  int controls = 0;
  for (const int32_t id : ids) controls += tokenizer_->IsControl(id);
  EXPECT_EQ(controls, 3);
}

TEST_P(FillInMiddle, TextThatIsNotUtf8IsNamed) {
  EXPECT_EQ(FillInMiddleIds(*tokenizer_, "a", "\xff", true).status().field(), "suffix");
  EXPECT_EQ(FillInMiddleIds(*tokenizer_, "\xff", "a", true).status().field(), "text");
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, FillInMiddle,
                         ::testing::Values("chat_v7_tokenizer", "chat_tekken_tokenizer"),
                         [](const auto& info) { return std::string(info.param).substr(5, 2); });

TEST(FillInMiddleTest, WhatATokenJoinsToTheSignBeforeItIsKeptWhole) {
  const auto tokenizer = SmallTekken(TekkenJson({"\xE2\x98", "\xE2\x98\xBA", "\xE2\x98\xBA)"}));
  const std::vector<int32_t> ids = FillInMiddleIds(*tokenizer, "", ")", false).value();
  EXPECT_THAT(ids, ElementsAre(tokenizer->ControlId("[SUFFIX]").value(), kTestSpecialTokens + ')',
                               tokenizer->ControlId("[PREFIX]").value()));
}

TEST(FillInMiddleTest, AVocabularyWithoutTheTokensSaysWhich) {
  EXPECT_FALSE(CanFillInMiddle(Breeze()));
  const Status status = FillInMiddleIds(Breeze(), "a", "b", true).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.field(), "suffix");
  EXPECT_THAT(status.message(), HasSubstr("[SUFFIX]"));
}

}  // namespace
}  // namespace tramontane

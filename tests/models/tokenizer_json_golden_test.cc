// Ids and texts of each shape of tokenizer.json against Hugging Face's `tokenizers`: the files that
// tests/golden/make_tokenizer_json_goldens.py wrote, and those of TRAMONTANE_TOKENIZER_JSON_CASES where that
// names a folder with more.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/core/utf8.h"
#include "models/tokenizer/detokenizer.h"
#include "models/tokenizer/load.h"
#include "tests/models/tokenizer_test_model.h"

namespace tramontane {
namespace {

using Ids = std::vector<int32_t>;

std::string CasesFolder() {
  const char* folder = std::getenv("TRAMONTANE_TOKENIZER_JSON_CASES");
  return folder != nullptr ? folder : std::string(TRAMONTANE_SOURCE_DIR) + "/tests/golden/tokenizer_json";
}

class TokenizerJsonGoldenTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string folder = CasesFolder() + "/" + GetParam();
    auto tokenizer = LoadTokenizer(folder);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = std::move(tokenizer).value();
    cases_ = nlohmann::json::parse(ReadBinaryFile(folder + "/encodings.json"));
    ASSERT_GT(cases_.size(), 100u);
  }

  static Ids ParsedIds(const nlohmann::json& example) {
    return example.contains("parsed") ? example["parsed"].get<Ids>() : example["ids"].get<Ids>();
  }

  std::unique_ptr<const Tokenizer> tokenizer_;
  nlohmann::json cases_;
};

TEST_P(TokenizerJsonGoldenTest, IdsAreThoseOfTokenizers) {
  for (const auto& example : cases_) {
    const auto text = example["text"].get<std::string>();
    const auto ids = tokenizer_->Encode(text);
    ASSERT_TRUE(ids.ok()) << ids.status();
    ASSERT_EQ(*ids, example["ids"].get<Ids>()) << example["text"];
    for (const int32_t id : *ids) ASSERT_FALSE(tokenizer_->IsControl(id)) << example["text"];
  }
}

TEST_P(TokenizerJsonGoldenTest, IdsWithControlTokensAreThoseOfTokenizers) {
  for (const auto& example : cases_) {
    const auto text = example["text"].get<std::string>();
    ASSERT_EQ(tokenizer_->EncodeWithControlTokens(text).value(), ParsedIds(example)) << example["text"];
  }
}

TEST_P(TokenizerJsonGoldenTest, TextsAreThoseOfTokenizersWholeAndInAStream) {
  for (const auto& example : cases_) {
    const Ids ids = ParsedIds(example);
    const auto& expected = example.contains("decoded") ? example["decoded"] : example["text"];
    ASSERT_EQ(tokenizer_->Decode(ids).value(), expected.get<std::string>()) << example["text"];
    Detokenizer detokenizer(*tokenizer_);
    std::string streamed;
    for (const int32_t id : ids) {
      detokenizer.Append(id, &streamed);
      ASSERT_TRUE(IsUtf8(streamed));
    }
    detokenizer.Flush(&streamed);
    ASSERT_EQ(streamed, expected.get<std::string>()) << example["text"];
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, TokenizerJsonGoldenTest,
                         ::testing::Values("gpt2", "llama3", "qwen2", "smollm", "tekken", "other_pattern",
                                           "llama2", "metaspace_first", "metaspace_always",
                                           "metaspace_never"),
                         [](const auto& shape) { return std::string(shape.param); });

}  // namespace
}  // namespace tramontane

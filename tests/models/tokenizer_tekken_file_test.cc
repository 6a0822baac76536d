// What a tekken.json says, and that each fault of one is named.
#include "models/tokenizer/tekken_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "tests/models/tekken_test_file.h"

namespace tramontane {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string Error(const json& file) {
  const StatusOr<TekkenFile> parsed = ParseTekkenFile(file.dump(), "t.json");
  if (parsed.ok()) return "accepted";
  EXPECT_THAT(parsed.status().message(), StartsWith("t.json: "));
  return parsed.status().message().substr(8);
}

std::string TextError(const std::string& text) {
  return std::string(ParseTekkenFile(text, "t.json").status().message());
}

TEST(TekkenFileTest, TokensAndSpecialTokensComeByRank) {
  const TekkenFile file = ParseTekkenFile(TekkenJson({"ab", "你"}, "v11").dump(), "t.json").value();
  EXPECT_EQ(file.version, TokenizerVersion::kV11);
  EXPECT_EQ(file.pattern, kTekkenPattern);
  ASSERT_EQ(file.tokens.size(), 258u);
  EXPECT_EQ(file.tokens[0xE4], "\xE4");
  EXPECT_EQ(file.tokens[257], "你");
  ASSERT_EQ(file.special.size(), 48u);
  EXPECT_EQ(file.special[3], "[INST]");
  EXPECT_EQ(file.special[47], "<SPECIAL_47>");
}

TEST(TekkenFileTest, OnlyTheTokensThatTheModelUsesAreKept) {
  json file = TekkenJson({"ab", "cd", "ef"});
  file["config"]["default_vocab_size"] = kTestSpecialTokens + 257;
  EXPECT_EQ(ParseTekkenFile(file.dump(), "t.json").value().tokens.back(), "ab");
}

TEST(TekkenFileTest, FilesUpToV7MayLeaveTheirSpecialTokensToTheReader) {
  for (const char* version : {"v3", "v7"}) {
    json file = TekkenJson({}, version);
    file.erase("special_tokens");
    const TekkenFile parsed = ParseTekkenFile(file.dump(), "t.json").value();
    EXPECT_EQ(parsed.special[9], "[TOOL_CALLS]");
    EXPECT_EQ(parsed.special[19], "[TOOL_CONTENT]");
    EXPECT_EQ(parsed.special[20], "<SPECIAL_20>");
  }
  json file = TekkenJson({}, "v11");
  file.erase("special_tokens");
  EXPECT_EQ(Error(file), "special_tokens is missing, which v11 files must have");
}

TEST(TekkenFileTest, SettingsAreThoseOfV15) {
  json file = TekkenJson({}, "v15");
  const TekkenFile parsed = ParseTekkenFile(file.dump(), "t.json").value();
  ASSERT_TRUE(parsed.settings && parsed.settings->reasoning_effort);
  EXPECT_EQ(parsed.settings->reasoning_effort->default_value, "none");
  EXPECT_TRUE(parsed.settings->json_schema);
  file["model_settings_builder"].erase("json_schema");
  EXPECT_FALSE(ParseTekkenFile(file.dump(), "t.json")->settings->json_schema);
  json old = TekkenJson({}, "v15");
  old["config"]["version"] = "v13";
  EXPECT_EQ(Error(old), "model_settings_builder stands in a v13 file, which is below v15");
}

TEST(TekkenFileTest, FaultsOfTheTextAreNamed) {
  EXPECT_EQ(TextError("{"), "t.json: not valid JSON at byte 2");
  EXPECT_EQ(TextError("[]"), "t.json: not a JSON object");
  EXPECT_EQ(TextError("{\"a\": 1e999}"), "t.json: not valid JSON: a number is out of range");
  EXPECT_EQ(TextError("{\"a\": 1, \"a\": 2}"), "t.json: key \"a\" stands twice in one object");
  EXPECT_EQ(TextError("{\"a\": \"\xff\"}"), "t.json: not valid JSON at byte 8");
  EXPECT_EQ(TextError(std::string(100'000, '[')), "t.json: nested deeper than 32 levels");
  EXPECT_EQ(TextError("{}"), "t.json: config is missing");
  EXPECT_EQ(TextError(std::string(TekkenFile::kMaxFileBytes + 1, ' ')),
            "t.json: 67108865 bytes, the limit is 67108864");
}

TEST(TekkenFileTest, FaultsOfTheVocabularyAreNamed) {
  const auto with = [](const char* key, json value) {
    json file = TekkenJson({"ab"});
    file["vocab"][256][key] = std::move(value);
    return Error(file);
  };
  EXPECT_EQ(with("rank", 255), "vocab[256].rank is 255, not its place in the list");
  EXPECT_EQ(with("rank", "256"), "vocab[256].rank is \"256\", not its place in the list");
  for (const char* not_base64 :
       {"YW", "YWI", "Y===", "YW=I", "YW==YWI=", "Y\nI=", "YWI=====", "YX==", "YWJ="}) {
    EXPECT_EQ(with("token_bytes", not_base64),
              "vocab[256].token_bytes is " + json(not_base64).dump() + ", not base64");
  }
  EXPECT_EQ(with("token_bytes", nullptr), "vocab[256].token_bytes is null, not base64");
  json file = TekkenJson({});
  file["vocab"][3] = "x";
  EXPECT_EQ(Error(file), "vocab[3] is \"x\", not an object");
  file["vocab"][3] = json::array();
  EXPECT_EQ(Error(file), "vocab[3] is a list, not an object");
  file["vocab"] = json::object();
  EXPECT_EQ(Error(file), "vocab is an object, not a list");
  file["vocab"] = 1;
  EXPECT_EQ(Error(file), "vocab has 0 entries, the model uses 256");
}

TEST(TekkenFileTest, FaultsOfTheConfigAreNamed) {
  const auto with = [](const char* key, json value) {
    json file = TekkenJson({"ab"});
    file["config"][key] = std::move(value);
    return Error(file);
  };
  EXPECT_EQ(with("version", "v4"), "config.version is \"v4\", not one of v3, v7, v11, v13, v15");
  EXPECT_EQ(with("version", 3), "config.version is 3, not a string");
  EXPECT_EQ(with("pattern", nullptr), "config.pattern is missing");
  EXPECT_EQ(with("default_vocab_size", 48 + 258),
            "config.default_vocab_size is 306, not an integer from 304 to 305");
  EXPECT_EQ(with("default_vocab_size", 48),
            "config.default_vocab_size is 48, not an integer from 304 to 305");
  EXPECT_EQ(with("default_num_special_tokens", -1),
            "config.default_num_special_tokens is -1, not an integer from 0 to 65536");
  EXPECT_THAT(with("default_num_special_tokens", UINT64_MAX), HasSubstr("is 18446744073709551615, not an"));
  json file = TekkenJson({"ab"});
  file["config"]["default_num_special_tokens"] = 20;
  file["config"]["default_vocab_size"] = 20 + 257;
  EXPECT_EQ(Error(file), "special_tokens has 24 entries, more than config.default_num_special_tokens (20)");
}

TEST(TekkenFileTest, FaultsOfTheSpecialTokensAreNamed) {
  const auto with = [](const char* key, json value) {
    json file = TekkenJson({});
    file["special_tokens"][3][key] = std::move(value);
    return Error(file);
  };
  EXPECT_EQ(with("rank", 4), "special_tokens[3].rank is 4, not its place in the list");
  EXPECT_EQ(with("token_str", 4), "special_tokens[3].token_str is 4, not a string");
  EXPECT_EQ(with("token_str", ""), "special_tokens[3].token_str is \"\", not 1 to 256 bytes");
  EXPECT_EQ(with("token_str", "</s>"),
            "special_tokens[3].token_str is \"</s>\", which another one is already");
  EXPECT_EQ(with("token_str", "<SPECIAL_47>"),
            "special_tokens[47].token_str is \"<SPECIAL_47>\", which another one is already");
  json file = TekkenJson({});
  file["special_tokens"][3] = 1;
  EXPECT_EQ(Error(file), "special_tokens[3] is 1, not an object");
  file["special_tokens"] = 1;
  EXPECT_EQ(Error(file), "special_tokens is 1, not a list");
}

TEST(TekkenFileTest, FaultsOfTheSettingsAreNamed) {
  const auto with = [](const char* key, json value) {
    json file = TekkenJson({}, "v15");
    file["model_settings_builder"]["reasoning_effort"][key] = std::move(value);
    return Error(file);
  };
  const std::string effort = "model_settings_builder.reasoning_effort";
  EXPECT_EQ(with("default", "low"), effort + ".default is \"low\", not one of its values");
  EXPECT_EQ(with("default", nullptr), effort + ".default is missing");
  EXPECT_EQ(with("values", json::array()), effort + ".values is [], not a list of efforts");
  EXPECT_EQ(with("values", {"none", "none"}), effort + ".values has \"none\" twice");
  EXPECT_THAT(with("values", {"much"}), HasSubstr(".values is \"much\", not one of none, minimal"));
  json file = TekkenJson({}, "v15");
  file["model_settings_builder"]["verbosity"] = json::object();
  EXPECT_EQ(Error(file), "model_settings_builder.verbosity is not one of reasoning_effort, json_schema");
}

TEST(TekkenFileTest, FaultsThatOnlyTheTokenizerSeesAreNamedToo) {
  const auto error = [](const json& file) {
    return TekkenTokenizer::Create(ParseTekkenFile(file.dump(), "t.json").value(), "t.json")
        .status()
        .message();
  };
  EXPECT_EQ(error(TekkenJson({"ab", "cd", "ab"})),
            "t.json: vocab: the tokens of rank 256 and 258 are the same bytes");
  EXPECT_EQ(error(TekkenJson({""})), "t.json: vocab: the token of rank 256 has 0 bytes, not 1 to 1024");
  EXPECT_EQ(error(TekkenJson({std::string(1025, 'a')})),
            "t.json: vocab: the token of rank 256 has 1025 bytes, not 1 to 1024");
  json file = TekkenJson({});
  std::swap(file["vocab"][7]["token_bytes"], file["vocab"][8]["token_bytes"]);
  EXPECT_EQ(error(file), "t.json: vocab: the token of rank 7 is not the byte 7");
  file = TekkenJson({});
  file["config"]["pattern"] = "[";
  EXPECT_THAT(error(file), StartsWith("t.json: config.pattern: not a regular expression at byte 1: "));
}

}  // namespace
}  // namespace tramontane

// What is wrong with a tokenizer.json is named: by its path in the file, the value and what may stand there.
#include "models/tokenizer/tokenizer_json_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/models/tokenizer_json_test_file.h"

namespace tramontane {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Status StatusOf(const json& file) { return MakeHuggingFace(file).status(); }
Status TextStatus(const std::string& text) { return ParseTokenizerJson(text, "tokenizer.json").status(); }

struct Fault {
  const char* message;
  std::function<void(json&)> make;
};

void ExpectEach(StatusCode code, const json& sound, const std::vector<Fault>& faults) {
  ASSERT_TRUE(StatusOf(sound).ok()) << StatusOf(sound);
  for (const Fault& fault : faults) {
    json file = sound;
    fault.make(file);
    const Status status = StatusOf(file);
    EXPECT_EQ(status.code(), code) << fault.message << ": " << status;
    EXPECT_THAT(status.message(), AllOf(HasSubstr("tokenizer.json: "), HasSubstr(fault.message)));
  }
}

TEST(TokenizerJsonFileTest, BrokenPartsAreNamed) {
  const std::string long_piece(1025, 'x');
  ExpectEach(
      StatusCode::kDataLoss, ByteLevelJson({{"a", "b"}}),
      {{"model is null, not an object", [](json& f) { f.erase("model"); }},
       {"model.vocab is missing", [](json& f) { f["model"] = {{"merges", json::array()}}; }},
       {"model.vocab is 5, not an object", [](json& f) { f["model"]["vocab"] = 5; }},
       {"model.vocab has no pieces",
        [](json& f) { f["model"]["vocab"] = f["model"]["merges"] = json::array(); }},
       {"model.merges is missing", [](json& f) { f["model"].erase("merges"); }},
       {"model.merges is an object, not a list", [](json& f) { f["model"]["merges"] = json::object(); }},
       {"model.merges is \"a b\", not a list", [](json& f) { f["model"]["merges"] = "a b"; }},
       {"model.vocab[\"x y\"] is -1, not an id from 0 to 1048575",
        [](json& f) { f["model"]["vocab"]["x y"] = -1; }},
       {"model.vocab[\"x y\"] is 1048576, not", [](json& f) { f["model"]["vocab"]["x y"] = 1 << 20; }},
       {"model.vocab[\"x y\"] is 3.5, not", [](json& f) { f["model"]["vocab"]["x y"] = 3.5; }},
       {"model.vocab[\"x y\"] is not an integer", [](json& f) { f["model"]["vocab"]["x y"] = {1}; }},
       {"model.vocab[\"\"]: the piece has 0 bytes, not 1 to 1024",
        [](json& f) { f["model"]["vocab"][""] = 900; }},
       {"the piece has 1025 bytes", [&](json& f) { f["model"]["vocab"][long_piece] = 900; }},
       {"is 259, which \"", [](json& f) { f["model"]["vocab"]["x y"] = kFirstTestMerge; }},
       {"model.merges[1] needs \"abx\", which is not in model.vocab",
        [](json& f) { f["model"]["merges"].push_back({"ab", "x"}); }},
       {"model.merges[1] is \"a b c\", not two pieces",
        [](json& f) { f["model"]["merges"].push_back("a b c"); }},
       {"model.merges[1] is \"ab\", not two pieces", [](json& f) { f["model"]["merges"].push_back("ab"); }},
       {"model.merges[1] is [\"a\"], not two pieces", [](json& f) { f["model"]["merges"].push_back({"a"}); }},
       {"model.merges[1] is not two pieces",
        [](json& f) { f["model"]["merges"].push_back({"a", "b", "c"}); }},
       {"model.merges[1] is not two pieces", [](json& f) { f["model"]["merges"].push_back(json::object()); }},
       {"model.merges[1] is 7, not two pieces", [](json& f) { f["model"]["merges"].push_back(7); }},
       {"model.ignore_merges is 1, not true or false", [](json& f) { f["model"]["ignore_merges"] = 1; }},
       {"added_tokens is {}, not a list", [](json& f) { f["added_tokens"] = json::object(); }},
       {"added_tokens[3] is 5, not an object", [](json& f) { f["added_tokens"].push_back(5); }},
       {"added_tokens[3].id is missing", [](json& f) { f["added_tokens"].push_back({{"content", "x"}}); }},
       {"added_tokens[3].content is \"\", not 1 to 1024 bytes", [](json& f) { AddToken(f, 900, ""); }},
       {"added_tokens[3].id is 900, but \"ab\" has the id 259", [](json& f) { AddToken(f, 900, "ab"); }},
       {"added_tokens[3].id is 259, which \"ab\" is already", [](json& f) { AddToken(f, 259, "abc"); }},
       {"added_tokens[3].id is 1 for the second time", [](json& f) { AddToken(f, 1, "<s>"); }},
       {"added_tokens[3].lstrip is 1, not true or false",
        [](json& f) { AddToken(f, 900, "x y", {{"lstrip", 1}}); }},
       {"pre_tokenizer is 5, not an object", [](json& f) { f["pre_tokenizer"] = 5; }},
       {"pre_tokenizer.type is missing", [](json& f) { f["pre_tokenizer"] = json::object(); }},
       {"pre_tokenizer.pretokenizers is null, not a list",
        [](json& f) { f["pre_tokenizer"] = {{"type", "Sequence"}}; }},
       {"pre_tokenizer.pretokenizers[0].pattern: not a regular expression at byte 2",
        [](json& f) {
          const json split = {{"type", "Split"}, {"pattern", {{"Regex", "(a"}}}, {"behavior", "Isolated"}};
          f["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {split, f["pre_tokenizer"]}}};
        }},
       {"pre_tokenizer.pretokenizers[0].pattern is \"a\", not a pattern",
        [](json& f) {
          const json split = {{"type", "Split"}, {"pattern", "a"}, {"behavior", "Isolated"}};
          f["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {split, f["pre_tokenizer"]}}};
        }},
       {"post_processor.single is null, not a list",
        [](json& f) { f["post_processor"] = {{"type", "TemplateProcessing"}}; }},
       {"post_processor.special_tokens[\"<s>\"].ids is [259,1], not one id up to 259",
        [](json& f) {
          f["post_processor"] = TemplateComponent("<s>", 259);
          f["post_processor"]["special_tokens"]["<s>"]["ids"].push_back(1);
        }},
       {"post_processor.special_tokens[\"<s>\"].ids is [260], not one id up to 259",
        [](json& f) { f["post_processor"] = TemplateComponent("<s>", 260); }},
       {"post_processor.single leaves out the text", [](json& f) {
          f["post_processor"] = TemplateComponent("<s>", 1);
          f["post_processor"]["single"].erase(1);
        }}});
  ExpectEach(StatusCode::kDataLoss, FallbackJson({"a"}, {}),
             {{"model.byte_fallback is true, but model.vocab has no piece for the byte 10",
               [](json& f) { f["model"]["vocab"].erase("<0x0A>"); }},
              {"decoder.decoders[3].start is 2, not an integer from 0 to 1",
               [](json& f) { f["decoder"]["decoders"][3]["start"] = 2; }}});
}

TEST(TokenizerJsonFileTest, WhatWouldGiveOtherIdsIsRefusedByName) {
  ExpectEach(
      StatusCode::kUnimplemented, ByteLevelJson({{"a", "b"}}),
      {{"version is \"2.0\", only \"1.0\" is supported", [](json& f) { f["version"] = "2.0"; }},
       {"model.type is \"WordPiece\", only \"BPE\"",
        [](json& f) { f["model"] = {{"type", "WordPiece"}, {"vocab", {{"a", 0}}}}; }},
       {"model.type is \"Unigram\", only \"BPE\"",
        [](json& f) { f["model"] = json::parse(R"({"type": "Unigram", "vocab": [["a", -1.5]]})"); }},
       {"model.dropout is 0.1, only 0.0", [](json& f) { f["model"]["dropout"] = 0.1; }},
       {"model.end_of_word_suffix is \"</w>\", only \"\"",
        [](json& f) { f["model"]["end_of_word_suffix"] = "</w>"; }},
       {"model.continuing_subword_prefix is \"##\"",
        [](json& f) { f["model"]["continuing_subword_prefix"] = "##"; }},
       {"model.new_key is not known", [](json& f) { f["model"]["new_key"] = 1; }},
       {"normalizer.type is \"NFC\", not one of those of ByteLevel: none",
        [](json& f) { f["normalizer"] = {{"type", "NFC"}}; }},
       {"pre_tokenizer.type is \"Whitespace\", not one of Split and Digits before ByteLevel",
        [](json& f) { f["pre_tokenizer"] = {{"type", "Whitespace"}}; }},
       {"pre_tokenizer.pretokenizers[0].type is \"ByteLevel\", not one of",
        [](json& f) {
          f["pre_tokenizer"] = {{"type", "Sequence"},
                                {"pretokenizers", {f["pre_tokenizer"], {{"type", "Digits"}}}}};
        }},
       {"pre_tokenizer has 17 parts, the limit is 16",
        [](json& f) {
          f["pre_tokenizer"] = {{"type", "Sequence"},
                                {"pretokenizers", std::vector<json>(17, {{"type", "Digits"}})}};
        }},
       {"pre_tokenizer.add_prefix_space is true, only false",
        [](json& f) { f["pre_tokenizer"]["add_prefix_space"] = true; }},
       {"pre_tokenizer.new_key is not known", [](json& f) { f["pre_tokenizer"]["new_key"] = 1; }},
       {"pre_tokenizer.pretokenizers[0].behavior is \"Removed\", only \"Isolated\"",
        [](json& f) {
          const json split = {{"type", "Split"}, {"pattern", {{"Regex", "a"}}}, {"behavior", "Removed"}};
          f["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {split, f["pre_tokenizer"]}}};
        }},
       {"pre_tokenizer.pretokenizers[0].pattern is {\"String\":\"a\"}, only Regex",
        [](json& f) {
          const json split = {{"type", "Split"}, {"pattern", {{"String", "a"}}}, {"behavior", "Isolated"}};
          f["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {split, f["pre_tokenizer"]}}};
        }},
       {"decoder is missing, only ByteLevel", [](json& f) { f.erase("decoder"); }},
       {"decoder.type is \"WordPiece\", not one of ByteLevel",
        [](json& f) { f["decoder"] = {{"type", "WordPiece"}}; }},
       {"post_processor.type is \"RobertaProcessing\", not one of ByteLevel and TemplateProcessing",
        [](json& f) { f["post_processor"] = {{"type", "RobertaProcessing"}}; }},
       {"post_processor.single[2] puts \"</s>\" behind the text",
        [](json& f) {
          f["post_processor"] = TemplateComponent("<s>", 1);
          f["post_processor"]["single"].push_back({{"SpecialToken", {{"id", "</s>"}}}});
        }},
       {"post_processor.single[1] puts a second token in front", [](json& f) {
          f["post_processor"] = TemplateComponent("<s>", 1);
          json& single = f["post_processor"]["single"];
          single.insert(single.begin(), single[0]);
        }}});
  ExpectEach(StatusCode::kUnimplemented, FallbackJson({"a"}, {}),
             {{"model.byte_fallback is false and pre_tokenizer is not ByteLevel",
               [](json& f) { f["model"]["byte_fallback"] = false; }},
              {"normalizer.normalizers[0].type is \"Lowercase\", not one of Prepend and Replace",
               [](json& f) { f["normalizer"]["normalizers"][0] = {{"type", "Lowercase"}}; }},
              {"normalizer.normalizers[0].prepend is \"x\", only",
               [](json& f) { f["normalizer"]["normalizers"][0]["prepend"] = "x"; }},
              {"normalizer has no Replace", [](json& f) { f["normalizer"]["normalizers"].erase(1); }},
              {"normalizer.normalizers[0].type is \"Prepend\", not one of those of Metaspace: none",
               [](json& f) { f["pre_tokenizer"] = MetaspaceComponent("first", false); }},
              {"decoder.decoders[1].type is \"Fuse\", not one of Replace, ByteFallback",
               [](json& f) { f["decoder"]["decoders"].erase(1); }},
              {"decoder has 1 parts", [](json& f) { f["decoder"] = MetaspaceComponent("first", false); }}});
}

TEST(TokenizerJsonFileTest, WhatIsNotJsonIsAnErrorNamingTheByte) {
  EXPECT_THAT(TextStatus(std::string("{\"a\": }")).message(), HasSubstr("not valid JSON at byte 7"));
  EXPECT_THAT(TextStatus(std::string("[]")).message(), HasSubstr("not a JSON object"));
  EXPECT_THAT(TextStatus(std::string("{\"a\": 1, \"a\": 2}")).message(), HasSubstr("key \"a\" stands twice"));
  EXPECT_THAT(TextStatus(R"({"model": {"vocab": {"a": 1, "a": 2}}})").message(),
              HasSubstr("model.vocab[\"a\"] stands twice"));
  std::string deep;
  for (int i = 0; i < 40; ++i) deep += "{\"a\":";
  EXPECT_THAT(TextStatus(deep).message(), HasSubstr("nested deeper than 32 levels"));
}

TEST(TokenizerJsonFileTest, WhatLiesBesideTheVocabularyIsBounded) {
  std::string text = "{\"x\":[0";
  for (int i = 0; i < 1 << 20; ++i) text += ",0";
  EXPECT_THAT(TextStatus(text + "]}").message(), HasSubstr("more than 1048576 values beside vocabulary"));
}

TEST(TokenizerJsonFileTest, MergesMayBeTextOrPairs) {
  json file = ByteLevelJson({{"a", "b"}, {"ab", "c"}});
  const auto pairs = ParseTokenizerJson(file.dump(), "f").value();
  file["model"]["merges"] = {"#version: 0.2", "a b", "ab c"};
  const auto texts = ParseTokenizerJson(file.dump(), "f").value();
  ASSERT_EQ(texts.merges.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(texts.merges[i].left, pairs.merges[i].left);
    EXPECT_EQ(texts.merges[i].right, pairs.merges[i].right);
    EXPECT_EQ(texts.merges[i].result, kFirstTestMerge + static_cast<int32_t>(i));
  }
}

TEST(TokenizerJsonFileTest, WhatIsDoubtfulIsAWarning) {
  const auto warnings = [](const json& file) {
    return ParseTokenizerJson(file.dump(), "f").value().warnings;
  };
  json file = ByteLevelJson({});
  EXPECT_THAT(warnings(file), IsEmpty());
  file["truncation"] = {{"max_length", 512}};
  file["extra"] = 1;
  EXPECT_THAT(warnings(file), ElementsAre("truncation is ignored", "unknown key \"extra\" is ignored"));
}

TEST(TokenizerJsonFileTest, AByteWithoutAPieceIsLeftOutWithAWarning) {
  json file = ByteLevelJson({});
  file["model"]["vocab"].erase("a");
  const auto tokenizer = MakeHuggingFace(file);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT((*tokenizer)->warnings(),
              ElementsAre("tokenizer.json: no piece for the bytes 97: they are left out of text"));
  EXPECT_EQ((*tokenizer)->Decode((*tokenizer)->Encode("bac").value()).value(), "bc");
}

TEST(TokenizerJsonFileTest, ATekkenVocabularyWithAnotherPatternIsAWarning) {
  const auto warnings = [](const std::string& pattern) {
    json file = ByteLevelJson({});
    for (const char* name : {"[INST]", "[/INST]"}) {
      AddToken(file, static_cast<int32_t>(file["model"]["vocab"].size()), name, {{"special", true}});
      file["model"]["vocab"][name] = file["model"]["vocab"].size();
    }
    const json split = {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}};
    const json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
    file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}};
    return ParseTokenizerJson(file.dump(), "f").value().warnings;
  };
  EXPECT_THAT(warnings(std::string(kTekkenPattern)), IsEmpty());
  EXPECT_THAT(warnings(std::string(kLlama3Pattern)), ElementsAre(HasSubstr("does not split as tekken does")));
  EXPECT_THAT(warnings("[a-z]+"),
              ElementsAre(HasSubstr("pre_tokenizer.pretokenizers[0].pattern is none of the known ones"),
                          HasSubstr("does not split as tekken does")));
}

TEST(TokenizerConfigFileTest, TokensAreStringsOrObjects) {
  const auto config = ParseTokenizerConfig(
      R"({"bos_token": {"content": "<s>", "special": true}, "eos_token": "</s>", "add_bos_token": true,
          "added_tokens_decoder": {"0": {"deep": [[[[[[1]]]]]]}}})",
      "tokenizer_config.json");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->bos_token, "<s>");
  EXPECT_EQ(config->eos_token, "</s>");
  EXPECT_EQ(config->adds_bos, TokenizerConfigFile::AddsBos::kYes);
  const auto empty = ParseTokenizerConfig(R"({"bos_token": null})", "tokenizer_config.json");
  EXPECT_EQ(empty->bos_token, "");
  EXPECT_EQ(empty->adds_bos, TokenizerConfigFile::AddsBos::kUnsaid);
}

TEST(TokenizerConfigFileTest, FaultsAreNamed) {
  const auto message = [](const char* text) {
    return ParseTokenizerConfig(text, "c.json").status().message();
  };
  EXPECT_THAT(message("{"), HasSubstr("c.json: not a JSON object"));
  EXPECT_THAT(message(R"({"bos_token": 5})"), HasSubstr("c.json: bos_token is 5, not a string"));
  EXPECT_THAT(message(R"({"eos_token": {}})"), HasSubstr("c.json: eos_token.content is missing"));
  EXPECT_THAT(message(R"({"add_bos_token": "yes"})"),
              HasSubstr("add_bos_token is \"yes\", not true or false"));
}

}  // namespace
}  // namespace tramontane

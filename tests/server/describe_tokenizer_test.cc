#include "server/setup/describe_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tramontane {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(DescribeTokenizer, SaysKindVersionFormatAndWhatEndsAnAnswer) {
  const auto open = [](const std::string& tokenizer) {
    FileChoice choice;
    choice.tokenizer = std::string(TRAMONTANE_SOURCE_DIR) + tokenizer;
    return OpenModel(TRAMONTANE_SOURCE_DIR "/tests/golden/head_dim", {}, choice).value();
  };
  const std::string spm =
      DescribeTokenizer(open("/tests/golden/chat_v7_tokenizer/tokenizer.model.v7")).value();
  EXPECT_THAT(spm,
              AllOf(HasSubstr("sentencepiece v7, "), HasSubstr("v7, the tokenizer's: the suffix of its name"),
                    HasSubstr("at 2 </s> (generation_config.json)")));
  OpenedModel tekken = open("/tests/golden/chat_tekken_tokenizer");
  tekken.config.eos_ids = {2, 4};
  EXPECT_THAT(
      DescribeTokenizer(tekken).value(),
      AllOf(HasSubstr("tekken v"), HasSubstr("tekken.json says so"), HasSubstr("at 2 </s>, 4 [/INST] (")));
  EXPECT_THAT(DescribeTokenizer(open("/tests/golden/tokenizer_json/other_pattern")).value(),
              AllOf(HasSubstr("vocabulary of tokenizer.json, "), HasSubstr("warning       "),
                    HasSubstr("tokenizer.json: pre_tokenizer.pretokenizers[1].pattern")));
  EXPECT_THAT(DescribeTokenizer(open("/nowhere")).value(),
              AllOf(HasSubstr("/nowhere"), HasSubstr("answers end   at 2 (")));
}

TEST(DescribeTokenizer, ATokenizerOfMoreIdsThanTheModelHasIsAWarning) {
  FileChoice choice;
  choice.tokenizer = TRAMONTANE_SOURCE_DIR "/tests/golden/chat_tekken_tokenizer";
  OpenedModel model = OpenModel(TRAMONTANE_SOURCE_DIR "/tests/golden/head_dim", {}, choice).value();
  model.config.vocab_size = 463;
  EXPECT_THAT(DescribeTokenizer(model).value(), HasSubstr("has 464 ids, the model 463: a text"));
  model.config.vocab_size = 464;
  EXPECT_THAT(DescribeTokenizer(model).value(), Not(HasSubstr("warning")));
}

TEST(DescribeTokenizer, TheChatFormatIsTheOneAskedForAndItsEndIsAdded) {
  FileChoice choice;
  choice.tokenizer = TRAMONTANE_SOURCE_DIR "/tests/golden/chat_tekken_tokenizer";
  OpenedModel model = OpenModel(TRAMONTANE_SOURCE_DIR "/tests/golden/head_dim", {}, choice).value();
  model.config.eos_ids = {4};
  EXPECT_THAT(
      DescribeTokenizer(model, "v7").value(),
      AllOf(HasSubstr("v7, --chat-format asks for it"),
            HasSubstr("at 4 [/INST], 2 </s> (generation_config.json, and the end of a turn in chat")));
  EXPECT_THAT(DescribeTokenizer(model, "llama3").status().message(), HasSubstr("chat_format is llama3"));
}

}  // namespace
}  // namespace tramontane

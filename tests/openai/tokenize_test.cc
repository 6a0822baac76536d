#include "server/api/openai/tokenize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "server/api/openai/score.h"
#include "tests/openai/parsed_request.h"

namespace tramontane {
namespace {

using ::testing::ElementsAre;

TEST(Tokenize, TextOrChat) {
  TokenizeBody text;
  ASSERT_FALSE(
      ParseTokenize(R"({"prompt":"","add_special_tokens":false,"return_token_strs":true})", kContext, &text));
  EXPECT_EQ(text.request.input_case(), v1::TokenizeRequest::kText);
  EXPECT_FALSE(text.request.add_bos());
  EXPECT_TRUE(text.request.has_add_bos());
  EXPECT_TRUE(text.token_strings);
  TokenizeBody alias;
  ASSERT_FALSE(ParseTokenize(R"({"content":"a"})", kContext, &alias));
  EXPECT_EQ(alias.request.text(), "a");
  TokenizeBody chat;
  ASSERT_FALSE(ParseTokenize(std::string("{\"model\":\"m\",\"add_generation_prompt\":true,") + kUser + "}",
                             kContext, &chat));
  EXPECT_EQ(chat.request.chat().messages_size(), 1);
  EXPECT_EQ(chat.request.model(), "m");
  TokenizeBody open;
  ASSERT_FALSE(ParseTokenize(ChatBody(R"("add_generation_prompt":false)"), kContext, &open));
  EXPECT_TRUE(open.request.chat().has_add_generation_prompt());
  EXPECT_FALSE(open.request.chat().add_generation_prompt());
  TokenizeBody neither;
  EXPECT_EQ(ParseTokenize("{}", kContext, &neither)->param, "prompt");
  TokenizeBody both;
  EXPECT_EQ(ParseTokenize(std::string("{\"prompt\":\"a\",") + kUser + "}", kContext, &both)->param, "prompt");
}

TEST(Tokenize, ControlTokensAreReadFromTextsOnly) {
  TokenizeBody text;
  ASSERT_FALSE(ParseTokenize(R"({"prompt":"[INST]","parse_special_tokens":true})", kContext, &text));
  EXPECT_TRUE(text.request.parse_special_tokens());
  TokenizeBody chat;
  EXPECT_EQ(ParseTokenize(ChatBody(R"("parse_special_tokens":true)"), kContext, &chat)->param,
            "parse_special_tokens");
}

// What is read of a chat is checked here too, as for a completion.
TEST(Tokenize, AToolChoiceThatIsNoneIsRefused) {
  TokenizeBody parsed;
  const auto fault = [&](const std::string& fields) {
    return ParseTokenize(ChatBody(fields), kContext, &parsed).value_or(ApiError{}).param;
  };
  EXPECT_EQ(fault(R"("tool_choice":{})"), "tool_choice.function");
  EXPECT_EQ(fault(R"("tool_choice":7)"), "tool_choice");
  EXPECT_EQ(fault(R"("parallel_tool_calls":"no")"), "parallel_tool_calls");
  EXPECT_EQ(fault(R"("continue_final_message":1)"), "continue_final_message");
}

TEST(Tokenize, AndBack) {
  DetokenizeBody parsed;
  ASSERT_FALSE(ParseDetokenize(R"({"tokens":[]})", kContext, &parsed));
  EXPECT_EQ(parsed.request.token_ids_size(), 0);
  ASSERT_FALSE(ParseDetokenize(R"({"tokens":[1,2]})", kContext, &parsed));
  EXPECT_THAT(parsed.request.token_ids(), ElementsAre(1, 2));
  EXPECT_EQ(ParseDetokenize(R"({"tokens":[1,-2]})", kContext, &parsed)->param, "tokens[1]");
  EXPECT_EQ(ParseDetokenize(R"({"tokens":[1],"skip":1})", kContext, &parsed)->param, "skip");
}

TEST(Score, APromptOrAChatAndItsCandidates) {
  const auto fault = [](const std::string& body) {
    ScoreBody parsed;
    return ParseScore(body, kContext, &parsed).value_or(ApiError{}).param;
  };
  ScoreBody text;
  ASSERT_FALSE(ParseScore(R"({"prompt":"a","candidates":["b",[1,2]],"cache_salt":"s"})", kContext, &text));
  EXPECT_EQ(text.request.text(), "a");
  EXPECT_EQ(text.request.cache_salt(), "s");
  EXPECT_EQ(text.request.candidates(0).text(), "b");
  EXPECT_THAT(text.request.candidates(1).token_ids().ids(), ElementsAre(1, 2));
  ScoreBody ids;
  ASSERT_FALSE(ParseScore(R"({"prompt":[3],"candidates":["b"]})", kContext, &ids));
  EXPECT_THAT(ids.request.token_ids().ids(), ElementsAre(3));
  EXPECT_EQ(ids.names.NameOf("token_ids.ids[0]"), "prompt[0]");
  ScoreBody chat;
  ASSERT_FALSE(ParseScore(ChatBody(R"("candidates":["b"])"), kContext, &chat));
  EXPECT_EQ(chat.request.chat().messages_size(), 1);
  EXPECT_EQ(fault(R"({"candidates":["b"]})"), "prompt");
  EXPECT_EQ(fault(R"({"prompt":"a","candidates":[]})"), "candidates");
  EXPECT_EQ(fault(R"({"prompt":"a"})"), "candidates");
  EXPECT_EQ(fault(R"({"prompt":"a","candidates":[[]]})"), "candidates[0]");
  EXPECT_EQ(fault(R"({"text_1":"a","text_2":"b","candidates":["c"]})"), "text_1");
  EXPECT_EQ(fault(R"({"prompt":"a","candidates":["b"],"label_token_ids":[1]})"), "label_token_ids");
}

}  // namespace
}  // namespace tramontane

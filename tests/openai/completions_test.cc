#include "server/api/openai/completions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "server/api/shared/json.h"
#include "server/call/answer_cost.h"
#include "tests/openai/answer_events.h"
#include "tests/openai/parsed_request.h"

namespace tramontane {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Completions, PromptsAreTextsOrIdsOneOrSeveral) {
  EXPECT_EQ(Completion(R"({"prompt":"a"})").calls[0].text(), "a");
  EXPECT_EQ(Completion(R"({"prompt":""})").calls[0].prompt_case(), v1::GenerateRequest::kText);
  EXPECT_THAT(Completion(R"({"prompt":[1,2]})").calls[0].token_ids().ids(), ElementsAre(1, 2));
  const GenerationRequest texts = Completion(R"({"prompt":["a","b"],"n":2,"temperature":0})");
  ASSERT_EQ(texts.calls.size(), 2u);
  EXPECT_EQ(texts.calls[0].text(), "a");
  EXPECT_EQ(texts.calls[1].text(), "b");
  EXPECT_EQ(texts.calls[0].request_id(), "r1-0");
  EXPECT_EQ(texts.calls[1].request_id(), "r1-1");
  EXPECT_EQ(texts.shared.choices(), 2);
  const GenerationRequest ids = Completion(R"({"prompt":[[1],[2,3]]})");
  EXPECT_THAT(ids.calls[1].token_ids().ids(), ElementsAre(2, 3));
}

// However many prompts there are, what they share is held once.
TEST(Completions, EachPromptOfSeveralHoldsItsOwnFieldsOnly) {
  const GenerationRequest request =
      Completion(R"({"model":"m","prompt":["a","b"],"regex":"x+","stop":["s"],"logit_bias":{"1":2}})");
  EXPECT_EQ(request.shared.constraint().regex(), "x+");
  EXPECT_EQ(request.shared.request_id(), "");
  for (const v1::GenerateRequest& call : request.calls) {
    EXPECT_FALSE(call.has_constraint() || call.has_stopping() || call.has_sampling() || call.has_output());
    EXPECT_EQ(call.model(), "m");
  }
  const GenerationRequest one = Completion(R"({"prompt":["a"],"regex":"x+"})");
  EXPECT_EQ(one.calls[0].constraint().regex(), "x+");
  EXPECT_EQ(one.calls[0].request_id(), "r1");
}

TEST(Completions, PromptFaultsNameTheEntry) {
  EXPECT_EQ(CompletionFault("{}").message, "prompt: is missing");
  EXPECT_EQ(CompletionFault(R"({"prompt":[]})").message, "prompt: is empty");
  EXPECT_EQ(CompletionFault(R"({"prompt":[1,"a"]})").param, "prompt[1]");
  EXPECT_EQ(CompletionFault(R"({"prompt":[[1],[]]})").param, "prompt[1]");
  EXPECT_EQ(CompletionFault(R"({"prompt":[-1]})").param, "prompt[0]");
  EXPECT_EQ(CompletionFault(R"({"prompt":{}})").param, "prompt");
  EXPECT_EQ(CompletionFault(R"({"prompt":[3000000000]})").param, "prompt[0]");
  std::string many = "{\"prompt\":[\"a\"";
  for (int i = 0; i < kMaxPrompts; ++i) many += ",\"a\"";
  EXPECT_EQ(CompletionFault(many + "]}").message, "prompt: has 257 entries, the most is 256");
}

TEST(Completions, SixteenTokensUnlessOtherwiseSaid) {
  EXPECT_EQ(CompletionWith("").calls[0].stopping().max_tokens(), 16);
  EXPECT_EQ(CompletionWith(R"("max_tokens":0)").calls[0].stopping().max_tokens(), 0);
  EXPECT_EQ(CompletionWith(R"("max_tokens":1)").calls[0].stopping().max_tokens(), 1);
}

TEST(Completions, EchoAsksForThePromptAndItsScores) {
  const v1::Output plain = CompletionWith(R"("echo":true)").calls[0].output();
  EXPECT_TRUE(plain.prompt_tokens());
  EXPECT_FALSE(plain.has_prompt_logprobs());
  const v1::Output scored = CompletionWith(R"("echo":true,"logprobs":1)").calls[0].output();
  EXPECT_EQ(scored.logprobs(), 1);
  EXPECT_EQ(scored.prompt_logprobs(), 1);
  EXPECT_FALSE(CompletionWith(R"("logprobs":1)").calls[0].output().has_prompt_logprobs());
}

TEST(Completions, AddSpecialTokensIsForTexts) {
  EXPECT_FALSE(CompletionWith(R"("add_special_tokens":false)").calls[0].add_bos());
  EXPECT_FALSE(CompletionWith("").calls[0].has_add_bos());
  EXPECT_FALSE(Completion(R"({"prompt":[1],"add_special_tokens":false})").calls[0].has_add_bos());
}

TEST(Completions, ASuffixIsPartOfTheTask) {
  EXPECT_EQ(CompletionWith(R"("suffix":"end")").calls[0].suffix(), "end");
  EXPECT_FALSE(CompletionWith(R"("suffix":"")").calls[0].has_suffix())
      << "as it is sent by those without one";
  EXPECT_FALSE(CompletionWith("").calls[0].has_suffix());
  const GenerationRequest several = Completion(R"({"prompt":["a","b"],"suffix":"end"})");
  EXPECT_EQ(several.shared.suffix(), "end");
  EXPECT_FALSE(several.calls[0].has_suffix());
}

TEST(Completions, ASuffixForManyPromptsIsBounded) {
  std::string body = R"({"prompt":["a")";
  for (int i = 1; i < kMaxPrompts; ++i) body += ",\"a\"";
  const ApiError fault = CompletionFault(body + "],\"suffix\":\"" + std::string(32769, 'x') + "\"}");
  EXPECT_EQ(fault.message, "suffix: is 32769 bytes long, for each of 256 prompts; together at most 8388608");
  Completion(body + "],\"suffix\":\"" + std::string(32768, 'x') + "\"}");
}

TEST(Completions, FillingInTheMiddleNeedsNoSuffixAndHasNoLimitOfItsOwn) {
  GenerationRequest request;
  ASSERT_FALSE(ParseFillInMiddle(R"({"prompt":"a","min_tokens":2})", kContext, &request));
  EXPECT_TRUE(request.calls[0].has_suffix());
  EXPECT_EQ(request.calls[0].suffix(), "");
  EXPECT_FALSE(request.calls[0].stopping().has_max_tokens());
  EXPECT_EQ(request.calls[0].stopping().min_tokens(), 2);
  GenerationRequest several;
  ASSERT_FALSE(ParseFillInMiddle(R"({"prompt":["a","b"],"suffix":"c","max_tokens":3})", kContext, &several));
  EXPECT_EQ(several.shared.suffix(), "c");
  EXPECT_EQ(several.shared.stopping().max_tokens(), 3);
  GenerationRequest faulty;
  EXPECT_EQ(ParseFillInMiddle(R"({"suffix":"c"})", kContext, &faulty)->message, "prompt: is missing");
}

TEST(Completions, ControlTokensAreReadFromTextsWhereThatIsAskedFor) {
  EXPECT_TRUE(CompletionWith(R"("parse_special_tokens":true)").calls[0].parse_special_tokens());
  EXPECT_FALSE(CompletionWith("").calls[0].parse_special_tokens());
  EXPECT_FALSE(Completion(R"({"prompt":[1],"parse_special_tokens":true})").calls[0].parse_special_tokens());
  EXPECT_EQ(ChatFaultWith(R"("parse_special_tokens":true)").param, "parse_special_tokens");
}

TEST(Completions, BestOfIsNOrRefused) {
  CompletionWith(R"("best_of":2,"n":2)");
  EXPECT_EQ(CompletionFault(CompletionBody(R"("best_of":3,"n":2)")).param, "best_of");
}

// ---- answers ------------------------------------------------------------------------------------

TEST(Completions, ACharacterThatAnEchoedPromptLeavesUnfinishedIsWrittenOnce) {
  v1::GenerateResponse started = Started();
  for (const char* bytes : {"x", "\xF0", "\x9F\x99"}) {
    started.mutable_started()->add_prompt()->set_token_bytes(bytes);
  }
  const auto text = [&](const std::string& fields) {
    const GenerationRequest request = Completion(R"({"prompt":[1,2,3],"echo":true)" + fields + "}");
    const auto writer = MakeCompletionWriter(request.answer, request.names);
    std::string out;
    for (const auto& event : {started, Said("\xF0\x9F\x99\x82!"), Finished(v1::FINISH_REASON_STOP)}) {
      out += writer->OnEvents(0, {event});
    }
    return out + writer->Finish();
  };
  EXPECT_THAT(text(""), HasSubstr("\"text\":\"x\xF0\x9F\x99\x82!\""));
  EXPECT_THAT(text(R"(,"stream":true)"),
              AllOf(HasSubstr(R"("text":"x")"), HasSubstr("\"text\":\"\xF0\x9F\x99\x82!\"")));
}

// A prompt of `tokens`, with `likeliest` others beside each but the first.
v1::GenerateResponse ScoredPrompt(int tokens, int likeliest, const std::string& text) {
  v1::GenerateResponse started = Started();
  for (int i = 0; i < tokens; ++i) {
    started.mutable_started()->add_prompt()->set_token_bytes(text);
    if (i == 0) continue;
    v1::TokenLogprob* scored = started.mutable_started()->add_prompt_logprobs();
    scored->set_token_id(99'999);
    scored->set_logprob(-12.345678F);
    scored->set_rank(99'999);
    scored->set_token_bytes(text);
    for (int n = 0; n < likeliest; ++n) {
      v1::TopLogprob* top = scored->add_top();
      top->set_token_id(100'000 + n);
      top->set_logprob(-12.345678F);
      top->set_token_bytes(text.substr(1) + static_cast<char>('a' + n));
    }
  }
  return started;
}

std::unique_ptr<ResponseWriter> WriterOf(const std::string& fields) {
  const GenerationRequest request = Completion(R"({"prompt":[1,2,3])" + fields + "}");
  return MakeCompletionWriter(request.answer, request.names);
}

TEST(Completions, EveryChoiceHasItsPromptsLogprobsAndGoesOnByItself) {
  constexpr char kFields[] = R"(,"n":2,"echo":true,"logprobs":1,"prompt_logprobs":1,"return_token_ids":true)";
  const auto writer = WriterOf(kFields);
  v1::GenerateResponse more = Said("!", -1, 1);
  more.mutable_delta()->add_logprobs()->set_token_bytes("!");
  writer->OnEvents(0, {ScoredPrompt(3, 1, "ab"), Said("", -1, 0), more});
  writer->OnEvents(0, {Finished(v1::FINISH_REASON_STOP, 0), Finished(v1::FINISH_REASON_STOP, 1)});
  const Json choices = (*ParseJson(writer->Finish()))["choices"];
  ASSERT_EQ(choices.size(), 2u);
  EXPECT_EQ(choices[0]["prompt_logprobs"].size(), 3u);
  EXPECT_EQ(choices[0]["prompt_logprobs"], choices[1]["prompt_logprobs"]);
  EXPECT_EQ(choices[0]["text"], "ababab");
  EXPECT_EQ(choices[1]["text"], "ababab!");
  EXPECT_EQ(choices[0]["logprobs"]["text_offset"], Json::array({0, 2, 4}));
  EXPECT_EQ(choices[1]["logprobs"]["text_offset"], Json::array({0, 2, 4, 6}));
  EXPECT_EQ(choices[1]["logprobs"]["tokens"], Json::array({"ab", "ab", "ab", "!"}));
}

// What is counted before a prompt is computed is what its answer then takes, and not much more.
TEST(Completions, AnAnswerTakesNoMoreThanWasCounted) {
  constexpr int kTokens = 200;
  constexpr int kLikeliest = 20;
  const v1::GenerateResponse started = ScoredPrompt(kTokens, kLikeliest, " ten bytes");
  const int64_t entries = ScoreEntries(kTokens - 1, kLikeliest);
  EXPECT_LT(started.SpaceUsedLong(), static_cast<size_t>(entries * kScoreMessageBytes * 3 / 2));
  EXPECT_GT(started.SpaceUsedLong(), static_cast<size_t>(entries * kScoreMessageBytes / 2));
  for (const int choices : {1, 4}) {
    const auto writer = WriterOf(",\"prompt_logprobs\":20,\"n\":" + std::to_string(choices));
    writer->OnEvents(0, {started});
    const auto held = static_cast<size_t>(writer->held_bytes());
    EXPECT_EQ(held, static_cast<size_t>(choices * (entries * kScoreTextBytes + kTokens * kTokenBytes)));
    const std::string answer = writer->Finish();
    EXPECT_LT(answer.size(), held);
    EXPECT_GT(answer.size(), held * 3 / 4);
  }
  const auto stream = WriterOf(R"(,"echo":true,"logprobs":20,"stream":true)");
  stream->OnEvents(0, {started});
  EXPECT_EQ(stream->held_bytes(), 0) << "what is sent is not held";
}

}  // namespace
}  // namespace tramontane

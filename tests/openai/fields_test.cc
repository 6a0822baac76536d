// Fields of chats and completions to the messages of the .proto.
#include "server/api/openai/choices_fields.h"
#include "server/api/openai/request_shapes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "server/api/openai/responses.h"
#include "server/api/openai/score.h"
#include "tests/openai/parsed_request.h"

namespace tramontane {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

TEST(Fields, EverySamplingFieldArrives) {
  const GenerationRequest request = ChatWith(
      R"("temperature":0.5,"top_p":0.9,"top_k":40,"min_p":0.05,"repetition_penalty":1.1,"presence_penalty":-1,)"
      R"("frequency_penalty":2,"seed":7,"logit_bias":{"15":-100,"2":1.5})");
  const v1::Sampling& sampling = request.calls[0].sampling();
  EXPECT_EQ(sampling.temperature(), 0.5f);
  EXPECT_EQ(sampling.top_p(), 0.9f);
  EXPECT_EQ(sampling.top_k(), 40);
  EXPECT_EQ(sampling.min_p(), 0.05f);
  EXPECT_EQ(sampling.repetition_penalty(), 1.1f);
  EXPECT_EQ(sampling.presence_penalty(), -1.0f);
  EXPECT_EQ(sampling.frequency_penalty(), 2.0f);
  EXPECT_EQ(sampling.seed(), 7u);
  EXPECT_THAT(sampling.logit_bias(), UnorderedElementsAre(Pair(15, -100.0f), Pair(2, 1.5f)));
}

TEST(Fields, WhatIsNotGivenIsNotSent) {
  const v1::GenerateRequest call = ChatWith("").calls[0];
  EXPECT_FALSE(call.has_sampling());
  EXPECT_FALSE(call.stopping().has_max_tokens());  // the server's default: the rest of the context
  EXPECT_FALSE(call.has_choices());
  EXPECT_FALSE(call.has_constraint());
}

TEST(Fields, SeedsAreSignedAndMistralCallsThemRandom) {
  EXPECT_EQ(ChatWith(R"("seed":-2)").calls[0].sampling().seed(), ~uint64_t{1});
  EXPECT_EQ(ChatWith(R"("random_seed":9)").calls[0].sampling().seed(), 9u);
}

TEST(Fields, MinusOneIsNoSeed) {
  for (const char* none :
       {R"("seed":-1)", R"("seed":-1.0)", R"("random_seed":-1)", R"("seed":7,"random_seed":-1)"}) {
    EXPECT_FALSE(ChatWith(none).calls[0].sampling().has_seed()) << none;
  }
  EXPECT_EQ(ChatWith(R"("seed":-1,"random_seed":9)").calls[0].sampling().seed(), 9u);
}

TEST(Fields, SeedsAreExactInAll64Bits) {
  const auto seed = [](const std::string& value) {
    return ChatWith("\"seed\":" + value).calls[0].sampling().seed();
  };
  EXPECT_EQ(seed("9007199254740993"), uint64_t{9007199254740993});  // 2^53 + 1
  EXPECT_EQ(seed("9223372036854775807"), uint64_t{9223372036854775807});
  EXPECT_EQ(seed("-9223372036854775808"), uint64_t{1} << 63);
  EXPECT_EQ(seed("18446744073709551615"), ~uint64_t{0});
  EXPECT_EQ(seed("9223372036854776000"), uint64_t{9223372036854776000u});  // OpenAI's own limit
  EXPECT_EQ(seed("5.0"), 5u);
  EXPECT_EQ(
      ChatFaultWith(R"("seed":18446744073709551616)").message,
      "seed: is 1.8446744073709552e+19; the range is from -9223372036854775808 to 18446744073709551615");
  EXPECT_EQ(ChatFaultWith(R"("seed":-1e300)").param, "seed");
  EXPECT_EQ(ChatFaultWith(R"("seed":1.5)").param, "seed");
}

TEST(Fields, APriorityTravelsWithEveryKindOfRequest) {
  EXPECT_EQ(ChatWith(R"("priority":-1000)").calls[0].priority(), -1000);
  EXPECT_EQ(CompletionWith(R"("priority":1000)").calls[0].priority(), 1000);
  EXPECT_TRUE(ChatWith(R"("priority":0)").calls[0].has_priority());
  EXPECT_FALSE(ChatWith("").calls[0].has_priority());
  EXPECT_THAT(ChatWith(R"("priority":3)").ignored, ::testing::IsEmpty());
  EXPECT_EQ(ChatFaultWith(R"("priority":1001)").message,
            "priority: is 1001; the range is from -1000 to 1000");
  EXPECT_EQ(ChatFaultWith(R"("priority":-1001)").param, "priority");
  EXPECT_EQ(ChatFaultWith(R"("priority":1.5)").param, "priority");
  GenerationRequest response;
  ASSERT_FALSE(ParseResponses(R"({"input":"a","priority":-7})", kContext, &response));
  EXPECT_EQ(response.calls[0].priority(), -7);
  ScoreBody score;
  ASSERT_FALSE(ParseScore(R"({"prompt":"a","candidates":["b"],"priority":-7})", kContext, &score));
  EXPECT_EQ(score.request.priority(), -7);
  EXPECT_EQ(ParseScore(R"({"prompt":"a","candidates":["b"],"priority":1001})", kContext, &score)->param,
            "priority");
}

TEST(Fields, ALimitOfTimeTravels) {
  EXPECT_EQ(ChatWith(R"("time_limit_ms":1500)").calls[0].stopping().time_limit_ms(), 1500);
  EXPECT_EQ(CompletionWith(R"("time_limit_ms":0)").calls[0].stopping().time_limit_ms(), 0);
  EXPECT_EQ(ChatFaultWith(R"("time_limit_ms":86400001)").message,
            "time_limit_ms: is 86400001; the range is from 0 to 86400000");
  EXPECT_EQ(ChatFaultWith(R"("time_limit_ms":-1)").param, "time_limit_ms");
  GenerationRequest response;
  ASSERT_FALSE(ParseResponses(R"({"input":"a","time_limit_ms":7})", kContext, &response));
  EXPECT_EQ(response.calls[0].stopping().time_limit_ms(), 7);
}

TEST(Fields, ARepetitionPenaltyThatLeavesNoNumberIsRefused) {
  EXPECT_EQ(ChatFaultWith(R"("repetition_penalty":1e-40)").message,
            "repetition_penalty: is 1e-40; the range is from 0.01 to 100");
  EXPECT_EQ(ChatWith(R"("repetition_penalty":0.01)").calls[0].sampling().repetition_penalty(), 0.01f);
}

TEST(Fields, LogitBiasKeysAreTokenIds) {
  EXPECT_EQ(ChatFaultWith(R"("logit_bias":{"x":1})").message,
            "logit_bias: has the key \"x\", which is no token id");
  EXPECT_EQ(ChatFaultWith(R"("logit_bias":{"-1":1})").param, "logit_bias");
  EXPECT_EQ(ChatFaultWith(R"("logit_bias":{"1":101})").param, "logit_bias[\"1\"]");
}

// What a body may hold of what is copied is bounded by the table, so before it is.
TEST(Fields, EachThatIsCopiedHasABound) {
  const auto list = [](int entries, const std::string& entry) {
    std::string text = "[" + entry;
    for (int i = 1; i < entries; ++i) text += "," + entry;
    return text + "]";
  };
  const auto quoted = [](size_t bytes) { return "\"" + std::string(bytes, 'a') + "\""; };
  EXPECT_EQ(ChatFaultWith("\"stop\":" + list(17, "\"a\"")).message, "stop: has 17 entries, the most is 16");
  EXPECT_EQ(ChatFaultWith("\"stop\":" + quoted(257)).message, "stop: has 257 bytes, the most is 256");
  EXPECT_EQ(ChatFaultWith("\"stop\":[" + quoted(257) + "]").param, "stop[0]");
  EXPECT_EQ(ChatFaultWith("\"stop_token_ids\":" + list(65, "1")).message,
            "stop_token_ids: has 65 entries, the most is 64");
  const std::string long_text = quoted((64 << 10) + 1);
  for (const char* field : {"guided_regex", "guided_grammar", "guided_json", "regex", "ebnf"}) {
    EXPECT_EQ(ChatFaultWith("\"" + std::string(field) + "\":" + long_text).message,
              std::string(field) + ": has 65537 bytes, the most is 65536");
  }
  EXPECT_EQ(ChatFaultWith("\"guided_choice\":" + list(1025, "\"a\"")).message,
            "guided_choice: has 1025 entries, the most is 1024");
  EXPECT_EQ(ChatFaultWith("\"guided_choice\":" + list(3, quoted(30'000))).param, "guided_choice");
  EXPECT_EQ(ChatFaultWith("\"guided_json\":{\"enum\":" + list(40'000, "1") + "}").message,
            "guided_json: has more than 65536 bytes as JSON");
  EXPECT_EQ(ChatFaultWith("\"structured_outputs\":{\"regex\":" + long_text + "}").param,
            "structured_outputs.regex");
  EXPECT_EQ(ChatFaultWith(R"("response_format":{"type":"json_schema","json_schema":{"schema":{"enum":)" +
                          list(40'000, "1") + "}}}")
                .param,
            "response_format.json_schema.schema");
  EXPECT_EQ(ChatFaultWith("\"model\":" + quoted(513)).param, "model");
}

TEST(Fields, TheirBoundsAreThoseOfTheServer) {
  const RequestShapes shapes({.max_choices = 2, .max_stop_strings = 1, .max_constraint_bytes = 3});
  RequestContext context = kContext;
  context.shapes = &shapes;
  const auto fault = [&](const std::string& fields) {
    GenerationRequest request;
    return ParseChatCompletion(ChatBody(fields), context, &request).value_or(ApiError{}).message;
  };
  EXPECT_EQ(fault(R"("n":3)"), "n: is 3; the range is from 1 to 2");
  EXPECT_EQ(fault(R"("stop":["a","b"])"), "stop: has 2 entries, the most is 1");
  EXPECT_EQ(fault(R"("regex":"abcd")"), "regex: has 4 bytes, the most is 3");
  EXPECT_EQ(fault(R"("regex":"abc","n":2)"), "");
}

TEST(Fields, StopIsATextOrSeveral) {
  EXPECT_THAT(ChatWith(R"("stop":"end")").calls[0].stopping().stop(), ElementsAre("end"));
  EXPECT_THAT(ChatWith(R"("stop":["a","b"])").calls[0].stopping().stop(), ElementsAre("a", "b"));
  EXPECT_THAT(ChatWith(R"("stop":[])").calls[0].stopping().stop(), ElementsAre());
  EXPECT_THAT(ChatWith(R"("stop":null)").calls[0].stopping().stop(), ElementsAre());
  EXPECT_EQ(ChatFaultWith(R"("stop":["a",1])").param, "stop[1]");
  EXPECT_EQ(ChatFaultWith(R"("stop":"")").message, "stop: is empty");
}

TEST(Fields, StoppingFieldsArrive) {
  const v1::Stopping stopping =
      ChatWith(R"("min_tokens":3,"ignore_eos":true,"include_stop_str_in_output":true,"stop_token_ids":[5,6])")
          .calls[0]
          .stopping();
  EXPECT_EQ(stopping.min_tokens(), 3);
  EXPECT_TRUE(stopping.ignore_eos());
  EXPECT_TRUE(stopping.include_stop());
  EXPECT_THAT(stopping.stop_token_ids(), ElementsAre(5, 6));
}

TEST(Fields, TheNewerNameOfMaxTokensWins) {
  EXPECT_EQ(ChatWith(R"("max_tokens":5,"max_completion_tokens":7)").calls[0].stopping().max_tokens(), 7);
  EXPECT_EQ(ChatWith(R"("max_tokens":5,"max_completion_tokens":null)").calls[0].stopping().max_tokens(), 5);
  EXPECT_EQ(ChatWith(R"("max_tokens":0)").calls[0].stopping().max_tokens(), 0);
  EXPECT_TRUE(ChatWith(R"("max_tokens":0)").calls[0].stopping().has_max_tokens());
  const auto completion = [](const char* fields) {
    return CompletionWith(fields).calls[0].stopping().max_tokens();
  };
  EXPECT_EQ(completion(R"("max_tokens":5,"max_completion_tokens":5)"), 5);
  EXPECT_EQ(completion(R"("max_tokens":5,"max_completion_tokens":7)"), 7);
  EXPECT_EQ(completion(R"("max_completion_tokens":7)"), 7);
  EXPECT_EQ(completion(R"("max_tokens":5,"max_completion_tokens":null)"), 5);
  EXPECT_EQ(completion(""), 16);
  EXPECT_EQ(CompletionWith(R"("max_completion_tokens":7)").names[0].NameOf("stopping.max_tokens"),
            "max_completion_tokens");
}

TEST(Fields, ANumberThatVanishesInThirtyTwoBitsIsNamedAsItWasSent) {
  const ApiError tiny = ChatFaultWith(R"("top_p":1e-300)");
  EXPECT_EQ(tiny.param, "top_p");
  EXPECT_THAT(tiny.message, StartsWith("top_p: is 1e-300, too close to 0"));
  EXPECT_GT(ChatWith(R"("top_p":1e-30)").calls[0].sampling().top_p(), 0);
  EXPECT_EQ(ChatWith(R"("temperature":1e-300)").calls[0].sampling().temperature(), 0)
      << "the likeliest token";
  EXPECT_THAT(ChatFaultWith(R"("presence_penalty":1e300)").message, HasSubstr("is 1e+300; the range is"));
}

TEST(Fields, ChatLogprobsAreAFlagAndANumber) {
  EXPECT_FALSE(ChatWith(R"("logprobs":false)").calls[0].output().has_logprobs());
  EXPECT_EQ(ChatWith(R"("logprobs":true)").calls[0].output().logprobs(), 0);
  EXPECT_TRUE(ChatWith(R"("logprobs":true)").calls[0].output().has_logprobs());
  EXPECT_EQ(ChatWith(R"("logprobs":true,"top_logprobs":3)").calls[0].output().logprobs(), 3);
  ChatWith(R"("top_logprobs":0)");
  EXPECT_EQ(ChatFaultWith(R"("top_logprobs":3)").param, "top_logprobs");
}

TEST(Fields, StreamOptionsAreReadAndHarmlessWithoutStream) {
  const GenerationRequest request =
      ChatWith(R"("stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true})");
  EXPECT_TRUE(request.answer.stream);
  EXPECT_TRUE(request.answer.usage_chunk);
  EXPECT_TRUE(request.answer.usage_in_every_chunk);
  EXPECT_FALSE(ChatWith(R"("stream_options":{"include_usage":true})").answer.stream);
}

TEST(Fields, IdentityOfTheAnswer) {
  const GenerationRequest given = ChatWith(R"("model":"m","request_id":"mine","n":2)");
  EXPECT_EQ(given.calls[0].request_id(), "mine");
  EXPECT_EQ(given.answer.id, "mine");
  EXPECT_EQ(given.answer.model, "m");
  EXPECT_EQ(given.answer.choices, 2);
  EXPECT_EQ(given.calls[0].model(), "m");
  EXPECT_EQ(given.calls[0].choices(), 2);
  EXPECT_EQ(ChatWith("").calls[0].request_id(), "r1");
  RequestContext any = kContext;
  any.any_model = true;
  GenerationRequest request;
  ASSERT_FALSE(ParseChatCompletion(ChatBody(R"("model":"gpt-4o")"), any, &request));
  EXPECT_EQ(request.calls[0].model(), "");
  EXPECT_EQ(request.answer.model, "gpt-4o");
}

TEST(Fields, ACacheSaltTravels) {
  EXPECT_EQ(ChatWith(R"("cache_salt":"mine")").calls[0].cache_salt(), "mine");
  EXPECT_TRUE(ChatWith(R"("cache_salt":"mine")").ignored.empty());
  EXPECT_EQ(CompletionWith(R"("cache_salt":"mine")").calls[0].cache_salt(), "mine");
  EXPECT_EQ(ChatWith("").calls[0].cache_salt(), "");
  const std::string longest(256, 'x');
  EXPECT_EQ(ChatWith("\"cache_salt\":\"" + longest + "\"").calls[0].cache_salt(), longest);
  EXPECT_EQ(ChatFaultWith("\"cache_salt\":\"" + longest + "x\"").message,
            "cache_salt: has 257 bytes, the most is 256");
}

TEST(Fields, ASessionTravels) {
  EXPECT_EQ(ChatWith(R"("session":"mine")").calls[0].session(), "mine");
  EXPECT_TRUE(ChatWith(R"("session":"mine")").ignored.empty());
  EXPECT_EQ(CompletionWith(R"("session":"mine")").calls[0].session(), "mine");
  EXPECT_EQ(ChatWith("").calls[0].session(), "");
  EXPECT_EQ(ChatFaultWith("\"session\":\"" + std::string(65, 'x') + "\"").message,
            "session: has 65 bytes, the most is 64");
  EXPECT_EQ(ChatFaultWith(R"("session":"")").param, "session");
  EXPECT_EQ(ChatFaultWith(R"("session":7)").param, "session");
}

TEST(Fields, AContextPolicyTravels) {
  const v1::GenerateRequest call = CompletionWith(R"("context_policy":{"type":"shift","n_ctx":64,"n_keep":2,)"
                                                  R"("n_discard":null})")
                                       .calls[0];
  EXPECT_EQ(call.context_policy().type(), v1::ContextPolicy::TYPE_SHIFT);
  EXPECT_EQ(call.context_policy().n_ctx(), 64);
  EXPECT_EQ(call.context_policy().n_keep(), 2);
  EXPECT_FALSE(call.context_policy().has_n_discard());
  EXPECT_EQ(ChatWith(R"("context_policy":{"type":"none"})").calls[0].context_policy().type(),
            v1::ContextPolicy::TYPE_NONE);
  EXPECT_FALSE(ChatWith("").calls[0].has_context_policy());
  EXPECT_FALSE(ChatWith(R"("context_policy":null)").calls[0].has_context_policy());
  EXPECT_EQ(ChatFaultWith(R"("context_policy":{"type":"ring"})").message,
            R"(context_policy.type: is "ring"; it must be one of "none", "sinks", "shift", "reevaluate")");
  EXPECT_EQ(ChatFaultWith(R"("context_policy":{"n_ctx":64})").message, "context_policy.type: is missing");
  EXPECT_EQ(ChatFaultWith(R"("context_policy":{"type":"sinks","n_ctx":0})").param, "context_policy.n_ctx");
  EXPECT_EQ(ChatFaultWith(R"("context_policy":{"type":"sinks","n_sinks":4})").param,
            "context_policy.n_sinks");
}

TEST(Fields, TokenIdsTravelOnlyWhereTheyAreReturned) {
  EXPECT_FALSE(ChatWith("").calls[0].output().token_ids());
  const v1::Output output = ChatWith(R"("return_token_ids":true)").calls[0].output();
  EXPECT_TRUE(output.token_ids());
  EXPECT_TRUE(output.prompt_tokens());
}

TEST(Fields, PromptLogprobsDoNotStream) {
  EXPECT_EQ(ChatWith(R"("prompt_logprobs":2)").calls[0].output().prompt_logprobs(), 2);
  EXPECT_EQ(ChatFaultWith(R"("prompt_logprobs":2,"stream":true)").param, "prompt_logprobs");
}

}  // namespace
}  // namespace tramontane

// Bodies of requests to the messages of the .proto, field by field; and errors back to the fields.
#include "server/openai/generation_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/openai/chat.h"
#include "server/openai/choices_fields.h"
#include "server/openai/completions.h"
#include "server/openai/json.h"
#include "server/openai/tokenize.h"

namespace tramontane {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

const RequestContext kContext = {.id = "r1", .created_s = 1700000000};
const char kUser[] = R"("messages":[{"role":"user","content":"Hi"}])";

std::string ChatBody(const std::string& fields) {
  return std::string("{") + kUser + (fields.empty() ? "" : ",") + fields + "}";
}
std::string CompletionBody(const std::string& fields) {
  return std::string(R"({"prompt":"Hi")") + (fields.empty() ? "" : ",") + fields + "}";
}

GenerationRequest Chat(const std::string& body) {
  GenerationRequest request;
  const auto fault = ParseChatCompletion(body, kContext, &request);
  EXPECT_FALSE(fault) << fault->message << " in " << body;
  return request;
}
GenerationRequest ChatWith(const std::string& fields) { return Chat(ChatBody(fields)); }

GenerationRequest Completion(const std::string& body) {
  GenerationRequest request;
  const auto fault = ParseCompletion(body, kContext, &request);
  EXPECT_FALSE(fault) << fault->message << " in " << body;
  return request;
}
GenerationRequest CompletionWith(const std::string& fields) { return Completion(CompletionBody(fields)); }

ApiError ChatFault(const std::string& body) {
  GenerationRequest request;
  const auto fault = ParseChatCompletion(body, kContext, &request);
  EXPECT_TRUE(fault) << body;
  return fault.value_or(ApiError{});
}
ApiError ChatFaultWith(const std::string& fields) { return ChatFault(ChatBody(fields)); }
ApiError CompletionFault(const std::string& body) {
  GenerationRequest request;
  const auto fault = ParseCompletion(body, kContext, &request);
  EXPECT_TRUE(fault) << body;
  return fault.value_or(ApiError{});
}

// ---- bodies -------------------------------------------------------------------------------------

TEST(Body, WhatIsNoJsonObjectIsA400) {
  EXPECT_THAT(ChatFault("").message, HasSubstr("not JSON at byte"));
  EXPECT_THAT(ChatFault("[]").message, HasSubstr("not a JSON object"));
  EXPECT_THAT(ChatFault(std::string(100'000, '[')).message, HasSubstr("64 brackets"));
  EXPECT_EQ(ChatFault("{").status, 400);
  EXPECT_EQ(ChatFault("{").type, "invalid_request_error");
}

TEST(Body, AnUnknownFieldIsRefusedWithTheNearestKnownName) {
  const ApiError fault = ChatFaultWith(R"("temprature":0.5)");
  EXPECT_EQ(fault.status, 400);
  EXPECT_EQ(fault.param, "temprature");
  EXPECT_EQ(fault.message, "temprature: is not a field of this request; the nearest is \"temperature\"");
  EXPECT_EQ(ChatFaultWith(R"("never_heard_of":{"a":1})").message,
            "never_heard_of: is not a field of this request");
  EXPECT_THAT(ChatFaultWith(R"("stream_options":{"include_usag":true})").message,
              HasSubstr("stream_options.include_usag: is not a field of this request; the nearest is "
                        "\"include_usage\""));
  EXPECT_EQ(ChatFaultWith(R"("response_format":{"type":"json_object","shema":{}})").param,
            "response_format.shema");
  EXPECT_EQ(ChatFaultWith(R"("structured_outputs":{"regx":"a"})").param, "structured_outputs.regx");
  EXPECT_EQ(CompletionFault(CompletionBody(R"("max_token":1)")).message,
            "max_token: is not a field of this request; the nearest is \"max_tokens\"");
  ChatWith(R"("temprature":null)");
}

TEST(Body, UnknownNamesAreCutInErrors) {
  const ApiError fault = ChatFaultWith("\"" + std::string(1'000'000, 'x') + "\":1");
  EXPECT_LT(fault.message.size(), 200u);
  EXPECT_LT(fault.param.size(), 100u);
}

TEST(Body, WhereFieldsAreNotStrictUnknownOnesAreListed) {
  RequestContext lenient = kContext;
  lenient.strict_fields = false;
  GenerationRequest request;
  ASSERT_FALSE(ParseChatCompletion(
      ChatBody(R"("temprature":0.5,"user":"me","stream_options":{"foo":1},"top_k":5,"nothing":null)"),
      lenient, &request));
  EXPECT_THAT(request.ignored, ElementsAre("temprature", "user", "stream_options.foo"));
  EXPECT_EQ(ParseChatCompletion(ChatBody(R"("grammar":"root ::= \"a\"")"), lenient, &request)->param,
            "grammar");
}

TEST(Body, FieldsAboutNoTokenAreTakenAndListed) {
  const GenerationRequest request =
      ChatWith(R"("user":"me","metadata":{"k":"v"},"store":true,"service_tier":"auto","top_p":1)");
  EXPECT_THAT(request.ignored, ElementsAre("user", "metadata", "store", "service_tier"));
  EXPECT_THAT(CompletionWith(R"("prompt_cache_key":"k","user":null)").ignored,
              ElementsAre("prompt_cache_key"));
}

TEST(Body, OfManyIgnoredFieldsSomeAreListed) {
  RequestContext lenient = kContext;
  lenient.strict_fields = false;
  std::string fields = "\"f0\":1";
  for (int i = 1; i < 1000; ++i) fields += ",\"f" + std::to_string(i) + "\":1";
  GenerationRequest request;
  ASSERT_FALSE(ParseChatCompletion(ChatBody(fields), lenient, &request));
  EXPECT_EQ(request.ignored.size(), kMaxIgnoredKeys);
}

// Clients send back what they were sent, and more.
TEST(Body, MessagesCallsAndToolsMayHoldMore) {
  Chat(R"({"messages":[{"role":"user","content":"x","id":"m1","cache_control":{"type":"ephemeral"}},
      {"role":"assistant","content":"y","refusal":null,"annotations":[],"audio":null,"parsed":{"a":1}},
      {"role":"user","content":[{"type":"text","text":"z","cache_control":{}}]}],
      "tools":[{"type":"function","function":{"name":"f","returns":{}},"display":"F"}]})");
}

TEST(Body, NullIsUnsetForEveryField) {
  const GenerationRequest plain = ChatWith("");
  for (const Field& field : StandardShapes().chat.fields) {
    if (field.required) continue;
    const GenerationRequest request = ChatWith("\"" + field.name + "\":null");
    EXPECT_EQ(request.calls[0].SerializeAsString(), plain.calls[0].SerializeAsString()) << field.name;
  }
  const GenerationRequest completion = CompletionWith("");
  for (const Field& field : StandardShapes().completion.fields) {
    if (field.required) continue;
    const GenerationRequest request = CompletionWith("\"" + field.name + "\":null");
    EXPECT_EQ(request.calls[0].SerializeAsString(), completion.calls[0].SerializeAsString()) << field.name;
  }
}

// Every row of both tables refuses some value by its name; rows that take anything have no wrong value.
TEST(Body, AWrongTypeIsA400ThatNamesTheField) {
  for (const Shape* shape : {&StandardShapes().chat, &StandardShapes().completion}) {
    for (const Field& field : shape->fields) {
      if (field.shape.kind == Shape::Kind::kAnything) continue;
      std::optional<ShapeFault> fault;
      for (const char* wrong : {"\"\"", "{}", "[{\"x\":1}]", "true", "-3.5"}) {
        const Json body = *ParseJson("{\"" + field.name + "\":" + wrong + "}");
        for (const Field& each : shape->fields) {
          if (each.name == field.name) fault = FindFault(each.shape, body[field.name], field.name);
        }
        if (fault) break;
      }
      ASSERT_TRUE(fault) << field.name;
      EXPECT_THAT(fault->path, HasSubstr(field.name));
    }
  }
}

TEST(Body, ARangeIsNamedWithValueAndLimit) {
  const ApiError fault = ChatFaultWith(R"("top_p":1.5)");
  EXPECT_EQ(fault.status, 400);
  EXPECT_EQ(fault.param, "top_p");
  EXPECT_EQ(fault.message, "top_p: is 1.5; the range is from 0 (itself excluded) to 1");
  EXPECT_EQ(ChatFaultWith(R"("temperature":"0.7")").message,
            "temperature: is \"0.7\"; it must be a number from 0 to 100");
  EXPECT_EQ(ChatFaultWith(R"("top_logprobs":21,"logprobs":true)").message,
            "top_logprobs: is 21; the range is from 0 to 20");
  EXPECT_EQ(ChatFaultWith(R"("n":0)").message, "n: is 0; the range is from 1 to 128");
  EXPECT_EQ(ChatFaultWith(R"("stream_options":{"include_usage":1})").param, "stream_options.include_usage");
}

TEST(Body, IntegersServeAsNumbersAndWholeNumbersAsIntegers) {
  const GenerationRequest request = ChatWith(R"("temperature":1,"max_tokens":16.0,"top_k":5e0)");
  EXPECT_EQ(request.calls[0].sampling().temperature(), 1.0f);
  EXPECT_EQ(request.calls[0].stopping().max_tokens(), 16);
  EXPECT_EQ(request.calls[0].sampling().top_k(), 5);
  EXPECT_EQ(ChatFaultWith(R"("max_tokens":1.5)").param, "max_tokens");
  EXPECT_EQ(ChatFaultWith(R"("max_tokens":true)").param, "max_tokens");
}

TEST(Body, WhatThisServerCannotDoIsRefusedByName) {
  for (const char* fields :
       {R"("use_beam_search":true)", R"("audio":{"voice":"x"})", R"("modalities":["text","audio"])",
        R"("functions":[{}])", R"("reasoning_effort":"high")", R"("chat_template":"{{ x }}")",
        R"("truncate_prompt_tokens":5)", R"("bad_words":["x"])", R"("allowed_token_ids":[1])",
        R"("echo":true)", R"("documents":[{}])"}) {
    const ApiError fault = ChatFaultWith(fields);
    EXPECT_EQ(fault.status, 400) << fields;
    EXPECT_THAT(std::string(fields), HasSubstr(fault.param.substr(0, fault.param.find('['))))
        << fault.message;
  }
  EXPECT_EQ(CompletionFault(CompletionBody(R"("suffix":"end")")).message,
            "suffix: is \"end\"; this model cannot fill in the middle");
}

// llama.cpp's, ollama's, TGI's, vLLM's, SGLang's: each names itself and what to use instead.
TEST(Body, FieldsOfOtherServersAreRefusedWithWhatToUseInstead) {
  const std::vector<std::pair<const char*, const char*>> fields = {
      {R"("grammar":"root ::= \"a\"")", "structured_outputs.grammar"},
      {R"("json_schema":{"type":"object"})", "response_format"},
      {R"("n_predict":5)", "use max_tokens"},
      {R"("max_new_tokens":5)", "use max_tokens"},
      {R"("typical_p":0.5)", "use temperature, top_p, top_k or min_p"},
      {R"("mirostat":2)", "use temperature"},
      {R"("mirostat_tau":3.0)", "use temperature"},
      {R"("dry_multiplier":0.8)", "use repetition_penalty"},
      {R"("xtc_probability":0.5)", "use temperature"},
      {R"("repeat_penalty":1.1)", "use repetition_penalty"},
      {R"("stop_sequences":["a"])", "use stop"},
      {R"("do_sample":false)", "use temperature"},
      {R"("parameters":{"max_new_tokens":5})", "top level"},
      {R"("options":{"num_predict":5})", "top level"},
      {R"("format":"json")", "use response_format"},
      {R"("lora_path":"x")", "no adapters"},
      {R"("min_new_tokens":3)", "use min_tokens"},
      {R"("response_format":{"type":"json_object","schema":{}})", "json_schema.schema"},
  };
  for (const auto& [field, instead] : fields) {
    const ApiError fault = ChatFaultWith(field);
    EXPECT_EQ(fault.status, 400) << field;
    const std::string name = fault.param.substr(0, fault.param.find('.'));
    EXPECT_THAT(field, HasSubstr("\"" + name + "\"")) << fault.message;
    EXPECT_THAT(fault.message, HasSubstr(instead));
  }
}

TEST(Body, NoFieldHasTwoRows) {
  const RequestShapes& shapes = StandardShapes();
  for (const Shape* shape :
       {&shapes.chat, &shapes.completion, &shapes.responses, &shapes.tokenize, &shapes.detokenize}) {
    std::set<std::string> names;
    for (const Field& field : shape->fields) EXPECT_TRUE(names.insert(field.name).second) << field.name;
  }
}

TEST(Body, WhatOthersAskForWithoutEffectIsAccepted) {
  ChatWith(R"("use_beam_search":false,"modalities":["text"],"functions":[],"bad_words":[],"echo":false)");
  ChatWith(R"("typical_p":1,"safe_prompt":false,"top_k":-1,"mirostat":0,"dry_multiplier":0.0,"grammar":"")");
  ChatWith(R"("repeat_penalty":1.0,"n_predict":-1,"cache_prompt":true,"chat_template_kwargs":{})");
  CompletionWith(R"("suffix":"","best_of":1,"use_beam_search":false)");
}

// ---- sampling, stopping, output -----------------------------------------------------------------

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
  EXPECT_EQ(ChatWith(R"("seed":-1)").calls[0].sampling().seed(), ~uint64_t{0});
  EXPECT_EQ(ChatWith(R"("random_seed":9)").calls[0].sampling().seed(), 9u);
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

// ---- messages -----------------------------------------------------------------------------------

TEST(Messages, RolesAndContents) {
  const v1::Chat chat = Chat(R"({"messages":[{"role":"developer","content":"Be brief."},
      {"role":"system","content":""},
      {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}],"name":"me"},
      {"role":"assistant","content":"c"},{"role":"user","content":[]}]})")
                            .calls[0]
                            .chat();
  ASSERT_EQ(chat.messages_size(), 5);
  EXPECT_EQ(chat.messages(0).role(), v1::ROLE_SYSTEM);
  EXPECT_EQ(chat.messages(1).role(), v1::ROLE_SYSTEM);
  EXPECT_TRUE(chat.messages(1).has_content());
  EXPECT_EQ(chat.messages(2).content(), "a\n\nb");
  EXPECT_FALSE(chat.messages(2).has_name());  // only a tool's means something
  EXPECT_EQ(chat.messages(3).role(), v1::ROLE_ASSISTANT);
  EXPECT_EQ(chat.messages(4).content(), "");
}

TEST(Messages, ASafePromptPutsMistralsSentenceFirst) {
  const GenerationRequest request = Chat(
      R"({"safe_prompt":true,"messages":[{"role":"system","content":"s"},{"role":"user","content":"u"}]})");
  const v1::Chat& chat = request.calls[0].chat();
  ASSERT_EQ(chat.messages_size(), 3);
  EXPECT_EQ(chat.messages(0).role(), v1::ROLE_SYSTEM);
  EXPECT_EQ(chat.messages(0).content(),
            "Always assist with care, respect, and truth. Respond with utmost utility yet securely. Avoid "
            "harmful, unethical, prejudiced, or negative content. Ensure replies promote fairness and "
            "positivity.");
  EXPECT_EQ(chat.messages(1).content(), "s");
  EXPECT_EQ(chat.messages(2).content(), "u");
  EXPECT_EQ(request.names[0].NameOf("chat.messages[2].content"), "messages[1].content");
  EXPECT_EQ(request.names[0].NameOf("chat.messages[0]"), "safe_prompt");
}

TEST(Messages, APartThatIsNoObjectIsNamed) {
  const ApiError fault = ChatFault(R"({"messages":[{"role":"user","content":["x"]}]})");
  EXPECT_EQ(fault.param, "messages[0].content[0]");
  EXPECT_EQ(fault.message, "messages[0].content[0]: is \"x\"; it must be an object");
}

TEST(Messages, OnlyAnAssistantsContentMayBeMissing) {
  Chat(R"({"messages":[{"role":"user","content":"x"},
      {"role":"assistant","content":null,"tool_calls":[{"id":"123456789","function":{"name":"f"}}]},
      {"role":"tool","tool_call_id":"123456789","content":"1"}]})");
  for (const char* answer : {R"({"role":"assistant","content":null,"refusal":null})",
                             R"({"role":"assistant","tool_calls":[]})", R"({"role":"assistant"})"}) {
    const auto request = Chat(R"({"messages":[{"role":"user","content":"x"},)" + std::string(answer) + "]}");
    EXPECT_FALSE(request.calls[0].chat().messages(1).has_content()) << answer;
  }
  for (const char* message : {R"({"role":"user","content":null})", R"({"role":"user"})",
                              R"({"role":"system"})", R"({"role":"tool","tool_call_id":"x"})"}) {
    const ApiError fault =
        ChatFault(std::string(R"({"messages":[{"role":"user","content":"x"},)") + message + "]}");
    EXPECT_EQ(fault.param, "messages[1].content") << message;
  }
}

TEST(Messages, AnEmptyPartIsNoParagraph) {
  const auto request = Chat(R"({"messages":[{"role":"user","content":[{"type":"text","text":""},
      {"type":"text","text":"a"},{"type":"text","text":""},{"type":"text","text":"b"}]},
      {"role":"user","content":[{"type":"text","text":""}]},{"role":"user","content":[]}]})");
  const v1::Chat& chat = request.calls[0].chat();
  EXPECT_EQ(chat.messages(0).content(), "a\n\nb");
  EXPECT_EQ(chat.messages(1).content(), "");
  EXPECT_TRUE(chat.messages(1).in_parts()) << "mistral-common tells it from \"\" in system prompts";
  EXPECT_FALSE(chat.messages(2).in_parts());
}

TEST(Messages, FaultsNameTheMessage) {
  EXPECT_EQ(ChatFault("{}").message, "messages: is missing");
  EXPECT_EQ(ChatFault(R"({"messages":[]})").message, "messages: is empty");
  EXPECT_EQ(ChatFault(R"({"messages":"Hi"})").param, "messages");
  EXPECT_EQ(
      ChatFault(R"({"messages":[{"role":"user","content":"x"},{"role":"tol","content":"x"}]})").message,
      "messages[1].role: is \"tol\"; it must be one of \"system\", \"developer\", \"user\", \"assistant\", "
      "\"tool\"");
  EXPECT_EQ(ChatFault(R"({"messages":[{"content":"x"}]})").param, "messages[0].role");
  EXPECT_EQ(ChatFault(R"({"messages":[{"role":"user","content":7}]})").param, "messages[0].content");
}

TEST(Messages, ImagesAndThinkingAreRefused) {
  for (const char* part : {R"({"type":"image_url","image_url":{"url":"data:"}})", R"({"type":"input_audio"})",
                           R"({"type":"thinking","thinking":[]})"}) {
    const ApiError fault =
        ChatFault(std::string(R"({"messages":[{"role":"user","content":[)") + part + "]}]}");
    EXPECT_EQ(fault.param, "messages[0].content[0].type");
    EXPECT_THAT(fault.message, HasSubstr("only parts of the type"));
  }
  EXPECT_EQ(ChatFault(R"({"messages":[{"role":"assistant","content":"x","reasoning_content":"hm"}]})").param,
            "messages[0].reasoning_content");
}

TEST(Messages, PrefixAndContinueFinalMessageAreTheSame) {
  const std::string messages =
      R"("messages":[{"role":"user","content":"x"},{"role":"assistant","content":"y")";
  EXPECT_TRUE(Chat("{" + messages + R"(,"prefix":true}]})").calls[0].chat().messages(1).prefix());
  EXPECT_TRUE(
      Chat("{" + messages + R"(}],"continue_final_message":true})").calls[0].chat().messages(1).prefix());
  EXPECT_EQ(ChatFaultWith(R"("continue_final_message":true)").param, "continue_final_message");
  EXPECT_EQ(ChatFault("{" + messages + R"(,"prefix":true}],"continue_final_message":true})").param,
            "continue_final_message")
      << "mistral-common refuses the pair";
}

TEST(Messages, ToolsAndTheirHistoryArrive) {
  const v1::Chat chat = Chat(R"({"messages":[{"role":"user","content":"x"},
      {"role":"assistant","content":"","tool_calls":[{"index":0,"id":"call_abcdefghijkl","type":"function",
        "function":{"name":"f","arguments":"{\"a\":1}"}},
        {"id":"call_2","type":"function","function":{"name":"g","arguments":{"z":1,"a":2}}}]},
      {"role":"tool","name":"f","tool_call_id":"call_abcdefghijkl","content":"1"},
      {"role":"tool","tool_call_id":"call_2","content":[{"type":"text","text":"2"}]}],
      "tools":[{"type":"function","function":{"name":"f","description":"d","strict":true,
        "parameters":{"type":"object","properties":{"z":{},"a":{}}}}},{"function":{"name":"g"}}],
      "tool_choice":"required","parallel_tool_calls":false})")
                            .calls[0]
                            .chat();
  const v1::ToolCall& call = chat.messages(1).tool_calls(0);
  EXPECT_EQ(call.id().size(), 9u);  // as Mistral's formats have them
  EXPECT_EQ(chat.messages(2).tool_call_id(), call.id());
  EXPECT_EQ(chat.messages(2).name(), "f");
  EXPECT_EQ(call.arguments_json(), "{\"a\":1}");
  EXPECT_EQ(chat.messages(1).tool_calls(1).arguments_json(), "{\"z\":1,\"a\":2}");
  EXPECT_NE(chat.messages(1).tool_calls(1).id(), call.id());
  EXPECT_EQ(chat.messages(3).content(), "2");
  EXPECT_EQ(chat.tools(0).parameters_json(), R"({"type":"object","properties":{"z":{},"a":{}}})");
  EXPECT_EQ(chat.tools(1).parameters_json(), "");
  EXPECT_EQ(chat.tool_choice().mode(), v1::TOOL_CHOICE_MODE_REQUIRED);
  EXPECT_FALSE(chat.parallel_tool_calls());
}

TEST(Messages, ToolChoice) {
  const std::string tools = R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":)";
  const auto choice = [&](const char* value) {
    return ChatWith(tools + value).calls[0].chat().tool_choice();
  };
  EXPECT_EQ(choice("\"auto\"").mode(), v1::TOOL_CHOICE_MODE_AUTO);
  EXPECT_EQ(choice("\"none\"").mode(), v1::TOOL_CHOICE_MODE_NONE);
  EXPECT_EQ(choice("\"any\"").mode(), v1::TOOL_CHOICE_MODE_REQUIRED);
  const v1::ToolChoice named = choice(R"({"type":"function","function":{"name":"f"}})");
  EXPECT_EQ(named.mode(), v1::TOOL_CHOICE_MODE_NAMED);
  EXPECT_EQ(named.name(), "f");
  EXPECT_EQ(ChatFaultWith(tools + "\"maybe\"").param, "tool_choice");
  EXPECT_EQ(ChatFaultWith(R"("tool_choice":"required")").param, "tool_choice");  // no tools
  EXPECT_FALSE(ChatWith(R"("tool_choice":"none")").calls[0].chat().has_tool_choice());
  EXPECT_TRUE(ChatWith(tools + "\"auto\"").answer.tools);
  EXPECT_FALSE(ChatWith(tools + "\"none\"").answer.tools);
}

// ---- constraints --------------------------------------------------------------------------------

TEST(Constraints, ResponseFormat) {
  EXPECT_FALSE(ChatWith(R"("response_format":{"type":"text"})").calls[0].has_constraint());
  EXPECT_TRUE(ChatWith(R"("response_format":{"type":"json_object"})").calls[0].constraint().json_object());
  const char* schema = R"("response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,)"
                       R"("schema":{"type":"object","properties":{"z":{},"a":{}}}}})";
  EXPECT_EQ(ChatWith(schema).calls[0].constraint().json_schema(),
            R"({"type":"object","properties":{"z":{},"a":{}}})");
  EXPECT_EQ(ChatFaultWith(R"("response_format":{"type":"json_schema"})").param,
            "response_format.json_schema");
  EXPECT_EQ(ChatFaultWith(R"("response_format":{"type":"xml"})").param, "response_format.type");
}

TEST(Constraints, StructuredOutputsAndTheirOlderNames) {
  const auto constraint = [](const char* fields) { return CompletionWith(fields).calls[0].constraint(); };
  EXPECT_EQ(constraint(R"("structured_outputs":{"regex":"a+"})").regex(), "a+");
  EXPECT_EQ(constraint(R"("structured_outputs":{"grammar":"root ::= \"a\""})").grammar(), "root ::= \"a\"");
  EXPECT_EQ(constraint(R"("structured_outputs":{"json":"{}"})").json_schema(), "{}");
  EXPECT_EQ(constraint(R"("structured_outputs":{"json":{"type":"object"}})").json_schema(),
            R"({"type":"object"})");
  EXPECT_TRUE(constraint(R"("structured_outputs":{"json_object":true})").json_object());
  EXPECT_THAT(constraint(R"("structured_outputs":{"choice":["a","b"]})").choice().texts(),
              ElementsAre("a", "b"));
  EXPECT_EQ(constraint(R"("guided_regex":"a+")").regex(), "a+");
  EXPECT_THAT(constraint(R"("guided_choice":["a"])").choice().texts(), ElementsAre("a"));
  EXPECT_EQ(constraint(R"("guided_json":{"a":1})").json_schema(), "{\"a\":1}");
  EXPECT_EQ(constraint(R"("guided_grammar":"g")").grammar(), "g");
}

TEST(Constraints, SglangsNamesAreAliases) {
  EXPECT_EQ(ChatWith(R"("regex":"a+")").calls[0].constraint().regex(), "a+");
  EXPECT_EQ(ChatWith(R"("ebnf":"root ::= \"a\"")").calls[0].constraint().grammar(), "root ::= \"a\"");
  EXPECT_EQ(ChatWith(R"("ebnf":"x")").names[0].NameOf("constraint.grammar"), "ebnf");
}

TEST(Constraints, TheSameUnderTwoNamesIsNoConflict) {
  EXPECT_EQ(ChatWith(R"("regex":"a+","guided_regex":"a+","structured_outputs":{"regex":"a+"})")
                .calls[0]
                .constraint()
                .regex(),
            "a+");
  ChatWith(R"("response_format":{"type":"json_object"},"structured_outputs":{"json_object":true})");
  EXPECT_EQ(ChatFaultWith(R"("regex":"a+","guided_regex":"b+")").param, "regex");
  EXPECT_EQ(ChatFaultWith(R"("regex":"a","ebnf":"a")").param, "ebnf");
}

TEST(Constraints, ExactlyOne) {
  EXPECT_EQ(ChatFaultWith(R"("structured_outputs":{})").param, "structured_outputs");
  EXPECT_EQ(ChatFaultWith(R"("structured_outputs":{"regex":"a","choice":["b"]})").param,
            "structured_outputs.choice");
  EXPECT_EQ(ChatFaultWith(R"("guided_regex":"a","response_format":{"type":"json_object"})").param,
            "guided_regex");
}

// ---- completions --------------------------------------------------------------------------------

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

TEST(Completions, BestOfIsNOrRefused) {
  CompletionWith(R"("best_of":2,"n":2)");
  EXPECT_EQ(CompletionFault(CompletionBody(R"("best_of":3,"n":2)")).param, "best_of");
}

// ---- tokenize, detokenize -----------------------------------------------------------------------

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
  TokenizeBody neither;
  EXPECT_EQ(ParseTokenize("{}", kContext, &neither)->param, "prompt");
  TokenizeBody both;
  EXPECT_EQ(ParseTokenize(std::string("{\"prompt\":\"a\",") + kUser + "}", kContext, &both)->param, "prompt");
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

// ---- errors of the server -----------------------------------------------------------------------

TEST(Errors, PathsOfTheProtoBecomeNamesOfTheBody) {
  const GenerationRequest chat = ChatWith(R"("max_tokens":5,"n":2,"random_seed":1)");
  const auto name = [&](const char* path) { return chat.names[0].NameOf(path); };
  EXPECT_EQ(name("sampling.top_p"), "top_p");
  EXPECT_EQ(name("sampling.seed"), "random_seed");
  EXPECT_EQ(name("choices"), "n");
  EXPECT_EQ(name("stopping.max_tokens"), "max_tokens");
  EXPECT_EQ(name("stopping.stop"), "stop");
  EXPECT_EQ(name("output.logprobs"), "top_logprobs");
  EXPECT_EQ(name("chat"), "messages");
  EXPECT_EQ(name("prompt"), "messages");
  EXPECT_EQ(name("chat.messages[2].content"), "messages[2].content");
  EXPECT_EQ(name("chat.messages[1].tool_calls[0].arguments"), "messages[1].tool_calls[0].function.arguments");
  EXPECT_EQ(name("chat.tools[0].parameters"), "tools[0].function.parameters");
  EXPECT_EQ(name("chat.tools[0]"), "tools[0]");
  EXPECT_EQ(name("something.else"), "something.else");
  EXPECT_EQ(ChatWith(R"("max_completion_tokens":5)").names[0].NameOf("stopping.max_tokens"),
            "max_completion_tokens");
}

TEST(Errors, OfOnePromptOfSeveralNameIt) {
  const GenerationRequest texts = Completion(R"({"prompt":["a","b"]})");
  EXPECT_EQ(texts.names[1].NameOf("text"), "prompt[1]");
  const GenerationRequest ids = Completion(R"({"prompt":[[1],[2,3]]})");
  EXPECT_EQ(ids.names[1].NameOf("token_ids.ids[1]"), "prompt[1][1]");
  EXPECT_EQ(Completion(R"({"prompt":[1,2]})").names[0].NameOf("token_ids.ids[1]"), "prompt[1]");
}

TEST(Errors, OfAConstraintNameWhereItWasGiven) {
  EXPECT_EQ(ChatWith(R"("structured_outputs":{"regex":"a"})").names[0].NameOf("constraint.regex"),
            "structured_outputs.regex");
  EXPECT_EQ(ChatWith(R"("response_format":{"type":"json_schema","json_schema":{"schema":{}}})")
                .names[0]
                .NameOf("constraint.json_schema"),
            "response_format.json_schema.schema");
}

TEST(Errors, EveryStatusOfTheServerHasOneOfHttp) {
  const auto status = [](StatusCode code) { return ToApiError(ToRpcError(Status(code, "x"))).status; };
  EXPECT_EQ(status(StatusCode::kInvalidArgument), 400);
  EXPECT_EQ(status(StatusCode::kFailedPrecondition), 400);
  EXPECT_EQ(status(StatusCode::kUnimplemented), 400);  // clients try a 501 again
  EXPECT_EQ(status(StatusCode::kNotFound), 404);
  EXPECT_EQ(status(StatusCode::kAlreadyExists), 409);
  EXPECT_EQ(status(StatusCode::kResourceExhausted), 429);
  EXPECT_EQ(status(StatusCode::kCancelled), 499);
  EXPECT_EQ(status(StatusCode::kInternal), 500);
  EXPECT_EQ(status(StatusCode::kDataLoss), 500);
  EXPECT_EQ(status(StatusCode::kUnavailable), 503);
  EXPECT_EQ(status(StatusCode::kDeadlineExceeded), 504);
}

TEST(Errors, MessagesAreRewordedToo) {
  const GenerationRequest chat = ChatWith("");
  const ApiError error =
      chat.names[0].Explain(FieldError("chat.messages[0]", "a user message needs content"));
  EXPECT_EQ(error.status, 400);
  EXPECT_EQ(error.param, "messages[0]");
  EXPECT_EQ(error.message, "messages[0]: a user message needs content");
  const ApiError busy = chat.names[0].Explain(BusyError("QUEUE_FULL", "256 requests wait"));
  EXPECT_EQ(busy.status, 429);
  EXPECT_EQ(busy.code, "queue_full");
  EXPECT_GT(busy.retry_after_ms, 0);
}

}  // namespace
}  // namespace tramontane

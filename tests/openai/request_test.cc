// Bodies of requests as they are checked, and errors back to their fields.
#include "server/api/shared/generation_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/api/openai/dialect.h"
#include "server/api/openai/request_shapes.h"
#include "server/api/shared/json.h"
#include "tests/openai/parsed_request.h"

namespace tramontane {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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
        R"("functions":[{}])", R"("reasoning":{"effort":"high"})", R"("chat_template":"{{ x }}")",
        R"("truncate_prompt_tokens":5)", R"("bad_words":["x"])", R"("allowed_token_ids":[1])",
        R"("echo":true)", R"("documents":[{}])"}) {
    const ApiError fault = ChatFaultWith(fields);
    EXPECT_EQ(fault.status, 400) << fields;
    EXPECT_THAT(std::string(fields), HasSubstr(fault.param.substr(0, fault.param.find('['))))
        << fault.message;
  }
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
  EXPECT_EQ(name("chat.tools[0].parameters.properties.a[1]"), "tools[0].function.parameters.properties.a[1]");
  EXPECT_EQ(name("chat.tools[0]"), "tools[0]");
  EXPECT_EQ(name("something.else"), "something.else");
  EXPECT_EQ(ChatWith(R"("max_completion_tokens":5)").names[0].NameOf("stopping.max_tokens"),
            "max_completion_tokens");
}

TEST(Errors, OfAFieldThatAnotherImpliesNameTheOneThatWasSent) {
  const auto name = [](const char* fields) {
    return CompletionWith(fields).names[0].NameOf("output.prompt_logprobs");
  };
  EXPECT_EQ(name(R"("echo":true,"logprobs":1)"), "logprobs");
  EXPECT_EQ(name(R"("echo":true,"logprobs":1,"prompt_logprobs":1)"), "prompt_logprobs");
  const GenerationRequest forced =
      ChatWith(R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"required")");
  EXPECT_EQ(forced.names[0].NameOf("constraint"), "tool_choice");
  EXPECT_EQ(forced.names[0].NameOf("chat.tool_choice.name"), "tool_choice.function.name");
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
  RpcError error = ToRpcError(Internal("x"));
  error.reason = "BAD_GATEWAY";
  EXPECT_EQ(ToApiError(error).status, 502);
}

std::string ShouldRetry(const RpcError& error) {
  const HttpHeaders headers = ErrorResponse(kOpenAi, ToApiError(error), {}).headers;
  const auto found = std::find_if(headers.begin(), headers.end(),
                                  [](const auto& header) { return header.first == "x-should-retry"; });
  return found == headers.end() ? "" : found->second;
}

TEST(Errors, OnlyWhatNoRetryMendsSaysSo) {
  const auto session = [](const char* reason) {
    RpcError error = ToRpcError(Status(StatusCode::kFailedPrecondition, "x"));
    error.reason = reason;
    return error;
  };
  for (const char* reason :
       {"SESSION_DIFFERS", "SESSION_CANNOT_GO_ON", "SESSION_FILE_UNUSABLE", "SESSION_TOO_LARGE"}) {
    EXPECT_EQ(ToApiError(session(reason)).status, 409);
    EXPECT_EQ(ShouldRetry(session(reason)), "false") << reason;
  }
  EXPECT_EQ(ShouldRetry(ToOutcome(ResourceExhausted("took too much"))), "false");
  EXPECT_EQ(ToApiError(ToOutcome(ResourceExhausted("took too much"))).code, "request_limit");

  EXPECT_EQ(ShouldRetry(session("SESSION_IN_USE")), "");
  EXPECT_EQ(ShouldRetry(ToRpcError(Status(StatusCode::kAlreadyExists, "x"))), "");
  for (const char* reason : {"QUEUE_FULL", "INPUT_QUEUE_FULL", "TOO_MANY_STREAMS", "TOO_MANY_SESSIONS",
                             "TOO_MANY_CALLS", "UNREAD_ANSWERS", "KEY_CONCURRENCY", "KEY_REQUESTS",
                             "KEY_TOKENS", "SESSION_FILES_BUSY", "A_NEW_ONE"}) {
    EXPECT_EQ(ToApiError(BusyError(reason, "x")).status, 429);
    EXPECT_EQ(ShouldRetry(BusyError(reason, "x")), "") << reason;
  }
  EXPECT_EQ(ToApiError(BusyError("MESSAGE_TOO_LARGE", "x")).status, 413) << "which nobody tries again";
  EXPECT_EQ(ShouldRetry(FieldError("n", "x")), "") << "nobody tries a 400 again";
}

TEST(Errors, EveryFullQueueSaysByWhichCodeAndWhenToComeAgain) {
  const auto told = [](const RpcError& error) {
    const ApiError api = ToApiError(error);
    EXPECT_EQ(api.status, 429);
    EXPECT_EQ(api.type, "rate_limit_error");
    std::map<std::string, std::string> headers;
    for (const auto& [name, value] : ErrorResponse(kOpenAi, api, {}).headers) headers[name] = value;
    return api.code + ' ' + headers["retry-after"] + ' ' + headers["retry-after-ms"];
  };
  RpcError error = BusyError("KEY_TOKENS", "x");
  error.retry_after_ms = 1;
  EXPECT_EQ(told(error), "key_tokens 1 1");
  error.retry_after_ms = 1001;
  EXPECT_EQ(told(error), "key_tokens 2 1001");
  error.retry_after_ms = 0;
  EXPECT_EQ(told(error), "key_tokens 1 500");
  error.reason = "";
  EXPECT_EQ(told(error), "queue_full 1 500") << "from a server that says less";
  error = BusyError("REQUEST_LIMIT", "x");
  EXPECT_GT(error.retry_after_ms, 0);
  EXPECT_EQ(told(error), "request_limit  ") << "no retry mends it";
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

// Golden transcripts: the bytes of every shape of answer, one file each in tests/golden/openai, with the
// write that each byte leaves in. Where a shape was changed on purpose, TRAMONTANE_WRITE_GOLDENS=1
// openai_test writes them anew; read the difference before it is committed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "server/api/openai/chat.h"
#include "server/api/openai/completions.h"
#include "server/api/openai/dialect.h"
#include "server/api/shared/json.h"

namespace tramontane {
namespace {

// ---- events -------------------------------------------------------------------------------------

v1::GenerateResponse Started(int64_t prompt_tokens, int64_t cached_tokens = 0) {
  v1::GenerateResponse event;
  v1::Started* started = event.mutable_started();
  started->set_model("breeze");
  started->set_prompt_tokens(prompt_tokens);
  started->set_cached_tokens(cached_tokens);
  return event;
}

v1::GenerateResponse Delta(int32_t choice, const std::string& text, int64_t completion_tokens,
                           std::vector<int32_t> ids = {}) {
  v1::GenerateResponse event;
  v1::Delta* delta = event.mutable_delta();
  delta->set_choice(choice);
  delta->set_text(text);
  delta->set_completion_tokens(completion_tokens);
  delta->mutable_token_ids()->Add(ids.begin(), ids.end());
  return event;
}

struct Likely {
  int32_t id;
  std::string bytes;
  float logprob;
};

v1::TokenLogprob Logprob(const Likely& token, const std::vector<Likely>& top = {}) {
  v1::TokenLogprob logprob;
  logprob.set_token_id(token.id);
  logprob.set_token_bytes(token.bytes);
  logprob.set_logprob(token.logprob);
  logprob.set_rank(1);
  for (const Likely& likely : top) {
    v1::TopLogprob* entry = logprob.add_top();
    entry->set_token_id(likely.id);
    entry->set_token_bytes(likely.bytes);
    entry->set_logprob(likely.logprob);
  }
  return logprob;
}

v1::GenerateResponse Scored(v1::GenerateResponse delta, const std::vector<v1::TokenLogprob>& logprobs) {
  for (const v1::TokenLogprob& logprob : logprobs) *delta.mutable_delta()->add_logprobs() = logprob;
  return delta;
}

// A prompt of <s>, " Once", " upon", as echo and return_token_ids have it.
v1::GenerateResponse StartedWithPrompt() {
  v1::GenerateResponse event = Started(3);
  const std::vector<Likely> tokens = {{1, "", 0}, {22, "Once", 0}, {23, " upon", 0}};
  for (const Likely& token : tokens) {
    v1::PromptToken* prompt = event.mutable_started()->add_prompt();
    prompt->set_token_id(token.id);
    prompt->set_token_bytes(token.bytes);
  }
  *event.mutable_started()->add_prompt_logprobs() =
      Logprob({22, " Once", -2.5f}, {{30, " The", -0.5f}, {22, " Once", -2.5f}});
  *event.mutable_started()->add_prompt_logprobs() = Logprob({23, " upon", -0.25f}, {{23, " upon", -0.25f}});
  return event;
}

v1::GenerateResponse Finished(int32_t choice, v1::FinishReason reason, int64_t completion_tokens) {
  v1::GenerateResponse event;
  event.mutable_finished()->set_choice(choice);
  event.mutable_finished()->set_reason(reason);
  event.mutable_finished()->mutable_usage()->set_completion_tokens(completion_tokens);
  return event;
}

v1::GenerateResponse Failed(int32_t choice) {
  v1::GenerateResponse event = Finished(choice, v1::FINISH_REASON_ERROR, 0);
  event.mutable_finished()->set_error_message("the logits are not finite");
  return event;
}

// ---- transcripts --------------------------------------------------------------------------------

enum class Endpoint { kChat, kCompletion, kFillInMiddle };

struct Transcript {
  std::string name;
  Endpoint endpoint;
  std::string body;
  // What the calls say: each entry is taken at once, and is one write where the answer streams.
  std::vector<std::pair<size_t, std::vector<v1::GenerateResponse>>> takes;
  RpcError failure = {};  // the first call's end
};

void PrintTo(const Transcript& transcript, std::ostream* out) { *out << transcript.name; }

// The writes of an answer, each under a line of its own.
std::string WritesOf(const Transcript& transcript) {
  const RequestContext context = {
      .id = "r1", .created_s = 1700000000, .any_model = false, .system_fingerprint = "tramontane-1"};
  GenerationRequest request;
  const bool is_chat = transcript.endpoint == Endpoint::kChat;
  const auto parse = is_chat                                          ? ParseChatCompletion
                     : transcript.endpoint == Endpoint::kFillInMiddle ? ParseFillInMiddle
                                                                      : ParseCompletion;
  const auto fault = parse(transcript.body, context, &request);
  EXPECT_FALSE(fault) << fault->message;
  const auto writer = is_chat ? MakeChatWriter(request.answer, request.names)
                              : MakeCompletionWriter(request.answer, request.names);
  std::string writes = "request: " + transcript.body + "\n";
  int count = 0;
  const auto add = [&](const std::string& bytes) {
    if (!bytes.empty()) writes += "---- write " + std::to_string(++count) + "\n" + bytes;
    if (!bytes.empty() && !bytes.ends_with('\n')) writes += '\n';
  };
  for (const auto& [call, events] : transcript.takes) add(writer->OnEvents(call, events));
  if (!transcript.failure.ok()) {
    add(writer->Fail(writer->Explain(0, transcript.failure)));
  } else if (writer->Fault() && !request.answer.stream) {
    add(ErrorJson(*writer->Fault()));
  } else {
    add(writer->Finish());
  }
  return writes;
}

std::vector<Transcript> Transcripts();

class Golden : public ::testing::TestWithParam<Transcript> {};
INSTANTIATE_TEST_SUITE_P(OpenAi, Golden, ::testing::ValuesIn(Transcripts()),
                         [](const auto& test) { return test.param.name; });

TEST_P(Golden, IsWhatIsWritten) {
  const std::string path =
      std::string(TRAMONTANE_SOURCE_DIR) + "/tests/golden/openai/" + GetParam().name + ".txt";
  const std::string writes = WritesOf(GetParam());
  if (std::getenv("TRAMONTANE_WRITE_GOLDENS") != nullptr) {
    std::ofstream(path, std::ios::binary) << writes;
  }
  std::ifstream file(path, std::ios::binary);
  ASSERT_TRUE(file) << path;
  EXPECT_EQ(writes, std::string(std::istreambuf_iterator<char>(file), {}));
}

// What clients rely on, whatever the shape: every line of data is JSON, of one id, and a stream ends with
// [DONE].
TEST_P(Golden, IsReadableLineByLine) {
  const std::string writes = WritesOf(GetParam());
  const bool streams = writes.find("---- write 1\ndata: ") != std::string::npos;
  std::string last;
  for (size_t at = 0; at < writes.size();) {
    const size_t end = writes.find('\n', at);
    const std::string line = writes.substr(at, end - at);
    at = end + 1;
    const bool is_note = line.starts_with("request: ") || line.starts_with("---- ");
    if (line.empty() || is_note) continue;
    last = line;
    if (line == "data: [DONE]") continue;
    const auto json = ParseJson(streams ? line.substr(6) : line);
    ASSERT_TRUE(json.ok()) << line;
    if (json->contains("error")) continue;
    EXPECT_THAT((*json)["id"].get<std::string>(), ::testing::AnyOf("chatcmpl-r1", "cmpl-r1"));
    EXPECT_EQ((*json)["created"], 1700000000);
    EXPECT_TRUE((*json)["choices"].is_array());
  }
  EXPECT_EQ(last == "data: [DONE]", streams) << last;
}

// ---- the shapes ---------------------------------------------------------------------------------

std::string ChatBody(const std::string& fields) {
  return R"({"model":"m","messages":[{"role":"user","content":"Hi"}])" + fields + "}";
}

v1::GenerateResponse StoppedBy(const std::string& stop) {
  v1::GenerateResponse event = Finished(0, v1::FINISH_REASON_STOP_SEQUENCE, 2);
  event.mutable_finished()->set_stop(stop);
  return event;
}

v1::GenerateResponse Thought(v1::GenerateResponse delta, const std::string& reasoning) {
  delta.mutable_delta()->set_reasoning(reasoning);
  return delta;
}

v1::GenerateResponse FinishedThinking(int64_t completion_tokens, int64_t reasoning_tokens) {
  v1::GenerateResponse event = Finished(0, v1::FINISH_REASON_STOP, completion_tokens);
  event.mutable_finished()->mutable_usage()->set_reasoning_tokens(reasoning_tokens);
  return event;
}

v1::GenerateResponse CallsFrom(v1::GenerateResponse delta, int32_t byte) {
  delta.mutable_delta()->set_tool_calls_at(byte);
  return delta;
}

std::vector<Transcript> ChatStreams() {
  const auto stop = v1::FINISH_REASON_STOP;
  return {
      {"chat_stream",
       Endpoint::kChat,
       ChatBody(R"(,"stream":true)"),
       // The first token is half a character: nothing is sent for it.
       {{0, {Started(5), Delta(0, "", 1)}},
        {0, {Delta(0, "北", 2)}},
        {0, {Delta(0, " \"wind\"\n", 4)}},
        {0, {Finished(0, stop, 5)}}}},
      {"chat_stream_usage",
       Endpoint::kChat,
       ChatBody(R"(,"stream":true,"stream_options":{"include_usage":true})"),
       {{0, {Started(5, 4), Delta(0, "Hello", 1)}}, {0, {Finished(0, v1::FINISH_REASON_LENGTH, 1)}}}},
      {"chat_stream_continuous_usage",
       Endpoint::kChat,
       ChatBody(R"(,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true})"),
       {{0, {Started(5), Delta(0, "Hello", 1)}}, {0, {Delta(0, " you", 2)}}, {0, {Finished(0, stop, 3)}}}},
      {"chat_stream_two_choices",
       Endpoint::kChat,
       ChatBody(R"(,"stream":true,"n":2,"stream_options":{"include_usage":true})"),
       {{0, {Started(5), Delta(1, "B", 1)}},
        {0, {Delta(0, "A", 1), Delta(1, "b", 2)}},
        {0, {Finished(1, stop, 3), Finished(0, v1::FINISH_REASON_LENGTH, 1)}}}},
      {"chat_stream_logprobs",
       Endpoint::kChat,
       ChatBody(R"(,"stream":true,"logprobs":true,"top_logprobs":2)"),
       {{0,
         {Started(5),
          Scored(Delta(0, "Hi", 1), {Logprob({40, "Hi", -0.5f}, {{40, "Hi", -0.5f}, {41, "Yo", -1.f}})})}},
        {0, {Scored(Delta(0, "", 2), {Logprob({300, "\xe5\x8c", -0.125f})})}},
        {0,
         {Scored(Delta(0, "北", 3),
                 {Logprob({301, "\x97", -std::numeric_limits<float>::infinity()}, {{2, "", -3.f}})})}},
        {0, {Finished(0, stop, 4)}}}},
      {"chat_stream_stop_text",
       Endpoint::kChat,
       ChatBody(R"(,"stream":true,"stop":"END")"),
       {{0, {Started(5), Delta(0, "Hello", 2), StoppedBy("END")}}}},
      {"chat_stream_token_ids",
       Endpoint::kChat,
       ChatBody(R"(,"stream":true,"return_token_ids":true)"),
       {{0, {StartedWithPrompt(), Delta(0, "Hello", 2, {40, 41})}}, {0, {Finished(0, stop, 2)}}}},
      {"chat_stream_empty",
       Endpoint::kChat,
       ChatBody(R"(,"stream":true,"max_tokens":0)"),
       {{0, {Started(5), Finished(0, v1::FINISH_REASON_LENGTH, 0)}}}},
      {"chat_stream_empty_with_all_fields",
       Endpoint::kChat,
       ChatBody(R"(,"stream":true,"max_tokens":0,"logprobs":true,"return_token_ids":true)"),
       {{0, {StartedWithPrompt(), Finished(0, v1::FINISH_REASON_LENGTH, 0)}}}},
      {"chat_stream_tool_calls",
       Endpoint::kChat,
       ChatBody(R"(,"stream":true,"tools":[{"type":"function","function":{"name":"f"}}])"),
       {{0, {Started(5), CallsFrom(Delta(0, R"([{"name": "f", )", 4), 0)}},
        {0, {Delta(0, R"("arguments": {"a": "é"}}, {"name": "f", "arguments": {}})", 20)}},
        {0, {Delta(0, "]", 21), Finished(0, stop, 22)}}}},
      {"chat_stream_reasoning",
       Endpoint::kChat,
       ChatBody(R"(,"stream":true,"stream_options":{"include_usage":true})"),
       {{0, {Started(5), Thought(Delta(0, "", 2), "So \"5\"")}},
        {0, {Thought(Delta(0, "Y", 4), ".")}},
        {0, {Delta(0, "es", 5), FinishedThinking(6, 2)}}}},
      {"chat_stream_fails",
       Endpoint::kChat,
       ChatBody(R"(,"stream":true)"),
       {{0, {Started(5), Delta(0, "Hel", 1)}}},
       UnavailableError("DRAINING", "the server is stopping")},
      {"chat_stream_choice_fails",
       Endpoint::kChat,
       ChatBody(R"(,"stream":true,"n":2,"stream_options":{"include_usage":true})"),
       {{0, {Started(5), Delta(0, "A", 1)}}, {0, {Failed(1)}}, {0, {Finished(0, stop, 2)}}}},
  };
}

std::vector<Transcript> WholeChats() {
  const auto stop = v1::FINISH_REASON_STOP;
  return {
      {"chat",
       Endpoint::kChat,
       R"({"messages":[{"role":"user","content":"Hi"}]})",
       {{0, {Started(5, 1), Delta(0, "Hel", 1)}},
        {0, {Delta(0, "lo \xff", 2)}},
        {0, {Finished(0, stop, 3)}}}},
      {"chat_two_choices_logprobs",
       Endpoint::kChat,
       ChatBody(R"(,"n":2,"logprobs":true,"return_tokens_as_token_ids":true)"),
       {{0,
         {Started(5), Scored(Delta(0, "A", 1), {Logprob({40, "A", -0.5f})}),
          Scored(Delta(1, "B", 1), {Logprob({41, "B", -1.5f})})}},
        {0, {Finished(0, stop, 2), Finished(1, v1::FINISH_REASON_TIME_LIMIT, 1)}}}},
      {"chat_tool_calls",
       Endpoint::kChat,
       ChatBody(R"(,"tools":[{"type":"function","function":{"name":"f"}}])"),
       {{0,
         {Started(5), CallsFrom(Delta(0, R"([{"name": "f", "arguments": {"a": 1}}])", 9), 0),
          Finished(0, stop, 10)}}}},
      {"chat_reasoning",
       Endpoint::kChat,
       ChatBody(""),
       {{0, {Started(5), Thought(Delta(0, "Yes", 5), "So \"5\".")}}, {0, {FinishedThinking(6, 2)}}}},
      {"chat_prompt_logprobs",
       Endpoint::kChat,
       ChatBody(R"(,"prompt_logprobs":1,"return_token_ids":true)"),
       {{0, {StartedWithPrompt(), Delta(0, "A", 1, {40}), Finished(0, stop, 2)}}}},
      {"chat_choice_fails", Endpoint::kChat, ChatBody(""), {{0, {Started(5), Delta(0, "A", 1), Failed(0)}}}},
  };
}

std::vector<Transcript> Completions() {
  const auto stop = v1::FINISH_REASON_STOP;
  const std::vector<v1::GenerateResponse> told = {
      StartedWithPrompt(),
      Scored(Delta(0, " a", 1, {24}), {Logprob({24, " a", -1.f}, {{25, " the", -0.75f}})}),
      Scored(Delta(0, " 北", 4, {26, 300, 301}),
             {Logprob({26, " ", -2.f}), Logprob({300, "\xe5\x8c", -0.5f}), Logprob({301, "\x97", -0.5f})}),
      Finished(0, v1::FINISH_REASON_LENGTH, 4)};
  return {
      {"completion_stream",
       Endpoint::kCompletion,
       R"({"model":"m","prompt":"Hi","stream":true})",
       {{0, {Started(2), Delta(0, " there", 1)}}, {0, {Delta(0, "", 2)}}, {0, {Finished(0, stop, 2)}}}},
      {"completion_stream_echo_logprobs",
       Endpoint::kCompletion,
       R"({"model":"m","prompt":"Once upon","stream":true,"echo":true,"logprobs":1,"return_token_ids":true})",
       {{0, told}}},
      {"completion_stream_empty_with_all_fields",
       Endpoint::kCompletion,
       R"({"model":"m","prompt":"Hi","stream":true,"max_tokens":0,"logprobs":1,"return_token_ids":true})",
       {{0, {StartedWithPrompt(), Finished(0, v1::FINISH_REASON_LENGTH, 0)}}}},
      {"completion_stream_two_prompts",
       Endpoint::kCompletion,
       R"({"model":"m","prompt":["a","b"],"n":2,"stream":true,"stream_options":{"include_usage":true}})",
       {{1, {Started(2), Delta(1, "b1", 1)}},
        {0, {Started(3), Delta(0, "a0", 1), Delta(1, "a1", 1)}},
        {1, {Delta(0, "b0", 1), Finished(0, stop, 2), Finished(1, stop, 2)}},
        {0, {Finished(0, stop, 2), Finished(1, stop, 2)}}}},
      {"completion_stream_fails",
       Endpoint::kCompletion,
       R"({"model":"m","prompt":"Hi","stream":true})",
       {{0, {Started(2), Delta(0, " there", 1)}}},
       ToRpcError(Internal("the device is lost"))},
      {"completion",
       Endpoint::kCompletion,
       R"({"model":"m","prompt":"Hi"})",
       {{0, {Started(2), Delta(0, " there", 1), StoppedBy("\n")}}}},
      {"completion_echo_logprobs",
       Endpoint::kCompletion,
       R"({"model":"m","prompt":"Once upon","echo":true,"logprobs":1})",
       {{0, told}}},
      {"completion_scores_only",
       Endpoint::kCompletion,
       R"({"model":"m","prompt":[1,22,23],"echo":true,"logprobs":0,"max_tokens":0})",
       {{0, {StartedWithPrompt(), Finished(0, v1::FINISH_REASON_LENGTH, 0)}}}},
      {"fim",
       Endpoint::kFillInMiddle,
       R"({"model":"m","prompt":"def f(","suffix":"return a"})",
       {{0, {Started(2), Delta(0, "a):", 1), Finished(0, stop, 2)}}}},
      {"fim_stream",
       Endpoint::kFillInMiddle,
       R"({"model":"m","prompt":"def f(","suffix":"return a","stream":true})",
       {{0, {Started(2), Delta(0, "a", 1)}}, {0, {Delta(0, "):", 2)}}, {0, {Finished(0, stop, 3)}}}},
      {"completion_two_prompts",
       Endpoint::kCompletion,
       R"({"model":"m","prompt":[[1],[2]],"prompt_logprobs":0})",
       {{1, {Started(1), Delta(0, "b", 1), Finished(0, stop, 2)}},
        {0, {Started(1), Delta(0, "a", 1), Finished(0, stop, 2)}}}},
  };
}

std::vector<Transcript> Transcripts() {
  std::vector<Transcript> all = ChatStreams();
  for (const auto& more : {WholeChats(), Completions()}) all.insert(all.end(), more.begin(), more.end());
  return all;
}

}  // namespace
}  // namespace tramontane
